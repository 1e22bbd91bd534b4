"""Appends encoded batches to a partition's active segment, and flushes it (Kafka's `UnifiedLog`)."""

from __future__ import annotations

import os
import resource
from collections import Counter, OrderedDict
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing, suppress
from functools import cached_property
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar
from weakref import WeakSet

import numpy as np
import numpy.typing as npt

from distlog.core import paths
from distlog.core.arrays import MAX_LONG, Bytes, Longs
from distlog.core.commits.actions import Add, Seal, each_action
from distlog.core.commits.commit_log import CurrentSnapshot
from distlog.core.commits.snapshot import PartitionState, Snapshot
from distlog.core.config import TopicConfig
from distlog.core.errors import (
    DistlogError,
    InvalidRecordError,
    OffsetOutOfRangeError,
    RecordTooLargeError,
    StorageError,
    StorageFullError,
)
from distlog.core.format.kernels.segments import BAD_FORMAT, BAD_SIZES, NO_FAULT, inspect_batches, move_batches
from distlog.core.format.record_batch import CONTROL, TRANSACTIONAL, batch_fields
from distlog.core.format.record_encoder import set_append_times, write_append_times
from distlog.core.log.active_partition import ActivePartition, begin_segments, open_segments, roll
from distlog.core.log.log_segment import LogSegment, Unflushed, check_batch_size, is_flush_due
from distlog.core.log.partition_files import (
    ActiveFile,
    DamagedLogError,
    FileCalls,
    FlushOutcome,
    PageStatus,
    PartitionCounters,
    SegmentFiles,
    outcome_in,
    packed_outcome,
)
from distlog.core.log.producers import NO_EFFECT, PartitionProducers, validate
from distlog.core.segments.producer_states import FirstBatch, any_first
from distlog.core.segments.segment_reader import TopicHandle
from distlog.core.segments.segment_state import FROM_HEADERS, SegmentState
from distlog.core.storage.calls import process_lock
from distlog.core.storage.locks_and_pages import TIMEOUT_S, FileLock
from distlog.core.times import NO_TIMESTAMP

if TYPE_CHECKING:
    from typing_extensions import Buffer

# A partition has two locks. Each has a page, a small value in the lock's file. The partition's lock is for appends,
# and its page has the state of the active segment. The flush lock's page has the outcome of the last sync. A flush
# acquires the flush lock, and then reads the partition's page again, since another sync may have included its
# records. A sync runs without the partition's lock, so appends continue during it.
#
# A failed sync is never repeated, since the next one would succeed without the lost records (Linux marks the pages
# clean). The failure is first marked in the flush lock's page, since the next steps may also fail. Then the process
# gives up the segment: it cuts the segment to its durable end, and seals it. A flush of lost records raises.
#
# The kernel reports a disk error to one process, which may be killed before it publishes the error. So the flush
# lock's page marks a sync as started until its outcome is known. A process that finds it rewrites unflushed bytes.

#: A flush includes the indexes, and makes a new recovery point, if the log has this many bytes after the last one.
_RECOVERY_BYTES = 16 << 20
#: The least time in seconds for which a flush waits for the partition's lock to publish its sync.
_MIN_PUBLISH_WAIT_S = 1.0


