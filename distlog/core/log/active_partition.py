"""Finds, opens and seals the active segments of partitions, under the partitions' locks."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter_ns
from types import TracebackType
from typing import NamedTuple

from distlog.core import paths
from distlog.core.commits.actions import Action, Active, Add, Seal
from distlog.core.commits.commit_log import CommitRace, CurrentSnapshot
from distlog.core.commits.segment_table import SegmentInfo
from distlog.core.commits.snapshot import PartitionDraft, PartitionState, Snapshot
from distlog.core.errors import CommitConflictError, StorageError, StorageFullError, TransactionTooOldError
from distlog.core.log.log_segment import LogSegment, closed_on_error
from distlog.core.log.partition_lock import (
    NO_POINT,
    FlushOutcome,
    PageStatus,
    PartitionCounters,
    PartitionLock,
    StateRecord,
    mark_doubted,
    recovery_point,
    stored_mark,
    was_not_synced,
)
from distlog.core.log.producers import transactions_before
from distlog.core.log.segment_files import DamagedLogError, DurableEnd, FileCalls
from distlog.core.segments.producer_states import OpenTransactions
from distlog.core.segments.segment_reader import TopicHandle
from distlog.core.segments.segment_state import SegmentState
from distlog.core.segments.segment_writer import with_key_index
from distlog.core.storage.backend import Deadline
from distlog.core.storage.locks_and_pages import TIMEOUT_S, FileLock, LockGuard
from distlog.core.storage.parallel import Task, in_parallel


class ActivePartition:
    """A partition, its lock and its active segment, in one process.

    All methods but `held`, `create` and `close` need the lock. If a method fails, or its process dies, the next
    `active_segment`, in any process, repairs the state.
    """

    def __init__(
        self,
        handle: TopicHandle,
        partition: int,
        snapshots: CurrentSnapshot,
        *,
        calls: FileCalls = os,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.handle, self.partition, self.snapshots, self.calls = handle, partition, snapshots, calls
        self.folder = active_folder(handle, partition)
        self._topic_id = snapshots.snapshot.topic_id
        self.lock = PartitionLock(self.folder, self._topic_id, timeout_s)
        self._segment: LogSegment | None = None
        self._page_value: bytes | None = None

    def held(self, timeout_s: float | None = None) -> LockGuard:
        return self.lock.held(timeout_s)

    def active_segment(self) -> LogSegment | None:
        """The active segment or None, recovered if another process crashed, and opened again if it was changed."""
        value = self.lock.page.read()
        segment = self._known_segment(value)
        if segment is None:
            try:
                self._adopt_state(value)
            except DamagedLogError:
                # the next use reads the file again
                self._release()
                raise
        elif segment.config is not self.snapshots.snapshot.config:
            reopened = self._segment_of(segment.state)
            with closed_on_error(reopened):
                # before the other closes: the kernel may forget the error of a log that no process has open
                reopened.open()
            self._use(reopened)
        return self._segment

    def ready_segment(self) -> LogSegment | None:
        """The active segment, if it is ready as this process left it; None if `active_segment` has work."""
        segment = self._known_segment(self.lock.page.read())
        return segment if segment and segment.config is self.snapshots.snapshot.config else None

    def _known_segment(self, value: bytes | None) -> LogSegment | None:
        segment = self._segment
        if segment is None or value is None or value != self._page_value or segment.unknown_bytes():
            return None
        return segment

    def create(self, stem: str) -> None:
        """Create the files of the segment `stem`, which a commit will make active; needs no lock."""
        config, clock = self.snapshots.snapshot.config, self.handle.clock
        LogSegment.create(self.folder, stem, 0, config, clock=clock, calls=self.calls).close()

    def begin(self, created_ms: int) -> LogSegment:
        """Open the segment that a commit made active; its files were created at `created_ms`."""
        state = self.snapshots.snapshot.partitions[self.partition]
        assert state.active is not None
        begin = SegmentState.new(state.active.stem, state.active.base_offset, created_ms, state.first_unstable_offset)
        self.lock.recovery_point = NO_POINT
        return self._use(self._segment_of(begin))

    def begin_seal(self, status: PageStatus = PageStatus.CHANGING) -> SealedSegment:
        """Finish the active segment's files; the caller then commits, and calls `end_seal` or `reactivate`."""
        segment = self._segment
        assert segment is not None
        state_before = segment.state
        # until the seal ends, every process reads the commit log
        self.lock.publish(status, state_before)
        self._segment = self._page_value = None
        began_ns = perf_counter_ns()
        try:
            state = self._sealed(segment, status)
        except StorageError:
            if segment.sync_failed:
                self.lock.publish(PageStatus.FAILED, state_before)
            raise
        finally:
            segment.close()
        self.lock.page.add(*PartitionCounters(flushes=1, flush_ns=perf_counter_ns() - began_ns))
        if not state.batches:
            return SealedSegment(self.partition, state_before, None)
        # records without timestamps age from the last append, which may be long before the seal
        info = replace(state.segment_info(self.partition), created_ms=state_before.latest_write_ms(state.flushed_ms))
        if self.snapshots.snapshot.config.key_index_enable:
            info = with_key_index(self.handle, info)
        return SealedSegment(self.partition, state_before, info)

    def end_seal(self) -> None:
        self._release()
        self.lock.recovery_point = NO_POINT
        self.lock.publish(PageStatus.NONE, None)

    def reactivate(self, state_before: SegmentState) -> None:
        """Make the segment active again as before its seal, which will not be committed."""
        segment = self._segment_of(state_before)
        with closed_on_error(segment):
            self._rebuild_damaged_indexes(segment)
            segment.drop_uncounted()
        self._use(segment)
        # its log was closed, so the next use checks whether the kernel dropped unwritten pages
        self._release()

    def seal(self) -> None:
        """Seal the active segment, unless it is empty; on StorageFullError it stays active."""
        segment = self.active_segment()
        if segment is not None and segment.size:
            state_before = segment.state
            try:
                self._commit_seal(self.begin_seal())
            except StorageFullError:
                if not segment.sync_failed:
                    self.reactivate(state_before)
                raise

    def give_up(self) -> None:
        """Cut the active segment to its durable end and seal it, since lost offsets must not be reused."""
        assert self._segment is not None
        self._seal_flushed(self._segment.state)

    def write_again(self, stem: str, sync: FlushOutcome) -> None:
        """Repeat a sync of this segment whose outcome is unknown; if its records are lost, `give_up`."""
        segment = self.active_segment()
        if segment is not None and segment.stem == stem:
            is_whole = self._write_again(segment, sync)
            self.publish_state() if is_whole else self.give_up()

    def publish_state(self) -> None:
        assert self._segment is not None
        self._page_value = self.lock.publish_active(self._segment.packed_state())

    def note_flushed(self, state: SegmentState, since_ms: int, *, with_indexes: bool) -> bool:
        """Note a sync of `state` that started at `since_ms`, and included the indexes or not; False once sealed."""
        segment = self.active_segment()
        if segment is None or segment.stem != state.stem:
            return False
        segment.note_flushed(state.next_offset, state.position, since_ms)
        if with_indexes:
            self.lock.recovery_point = state.flushed(since_ms).pack()
        self.publish_state()
        return True

    def repair(self, *, dry_run: bool) -> TruncatedTail | None:
        """Cut the active segment where damage begins, and seal it; returns the lost tail."""
        try:
            self.active_segment()
            return None
        except DamagedLogError as error:
            reason = error
        self._release()
        active = self.snapshots.refresh().partitions[self.partition].active
        if active is None:
            raise reason
        begin = SegmentState.new(active.stem, active.base_offset, self.handle.clock())
        with closing(self._segment_of(begin)) as segment:
            state = segment.scan_tail(self._transactions_before())
        with closing(self._segment_of(state)) as segment:
            trailing, last_sound_offset = segment.trailing(), segment.last_sound_offset()
        size = trailing.end - trailing.position
        end = max(last_sound_offset, reason.details.get("end_offset") or 0)
        truncated = TruncatedTail(self.partition, segment.file, state.position, size, state.next_offset, end, reason)
        if not dry_run:
            _log.warning("%s", truncated)
            self._seal_flushed(state.flushed(self.handle.clock()))
        return truncated

    def forget_segment(self) -> None:
        """Forget the segment, whose files' content is unknown after an error: the next use recovers it."""
        if self._segment is not None and self._segment.is_torn:
            self.lock.publish(PageStatus.TORN, self._segment.state)
        self._release()

    def close(self) -> None:
        """Close the files without a flush; waits for threads that hold the lock."""
        with self.lock.excluding_threads():
            self._release()
        self.lock.close()

    @property
    def _active(self) -> Active | None:
        return self.snapshots.snapshot.partitions[self.partition].active

    def _adopt_state(self, value: bytes | None) -> None:
        """Continue from the page's state, or from the commit log if that is not enough."""
        record = StateRecord.unpack(value)
        state = record.state_of(self._topic_id, self._active) if record else None
        if record is None or state is None or record.status != PageStatus.ACTIVE:
            self.snapshots.refresh()
            # the process that committed it may have died before the commit was durable
            self.handle.storage.sync(paths.COMMITS_DIR)
            state = record.state_of(self._topic_id, self._active) if record else None
        # direct appends make no commit, which would check it
        self.snapshots.snapshot.requires.check_writable()
        if self._active is None:
            self.end_seal()
        elif record is None or state is None:
            segment = self._recovered(self._active, value)
            self.lock.recovery_point = segment.packed_state()  # the whole segment was synced
            self._use(segment)
        else:
            self.lock.recovery_point = record.recovery_point
            resumed = self._resumed(state, record.status)
            if resumed is None:
                self._seal_flushed(state)
                return
            if self.lock.recovery_position > resumed.size:
                self.lock.recovery_point = NO_POINT
            self._use(resumed)

    def _resumed(self, state: SegmentState, status: PageStatus) -> LogSegment | None:
        """The segment of `state`, open already if possible; None if a sync may have failed, and records are lost."""
        if status == PageStatus.FAILED:
            return None
        segment = self._segment
        is_known = segment is not None and segment.stem == state.stem and status == PageStatus.ACTIVE
        if segment is not None and is_known:
            segment.resume(state)
        else:
            segment = self._segment_of(state)
        with closed_on_error(segment):
            try:
                self._repair(segment, status, is_known=is_known)
            except DamagedLogError:
                # a device may lose unsynced records; without a failed sync, something else cut a short log
                is_cut = segment.unknown_bytes() < 0 and not was_not_synced(self.folder, segment.stem)
                if is_cut or not segment.has_lost_its_end():
                    raise
                segment.close()
                return None
            # the process that was sealing it may have died after a failed sync
            if status == PageStatus.CHANGING:
                is_whole = self._write_again(segment, FlushOutcome.STARTED)
            else:
                is_whole = self._is_trusted(segment) or self._write_again(segment, FlushOutcome.DOUBTED)
            if not is_whole:
                segment.close()
                return None
        return segment

    def _repair(self, segment: LogSegment, status: PageStatus, *, is_known: bool) -> None:
        """Make the files match the state, with any batches that another process wrote before it died."""
        unknown = segment.unknown_bytes()
        # what a page of this boot counts was written, and no crash loses it
        is_other = not is_known and (unknown > 0 or segment.is_preallocated) and not segment.has_its_end()
        if unknown < 0 or is_other:
            # raises, unless it is another file with the same batches
            segment.recover(self._transactions_before(), DurableEnd(segment.next_offset, segment.size))
            segment.flush()
            return
        # the indexes of a healthy segment are not opened: a seal checks them
        if unknown > 0 or status != PageStatus.ACTIVE or not (is_known or segment.seems_to_have_entries()):
            self._rebuild_damaged_indexes(segment)
        if status == PageStatus.TORN:
            segment.drop_uncounted()
        elif unknown > 0 or status != PageStatus.ACTIVE:
            segment.recover_tail(self._transactions_before())

    def _rebuild_damaged_indexes(self, segment: LogSegment) -> None:
        """Rebuild indexes that were deleted, cut or changed; a log that is also damaged does not change."""
        if not segment.has_its_bytes():
            segment.make_indexes(self._transactions_before())

    def _is_trusted(self, segment: LogSegment) -> bool:
        """True if the next sync will report lost records."""
        # The kernel forgets failed writes, and the pages, if their writer was killed and no process had it open.
        # So a process that opens the file makes the next sync read them first.
        if segment.is_open or not segment.unflushed.size:
            return True
        segment.open()
        return mark_doubted(self.folder, segment.stem)

    def _recovered(self, active: Active, value: bytes | None) -> LogSegment:
        """The `active` segment with an unknown end, walked from the recovery point in `value`, and synced."""
        point, durable = recovery_point(value, self._topic_id, active)
        segment = self._segment_of(point or SegmentState.new(active.stem, active.base_offset, self.handle.clock()))
        with closed_on_error(segment):
            check_exists(segment.file, active)
            if point is None or not segment.has_its_bytes():
                segment.recover(self._transactions_before(), durable)
            elif segment.unknown_bytes() or segment.size < durable.position or segment.trailing().end > segment.size:
                segment.recover_tail(self._transactions_before(), durable)
            else:
                segment.drop_uncounted()
            # the page does not record a failed sync, so everything is written again
            if stored_mark(self.folder, segment.stem) in (FlushOutcome.STARTED, FlushOutcome.FAILED):
                self._write_again(segment, FlushOutcome.STARTED)
            # the durable part of the log is unknown
            segment.flush()
        return segment

    def _sealed(self, segment: LogSegment, status: PageStatus) -> SegmentState:
        """Seal the segment's files; with FAILED they hold only durable records."""
        if status != PageStatus.FAILED:
            # first, so that the kernel reports later write errors to this process too
            segment.open()
            sync = stored_mark(self.folder, segment.stem)
            if sync == FlushOutcome.FAILED or (sync != FlushOutcome.ENDED and not self._write_again(segment, sync)):
                raise segment.sync_error()
            self._rebuild_damaged_indexes(segment)
        return segment.seal()

    def _segment_of(self, state: SegmentState) -> LogSegment:
        config, clock = self.snapshots.snapshot.config, self.handle.clock
        return LogSegment(self.folder, state, config, clock=clock, calls=self.calls)

    def _write_again(self, segment: LogSegment, sync: FlushOutcome) -> bool:
        return segment.write_again(self._transactions_before(), only_read=sync == FlushOutcome.DOUBTED)

    def _transactions_before(self) -> OpenTransactions:
        return transactions_before(self.handle, self.snapshots.refresh().partitions[self.partition])

    def _seal_flushed(self, state: SegmentState) -> None:
        self.lock.publish(PageStatus.FAILED, state)
        self._release()
        segment = self._segment = self._segment_of(state)
        segment.drop_unflushed(self._transactions_before())
        self._commit_seal(self.begin_seal(PageStatus.FAILED))

    def _commit_seal(self, sealed: SealedSegment) -> None:
        log, snapshot = self.handle.log, self.snapshots.refresh()
        with CommitRace(log, snapshot, "seal", timeout_s=COMMIT_TIMEOUT_S) as race:
            for _ in race:
                race.put(sealed.actions())
        self.snapshots.advance(race.after)
        self.end_seal()

    def _use(self, segment: LogSegment) -> LogSegment:
        if segment is not self._segment:
            self._release()
        self._segment = segment
        self.publish_state()
        return segment

    def _release(self) -> None:
        segment, self._segment, self._page_value = self._segment, None, None
        if segment is not None:
            segment.close()


