"""Commits that must seal active segments first: bulk appends, rolls by retention, a drop."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial

from distlog.core import paths
from distlog.core.commits.actions import Action
from distlog.core.commits.commit_json import Commit
from distlog.core.commits.commit_log import CurrentSnapshot, Plan
from distlog.core.commits.commit_race import GroupCommit
from distlog.core.commits.snapshot import PartitionDraft, PartitionState, Snapshot
from distlog.core.errors import CommitConflictError
from distlog.core.log.active_partition import COMMIT_TIMEOUT_S, ActivePartition, SealedSegment
from distlog.core.log.segment_files import FileCalls
from distlog.core.storage.locks_and_pages import TIMEOUT_S, FileLock
from distlog.core.storage.parallel import Task, in_parallel
from distlog.core.topic_handle import TopicHandle


def wait_for_appends(
    handle: TopicHandle, snapshot: Snapshot, partitions: Iterable[int] | None = None, timeout_s: float = TIMEOUT_S
) -> None:
    """Return when each append in place to these partitions has ended, so that later ones know the newest commit."""
    for partition in range(len(snapshot.partitions)) if partitions is None else partitions:
        folder = handle.storage.local_path(paths.partition_dir(handle.name, partition))
        path = os.path.join(folder, paths.LOCK_FILE)
        # the append holds the lock, so its file is there
        if os.path.exists(path):
            with closing(FileLock(path)) as lock, lock.held(timeout_s):
                pass


# Each partition whose active segment must be sealed is locked, in ascending order: so two such commits never
# deadlock. Their pages say CHANGING before the commit. The commit seals the segments together with the caller's own
# actions. If another segment became active concurrently, the commit is given up and started again, with the lock of
# that segment too.

#: Takes a snapshot and returns the partitions that must have no active segment.
Needed = Callable[[Snapshot], Collection[int]]


def every_partition(snapshot: Snapshot) -> Collection[int]:
    return range(len(snapshot.partitions))


def sealed_commit(
    handle: TopicHandle,
    snapshot: Snapshot,
    operation: str,
    plan: Plan,
    needed: Needed,
    *,
    read_version: int | None = None,
    write_id: str | None = None,
    calls: FileCalls = os,
    timeout_s: float = TIMEOUT_S,
    group: GroupCommit | None = None,
) -> tuple[Commit | None, Snapshot]:
    """Like `CommitLog.commit`, and seals the active segments of the `needed` partitions in the same commit.

    `plan` gets snapshots in which they are sealed already; if it has nothing to do, they stay active. `snapshot` is
    the commit log's, without tails.
    """
    while True:
        snapshots = CurrentSnapshot(handle.log, snapshot)
        try:
            with _locked(handle, snapshots, needed, calls, timeout_s) as locked:
                if locked:
                    return _commit(handle, snapshots, locked, operation, plan, needed, read_version, write_id)
            # with no lock held, since this may take longer than others wait for one
            sealing = _Sealing({}, needed, plan)
            return handle.log.commit(
                snapshots.snapshot, operation, sealing, read_version=read_version, write_id=write_id, group=group
            )
        except _FoundActiveError as found:
            snapshot = found.snapshot


class _FoundActiveError(Exception):
    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__()
        self.snapshot = snapshot


@dataclass
class _Sealing:
    """Adds the sealing to the caller's plan. `failed` keeps the error of a plan that failed."""

    sealed: dict[int, SealedSegment]
    needed: Needed
    plan: Plan
    failed: BaseException | None = None

    def __call__(self, snapshot: Snapshot) -> Sequence[Action] | None:
        try:
            if not set(_active(snapshot, self.needed)) <= self.sealed.keys():
                raise _FoundActiveError(snapshot)
            # no look at all partitions: most appends seal none of ten thousand
            table, states = snapshot.table, dict[int, PartitionState]()
            for number, segment in self.sealed.items():
                draft = PartitionDraft(table[number])
                draft.seal(segment.before.stem)
                if segment.info is not None:
                    draft.add(segment.info)
                draft.settle(snapshot.gc_floor)
                states[number] = draft.finish()
            after = replace(snapshot, partitions=table.with_states(states)) if states else snapshot
            actions = self.plan(after)
        except BaseException as error:
            self.failed = error
            raise
        if actions is None:
            return None
        return [*(action for sealed in self.sealed.values() for action in sealed.actions()), *actions]


#: A partition whose lock is held, and the work to seal the files of its active segment.
_Locked = tuple[ActivePartition, Task[SealedSegment]]


@contextmanager
def _locked(
    handle: TopicHandle, snapshots: CurrentSnapshot, needed: Needed, calls: FileCalls, timeout_s: float
) -> Iterator[list[_Locked]]:
    """Lock the partitions that must be sealed, and yield them; if any is locked, the snapshot is refreshed after.

    A second interrupt does not wait for the threads that seal: each lock is held until its thread has ended.
    """
    with ExitStack() as stack:
        locked = []
        for number in _active(snapshots.snapshot, needed):
            partition = ActivePartition(handle, number, snapshots, calls=calls, timeout_s=timeout_s)
            seal, held = Task(partition.begin_seal), partition.held()
            stack.callback(seal.when_over, partition.close)
            # before it is entered: behind that, an interrupt would leave the lock held, and the close wait for it
            stack.callback(seal.when_over, partial(held.__exit__, None, None, None))
            held.__enter__()
            locked.append((partition, seal))
        if locked:
            snapshots.refresh()
        yield [(partition, seal) for partition, seal in locked if partition.recover() is not None]


def _commit(
    handle: TopicHandle,
    snapshots: CurrentSnapshot,
    locked: Sequence[_Locked],
    operation: str,
    plan: Plan,
    needed: Needed,
    read_version: int | None,
    write_id: str | None,
) -> tuple[Commit | None, Snapshot]:
    sealing, partitions = _Sealing({}, needed, plan), [partition for partition, _ in locked]
    try:
        # checked before anything is sealed: the plan would find a partition that is not locked only afterwards
        if set(_active(snapshots.snapshot, needed)) - {partition.partition for partition in partitions}:
            raise _FoundActiveError(snapshots.snapshot)
        # side by side, since each takes several syncs, and others wait for the locks meanwhile
        sealed = in_parallel(Task.wait, [seal for _, seal in locked])
        sealing.sealed.update(zip((partition.partition for partition in partitions), sealed, strict=True))
        commit, after = handle.log.commit(
            snapshots.snapshot,
            operation,
            sealing,
            read_version=read_version,
            write_id=write_id,
            timeout_s=COMMIT_TIMEOUT_S,
        )
    except BaseException as error:
        if error is sealing.failed or isinstance(error, CommitConflictError):
            _take_back(partitions, sealing)
        # else the pages stay at CHANGING, so the next process asks the commit log
        raise
    if commit is None:
        _take_back(partitions, sealing)
    else:
        for partition in partitions:
            partition.end_seal()
    return commit, after


def _take_back(partitions: Sequence[ActivePartition], sealing: _Sealing) -> None:
    for partition in partitions:
        partition.take_back(sealing.sealed[partition.partition].before)


def _active(snapshot: Snapshot, needed: Needed) -> list[int]:
    active = snapshot.active_partitions
    return sorted(set(active).intersection(needed(snapshot))) if active else []
