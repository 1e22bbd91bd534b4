"""Plans which small segments are worth merging, in one pass over a partition's table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from distlog.core.commits.state.segment_table import SegmentTable
from distlog.core.commits.state.snapshot import PartitionState, Snapshot
from distlog.core.config import MAX_INT, TopicConfig
from distlog.core.indexes.time_index import ENTRY as TIME_ENTRY


@dataclass(frozen=True, slots=True)
class MergeGroup:
    """Adjacent segments of one partition, to be merged into one segment.

    They are part of the partition's table: to make objects of them would take most of a plan's time.
    """

    segments: SegmentTable

    @property
    def partition(self) -> int:
        """The partition of all these segments."""
        return self.segments[0].partition

    @property
    def log_bytes(self) -> int:
        """The log bytes of these segments; the merged one has no more."""
        return int(self.segments.log_bytes.sum())

    @property
    def records(self) -> int:
        """How many records the group has."""
        return int(self.segments.record_counts.sum())

    @property
    def stems(self) -> list[str]:
        """The stems of the group's segments."""
        found: list[str] = self.segments.columns()["stem"].to_pylist()
        return found


def plan_merge(snapshot: Snapshot) -> list[MergeGroup]:
    """The groups worth merging; none for a compacted topic, since compaction merges too.

    A group is adjacent segments that fit into one segment without a roll. The limits are `segment.bytes`,
    `segment.index.bytes`, and `segment.ms` counted from the first record's time, so that time retention still sees
    the ages it promises. A group is worth merging when its largest segment is at most half of its bytes. So each copy
    of a record is into a segment of at least twice the size. If one segment is more than half, the segments before it
    and those behind it are tried as groups.
    """
    if "compact" in snapshot.config.cleanup_policy:
        return []
    return [group for state in snapshot.partitions for group in _groups_of(state, snapshot.config)]


def _groups_of(state: PartitionState, config: TopicConfig) -> Iterator[MergeGroup]:
    table, first = state.segments, state.segments.find(state.log_start_offset)
    sizes = table.log_bytes.tolist()
    for start, end in ranges(table, first, config):
        yield from (MergeGroup(table.part(*worth)) for worth in worth_it(sizes, start, end))


@dataclass(slots=True)
class _Range:
    """The segments from number `start` on that fit into one segment so far."""

    start: int
    base_offset: int
    begin_ms: int
    size: int
    newest_ms: int
    records: int

    def takes(self, size: int, next_offset: int, newest_ms: int, records: int, config: TopicConfig) -> bool:
        """Take the next segment if it fits; returns whether it does."""
        size, records, newest_ms = self.size + size, self.records + records, max(newest_ms, self.newest_ms)
        if (
            size > config.segment_size
            or next_offset - self.base_offset > MAX_INT
            or newest_ms - self.begin_ms > config.segment_ms
            or _most_entries(size, records, config) >= config.segment_index_bytes // TIME_ENTRY.itemsize
        ):
            return False
        self.size, self.records, self.newest_ms = size, records, newest_ms
        return True


def _most_entries(log_bytes: int, records: int, config: TopicConfig) -> int:
    """The most entries that an index of the group can have: one per interval, and one per batch."""
    return min(log_bytes // (config.index_interval_bytes + 1), records)


def ranges(table: SegmentTable, first: int, config: TopicConfig) -> Iterator[tuple[int, int]]:
    """Ranges [start, end) of segments that fit into one, from the table's segment `first` on.

    The last range may end where the table does; then it may still grow.
    """
    group: _Range | None = None
    for number, row in enumerate(zip(*_columns(table, first), strict=True), first):
        size, base_offset, next_offset, oldest_ms, newest_ms, records = row
        fits = size < config.segment_size
        if group is not None and not (fits and group.takes(size, next_offset, newest_ms, records, config)):
            yield group.start, number
            group = None
        if group is None and fits:
            group = _Range(number, base_offset, oldest_ms, size, newest_ms, records)
    if group is not None:
        yield group.start, len(table)


def _columns(table: SegmentTable, first: int) -> Iterator[list[Any]]:
    """The columns that the plan needs, from segment `first` on; retention counts ages from the same times."""
    starts = table.array("first_timestamp")
    newest = np.where(table.max_timestamps >= 0, table.max_timestamps, table.array("created_ms"))
    oldest = np.where(starts >= 0, starts, newest)
    for column in (table.log_bytes, table.base_offsets, table.next_offsets, oldest, newest, table.record_counts):
        yield column[first:].tolist()


def worth_it(sizes: list[int], start: int, end: int, growth: int = 2) -> Iterator[tuple[int, int]]:
    """The groups worth merging in [start, end): those of `growth` times the bytes of their largest segment, or more.

    A nested call gets a smaller part of the bytes, by at least one in `growth`, so few nest.
    """
    part = sizes[start:end]
    if len(part) < 2:
        return
    largest = max(part)
    if growth * largest <= sum(part):
        yield start, end
        return
    middle = start + part.index(largest)
    yield from worth_it(sizes, start, middle, growth)
    yield from worth_it(sizes, middle + 1, end, growth)
