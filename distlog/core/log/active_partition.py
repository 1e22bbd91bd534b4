"""Opens, recovers and seals the active segments of partitions, under the partitions' locks."""

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
from distlog.core.log.partition_files import (
    NO_POINT,
    DamagedLogError,
    DurableEnd,
    FileCalls,
    FlushOutcome,
    PageStatus,
    PartitionCounters,
    PartitionLock,
    StateRecord,
    mark_doubted,
    may_have_failed_sync,
    recovery_point,
    stored_outcome,
)
from distlog.core.log.producers import transactions_at_start
from distlog.core.segments.producer_states import OpenTransactions
from distlog.core.segments.segment_reader import TopicHandle
from distlog.core.segments.segment_state import SegmentState
from distlog.core.segments.segment_writer import with_key_index
from distlog.core.storage.calls import Deadline, Task, in_parallel
from distlog.core.storage.locks_and_pages import TIMEOUT_S, FileLock, LockGuard

# The commit log lists the segments. The file of a partition's lock has a page, a small value that processes share in
# memory (`SharedPage`). The page has the status and the state of the active segment, and is written after the bytes
# that the state counts. A process may die between any two steps:
#
#     event   steps                                               after a crash
#     open    create the files, commit `active`, page ACTIVE      page NONE and `active`: the segment is recovered
#     append  write the log, the indexes, then the page           a log longer than in the page: its tail is walked
#     seal    page CHANGING, trim and sync the files, commit      CHANGING: the commit log shows whether it is
#             `seal` and `add`, page NONE, or ACTIVE with the     sealed; if not, it stays active
#             next segment if the same commit opened one
#     torn    page TORN: a failed append cannot be cut off        TORN: it is cut off first
#     failed  page FAILED, cut the files to their flushed end,    FAILED: any process repeats these steps
#     sync    trim and sync them, commit `seal`, page NONE
#     repair  as after a failed sync, but the files are cut       FAILED: any process repeats these steps
#             where the damage begins
#
# A failed sync is never repeated in the same segment, since the next one would succeed without the lost records.

_log = logging.getLogger("distlog")
#: The time for which a commit is tried while its process holds a lock that other processes may wait for.
COMMIT_TIMEOUT_S = TIMEOUT_S / 2


class SealedSegment(NamedTuple):
    """A segment whose seal is not committed. `info` is the segment to add, or None if it is empty."""

    partition: int
    state_before: SegmentState  # before the seal
    info: SegmentInfo | None

    def actions(self) -> list[Action]:
        seal = Seal(self.partition, self.state_before.stem)
        return [seal] if self.info is None else [seal, Add(self.info)]


@dataclass(frozen=True, slots=True)
class TruncatedTail:
    """The `size` bytes of `file` that a repair cuts off from `position` on, and their offsets."""

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


