"""Retention and delete-records: whole segments go from the old end of a partition. They change metadata only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from distlog.core.commits.actions import Action, Remove, SetLogStartOffset
from distlog.core.commits.segment_info import SegmentInfo
from distlog.core.commits.snapshot import PartitionState, Snapshot
from distlog.core.config import TopicConfig
from distlog.core.errors import InvalidConfigError, OffsetOutOfRangeError, TopicNotFoundError
from distlog.core.integers import whole_number
from distlog.core.log.live_snapshot import with_tails
from distlog.core.log.producers import KeptProducers
from distlog.core.log.sealed_commit import sealed_commit
from distlog.core.times import NO_TIMESTAMP
from distlog.core.topic_handle import TopicHandle

# ---
# Retention: removes whole segments from the old end of a partition. It changes metadata only.
#
# It reads no log, unless batches of producers are in a segment that goes, and where that ends it is not yet stored
# what they did.
#
# The order and the rules are those of Kafka's `UnifiedLog.deleteOldSegments`: first the segments below the log
# start offset, then those above `retention.bytes`, then those older than `retention.ms`. Each rule stops at the
# first segment that must stay. A topic that is only compacted loses only the segments below its log start offset.
#
# As in Kafka, an active segment counts, and goes if all its records are to go. It is sealed first, by a commit of
# its own, since a commit cannot remove what it adds.


@dataclass(frozen=True, slots=True)
class PartitionRetention:
    """The segments that retention removes from one partition, how many by each rule, and its new log start offset.

    `newest_ms` is the latest time of those that are too old; -1 without any.
    """

    partition: int
    segments: tuple[SegmentInfo, ...]
    below_log_start: int
    above_size: int
    too_old: int
    log_start_offset: int
    newest_ms: int

    @property
    def log_bytes(self) -> int:
        """Bytes of the log files to delete."""
        return sum(segment.log_bytes for segment in self.segments)

    @property
    def records(self) -> int:
        """The number of records to delete."""
        return sum(segment.record_count for segment in self.segments)


def plan_retention(snapshot: Snapshot, now_ms: int, *, keep_tails: bool = False) -> list[PartitionRetention]:
    """The segments to delete at `now_ms` by the topic's config; partitions that keep everything are left out.

    `snapshot` has the tails of the active segments; they stay with `keep_tails`, but count all the same.
    """
    plans = (
        _plan_partition(number, state, snapshot.config, now_ms, keep_tails)
        for number, state in enumerate(snapshot.partitions)
    )
    return [plan for plan in plans if plan.segments]


def _plan_partition(
    number: int, state: PartitionState, config: TopicConfig, now_ms: int, keep_tails: bool
) -> PartitionRetention:
    table = state.segments
    kept = int(keep_tails and len(table) > 0 and table[-1].is_active)
    below = _run(table.next_offsets <= state.log_start_offset)
    size = age = below
    if "delete" in config.cleanup_policy:
        size = below + _above_size(table.log_bytes[below:], config.retention_bytes)
        age = size + _too_old(state, size, config.retention_ms, now_ms)
    below, size, age = (min(count, len(table) - kept) for count in (below, size, age))
    start = state.log_end_offset if age == len(table) else int(table.base_offsets[age])
    return PartitionRetention(
        partition=number,
        segments=tuple(table[:age]),
        below_log_start=below,
        above_size=size - below,
        too_old=age - size,
        log_start_offset=max(start, state.log_start_offset),
        newest_ms=max(_times(state, now_ms)[size:age].tolist(), default=NO_TIMESTAMP),
    )


def _run(holds: npt.NDArray[np.bool_]) -> int:
    """The number of true values before the first false one."""
    return int(len(holds) if holds.all() else holds.argmin())


def _above_size(log_bytes: npt.NDArray[np.int64], retention_bytes: int) -> int:
    """The number of segments that can be removed before the partition falls below `retention.bytes`."""
    if retention_bytes < 0:
        return 0
    return _run(np.cumsum(log_bytes) <= log_bytes.sum() - retention_bytes)


def _too_old(state: PartitionState, first: int, retention_ms: int, now_ms: int) -> int:
    if retention_ms < 0:
        return 0
    return _run(_times(state, now_ms)[first:] < now_ms - retention_ms)


def _times(state: PartitionState, now_ms: int) -> npt.NDArray[np.int64]:
    """The time from which each segment's age is counted: its largest timestamp.

    If its records have no timestamp, or one in the future, it is the time at which the segment was written, which is
    never after the time of its commit. A timestamp in the future would keep every segment behind it for ever.
    """
    newest = state.segments.max_timestamps
    written = state.segments.array("created_ms")
    return np.where((newest >= 0) & (newest <= now_ms), newest, written)


def retention(
    handle: TopicHandle, snapshot: Snapshot, *, dry_run: bool = False
) -> tuple[list[PartitionRetention], Snapshot]:
    """Delete the segments that the topic's config no longer keeps, in one commit; returns them and the new state.

    With `dry_run` nothing is committed. Files stay until vacuum. If this process's clock is far ahead of the
    storage's, the storage's clock counts. Raises CommitConflictError when the topic was dropped, StorageError if the
    lock of an expired active segment is not free in time, and CommitStateUnknownError.
    """
    snapshot, now_ms = handle.log.refresh(snapshot), handle.trusted_ms()
    if dry_run:
        return plan_retention(with_tails(handle, snapshot), now_ms), snapshot
    snapshot = _seal_expired(handle, snapshot, now_ms)
    deletion = _Deletion(handle, now_ms)
    while True:
        _, snapshot = handle.log.commit(snapshot, "retention", deletion)
        if deletion.is_ready:
            return deletion.partitions, snapshot
        deletion.keep_producers()


class _Deletion:
    """The plan of a commit that deletes segments: only those behind which the producers are stored.

    If it finds others, since another writer was first, nothing is committed before `keep_producers` was called again.
    """

    def __init__(self, handle: TopicHandle, now_ms: int) -> None:
        self._handle, self._now_ms, self._producers = handle, now_ms, KeptProducers(handle)

    def __call__(self, current: Snapshot) -> list[Action] | None:
        """Plan the deletion from `current`."""
        self.snapshot = current
        self.partitions = plan_retention(with_tails(self._handle, current), self._now_ms, keep_tails=True)
        return [action for one in self.partitions for action in _actions(one)] or None if self.is_ready else None

    @property
    def is_ready(self) -> bool:
        """True if all of what was planned may go."""
        return self._producers.has(self.snapshot, self._counts)

    def keep_producers(self) -> None:
        """Store what of producers is still missing."""
        self._producers.keep(self.snapshot, self._counts)

    @property
    def _counts(self) -> dict[int, int]:
        return {one.partition: len(one.segments) for one in self.partitions}


def _seal_expired(handle: TopicHandle, snapshot: Snapshot, now_ms: int) -> Snapshot:
    """Seal the active segments that are to go, in one commit; does nothing if there are none."""

    def expired(current: Snapshot) -> list[int]:
        plans = plan_retention(with_tails(handle, current), now_ms)
        return [plan.partition for plan in plans if plan.segments[-1].is_active]

    if not expired(snapshot):
        return snapshot

    def plan(current: Snapshot) -> list[Action] | None:
        # an append may have made a segment younger before it was locked
        return [] if plan_retention(with_tails(handle, current), now_ms, keep_tails=True) else None

    return sealed_commit(handle, snapshot, "seal", plan, expired)[1]


def _actions(plan: PartitionRetention) -> Iterator[Action]:
    for segment in plan.segments:
        yield Remove(plan.partition, segment.stem)
    yield SetLogStartOffset(plan.partition, plan.log_start_offset)


# ---
# delete-records: raise the log start offset, as Kafka's DeleteRecords does; retention removes the segments later.


#: Instead of an offset: delete everything that is there now (Kafka's high watermark).
LOG_END = -1


def delete_records(
    handle: TopicHandle, snapshot: Snapshot, before: Mapping[int, int]
) -> tuple[dict[int, int], Snapshot]:
    """Delete the records below `before[partition]`; returns the new log start offsets and the new state.

    An offset within an active segment seals it in the same commit. An offset below the log start changes nothing.
    Raises OffsetOutOfRangeError for an offset above the log end, TopicNotFoundError for a partition that does not
    exist, InvalidConfigError when `cleanup.policy` is compact alone (Kafka's PolicyViolationException), and
    StorageError if the lock of an active segment is not free in time.
    """
    snapshot = handle.log.refresh(snapshot)
    wanted = _resolved(with_tails(handle, snapshot), before)

    def needed(current: Snapshot) -> list[int]:
        return [number for number, start in wanted.items() if start > current.partitions[number].log_end_offset]

    def plan(current: Snapshot) -> list[Action] | None:
        starts = _resolved(current, wanted)
        raised = {n: start for n, start in starts.items() if start > current.partitions[n].log_start_offset}
        return [SetLogStartOffset(number, start) for number, start in sorted(raised.items())] or None

    _, after = sealed_commit(handle, snapshot, "delete-records", plan, needed)
    return {number: after.partitions[number].log_start_offset for number in sorted(before)}, after


def _resolved(snapshot: Snapshot, before: Mapping[int, int]) -> dict[int, int]:
    """`before`, checked, with the log end in the place of LOG_END."""
    if "delete" not in snapshot.config.cleanup_policy:
        raise InvalidConfigError("records can be deleted only where cleanup.policy contains delete")
    return {number: _resolve(snapshot, number, offset) for number, offset in before.items()}


def _resolve(snapshot: Snapshot, partition: int, offset: int) -> int:
    if not 0 <= whole_number("partition", partition) < len(snapshot.partitions):
        raise TopicNotFoundError(f"the topic has partitions 0 to {len(snapshot.partitions) - 1}", partition=partition)
    state = snapshot.partitions[partition]
    if whole_number("offset", offset) == LOG_END:
        return state.log_end_offset
    if not 0 <= offset <= state.log_end_offset:
        raise OffsetOutOfRangeError(
            "records can be deleted up to the log end offset, or -1 for all of them",
            partition=partition,
            offset=offset,
            log_start_offset=state.log_start_offset,
            log_end_offset=state.log_end_offset,
        )
    return offset