class PartitionFlush:
    """Flushes the active segment of a partition."""

    def __init__(self, partition: ActivePartition, timeout_s: float) -> None:
        self._partition = partition
        self._lock = FileLock(os.path.join(partition.folder, paths.FLUSH_FILE), timeout_s)
        # not shared with appends, so that nothing closes the files during a sync; used only under the flush lock
        self._files: SegmentFiles | None = None

    def flush(self, appended: Appended | None = None, *, timeout_s: float | None = None) -> None:
        """Sync the records of `appended`, by default all; concurrent flushes of any processes share one sync."""
        appended = appended or self._appended_so_far(timeout_s)
        if appended is None or appended.stem == SEALED or self._is_flushed(appended):
            return
        with self._lock.held(timeout_s):
            if not self._is_flushed(appended):
                self._flush(appended, _RECOVERY_BYTES, timeout_s)

    def checkpoint(self, *, timeout_s: float | None = None) -> None:
        """Flush the log and the indexes, so that a restart need not walk the log (Kafka's clean shutdown)."""
        appended = self._appended_so_far(timeout_s)
        if appended is not None:
            with self._lock.held(timeout_s):
                # with the indexes if the log has 1 byte after the recovery point
                self._flush(appended, 1, timeout_s)

    def _flush(self, appended: Appended, recovery_bytes: int, timeout_s: float | None) -> None:
        """Sync the records, and also the indexes if the log has `recovery_bytes` after the recovery point."""
        state = self._state(timeout_s)
        if state is not None and self._repair_last_sync(state.stem, timeout_s):
            state = self._state(timeout_s)
        if state is None or state.stem != appended.stem:
            self._check_not_lost(appended)
        elif state.next_offset < appended.end_offset:
            raise lost_records_error(appended)
        else:
            with_indexes = state.position - self._partition.lock.recovery_position >= recovery_bytes
            if with_indexes or not self._is_flushed(appended):
                self._sync(state, appended, timeout_s, with_indexes=with_indexes)

    def _repair_last_sync(self, stem: str, timeout_s: float | None) -> bool:
        """Repair the last sync of this segment if it failed or its outcome is unknown; returns whether it did."""
        outcome = outcome_in(self._lock.page.read(), stem)
        if outcome == FlushOutcome.FAILED:
            # the process whose sync failed has not given up the segment
            self._give_up(stem, timeout_s)
        elif outcome != FlushOutcome.ENDED:
            # the process died before it published the outcome, or could not publish it
            with self._partition.held(timeout_s):
                self._partition.rewrite_unflushed(stem, outcome)
        return outcome != FlushOutcome.ENDED

    def is_flush_due(self) -> bool:
        """True if `flush.messages` or `flush.ms` require a flush now; takes no lock, and opens no segment."""
        partition, unflushed = self._partition, self._unflushed()
        return unflushed is not None and is_flush_due(
            unflushed, partition.snapshots.snapshot.config, partition.handle.clock
        )

    def has_unflushed(self) -> bool:
        """True if some records are not flushed; takes no lock, and opens no segment."""
        unflushed = self._unflushed()
        return unflushed is not None and unflushed.messages > 0

    def _unflushed(self) -> Unflushed | None:
        partition = self._partition
        record, snapshot = partition.lock.stored_record(), partition.snapshots.snapshot
        if record is None or record.state is None or record.topic_id != snapshot.topic_id:
            return None
        return Unflushed.of(record.state.numbers())

    def close(self, *, flushed: bool = True, timeout_s: float | None = None) -> None:
        """Close the files without a flush. Unless `flushed`, mark that the next sync must rewrite unflushed bytes."""
        if not flushed:
            # the kernel may forget the write errors of a file that no process has open
            with self._lock.held(timeout_s) as flush_page:
                record = self._partition.lock.stored_record()
                state = record.state if record is not None and record.status == PageStatus.ACTIVE else None
                has_unflushed = state is not None and state.flushed_position < state.position
                if state and has_unflushed and outcome_in(flush_page.read(), state.stem) != FlushOutcome.FAILED:
                    flush_page.write(packed_outcome(FlushOutcome.STARTED, state.stem))
        # not `held`: the garbage collector may run this in a thread that holds the file's lock by another object
        with self._lock.excluding_threads():
            self._use(None)
            self._lock.close_file()
        self._partition.close()

    def _appended_so_far(self, timeout_s: float | None) -> Appended | None:
        with self._partition.held(timeout_s):
            segment = self._partition.active_segment()
            if segment is None:
                return None
            # the lock is held, so the segment's seal can only be in a later version (`_sealed_end`)
            version = self._partition.snapshots.snapshot.version
            return Appended(segment.state.base_offset, segment.next_offset, segment.stem, version)

    def _state(self, timeout_s: float | None = None) -> SegmentState | None:
        with self._partition.held(timeout_s):
            segment = self._partition.active_segment()
            return None if segment is None else segment.state

    def _is_flushed(self, appended: Appended) -> bool:
        return self._partition.lock.is_durable(appended.stem, appended.end_offset)

    def _sync(self, state: SegmentState, appended: Appended, timeout_s: float | None, *, with_indexes: bool) -> None:
        files = self._files_of(state.stem)
        # opens the files first, since a failed open is not a failed sync
        (files if with_indexes else files.log).open()
        log_bytes = files.log.checked_size()
        if log_bytes < state.position:
            text = "the active log was cut or deleted, so appended records cannot be flushed: run `distlog repair`"
            raise DamagedLogError(text, file=files.log.path, position=log_bytes, end_offset=state.next_offset)
        started_ms, started_ns = self._partition.handle.clock(), perf_counter_ns()
        self._lock.page.write(packed_outcome(FlushOutcome.STARTED, state.stem))
        try:
            if state.flushed_position < state.position:
                files.log.sync()
            if with_indexes:
                files.sync_indexes()
        except StorageError as error:
            # before `_give_up`, which needs a lock and may fail
            self._lock.page.write(packed_outcome(FlushOutcome.FAILED, state.stem))
            self._use(None)
            lost_error = LostRecordsError(error.message, **error.details)
            try:
                self._give_up(state.stem)
                # no error if another process has sealed the segment with the records, which it synced
                self._check_not_lost(appended)
            except LostRecordsError:
                raise lost_error from error
            except DistlogError as give_up_error:
                raise lost_error from give_up_error
            return
        self._lock.page.add(*PartitionCounters(flushes=1, flush_ns=perf_counter_ns() - started_ns))
        # after a timeout the outcome stays unknown, and the next flush repairs the sync
        with self._partition.held(None if timeout_s is None else max(timeout_s, _MIN_PUBLISH_WAIT_S)):
            is_active = self._partition.note_flushed(state, started_ms, with_indexes=with_indexes)
        self._lock.page.write(packed_outcome(FlushOutcome.ENDED, state.stem))
        if not is_active:
            # a seal whose own sync failed may have cut off the records
            self._check_not_lost(appended)
        elif with_indexes:
            self._sync_page()

    def _sync_page(self) -> None:
        path = os.path.join(self._partition.folder, paths.LOCK_FILE)
        page = ActiveFile(path, self._partition.calls, writable=False)
        # an error is ignored: a restart then finds an older page, walks more of the log, and loses nothing
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
            segment = self._partition.active_segment()
            if segment is not None and segment.stem == stem:
                self._partition.give_up()

    def _check_not_lost(self, appended: Appended) -> None:
        """Raise LostRecordsError if the segment was sealed without the records. A seal syncs all records it keeps."""
        snapshot = self._partition.snapshots.snapshot
        segments = snapshot.partitions[self._partition.partition].segments
        row = segments.find(appended.end_offset - 1)
        if row < len(segments) and segments[row].stem == appended.stem:
            return  # the sealed segment has the last record
        if self._sealed_end(snapshot, appended) < appended.end_offset:
            raise lost_records_error(appended)

    def _sealed_end(self, snapshot: Snapshot, appended: Appended) -> int:
        """Return the end offset of the segment when it was sealed; later commits may have replaced the segment."""
        seal = Seal(self._partition.partition, appended.stem)
        details = {"partition": self._partition.partition, **_details_of(appended)}
        text = "it is unknown whether the appended records are durable, since"
        try:
            commits = self._partition.handle.log.commits(appended.version + 1, snapshot.version + 1)
        except OffsetOutOfRangeError as error:
            raise OffsetOutOfRangeError(
                f"{text} the commit that sealed their segment was deleted (commit.retention.ms): read the records to "
                "check, and flush more often",
                **details,
            ) from error
        for commit in commits:
            if seal in commit.actions:
                added = [action.segment for action in each_action(commit.actions) if isinstance(action, Add)]
                ends = [segment.next_offset for segment in added if segment.stem == appended.stem]
                # a seal that cut off all records adds no segment, so it ended before these records
                return ends[0] if ends else appended.first_offset
        remedy = "run `distlog verify`, and read the records to check"
        raise StorageError(f"{text} no commit sealed their segment: {remedy}", topic=snapshot.name, **details)


