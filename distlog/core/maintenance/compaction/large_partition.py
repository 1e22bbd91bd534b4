"""A partition whose compaction is shared by tasks: which segments are looked at, and what becomes one segment."""

from __future__ import annotations

from dataclasses import dataclass

from distlog.core.commits.segment_info import SegmentInfo
from distlog.core.commits.snapshot import Snapshot
from distlog.core.maintenance.compaction.cleanable import Cleanable, first_dirty_offset, group_segments


@dataclass(frozen=True, slots=True)
class LargePartition:
    """Keys of [start_offset, end_offset), which are dirty, are looked for in all of `groups`, from the log start on.

    `segments` are all that there are, to the end of the log: what transactions mean depends on them.
    """

    partition: int
    start_offset: int
    end_offset: int
    segments: list[SegmentInfo]
    groups: list[list[SegmentInfo]]

    @classmethod
    def plan(cls, snapshot: Snapshot, due: Cleanable) -> LargePartition:
        """What one round over the whole of what is due has to do."""
        state = snapshot.partitions[due.partition]
        start, end = first_dirty_offset(state), due.first_uncleanable_offset
        segments = list(state.segments[state.segments.find(state.log_start_offset) :])
        groups = group_segments((one for one in segments if one.base_offset < end), snapshot.config)
        return cls(due.partition, start, end, segments, groups)

    @property
    def cleaned(self) -> list[SegmentInfo]:
        """The segments of all groups."""
        return [segment for group in self.groups for segment in group]

    @property
    def dirty_records(self) -> int:
        """How many keys there are at most."""
        return sum(one.record_count for one in self.cleaned if one.next_offset > self.start_offset)

    @property
    def log_bytes(self) -> int:
        """The size of all groups."""
        return sum(one.log_bytes for one in self.cleaned)
