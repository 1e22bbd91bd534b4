"""Appends ready-made batches to the active segment of a partition: Kafka's `UnifiedLog`, for many processes."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from distlog.core.commits.commit_log import CurrentSnapshot
from distlog.core.commits.snapshot import PartitionState, Snapshot
from distlog.core.errors import DistlogError, InvalidRecordError, StorageFullError
from distlog.core.format.kernels.batch_scan import move_batches
from distlog.core.format.record_batch import batch_fields, give_append_times, write_append_times
from distlog.core.integers import MAX_LONG
from distlog.core.locks import process_lock
from distlog.core.log.active_partition import ActivePartition, begin_segments, open_segments, roll
from distlog.core.log.flush import SEALED, Appended, AppendInfo, LogEnd, PartitionFlush
from distlog.core.log.log_segment import LogSegment, is_flush_due
from distlog.core.log.log_validator import BatchRun, check_headers, validate
from distlog.core.log.producers import NO_EFFECT, PartitionProducers, TransactionEffect
from distlog.core.log.segment_files import FileCalls
from distlog.core.segments.producer_states import FirstBatch, any_first
from distlog.core.segments.segment_state import BY_HEADERS, Longs
from distlog.core.segments.topic_handle import TopicHandle
from distlog.core.storage.locks_and_pages import TIMEOUT_S
from distlog.core.times import NO_TIMESTAMP

if TYPE_CHECKING:
    from typing_extensions import Buffer


class PartitionLog:
    """The log of one partition of a topic on a local disk; for the threads of one process.

    Each append holds the partition's lock, and continues where the last one ended, whichever process made it.
    It does not sync, but says whether the flush policy wants a sync before its records are acknowledged. A wait
    of more than `timeout_s` for a lock raises LockHeldError. `first` may refuse the first batch of a producer
    that the log does not know.
    """

    def __init__(
        self,
        handle: TopicHandle,
        partition: int,
        snapshots: CurrentSnapshot,
        *,
        calls: FileCalls = os,
        timeout_s: float = TIMEOUT_S,
        first: FirstBatch = any_first,
    ) -> None:
        self.partition, self._snapshots, self._clock = partition, snapshots, handle.clock
        self._active = ActivePartition(handle, partition, snapshots, calls=calls, timeout_s=timeout_s)
        self._flush = PartitionFlush(self._active, timeout_s)
        self._producers = PartitionProducers(handle, partition, snapshots, first)

    def append(
        self,
        data: npt.NDArray[np.uint8],
        rows: npt.NDArray[Any],
        *,
        newest_offsets: Longs = BY_HEADERS,
        min_timestamps: Longs = BY_HEADERS,
    ) -> Appended:
        """Give the batches their offsets, and write them; `rows` (BATCH rows) are the headers of all of `data`.

        The batches are of format 2, encoded from offset 0 on without a gap; their base offsets are written into
        `data`, and with LogAppendTime the time. `newest_offsets` are in the batches' own offsets. A producer's
        batches that the log already has are not appended again: the result is the earlier one. After an error
        nothing was appended.
        """
        asked_ns = perf_counter_ns()
        with self._active.held():
            return self._append(asked_ns, BatchRun(data, rows, newest_offsets, min_timestamps))

    def append_runs(
        self,
        runs: Iterable[BatchRun],
        fence: Callable[[Snapshot], None] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Generator[Appended, None, None]:
        """Append each run as `append` does, with no record of others between them; they may lie in several segments.

        Yields where each run is, and holds the lock until it is exhausted or closed. After an error, those that were
        yielded are appended. `fence` gets the newest snapshot first, and may refuse to append.
        """
        asked_ns = perf_counter_ns()
        with self._active.held(timeout_s):
            if fence is not None:
                fence(self._snapshots.refresh())
            for run in runs:
                yield self._append(asked_ns, run)
                asked_ns = perf_counter_ns()

    def end_transaction(
        self,
        marker: BatchRun,
        fence: Callable[[Snapshot], None],
        start_offset: int | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Appended | None:
        """Append the end marker of a transaction, if it is open here and began at `start_offset`; else None."""
        asked_ns = perf_counter_ns()
        with self._active.held(timeout_s):
            fence(self._snapshots.refresh())
            segment = self._active.recover() or begin_segments([self._active])[0]
            producer, epoch = marker.rows[0][["producer_id", "producer_epoch"]].item()
            is_open = self._producers.has_open(producer, epoch, segment, start_offset)
            return self._append(asked_ns, marker) if is_open else None

    def _append(self, asked_ns: int, run: BatchRun, *, may_wait: bool = True) -> Appended:
        try:
            appended = self._put(run, may_wait=may_wait)
        except StorageFullError:
            if not may_wait:
                # a seal takes syncs and a commit
                raise WouldWaitError from None
            # without space for that either, the segment stays active, and takes appends when there is space again
            with suppress(DistlogError):
                self._active.seal()
            raise
        self._active.lock.count(1, run.data.nbytes, perf_counter_ns() - asked_ns)
        return appended

    def _put(self, run: BatchRun, *, may_wait: bool) -> Appended:
        """Check the batches, write them to the log's end, and count them in the page; needs the lock."""
        data, rows, newest_offsets, min_timestamps, in_transaction = run
        active, snapshots = self._active, self._snapshots
        end, newest, of_producers = check_headers(
            rows, snapshots.snapshot.config, data.nbytes, in_transaction=in_transaction
        )
        segment = (active.recover() or begin_segments([active])[0]) if may_wait else active.ready_segment()
        batches = batch_fields(rows) if of_producers else []
        if segment is None or (not may_wait and batches and not self._producers.is_next(batches[-1], segment)):
            raise WouldWaitError
        if batches and (earlier := self._producers.check(batches, segment)):
            # a producer appends these batches again
            known_end, version = earlier.last_offset + 1, snapshots.snapshot.version
            is_active = earlier.last_offset >= segment.base_offset
            is_due = is_active and is_flush_due(segment.unflushed, segment.config, self._clock)
            by_log = segment.config.message_timestamp_type == "LogAppendTime"
            time_ms = earlier.timestamp if by_log else NO_TIMESTAMP
            stem = segment.stem if is_active else SEALED
            return Appended(known_end - end, known_end, stem, version, is_due, time_ms)
        time_ms = NO_TIMESTAMP
        if segment.config.message_timestamp_type == "LogAppendTime":
            state = snapshots.snapshot.partitions[active.partition]
            time_ms = append_time(state, segment, self._clock())
            rows, newest_offsets, min_timestamps = stamped(data, rows, time_ms)
            newest = time_ms
        if segment.next_offset + end > MAX_LONG:
            raise InvalidRecordError("the partition has no offsets left", partition=self.partition)
        if segment.should_roll(data.nbytes, newest, segment.next_offset + end - 1):
            if not may_wait:
                raise WouldWaitError
            segment = roll(active)
            if of_producers:
                self._producers.catch_up(segment)
        first = segment.next_offset
        moved = np.empty(len(rows), rows.dtype)
        move_batches(data, rows, first, moved)
        if len(newest_offsets):
            newest_offsets = newest_offsets + first
        effect = self._producers.effect_of(data, moved) if in_transaction else NO_EFFECT
        self._write(segment, BatchRun(data, moved, newest_offsets, min_timestamps), effect)
        if of_producers:
            self._producers.appended(data, moved, segment)
        due = is_flush_due(segment.unflushed, segment.config, self._clock)
        return Appended(first, first + end, segment.stem, snapshots.snapshot.version, due, time_ms)

    def _write(self, segment: LogSegment, run: BatchRun, effect: TransactionEffect) -> None:
        try:
            segment.append(
                run.data.data,
                run.rows,
                newest_offsets=run.newest_offsets,
                min_timestamps=run.min_timestamps,
                aborted=effect.aborted,
                first_unstable_offset=effect.first_unstable_offset,
            )
            self._active.moved_on()
        except BaseException:
            self._active.doubt()
            raise

    def append_batches(
        self,
        data: Buffer,
        fence: Callable[[Snapshot], None] | None = None,
        *,
        timeout_s: float | None = None,
        may_wait: bool = True,
    ) -> AppendInfo:
        """Append the batch that a Kafka producer made, after the checks of `log_validator.validate`.

        `fence` is the same as in `append_runs`; without it a batch of a transaction is refused. After an error
        nothing was appended. LockHeldError: another process held the lock for `timeout_s`; `is_free` returns True
        when to try again.

        Unless it `may_wait`, it waits for nothing, not even the lock, and makes no commit or sync: WouldWaitError
        says that it has to, as for a batch that is not the next of its producer, since other batches may have to be
        read.
        """
        snapshot = self._snapshots.snapshot
        valid = validate(data, snapshot.config, self._clock())
        run = BatchRun(
            valid.data,
            valid.rows,
            np.array([valid.newest_offset]),
            np.array([valid.min_timestamp]),
            in_transaction=fence is not None,
        )
        asked_ns = perf_counter_ns()
        with self._active.held(timeout_s if may_wait else 0):
            if fence is not None:
                fence(self._snapshots.refresh())
            appended = self._append(asked_ns, run, may_wait=may_wait)
        return AppendInfo(appended, snapshot.partitions[self.partition].log_start_offset)

    @property
    def flushes_by_time(self) -> bool:
        return self._snapshots.snapshot.config.flush_ms < MAX_LONG

    def has_unflushed(self) -> bool:
        """True if some records are not flushed; it takes no lock, and opens no file of a segment."""
        return self._flush.has_unflushed()

    def roll(self) -> None:
        """End the active segment and begin the next one; does nothing if none is active, or it is empty."""
        with self._active.held():
            if (segment := self._active.recover()) and segment.size:
                roll(self._active)

    def is_free(self, *, flush: bool) -> bool:
        """True if an append, or a flush, could have had its lock a moment ago. Raises StorageError."""
        return self._active.lock.is_free() and (not flush or self._flush.is_free())

    def flush(self, appended: Appended | None = None, *, timeout_s: float | None = None) -> None:
        """Sync the records of `appended`; without it, all records that the log has now.

        Threads and processes that wait for this share one sync. Raises StorageError if a sync failed, in any
        process: records that were not durable before are cut off. Give `appended` for records that are
        acknowledged after it: without, those that another process's failed sync cut off are not missed. After
        LockHeldError flush again.
        """
        self._flush.flush(appended, timeout_s)

    def flush_if_due(self, *, timeout_s: float | None = None) -> bool:
        """Flush all records if the topic's flush policy asks for it now; returns whether it did."""
        if not self._flush.is_due():
            return False
        self._flush.flush(None, timeout_s)
        return True

    def checkpoint(self, *, timeout_s: float | None = None) -> None:
        """Flush, with the indexes, so that nothing of the log is walked after a restart: Kafka's clean shutdown."""
        self._flush.checkpoint(timeout_s)

    def end(self) -> LogEnd:
        """Return the log's end and its durable end; recovers the log if needed."""
        with self._active.held():
            segment = self._active.recover()
            if segment is None:
                end = self._snapshots.snapshot.partitions[self.partition].log_end_offset
                return LogEnd(end, end)
            return LogEnd(segment.next_offset, segment.state.flushed_offset)

    def producers(self, *, timeout_s: float | None = None) -> npt.NDArray[np.void]:
        """The state of each producer, as a producer snapshot has it (ENTRY rows), by producer id."""
        with self._active.held(timeout_s):
            return self._producers.entries(self._active.recover())

    def close(self, *, flushed: bool = True, timeout_s: float | None = None) -> None:
        """Close the files; nothing is flushed, and the active segment stays active for the next process.

        The kernel may forget the errors of a file that no process has open. So if not all is `flushed`, the
        next flush or seal writes the rest again, or raises LostRecordsError. To note that takes the flush lock:
        LockHeldError says that nothing was closed.
        """
        self._flush.close(flushed=flushed, timeout_s=timeout_s)
        self._active.close()


