"""Encodes Arrow data to record batches of format 2 (Kafka's `MemoryRecordsBuilder`), and changes stored headers."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from crc32c import crc32c

from distlog.core.arrays import BLOCK_BYTES, MAX_LONG, Bytes, Longs, byte_array, flags_of, new_array, new_pages
from distlog.core.config import TopicConfig
from distlog.core.errors import InvalidConfigError, InvalidRecordError, UnsupportedVersionError
from distlog.core.format import compression
from distlog.core.format.kernels import record_write
from distlog.core.format.kernels.batch_scan import BATCH, write_crcs
from distlog.core.format.kernels.record_write import (
    DRAFT,
    BatchLimits,
    ByteColumn,
    Columns,
    HeaderColumn,
    append_groups,
    append_records,
)
from distlog.core.format.record_batch import (
    APPEND_TIME,
    ATTRIBUTES_AT,
    CODEC_MASK,
    CONTROL,
    CRC_AT,
    CRC_START,
    HEADER,
    HEADER_SIZE,
    HEADERS_TYPE,
    LOG_OVERHEAD,
    TRANSACTIONAL,
    increment_sequence,
)

#: The room that an encoder starts with: bytes, and drafts (rows of DRAFT), which describe unfinished batches.
_FIRST_BYTES, _FIRST_DRAFTS = 1 << 16, 64
#: An upper estimate of the bytes that a record needs in a batch beyond its bytes in Arrow.
_RECORD_SPARE = 8
_ABOVE_MAX = "a record makes a batch above max.message.bytes, or segment.bytes if that is less: make it smaller"
_FAULTS = {
    record_write.BAD_TIMESTAMP: "a timestamp is negative (only -1 is allowed: no timestamp)",
    record_write.NULL_HEADER_KEY: "the key of a header is null",
    record_write.TOO_LARGE: "a record is larger than 2 GiB",
}
#: The name of the codec "none" in a topic's settings.
_UNCOMPRESSED = "uncompressed"
_OFFSET_TYPES = {pa.binary(): np.int32, pa.string(): np.int32, pa.large_binary(): np.int64}
_CRC = struct.Struct(">I")
_MAX_TIMESTAMP_AT = 35


class RecordEncoder:
    """Writes records into batches at offsets from `base_offset`; the last batch stays open.

    Its memory has `room` bytes at first, and grows to about `gather_bytes`. After that it doubles only while a batch
    fills more than half, so up to four batches. How records are split into calls does not change the batches. Don't
    use an encoder again after an error.

    After each step of `append`, a caller may set `file_position`, the position of the next batches in their file.
    Then the memory of uncompressed batches is aligned like the file, so that a direct write needs no copy.
    """

    def __init__(
        self, form: BatchFormat, base_offset: int = 0, gather_bytes: int = BLOCK_BYTES, room: int = _FIRST_BYTES
    ) -> None:
        self._form, self._base_offset, self._gather_bytes = form, base_offset, gather_bytes
        self._limits = BatchLimits(form.usual_record_bytes, form.max_record_bytes, form.window_ms)
        self._data, self._drafts = new_array(room, np.uint8), np.zeros(_FIRST_DRAFTS, DRAFT)
        self._open_draft, self.file_position = 0, 0
        self._window_end_ms = record_write.NOT_STARTED

    def append(self, source: RecordInput, rows: npt.NDArray[np.int64]) -> Iterator[EncodedBatches]:
        """Append the `rows` of `source`; yields full batches. Errors count rows from the encoder's first record."""
        index, columns = 0, source.columns()
        while True:
            status, index, self._open_draft, record_end, self._window_end_ms = append_records(
                self._data, self._drafts, self._open_draft, index, rows, columns, self._limits, self._window_end_ms
            )
            if status == record_write.OK:
                return
            if status != record_write.FULL:
                raise self._refusal(status, record_end)
            full_bytes = int(self._drafts["position"][self._open_draft])
            # yield if full batches have at least half of `gather_bytes`, and half of the memory, which is freed then
            if 2 * full_bytes >= max(self._data.size, self._gather_bytes):
                yield self._encode(self._drafts[: self._open_draft])
                self._move_open_batch()
            else:
                self._grow(record_end)

    def append_groups(
        self, source: RecordInput, rows: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]
    ) -> EncodedBatches | None:
        """Encode the next counts[i] of `rows` as batch i, each from the base offset on. Needs an unused encoder.

        Returns None if a group needs several batches or more room, or if a record is refused.
        """
        drafts = np.zeros(len(counts) + 1, DRAFT)
        if append_groups(self._data, drafts, rows, counts, source.columns(), self._limits) < len(counts):
            return None
        try:
            return self._encode(drafts[:-1])
        except InvalidRecordError:
            return None

    def finish(self) -> EncodedBatches:
        drafts = self._drafts[: self._open_draft + 1]
        encoded = self._encode(drafts[drafts["record_count"] > 0])
        self._data, self._drafts, self._open_draft = new_array(0, np.uint8), np.zeros(1, DRAFT), 0
        return encoded

    def _refusal(self, status: int, record_end: int) -> InvalidRecordError:
        draft = self._drafts[self._open_draft]
        row = int(draft["first_record"] + draft["record_count"])
        if status != record_write.OVERSIZED:
            return InvalidRecordError(_FAULTS[status], row=row)
        size = record_end - int(draft["position"])
        if self._form.codec == compression.NONE:
            return InvalidRecordError(_ABOVE_MAX, row=row, size=size, limit=self._form.max_batch_bytes)
        return InvalidRecordError("a record is too large to compress", row=row, size=size - HEADER_SIZE)

    def _move_open_batch(self) -> None:
        """Move the open batch to new memory, since a disk may be writing the yielded batches."""
        draft = self._drafts[self._open_draft].copy()
        start, size = int(draft["position"]) + HEADER_SIZE, int(draft["record_bytes"])
        memory = new_pages(self._data.size, self.file_position)
        memory[HEADER_SIZE : HEADER_SIZE + size] = self._data[start : start + size]
        draft["position"] = 0
        self._data, self._drafts[0], self._open_draft = memory, draft, 0

    def _grow(self, record_end: int) -> None:
        """Make room for more drafts if all are used, else for bytes: at least to the next record's end."""
        if self._open_draft + 1 == self._drafts.size:
            self._drafts = np.concatenate([self._drafts, np.zeros_like(self._drafts)])
            return
        size = self._data.size
        # there may be thousands of encoders, so memory starts small: it grows fourfold, then to a block, then twofold
        block = min(self._gather_bytes, BLOCK_BYTES)
        new_size = 4 * size if 8 * size < block else max(2 * size, block)
        memory = new_pages(max(new_size, record_end), self.file_position)
        memory[:size] = self._data
        self._data = memory

    def _encode(self, drafts: np.ndarray) -> EncodedBatches:
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
        sizes = batches["size"]
        if (sizes > form.max_batch_bytes).any():
            batch = int(np.argmax(sizes > form.max_batch_bytes))
            row, size = int(drafts["first_record"][batch]), int(sizes[batch])
            raise InvalidRecordError(_ABOVE_MAX, row=row, size=size, limit=form.max_batch_bytes)
        write_headers(data.data, batches)
        offsets_of_max = self._base_offset + drafts["newest_record" if append_time is None else "first_record"]
        offsets_of_max = np.where(batches["max_timestamp"] < 0, -1, offsets_of_max)
        # with LogAppendTime, all records of a batch have its largest timestamp
        min_timestamps = (drafts["min_timestamp"] if append_time is None else batches["max_timestamp"]).copy()
        return EncodedBatches(data.data, batches, offsets_of_max, min_timestamps)

    def _lay_out(self, drafts: np.ndarray, batches: np.ndarray) -> npt.NDArray[np.uint8]:
        """Return the records of all batches, with room for headers; sets position and size in `batches`."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFormat:
    """The rules for batches of format 2. Raises InvalidRecordError for a combination that Kafka does not allow.

    A batch has at least one record. It ends before its uncompressed records would exceed `batch_bytes`, and before a
    record that starts a new time window (`BatchLimits.window_ms`). If `append_time`, which returns the time in ms, is
    set, the timestamps are of the type LogAppendTime.
    """

    codec: int = compression.NONE
    level: int | None = None
    batch_bytes: int = 131_072
    max_batch_bytes: int = 1_048_588
    window_ms: int = MAX_LONG
    append_time: Callable[[], int] | None = None
    leader_epoch: int = -1
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    transactional: bool = False
    control: bool = False

    def __post_init__(self) -> None:
        if self.producer_id == -1:
            if self.transactional:
                raise InvalidRecordError("a transactional batch needs a producer id")
        elif self.producer_epoch < 0:
            raise InvalidRecordError("a producer id needs an epoch", producer_id=self.producer_id)
        elif self.base_sequence < 0 and not self.control:
            raise InvalidRecordError("a producer id needs a sequence number", producer_id=self.producer_id)
        elif self.control and not self.transactional:
            raise InvalidRecordError("an end marker needs a transactional batch", producer_id=self.producer_id)

    @property
    def max_record_bytes(self) -> int:
        """The most bytes of uncompressed records in a batch of one record."""
        if self.codec == compression.NONE:
            return self.max_batch_bytes - HEADER_SIZE
        return compression.MAX_RECORDS_BYTES

    @property
    def usual_record_bytes(self) -> int:
        """The most bytes of uncompressed records in a batch of several records."""
        room = self.max_batch_bytes - HEADER_SIZE
        if self.codec != compression.NONE:
            # incompressible data grows by at most 10 bytes per 32 KiB (snappy): leave 32 per 32 KiB, and 64 more
            room = min(room - (room >> 10) - 64, compression.MAX_RECORDS_BYTES)
        return min(self.batch_bytes, room)

    def headers(self, count: int) -> np.ndarray:
        batches = np.zeros(count, BATCH)
        batches["magic"], batches["leader_epoch"] = 2, self.leader_epoch
        batches["producer_id"], batches["producer_epoch"] = self.producer_id, self.producer_epoch
        by_append_time = self.append_time is not None
        batches["attributes"] = (
            self.codec | by_append_time * APPEND_TIME | self.transactional * TRANSACTIONAL | self.control * CONTROL
        )
        return batches


def time_span(config: TopicConfig) -> int:
    """Return the time in ms that the records of one segment may span.

    In a compacted topic it is at most `max.compaction.lag.ms`, since only sealed segments are compacted.
    """
    if "compact" in config.cleanup_policy:
        return min(config.segment_ms, config.max_compaction_lag_ms)
    return config.segment_ms


def jittered(span_ms: int, config: TopicConfig, random: Random) -> int:
    """Subtract a random part of `segment.jitter.ms` from `span_ms`, so that not all partitions roll at once."""
    jitter = min(config.segment_jitter_ms, span_ms)
    return span_ms - (random.randrange(jitter) if jitter else 0)


#: The most bytes of a batch of one record besides the record's fields: the header, and Kafka's MAX_RECORD_OVERHEAD.
BATCH_OVERHEAD = HEADER_SIZE + 21


def batch_format(config: TopicConfig, codec: str, clock: Callable[[], int], random: Random) -> BatchFormat:
    limit = largest_batch(config)
    by_append_time = config.message_timestamp_type == "LogAppendTime"
    return BatchFormat(
        codec=compression.CODEC_NAMES.index(codec),
        level=compression_level(config, codec),
        batch_bytes=usual_batch(config),
        max_batch_bytes=limit,
        # with LogAppendTime all records of an append have the same time
        window_ms=MAX_LONG if by_append_time else jittered(time_span(config), config, random),
        append_time=clock if by_append_time else None,
    )


def usual_batch(config: TopicConfig) -> int:
    """Return the limit of a batch's records: `batch.bytes`, or less if the largest batch has no room for that."""
    return max(1, min(config.batch_bytes, largest_batch(config) - BATCH_OVERHEAD))


