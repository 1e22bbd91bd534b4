"""Finds, opens and seals one partition's active segment, under the partition's lock.

The commit log says which segments there are. The page in the lock's file says where the active one ends, and is
written after the bytes that it counts. The page says CHANGING from before a seal's commit until after it. A process
that finds this, or a page that does not check, asks the commit log first. A process may end between any two steps.

    open    create the files, commit `active`, page ACTIVE      found: NONE and `active`: the segment is recovered
    append  write the log, the indexes, then the page           found: a log that is longer: its tail is walked
    seal    page CHANGING, trim and sync the files, commit      found: CHANGING: the commit log says whether it is
            `seal` and `add`, page NONE, or ACTIVE with the     sealed; if not, it goes on as it was
            next segment when the same commit opened one
    torn    page TORN: an append failed, and cannot be cut off  found: TORN: it is cut off before anything else
    failed  page FAILED, cut the files to what was flushed,     found: FAILED: the same, whoever finds it
    sync    trim and sync them, commit `seal`, page NONE

A sync that failed is never tried again in the same segment: the next one would succeed, without what was lost.
"""

from __future__ import annotations

import os
from time import perf_counter_ns

from distlog.core import paths
from distlog.core.commits.current_snapshot import CurrentSnapshot
from distlog.core.commits.format.actions import Active
from distlog.core.errors import StorageError, StorageFullError
from distlog.core.log.partition.partition_counters import PartitionCounters
from distlog.core.log.partition.partition_lock import PartitionLock
from distlog.core.log.partition.sealed_segment import SealedSegment
from distlog.core.log.partition.segment_opener import SegmentOpener
from distlog.core.log.partition.state_record import NO_POINT, StateRecord, Status, recovery_point
from distlog.core.log.partition.sync_mark import Sync
from distlog.core.log.segment.active_file import FileCalls
from distlog.core.log.segment.log_segment import LogSegment
from distlog.core.segments.segment_state import SegmentState
from distlog.core.storage.local.file_lock import TIMEOUT_S, Held
from distlog.core.topic_handle import TopicHandle

#: How long a commit is tried while its process holds a lock that others wait for.
COMMIT_TIMEOUT_S = TIMEOUT_S / 2


class ActivePartition:
    """A partition, its lock and its active segment, as one process knows them.

    `snapshots` holds the newest snapshot of the commit log that the process has seen, without tails.
    All methods but `held` and `close` need the lock, unless they say otherwise. Errors are those of LogSegment and
    CommitLog. If a method fails, or the process ends in it, the next `recover`, in any process, repairs the state.
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
        self.folder = handle.storage.local_path(paths.partition_dir(handle.name, partition))
        self._topic_id = snapshots.snapshot.topic_id
        self.lock = PartitionLock(self.folder, self._topic_id, timeout_s)
        self._opener = SegmentOpener(handle, partition, self.folder, snapshots, calls)
        self._segment: LogSegment | None = None
        self._known: bytes | None = None

    def held(self) -> Held:
        """See `PartitionLock.held`."""
        return self.lock.held()

    def record(self) -> StateRecord | None:
        """The page's record now; None if it does not check. Needs no lock."""
        return StateRecord.unpack(self.lock.value())

    def recover(self) -> LogSegment | None:
        """The active segment, ready for appends, or None if there is none.

        Another process may have changed it meanwhile, or died while it did.
        """
        value, segment = self.lock.value(), self._segment
        if segment is None or value is None or value != self._known or segment.unknown_bytes():
            self._take_over(value)
        elif segment.config is not self.snapshots.snapshot.config:
            self._use(self._opener.opened(segment.state))
        return self._segment

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

    def begin_seal(self, status: Status = Status.CHANGING) -> SealedSegment:
        """Finish the active segment's files. The caller then commits, and calls `end_seal` or `take_back`.

        If a sync fails, the next `recover` seals the segment at what is known to be on the device.
        """
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
                self.lock.publish(Status.FAILED, before)
            raise
        finally:
            segment.close()
        self.lock.count(*PartitionCounters(flushes=1, flush_ns=perf_counter_ns() - began_ns))
        return SealedSegment(self.partition, before, state.segment_info(self.partition) if state.batches else None)

    def end_seal(self) -> None:
        """Publish that no segment is active, after the commit that sealed it."""
        self._let_go()
        self.lock.recovery_point = NO_POINT
        self.lock.publish(Status.NONE, None)

    def take_back(self, before: SegmentState) -> None:
        """Make the segment active again as it was before its seal, which was not committed and will not be."""
        self._use(self._opener.as_before(before))

    def seal(self) -> None:
        """Seal the active segment at its end; does nothing if none is active, or it is empty.

        On a disk without space for the commit it stays active: StorageFullError.
        """
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
        """After a failed sync: cut the active segment to what is known to be on the device, and seal it there.

        It must not go on, since then nobody could tell what was lost from what came after.
        """
        assert self._segment is not None
        self._seal_flushed(self._segment.state)

    def write_again(self, stem: str, sync: Sync) -> None:
        """Make good a sync of this segment whose end nobody saw; if it was to save what is gone, `give_up`."""
        segment = self.recover()
        if segment is not None and segment.stem == stem:
            is_whole = self._opener.write_again(segment, sync)
            self.moved_on() if is_whole else self.give_up()

    def moved_on(self) -> None:
        """Publish the active segment's changed state."""
        assert self._segment is not None
        self._known = self.lock.publish_active(self._segment.packed_state())

    def flushed(self, state: SegmentState, since_ms: int, *, with_indexes: bool) -> bool:
        """Note that a sync that began at `since_ms` covered what `state` counts; False if its segment is sealed.

        With the indexes, the state is the segment's recovery point from now on.
        """
        segment = self.recover()
        if segment is None or segment.stem != state.stem:
            return False
        segment.know_flushed(state.next_offset, state.position, since_ms)
        if with_indexes:
            self.lock.recovery_point = state.flushed().pack()
        self.moved_on()
        return True

    def doubt(self) -> None:
        """Forget the segment, so that the next use recovers it: after an error the files' content is not known."""
        if self._segment is not None and self._segment.is_torn:
            self.lock.publish(Status.TORN, self._segment.state)
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
        if record is None or state is None or record.status != Status.ACTIVE:
            self.snapshots.refresh()
            # the process that committed it may have died before the commit was durable
            self.handle.storage.sync(paths.COMMITS_DIR)
            state = record.state_of(self._topic_id, self._active) if record else None
        if self._active is None:
            self.end_seal()
        elif record is None or state is None:
            segment = self._opener.recovered(self._active, recovery_point(value, self._topic_id, self._active))
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
        self.lock.publish(Status.FAILED, state)
        self._let_go()
        segment = self._segment = self._opener.opened(state)
        segment.drop_unflushed(self._opener.transactions_before())
        self._commit_seal(self.begin_seal(Status.FAILED))

    def _commit_seal(self, sealed: SealedSegment) -> None:
        _, after = self.handle.log.commit(
            self.snapshots.refresh(), "seal", lambda _: sealed.actions(), timeout_s=COMMIT_TIMEOUT_S
        )
        self.snapshots.advance(after)
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