class ActivePartition:
    """A partition, its lock and its active segment, in one process.

    All methods except `held`, `create` and `close` need the lock. If a method fails or its process dies, the next
    call of `active_segment` in any process repairs the files and the page.
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
        self._page_value: bytes | None = None  # the page's value that this process wrote last

    def held(self, timeout_s: float | None = None) -> LockGuard:
        return self.lock.held(timeout_s)

    def active_segment(self) -> LogSegment | None:
        """Return the active segment or None; recovers it after a crash, and reopens it if the settings changed."""
        page_value = self.lock.page.read()
        segment = self._known_segment(page_value)
        if segment is None:
            try:
                self._open_segment(page_value)
            except DamagedLogError:
                self._release()  # the next use reads the file again
                raise
        elif segment.config is not self.snapshots.snapshot.config:
            reopened = self._segment_of(segment.state)
            with closed_on_error(reopened):
                # opens the log before the old segment closes it: the kernel may forget write errors of a closed log
                reopened.open()
            self._replace_segment(reopened)
        return self._segment

    def ready_segment(self) -> LogSegment | None:
        """Return the active segment if it is unchanged since this process used it, or None."""
        segment = self._known_segment(self.lock.page.read())
        return segment if segment and segment.config is self.snapshots.snapshot.config else None

    def _known_segment(self, page_value: bytes | None) -> LogSegment | None:
        segment = self._segment
        if segment is None or page_value is None or page_value != self._page_value:
            return None
        # another process may have appended and died before it wrote the page, or the log was cut or replaced
        return None if segment.bytes_past_end() else segment

    def create(self, stem: str) -> None:
        """Create the files of the segment `stem`, which the caller makes active by a commit; needs no lock."""
        config, clock = self.snapshots.snapshot.config, self.handle.clock
        LogSegment.create(self.folder, stem, base_offset=0, config=config, clock=clock, calls=self.calls).close()

    def begin(self, created_ms: int) -> LogSegment:
        """Open the segment that a commit made active; its files were created at `created_ms`."""
        state = self.snapshots.snapshot.partitions[self.partition]
        assert state.active is not None
        active, unstable = state.active, state.first_unstable_offset
        self.lock.recovery_point = NO_POINT
        new_state = SegmentState.new(active.stem, active.base_offset, created_ms, unstable)
        return self._replace_segment(self._segment_of(new_state))

    def begin_seal(self, status: PageStatus = PageStatus.CHANGING) -> SealedSegment:
        """Finish the files; the caller must commit the seal and call `end_seal`, or call `reactivate`."""
        segment = self._segment
        assert segment is not None
        state_before = segment.state
        # with this status, other processes read the commit log before they use the segment
        self.lock.publish(status, state_before)
        self._segment = self._page_value = None
        started_ns = perf_counter_ns()
        try:
            state = self._sealed(segment, status)
        except StorageError:
            if segment.sync_failed:
                self.lock.publish(PageStatus.FAILED, state_before)
            raise
        finally:
            segment.close()
        self.lock.page.add(*PartitionCounters(flushes=1, flush_ns=perf_counter_ns() - started_ns))
        if not state.batches:
            return SealedSegment(self.partition, state_before, None)
        # records without timestamps age from `created_ms`: the start of a sync after the last append, not of the seal
        info = replace(state.segment_info(self.partition), created_ms=state_before.latest_write_ms(state.flushed_ms))
        if self.snapshots.snapshot.config.key_index_enable:
            info = with_key_index(self.handle, info)
        return SealedSegment(self.partition, state_before, info)

    def end_seal(self) -> None:
        self._release()
        self.lock.recovery_point = NO_POINT
        self.lock.publish(PageStatus.NONE, None)

    def reactivate(self, state_before: SegmentState) -> None:
        """Make the segment active again after a seal that was not committed."""
        segment = self._segment_of(state_before)
        with closed_on_error(segment):
            self._rebuild_damaged_indexes(segment)
            segment.cut_bytes_past_end()
        self._replace_segment(segment)
        # the next use opens the log again, and checks whether the kernel dropped memory pages
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
        """Cut the active segment to its durable end, and seal it, since lost offsets must not be reused."""
        assert self._segment is not None
        self._seal_flushed(self._segment.state)

    def rewrite_unflushed(self, stem: str, outcome: FlushOutcome) -> None:
        """Write unflushed bytes of the segment `stem` again after an uncertain sync; if some are lost, `give_up`."""
        segment = self.active_segment()
        if segment is not None and segment.stem == stem:
            if self._rewrite_unflushed(segment, outcome):
                self.publish_state()
            else:
                self.give_up()

    def publish_state(self) -> None:
        assert self._segment is not None
        self._page_value = self.lock.publish_active(self._segment.packed_state())

    def note_flushed(self, state: SegmentState, started_ms: int, *, with_indexes: bool) -> bool:
        """Publish a sync of the log (`with_indexes`: of all files) up to `state`; False if the segment is sealed."""
        segment = self.active_segment()
        if segment is None or segment.stem != state.stem:
            return False
        segment.note_flushed(state.next_offset, state.position, started_ms)
        if with_indexes:
            self.lock.recovery_point = state.flushed(started_ms).pack()
        self.publish_state()
        return True

    def repair(self, *, dry_run: bool) -> TruncatedTail | None:
        """Cut the active segment where damage begins, and seal it; returns the lost tail."""
        try:
            self.active_segment()
            return None
        except DamagedLogError as damage:
            error = damage
        self._release()
        active = self.snapshots.refresh().partitions[self.partition].active
        if active is None:
            raise error
        empty_state = SegmentState.new(active.stem, active.base_offset, self.handle.clock())
        with closing(self._segment_of(empty_state)) as segment:
            state = segment.scan_tail(self._transactions_at_start())
        with closing(self._segment_of(state)) as segment:
            trailing, last_sound_offset = segment.trailing(), segment.last_sound_offset()
        size = trailing.end - trailing.position
        # the lost offsets end with the last sound batch, or with the acknowledged records that the log lacks
        lost_end = max(last_sound_offset, error.details.get("end_offset") or 0)
        truncated = TruncatedTail(
            self.partition, segment.file, state.position, size, state.next_offset, lost_end, error
        )
        if not dry_run:
            _log.warning("%s", truncated)
            self._seal_flushed(state.flushed(self.handle.clock()))
        return truncated

    def forget_segment(self) -> None:
        """Forget the segment after an error that may have changed its files, so that the next use recovers it."""
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

    def _open_segment(self, page_value: bytes | None) -> None:
        """Open the active segment, if there is one, from a valid page, or by recovery."""
        record = StateRecord.unpack(page_value)
        state = record.state_of(self._topic_id, self._active) if record else None
        if record is None or state is None or record.status != PageStatus.ACTIVE:
            # only the commit log shows which segment is active now
            self.snapshots.refresh()
            # the process that committed the active segment may have died before the commit was durable
            self.handle.storage.sync(paths.COMMITS_DIR)
            # the refresh may have changed `_active`
            state = record.state_of(self._topic_id, self._active) if record else None
        # a commit checks the required features, but a direct append has no commit
        self.snapshots.snapshot.requires.check_writable()
        if self._active is None:
            self.end_seal()  # the seal is committed, but its process died before it wrote the page
        elif record is None or state is None:
            segment = self._recovered(self._active, page_value)
            self.lock.recovery_point = segment.packed_state()  # the whole segment was synced
            self._replace_segment(segment)
        else:
            self.lock.recovery_point = record.recovery_point
            resumed = self._resumed(state, record.status)
            if resumed is None:
                self._seal_flushed(state)
                return
            # the log may have been cut before the recovery point
            if self.lock.recovery_position > resumed.size:
                self.lock.recovery_point = NO_POINT
            self._replace_segment(resumed)

    def _resumed(self, state: SegmentState, status: PageStatus) -> LogSegment | None:
        """Return the segment with `state`, or None if unflushed records are lost, or a sync failed."""
        if status == PageStatus.FAILED:
            return None
        segment = self._segment
        # whether this process has already used the segment, which other processes may have extended since
        is_reused = segment is not None and segment.stem == state.stem and status == PageStatus.ACTIVE
        if segment is not None and is_reused:
            segment.resume(state)
        else:
            segment = self._segment_of(state)
        with closed_on_error(segment):
            try:
                self._recover_files(segment, status, is_reused=is_reused)
            except DamagedLogError:
                # A disk error may lose unflushed bytes: the log has zeros there, or ends earlier after a failed sync.
                # If it ends earlier and no sync failed, something else cut it, which is damage.
                is_cut = segment.bytes_past_end() < 0 and not may_have_failed_sync(self.folder, segment.stem)
                if is_cut or not segment.has_lost_its_end():
                    raise
                segment.close()
                return None
            # if a process died during a seal, its sync may have failed: write the bytes again, else only read them
            if status == PageStatus.CHANGING:
                is_whole = self._rewrite_unflushed(segment, FlushOutcome.STARTED)
            else:
                is_whole = self._open_for_sync(segment) or self._rewrite_unflushed(segment, FlushOutcome.DOUBTED)
            if not is_whole:
                segment.close()
                return None
        return segment

    def _recover_files(self, segment: LogSegment, status: PageStatus, *, is_reused: bool) -> None:
        """Make the files match the state, and add batches that another process wrote before it died."""
        past_end = segment.bytes_past_end()
        # The state was written in this boot, so the kernel has all bytes before its end. If no batch ends there,
        # another file replaced the log. A log that is not preallocated, and has the state's length, is not checked.
        is_replaced = not is_reused and (past_end > 0 or segment.is_preallocated) and not segment.may_have_its_end()
        if past_end < 0 or is_replaced:
            # raises DamagedLogError, unless another file has the same batches
            segment.recover(self._transactions_at_start(), DurableEnd(segment.next_offset, segment.size))
            segment.flush()
            return
        # the seal reads the indexes of an unchanged segment: here only their lengths are checked, on the first use
        if past_end > 0 or status != PageStatus.ACTIVE or not (is_reused or segment.has_index_lengths()):
            self._rebuild_damaged_indexes(segment)
        if status == PageStatus.TORN:
            segment.cut_bytes_past_end()
        elif past_end > 0 or status != PageStatus.ACTIVE:
            segment.recover_tail(self._transactions_at_start())

    def _rebuild_damaged_indexes(self, segment: LogSegment) -> None:
        """Rebuild deleted, cut or changed indexes; changes nothing if a batch of the log is damaged."""
        if not segment.has_its_bytes():
            segment.make_indexes(self._transactions_at_start())

    def _open_for_sync(self, segment: LogSegment) -> bool:
        """Open the log; returns False if the caller must check now that no unflushed records were lost.

        If no process had the file open, the kernel may have forgotten failed writes, and dropped their bytes. No sync
        would report this loss. So `mark_doubted` makes the next sync read the unflushed bytes first, unless a sync is
        already running.
        """
        if segment.is_open or not segment.unflushed.size:
            return True
        segment.open()
        return mark_doubted(self.folder, segment.stem)

    def _recovered(self, active: Active, page_value: bytes | None) -> LogSegment:
        """Return the `active` segment after a walk from the recovery point in `page_value`, and a sync."""
        point, durable = recovery_point(page_value, self._topic_id, active)
        segment = self._segment_of(point or SegmentState.new(active.stem, active.base_offset, self.handle.clock()))
        with closed_on_error(segment):
            check_exists(segment.file, active)
            if point is None or not segment.has_its_bytes():
                # the point is missing, or does not fit the files
                segment.recover(self._transactions_at_start(), durable)
            elif segment.bytes_past_end() or segment.size < durable.position or segment.trailing().end > segment.size:
                # batches, or a part of one, follow the point, or must follow it
                segment.recover_tail(self._transactions_at_start(), durable)
            else:
                # at most zeros follow the point
                segment.cut_bytes_past_end()
            # the last sync may have failed: write unflushed bytes again. The recovery above has found all of the log
            if stored_outcome(self.folder, segment.stem) in (FlushOutcome.STARTED, FlushOutcome.FAILED):
                self._rewrite_unflushed(segment, FlushOutcome.STARTED)
            # it is unknown which part of the log is durable
            segment.flush()
        return segment

    def _sealed(self, segment: LogSegment, status: PageStatus) -> SegmentState:
        """Seal the segment's files. If the status is FAILED, they were already cut to their durable records."""
        if status != PageStatus.FAILED:
            # if the log is open, the kernel reports later write errors to this process
            segment.open()
            outcome = stored_outcome(self.folder, segment.stem)
            has_failed = outcome == FlushOutcome.FAILED
            if has_failed or (outcome != FlushOutcome.ENDED and not self._rewrite_unflushed(segment, outcome)):
                segment.fail_by_other_sync()
            self._rebuild_damaged_indexes(segment)
        return segment.seal()

    def _segment_of(self, state: SegmentState) -> LogSegment:
        config, clock = self.snapshots.snapshot.config, self.handle.clock
        return LogSegment(self.folder, state, config, clock=clock, calls=self.calls)

    def _rewrite_unflushed(self, segment: LogSegment, outcome: FlushOutcome) -> bool:
        return segment.rewrite_unflushed(self._transactions_at_start(), only_read=outcome == FlushOutcome.DOUBTED)

    def _transactions_at_start(self) -> OpenTransactions:
        return transactions_at_start(self.handle, self.snapshots.refresh().partitions[self.partition])

    def _seal_flushed(self, state: SegmentState) -> None:
        """Cut the segment to its durable end and seal it; after a crash, any process repeats this."""
        self.lock.publish(PageStatus.FAILED, state)
        self._release()
        segment = self._segment = self._segment_of(state)
        segment.drop_unflushed(self._transactions_at_start())
        self._commit_seal(self.begin_seal(PageStatus.FAILED))

    def _commit_seal(self, sealed: SealedSegment) -> None:
        log, snapshot = self.handle.log, self.snapshots.refresh()
        with CommitRace(log, snapshot, "seal", timeout_s=COMMIT_TIMEOUT_S) as race:
            for _ in race:
                race.put(sealed.actions())
        self.snapshots.advance(race.snapshot)
        self.end_seal()

    def _replace_segment(self, segment: LogSegment) -> LogSegment:
        if segment is not self._segment:
            self._release()
        self._segment = segment
        self.publish_state()
        return segment

    def _release(self) -> None:
        segment, self._segment, self._page_value = self._segment, None, None
        if segment is not None:
            segment.close()