def largest_batch(config: TopicConfig) -> int:
    return min(config.max_message_bytes, config.segment_size)


def codec_of(config: TopicConfig, producer_codec: str | None) -> str:
    """Return the codec of new batches: the topic's own, or `producer_codec` if `compression.type` is "producer"."""
    names = compression.CODEC_NAMES
    if producer_codec not in (None, _UNCOMPRESSED, *names):
        raise InvalidConfigError(f"compression must be one of {', '.join(names)}", value=producer_codec)
    is_by_producer = config.compression_type == "producer"
    codec = (producer_codec or _UNCOMPRESSED) if is_by_producer else config.compression_type
    return "none" if codec == _UNCOMPRESSED else codec


def compression_level(config: TopicConfig, codec: str) -> int | None:
    levels = {
        "gzip": config.compression_gzip_level,
        "lz4": config.compression_lz4_level,
        "zstd": config.compression_zstd_level,
    }
    return levels.get(codec)


@dataclass(frozen=True, slots=True)
class RecordInput:
    """The columns of records for kernels; the arrays are read-only (see `_frozen`)."""

    timestamps: np.ndarray
    key: ByteColumn
    value: ByteColumn
    headers: HeaderColumn | None

    def columns(self) -> Columns:
        return self.timestamps, self.key, self.value, self.headers

    @classmethod
    def from_arrow(cls, records: pa.RecordBatch) -> RecordInput:
        """Take the columns timestamp, key, value and, if there is one, headers. Raises InvalidRecordError."""
        names = records.schema.names
        missing = {"timestamp", "key", "value"}.difference(names)
        if missing:
            raise InvalidRecordError("records lack a column: add it", column=", ".join(sorted(missing)))
        try:
            return cls(
                _timestamps(_valid_column(records, "timestamp")),
                *_with_one_width(*(_byte_column(_valid_column(records, name), name) for name in ("key", "value"))),
                _header_column(_valid_column(records, "headers")) if "headers" in names else None,
            )
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InvalidRecordError(f"key and value must be binary, headers like {HEADERS_TYPE}: {error}") from None