class SealedSegment(NamedTuple):
    """A segment whose seal lacks its commit: its former state, and the segment to add, or None if it is empty."""

    partition: int
    state_before: SegmentState
    info: SegmentInfo | None

    def actions(self) -> list[Action]:
        seal = Seal(self.partition, self.state_before.stem)
        return [seal] if self.info is None else [seal, Add(self.info)]


def check_exists(path: str, active: Active) -> None:
    """Raise DamagedLogError if the `active` segment has no log: it was durable before the commit that names it."""
    if not os.path.exists(path):
        text = "the log file of the active segment is missing: restore it, or run `distlog repair`"
        raise DamagedLogError(text, file=path, position=0, offset=active.base_offset)


# The commit log lists the segments. The page in the lock's file has the end of the active one, and is written after
# the bytes that it counts. A process may die between any two steps:
#
#     open    create the files, commit `active`, page ACTIVE      left: NONE and `active`: the segment is recovered
#     append  write the log, the indexes, then the page           left: a longer log: its tail is walked
#     seal    page CHANGING, trim and sync the files, commit      left: CHANGING: the commit log shows whether it is
#             `seal` and `add`, page NONE, or ACTIVE with the     sealed; if not, it stays active
#             next segment if the same commit opened one
#     torn    page TORN: a failed append cannot be cut off        left: TORN: it is cut off first
#     failed  page FAILED, cut the files to their flushed end,    left: FAILED: the same, by any process
#     sync    trim and sync them, commit `seal`, page NONE
#     repair  as after a failed sync, with the sound end for      left: the same
#             the flushed end
#
# A failed sync is never repeated in the same segment: the next one would succeed without the lost records.
_log = logging.getLogger("distlog")
#: How long a commit is tried while its process holds a lock that others wait for.
COMMIT_TIMEOUT_S = TIMEOUT_S / 2


