"""Encodes Arrow to record batches of format 2; rows go straight to their place (Kafka's `MemoryRecordsBuilder`)."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from crc32c import crc32c

from distlog.core.batches import compression
from distlog.core.batches.batch_format import BatchFormat
from distlog.core.batches.record_batch import (
    CRC_AT,
    CRC_START,
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    increment_sequence,
)
from distlog.core.batches.record_input import RecordInput
from distlog.core.buffers import BLOCK_BYTES, new_array, new_pages
from distlog.core.errors import InvalidRecordError
from distlog.core.kernel_tuples import BatchLimits
from distlog.core.kernels import record_write
from distlog.core.kernels.record_write import DRAFT, append_records
from distlog.core.times import NO_TIMESTAMP

_FIRST_ROOM, _FIRST_DRAFTS = 1 << 16, 64
#: Roughly the most bytes that a record takes in a batch beyond what it takes in Arrow.
_RECORD_SPARE = 8

_ABOVE_MAX = "a record makes a batch above max.message.bytes"
_COMPLAINTS = {
    record_write.BAD_TIMESTAMP: "a timestamp is negative (-1 alone says that there is none)",
    record_write.NULL_HEADER_KEY: "the key of a header is null",
    record_write.TOO_LARGE: "a record is larger than 2 GiB",
}


_CRC = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class EncodedBatches:
    """Batches back to back in `data`, which is writable, and their BATCH rows.

    `offsets_of_max_timestamp` has, per batch, the offset of the first record with the largest timestamp, or -1 when
    the batch has no timestamp. `min_timestamps` has the smallest timestamp, or -1 when a record has none.
    """

    data: memoryview
    batches: np.ndarray
    offsets_of_max_timestamp: np.ndarray
    min_timestamps: np.ndarray


class RecordEncoder:
    """Writes records into batches as they come, at offsets from `base_offset` on; the last batch stays open.

    Holds about `gather_bytes`, or four batches if these are larger; it begins with room for `room` bytes. It never
    reads again what it has handed on. The same records give the same batches, however they are split into calls.
    After an error it must not be used again.

    `file_position` is where in their file the next batches will begin; the caller may set it after each step. Batches
    without compression then lie in memory as `new_pages` aligns it, and can be written without a copy.
    """

    def __init__(
        self, form: BatchFormat, base_offset: int = 0, gather_bytes: int = BLOCK_BYTES, room: int = _FIRST_ROOM
    ) -> None:
        self._form, self._base_offset, self._gather_bytes = form, base_offset, gather_bytes
        self._limits = BatchLimits(form.limit, form.largest, form.window_ms)
        self._data, self._drafts = new_array(room, np.uint8), np.zeros(_FIRST_DRAFTS, DRAFT)
        self._last = self.file_position = 0
        self._until = NO_TIMESTAMP

    def append(self, source: RecordInput, rows: npt.NDArray[np.int64]) -> Iterator[EncodedBatches]:
        """Take the `rows` of `source`, in this order; yields full batches.

        Raises InvalidRecordError for a malformed record, or one that makes a batch above `max_batch_bytes`; its `row`
        counts from the first record of all.
        """
        first, columns = 0, source.columns()
        while True:
            status, first, self._last, end, self._until = append_records(
                self._data, self._drafts, self._last, first, rows, columns, self._limits, self._until
            )
            if status == record_write.OK:
                return
            if status != record_write.FULL:
                raise self._refused(status, end)
            full = int(self._drafts["position"][self._last])
            if 2 * full >= max(self._data.size, self._gather_bytes):
                yield self._encoded(self._drafts[: self._last])
                self._move_open_batch()
            else:
                self._grow(end)

    def finish(self) -> EncodedBatches:
        """The remaining batches. The encoder is empty after that, and must not be used again."""
        drafts = self._drafts[: self._last + 1]
        encoded = self._encoded(drafts[drafts["record_count"] > 0])
        self._data, self._drafts, self._last = new_array(0, np.uint8), np.zeros(1, DRAFT), 0
        return encoded

    def _refused(self, status: int, end: int) -> InvalidRecordError:
        draft = self._drafts[self._last]
        row = int(draft["first_record"] + draft["record_count"])
        if status != record_write.OVERSIZED:
            return InvalidRecordError(_COMPLAINTS[status], row=row)
        size = end - int(draft["position"])
        if self._form.codec == compression.NONE:
            return InvalidRecordError(_ABOVE_MAX, row=row, size=size)
        return InvalidRecordError("a record is too large to compress", row=row, size=size - HEADER_SIZE)

    def _move_open_batch(self) -> None:
        """Go on in other memory, since a disk may still be writing what was handed on."""
        draft = self._drafts[self._last].copy()
        start, size = int(draft["position"]) + HEADER_SIZE, int(draft["record_bytes"])
        memory = new_pages(self._data.size, self.file_position)
        memory[HEADER_SIZE : HEADER_SIZE + size] = self._data[start : start + size]
        draft["position"] = 0
        self._data, self._drafts[0], self._last = memory, draft, 0

    def _grow(self, end: int) -> None:
        if self._last + 1 == self._drafts.size:
            self._drafts = np.concatenate([self._drafts, np.zeros_like(self._drafts)])
            return
        grown = new_pages(max(2 * self._data.size, end, BLOCK_BYTES), self.file_position)
        grown[: self._data.size] = self._data
        self._data = grown

    def _encoded(self, drafts: np.ndarray) -> EncodedBatches:
        form, append_time = self._form, self._form.append_time
        batches = form.headers(drafts.size)
        batches["base_offset"] = self._base_offset + drafts["first_record"]
        batches["last_offset_delta"] = drafts["record_count"] - 1
        batches["base_timestamp"] = drafts["base_timestamp"]
        batches["max_timestamp"] = drafts["max_timestamp"] if append_time is None else append_time()
        sequence = form.base_sequence
        batches["base_sequence"] = increment_sequence(sequence, drafts["first_record"]) if sequence >= 0 else -1
        batches["record_count"] = drafts["record_count"]
        data = self._lay_out(drafts, batches)
        _check_sizes(batches["size"], form.max_batch_bytes, drafts)
        write_headers(data.data, batches)
        newest = self._base_offset + drafts["newest_record" if append_time is None else "first_record"]
        newest = np.where(batches["max_timestamp"] < 0, -1, newest)
        oldest = (drafts["min_timestamp"] if append_time is None else batches["max_timestamp"]).copy()
        return EncodedBatches(data.data, batches, newest, oldest)

    def _lay_out(self, drafts: np.ndarray, batches: np.ndarray) -> npt.NDArray[np.uint8]:
        """The bytes of all batches without their headers; puts position and size into `batches`."""
        form = self._form
        starts, ends = drafts["position"] + HEADER_SIZE, drafts["position"] + HEADER_SIZE + drafts["record_bytes"]
        if form.codec == compression.NONE:
            batches["position"], batches["size"] = drafts["position"], drafts["record_bytes"] + HEADER_SIZE
            return self._data[: int(ends[-1]) if drafts.size else 0]
        packed = [
            compression.compress(form.codec, self._data[start:end], form.level)
            for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
        ]
        batches["size"] = [HEADER_SIZE + len(part) for part in packed]
        ends = np.cumsum(batches["size"])
        batches["position"] = ends - batches["size"]
        data = new_array(int(ends[-1]) if ends.size else 0, np.uint8)
        for start, part in zip((batches["position"] + HEADER_SIZE).tolist(), packed, strict=True):
            data[start : start + len(part)] = np.frombuffer(part, np.uint8)
        return data


def encode(records: pa.RecordBatch, base_offset: int = 0, **settings: Any) -> EncodedBatches:
    """Encode all of `records` in batches of the format that `settings`, the fields of BatchFormat, describe.

    `records` has the columns timestamp (timestamp[ms] or int64, -1: none), key, value and, optionally, headers; see
    RecordInput. Raises InvalidRecordError, with the row, for a record that is malformed or makes a batch too large.
    """
    source = RecordInput.from_arrow(records)
    form, room = BatchFormat(**settings), records.nbytes + _RECORD_SPARE * records.num_rows + _FIRST_ROOM
    encoder = RecordEncoder(form, base_offset, gather_bytes=sys.maxsize, room=room)
    # one step takes all rows, since `gather_bytes` has no limit here
    next(encoder.append(source, np.arange(records.num_rows)), None)
    return encoder.finish()


def _check_sizes(sizes: np.ndarray, largest: int, drafts: np.ndarray) -> None:
    if (sizes > largest).any():
        batch = int(np.argmax(sizes > largest))
        raise InvalidRecordError(_ABOVE_MAX, row=int(drafts["first_record"][batch]), size=int(sizes[batch]))


def write_headers(view: memoryview, batches: np.ndarray) -> None:
    """Write the headers of `batches`, whose records are already in `view`, and put the checksums into the rows."""
    crcs = []
    for batch in batches.tolist():
        position, size, base_offset, last_delta, leader_epoch, magic, _, attributes, *rest = batch
        start, end = position + CRC_START, position + size
        HEADER.pack_into(
            view, position, base_offset, size - LOG_OVERHEAD, leader_epoch, magic, 0, attributes, last_delta, *rest
        )
        crcs.append(crc32c(view[start:end]))
        _CRC.pack_into(view, position + CRC_AT, crcs[-1])
    batches["crc"] = crcs