def _valid_column(records: pa.RecordBatch, name: str) -> pa.Array:
    column = records.column(name)
    try:
        column.validate()
    except pa.ArrowInvalid as error:
        raise invalid_array_error(name, error) from None
    return column


def invalid_array_error(column: str, reason: object) -> InvalidRecordError:
    return InvalidRecordError(f"column {column} is not a valid Arrow array: {reason}")


def _byte_column(array: pa.Array, name: str) -> ByteColumn:
    """Return the strings of `array`; types that are not in _OFFSET_TYPES are cast, and need a copy."""
    count = len(array)
    if array.type == pa.null():
        return ByteColumn(_frozen(np.zeros(count + 1, np.int32)), _frozen(np.zeros(count, np.bool_)), _NO_DATA)
    if array.type not in _OFFSET_TYPES:
        array = array.cast(pa.large_binary())
    _, offsets, data = array.buffers()
    offsets = _offsets(array, offsets, _OFFSET_TYPES[array.type], data.size if data else 0, name)
    return ByteColumn(offsets, _valid(array), byte_array(data) if data else _NO_DATA)


def _with_one_width(key: ByteColumn, value: ByteColumn) -> tuple[ByteColumn, ByteColumn]:
    """Give both columns offsets of the wider type, since numba compiles a kernel for each mix of types."""
    kind = np.result_type(key.offsets, value.offsets)
    key, value = (
        column._replace(offsets=_frozen(column.offsets.astype(kind, copy=False))) for column in (key, value)
    )
    return key, value