@dataclass(frozen=True, slots=True)
class TruncatedTail:
    """The `size` bytes of `file` from `position` on that a repair cuts off, and the offsets that they had."""

    partition: int
    file: str
    position: int
    size: int
    start_offset: int
    end_offset: int
    reason: DamagedLogError

    def __str__(self) -> str:
        range_text = f" to {self.end_offset}" if self.end_offset > self.start_offset else " on"
        return (
            f"{self.file}: a repair cuts off {self.size} bytes after position {self.position}; "
            f"the records from offset {self.start_offset}{range_text} are lost"
        )


def active_folder(handle: TopicHandle, partition: int) -> str:
    """The folder of a partition with an active segment; StorageError if it is not on a disk."""
    if not handle.storage.is_local:
        raise StorageError(
            "the topic was copied here with an active segment, which only a disk can have: seal it on the disk "
            "('distlog alter FOLDER --seal'), and copy the folder again",
            url=handle.storage.url,
            partition=partition,
        )
    return handle.storage.local_path(paths.partition_dir(handle.name, partition))


def open_segments(partitions: Sequence[ActivePartition]) -> None:
    """Open the active segments of partitions of one topic; missing ones begin in one commit."""
    with ExitStack() as stack:
        missing = []
        for partition in sorted(partitions, key=lambda partition: partition.partition):
            stack.enter_context(partition.held())
            if partition.active_segment() is None:
                missing.append(partition)
        if missing:
            begin_segments(missing)


