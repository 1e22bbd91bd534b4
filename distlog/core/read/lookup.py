"""Looks up offsets by times, in Kafka's four steps (`UnifiedLog.fetchOffsetByTimestamp`, `LogSegment`).

1. The metadata names the first segment whose largest timestamp is not before the target.
2. The segment's time index has an offset before which no record matches.
3. Its offset index has a position for this offset.
4. A scan from this position finds the first record at or after the target.

The end marker of a transaction isn't a record, so no lookup returns one. But the time indexes and the largest
timestamps of segments include end markers, as Kafka's do, and a broker's ListOffsets may return one.

Point reads return a few records of a local log in microseconds. Instead of a chunk, they read a memory map, or a few
bytes of an active segment. They check what a scan checks: the log belongs to the segment, batches follow each other,
and the checksum of the batch is right. Anything wrong or unusual is left to a scan, which raises the error.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from crc32c import crc32c

from distlog.core.arrays import MIN_LONG, Bytes, Longs, byte_array, numbers_of
from distlog.core.commits.segment_table import UNKNOWN, SegmentInfo
from distlog.core.commits.snapshot import PartitionState
from distlog.core.errors import CorruptionError
from distlog.core.format.compression import decompress
from distlog.core.format.indexes import TimestampOffset
from distlog.core.format.kernels.batch_scan import CODEC_MASK, LOG_OVERHEAD
from distlog.core.format.kernels.record_scan import (
    HEADER_LOCATION,
    LOCATION,
    NOT_APPEND_TIME,
    SMALLEST_RECORD,
    find_batch,
    find_headers,
    find_records,
)
from distlog.core.format.record_batch import (
    APPEND_TIME,
    CONTROL,
    CRC_START,
    CREATE_TIME,
    HEADER,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    SCHEMA,
)
from distlog.core.paths import is_own_stem
from distlog.core.segments.chunks import READ_UNCOMMITTED, Chunk, SegmentSlice
from distlog.core.segments.segment_parts import OpenLog
from distlog.core.segments.segment_reader import INDEX_WORTH_BYTES, SegmentReader, spare_bytes
from distlog.core.storage.calls import in_parallel

#: Special times, with the numbers of Kafka's ListOffsets request.
LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3

OffsetAndTime = tuple[int, int]
"""The offset and the timestamp, in ms, of a record (Kafka's `OffsetAndTimestamp`)."""

_OFFSET_AND_TIME = ("offset", "timestamp")
_log = logging.getLogger("distlog")

#: A point read returns at most this many records, and checks at most this many batches: for more, a scan is faster.
MAX_RECORDS = 64
Headers = list[tuple[str, bytes | None]]


def offset_for_time(reader: SegmentReader, state: PartitionState, timestamp_ms: int) -> OffsetAndTime | None:
    """Return the (offset, timestamp) of the first record at or after `timestamp_ms`, or None.

    LATEST returns (log end offset, -1), EARLIEST (log start offset, -1), MAX_TIMESTAMP the first record with the
    largest timestamp.
    """
    if timestamp_ms == LATEST:
        return state.log_end_offset, -1
    if timestamp_ms == EARLIEST:
        return state.log_start_offset, -1
    if timestamp_ms == MAX_TIMESTAMP:
        return _offset_of_max_timestamp(reader, state)
    if timestamp_ms < 0:
        raise ValueError(f"a time must be ms since 1970, or LATEST, EARLIEST or MAX_TIMESTAMP: {timestamp_ms}")
    first = state.segments.find(state.log_start_offset)
    for index in np.flatnonzero(state.segments.max_timestamps[first:] >= timestamp_ms) + first:
        segment = state.segments[int(index)]
        start = state.log_start_offset
        if record := _by_metadata(segment, timestamp_ms, start) or first_in(reader, segment, timestamp_ms, start):
            return record
    return None


def offsets_for_times(
    reader: SegmentReader, states: Sequence[PartitionState], times: Mapping[int, int]
) -> dict[int, OffsetAndTime | None]:
    """Return `offset_for_time` by partition. Makes the requests to an object store in parallel."""

    def lookup(number: int) -> OffsetAndTime | None:
        return offset_for_time(reader, states[number], times[number])

    results = map(lookup, times) if reader.storage.is_local else in_parallel(lookup, times)
    return dict(zip(times, results, strict=True))


def _by_metadata(segment: SegmentInfo, timestamp_ms: int, start: int) -> OffsetAndTime | None:
    """Return the segment's first record if the metadata alone show that it is not before the time; else None."""
    # only a segment that distlog wrote, and did not compact, has a record at its base offset for sure
    has_first_record = segment.dense and not segment.compacted and is_own_stem(segment.stem)
    if not has_first_record or segment.is_active or segment.base_offset < start:
        return None
    # `first_timestamp` is the base time of the first batch, which a client may choose freely. A writer sets
    # `min_timestamp`, a lower bound of all times, to the same time only if the first record has it
    is_match = segment.first_timestamp == segment.min_timestamp and segment.min_timestamp >= timestamp_ms
    return (segment.base_offset, segment.first_timestamp) if is_match else None


def _offset_of_max_timestamp(reader: SegmentReader, state: PartitionState) -> OffsetAndTime | None:
    best: OffsetAndTime | None = None
    start = state.log_start_offset
    first = state.segments.find(start)
    timestamps = state.segments.max_timestamps[first:]
    for index in np.argsort(-timestamps, kind="stable"):
        if timestamps[index] < (0 if best is None else best[1]):
            break  # the next segments have smaller times
        segment = state.segments[first + int(index)]
        offset_of_max = segment.offset_of_max_timestamp
        record: OffsetAndTime | None = offset_of_max, segment.max_timestamp
        if offset_of_max < start or (segment.has_transactions and _is_marker(reader, segment, offset_of_max)):
            # the metadata name a record before the log start, an end marker, or no record
            record = _largest_from(reader, segment, max(segment.base_offset, start))
        # if records have the same time, choose the lowest offset
        if record and record[1] >= 0 and (best is None or (record[1], -record[0]) > (best[1], -best[0])):
            best = record
    return best


def _is_marker(reader: SegmentReader, segment: SegmentInfo, offset: int) -> bool:
    part = SegmentSlice(segment, offset, offset + 1, start_position=0, end_position=segment.log_bytes)
    for chunk in reader.chunks(part, INDEX_WORTH_BYTES):
        chunk.check()
        last_offsets = chunk.batches["base_offset"] + chunk.batches["last_offset_delta"] + segment.shift
        rows = np.flatnonzero(last_offsets >= offset)
        if len(rows):
            return bool(chunk.batches["attributes"][rows[0]] & CONTROL)
    return False


def _largest_from(reader: SegmentReader, segment: SegmentInfo, start: int) -> OffsetAndTime | None:
    best: OffsetAndTime | None = None
    for chunk in _chunks_from(reader, segment, start):
        chunk.check()
        max_timestamps = chunk.batches["max_timestamp"]
        # the batch with the largest timestamp first: it has the record, unless this record lies before `start`
        for row in np.argsort(-max_timestamps, kind="stable"):
            if best and max_timestamps[row] <= best[1]:
                break
            offsets, timestamps = _offsets_and_timestamps(chunk, int(row))
            if len(timestamps) and (best is None or timestamps.max() > best[1]):
                best = int(offsets[timestamps.argmax()]), int(timestamps.max())
    return best


def start_by_index(reader: SegmentReader, part: SegmentSlice) -> int:
    """Return an offset before which all records of the slice are too old, by the batch that the time index names."""
    start, end = part.span
    entry = _time_entry(reader, part.segment, part.times.oldest, start)
    chunk = next(_chunks_from_entry(reader, part.segment, entry), None)
    if chunk is None:
        return start
    first = chunk.rows(0, 1)
    first.check()
    (batch,) = first.batches
    return min(int(batch["base_offset"] + batch["last_offset_delta"]) + part.segment.shift + 1, end)


def first_in(reader: SegmentReader, segment: SegmentInfo, timestamp_ms: int, start: int) -> OffsetAndTime | None:
    """Read the first record of `segment` at or after `timestamp_ms`, from offset `start` on; None without one."""
    entry = _time_entry(reader, segment, timestamp_ms, start)
    if records := first_records(reader, segment, start, limit=1, oldest=timestamp_ms, entry=entry):
        return records[0].offset, records[0].timestamp
    # a scan from the batch that the time index names, or without one, from `start`
    chunks = _chunks_from_entry(reader, segment, entry)
    first = next(chunks, None)
    if first is not None:
        return _first_match(chain([first], chunks), timestamp_ms)
    return _first_match(_chunks_from(reader, segment, start), timestamp_ms)


def _time_entry(reader: SegmentReader, segment: SegmentInfo, timestamp_ms: int, start: int) -> TimestampOffset | None:
    """Return the last entry of the time index before `timestamp_ms`; None if its offset is not after `start`."""
    entry = reader.time_entry(segment, timestamp_ms)
    return entry if entry is not None and entry.offset + segment.shift > start else None


def _chunks_from_entry(reader: SegmentReader, segment: SegmentInfo, entry: TimestampOffset | None) -> Iterator[Chunk]:
    """Yield chunks from the entry's batch on, which has only older records. Yields none without a good index."""
    if entry is None:
        return
    chunks = iter(_chunks_from(reader, segment, entry.offset + segment.shift))
    chunk = next(chunks, None)
    if chunk is not None and chunk.batches["max_timestamp"][0] == entry.timestamp:
        yield chunk
        yield from chunks
        return
    name = reader.name(segment, ".timeindex")
    _log.warning("the time index does not fit its log: scanning the log instead; rebuild the indexes (file=%s)", name)
    reader.forget_indexes(segment)


def _chunks_from(reader: SegmentReader, segment: SegmentInfo, start: int) -> Iterable[Chunk]:
    # twice what it mostly takes from an index entry to the batch of `start`: the next batches may have the record
    read_bytes = max(INDEX_WORTH_BYTES, 2 * spare_bytes(segment))
    part = SegmentSlice(segment, start, segment.next_offset, start_position=0, end_position=segment.log_bytes)
    return reader.chunks(part, read_bytes)


def _first_match(chunks: Iterable[Chunk], timestamp_ms: int) -> OffsetAndTime | None:
    for chunk in chunks:
        chunk.check()  # the checksums cover the headers, by which batches are skipped
        for row in np.flatnonzero(chunk.batches["max_timestamp"] >= timestamp_ms):
            offsets, timestamps = _offsets_and_timestamps(chunk, int(row))
            matches = np.flatnonzero(timestamps >= timestamp_ms)
            if len(matches):
                return int(offsets[matches[0]]), int(timestamps[matches[0]])
    return None


def _offsets_and_timestamps(chunk: Chunk, row: int) -> tuple[Longs, Longs]:
    schema = pa.schema([SCHEMA.field(name) for name in _OFFSET_AND_TIME])
    records = pa.Table.from_batches(chunk.rows(row, row + 1).records(_OFFSET_AND_TIME, READ_UNCOMMITTED), schema)
    return numbers_of(records.column(0)), numbers_of(records.column(1).cast("int64"))


class Record(NamedTuple):
    """A record. `timestamp` is in ms, or -1. `timestamp_type` is 0 (CreateTime), 1 (LogAppendTime) or -1 (none)."""

    partition: int
    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class PointBatch(NamedTuple):
    """A checked batch of format 2, at `position` of an OpenLog's bytes: stored offsets, but times for readers."""

    position: int
    size: int
    base_offset: int
    last_offset_delta: int
    attributes: int
    base_timestamp: int
    max_timestamp: int
    record_count: int

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta


class _NeedsScanError(Exception):
    """A point read found something unusual, which a scan must read."""


def first_records(
    reader: SegmentReader,
    segment: SegmentInfo,
    offset: int,
    limit: int,
    oldest: int = MIN_LONG,
    entry: TimestampOffset | None = None,
) -> list[Record]:
    """Return the segment's first records with offsets from `offset` and times from `oldest` on, at most `limit`.

    With `entry`, of the time index, the search begins at the entry's batch. Returns fewer records than there are, or
    none, if a scan must read the next one.
    """
    records: list[Record] = []
    limit = min(limit, MAX_RECORDS)
    stored = offset - segment.shift  # the offset in the log, since a commit may have moved the segment
    if not reader.storage.is_local:
        return records
    first = stored if entry is None else entry.offset
    try:
        index = reader.offset_index(segment)
        position = 0 if index is None else index.lookup(first).position
        # an active log comes in larger and larger parts; the next one is read if a part has no record
        for log in reader.logs.around(segment, position):
            try:
                for number, batch in enumerate(_batches(segment, log, first, position)):
                    if number == 0 and entry and batch.max_timestamp != entry.timestamp:
                        return records  # the index is wrong, which a scan reports
                    if batch.max_timestamp >= oldest:
                        records += _records(segment, log, batch, limit - len(records), stored, oldest)
                    if len(records) >= limit:
                        return records
            except _NeedsScanError:
                if not records:
                    continue
            if records:
                return records
    except (CorruptionError, OSError):
        return records  # a scan finds the same fault and raises the error for it
    return records


def _batches(segment: SegmentInfo, log: OpenLog, stored_offset: int, position: int) -> Iterator[PointBatch]:
    """Yield the first batches from the stored offset on; `position` is the start of a batch at or before it."""
    end_offset, dense = segment.next_offset - segment.shift, segment.dense
    end = min(segment.log_bytes - log.start, log.data.size)
    next_offset = segment.stored_base_offset if position == 0 else -1  # of the first batch; -1 for any offset
    position -= log.start
    for _ in range(MAX_RECORDS):
        position = find_batch(log.data, position, end, next_offset, dense, end_offset, stored_offset)
        if position == end:
            return
        batch = _checked_batch(segment, log, position)
        yield batch
        position += batch.size
        next_offset = stored_offset = batch.last_offset + 1


def _checked_batch(segment: SegmentInfo, log: OpenLog, position: int) -> PointBatch:
    if position < 0:  # `find_batch` found something unusual
        raise _NeedsScanError
    header = HEADER.unpack_from(log.view, position)
    base_offset, length, _, _, crc, attributes, last_delta, base_timestamp, max_timestamp, *_, count = header
    size = LOG_OVERHEAD + length
    if crc != crc32c(log.view[position + CRC_START : position + size]):
        raise _NeedsScanError
    if log.start + position + size == segment.log_bytes and segment.last_batch_crc not in (UNKNOWN, crc):
        raise _NeedsScanError
    if segment.append_time_ms >= 0:
        attributes, max_timestamp = attributes | APPEND_TIME, segment.append_time_ms
    return PointBatch(position, size, base_offset, last_delta, attributes, base_timestamp, max_timestamp, count)


def last_with_key(reader: SegmentReader, part: SegmentSlice, position: int, key: bytes) -> list[Record] | None:
    """Return the last record of the key in the batch at `position`, if any; None if a scan must read the batch."""
    if not reader.storage.is_local:
        return None
    segment = part.segment
    with suppress(CorruptionError, OSError):
        for log in reader.logs.around(segment, position):
            with suppress(_NeedsScanError):
                return _last_with_key(part, log, position - log.start, key)
    return None


def _last_with_key(part: SegmentSlice, log: OpenLog, position: int, key: bytes) -> list[Record]:
    segment = part.segment
    end = min(segment.log_bytes - log.start, log.data.size)
    base_offset = int.from_bytes(log.view[position : position + 8], "big", signed=True)
    end_offset = segment.next_offset - segment.shift
    # check that a sound batch begins at `position`
    if find_batch(log.data, position, end, -1, segment.dense, end_offset, base_offset) != position:
        raise _NeedsScanError
    batch = _checked_batch(segment, log, position)
    view, data, locations = _locate(log, batch, batch.record_count, base_offset, MIN_LONG)
    # the records whose key has the same size, and then the same bytes
    rows = np.flatnonzero(locations["key_size"] == len(key))
    keys = data[locations["key_at"][rows, None] + np.arange(len(key))]
    rows = rows[(keys == np.frombuffer(key, np.uint8)).all(axis=1)]
    for row in rows[::-1].tolist():
        (record,) = _records_at(segment, batch, view, data, [locations[row].item()])
        if part.start_offset <= record.offset < part.end_offset:
            return [record]
    return []


def _records(
    segment: SegmentInfo, log: OpenLog, batch: PointBatch, limit: int, stored_offset: int, oldest: int
) -> list[Record]:
    if batch.attributes & CONTROL:
        return []
    view, data, locations = _locate(log, batch, limit, stored_offset, oldest)
    return _records_at(segment, batch, view, data, locations.tolist())


def _locate(
    log: OpenLog, batch: PointBatch, limit: int, stored_offset: int, oldest: int
) -> tuple[memoryview, Bytes, npt.NDArray[Any]]:
    """Locate the first records, at most `limit`, from the offset and the time on.

    Returns the records' bytes as a memoryview, the same bytes as an array, and the records' LOCATION rows in them.
    """
    view, data, start, end = log.view, log.data, batch.position + HEADER_SIZE, batch.position + batch.size
    if codec := batch.attributes & CODEC_MASK:
        view = decompress(codec, view[start:end])
        data, start, end = byte_array(view), 0, len(view)
    append_time = batch.max_timestamp if batch.attributes & APPEND_TIME else NOT_APPEND_TIME
    locations = np.empty(min(limit, (end - start) // SMALLEST_RECORD), LOCATION)
    first_delta = max(stored_offset - batch.base_offset, 0)
    times = batch.base_timestamp, append_time
    count = find_records(
        data, start, end, batch.record_count, batch.last_offset_delta, *times, first_delta, oldest, locations
    )
    if count < 0:
        raise _NeedsScanError
    return view, data, locations[:count]


def _records_at(
    segment: SegmentInfo, batch: PointBatch, view: memoryview, data: Bytes, locations: Sequence[tuple[int, ...]]
) -> list[Record]:
    partition, base_offset = segment.partition, batch.base_offset + segment.shift
    timestamp_type = LOG_APPEND_TIME if batch.attributes & APPEND_TIME else CREATE_TIME
    return [
        Record(
            partition,
            base_offset + delta,
            timestamp,
            timestamp_type,
            _bytes(view, key_at, key_size),
            _bytes(view, value_at, value_size),
            _headers(view, data, headers_at, headers) if headers else [],
        )
        for delta, timestamp, key_at, key_size, value_at, value_size, headers_at, headers in locations
    ]


def _headers(view: memoryview, data: Bytes, position: int, count: int) -> Headers:
    locations = np.empty(count, HEADER_LOCATION)
    find_headers(data, position, locations)
    return [
        (str(view[key_at : key_at + key_size], "utf-8", "replace"), _bytes(view, value_at, value_size))
        for key_at, key_size, value_at, value_size in locations.tolist()
    ]


def _bytes(view: memoryview, position: int, size: int) -> bytes | None:
    return bytes(view[position : position + size]) if size >= 0 else None