def _header_column(array: pa.Array) -> HeaderColumn | None:
    """Return the headers of `array`, of a type that casts to HEADERS_TYPE, or None if there are no rows."""
    if array.type == pa.null() or len(array) == 0:
        return None
    array = array.cast(HEADERS_TYPE)
    pairs = array.values
    offsets = _offsets(array, array.buffers()[1], np.int32, len(pairs), "headers")
    firsts, ends = offsets[:-1], offsets[1:]
    if array.null_count:
        # in Arrow, a null list may have items; they are not headers
        ends = _frozen(np.where(_valid(array), ends, firsts))
    keys = _byte_column(pairs.field(0), "headers")
    if pairs.null_count:
        # make the key of a null pair null, so that the kernel refuses it; `keys.valid` is empty if no key is null
        has_key = (_valid(pairs) & keys.valid) if keys.valid.size else _valid(pairs)
        keys = keys._replace(valid=_frozen(has_key))
    return HeaderColumn(firsts, ends, keys, _byte_column(pairs.field(1), "headers"))


def _frozen(array: np.ndarray) -> np.ndarray:
    # numba compiles a kernel for each mix of read-only and writable arrays
    array.flags.writeable = False
    return array


def _offsets(array: pa.Array, buffer: pa.Buffer | None, kind: Any, end: int, name: str) -> np.ndarray:
    """Return the offsets of a string or list array, checked: they ascend, and the last one is at most `end`."""
    if buffer is None or len(array) == 0:
        return _frozen(np.zeros(len(array) + 1, kind))
    offsets = _frozen(_items(buffer, kind, array.offset, len(array) + 1))
    if offsets[0] < 0 or offsets[-1] > end or (offsets[:-1] > offsets[1:]).any():
        raise invalid_array_error(name, "its offsets do not ascend within its data")
    return offsets


