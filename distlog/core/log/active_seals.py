"""Seals active segments within a commit: of bulk appends, retention, a drop."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from types import TracebackType

from distlog.core import paths
from distlog.core.commits.actions import Action
from distlog.core.commits.commit_log import CurrentSnapshot
from distlog.core.commits.commit_race import CommitRace
from distlog.core.commits.snapshot import PartitionDraft, PartitionState, Snapshot
from distlog.core.log.active_partition import COMMIT_TIMEOUT_S, ActivePartition, SealedSegment
from distlog.core.log.segment_files import FileCalls
from distlog.core.segments.topic_handle import TopicHandle
from distlog.core.storage.locks_and_pages import TIMEOUT_S, FileLock
from distlog.core.storage.parallel import Task, in_parallel


class ActiveSeals:
    """Seals the active segments of partitions in the commit of a race.

        with CommitRace(...) as race, ActiveSeals(handle, race) as seals:
            for head in race:
                sealed = seals.seal(head, partitions)
                if sealed is not None:
                    race.put([*seals.actions, ...])

    Partitions are locked in ascending order, so that two commits never deadlock. The page of each says CHANGING until
    the commit. If another segment became active concurrently, all locks are released, and taken again with its
    partition. If nothing is committed, the segments stay active. `timeout_s` is for each lock.
    """

    def __init__(
        self, handle: TopicHandle, race: CommitRace, *, calls: FileCalls = os, timeout_s: float = TIMEOUT_S
    ) -> None:
        self._handle, self._race, self._calls, self._timeout_s = handle, race, calls, timeout_s
        self._locks = ExitStack()
        self._locked: dict[int, tuple[ActivePartition, Task[SealedSegment]]] = {}
        self._sealed: dict[int, SealedSegment] = {}

    @property
    def actions(self) -> list[Action]:
        """The actions that seal the segments."""
        return [action for sealed in self._sealed.values() for action in sealed.actions()]

    def seal(self, head: Snapshot, partitions: Collection[int]) -> Snapshot | None:
        """Return `head` without active segments in these partitions; None if the next head must be tried.

        `head` is the commit log's, without tails. Raises StorageError if a lock isn't free in time.
        """
        active = head.active_partitions
        active = sorted(set(active).intersection(partitions)) if active else []
        if not self._locked.keys() >= set(active):
            self._release()
            # no lock is held during the race, unless there is something to seal
            self._race.after = self._lock(active)
            return None
        if self._locked and not self._sealed:
            # in parallel, since each takes several syncs, and others wait for the locks
            sealed = in_parallel(Task.wait, [seal for _, seal in self._locked.values()])
            self._sealed = dict(zip(self._locked, sealed, strict=True))
            self._race.try_for(COMMIT_TIMEOUT_S)
        return self._without_active(head)

    def _lock(self, partitions: Iterable[int]) -> Snapshot:
        """Lock the partitions; returns the newest snapshot after that.

        A second interrupt does not wait for the threads that seal: each lock is held until its thread has ended.
        """
        snapshots, locked = CurrentSnapshot(self._handle.log, self._race.after), []
        for number in partitions:
            partition = ActivePartition(self._handle, number, snapshots, calls=self._calls, timeout_s=self._timeout_s)
            seal, held = Task(partition.begin_seal), partition.held()
            self._locks.callback(seal.when_over, partition.close)
            # registered before it is entered: an interrupt in between would leave the lock held
            self._locks.callback(seal.when_over, partial(held.__exit__, None, None, None))
            held.__enter__()
            locked.append((number, partition, seal))
        snapshots.refresh()
        self._locked = {n: (partition, seal) for n, partition, seal in locked if partition.recover() is not None}
        if not self._locked:
            self._locks.close()
        return snapshots.snapshot

    def _without_active(self, head: Snapshot) -> Snapshot:
        # not a copy of all partitions: most appends seal none of ten thousand
        states = dict[int, PartitionState]()
        for number, segment in self._sealed.items():
            draft = PartitionDraft(head.table[number])
            draft.seal(segment.state_before.stem)
            if segment.info is not None:
                draft.add(segment.info)
            draft.end_commit(head.gc_floor)
            states[number] = draft.finish()
        return replace(head, partitions=head.table.with_states(states)) if states else head

    def _release(self) -> None:
        """Keep the segments active, and release the locks."""
        for number, sealed in self._sealed.items():
            self._locked[number][0].reactivate(sealed.state_before)
        self._locked, self._sealed = {}, {}
        self._locks.close()

    def __enter__(self) -> ActiveSeals:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._locks:
            if self._race.commit is not None:
                for number in self._sealed:
                    self._locked[number][0].end_seal()
            elif not self._race.is_in_doubt:
                self._release()
            # else the pages stay at CHANGING, so the next process asks the commit log


def seal_all(handle: TopicHandle, snapshot: Snapshot, operation: str, actions: Sequence[Action] = ()) -> Snapshot:
    """Commit `actions`, and seal the active segments of all partitions; returns the new state."""
    with CommitRace(handle.log, snapshot, operation) as race, ActiveSeals(handle, race) as seals:
        for head in race:
            if seals.seal(head, range(len(head.partitions))) is not None:
                race.put([*seals.actions, *actions])
    return race.after


def wait_for_appends(
    handle: TopicHandle, snapshot: Snapshot, partitions: Iterable[int] | None = None, timeout_s: float = TIMEOUT_S
) -> None:
    """Return when each direct append to these partitions has ended, so that later ones know the newest commit."""
    for partition in range(len(snapshot.partitions)) if partitions is None else partitions:
        folder = handle.storage.local_path(paths.partition_dir(handle.name, partition))
        path = os.path.join(folder, paths.LOCK_FILE)
        # the append holds the lock, so its file exists
        if os.path.exists(path):
            with closing(FileLock(path)) as lock, lock.held(timeout_s):
                pass
