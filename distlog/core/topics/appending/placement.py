"""Gives new segments their offsets: those behind the ends of their partitions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from distlog.core.commits.format.segment_info import SegmentInfo
from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.errors import CommitConflictError


def place(snapshot: Snapshot, segments: Sequence[SegmentInfo]) -> list[SegmentInfo]:
    """The segments at the offsets that follow the log ends of `snapshot`.

    Raises CommitConflictError for a partition that the topic does not have.
    """
    ends = [state.log_end_offset for state in snapshot.partitions]
    placed = []
    for segment in segments:
        if segment.partition >= len(ends):
            raise CommitConflictError("the topic has no such partition any more", partition=segment.partition)
        placed.append(segment.at(ends[segment.partition]))
        ends[segment.partition] = placed[-1].next_offset
    return placed


def offsets_of(segments: Iterable[SegmentInfo]) -> dict[int, tuple[int, int]]:
    """By partition the (first, end) offsets of segments that follow each other."""
    offsets: dict[int, tuple[int, int]] = {}
    for segment in segments:
        first, _ = offsets.get(segment.partition, (segment.base_offset, 0))
        offsets[segment.partition] = (first, segment.next_offset)
    return offsets
