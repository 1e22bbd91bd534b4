"""Decides which partitions to compact, and which offsets (Kafka's `LogCleanerManager`). Reads metadata only."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from distlog.core.commits.action_table import MOST_ROWS
from distlog.core.commits.segment_table import SegmentInfo
from distlog.core.commits.snapshot import PartitionState, Snapshot
from distlog.core.config import TopicConfig
from distlog.core.integers import MAX_INT, MAX_LONG

# A partition is clean below its first dirty offset, and dirty from there to its first uncleanable offset. The rest
# does not change, as the active segment in Kafka: the commit log's snapshot ends where it begins.


#: Segments that a commit replaces: it takes no more rows for both the old and the new ones.
MOST_SEGMENTS = MOST_ROWS // 2


@dataclass(frozen=True, slots=True)
class Cleanable:
    """The dirty range of one partition, and how many bytes lie before it and in it.

    A segment that `first_dirty_offset` cuts counts in both byte counts, as in Kafka. `overdue` says that a dirty
    record is older than `max.compaction.lag.ms`.
    """

    partition: int
    first_dirty_offset: int
    first_uncleanable_offset: int
    clean_bytes: int
    dirty_bytes: int
    overdue: bool

    @property
    def dirty_ratio(self) -> float:
        """The dirty share of the bytes; 0 if there are no bytes."""
        return self.dirty_bytes / max(self.clean_bytes + self.dirty_bytes, 1)


def plan_compaction(
    snapshot: Snapshot, now_ms: int, last_stable_offsets: Mapping[int, int] | None = None
) -> list[Cleanable]:
    """The partitions to compact at `now_ms`, the dirtiest first; none unless `cleanup.policy` has compact."""
    config = snapshot.config
    if "compact" not in config.cleanup_policy:
        return []
    stable = last_stable_offsets or {}
    ranges = (
        cleanable(number, state, config, now_ms, stable.get(number, state.log_end_offset))
        for number, state in enumerate(snapshot.partitions)
    )
    due = [
        log
        for log in ranges
        if log.dirty_bytes and (log.overdue or log.dirty_ratio > config.min_cleanable_dirty_ratio)
    ]
    return sorted(due, key=lambda log: -log.dirty_ratio)


def cleanable(
    partition: int, state: PartitionState, config: TopicConfig, now_ms: int, last_stable_offset: int
) -> Cleanable:
    """Return the cleanable range of one partition, at any dirty ratio."""
    table = state.segments
    start = first_dirty_offset(state)
    end = max(start, _first_uncleanable_offset(state, start, config, now_ms, last_stable_offset))
    first, stop = table.find(start), int(np.searchsorted(table.base_offsets, end))
    return Cleanable(
        partition=partition,
        first_dirty_offset=start,
        first_uncleanable_offset=end,
        clean_bytes=int(table.log_bytes[: np.searchsorted(table.base_offsets, start)].sum()),
        dirty_bytes=int(table.log_bytes[first:stop].sum()),
        overdue=_oldest_timestamp(state, first) < now_ms - config.max_compaction_lag_ms,
    )


def first_dirty_offset(state: PartitionState) -> int:
    """The offset from which the partition is dirty; the log start if the noted offset lies outside of the log."""
    if state.log_start_offset <= state.first_dirty_offset <= state.log_end_offset:
        return state.first_dirty_offset
    return state.log_start_offset


def _first_uncleanable_offset(
    state: PartitionState, start: int, config: TopicConfig, now_ms: int, last_stable_offset: int
) -> int:
    table = state.segments
    end = min(last_stable_offset, state.log_end_offset)
    if config.min_compaction_lag_ms > 0:
        first = table.find(start)
        # age counts from the largest timestamp, or from the writing of a segment without timestamps
        timestamps = state.segments.max_timestamps
        created = state.segments.array("created_ms")
        young = np.where(timestamps >= 0, timestamps, created)[first:] > now_ms - config.min_compaction_lag_ms
        if young.any():
            end = min(end, int(table.base_offsets[first + young.argmax()]))
    index = table.find(end)
    return min(end, int(table.base_offsets[index])) if index < len(table) else end


def _oldest_timestamp(state: PartitionState, first: int) -> int:
    """The smallest first timestamp above 0 of the segments from `first` on."""
    timestamps = state.segments.array("first_timestamp")[first:]
    positive = timestamps[timestamps > 0]
    return int(positive.min()) if positive.size else MAX_LONG


def group_segments(segments: Iterable[SegmentInfo], config: TopicConfig) -> list[list[SegmentInfo]]:
    """Groups of adjacent `segments`, each to become one segment: Kafka's greedy `groupSegmentsBySize`.

    A group stays within `segment.bytes`, `segment.index.bytes` and a span of 2^31 - 1 offsets. A segment without
    bytes is not held to the span. A segment that exceeds a limit alone is a group by itself.
    """
    groups: list[list[SegmentInfo]] = []
    limits = (config.segment_size, config.segment_index_bytes, config.segment_index_bytes, MAX_INT)
    total: tuple[int, ...] = ()
    for segment in segments:
        sizes = (segment.log_bytes, segment.offset_index_bytes, segment.time_index_bytes)
        if groups:
            span = segment.next_offset - 1 - groups[-1][0].base_offset if segment.log_bytes else 0
            grown = (*map(operator.add, total, sizes), span)
            if all(map(operator.le, grown, limits)):
                groups[-1].append(segment)
                total = grown[:-1]
                continue
        groups.append([segment])
        total = sizes
    return groups
