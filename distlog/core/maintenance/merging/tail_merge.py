"""Merges the small segments at the ends of partitions, a little after each append of a stream.

A group of adjacent segments is merged when it has GROWTH times the bytes of its largest segment, or twice if no later
segment fits into it any more. So each time that a record is copied, its segment becomes that much larger, and a
partition has few small segments of each size. Segments do not grow beyond LARGEST_BYTES here; `merge` makes larger
ones.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from distlog.core.commits.format.segment_info import SegmentInfo
from distlog.core.commits.state.snapshot import PartitionState, Snapshot
from distlog.core.config import TopicConfig
from distlog.core.maintenance.merging.merge import merge_groups
from distlog.core.maintenance.merging.merge_plan import MergeGroup, ranges, worth_it
from distlog.core.maintenance.merging.merge_report import MergeReport
from distlog.core.topic_handle import TopicHandle

LARGEST_BYTES = 128 << 20
GROWTH = 8
#: So many segments of a partition, ahead of those just appended, are looked at. Older small ones are left to `merge`.
WINDOW = 256
#: A merge after one append ends with the group that exceeds this, or what the append itself justifies.
LEAST_BYTES, LEAST_SEGMENTS = LARGEST_BYTES, 512
#: A record is copied about four times on its way from 50 kB to LARGEST_BYTES, and its segment's file is read once.
BYTES_PER_BYTE, SEGMENTS_PER_SEGMENT = 4, 2
#: How long the commit of a merge races with others, in seconds, before it is given up.
COMMIT_TIMEOUT_S = 5.0


def merge_tails(
    handle: TopicHandle, snapshot: Snapshot, appended: Sequence[SegmentInfo]
) -> tuple[MergeReport | None, Snapshot]:
    """Merge in the partitions of the segments that were `appended` just now; None if nothing is worth it yet.

    The work is bounded by constants and a multiple of what was appended. Raises CommitConflictError if the merge lost
    too many races, and what `merge` raises.
    """
    sizes = [segment.log_bytes for segment in appended]
    groups = plan_tail_merge(
        snapshot,
        Counter(segment.partition for segment in appended),
        most_bytes=max(LEAST_BYTES, BYTES_PER_BYTE * sum(sizes)),
        most_segments=max(LEAST_SEGMENTS, SEGMENTS_PER_SEGMENT * len(sizes)),
    )
    if not groups:
        return None, snapshot
    return merge_groups(handle, snapshot, groups, timeout_s=COMMIT_TIMEOUT_S)


def plan_tail_merge(
    snapshot: Snapshot, appended: Mapping[int, int], *, most_bytes: int, most_segments: int
) -> list[MergeGroup]:
    """The groups worth merging, the smallest first, until they have `most_bytes` or `most_segments`, or more.

    `appended` is the number of segments just appended, by partition; other partitions are not looked at. None for a
    compacted topic, since compaction merges too.
    """
    if "compact" in snapshot.config.cleanup_policy:
        return []
    largest = min(snapshot.config.segment_size, LARGEST_BYTES)
    config = dataclasses.replace(snapshot.config, internal_segment_bytes=largest)
    groups = [
        group
        for number, count in appended.items()
        for group in _groups_at_end(snapshot.partitions[number], WINDOW + count, config)
    ]
    chosen = list[MergeGroup]()
    size = segments = 0
    for group in sorted(groups, key=lambda group: group.log_bytes):
        if size >= most_bytes or segments >= most_segments:
            break
        chosen.append(group)
        size, segments = size + group.log_bytes, segments + len(group.segments)
    return chosen


def _groups_at_end(state: PartitionState, window: int, config: TopicConfig) -> Iterator[MergeGroup]:
    table = state.segments
    tail = table.part(max(table.find(state.log_start_offset), len(table) - window), len(table))
    sizes = tail.log_bytes.tolist()
    for start, end in ranges(tail, 0, config):
        may_grow = end == len(tail)
        yield from (MergeGroup(tail.part(*worth)) for worth in worth_it(sizes, start, end, GROWTH if may_grow else 2))
