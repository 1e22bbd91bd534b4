"""The plan of one round of compaction over one partition: which keys it looks for, and in which segments."""

from __future__ import annotations

from dataclasses import dataclass

from distlog.core.commits.format.segment_info import SegmentInfo
from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.config import TopicConfig
from distlog.core.maintenance.compaction.batch_verdicts import Verdicts
from distlog.core.maintenance.compaction.cleanable import Cleanable, first_dirty_offset, group_segments


@dataclass(frozen=True, slots=True)
class GroupToRewrite:
    """Adjacent segments that become one, and all that decides which records stay, except which are superseded.

    `verdicts` are those on the group's own batches. Cleaning ends at `end_offset`; the batch that ends there stays.
    """

    segments: list[SegmentInfo]
    verdicts: Verdicts
    end_offset: int
    now_ms: int
    config: TopicConfig
    read_version: int


@dataclass(frozen=True, slots=True)
class CleaningPlan:
    """One round: looks for the keys of the dirty range [start_offset, end_offset) in all segments below `end_offset`.

    `segments` are all segments from the log start to the end of the log, since the meaning of transactions depends on
    them. They and the topic's `config` are those of `read_version`. A plan pickles, so a task reads no commit.
    """

    partition: int
    start_offset: int
    end_offset: int
    segments: list[SegmentInfo]
    config: TopicConfig
    read_version: int

    @classmethod
    def of(cls, snapshot: Snapshot, due: Cleanable) -> CleaningPlan:
        """The plan of one round over the whole dirty range that is due."""
        state = snapshot.partitions[due.partition]
        segments = list(state.segments[state.segments.find(state.log_start_offset) :])
        start, end = first_dirty_offset(state), due.first_uncleanable_offset
        return cls(due.partition, start, end, segments, snapshot.config, snapshot.version)

    @property
    def cleaned(self) -> list[SegmentInfo]:
        """The segments that begin below `end_offset`."""
        return [one for one in self.segments if one.base_offset < self.end_offset]

    @property
    def dirty(self) -> list[SegmentInfo]:
        """The segments that hold the dirty range, whose keys are looked for."""
        return [one for one in self.cleaned if one.next_offset > self.start_offset]

    @property
    def dirty_records(self) -> int:
        """The number of records in the dirty segments: there are at most as many keys."""
        return sum(one.record_count for one in self.dirty)

    @property
    def log_bytes(self) -> int:
        """The size of the segments that begin below `end_offset`."""
        return sum(one.log_bytes for one in self.cleaned)

    def groups(self, verdicts: Verdicts, now_ms: int, end_offset: int) -> list[GroupToRewrite]:
        """The groups of adjacent segments below `end_offset`; each group becomes one segment."""
        below = [one for one in self.segments if one.base_offset < end_offset]
        return [
            GroupToRewrite(
                group,
                verdicts.within(group[0].base_offset, group[-1].next_offset),
                self.end_offset,
                now_ms,
                self.config,
                self.read_version,
            )
            for group in group_segments(below, self.config)
        ]
