"""Finds, opens and seals one partition's active segment, under the partition's lock."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from time import perf_counter_ns
from typing import NamedTuple

from distlog.core import paths
from distlog.core.commits.actions import Action, Active, Add, Seal
from distlog.core.commits.commit_race import CommitRace
from distlog.core.commits.current_snapshot import CurrentSnapshot
from distlog.core.commits.segment_info import SegmentInfo
from distlog.core.commits.snapshot import Snapshot
from distlog.core.errors import CommitConflictError, StorageError, StorageFullError, TransactionTooOldError
from distlog.core.log.log_segment import LogSegment, closed_on_error
from distlog.core.log.partition_lock import (
    NO_POINT,
    FlushOutcome,
    PageStatus,
    PartitionCounters,
    PartitionLock,
    StateRecord,
    durable_end,
    mark_doubted,
    recovery_point,
    stored_mark,
    was_not_synced,
)
from distlog.core.log.producers import transactions_before
from distlog.core.log.segment_files import FileCalls
from distlog.core.log.segment_recovery import DamagedLogError, Kept
from distlog.core.segments.open_transactions import OpenTransactions
from distlog.core.segments.segment_state import SegmentState
from distlog.core.segments.topic_handle import TopicHandle
from distlog.core.storage.locks_and_pages import TIMEOUT_S, LockGuard
from distlog.core.storage.parallel import in_parallel
from distlog.core.storage.retry import Deadline


class SealedSegment(NamedTuple):
    """A segment whose seal lacks only its commit: the state before, and the segment to add, None if it is empty."""

    partition: int
    before: SegmentState
    info: SegmentInfo | None

    def actions(self) -> list[Action]:
        seal = Seal(self.partition, self.before.stem)
        return [seal] if self.info is None else [seal, Add(self.info)]


def check_is_there(path: str, active: Active) -> None:
    """Raise DamagedLogError if the `active` segment has no log: it was durable before the commit that names it."""
    if not os.path.exists(path):
        raise DamagedLogError(
            "the log file of the active segment is gone: bring it back, or run `distlog repair`",
            file=path,
            position=0,
            offset=active.base_offset,
        )


class SegmentOpener:
    """Opens the active segments of the partition in `folder`, with the settings of the newest of `snapshots`."""

    def __init__(
        self, handle: TopicHandle, partition: int, folder: str, snapshots: CurrentSnapshot, calls: FileCalls
    ) -> None:
        self._handle, self._partition, self._folder = handle, partition, folder
        self._snapshots, self._calls = snapshots, calls

    def create(self, stem: str) -> None:
        config, clock = self._snapshots.snapshot.config, self._handle.clock
        LogSegment.create(self._folder, stem, 0, config, clock=clock, calls=self._calls).close()

    def opened(self, state: SegmentState) -> LogSegment:
        config, clock = self._snapshots.snapshot.config, self._handle.clock
        return LogSegment(self._folder, state, config, clock=clock, calls=self._calls)

    def resumed(self, segment: LogSegment | None, state: SegmentState, status: PageStatus) -> LogSegment | None:
        """The segment with this state, and with what another process wrote behind it before it died.

        It is `segment`, if that takes appends. None if a sync of it failed, or may have, and what that was to
        save is gone.
        """
        if status == PageStatus.FAILED:
            return None
        is_known = segment is not None and segment.stem == state.stem and status == PageStatus.ACTIVE
        if segment is not None and is_known:
            segment.resume(state)
        else:
            segment = self.opened(state)
        with closed_on_error(segment):
            try:
                self._repair(segment, status, is_known=is_known)
            except DamagedLogError:
                # a device may lose what no sync has saved; without a failed sync, other hands have cut a short log
                is_cut = segment.unknown_bytes() < 0 and not was_not_synced(self._folder, segment.stem)
                if is_cut or not segment.has_lost_its_end():
                    raise
                segment.close()
                return None
            # the process that began to seal it may have died when a sync had failed
            if status == PageStatus.CHANGING:
                is_whole = self.write_again(segment, FlushOutcome.BEGUN)
            else:
                is_whole = self._is_in_good_hands(segment) or self.write_again(segment, FlushOutcome.DOUBTED)
            if not is_whole:
                segment.close()
                return None
        return segment

    def as_before(self, state: SegmentState) -> LogSegment:
        """The segment with this state, and nothing behind it: its seal was not committed."""
        segment = self.opened(state)
        with closed_on_error(segment):
            self._mend_indexes(segment)
            segment.drop_uncounted()
        return segment

    def _repair(self, segment: LogSegment, status: PageStatus, *, is_known: bool) -> None:
        """Have the files be as the state says, with what another process wrote behind it before it died."""
        unknown = segment.unknown_bytes()
        # a page of this boot counts what was written: no crash takes that away
        is_other = not is_known and (unknown > 0 or segment.is_preallocated) and not segment.has_its_end()
        if unknown < 0 or is_other:
            # either raises, or it is another file with the same batches
            segment.recover(self.transactions_before(), Kept(segment.next_offset, segment.size))
            segment.flush()
            return
        # a healthy segment's indexes are not opened: a seal finds out whether one was changed
        if unknown > 0 or status != PageStatus.ACTIVE or not (is_known or segment.seems_to_have_entries()):
            self._mend_indexes(segment)
        if status == PageStatus.TORN:
            segment.drop_uncounted()
        elif unknown > 0 or status != PageStatus.ACTIVE:
            segment.recover_tail(self.transactions_before())

    def _mend_indexes(self, segment: LogSegment) -> None:
        """Make indexes anew that were deleted, cut or changed; a log that is damaged too stays as it is."""
        if not segment.has_its_bytes():
            segment.make_indexes(self.transactions_before())

    def _is_in_good_hands(self, segment: LogSegment) -> bool:
        """True if the next sync tells the truth of what is not flushed; False while that cannot be brought about.

        If its writer was killed, no process had the file open: then the kernel forgets that it could not write
        pages, and forgets the pages. So a process that opens the file then reads them before the next sync.
        """
        if segment.is_open or not segment.unflushed.size:
            return True
        segment.open()
        return mark_doubted(self._folder, segment.stem)

    def recovered(self, active: Active, value: bytes | None) -> LogSegment:
        """The `active` segment, whose end is not known: walked from the recovery point in `value`, and synced."""
        topic_id = self._snapshots.snapshot.topic_id
        point, kept = recovery_point(value, topic_id, active), durable_end(value, topic_id, active)
        segment = self.opened(point or SegmentState.new(active.stem, active.base_offset, self._handle.clock()))
        with closed_on_error(segment):
            check_is_there(segment.file, active)
            if point is None or not segment.has_its_bytes():
                segment.recover(self.transactions_before(), kept)
            elif segment.unknown_bytes() or segment.size < kept.position or segment.behind().end > segment.size:
                segment.recover_tail(self.transactions_before(), kept)
            else:
                segment.drop_uncounted()
            # the page tells nothing of a sync that failed, so all is written again
            if stored_mark(self._folder, segment.stem) in (FlushOutcome.BEGUN, FlushOutcome.FAILED):
                self.write_again(segment, FlushOutcome.BEGUN)
            # it is not known how much of the log is on the device
            segment.flush()
        return segment

    def sealed(self, segment: LogSegment, status: PageStatus) -> SegmentState:
        """Seal the segment's files; FAILED says that it has only what is known to be on the device."""
        if status != PageStatus.FAILED:
            # first: of an error that is told to others from now on, this process is told too
            segment.open()
            sync = stored_mark(self._folder, segment.stem)
            if sync == FlushOutcome.FAILED or (sync != FlushOutcome.ENDED and not self.write_again(segment, sync)):
                raise segment.sync_error()
            self._mend_indexes(segment)
        return segment.seal()

    def write_again(self, segment: LogSegment, sync: FlushOutcome) -> bool:
        return segment.write_again(self.transactions_before(), only_read=sync == FlushOutcome.DOUBTED)

    def transactions_before(self) -> OpenTransactions:
        return transactions_before(self._handle, self._snapshots.refresh().partitions[self._partition])


