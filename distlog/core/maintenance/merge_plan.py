"""Which small segments are worth merging: one pass over a partition's table, whatever there is in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from distlog.core.commits.segment_info import SegmentInfo
from distlog.core.commits.segment_table import SegmentTable
from distlog.core.commits.snapshot import PartitionState, Snapshot
from distlog.core.config import MAX_INT, TopicConfig


@dataclass(frozen=True, slots=True)
class MergeGroup:
    """Adjacent segments of one partition that become one."""

    segments: tuple[SegmentInfo, ...]

    @property
    def partition(self) -> int:
        """The partition of all these segments."""
        return self.segments[0].partition

    @property
    def log_bytes(self) -> int:
        """The size of the segment that they become."""
        return sum(segment.log_bytes for segment in self.segments)


def plan_merge(snapshot: Snapshot) -> list[MergeGroup]:
    """The groups worth merging; none where the topic is compacted, since compaction merges too.

    A group is adjacent segments that fit into one: as many as `segment.bytes` allow, or until the largest timestamps
    of its segments would lie further apart than `segment.ms`, so that time retention sees ages as it promises. It is
    worth it when its largest segment is at most half of it: so a record is copied as often as the logarithm of its
    segment's growth. Where one segment is more than half, what lies before it and behind it are groups.
    """
    if "compact" in snapshot.config.cleanup_policy:
        return []
    return [group for state in snapshot.partitions for group in _groups_of(state, snapshot.config)]


def _groups_of(state: PartitionState, config: TopicConfig) -> Iterator[MergeGroup]:
    table, first = state.segments, state.segments.find(state.log_start_offset)
    sizes = table.log_bytes.tolist()
    ranges = [worth for start, end in _ranges(table, first, config) for worth in _worth_it(sizes, start, end)]
    if ranges:
        offset = ranges[0][0]
        # made at once, since to make them a few at a time costs as much for each few
        segments = table[offset : ranges[-1][1]]
        yield from (MergeGroup(tuple(segments[start - offset : end - offset])) for start, end in ranges)


@dataclass(slots=True)
class _Range:
    """Segments from `start` on that fit into one so far."""

    start: int
    base_offset: int
    size: int
    oldest: int
    newest: int

    def takes(self, size: int, next_offset: int, newest: int, config: TopicConfig) -> bool:
        """Take the next segment if it fits; a largest timestamp of -1 is none."""
        oldest = min(newest, self.oldest) if newest >= 0 <= self.oldest else max(newest, self.oldest)
        newest = max(newest, self.newest)
        if (
            self.size + size > config.segment_size
            or next_offset - self.base_offset > MAX_INT
            or newest - oldest > config.segment_ms
        ):
            return False
        self.size, self.oldest, self.newest = self.size + size, oldest, newest
        return True


def _ranges(table: SegmentTable, first: int, config: TopicConfig) -> Iterator[tuple[int, int]]:
    """[start, end) of the segments that fit into one, from the table's segment `first` on."""
    columns = (table.log_bytes, table.base_offsets, table.next_offsets, table.max_timestamps)
    has_transactions = table.columns()["has_transactions"].slice(first).to_pylist()
    rows = zip(*(column[first:].tolist() for column in columns), has_transactions, strict=True)
    group: _Range | None = None
    for number, (size, base_offset, next_offset, newest, has_transaction) in enumerate(rows, first):
        fits = size < config.segment_size and not has_transaction
        if group is not None and not (fits and group.takes(size, next_offset, newest, config)):
            yield group.start, number
            group = None
        if group is None and fits:
            group = _Range(number, base_offset, size, newest, newest)
    if group is not None:
        yield group.start, len(table)


def _worth_it(sizes: list[int], start: int, end: int) -> Iterator[tuple[int, int]]:
    """The groups of [start, end); each call for a part halves the bytes, so there are few for one another."""
    part = sizes[start:end]
    if len(part) < 2:
        return
    largest = max(part)
    if 2 * largest <= sum(part):
        yield start, end
        return
    middle = start + part.index(largest)
    yield from _worth_it(sizes, start, middle)
    yield from _worth_it(sizes, middle + 1, end)