def append_time(state: PartitionState, segment: LogSegment, now_ms: int) -> int:
    """The time in ms of an append to the active `segment`, now or later: LogAppendTime never goes back."""
    earlier_times = [sealed.max_timestamp for sealed in state.segments[-1:]]
    return max(now_ms, segment.max_timestamp, *earlier_times)


def stamped(
    data: npt.NDArray[np.uint8], rows: npt.NDArray[Any], time_ms: int
) -> tuple[npt.NDArray[Any], Longs, Longs]:
    """Write the time into the batches of `data`; returns their new rows, `newest_offsets` and `min_timestamps`."""
    times, rows = np.full(len(rows), time_ms, np.int64), rows.copy()
    give_append_times(rows, times)
    write_append_times(data, rows)
    return rows, rows["base_offset"].copy(), times


class WouldWaitError(Exception):
    """An append that may not wait has to do more than to write its batch; nothing was appended."""


def open_together(logs: Sequence[PartitionLog]) -> None:
    """Open logs of one topic for appends; missing active segments begin in one commit."""
    open_segments([log._active for log in logs])


#: How many files an open log takes, with some to spare; it has nine maps of memory, too.
FILES_OF_LOG = 8
#: More would come near the number of maps that Linux lets a process have.
MOST_OPEN_LOGS = 3000

#: How many logs each holder had open when it asked last.
_holders: WeakKeyDictionary[object, int] = WeakKeyDictionary()
_holders_lock = process_lock()


def most_open_logs(holder: object, open_logs: int) -> int:
    """The number of logs that `holder`, which has `open_logs`, may keep open now.

    Half of the files that the process may have open (RLIMIT_NOFILE) are for all holders. Each may have an equal
    share, or the rest of half of the files, since most holders have few.
    """
    with _holders_lock:
        _holders[holder] = open_logs
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = MOST_OPEN_LOGS if files == resource.RLIM_INFINITY else min(files // 2 // FILES_OF_LOG, MOST_OPEN_LOGS)
        open_elsewhere = sum(_holders.values()) - open_logs
        return max(1, most // len(_holders), most // 2 - open_elsewhere)


def without_open_logs(holder: object) -> None:
    with _holders_lock:
        _holders.pop(holder, None)