def _valid(array: pa.Array) -> np.ndarray:
    return _frozen(flags_of(array.is_valid())) if array.null_count else _NO_NULLS


def _timestamps(array: pa.Array) -> np.ndarray:
    if not (pa.types.is_int64(array.type) or (pa.types.is_timestamp(array.type) and array.type.unit == "ms")):
        raise InvalidRecordError("timestamps must be timestamp[ms] or int64", type=str(array.type))
    if array.null_count:
        raise InvalidRecordError("a timestamp is null", row=int(np.argmin(_valid(array))))
    return _frozen(_items(array.buffers()[1], np.int64, array.offset, len(array)))


def _items(buffer: pa.Buffer | None, kind: Any, first: int, count: int) -> np.ndarray:
    if buffer is None or count == 0:
        return np.empty(0, kind)
    # with a count, since a buffer may end with a partial item
    return np.frombuffer(buffer, kind, count, first * np.dtype(kind).itemsize)


_NO_DATA = _frozen(np.empty(0, np.uint8))
_NO_NULLS = _frozen(np.empty(0, np.bool_))


@dataclass(frozen=True, slots=True)
class EncodedBatches:
    """Batches back to back in `data`, which is writable, and their BATCH rows.

    For each batch, `offsets_of_max_timestamp` has the offset of the first record with the largest timestamp, or -1
    without timestamps, and `min_timestamps` has the smallest timestamp, or -1 if a record has none.
    """

    data: memoryview
    batches: np.ndarray
    offsets_of_max_timestamp: np.ndarray
    min_timestamps: np.ndarray


class ValidBatch(NamedTuple):
    """A checked batch at offset 0, and its BATCH row.

    `offset_of_max_timestamp` is the offset of the first record with the largest timestamp, or -1 without timestamps.
    `min_timestamp` is the smallest timestamp. With LogAppendTime, the append replaces these times of the producer.
    """

    data: npt.NDArray[np.uint8]
    rows: npt.NDArray[Any]
    offset_of_max_timestamp: int
    min_timestamp: int

    @property
    def offset_count(self) -> int:
        return int(self.rows[0]["last_offset_delta"]) + 1

    @property
    def has_producer(self) -> bool:
        """Whether the batch has a producer id, as do batches that end a transaction."""
        return bool(self.rows[0]["producer_id"] >= 0)