def roll(partition: ActivePartition) -> LogSegment:
    """Seal the active segment and begin the next one, in one commit. Needs the lock."""
    sealed = partition.begin_seal()
    try:
        return begin_segments([partition], "roll", sealed)[0]
    except CommitConflictError:
        partition.reactivate(sealed.state_before)
        raise


def begin_segments(
    partitions: Sequence[ActivePartition], operation: str = "active", sealed: SealedSegment | None = None
) -> list[LogSegment]:
    """Begin a segment of each partition by one commit, which also seals `sealed`. Needs their locks."""
    handle, snapshots, deadline = partitions[0].handle, partitions[0].snapshots, Deadline(COMMIT_TIMEOUT_S)
    while True:
        version, created_ms = snapshots.refresh().version, handle.clock()
        pairs = [(partition, paths.new_stem(version, handle.new_id())) for partition in partitions]
        in_parallel(lambda pair: pair[0].create(pair[1]), pairs)
        race = CommitRace(handle.log, snapshots.snapshot, operation, read_version=version, timeout_s=COMMIT_TIMEOUT_S)
        try:
            with race:
                for head in race:
                    actions: list[Action] = sealed.actions() if sealed else []
                    for partition, stem in pairs:
                        end = head.partitions[partition.partition].log_end_offset
                        base_offset = sealed.info.next_offset if sealed and sealed.info else end
                        actions.append(Active(partition.partition, stem, base_offset))
                    race.put(actions)
            snapshots.advance(race.after)
            return [partition.begin(created_ms) for partition in partitions]
        except TransactionTooOldError:
            # vacuum may have deleted the new files: create others
            if not deadline.pause():
                raise
        except CommitConflictError:
            snapshots.refresh()
            raise


