"""Flushes a partition: one sync covers all that any thread of any process wrote before it."""

from __future__ import annotations

import os
from contextlib import closing, suppress
from time import perf_counter_ns
from typing import NamedTuple

from distlog.core import paths
from distlog.core.commits.actions import Add, Seal, without_tables
from distlog.core.commits.snapshot import Snapshot
from distlog.core.errors import DistlogError, OffsetOutOfRangeError, StorageError
from distlog.core.log.active_partition import ActivePartition
from distlog.core.log.log_segment import Unflushed, is_flush_due
from distlog.core.log.partition_lock import FlushOutcome, PageStatus, PartitionCounters, mark, marked
from distlog.core.log.segment_files import ActiveFile, SegmentFiles
from distlog.core.log.segment_recovery import DamagedLogError
from distlog.core.segments.segment_state import SegmentState
from distlog.core.storage.locks_and_pages import FileLock, LockGuard
from distlog.core.times import NO_TIMESTAMP

#: The stem in an Appended whose records are in a sealed segment, and so durable.
SEALED = ""


class Appended(NamedTuple):
    """Where records were appended: their (first, end) offsets, their segment, or SEALED, and a version that has it.

    `flush_due`: the topic's flush policy requires an fsync before the records are acknowledged.
    `append_time_ms` is their LogAppendTime, -1 if they keep their own times.
    """

    first_offset: int
    end_offset: int
    stem: str
    version: int
    flush_due: bool = False
    append_time_ms: int = NO_TIMESTAMP


class LogEnd(NamedTuple):
    """The offset after the last record, and after the last durable one (Kafka's recovery point)."""

    end_offset: int
    flushed_offset: int


class AppendInfo(NamedTuple):
    """The result of a producer's batch (Kafka's LogAppendInfo), with the newest log start offset that is known."""

    appended: Appended
    log_start_offset: int


class LostRecordsError(StorageError):
    """A sync failed, so that records that were appended are lost: no later sync can save them."""


def lost_records(appended: Appended) -> LostRecordsError:
    return LostRecordsError(
        "the appended records are lost, since an fsync failed: append them again",
        stem=appended.stem,
        first_offset=appended.first_offset,
        end_offset=appended.end_offset,
    )


# A flush waits for the flush lock, and then reads the page again: if another sync covered its records by then, it
# needs no sync of its own. A sync runs without the partition's lock, so appends continue during it.
#
# A failed sync is never tried again, since the next one would succeed without what was lost (Linux marks the pages
# clean). The flush lock's page says that it failed, for the case that no more can be done now. Then the segment is
# cut to its durable end, and sealed there. Each flush that waits for records that were cut off
# gets an error: their segment is no longer active, and ends before them.
#
# The kernel reports a disk error to one process, which may be killed before it publishes the error. So the flush
# lock's page marks a sync as started until its outcome is known. A process that finds the mark writes the unflushed
# bytes again. Some syncs include the indexes, which makes a new recovery point (`StateRecord`).

#: Bytes of a log after its recovery point, about as many as are walked after a power loss.
_SPAN_BYTES = 16 << 20
#: Minimum wait for the partition's lock to publish a sync, which is repeated otherwise.
_TELLING_S = 1.0


