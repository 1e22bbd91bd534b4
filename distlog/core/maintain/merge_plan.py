"""Plans which small segments are worth merging, in one pass over the columns of all partitions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from distlog.core.arrays import numbers_of
from distlog.core.commits.segment_table import SegmentTable
from distlog.core.commits.snapshot import Snapshot
from distlog.core.config import TopicConfig
from distlog.core.format.kernels.segment_groups import find_groups
from distlog.core.format.offset_and_time_index import TIME_ENTRY
from distlog.core.maintain.group_rewrite import SegmentGroup
from distlog.core.segments.segment_writer import LARGEST_PART

#: A group of more than LARGEST_PART that may still grow is merged if it has this many times the bytes of its largest
#: segment: a reader gains little by segments that are larger than a request.
GROWTH = 8
#: The same for other groups.
LEAST_GROWTH = 2

Longs = npt.NDArray[np.int64]
_COLUMNS = (
    *("log_bytes", "base_offset", "next_offset", "first_timestamp", "max_timestamp", "created_ms"),
    "record_count",
)


def plan_merge(snapshot: Snapshot) -> list[SegmentGroup]:
    """The groups worth merging; none for a compacted topic, since compaction merges too.

    A group is adjacent segments that fit into one segment without a roll. The limits are `segment.bytes`,
    `segment.index.bytes`, and `segment.ms` counted from the first record's time, so that time retention still sees
    the ages it promises. A group is worth merging when its largest segment is at most half of its bytes, or an eighth
    if the group has more than LARGEST_PART and later segments may join it. So each copy of a record is into a segment
    of at least twice the size. If one segment is more, the segments before it and after it are tried as groups.
    """
    if "compact" in snapshot.config.cleanup_policy:
        return []
    table, limits = snapshot.table, limits_of(snapshot.config)
    rows = SegmentTable(table.plain_segments())
    owners = numbers_of(rows.columns()["partition"])
    groups = [SegmentGroup(rows.part(*group)) for group in groups_of(rows, owners, table.log_start_offsets, limits)]
    for state in table.changed_states.values():
        groups += _groups_in(state.segments, state.log_start_offset, limits)
    return sorted(groups, key=lambda group: group.partition) if table.changed_states else groups


def limits_of(config: TopicConfig, *, of_tails: bool = False) -> Longs:
    """The limits of a plan, for `groups_of`; at the ends of partitions, all that may grow counts as large."""
    entries = config.segment_index_bytes // TIME_ENTRY.itemsize
    sizes = config.segment_size, config.segment_ms, entries, config.index_interval_bytes
    return np.array([*sizes, LEAST_GROWTH, GROWTH, -1 if of_tails else LARGEST_PART])


def groups_of(table: SegmentTable, owners: Longs, floors: Longs, limits: Longs) -> list[tuple[int, int]]:
    """The first and the end row of each group of `table` worth merging."""
    sizes, bases, ends, starts, newest, created, records = map(table.array, _COLUMNS)
    # retention counts ages from the same times
    newest = np.where(newest >= 0, newest, created)
    oldest = np.where(starts >= 0, starts, newest)
    waiting, ranges = np.empty((2, len(owners) + 1, 2), np.int64)
    count = find_groups(owners, sizes, bases, ends, oldest, newest, records, floors, limits, waiting, ranges)
    # segments without a byte have no file, and nothing to write
    return [(first, end) for first, end in ranges[:count].tolist() if sizes[first:end].any()]


def _groups_in(table: SegmentTable, floor: int, limits: Longs) -> list[SegmentGroup]:
    rows = groups_of(table, np.zeros(len(table), np.int64), np.array([floor]), limits)
    return [SegmentGroup(table.part(*group)) for group in rows]


#: Larger segments are made by `plan_merge` alone.
LARGEST_BYTES = 128 << 20
#: Segments of a partition before the new ones that are considered. Older small ones are left to `plan_merge`.
WINDOW = 256


def plan_tail_merge(
    snapshot: Snapshot, appended: Mapping[int, int], *, most_bytes: int, most_segments: int
) -> list[SegmentGroup]:
    """The groups worth merging, the smallest first, until they have `most_bytes` or `most_segments`, or more."""
    if "compact" in snapshot.config.cleanup_policy:
        return []
    largest = min(snapshot.config.segment_size, LARGEST_BYTES)
    limits = limits_of(dataclasses.replace(snapshot.config, internal_segment_bytes=largest), of_tails=True)
    groups: list[SegmentGroup] = []
    for number, count in appended.items():
        state = snapshot.partitions[number]
        first = max(0, len(state.segments) - WINDOW - count)
        groups += _groups_in(state.segments.part(first, len(state.segments)), state.log_start_offset, limits)
    return _smallest(groups, most_bytes, most_segments)


def _smallest(groups: Sequence[SegmentGroup], most_bytes: int, most_segments: int) -> list[SegmentGroup]:
    smallest = list[SegmentGroup]()
    size = segments = 0
    for group in sorted(groups, key=lambda group: group.log_bytes):
        if size >= most_bytes or segments >= most_segments:
            break
        smallest.append(group)
        size, segments = size + group.log_bytes, segments + len(group.segments)
    return smallest
