"""Arrow to record batches of format 2: one kernel call writes the records of all batches."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from distlog.core.batches import compression
from distlog.core.batches.record_batch import (
    APPEND_TIME,
    BATCH,
    CONTROL,
    CRC_AT,
    CRC_START,
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    NO_TIMESTAMP,
    TRANSACTIONAL,
    increment_sequence,
)
from distlog.core.batches.record_input import RecordInput
from distlog.core.buffers import new_array
from distlog.core.errors import InvalidRecordError
from distlog.core.kernels import record_write
from distlog.core.kernels.record_write import PLAN, plan_batches, write_records

_COMPLAINTS = {
    record_write.BAD_TIMESTAMP: "a timestamp is negative (-1 alone says that there is none)",
    record_write.NULL_HEADER_KEY: "the key of a header is null",
    record_write.TOO_LARGE: "a record is larger than 2 GiB",
}


_CRC = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class EncodedBatches:
    """Batches back to back in `data`, which is writable, and their BATCH rows.

    `offsets_of_max_timestamp`: per batch, the offset of its first record with its largest timestamp, -1 where it has
    no timestamp.
    """

    data: memoryview
    batches: np.ndarray
    offsets_of_max_timestamp: np.ndarray

    @property
    def first_timestamp(self) -> int:
        """The timestamp of the first record; -1 if it has none, or there is none."""
        return int(self.batches["base_timestamp"][0]) if self.batches.size else NO_TIMESTAMP


def encode(
    records: pa.RecordBatch,
    *,
    codec: int = compression.NONE,
    level: int | None = None,
    batch_bytes: int = 131_072,
    max_batch_bytes: int = 1_048_588,
    base_offset: int = 0,
    append_time_ms: int | None = None,
    leader_epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
    open_end: bool = False,
) -> EncodedBatches:
    """Batches of format 2 that hold `records` at offsets from `base_offset` on, in order.

    `records` has the columns timestamp (timestamp[ms] or int64, -1: none), key, value and, it may be absent, headers;
    see RecordInput. A batch ends before its uncompressed records would pass `batch_bytes`, but holds one record
    at least. With `append_time_ms` the batches are LogAppendTime. `codec` and `level` are those of `compress`.
    The sequence numbers go on from batch to batch; the rules for what goes with a producer id are Kafka's.
    `open_end` leaves out the last batch, since more records may belong to it: its records are to be given again.
    InvalidRecordError: a record that is malformed or that makes a batch above `max_batch_bytes`, and its row.
    """
    common = np.zeros((), BATCH)
    common["leader_epoch"], common["magic"] = leader_epoch, 2
    common["attributes"] = _attributes(codec, append_time_ms is not None, transactional, control)
    common["producer_id"], common["producer_epoch"] = producer_id, producer_epoch
    _check_producer(producer_id, producer_epoch, base_sequence, transactional, control)
    source = RecordInput.from_arrow(records)
    plan, sizes = _plan(source, _limit(codec, batch_bytes, max_batch_bytes))
    if open_end:
        plan = plan[:-1]
    batches = np.full(plan.size, common)
    batches["base_offset"] = base_offset + plan["first_row"]
    batches["last_offset_delta"] = plan["record_count"] - 1
    batches["base_timestamp"] = source.timestamps[plan["first_row"]]
    batches["max_timestamp"] = plan["max_timestamp"] if append_time_ms is None else append_time_ms
    batches["base_sequence"] = increment_sequence(base_sequence, plan["first_row"]) if base_sequence >= 0 else -1
    batches["record_count"] = plan["record_count"]
    if codec != compression.NONE:
        _check_sizes(plan["record_bytes"], compression.MAX_RECORDS_BYTES, plan, "a record is too large to compress")
    data = _write(source, plan, sizes, batches, codec, level)
    _check_sizes(batches["size"], max_batch_bytes, plan, "a record makes a batch above max.message.bytes")
    view = data.data
    write_headers(view, batches)
    rows_of_max = plan["max_row"] if append_time_ms is None else plan["first_row"]
    return EncodedBatches(view, batches, np.where(batches["max_timestamp"] < 0, -1, base_offset + rows_of_max))


def _attributes(codec: int, by_append_time: bool, transactional: bool, control: bool) -> int:
    return codec | by_append_time * APPEND_TIME | transactional * TRANSACTIONAL | control * CONTROL


def _check_producer(producer_id: int, epoch: int, base_sequence: int, transactional: bool, control: bool) -> None:
    if producer_id == -1:
        if transactional:
            raise InvalidRecordError("a transactional batch needs a producer id")
    elif epoch < 0:
        raise InvalidRecordError("a producer id needs an epoch", producer_id=producer_id)
    elif base_sequence < 0 and not control:
        raise InvalidRecordError("a producer id needs a sequence number", producer_id=producer_id)


def _limit(codec: int, batch_bytes: int, max_batch_bytes: int) -> int:
    room = max_batch_bytes - HEADER_SIZE
    if codec != compression.NONE:
        # What does not compress grows: by 10 bytes per 32 KiB at worst, in snappy.
        room = min(room - (room >> 10) - 64, compression.MAX_RECORDS_BYTES)
    return min(batch_bytes, room)


def _plan(source: RecordInput, limit: int) -> tuple[np.ndarray, np.ndarray]:
    rows = source.timestamps.size
    sizes, plan = new_array(rows, np.int64), np.empty(rows, PLAN)
    status, number = plan_batches(*source.columns(), limit, sizes, plan)
    if status != record_write.OK:
        raise InvalidRecordError(_COMPLAINTS[status], row=number)
    return plan[:number], sizes


def _write(
    source: RecordInput, plan: np.ndarray, sizes: np.ndarray, batches: np.ndarray, codec: int, level: int | None
) -> np.ndarray:
    """The bytes of all batches but for their headers; puts position and size into `batches`."""
    if codec == compression.NONE:
        data = _lay_out(batches, plan["record_bytes"])
        write_records(data, batches["position"] + HEADER_SIZE, plan, sizes, *source.columns())
        return data
    ends = np.cumsum(plan["record_bytes"])
    raw = new_array(int(ends[-1]) if ends.size else 0, np.uint8)
    write_records(raw, ends - plan["record_bytes"], plan, sizes, *source.columns())
    starts = (ends - plan["record_bytes"]).tolist()
    packed = [
        compression.compress(codec, raw[start:end], level) for start, end in zip(starts, ends.tolist(), strict=True)
    ]
    data = _lay_out(batches, [len(part) for part in packed])
    for start, part in zip((batches["position"] + HEADER_SIZE).tolist(), packed, strict=True):
        data[start : start + len(part)] = np.frombuffer(part, np.uint8)
    return data


def _lay_out(batches: np.ndarray, payload_sizes: Any) -> np.ndarray:
    batches["size"] = payload_sizes
    batches["size"] += HEADER_SIZE
    ends = np.cumsum(batches["size"])
    batches["position"] = ends - batches["size"]
    return new_array(int(ends[-1]) if ends.size else 0, np.uint8)


def _check_sizes(sizes: np.ndarray, largest: int, plan: np.ndarray, complaint: str) -> None:
    if (sizes > largest).any():
        batch = int(np.argmax(sizes > largest))
        raise InvalidRecordError(complaint, row=int(plan["first_row"][batch]), size=int(sizes[batch]))


def write_headers(view: memoryview, batches: np.ndarray) -> None:
    """Write the headers of `batches`, whose records are in `view` already, and put the checksums into the rows."""
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
