"""Flushes a partition: one sync covers all that any thread of any process wrote before it.

A flush waits for the flush lock, and then reads the page again: if another sync covered its records meanwhile, it
needs no sync of its own. A sync runs without the partition's lock, so appends go on during it.

A failed sync is never tried again, since the next one would succeed without what was lost (Linux marks the pages
clean). The flush lock's page says that it failed, for the case that no more can be done now. Then the segment is
cut to what was on the device before, and is sealed there. Each flush that waits for records
that were cut off gets an error: their segment is no longer active, and ends before them.

The kernel tells an error of the disk to one process, and that one may be killed before it tells anybody. So the flush
lock's page says that a sync has begun, until its end is known. Who finds that writes again what the sync was to save.

Now and then a sync takes the indexes along: this is a new recovery point (`state_record`).
"""

from __future__ import annotations

import os
from contextlib import closing, suppress
from time import perf_counter_ns

from distlog.core import paths
from distlog.core.commits.format.actions import Add, Seal
from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.errors import DistlogError, StorageError
from distlog.core.log.partition.active_partition import ActivePartition
from distlog.core.log.partition.appended import SEALED, Appended, LostRecordsError, lost_records
from distlog.core.log.partition.partition_counters import PartitionCounters
from distlog.core.log.partition.state_record import Status
from distlog.core.log.partition.sync_mark import Sync, mark, marked
from distlog.core.log.segment.active_file import ActiveFile
from distlog.core.log.segment.flush_policy import Unflushed, is_flush_due
from distlog.core.log.segment.segment_files import SegmentFiles
from distlog.core.segments.segment_state import SegmentState
from distlog.core.storage.local.file_lock import FileLock

#: How many bytes of a log may lie behind its recovery point: as many are walked after a power loss, and some more.
_SPAN_BYTES = 16 << 20


