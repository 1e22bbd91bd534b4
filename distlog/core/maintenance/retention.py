"""Retention: whole segments leave from the old end of a partition. Metadata only, no file is read.

The order and the predicates are those of Kafka's `UnifiedLog.deleteOldSegments`: what lies below the log start
offset, then what is above `retention.bytes`, then what is older than `retention.ms`; each stops at the first segment
that must stay. A topic that is only compacted loses what lies below its log start offset, nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from distlog.core.commits.actions import Action, Remove, SetLogStartOffset
from distlog.core.commits.segment_info import SegmentInfo
from distlog.core.commits.snapshot import PartitionState, Snapshot
from distlog.core.config import TopicConfig
from distlog.core.topic_handle import TopicHandle


@dataclass(frozen=True, slots=True)
class PartitionRetention:
    """What retention removes from one partition, and why; the partition starts at `log_start_offset` afterwards."""

    partition: int
    segments: tuple[SegmentInfo, ...]
    below_log_start: int
    above_size: int
    too_old: int
    log_start_offset: int

    @property
    def log_bytes(self) -> int:
        """Bytes of log files that are deleted."""
        return sum(segment.log_bytes for segment in self.segments)

    @property
    def records(self) -> int:
        """Records that are deleted."""
        return sum(segment.record_count for segment in self.segments)


def plan_retention(snapshot: Snapshot, now_ms: int) -> list[PartitionRetention]:
    """What the topic's config deletes at `now_ms`; partitions that keep everything are left out."""
    plans = (
        _plan_partition(number, state, snapshot.config, now_ms) for number, state in enumerate(snapshot.partitions)
    )
    return [plan for plan in plans if plan.segments]


def _plan_partition(number: int, state: PartitionState, config: TopicConfig, now_ms: int) -> PartitionRetention:
    table = state.segments
    below = _run(table.next_offsets <= state.log_start_offset)
    size = age = below
    if "delete" in config.cleanup_policy:
        size = below + _above_size(table.log_bytes[below:], config.retention_bytes)
        age = size + _too_old(state, size, config.retention_ms, now_ms)
    start = state.log_end_offset if age == len(table) else int(table.base_offsets[age])
    return PartitionRetention(
        partition=number,
        segments=tuple(table[:age]),
        below_log_start=below,
        above_size=size - below,
        too_old=age - size,
        log_start_offset=max(start, state.log_start_offset),
    )


def _run(holds: npt.NDArray[np.bool_]) -> int:
    """How many hold before the first that does not."""
    return int(len(holds) if holds.all() else holds.argmin())


def _above_size(log_bytes: npt.NDArray[np.int64], retention_bytes: int) -> int:
    """Segments that can go without the partition falling below `retention.bytes`."""
    if retention_bytes < 0:
        return 0
    return _run(np.cumsum(log_bytes) <= log_bytes.sum() - retention_bytes)


def _too_old(state: PartitionState, first: int, retention_ms: int, now_ms: int) -> int:
    if retention_ms < 0:
        return 0
    return _run(_times(state, now_ms)[first:] < now_ms - retention_ms)


def _times(state: PartitionState, now_ms: int) -> npt.NDArray[np.int64]:
    """The time that each segment's age is counted from.

    Where records have none, or one in the future, that would keep everything behind it for ever, it is the time at
    which the segment was written, which is never after that of its commit.
    """
    newest = state.segments.max_timestamps
    written = state.segments.columns()["created_ms"].to_numpy()
    return np.where((newest >= 0) & (newest <= now_ms), newest, written)


def retention(
    handle: TopicHandle, snapshot: Snapshot, *, dry_run: bool = False
) -> tuple[list[PartitionRetention], Snapshot]:
    """Delete the segments that the topic's config says, in one commit; which they were, and the new state.

    With `dry_run` nothing is committed. Files stay until vacuum. Where the clock is far ahead of the storage's, the
    storage's counts. Raises CommitConflictError when the topic was dropped, CommitStateUnknownError.
    """
    snapshot = handle.log.refresh(snapshot)
    if dry_run:
        return plan_retention(snapshot, handle.trusted_ms()), snapshot
    deleted: list[PartitionRetention] = []

    def plan(current: Snapshot) -> list[Action] | None:
        deleted[:] = plan_retention(current, handle.trusted_ms())
        return [action for partition in deleted for action in _actions(partition)] or None

    _, after = handle.log.commit(snapshot, "retention", plan)
    return deleted, after


def _actions(plan: PartitionRetention) -> Iterator[Action]:
    for segment in plan.segments:
        yield Remove(plan.partition, segment.stem)
    yield SetLogStartOffset(plan.partition, plan.log_start_offset)