class ActiveSeals:
    """Seals the active segments of partitions in the commit of a race, or leaves them active if that fails.

    Call `seal` for each head; if it returns a snapshot, put `actions` with the other ones, as in `seal_all`.

    Partitions are locked in ascending order, so that two commits never deadlock. If another segment becomes active
    concurrently, all locks are released, and taken again with its partition. `timeout_s` is for each lock.
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
        return [action for sealed in self._sealed.values() for action in sealed.actions()]

    def seal(self, head: Snapshot, partitions: Collection[int]) -> Snapshot | None:
        """Return `head` without active segments in these partitions; None if the next head must be tried."""
        active = head.active_partitions
        active = sorted(set(active).intersection(partitions)) if active else []
        if not self._locked.keys() >= set(active):
            self._release()
            # no lock is held during the race if there is nothing to seal
            self._race.after = self._lock(active)
            return None
        if self._locked and not self._sealed:
            # in parallel, since each takes several syncs, and others wait for the locks
            sealed = in_parallel(Task.wait, [seal for _, seal in self._locked.values()])
            self._sealed = dict(zip(self._locked, sealed, strict=True))
            self._race.backoff.try_for(COMMIT_TIMEOUT_S)
        return self._without_active(head)

    def _lock(self, partitions: Iterable[int]) -> Snapshot:
        """Lock the partitions; returns the newest snapshot after that."""
        snapshots, locked = CurrentSnapshot(self._handle.log, self._race.after), []
        for number in partitions:
            partition = ActivePartition(self._handle, number, snapshots, calls=self._calls, timeout_s=self._timeout_s)
            seal, held = Task(partition.begin_seal), partition.held()
            # a second interrupt does not wait for the threads that seal: each lock is held until its thread ends
            self._locks.callback(seal.cancel, partition.close)
            # registered before it is entered: an interrupt in between would leave the lock held
            self._locks.callback(seal.cancel, partial(held.__exit__, None, None, None))
            held.__enter__()
            locked.append((number, partition, seal))
        snapshots.refresh()
        self._locked = {
            number: (partition, seal) for number, partition, seal in locked if partition.active_segment() is not None
        }
        if not self._locked:
            self._locks.close()
        return snapshots.snapshot

    def _without_active(self, head: Snapshot) -> Snapshot:
        # without a copy of all partitions: most appends seal none of ten thousand
        states = dict[int, PartitionState]()
        for number, segment in self._sealed.items():
            draft = PartitionDraft(head.partitions[number])
            draft.seal(segment.state_before.stem)
            if segment.info is not None:
                draft.add(segment.info)
            draft.end_commit()
            states[number] = draft.finish()
        return replace(head, partitions=head.partitions.with_states(states)) if states else head

    def _release(self) -> None:
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
            # else the pages stay at CHANGING, so the next process reads the commit log


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
    """Wait until each direct append to these partitions has ended: later ones read the newest commit."""
    for partition in range(len(snapshot.partitions)) if partitions is None else partitions:
        folder = handle.storage.local_path(paths.partition_dir(handle.name, partition))
        path = os.path.join(folder, paths.LOCK_FILE)
        # the append holds the lock, so its file exists
        if os.path.exists(path):
            with closing(FileLock(path)) as lock, lock.held(timeout_s):
                pass