class PartitionLog(PartitionFlush):
    """The log of one partition of a topic on a local disk; for the threads of one process.

    Each append holds the partition's lock. It does not sync, so the caller must flush if `Appended.flush_due`. A wait
    of more than `timeout_s` for a lock raises LockHeldError. `check_first` may refuse the first batch of a producer.
    """

    def __init__(
        self,
        handle: TopicHandle,
        partition: int,
        snapshots: CurrentSnapshot,
        *,
        calls: FileCalls = os,
        timeout_s: float = TIMEOUT_S,
        check_first: FirstBatch = any_first,
    ) -> None:
        super().__init__(ActivePartition(handle, partition, snapshots, calls=calls, timeout_s=timeout_s), timeout_s)
        self.partition, self._snapshots, self._clock = partition, snapshots, handle.clock
        self._handle, self._check_first = handle, check_first

    @cached_property
    def _producers(self) -> PartitionProducers:
        # created at first use, since most appends have no producer
        return PartitionProducers(self._handle, self.partition, self._snapshots, self._check_first)

    def append_runs(
        self,
        runs: Iterable[BatchRun],
        fence: Callable[[Snapshot], None] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Generator[Appended, None, None]:
        """Append runs (`BatchRun`) without other records between them; yields each run's result after it is written.

        Base offsets and LogAppendTime are written into the batches. If the log already has a producer's batches, they
        are not appended again, and the result has their offsets. After an error nothing of its run was appended. The
        lock is held until the generator ends or is closed. `fence` first gets the newest snapshot, and may raise.
        """
        requested_ns = perf_counter_ns()
        with self._partition.held(timeout_s):
            if fence is not None:
                fence(self._snapshots.refresh())
            for run in runs:
                yield self._append(requested_ns, run)
                requested_ns = perf_counter_ns()

    def end_transaction(
        self,
        marker: BatchRun,
        fence: Callable[[Snapshot], None],
        start_offset: int | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Appended | None:
        """Append the end marker of a transaction; returns None if no transaction (from `start_offset` on) is open."""
        requested_ns = perf_counter_ns()
        with self._partition.held(timeout_s):
            fence(self._snapshots.refresh())
            segment = self._partition.active_segment() or begin_segments([self._partition])[0]
            producer, epoch = marker.rows[0][["producer_id", "producer_epoch"]].item()
            is_open = self._producers.has_open(producer, epoch, segment, start_offset)
            return self._append(requested_ns, marker) if is_open else None

    def _append(self, requested_ns: int, run: BatchRun, *, may_wait: bool = True) -> Appended:
        try:
            appended = self._write(run, may_wait=may_wait)
        except StorageFullError:
            if not may_wait:
                # a seal would wait for syncs and a commit
                raise WouldWaitError from None
            # a seal frees preallocated space; if the seal fails, the segment stays active
            with suppress(DistlogError):
                self._partition.seal()
            raise
        # add to `appends`, `append_bytes` and `append_ns` of PartitionCounters
        self._partition.lock.page.add(1, run.data.nbytes, perf_counter_ns() - requested_ns)
        return appended

    def _write(self, run: BatchRun, *, may_wait: bool) -> Appended:
        """Check the batches, append them, and publish the new state; needs the lock."""
        data, rows, offsets_of_max_timestamp, min_timestamps, in_transaction = run
        active, snapshots = self._partition, self._snapshots
        offset_count, max_timestamp, has_producers = check_headers(
            rows, snapshots.snapshot.config, data.nbytes, in_transaction=in_transaction
        )
        segment = active.active_segment() if may_wait else active.ready_segment()
        if segment is None:
            if not may_wait:
                raise WouldWaitError
            segment = begin_segments([active])[0]
        batches = batch_fields(rows) if has_producers else []
        # without `may_wait`, the run has a single batch
        if batches and not may_wait and not self._producers.is_next(batches[-1], segment):
            raise WouldWaitError
        is_by_log = segment.config.message_timestamp_type == "LogAppendTime"
        if batches and (earlier := self._producers.find_duplicate(batches, segment)):
            # return the offsets of the first append; in a sealed segment, its records are durable
            end_offset = earlier.last_offset + 1
            is_active = earlier.last_offset >= segment.base_offset
            is_due = is_active and is_flush_due(segment.unflushed, segment.config, self._clock)
            time_ms = earlier.timestamp if is_by_log else NO_TIMESTAMP
            stem, version = segment.stem if is_active else SEALED, snapshots.snapshot.version
            return Appended(end_offset - offset_count, end_offset, stem, version, is_due, time_ms)
        time_ms = NO_TIMESTAMP
        if is_by_log:
            state = snapshots.snapshot.partitions[active.partition]
            time_ms = append_time(state, segment, self._clock())
            rows, offsets_of_max_timestamp, min_timestamps = with_append_times(data, rows, time_ms)
            max_timestamp = time_ms
        if segment.next_offset + offset_count > MAX_LONG:
            text = "nothing was appended: the partition has no offsets left for these records; use another partition"
            raise InvalidRecordError(text, partition=self.partition)
        if segment.should_roll(data.nbytes, max_timestamp, segment.next_offset + offset_count - 1):
            if not may_wait:
                raise WouldWaitError
            segment = roll(active)
            if has_producers:
                self._producers.catch_up(segment)
        first_offset = segment.next_offset
        headers = np.empty(len(rows), rows.dtype)
        move_batches(data, rows, first_offset, headers)
        # a run's offsets count from 0; `fold` ignores them for batches without timestamps. FROM_HEADERS is empty
        if len(offsets_of_max_timestamp):
            offsets_of_max_timestamp = offsets_of_max_timestamp + first_offset
        effect = self._producers.effect_of(data, headers) if in_transaction else NO_EFFECT
        try:
            segment.append(
                data.data,
                headers,
                offsets_of_max_timestamp=offsets_of_max_timestamp,
                min_timestamps=min_timestamps,
                aborted=effect.aborted,
                first_unstable_offset=effect.first_unstable_offset,
            )
            active.publish_state()
        except BaseException:
            active.forget_segment()
            raise
        if has_producers:
            self._producers.note_appended(data, headers, segment)
        is_due = is_flush_due(segment.unflushed, segment.config, self._clock)
        end_offset = first_offset + offset_count
        return Appended(first_offset, end_offset, segment.stem, snapshots.snapshot.version, is_due, time_ms)

    def append_batches(
        self,
        data: Buffer,
        fence: Callable[[Snapshot], None] | None = None,
        *,
        timeout_s: float | None = None,
        may_wait: bool = True,
    ) -> AppendInfo:
        """Append a Kafka producer's batch after the checks of `validate`; after an error nothing was appended.

        Without a `fence` (see `append_runs`), a batch of a transaction is refused. Without `may_wait`, raises
        LockHeldError if the lock is held, and WouldWaitError if the append needs a commit or a read, as for a batch
        that is not its producer's next one. After LockHeldError, try again when `is_free`.
        """
        snapshot = self._snapshots.snapshot
        valid = validate(data, snapshot.config, self._clock())
        run = BatchRun(
            valid.data,
            valid.rows,
            np.array([valid.offset_of_max_timestamp]),
            np.array([valid.min_timestamp]),
            in_transaction=fence is not None,
        )
        requested_ns = perf_counter_ns()
        with self._partition.held(timeout_s if may_wait else 0):
            if fence is not None:
                fence(self._snapshots.refresh())
            appended = self._append(requested_ns, run, may_wait=may_wait)
        return AppendInfo(appended, snapshot.partitions[self.partition].log_start_offset)

    @property
    def flushes_by_time(self) -> bool:
        return self._snapshots.snapshot.config.flush_ms < MAX_LONG

    def roll(self) -> None:
        with self._partition.held():
            segment = self._partition.active_segment()
            if segment is not None and segment.size:
                roll(self._partition)

    def is_free(self, *, flush: bool) -> bool:
        """True if the lock for appends (with `flush`, also the lock for flushes) was free just now."""
        return self._partition.lock.is_free() and (not flush or self._lock.is_free())

    def flush_if_due(self) -> bool:
        is_due = self.is_flush_due()
        if is_due:
            self.flush()
        return is_due

    def end(self) -> LogEnd:
        """Return the log's end and its durable end; recovers the log after a crash."""
        with self._partition.held():
            segment = self._partition.active_segment()
            if segment is None:
                end = self._snapshots.snapshot.partitions[self.partition].log_end_offset
                return LogEnd(end, end)
            return LogEnd(segment.next_offset, segment.state.flushed_offset)

    def producers(self, *, timeout_s: float | None = None) -> npt.NDArray[np.void]:
        """Return the state of each producer (ENTRY rows of a producer snapshot), ordered by producer id."""
        with self._partition.held(timeout_s):
            return self._producers.entries(self._partition.active_segment())


_RUN_FAULTS = {
    BAD_SIZES: "there are bytes between the batches: pass batches back to back",
    BAD_FORMAT: "a batch is of format 0 or 1, or of a transaction: encode it in format 2, outside of transactions",
}

_BAD_OFFSETS = "the offsets of the batches must count from 0 without a gap: encode the batches again"


class BatchRun(NamedTuple):
    """Batches with offsets from 0 on: their bytes, their headers (BATCH rows), and values that headers may lack.

    For each batch, `offsets_of_max_timestamp` has the offset of the first record with the largest timestamp, or -1
    without timestamps, and `min_timestamps` has the smallest timestamp. FROM_HEADERS takes the values from headers.

    With `in_transaction`, the batches belong to an open transaction or are its end marker. The caller ensures, by
    `fence` or by the transaction's own lock, that the transaction does not end before the append returns.
    """

    data: Bytes
    rows: npt.NDArray[Any]
    offsets_of_max_timestamp: Longs = FROM_HEADERS
    min_timestamps: Longs = FROM_HEADERS
    in_transaction: bool = False


def check_headers(
    rows: npt.NDArray[Any], config: TopicConfig, size: int, *, in_transaction: bool = False
) -> tuple[int, int, bool]:
    """Check batches; returns their number of offsets, their largest timestamp, and whether any has a producer."""
    if not len(rows):
        raise InvalidRecordError("there is no batch to append: pass at least one")
    verdict, largest_bytes, offset_count, newest_ms, has_producers = inspect_batches(
        rows, size, 0 if in_transaction else TRANSACTIONAL | CONTROL
    )
    check_batch_size(largest_bytes, config)
    if size > config.segment_size:
        text = "the batches are larger than segment.bytes: append fewer at once"
        raise RecordTooLargeError(text, size=size, limit=config.segment_size)
    if verdict != NO_FAULT:
        raise InvalidRecordError(_RUN_FAULTS.get(verdict, _BAD_OFFSETS))
    return offset_count, newest_ms, has_producers


def append_time(state: PartitionState, segment: LogSegment, now_ms: int) -> int:
    """Return the LogAppendTime in ms of an append to the active `segment`, which never decreases."""
    sealed_ms = state.segments[-1].max_timestamp if len(state.segments) else NO_TIMESTAMP
    return int(max(now_ms, segment.max_timestamp, sealed_ms))


def with_append_times(data: Bytes, rows: npt.NDArray[Any], time_ms: int) -> tuple[npt.NDArray[Any], Longs, Longs]:
    """Write the time into the batches of `data`; returns the rows, offsets and times of a BatchRun."""
    times, rows = np.full(len(rows), time_ms, np.int64), rows.copy()
    set_append_times(rows, times)
    write_append_times(data, rows)
    # all records have the largest timestamp, so the first one has the base offset
    return rows, rows["base_offset"].copy(), times


class WouldWaitError(Exception):
    """Nothing was appended, since the append would have had to wait."""


def open_together(logs: Sequence[PartitionLog]) -> None:
    open_segments([log._partition for log in logs])


#: The stem of an Appended whose records are in a sealed segment, and therefore durable.
SEALED = ""


class Appended(NamedTuple):
    """The offsets of appended records, the stem of their segment, and the topic's version at the append."""

    first_offset: int
    end_offset: int
    stem: str
    version: int
    flush_due: bool = False  # whether the records must be flushed before they are acknowledged
    append_time_ms: int = NO_TIMESTAMP  # with LogAppendTime only


class LogEnd(NamedTuple):
    """The offset after the last record, and after the last durable record (Kafka's recovery point)."""

    end_offset: int
    flushed_offset: int


class AppendInfo(NamedTuple):
    """The result of a producer's append, with the newest known log start offset (Kafka's LogAppendInfo)."""

    appended: Appended
    log_start_offset: int


class LostRecordsError(StorageError):
    """A sync failed, so appended records are lost: no later sync can save them."""


def lost_records_error(appended: Appended) -> LostRecordsError:
    text = "the appended records are lost, since an fsync failed: append them again"
    return LostRecordsError(text, **_details_of(appended))


def _details_of(appended: Appended) -> dict[str, Any]:
    return {"stem": appended.stem, "first_offset": appended.first_offset, "end_offset": appended.end_offset}


#: The time in seconds for which work that can also be done later waits for a lock.
SHORT_WAIT_S = 0.05
#: The most files that an open log needs.
LOG_FILES = 8
#: An open log has nine memory maps, and Linux limits a process to 65,530 by default (`vm.max_map_count`).
MAX_OPEN_LOGS = 3000
_caches: WeakSet[OpenLogs[Any]] = WeakSet()
_caches_lock = process_lock()

Key = TypeVar("Key")


class OpenLogs(Generic[Key]):
    """A cache of open logs by key, for many threads, which closes the least recently used logs."""

    def __init__(self, open_log: Callable[[Key], PartitionLog]) -> None:
        self._open_log, self._lock = open_log, process_lock()
        self._logs = OrderedDict[Key, PartitionLog]()
        # closed logs with unflushed records, which `flush_due` must still flush
        self._unflushed = dict[Key, PartitionLog]()
        self._users = Counter[Key]()
        self._close_after_use = set[Key]()
        # the keys of logs that were not used since the last `close_idle`
        self._idle = set[Key]()
        with _caches_lock:
            _caches.add(self)

    def open_limit(self) -> int:
        # all caches together use at most half of the files that the process may open
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        all_logs = MAX_OPEN_LOGS if files == resource.RLIM_INFINITY else min(files // 2 // LOG_FILES, MAX_OPEN_LOGS)
        with _caches_lock:
            open_elsewhere = [len(cache._logs) for cache in _caches if cache is not self and cache._logs]
        # this cache has an equal share, or more while the other caches have few logs: up to half of all logs
        return max(1, all_logs // (1 + len(open_elsewhere)), all_logs // 2 - sum(open_elsewhere))

    def use(self, key: Key, *, may_open: bool = True) -> _Use[Key]:
        """Use a log in a `with` block. Without `may_open`, raises WouldWaitError if it is closed and flushed."""
        return _Use(self, key, may_open)

    def flush_due(self) -> None:
        """Flush the logs whose `flush.ms` has passed, and close logs if too many are open."""
        with self._lock:
            logs = {**self._logs, **self._unflushed}
        for key, log in logs.items():
            if log.flushes_by_time and log.is_flush_due():
                self._flush(key)
        with self._lock:
            self._close_excess(self.open_limit())

    def close_idle(self) -> None:
        with self._lock:
            unused = {key: self._logs[key] for key in self._idle.intersection(self._logs).difference(self._users)}
            self._idle = set(self._logs)
        for key, log in unused.items():
            # flush first, since the next process would have to write unflushed records again
            if log.has_unflushed():
                self._flush(key)
            with self._lock:
                if key in self._logs and key not in self._users:
                    self._close(key)

    def close(self, key: Key, timeout_s: float | None = None) -> None:
        """Close a log: now, after a checkpoint, or if it is in use, after its last use."""
        with self._lock:
            if key in self._users:
                self._close_after_use.add(key)
                return
            log = self._logs.pop(key, None) or self._unflushed.pop(key, None)
        if log is not None:
            try:
                log.checkpoint(timeout_s=timeout_s)
            finally:
                log.close()

    def close_flushed(self) -> None:
        """Close all logs; they must be flushed, and not in use."""
        with self._lock:
            while self._logs:
                self._logs.popitem(last=False)[1].close()
            self._unflushed.clear()
            self._users.clear()

    def _acquire(self, key: Key, may_open: bool) -> PartitionLog:
        with self._lock:
            if key not in self._logs:
                if not may_open and key not in self._unflushed:
                    raise WouldWaitError
                self._close_excess(self.open_limit() - 1)
                unflushed = self._unflushed.pop(key, None)
                self._logs[key] = unflushed or self._open_log(key)
            self._logs.move_to_end(key)
            self._idle.discard(key)
            self._users[key] += 1
            return self._logs[key]

    def _release(self, key: Key) -> None:
        with self._lock:
            self._users[key] -= 1
            if not self._users[key]:
                del self._users[key]
                if key in self._close_after_use:
                    self._close_after_use.discard(key)
                    self._close(key)

    def _flush(self, key: Key) -> None:
        # errors are dropped, since a thread that flushes these records itself also gets the error
        with suppress(DistlogError, WouldWaitError), self.use(key, may_open=False) as log:
            log.flush(timeout_s=SHORT_WAIT_S)

    def _close_excess(self, limit: int) -> None:
        excess = len(self._logs) - limit
        if excess > 0:
            for key in [key for key in self._logs if key not in self._users][:excess]:
                self._close(key)

    def _close(self, key: Key) -> None:
        """Close an unused log, unless another flush holds its flush lock."""
        log, is_unflushed = self._logs[key], False
        try:
            is_unflushed = log.has_unflushed()
            log.close(flushed=False, timeout_s=0)
        except StorageError as error:
            # not raised, since the caller uses another log
            if not isinstance(error.__cause__, FileNotFoundError):
                return
            # the topic's folder was deleted, with the records
            log.close()
        del self._logs[key]
        if is_unflushed:
            self._unflushed[key] = log


class _Use(Generic[Key]):
    """The use of a log in a `with` block. A generator would be slower, and each append of a gateway has two uses."""

    __slots__ = ("_key", "_logs", "_may_open")

    def __init__(self, logs: OpenLogs[Key], key: Key, may_open: bool) -> None:
        self._logs, self._key, self._may_open = logs, key, may_open

    def __enter__(self) -> PartitionLog:
        return self._logs._acquire(self._key, self._may_open)

    def __exit__(self, *error: object) -> None:
        self._logs._release(self._key)