# The commit log says which segments there are. The page in the lock's file says where the active one ends, and is
# written after the bytes that it counts. The page says CHANGING from before a seal's commit until after it. A
# process that finds this, or a page that does not check, asks the commit log first. A process may end between any
# two steps.
#
#     open    create the files, commit `active`, page ACTIVE      found: NONE and `active`: the segment is recovered
#     append  write the log, the indexes, then the page           found: a log that is longer: its tail is walked
#     seal    page CHANGING, trim and sync the files, commit      found: CHANGING: the commit log says whether it is
#             `seal` and `add`, page NONE, or ACTIVE with the     sealed; if not, it goes on as it was
#             next segment when the same commit opened one
#     torn    page TORN: an append failed, and cannot be cut off  found: TORN: it is cut off before anything else
#     failed  page FAILED, cut the files to what was flushed,     found: FAILED: the same, by any process
#     sync    trim and sync them, commit `seal`, page NONE
#     repair  page FAILED, as if what is sound were flushed, and  found: the same
#             the rest as above
#
# A sync that failed is never tried again in the same segment: the next one would succeed, without what was lost.

_log = logging.getLogger("distlog")

#: How long a commit is tried while its process holds a lock that others wait for.
COMMIT_TIMEOUT_S = TIMEOUT_S / 2