def encode(records: pa.RecordBatch, base_offset: int = 0, **settings: Any) -> EncodedBatches:
    """Encode all `records` in batches; `settings` are the fields of BatchFormat."""
    source = RecordInput.from_arrow(records)
    form, room = BatchFormat(**settings), records.nbytes + _RECORD_SPARE * records.num_rows + _FIRST_BYTES
    encoder = RecordEncoder(form, base_offset, gather_bytes=sys.maxsize, room=room)
    # the first step appends all rows: the generator yields nothing, since `gather_bytes` is unlimited
    next(encoder.append(source, np.arange(records.num_rows)), None)
    return encoder.finish()


def write_headers(view: memoryview, batches: np.ndarray) -> None:
    """Write the headers of `batches` to `view`, which has their records; also sets the checksums in `batches`."""
    crcs = []
    for batch in batches.tolist():
        position, size, base_offset, last_delta, leader_epoch, magic, _, attributes, *fields = batch
        # the checksum is of the bytes after it, so it is 0 here, and written afterwards
        HEADER.pack_into(
            view, position, base_offset, size - LOG_OVERHEAD, leader_epoch, magic, 0, attributes, last_delta, *fields
        )
        crc = crc32c(view[position + CRC_START : position + size])
        _CRC.pack_into(view, position + CRC_AT, crc)
        crcs.append(crc)
    batches["crc"] = crcs


def header_offsets(batches: npt.NDArray[Any], base_offsets: Longs) -> Longs:
    """Return the first header field of each of `batches` (BATCH rows) if they are moved to `base_offsets`.

    The field is the base offset in format 2, and the last offset in formats 0 and 1. Raises UnsupportedVersionError
    if a compressed message of format 0 would get another offset, since its records store absolute offsets.
    """
    is_legacy = batches["magic"] < 2
    has_absolute_offsets = (batches["magic"] == 0) & (batches["attributes"] & CODEC_MASK != 0)
    if (has_absolute_offsets & (base_offsets != batches["base_offset"])).any():
        raise UnsupportedVersionError(
            "the offsets of compressed messages of format 0 cannot change: append the records of this file again"
        )
    return np.where(is_legacy, base_offsets + batches["last_offset_delta"], base_offsets)


def write_base_offsets(data: Bytes, positions: Longs, offsets: Longs) -> None:
    """Write `offsets`, the result of `header_offsets`, into the batches at `positions` of `data`."""
    _put(data, positions, offsets.astype(">i8"))


def set_append_times(batches: npt.NDArray[Any], times: Longs) -> None:
    """Set the append times of BATCH rows (Kafka's `setMaxTimestamp`), in ms; -1 changes nothing."""
    has_time = times >= 0
    batches["max_timestamp"][has_time] = times[has_time]
    batches["attributes"][has_time] |= APPEND_TIME


def write_append_times(data: Bytes, batches: npt.NDArray[Any]) -> None:
    """Write the attributes and largest timestamps of `batches` into `data`, and the new checksums into both."""
    _put(data, batches["position"] + ATTRIBUTES_AT, batches["attributes"].astype(">i2"))
    _put(data, batches["position"] + _MAX_TIMESTAMP_AT, batches["max_timestamp"].astype(">i8"))
    write_crcs(data, batches)


def _put(data: Bytes, positions: Longs, values: npt.NDArray[Any]) -> None:
    # write the bytes of values[i] to `data` from positions[i] on
    size = values.dtype.itemsize
    data[positions[:, None] + np.arange(size)] = values.view(np.uint8).reshape(-1, size)
