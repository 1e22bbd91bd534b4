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

#: The stem in an Appended whose records are in a sealed segment, so that they are on the device.
SEALED = ""


class Appended(NamedTuple):
    """The place of appended records: their (first, end) offsets, their segment, or SEALED, and a version that has it.

    `flush_due` says that the topic's flush policy wants them on the device before they are acknowledged.
    `append_time_ms` is their LogAppendTime, -1 if they keep their own times.
    """

    first_offset: int
    end_offset: int
    stem: str
    version: int
    flush_due: bool = False
    append_time_ms: int = NO_TIMESTAMP


class LogEnd(NamedTuple):
    """The offset after the last record, and the offset after the last one on the device (Kafka's recovery point)."""

    end_offset: int
    flushed_offset: int


class AppendInfo(NamedTuple):
    """The result of a producer's batch (Kafka's LogAppendInfo), with the newest log start offset that is known."""

    appended: Appended
    log_start_offset: int


class LostRecordsError(StorageError):
    """A sync failed, so that records that were appended are lost: no later sync can save them."""


def lost_records(wanted: Appended) -> LostRecordsError:
    return LostRecordsError(
        "what was appended is lost, since a sync of the disk failed: append it again",
        stem=wanted.stem,
        first_offset=wanted.first_offset,
        end_offset=wanted.end_offset,
    )


# A flush waits for the flush lock, and then reads the page again: if another sync covered its records by then, it
# needs no sync of its own. A sync runs without the partition's lock, so appends go on during it.
#
# A failed sync is never tried again, since the next one would succeed without what was lost (Linux marks the pages
# clean). The flush lock's page says that it failed, for the case that no more can be done now. Then the segment is
# cut to what was on the device before, and is sealed there. Each flush that waits for records that were cut off
# gets an error: their segment is no longer active, and ends before them.
#
# The kernel tells an error of the disk to one process, which may be killed before it passes that on. So the
# flush lock's page says that a sync has begun, until its end is known. A process that finds that writes again what
# the sync was to save. Now and then a sync takes the indexes along: this is a new recovery point (`StateRecord`).

#: How many bytes of a log may lie behind its recovery point: as many are walked after a power loss, and some more.
_SPAN_BYTES = 16 << 20
#: How long it waits at least for the partition's lock to tell that a sync has ended: else that is done once more.
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

    def flush(self, wanted: Appended | None, timeout_s: float | None = None) -> None:
        wanted = wanted or self._all(timeout_s)
        if wanted is None or wanted.stem == SEALED or self._is_flushed(wanted):
            return
        with self._held(timeout_s):
            if not self._is_flushed(wanted):
                self._flush(wanted, _SPAN_BYTES, timeout_s)

    def checkpoint(self, timeout_s: float | None = None) -> None:
        wanted = self._all(timeout_s)
        if wanted is not None:
            with self._held(timeout_s):
                self._flush(wanted, 1, timeout_s)

    def _held(self, timeout_s: float | None) -> LockGuard:
        return self._lock.held(self._timeout_s if timeout_s is None else timeout_s)

    def _flush(self, wanted: Appended, span: int, timeout_s: float | None) -> None:
        """Sync what is wanted; the indexes too, if the log has `span` bytes behind the recovery point."""
        state = self._state(timeout_s)
        if state is not None and self._make_good(state.stem, timeout_s):
            state = self._state(timeout_s)
        if state is None or state.stem != wanted.stem:
            self._check_sealed(wanted)
        elif state.next_offset < wanted.end_offset:
            raise lost_records(wanted)
        else:
            with_indexes = state.position - self._partition.lock.recovery_position >= span
            if with_indexes or not self._is_flushed(wanted):
                self._sync(state, wanted, timeout_s, with_indexes=with_indexes)

    def _make_good(self, stem: str, timeout_s: float | None) -> bool:
        """True if the last sync of this segment failed, or has an unknown outcome; that is mended now."""
        last = marked(self._lock.page.read(), stem)
        if last == FlushOutcome.FAILED:
            # whose sync failed could not do it
            self._give_up(stem, timeout_s)
        elif last != FlushOutcome.ENDED:
            # the outcome of a sync is unknown if its process is no more, or could not tell it
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
                    page.write(mark(FlushOutcome.BEGUN, stem))
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

    def _is_flushed(self, wanted: Appended) -> bool:
        return self._partition.lock.is_on_device(wanted.stem, wanted.end_offset)

    def _sync(self, state: SegmentState, wanted: Appended, timeout_s: float | None, *, with_indexes: bool) -> None:
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
        self._lock.page.write(mark(FlushOutcome.BEGUN, state.stem))
        try:
            if state.flushed_position < state.position:
                files.log.sync()
            if with_indexes:
                files.sync_indexes()
        except StorageError as error:
            # first of all, since to give it up takes a lock, and may fail
            self._lock.page.write(mark(FlushOutcome.FAILED, state.stem))
            self._use(None)
            lost = LostRecordsError(error.message, **error.details)
            try:
                self._give_up(state.stem)
                # the process that sealed it meanwhile has saved them, or cut them off
                self._check_sealed(wanted)
            except LostRecordsError:
                raise lost from error
            except DistlogError as second:
                raise lost from second
            return
        self._lock.page.add(*PartitionCounters(flushes=1, flush_ns=perf_counter_ns() - began_ns))
        # where this waits for too long, the mark stays: the next flush makes the sync good
        with self._partition.held(None if timeout_s is None else max(timeout_s, _TELLING_S)):
            is_active = self._partition.flushed(state, since_ms, with_indexes=with_indexes)
        self._lock.page.write(mark(FlushOutcome.ENDED, state.stem))
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

    def _give_up(self, stem: str, timeout_s: float | None = None) -> None:
        with self._partition.held(timeout_s):
            segment = self._partition.recover()
            if segment is not None and segment.stem == stem:
                self._partition.give_up()

    def _check_sealed(self, wanted: Appended) -> None:
        """Raise LostRecordsError if the sealed segment ends below the wanted records; else its seal synced them."""
        snapshot = self._partition.snapshots.snapshot
        segments = snapshot.partitions[self._partition.partition].segments
        place = segments.find(wanted.end_offset - 1)
        if place < len(segments) and segments[place].stem == wanted.stem:
            return
        if self._sealed_end(snapshot, wanted) < wanted.end_offset:
            raise lost_records(wanted)

    def _sealed_end(self, snapshot: Snapshot, wanted: Appended) -> int:
        """The offset at which the segment ended when it was sealed. Later commits may have replaced it."""
        seal = Seal(self._partition.partition, wanted.stem)
        try:
            commits = self._partition.handle.log.commits(wanted.version + 1, snapshot.version + 1)
        except OffsetOutOfRangeError as error:
            raise OffsetOutOfRangeError(
                "it is not known any more whether what was appended is on the device, as the commits that tell were "
                "deleted (commit.retention.ms): look whether it is there, and flush more often",
                stem=wanted.stem,
                first_offset=wanted.first_offset,
                end_offset=wanted.end_offset,
            ) from error
        for commit in commits:
            if seal in commit.actions:
                added = [action.segment for action in without_tables(commit.actions) if isinstance(action, Add)]
                ends = [segment.next_offset for segment in added if segment.stem == wanted.stem]
                return ends[0] if ends else wanted.first_offset
        raise StorageError("a segment ended in no commit: verify the topic", stem=wanted.stem)
