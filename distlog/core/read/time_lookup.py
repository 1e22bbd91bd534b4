"""Finds offsets by times, in Kafka's four steps (`UnifiedLog.fetchOffsetByTimestamp`, `LogSegment`).

1. The earliest segment whose largest timestamp is not below the target: metadata.
2. Its time index: an offset before which nothing can match.
3. Its offset index: the position of that offset.
4. A scan from there to the first record at or after the target.

An end marker of a transaction is no record, so no lookup leads to one, although the time indexes and the largest
timestamps of segments count it, as Kafka's do. A broker's ListOffsets may lead to one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from distlog.core.arrays import numbers_of
from distlog.core.commits.segment_table import SegmentInfo
from distlog.core.commits.snapshot import PartitionState
from distlog.core.format.offset_and_time_index import TimestampOffset
from distlog.core.format.record_batch import CONTROL, SCHEMA
from distlog.core.paths import stem_read_version
from distlog.core.read.point_read import first_at
from distlog.core.segments.chunks import READ_UNCOMMITTED, Chunk
from distlog.core.segments.segment_reader import INDEX_WORTH_BYTES, SegmentReader, spare_bytes
from distlog.core.segments.slices import SegmentSlice
from distlog.core.storage.parallel import in_parallel

#: Special times, with the numbers of Kafka's ListOffsets request.
LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3

#: (offset, timestamp in ms)
Found = tuple[int, int]

_TIMES = ("offset", "timestamp")

_log = logging.getLogger("distlog")


def offset_for_time(reader: SegmentReader, state: PartitionState, timestamp_ms: int) -> Found | None:
    """(offset, timestamp) of the first record at or after `timestamp_ms`, or None when there is none.

    LATEST gives (log end offset, -1), EARLIEST (log start offset, -1), MAX_TIMESTAMP the first record with the
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
        place = _by_metadata(segment, timestamp_ms, state.log_start_offset)
        place = place or first_in(reader, segment, timestamp_ms, state.log_start_offset)
        if place:
            return place
    return None


def offsets_for_times(
    reader: SegmentReader, states: Sequence[PartitionState], times: Mapping[int, int]
) -> dict[int, Found | None]:
    """`offset_for_time` by partition; in parallel, where a lookup is a request."""

    def found(number: int) -> Found | None:
        return offset_for_time(reader, states[number], times[number])

    looked_up = map(found, times) if reader.storage.is_local else in_parallel(found, times)
    return dict(zip(times, looked_up, strict=True))


def _by_metadata(segment: SegmentInfo, timestamp_ms: int, start: int) -> Found | None:
    """The segment's first record, if the metadata alone show that no record is older."""
    is_ours = segment.dense and not segment.compacted and stem_read_version(segment.stem) is not None
    if not is_ours or segment.is_active or segment.base_offset < start:
        return None
    # a client's first batch may begin with a later base time than that of its first record
    is_known = segment.first_timestamp == segment.min_timestamp >= timestamp_ms
    return (segment.base_offset, segment.first_timestamp) if is_known else None


def _offset_of_max_timestamp(reader: SegmentReader, state: PartitionState) -> Found | None:
    best: Found | None = None
    first = state.segments.find(state.log_start_offset)
    timestamps = state.segments.max_timestamps[first:]
    for index in np.argsort(-timestamps, kind="stable"):
        if timestamps[index] < (0 if best is None else best[1]):
            break
        place = _largest(reader, state.segments[first + int(index)], state.log_start_offset)
        # -1 means that there is no timestamp
        if place and place[1] >= 0 and (best is None or (place[1], -place[0]) > (best[1], -best[0])):
            best = place
    return best


def _largest(reader: SegmentReader, segment: SegmentInfo, log_start_offset: int) -> Found | None:
    newest = segment.offset_of_max_timestamp
    if newest >= log_start_offset and not (segment.has_transactions and _is_marker(reader, segment, newest)):
        return newest, segment.max_timestamp
    # the metadata name a record below the log start, an end marker, or none: this one segment is searched
    return _largest_from(reader, segment, max(segment.base_offset, log_start_offset))


def _is_marker(reader: SegmentReader, segment: SegmentInfo, offset: int) -> bool:
    piece = SegmentSlice(segment, offset, offset + 1, 0, segment.log_bytes)
    for chunk in reader.chunks(piece, INDEX_WORTH_BYTES):
        chunk.check()
        last = chunk.batches["base_offset"] + chunk.batches["last_offset_delta"] + segment.shift
        for row in np.flatnonzero(last >= offset)[:1]:
            return bool(chunk.batches["attributes"][row] & CONTROL)
    return False


