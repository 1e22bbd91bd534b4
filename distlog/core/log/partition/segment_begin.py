"""Begins active segments by a commit: those of many partitions by one, and one behind a segment that is full."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from distlog.core.commits.format.actions import Action, Active
from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.errors import CommitConflictError, TransactionTooOldError
from distlog.core.log.partition.active_partition import COMMIT_TIMEOUT_S, ActivePartition
from distlog.core.log.partition.sealed_segment import SealedSegment
from distlog.core.log.segment.log_segment import LogSegment
from distlog.core.storage.parallel import in_parallel
from distlog.core.storage.retry import Deadline


def open_segments(partitions: Sequence[ActivePartition]) -> None:
    """Open the active segments of partitions of one topic; those that have none begin theirs in one commit.

    Takes their locks, in ascending order. Raises the errors of `begin_segments`, and StorageError if a lock is not
    free in time.
    """
    with ExitStack() as stack:
        missing = []
        for partition in sorted(partitions, key=lambda each: each.partition):
            stack.enter_context(partition.held())
            if partition.recover() is None:
                missing.append(partition)
        if missing:
            begin_segments(missing)


def roll(partition: ActivePartition) -> LogSegment:
    """Seal the active segment and begin the next one, in one commit. Needs the lock."""
    sealed = partition.begin_seal()
    try:
        return begin_segments([partition], "roll", sealed)[0]
    except CommitConflictError:
        partition.take_back(sealed.before)
        raise


def begin_segments(
    partitions: Sequence[ActivePartition], operation: str = "active", sealed: SealedSegment | None = None
) -> list[LogSegment]:
    """Begin a segment of each partition by one commit, which also seals `sealed`. Needs their locks.

    Raises TopicNotFoundError after a drop, and the errors of CommitLog and LogSegment.
    """
    deadline, snapshots = Deadline(COMMIT_TIMEOUT_S), partitions[0].snapshots
    while True:
        snapshot = snapshots.refresh()
        try:
            return _begin(partitions, snapshot, operation, sealed)
        except TransactionTooOldError:
            # vacuum may have deleted the new files: others are made
            if not deadline.pause():
                raise
        except CommitConflictError:
            snapshots.refresh()
            raise


def _begin(
    partitions: Sequence[ActivePartition], snapshot: Snapshot, operation: str, sealed: SealedSegment | None
) -> list[LogSegment]:
    handle, snapshots = partitions[0].handle, partitions[0].snapshots
    stems, created_ms = [handle.new_stem(snapshot.version) for _ in partitions], handle.clock()
    pairs = list(zip(partitions, stems, strict=True))
    in_parallel(lambda each: each[0].create(each[1]), pairs)

    def plan(current: Snapshot) -> Sequence[Action]:
        actions: list[Action] = sealed.actions() if sealed else []
        for partition, stem in pairs:
            end = current.partitions[partition.partition].log_end_offset
            base_offset = sealed.info.next_offset if sealed and sealed.info else end
            actions.append(Active(partition.partition, stem, base_offset))
        return actions

    _, after = handle.log.commit(snapshot, operation, plan, read_version=snapshot.version, timeout_s=COMMIT_TIMEOUT_S)
    snapshots.advance(after)
    return [partition.begin(created_ms) for partition in partitions]
