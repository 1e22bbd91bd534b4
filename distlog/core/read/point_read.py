"""Reads a few records from a mapped log, or from the few bytes of an active one that hold them.

For a local segment this takes microseconds, since no chunk is read.

Its records are checked as those of a scan are: the log is its segment's, its batches follow each other, and the
checksum of the batch is right. Anything wrong or unusual is left to a scan, which raises the right error for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from distlog.core.arrays import byte_array
from distlog.core.commits.segment_table import UNKNOWN, SegmentInfo
from distlog.core.errors import CorruptionError
from distlog.core.format.compression import decompress
from distlog.core.format.kernels.batch_scan import CODEC_MASK, LOG_OVERHEAD
from distlog.core.format.kernels.record_scan import (
    HEADER_LOCATION,
    LOCATION,
    NOT_APPEND_TIME,
    find_batch,
    find_headers,
    find_records,
)
from distlog.core.format.offset_and_time_index import TimestampOffset
from distlog.core.format.record_batch import (
    APPEND_TIME,
    CONTROL,
    CRC_START,
    CREATE_TIME,
    HEADER,
    HEADER_SIZE,
    LOG_APPEND_TIME,
)
from distlog.core.integers import MIN_LONG
from distlog.core.segments.segment_parts import OpenLog
from distlog.core.segments.segment_reader import SegmentReader

#: How many records, and batches, are looked at one by one; for more of them a scan is faster.
FEW = 64

Headers = list[tuple[str, bytes | None]]


class PointRecord(NamedTuple):
    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class PointBatch(NamedTuple):
    """A checked batch of format 2: its position in the open log, its stored offsets, and the fields of its header."""

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


class _LeftToScanError(Exception):
    """A point read met something that it cannot judge: a scan must read it."""


def first_records(reader: SegmentReader, segment: SegmentInfo, offset: int, limit: int) -> list[PointRecord]:
    """The first records of the segment from `offset` on, at most `limit` and at most FEW.

    There may be more even if it returns fewer than `limit`: a scan finds those after the last one.
    """
    records: list[PointRecord] = []
    room, stored = min(limit, FEW), offset - segment.shift
    if not reader.storage.is_local:
        return records
    with suppress(CorruptionError, OSError):  # a scan finds the same fault and raises the error for it
        position = _position(reader, segment, stored)
        for log in reader.logs.around(segment, position):
            with suppress(_LeftToScanError):
                for batch in _batches(segment, log, stored, position):
                    records += _records(segment, log, batch, room - len(records), stored)
                    if len(records) >= room:
                        break
            if records:
                break
    return records


def first_at(
    reader: SegmentReader, segment: SegmentInfo, timestamp_ms: int, start: int, entry: TimestampOffset | None
) -> PointRecord | None:
    """The first record from `start` and `timestamp_ms` on; None if a scan must look. The index's `entry` must fit."""
    first = start - segment.shift if entry is None else entry.offset
    if not reader.storage.is_local:
        return None
    with suppress(CorruptionError, OSError):  # a scan finds the same fault and raises the error for it
        position = _position(reader, segment, first)
        for log in reader.logs.around(segment, position):
            with suppress(_LeftToScanError):
                return _first_in(segment, log, _batches(segment, log, first, position), timestamp_ms, start, entry)
    return None


def _first_in(
    segment: SegmentInfo,
    log: OpenLog,
    batches: Iterator[PointBatch],
    timestamp_ms: int,
    start: int,
    entry: TimestampOffset | None,
) -> PointRecord | None:
    for number, batch in enumerate(batches):
        if number == 0 and entry and batch.max_timestamp != entry.timestamp:
            break
        if batch.max_timestamp < timestamp_ms:
            continue
        for record in _records(segment, log, batch, 1, start - segment.shift, timestamp_ms):
            return record
    return None


def _position(reader: SegmentReader, segment: SegmentInfo, stored_offset: int) -> int:
    """The position of a batch that holds the offset, or ends below it; 0 without an index."""
    index = reader.offset_index(segment)
    return 0 if index is None else index.lookup(stored_offset).position


def _batches(segment: SegmentInfo, log: OpenLog, stored_offset: int, position: int) -> Iterator[PointBatch]:
    end_offset, dense = segment.next_offset - segment.shift, segment.dense
    end = min(segment.log_bytes - log.start, log.data.size)
    following = segment.stored_base_offset if position == 0 else -1
    at = position - log.start
    for _ in range(FEW):
        at = find_batch(log.data, at, end, following, dense, end_offset, stored_offset)
        if at == end:
            return
        batch = _checked(segment, log, at)
        yield batch
        at += batch.size
        following = stored_offset = batch.last_offset + 1


def _checked(segment: SegmentInfo, log: OpenLog, position: int) -> PointBatch:
    if position < 0:
        raise _LeftToScanError
    header = HEADER.unpack_from(log.view, position)
    base_offset, length, _, _, crc, attributes, last_offset_delta, base_timestamp, max_timestamp, *_, count = header
    size = LOG_OVERHEAD + length
    if crc != crc32c(log.view[position + CRC_START : position + size]):
        raise _LeftToScanError
    if log.start + position + size == segment.log_bytes and segment.last_batch_crc not in (UNKNOWN, crc):
        raise _LeftToScanError
    if segment.append_time_ms >= 0:
        attributes, max_timestamp = attributes | APPEND_TIME, segment.append_time_ms
    return PointBatch(
        position, size, base_offset, last_offset_delta, attributes, base_timestamp, max_timestamp, count
    )


def _records(
    segment: SegmentInfo, log: OpenLog, batch: PointBatch, room: int, stored_offset: int, oldest: int = MIN_LONG
) -> Iterator[PointRecord]:
    if batch.attributes & CONTROL:
        return
    view, data, start, end = log.view, log.data, batch.position + HEADER_SIZE, batch.position + batch.size
    if codec := batch.attributes & CODEC_MASK:
        view = decompress(codec, view[start:end])
        data, start, end = byte_array(view), 0, len(view)
    by_append_time = batch.attributes & APPEND_TIME != 0
    append_time = batch.max_timestamp if by_append_time else NOT_APPEND_TIME
    places = np.empty(room, LOCATION)
    first = max(stored_offset - batch.base_offset, 0)
    times = (batch.base_timestamp, append_time)
    count = find_records(data, start, end, batch.record_count, batch.last_offset_delta, *times, first, oldest, places)
    if count < 0:
        raise _LeftToScanError
    base_offset, kind = batch.base_offset + segment.shift, LOG_APPEND_TIME if by_append_time else CREATE_TIME
    for delta, timestamp, key_at, key_size, value_at, value_size, headers_at, headers in places[:count].tolist():
        yield PointRecord(
            base_offset + delta,
            timestamp,
            kind,
            _bytes(view, key_at, key_size),
            _bytes(view, value_at, value_size),
            _headers(view, data, headers_at, headers) if headers else [],
        )


def _headers(view: memoryview, data: npt.NDArray[np.uint8], position: int, count: int) -> Headers:
    places = np.empty(count, HEADER_LOCATION)
    find_headers(data, position, places)
    return [
        (str(view[key_at : key_at + key_size], "utf-8", "replace"), _bytes(view, value_at, value_size))
        for key_at, key_size, value_at, value_size in places.tolist()
    ]


def _bytes(view: memoryview, position: int, size: int) -> bytes | None:
    return bytes(view[position : position + size]) if size >= 0 else None