def check_exists(path: str, active: Active) -> None:
    """Raise DamagedLogError if the `active` segment's log is missing, since it was durable before the commit."""
    if not os.path.exists(path):
        text = "the log file of the active segment is missing: restore it, or run `distlog repair`"
        raise DamagedLogError(text, file=path, position=0, offset=active.base_offset)


def active_folder(handle: TopicHandle, partition: int) -> str:
    """Return the folder of a partition with an active segment; StorageError if it is not on a disk."""
    if not handle.storage.is_local:
        raise StorageError(
            "the topic was copied here with an active segment, which only a disk can have: seal it on the disk "
            "('distlog alter FOLDER --seal'), and copy the folder again",
            url=handle.storage.url,
            partition=partition,
        )
    return handle.storage.local_path(paths.partition_dir(handle.name, partition))


def open_segments(partitions: Sequence[ActivePartition]) -> None:
    """Open the active segments of partitions of one topic, and begin missing ones in one commit."""
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
    """Begin a segment of each partition in one commit, and seal `sealed` in it. Needs the partitions' locks."""
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
            snapshots.advance(race.snapshot)
            return [partition.begin(created_ms) for partition in partitions]
        except TransactionTooOldError:
            # vacuum may have deleted the new files, so they are created again under other names
            if not deadline.pause():
                raise
        except CommitConflictError:
            snapshots.refresh()
            raise