@dataclass(frozen=True, slots=True)
class LostEnd:
    """The bytes that a repair cuts off an active segment: `size` bytes of `file` from `position` on.

    They, and what is not in the file any more, held the offsets from `start_offset` on, as far as is known up to
    `end_offset`; they are given again.
    """

    partition: int
    file: str
    position: int
    size: int
    start_offset: int
    end_offset: int
    reason: DamagedLogError

    def __str__(self) -> str:
        known = f" to {self.end_offset}" if self.end_offset > self.start_offset else " on"
        return (
            f"{self.file}: a repair cuts off {self.size} bytes behind position {self.position}; "
            f"the records from offset {self.start_offset}{known} are gone"
        )


def active_folder(handle: TopicHandle, partition: int) -> str:
    """The folder of a partition with an active segment. Raises StorageError if it is not on a disk."""
    if not handle.storage.is_local:
        raise StorageError(
            "the topic was copied here with an active segment, which only a disk can have: on the disk seal it, "
            "'distlog alter FOLDER --seal', and copy the folder again",
            url=handle.storage.url,
            partition=partition,
        )
    return handle.storage.local_path(paths.partition_dir(handle.name, partition))


class ActivePartition:
    """A partition, its lock and its active segment, as one process knows them.

    All methods but `held`, `create` and `close` need the lock. If a method fails, or the process ends in it, the next
    `recover`, in any process, repairs the state.
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
        self._opener = SegmentOpener(handle, partition, self.folder, snapshots, calls)
        self._segment: LogSegment | None = None
        self._known: bytes | None = None

    def held(self, timeout_s: float | None = None) -> LockGuard:
        return self.lock.held(timeout_s)

    def recover(self) -> LogSegment | None:
        """The active segment, ready for appends, or None; another process may have changed it, or died doing so."""
        value = self.lock.value()
        segment = self._known_segment(value)
        if segment is None:
            try:
                self._take_over(value)
            except DamagedLogError:
                # so that the next use looks at the file anew
                self._let_go()
                raise
        elif segment.config is not self.snapshots.snapshot.config:
            anew = self._opener.opened(segment.state)
            with closed_on_error(anew):
                # before the other is closed: of a log that no process has open, the kernel may forget an error
                anew.open()
            self._use(anew)
        return self._segment

    def ready_segment(self) -> LogSegment | None:
        """The active segment, if it is ready for appends as this process left it; None if `recover` has work."""
        segment = self._known_segment(self.lock.value())
        if segment is None or segment.config is not self.snapshots.snapshot.config:
            return None
        return segment

    def _known_segment(self, value: bytes | None) -> LogSegment | None:
        segment = self._segment
        if segment is None or value is None or value != self._known or segment.unknown_bytes():
            return None
        return segment

    def create(self, stem: str) -> None:
        """Create the files of the segment `stem`, which a commit will make active; needs no lock."""
        self._opener.create(stem)

    def begin(self, created_ms: int) -> LogSegment:
        """Begin the segment that a commit made active; its files were created at that time."""
        state = self.snapshots.snapshot.partitions[self.partition]
        assert state.active is not None
        begin = SegmentState.new(state.active.stem, state.active.base_offset, created_ms, state.first_unstable_offset)
        self.lock.recovery_point = NO_POINT
        return self._use(self._opener.opened(begin))

    def begin_seal(self, status: PageStatus = PageStatus.CHANGING) -> SealedSegment:
        """Finish the active segment's files. The caller then commits, and calls `end_seal` or `take_back`."""
        segment = self._segment
        assert segment is not None
        before = segment.state
        # until the seal is over, every process asks the commit log
        self.lock.publish(status, before)
        self._segment = self._known = None
        began_ns = perf_counter_ns()
        try:
            state = self._opener.sealed(segment, status)
        except StorageError:
            if segment.sync_failed:
                self.lock.publish(PageStatus.FAILED, before)
            raise
        finally:
            segment.close()
        self.lock.count(*PartitionCounters(flushes=1, flush_ns=perf_counter_ns() - began_ns))
        if not state.batches:
            return SealedSegment(self.partition, before, None)
        # records without a time of their own age from here, and the seal may come long after the last of them
        info = replace(state.segment_info(self.partition), created_ms=before.written_by_ms(state.flushed_ms))
        return SealedSegment(self.partition, before, info)

    def end_seal(self) -> None:
        """Publish that no segment is active, after the commit that sealed it."""
        self._let_go()
        self.lock.recovery_point = NO_POINT
        self.lock.publish(PageStatus.NONE, None)

    def take_back(self, before: SegmentState) -> None:
        """Make the segment active again as it was before its seal, which was not committed and will not be."""
        self._use(self._opener.as_before(before))
        # its log was closed meanwhile, so the next use looks whether the kernel forgot what it could not write
        self._let_go()

    def seal(self) -> None:
        """Seal the active segment, unless it is empty; on StorageFullError it stays active."""
        segment = self.recover()
        if segment is not None and segment.size:
            before = segment.state
            try:
                self._commit_seal(self.begin_seal())
            except StorageFullError:
                if not segment.sync_failed:
                    self.take_back(before)
                raise

    def give_up(self) -> None:
        """Cut the active segment to what is on the device and seal it: else lost and later records were alike."""
        assert self._segment is not None
        self._seal_flushed(self._segment.state)

    def write_again(self, stem: str, sync: FlushOutcome) -> None:
        """Make good a sync of this segment whose outcome is unknown; if its records are gone, `give_up`."""
        segment = self.recover()
        if segment is not None and segment.stem == stem:
            is_whole = self._opener.write_again(segment, sync)
            self.moved_on() if is_whole else self.give_up()

    def moved_on(self) -> None:
        assert self._segment is not None
        self._known = self.lock.publish_active(self._segment.packed_state())

    def flushed(self, state: SegmentState, since_ms: int, *, with_indexes: bool) -> bool:
        """Note that a sync begun at `since_ms` covered `state`: a recovery point with indexes. False once sealed."""
        segment = self.recover()
        if segment is None or segment.stem != state.stem:
            return False
        segment.know_flushed(state.next_offset, state.position, since_ms)
        if with_indexes:
            self.lock.recovery_point = state.flushed(since_ms).pack()
        self.moved_on()
        return True

    def repair(self, *, dry_run: bool) -> LostEnd | None:
        """Cut the active segment where damage begins, and seal it; returns what is (`dry_run`: would be) lost."""
        try:
            self.recover()
            return None
        except DamagedLogError as error:
            reason = error
        self._let_go()
        active = self.snapshots.refresh().partitions[self.partition].active
        if active is None:
            raise reason
        begin = SegmentState.new(active.stem, active.base_offset, self.handle.clock())
        with closing(self._opener.opened(begin)) as segment:
            state = segment.look_through(self._opener.transactions_before())
        with closing(self._opener.opened(state)) as segment:
            behind, end = segment.behind(), max(segment.end_behind(), reason.details.get("end_offset") or 0)
        lost = LostEnd(
            self.partition, segment.file, state.position, behind.end - behind.position, state.next_offset, end, reason
        )
        if not dry_run:
            _log.warning("%s", lost)
            self._seal_flushed(state.flushed(self.handle.clock()))
        return lost

    def doubt(self) -> None:
        """Forget the segment, so that the next use recovers it: after an error the files' content is not known."""
        if self._segment is not None and self._segment.is_torn:
            self.lock.publish(PageStatus.TORN, self._segment.state)
        self._let_go()

    def close(self) -> None:
        """Close the segment's files and the lock's file; nothing is flushed. Waits for threads that hold the lock."""
        with self.lock.alone():
            self._let_go()
        self.lock.close()

    @property
    def _active(self) -> Active | None:
        return self.snapshots.snapshot.partitions[self.partition].active

    def _take_over(self, value: bytes | None) -> None:
        """Continue from the page's state, or, if that is not enough, from the commit log."""
        record = StateRecord.unpack(value)
        state = record.state_of(self._topic_id, self._active) if record else None
        if record is None or state is None or record.status != PageStatus.ACTIVE:
            self.snapshots.refresh()
            # the process that committed it may have died before the commit was durable
            self.handle.storage.sync(paths.COMMITS_DIR)
            state = record.state_of(self._topic_id, self._active) if record else None
        # a commit checks it, and appends in place make none
        self.snapshots.snapshot.requires.check_writable()
        if self._active is None:
            self.end_seal()
        elif record is None or state is None:
            segment = self._opener.recovered(self._active, value)
            self.lock.recovery_point = segment.packed_state()  # all of it was synced
            self._use(segment)
        else:
            self.lock.recovery_point = record.recovery_point
            resumed = self._opener.resumed(self._segment, state, record.status)
            if resumed is None:
                self._seal_flushed(state)
                return
            if self.lock.recovery_position > resumed.size:
                self.lock.recovery_point = NO_POINT
            self._use(resumed)

    def _seal_flushed(self, state: SegmentState) -> None:
        self.lock.publish(PageStatus.FAILED, state)
        self._let_go()
        segment = self._segment = self._opener.opened(state)
        segment.drop_unflushed(self._opener.transactions_before())
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
            self._let_go()
        self._segment = segment
        self.moved_on()
        return segment

    def _let_go(self) -> None:
        segment, self._segment, self._known = self._segment, None, None
        if segment is not None:
            segment.close()


def open_segments(partitions: Sequence[ActivePartition]) -> None:
    """Open the active segments of partitions of one topic; partitions that have none begin theirs in one commit."""
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
    """Begin a segment of each partition by one commit, which also seals `sealed`. Needs their locks."""
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

    version = snapshot.version
    race = CommitRace(handle.log, snapshot, operation, read_version=version, timeout_s=COMMIT_TIMEOUT_S)
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