def _largest_from(reader: SegmentReader, segment: SegmentInfo, start: int) -> Found | None:
    best: Found | None = None
    for chunk in _chunks_from(reader, segment, start):
        chunk.check()
        newest = chunk.batches["max_timestamp"]
        # the batch with the largest timestamp has the record, unless that lies before `start`
        for row in np.argsort(-newest, kind="stable"):
            if best and newest[row] <= best[1]:
                break
            offsets, timestamps = _offsets_and_timestamps(chunk, int(row))
            if len(timestamps) and (best is None or timestamps.max() > best[1]):
                best = int(offsets[timestamps.argmax()]), int(timestamps.max())
    return best


def start_by_index(reader: SegmentReader, piece: SegmentSlice) -> int:
    """An offset below which the slice has no record of its times, by the time index, or its own start."""
    start, end = piece.span
    entry = _entry(reader, piece.segment, piece.times.oldest, start)
    chunk = next(_from_entry(reader, piece.segment, entry), None)
    if chunk is None:
        return start
    first = chunk.rows(0, 1)
    first.check()
    (batch,) = first.batches
    return min(int(batch["base_offset"] + batch["last_offset_delta"]) + piece.segment.shift + 1, end)


def first_in(reader: SegmentReader, segment: SegmentInfo, timestamp_ms: int, start: int) -> Found | None:
    """The first record of `segment` at or after `timestamp_ms`, from offset `start` on, or None. Reads the log."""
    entry = _entry(reader, segment, timestamp_ms, start)
    if place := first_at(reader, segment, timestamp_ms, start, entry):
        return place.offset, place.timestamp
    chunks = _from_entry(reader, segment, entry)
    first = next(chunks, None)
    if first is not None:
        return _first_match(chain([first], chunks), timestamp_ms)
    return _first_match(_chunks_from(reader, segment, start), timestamp_ms)


def _entry(reader: SegmentReader, segment: SegmentInfo, timestamp_ms: int, start: int) -> TimestampOffset | None:
    """The time index's last entry before `timestamp_ms`; None if it is not after `start`."""
    entry = reader.time_entry(segment, timestamp_ms)
    return entry if entry is not None and entry.offset + segment.shift > start else None


def _from_entry(reader: SegmentReader, segment: SegmentInfo, entry: TimestampOffset | None) -> Iterator[Chunk]:
    """Chunks from the index entry's batch on, which has only older records; none without a usable index."""
    if entry is None:
        return
    chunks = iter(_chunks_from(reader, segment, entry.offset + segment.shift))
    chunk = next(chunks, None)
    if chunk is not None and chunk.batches["max_timestamp"][0] == entry.timestamp:
        yield chunk
        yield from chunks
        return
    name = reader.name(segment, ".timeindex")
    _log.warning("the time index does not fit its log: scanning the log instead (file=%s)", name)
    reader.forget_indexes(segment)


def _chunks_from(reader: SegmentReader, segment: SegmentInfo, start: int) -> Iterable[Chunk]:
    # mostly the record is in the batches after the one that the index leads to: one request should have them
    step = max(INDEX_WORTH_BYTES, 2 * spare_bytes(segment))
    return reader.chunks(SegmentSlice(segment, start, segment.next_offset, 0, segment.log_bytes), step)


def _first_match(chunks: Iterable[Chunk], timestamp_ms: int) -> Found | None:
    for chunk in chunks:
        # the headers say which batches to skip; the checksums cover them
        chunk.check()
        for row in np.flatnonzero(chunk.batches["max_timestamp"] >= timestamp_ms):
            offsets, timestamps = _offsets_and_timestamps(chunk, int(row))
            matches = np.flatnonzero(timestamps >= timestamp_ms)
            if len(matches):
                return int(offsets[matches[0]]), int(timestamps[matches[0]])
    return None


def _offsets_and_timestamps(chunk: Chunk, row: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    schema = pa.schema([SCHEMA.field(name) for name in _TIMES])
    records = pa.Table.from_batches(chunk.rows(row, row + 1).records(_TIMES, READ_UNCOMMITTED), schema)
    return numbers_of(records.column(0)), numbers_of(records.column(1).cast("int64"))