class PartitionFlush:
    """The flushes of one partition by the threads of one process."""

    def __init__(self, partition: ActivePartition, timeout_s: float) -> None:
        self._partition, self._timeout_s = partition, timeout_s
        self._lock = FileLock(os.path.join(partition.folder, paths.FLUSH_FILE))
        # file objects of its own, so that nobody closes them during a sync; used under the flush lock only
        self._files: SegmentFiles | None = None

    def flush(self, wanted: Appended | None) -> None:
        """See `PartitionLog.flush`."""
        wanted = wanted or self._all()
        if wanted is None or wanted.stem == SEALED or self._is_flushed(wanted):
            return
        with self._lock.held(self._timeout_s):
            if not self._is_flushed(wanted):
                self._flush(wanted, _SPAN_BYTES)

    def checkpoint(self) -> None:
        """See `PartitionLog.checkpoint`."""
        wanted = self._all()
        if wanted is not None:
            with self._lock.held(self._timeout_s):
                self._flush(wanted, 1)

    def _flush(self, wanted: Appended, span: int) -> None:
        """Sync what is wanted; the indexes too, if the log has `span` bytes behind the recovery point."""
        state = self._state()
        if state is not None and self._make_good(state.stem):
            state = self._state()
        if state is None or state.stem != wanted.stem:
            self._check_sealed(wanted)
        elif state.next_offset < wanted.end_offset:
            raise lost_records(wanted)
        else:
            with_indexes = state.position - self._partition.lock.recovery_position >= span
            if with_indexes or not self._is_flushed(wanted):
                self._sync(state, wanted, with_indexes=with_indexes)

    def _make_good(self, stem: str) -> bool:
        """Whether the last sync of this segment did not end well, as far as anybody told; that is mended now."""
        last = marked(self._lock.page.read(), stem)
        if last == Sync.FAILED:
            # whose sync failed could not do it
            self._give_up(stem)
        elif last != Sync.ENDED:
            # nobody knows how a sync ended whose process is no more
            with self._partition.held():
                self._partition.write_again(stem, last)
        return last != Sync.ENDED

    def is_due(self) -> bool:
        """Whether the flush policy wants a flush now; reads the page alone, and creates no file."""
        partition = self._partition
        record, snapshot = partition.lock.stored_record(), partition.snapshots.snapshot
        if record is None or record.state is None or record.topic_id != snapshot.topic_id:
            return False
        return is_flush_due(Unflushed.of(record.state.numbers()), snapshot.config, partition.handle.clock)

    def close(self, *, flushed: bool) -> None:
        """See `PartitionLog.close`."""
        if not flushed:
            with self._lock.held(self._timeout_s) as page:
                stem = self._unflushed_stem()
                if stem and marked(page.read(), stem) != Sync.FAILED:
                    page.write(mark(Sync.BEGUN, stem))
        # no other process uses these files; and a finalizer's thread may hold the lock, by another log
        with self._lock.alone():
            self._use(None)
            self._lock.forget()

    def _unflushed_stem(self) -> str | None:
        """The active segment, by the page alone, if it has what is not flushed."""
        record = self._partition.lock.stored_record()
        state = record.state if record is not None and record.status == Status.ACTIVE else None
        return state.stem if state is not None and state.flushed_position < state.position else None

    def _all(self) -> Appended | None:
        with self._partition.held():
            segment = self._partition.recover()
            if segment is None:
                return None
            # under the lock: a version that another thread moves on to may have the segment's seal
            version = self._partition.snapshots.snapshot.version
            return Appended(segment.state.base_offset, segment.next_offset, segment.stem, version)

    def _state(self) -> SegmentState | None:
        with self._partition.held():
            segment = self._partition.recover()
            return None if segment is None else segment.state

    def _is_flushed(self, wanted: Appended) -> bool:
        record = self._partition.record()
        if record is None or record.state is None or record.status != Status.ACTIVE:
            return False
        return record.state.stem == wanted.stem and record.state.flushed_offset >= wanted.end_offset

    def _sync(self, state: SegmentState, wanted: Appended, *, with_indexes: bool) -> None:
        files = self._files_of(state.stem)
        # what fails here is no failed sync
        files.open() if with_indexes else files.log.open()
        since_ms, began_ns = self._partition.handle.clock(), perf_counter_ns()
        self._lock.page.write(mark(Sync.BEGUN, state.stem))
        try:
            if state.flushed_position < state.position:
                files.log.sync()
            if with_indexes:
                files.sync_indexes()
        except StorageError as error:
            # first of all, since to give it up takes a lock, and may fail
            self._lock.page.write(mark(Sync.FAILED, state.stem))
            self._use(None)
            lost = LostRecordsError(error.message, **error.details)
            try:
                self._give_up(state.stem)
                # who sealed it meanwhile has saved them, or cut them off
                self._check_sealed(wanted)
            except LostRecordsError:
                raise lost from error
            except DistlogError as second:
                raise lost from second
            return
        self._lock.page.add(*PartitionCounters(flushes=1, flush_ns=perf_counter_ns() - began_ns))
        with self._partition.held():
            is_active = self._partition.flushed(state, since_ms, with_indexes=with_indexes)
        self._lock.page.write(mark(Sync.ENDED, state.stem))
        if not is_active:
            # if the sync of the seal failed, it cut off what this one had saved
            self._check_sealed(wanted)
        elif with_indexes:
            self._sync_page()

    def _sync_page(self) -> None:
        path = os.path.join(self._partition.folder, paths.LOCK_FILE)
        page = ActiveFile(path, self._partition.calls, writable=False)
        # with an older page more is walked, and nothing is lost
        with closing(page), suppress(StorageError):
            page.sync()

    def _files_of(self, stem: str) -> SegmentFiles:
        partition = self._partition
        files = self._files
        if files is None or files.stem != stem:
            config = partition.snapshots.snapshot.config
            files = SegmentFiles.of(partition.folder, stem, config, partition.calls)
            self._use(files)
        return files

    def _use(self, files: SegmentFiles | None) -> None:
        if self._files is not None:
            self._files.close()
        self._files = files

    def _give_up(self, stem: str) -> None:
        with self._partition.held():
            segment = self._partition.recover()
            if segment is not None and segment.stem == stem:
                self._partition.give_up()

    def _check_sealed(self, wanted: Appended) -> None:
        """Raise StorageError if the sealed segment ends below the wanted records: a failed sync cut them off.

        Otherwise they are on the device, since a seal syncs.
        """
        snapshot = self._partition.snapshots.snapshot
        segments = snapshot.partitions[self._partition.partition].segments
        place = segments.find(wanted.end_offset - 1)
        if place < len(segments) and segments[place].stem == wanted.stem:
            return
        if self._sealed_end(snapshot, wanted) < wanted.end_offset:
            raise lost_records(wanted)

    def _sealed_end(self, snapshot: Snapshot, wanted: Appended) -> int:
        """The offset at which the segment ended when it was sealed. Later commits may have replaced it."""
        partition = self._partition.partition
        for commit in self._partition.handle.log.commits(wanted.version + 1, snapshot.version + 1):
            if Seal(partition, wanted.stem) in commit.actions:
                added = [action.segment for action in commit.actions if isinstance(action, Add)]
                ends = [segment.next_offset for segment in added if segment.stem == wanted.stem]
                return ends[0] if ends else wanted.first_offset
        raise StorageError("a segment ended in no commit: verify the topic", stem=wanted.stem)