class ActiveSeals:
    """Seals active segments in the commit of `race`, as `seal_all` does; they stay active if the commit fails."""

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
        """Return `head` with these partitions sealed, or None if it only locked them: call it with the next head."""
        active = head.active_partitions
        # in ascending order, so that two commits never deadlock
        to_seal = sorted(set(active).intersection(partitions)) if active else []
        if not self._locked.keys() >= set(to_seal):
            # this is the first call, or a partition became active since: lock all in order, and read new commits
            self._release()
            self._race.restart_from(self._lock(to_seal))
            return None
        if self._locked and not self._sealed:
            # in parallel, since each seal takes several syncs, and other processes wait for the locks
            sealed = in_parallel(Task.wait, [seal_task for _, seal_task in self._locked.values()])
            self._sealed = dict(zip(self._locked, sealed, strict=True))
            self._race.backoff.set_timeout(COMMIT_TIMEOUT_S)
        return self._without_active(head)

    def _lock(self, partitions: Iterable[int]) -> Snapshot:
        """Lock the partitions; returns the newest snapshot after that."""
        snapshots, locked = CurrentSnapshot(self._handle.log, self._race.snapshot), []
        for number in partitions:
            partition = ActivePartition(self._handle, number, snapshots, calls=self._calls, timeout_s=self._timeout_s)
            seal_task, guard = Task(partition.begin_seal), partition.held()
            # An ExitStack calls in reverse order, so it releases the lock before it closes the partition. `cancel`
            # calls the function once the task has ended: after a KeyboardInterrupt, its thread may still run.
            self._locks.callback(seal_task.cancel, partition.close)
            # register the release before the lock is acquired: an interrupt in between would leave the lock held
            self._locks.callback(seal_task.cancel, partial(guard.__exit__, None, None, None))
            guard.__enter__()
            locked.append((number, partition, seal_task))
        snapshots.refresh()
        self._locked = {
            number: (partition, task) for number, partition, task in locked if partition.active_segment() is not None
        }
        if not self._locked:
            # there is nothing to seal, so hold no lock during the race
            self._locks.close()
        return snapshots.snapshot

    def _without_active(self, head: Snapshot) -> Snapshot:
        # copies only the states of sealed partitions, since a topic may have ten thousand partitions
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
            # if the commit's outcome is unknown, the pages stay at CHANGING, so the next use reads the commit log
            elif not self._race.is_in_doubt:
                self._release()


def seal_all(handle: TopicHandle, snapshot: Snapshot, operation: str, actions: Sequence[Action] = ()) -> Snapshot:
    """Commit `actions`, and seal the active segments of all partitions; returns the new snapshot."""
    with CommitRace(handle.log, snapshot, operation) as race, ActiveSeals(handle, race) as seals:
        for head in race:
            if seals.seal(head, range(len(head.partitions))) is not None:
                race.put([*seals.actions, *actions])
    return race.snapshot


def wait_for_appends(
    handle: TopicHandle, snapshot: Snapshot, partitions: Iterable[int] | None = None, timeout_s: float = TIMEOUT_S
) -> None:
    """Wait for the current direct appends to these partitions; later ones read the newest commit."""
    numbers = range(len(snapshot.partitions)) if partitions is None else partitions
    for partition in numbers:
        folder = handle.storage.local_path(paths.partition_dir(handle.name, partition))
        path = os.path.join(folder, paths.LOCK_FILE)
        # an append creates the lock file, so without the file there is none
        if os.path.exists(path):
            with closing(FileLock(path)) as lock, lock.held(timeout_s):
                pass
