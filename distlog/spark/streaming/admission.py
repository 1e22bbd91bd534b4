"""How far one micro-batch goes: limits of offsets and of bytes, spread over the partitions by what each has.

As in Spark's Kafka source, each partition that has something goes on, however small its share is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from distlog.core.commits.format.segment_info import SegmentInfo
from distlog.core.commits.state.segment_table import SegmentTable
from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.errors import CorruptIndexError
from distlog.core.reading.files.segment_reader import SegmentReader
from distlog.spark.source.bounds import Ranges
from distlog.spark.streaming.stream_options import Limits

#: The end offset of a batch, by partition.
Ends = dict[int, int]


class Admission:
    """Applies `limits` to one stream; `clock` gives seconds."""

    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        self._limits, self._clock = limits, clock
        self._last_batch: float | None = None

    def waits(self, available: Ranges) -> bool:
        """Whether to wait for more than the offsets (next, end) that are `available`.

        The first batch never waits, and none waits for longer than the limits' delay, as in Spark's Kafka source.
        """
        least, now = self._limits.min_offsets, self._clock()
        if least is None or sum(end - start for start, end in available.values()) >= least:
            self._last_batch = now
            return False
        if self._last_batch is not None and now - self._last_batch < self._limits.max_delay_s:
            return True
        self._last_batch = now
        return False

    def ends(self, reader: SegmentReader, snapshot: Snapshot, available: Ranges) -> Ends:
        """Where the next batch ends, of the offsets (next, end) that are `available`."""
        ends = {number: end for number, (_, end) in available.items()}
        if self._limits.max_offsets is not None:
            ends = ends_by_offsets(available, self._limits.max_offsets)
        if self._limits.max_bytes is not None:
            spans = {number: (start, ends[number]) for number, (start, _) in available.items()}
            ends = ends_by_bytes(reader, snapshot, spans, self._limits.max_bytes)
        return ends


def ends_by_offsets(available: Ranges, most: int) -> Ends:
    """Where about `most` offsets end, spread over the partitions; each takes one at least."""
    shares = _shares({number: end - start for number, (start, end) in available.items()}, most)
    return {number: min(end, start + shares.get(number, 0)) for number, (start, end) in available.items()}


def ends_by_bytes(reader: SegmentReader, snapshot: Snapshot, available: Ranges, most: int) -> Ends:
    """Where about `most` bytes of log end, spread over the partitions; each takes one batch at least.

    Metadata gives the sizes of segments, and offset indexes those of their parts. A segment that is too small for
    its index to be worth a request is taken whole.
    """
    tables = {number: snapshot.partitions[number].segments for number in available}
    sizes = {number: _bytes(tables[number], *span) for number, span in available.items()}
    if sum(sizes.values()) <= most:
        return {number: end for number, (_, end) in available.items()}
    shares = _shares(sizes, most)
    return {
        number: _end_after(reader, tables[number], *span, shares[number]) if number in shares else span[1]
        for number, span in available.items()
    }


def _shares(sizes: Mapping[int, int], most: int) -> dict[int, int]:
    """The part of `most` that each size gets, at least one; sizes of nothing get none.

    Together they are `most`, unless there are more sizes: what rounding down leaves goes to the largest remainders.
    """
    total = sum(sizes.values())
    shares = {number: max(1, most * size // total) for number, size in sizes.items() if size > 0}
    left = max(most - sum(shares.values()), 0)
    rounded = [number for number in shares if most * sizes[number] >= total]
    for number in sorted(rounded, key=lambda number: most * sizes[number] % total, reverse=True)[:left]:
        shares[number] += 1
    return shares


def _bytes(segments: SegmentTable, start: int, end: int) -> int:
    """The bytes of log between two offsets, at least one, if all records of a segment are equal in size."""
    if start >= end:
        return 0
    rows = slice(segments.find(start), int(np.searchsorted(segments.base_offsets, end)))
    first, last = segments.base_offsets[rows], segments.next_offsets[rows]
    parts = (np.minimum(last, end) - np.maximum(first, start)) / (last - first)
    return max(1, int((segments.log_bytes[rows] * parts).sum()))


def _end_after(reader: SegmentReader, segments: SegmentTable, start: int, end: int, room: int) -> int:
    """Where `room` bytes of log from `start` on end, with one batch at least; not above `end`."""
    row = segments.find(start)
    ahead = _position(reader, segments[row], start) if row < len(segments) else 0
    sizes = np.cumsum(segments.log_bytes[row:])
    whole = int(sizes.searchsorted(ahead + room, side="right"))
    if row + whole >= len(segments):
        return end
    segment = segments[row + whole]
    if segment.base_offset >= end:
        return end
    left = ahead + room - (int(sizes[whole - 1]) if whole else 0)
    return min(end, _cut(reader, segment, left, start if whole else max(start, segment.base_offset)))


def _position(reader: SegmentReader, segment: SegmentInfo, offset: int) -> int:
    """A position at or before the batch of `offset`, by the offset index; 0 without one."""
    index = reader.offset_index(segment) if offset > segment.base_offset else None
    try:
        return index.lookup(offset - segment.shift).position if index else 0
    except CorruptIndexError:
        reader.forget_indexes(segment)
        return 0


def _cut(reader: SegmentReader, segment: SegmentInfo, position: int, start: int) -> int:
    """Where the batch ends that is at `position` or before it; a later batch's end if that is not above `start`."""
    index = reader.offset_index(segment)
    if index is None:
        return segment.next_offset if segment.base_offset <= start else segment.base_offset
    try:
        entry = index.position_floor(position)
        end = entry.offset + segment.shift + 1 if entry.position > 0 else segment.base_offset
        if end <= start:
            later = index.ceiling(start - segment.shift)
            end = later.offset + segment.shift + 1 if later else segment.next_offset
    except CorruptIndexError:
        reader.forget_indexes(segment)
        return segment.next_offset
    return min(end, segment.next_offset)