class PartitionFlush:
    """The flushes of one partition by the threads of one process."""

    def __init__(self, partition: ActivePartition, timeout_s: float) -> None:
        self._partition, self._timeout_s = partition, timeout_s
        self._lock = FileLock(os.path.join(partition.folder, paths.FLUSH_FILE))
        # file objects of its own, so that they are not closed during a sync; used under the flush lock only
        self._files: SegmentFiles | None = None

    def is_free(self) -> bool:
        return self._lock.is_free()

    def flush(self, appended: Appended | None, timeout_s: float | None = None) -> None:
        appended = appended or self._all(timeout_s)
        if appended is None or appended.stem == SEALED or self._is_flushed(appended):
            return
        with self._held(timeout_s):
            if not self._is_flushed(appended):
                self._flush(appended, _SPAN_BYTES, timeout_s)

    def checkpoint(self, timeout_s: float | None = None) -> None:
        appended = self._all(timeout_s)
        if appended is not None:
            with self._held(timeout_s):
                self._flush(appended, 1, timeout_s)

    def _held(self, timeout_s: float | None) -> LockGuard:
        return self._lock.held(self._timeout_s if timeout_s is None else timeout_s)

    def _flush(self, appended: Appended, span: int, timeout_s: float | None) -> None:
        """Sync the appended records; the indexes too, if the log has `span` bytes after the recovery point."""
        state = self._state(timeout_s)
        if state is not None and self._make_good(state.stem, timeout_s):
            state = self._state(timeout_s)
        if state is None or state.stem != appended.stem:
            self._check_sealed(appended)
        elif state.next_offset < appended.end_offset:
            raise lost_records(appended)
        else:
            with_indexes = state.position - self._partition.lock.recovery_position >= span
            if with_indexes or not self._is_flushed(appended):
                self._sync(state, appended, timeout_s, with_indexes=with_indexes)

    def _make_good(self, stem: str, timeout_s: float | None) -> bool:
        """Repair a last sync of this segment that failed or has an unknown outcome; True if there was one."""
        last = marked(self._lock.page.read(), stem)
        if last == FlushOutcome.FAILED:
            # the process whose sync failed could not give up the segment
            self._give_up(stem, timeout_s)
        elif last != FlushOutcome.ENDED:
            # the outcome of a sync is unknown if its process died, or could not publish it
            with self._partition.held(timeout_s):
                self._partition.write_again(stem, last)
        return last != FlushOutcome.ENDED

    def is_due(self) -> bool:
        """True if the flush policy wants a flush now; reads the page alone, and creates no file."""
        partition, unflushed = self._partition, self._unflushed()
        return unflushed is not None and is_flush_due(
            unflushed, partition.snapshots.snapshot.config, partition.handle.clock
        )

    def has_unflushed(self) -> bool:
        unflushed = self._unflushed()
        return unflushed is not None and unflushed.messages > 0

    def _unflushed(self) -> Unflushed | None:
        partition = self._partition
        record, snapshot = partition.lock.stored_record(), partition.snapshots.snapshot
        if record is None or record.state is None or record.topic_id != snapshot.topic_id:
            return None
        return Unflushed.of(record.state.numbers())

    def close(self, *, flushed: bool, timeout_s: float | None = None) -> None:
        if not flushed:
            with self._held(timeout_s) as page:
                # the active segment, by the page alone, if it has what is not flushed
                record = self._partition.lock.stored_record()
                state = record.state if record is not None and record.status == PageStatus.ACTIVE else None
                stem = state.stem if state is not None and state.flushed_position < state.position else None
                if stem and marked(page.read(), stem) != FlushOutcome.FAILED:
                    page.write(mark(FlushOutcome.STARTED, stem))
        # no other process uses these files; and a finalizer's thread may hold the lock, by another log
        with self._lock.alone():
            self._use(None)
            self._lock.forget()

    def _all(self, timeout_s: float | None) -> Appended | None:
        with self._partition.held(timeout_s):
            segment = self._partition.recover()
            if segment is None:
                return None
            # under the lock: a version that another thread moves on to may have the segment's seal
            version = self._partition.snapshots.snapshot.version
            return Appended(segment.state.base_offset, segment.next_offset, segment.stem, version)

    def _state(self, timeout_s: float | None = None) -> SegmentState | None:
        with self._partition.held(timeout_s):
            segment = self._partition.recover()
            return None if segment is None else segment.state

    def _is_flushed(self, appended: Appended) -> bool:
        return self._partition.lock.is_on_device(appended.stem, appended.end_offset)

    def _sync(self, state: SegmentState, appended: Appended, timeout_s: float | None, *, with_indexes: bool) -> None:
        files = self._files_of(state.stem)
        # an error here is no failed sync
        files.open() if with_indexes else files.log.open()
        if files.log.size() < state.position:
            raise DamagedLogError(
                "the active log was cut or deleted, so what was appended cannot be flushed: `distlog repair`",
                file=files.log.path,
                position=files.log.size(),
                end_offset=state.next_offset,
            )
        since_ms, began_ns = self._partition.handle.clock(), perf_counter_ns()
        self._lock.page.write(mark(FlushOutcome.STARTED, state.stem))
        try:
            if state.flushed_position < state.position:
                files.log.sync()
            if with_indexes:
                files.sync_indexes()
        except StorageError as error:
            # first of all, since to give it up takes a lock, and may fail
            self._lock.page.write(mark(FlushOutcome.FAILED, state.stem))
            self._use(None)
            lost_error = LostRecordsError(error.message, **error.details)
            try:
                self._give_up(state.stem)
                # the process that sealed the segment since has synced the records, or cut them off
                self._check_sealed(appended)
            except LostRecordsError:
                raise lost_error from error
            except DistlogError as second:
                raise lost_error from second
            return
        self._lock.page.add(*PartitionCounters(flushes=1, flush_ns=perf_counter_ns() - began_ns))
        # where this waits for too long, the mark stays: the next flush makes the sync good
        with self._partition.held(None if timeout_s is None else max(timeout_s, _TELLING_S)):
            is_active = self._partition.flushed(state, since_ms, with_indexes=with_indexes)
        self._lock.page.write(mark(FlushOutcome.ENDED, state.stem))
        if not is_active:
            # if the sync of the seal failed, it cut off what this one had saved
            self._check_sealed(appended)
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

    def _give_up(self, stem: str, timeout_s: float | None = None) -> None:
        with self._partition.held(timeout_s):
            segment = self._partition.recover()
            if segment is not None and segment.stem == stem:
                self._partition.give_up()

    def _check_sealed(self, appended: Appended) -> None:
        """Raise LostRecordsError if the sealed segment ends below the records; otherwise its seal synced them."""
        snapshot = self._partition.snapshots.snapshot
        segments = snapshot.partitions[self._partition.partition].segments
        row = segments.find(appended.end_offset - 1)
        if row < len(segments) and segments[row].stem == appended.stem:
            return
        if self._sealed_end(snapshot, appended) < appended.end_offset:
            raise lost_records(appended)

    def _sealed_end(self, snapshot: Snapshot, appended: Appended) -> int:
        """The offset at which the segment ended when it was sealed. Later commits may have replaced it."""
        seal = Seal(self._partition.partition, appended.stem)
        try:
            commits = self._partition.handle.log.commits(appended.version + 1, snapshot.version + 1)
        except OffsetOutOfRangeError as error:
            raise OffsetOutOfRangeError(
                "cannot find out whether the appended records are durable, since the commits that record it were "
                "deleted (commit.retention.ms): read them to check, and flush more often",
                stem=appended.stem,
                first_offset=appended.first_offset,
                end_offset=appended.end_offset,
            ) from error
        for commit in commits:
            if seal in commit.actions:
                added = [action.segment for action in without_tables(commit.actions) if isinstance(action, Add)]
                ends = [segment.next_offset for segment in added if segment.stem == appended.stem]
                return ends[0] if ends else appended.first_offset
        raise StorageError("a segment ended in no commit: verify the topic", stem=appended.stem)
