"""Which bytes a read needs: from a snapshot and a range of offsets to slices of segments. No file is touched."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from distlog.core.commits.segment_info import SegmentInfo
from distlog.core.commits.snapshot import PartitionState, Snapshot
from distlog.core.errors import OffsetOutOfRangeError

OutOfRange = Literal["fail", "earliest", "latest"]


@dataclass(frozen=True, slots=True)
class SegmentSlice:
    """The records of one segment with start_offset <= offset < end_offset, in batches that begin in a byte range.

    Positions are of the log file; a batch belongs to the slice in which its first byte lies, so slices that
    share a segment need not know where its batches begin.
    """

    segment: SegmentInfo
    start_offset: int
    end_offset: int
    start_position: int
    end_position: int

    @property
    def whole(self) -> bool:
        """Whether this is every byte and every record of the segment."""
        return (
            self.start_offset <= self.segment.base_offset
            and self.end_offset >= self.segment.next_offset
            and (self.start_position, self.end_position) == (0, self.segment.log_bytes)
        )

    @property
    def estimated_bytes(self) -> int:
        """Log bytes to be read, taking the records of a segment as equal in size."""
        span = self.segment.next_offset - self.segment.base_offset
        start = max(self.start_offset, self.segment.base_offset)
        part = min(self.end_offset, self.segment.next_offset) - start
        return (self.end_position - self.start_position) * part // max(span, 1)


def plan(
    snapshot: Snapshot, start: Mapping[int, int], end: Mapping[int, int], out_of_range: OutOfRange = "fail"
) -> list[SegmentSlice]:
    """The slices that hold offsets [start[p], end[p]) of each partition p in `start`, in (partition, offset) order.

    An `end` above the log end is cut to it. Raises OffsetOutOfRangeError, with both bounds, for a start below
    the log start offset or above the log end offset, unless `out_of_range` says where to start instead.
    """
    slices: list[SegmentSlice] = []
    for partition in sorted(start):
        state = snapshot.partitions[partition]
        first = bounded_start(partition, start[partition], state, out_of_range)
        slices.extend(_partition_slices(state, first, min(end[partition], state.log_end_offset)))
    return slices


def bounded_start(partition: int, offset: int, state: PartitionState, out_of_range: OutOfRange) -> int:
    """`offset` if it is in the log or at its end, else what `out_of_range` says: OffsetOutOfRangeError for fail."""
    if state.log_start_offset <= offset <= state.log_end_offset:
        return offset
    if out_of_range == "fail":
        raise OffsetOutOfRangeError(
            "the offset is not in the log; read from the log start, or ask for earliest or latest instead",
            partition=partition,
            offset=offset,
            log_start_offset=state.log_start_offset,
            log_end_offset=state.log_end_offset,
        )
    return state.log_start_offset if out_of_range == "earliest" else state.log_end_offset


def _partition_slices(state: PartitionState, start: int, end: int) -> Iterable[SegmentSlice]:
    if start < end:
        segments = state.segments[state.segments.find(start) : int(np.searchsorted(state.segments.base_offsets, end))]
        yield from (SegmentSlice(segment, start, end, 0, segment.log_bytes) for segment in segments)


def split_by_bytes(slices: Iterable[SegmentSlice], target_bytes: int) -> list[list[SegmentSlice]]:
    """Groups of `slices`, in order, of nearly `target_bytes` each; a segment is cut where a group is full."""
    groups: list[list[SegmentSlice]] = [[]]
    room, tolerance = target_bytes, target_bytes // 8
    for piece in slices:
        rest = piece
        while rest.estimated_bytes > room + tolerance:
            if room > tolerance:
                head, rest = _cut(rest, room)
                groups[-1].append(head)
                room = 0
            groups.append([])
            # what one group lacks the next one gets, lest there be a group more
            room += target_bytes
        groups[-1].append(rest)
        room -= rest.estimated_bytes
    return [group for group in groups if group]


def _cut(piece: SegmentSlice, size: int) -> tuple[SegmentSlice, SegmentSlice]:
    """The first `size` of the estimated bytes, and the rest, which is not empty."""
    span = piece.end_position - piece.start_position
    position = piece.start_position + span * size // piece.estimated_bytes
    return replace(piece, end_position=position), replace(piece, start_position=position)
