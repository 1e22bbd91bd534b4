"""Merging the small segments of a topic towards `segment.bytes`: batches are copied, no record is decoded.

Appends make a segment per commit and partition. A group is taken when its largest segment is at most half of it, so
a record is copied as often as the logarithm of its segment's growth, not once per append.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from distlog.core import paths
from distlog.core.commits.actions import Action, Add, Remove
from distlog.core.commits.commit_log import CommitLog
from distlog.core.commits.segment_info import SegmentInfo
from distlog.core.commits.snapshot import PartitionState, Snapshot
from distlog.core.config import MAX_INT, TopicConfig
from distlog.core.segments.segment import SegmentReader
from distlog.core.segments.segment_file import SegmentFile
from distlog.core.segments.whole_log import whole_log


@dataclass(frozen=True, slots=True)
class MergeGroup:
    """Adjacent segments of one partition that become one."""

    segments: tuple[SegmentInfo, ...]

    @property
    def log_bytes(self) -> int:
        """The size of the segment that they become."""
        return sum(segment.log_bytes for segment in self.segments)


def plan_merge(snapshot: Snapshot) -> list[MergeGroup]:
    """The groups worth merging; none where the topic is compacted, since compaction merges too."""
    if "compact" in snapshot.config.cleanup_policy:
        return []
    groups = (group for state in snapshot.partitions for group in _groups(state, snapshot.config))
    return [MergeGroup(tuple(group)) for group in groups if _is_worth_it(group)]


def _groups(state: PartitionState, config: TopicConfig) -> Iterator[list[SegmentInfo]]:
    group: list[SegmentInfo] = []
    for segment in state.segments[state.segments.find(state.log_start_offset) :]:
        if not _is_mergeable(segment, config):
            yield group
            group = []
        elif group and not _fits([*group, segment], config):
            yield group
            group = [segment]
        else:
            group.append(segment)
    yield group


def _is_mergeable(segment: SegmentInfo, config: TopicConfig) -> bool:
    return segment.log_bytes < config.segment_bytes and not segment.has_transactions


def _fits(group: Sequence[SegmentInfo], config: TopicConfig) -> bool:
    """Whether one segment can hold the group, and time retention still sees ages as `segment.ms` promises."""
    times = [segment.max_timestamp for segment in group if segment.max_timestamp >= 0]
    return (
        sum(segment.log_bytes for segment in group) <= config.segment_bytes
        and group[-1].next_offset - group[0].base_offset <= MAX_INT
        and max(times, default=0) - min(times, default=0) <= config.segment_ms
    )


def _is_worth_it(group: Sequence[SegmentInfo]) -> bool:
    sizes = [segment.log_bytes for segment in group]
    return len(sizes) > 1 and 2 * max(sizes) <= sum(sizes)


def merge_group(
    reader: SegmentReader,
    group: MergeGroup,
    config: TopicConfig,
    *,
    begin: int,
    clock: Callable[[], int],
    new_id: Callable[[], str],
) -> SegmentInfo:
    """Write the segment that takes the group's place, at the group's offsets; no commit names it yet.

    Memory is bounded by a few chunks. Raises CorruptRecordError for a batch that is not what was written.
    """
    first, last = group.segments[0], group.segments[-1]
    file = SegmentFile(reader.storage, reader.topic, first.partition, paths.new_stem(begin, new_id()), config)
    for segment in group.segments:
        _copy(reader, segment, first.base_offset, file)
    newest = max(group.segments, key=lambda segment: segment.max_timestamp)
    merged = file.seal(",".join(sorted({segment.compression for segment in group.segments})), clock())
    return dataclasses.replace(
        merged,
        base_offset=first.base_offset,
        next_offset=last.next_offset,
        offset_of_max_timestamp=newest.offset_of_max_timestamp,
        compacted=any(segment.compacted for segment in group.segments),
    )


def _copy(reader: SegmentReader, segment: SegmentInfo, base_offset: int, file: SegmentFile) -> None:
    for chunk in whole_log(reader, segment):
        bases = chunk.batches["base_offset"] + (segment.shift - base_offset)
        # which record has the largest timestamp is known for the segment, and not needed for each batch
        file.write(np.array(chunk.data, np.uint8), chunk.batches, bases, bases, segment.min_timestamp)


def merge(
    reader: SegmentReader,
    log: CommitLog,
    snapshot: Snapshot,
    clock: Callable[[], int],
    *,
    new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
    dry_run: bool = False,
) -> tuple[list[MergeGroup], Snapshot]:
    """Merge what is worth it, in one commit; the groups that became one segment each, and the new state.

    A group of which a segment was removed meanwhile is left out; its copy stays unnamed until vacuum.
    """
    snapshot = log.refresh(snapshot)
    groups = plan_merge(snapshot)
    if dry_run or not groups:
        return groups, snapshot
    begin = snapshot.version
    pairs = [
        (group, merge_group(reader, group, snapshot.config, begin=begin, clock=clock, new_id=new_id))
        for group in groups
    ]
    return commit_merge(log, snapshot, pairs, begin=begin)


def commit_merge(
    log: CommitLog, snapshot: Snapshot, pairs: Sequence[tuple[MergeGroup, SegmentInfo]], *, begin: int
) -> tuple[list[MergeGroup], Snapshot]:
    """Put each merged segment in the place of its group, where that is still live as a whole."""
    done: list[MergeGroup] = []

    def plan(current: Snapshot) -> list[Action] | None:
        live = [(group, merged) for group, merged in pairs if is_live(current, group.segments)]
        done[:] = [group for group, _ in live]
        return [action for group, merged in live for action in _replace(group, merged)] or None

    _, after = log.commit(snapshot, "compact", plan, begin=begin)
    return done, after


def is_live(snapshot: Snapshot, segments: Sequence[SegmentInfo]) -> bool:
    """Whether all of `segments`, of one partition, are in the snapshot."""
    stems = {segment.stem for segment in segments}
    table = snapshot.partitions[segments[0].partition].segments
    return table.live(stems) == stems


def _replace(group: MergeGroup, merged: SegmentInfo) -> list[Action]:
    removed: list[Action] = [Remove(segment.partition, segment.stem) for segment in group.segments]
    return [*removed, Add(merged)]
