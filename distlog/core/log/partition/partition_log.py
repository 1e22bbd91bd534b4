"""Appending ready-made batches to one partition in place: Kafka's `UnifiedLog`, for any number of processes.

Each append holds the partition's lock, and continues where the last one ended, whichever process made it.
An append does not sync, but says whether the topic's flush policy wants a sync before its records are acknowledged.
`flush` syncs, once for all that wait for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from distlog.core.commits.current_snapshot import CurrentSnapshot
from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.errors import DistlogError, StorageFullError
from distlog.core.log.partition.active_partition import ActivePartition
from distlog.core.log.partition.appended import Appended, AppendInfo, LogEnd
from distlog.core.log.partition.batch_runs import BatchRun
from distlog.core.log.partition.log_validator import validate
from distlog.core.log.partition.partition_append import PartitionAppend
from distlog.core.log.partition.partition_flush import PartitionFlush
from distlog.core.log.partition.segment_begin import open_segments, roll
from distlog.core.log.producers.partition_producers import PartitionProducers
from distlog.core.log.segment.active_file import FileCalls
from distlog.core.segments.state_fold import BY_HEADERS, Longs
from distlog.core.storage.local.file_lock import TIMEOUT_S
from distlog.core.topic_handle import TopicHandle
from distlog.core.transactions.producer_states import FirstBatch, any_first

if TYPE_CHECKING:
    from typing_extensions import Buffer


class PartitionLog:
    """The log of one partition of a topic on a local disk; for the threads of one process.

    `snapshots` hold the commit log's newest snapshot; the log moves it on. `calls` are the system calls that change
    files. A wait of more than `timeout_s` for a lock raises a StorageError that names the process that holds it.
    `first` may refuse the first batch of a producer that the log does not know.
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
        producers = PartitionProducers(handle, partition, snapshots, first)
        self._appends = PartitionAppend(self._active, producers, handle.clock)

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
        `data`, and with LogAppendTime the time. `newest_offsets`, in the batches' own offsets, and `min_timestamps`
        are those of `LogSegment.append`.
        Batches of a producer that are there already are not appended again: the result is that of the first time.
        Those of transactions are refused.
        Raises InvalidRecordError for batches that the topic or a segment cannot take, OutOfOrderSequenceError,
        ProducerFencedError, StorageError, TopicNotFoundError, CommitStateUnknownError; then nothing was appended.
        """
        asked_ns = perf_counter_ns()
        with self._active.held():
            return self._append(asked_ns, BatchRun(data, rows, newest_offsets, min_timestamps))

    def append_runs(
        self, runs: Iterable[BatchRun], fence: Callable[[Snapshot], None] | None = None
    ) -> Generator[Appended, None, None]:
        """Append each run as `append` does, with no record of others between them; they may lie in several segments.

        Yields where each run is, and holds the lock until it is exhausted or closed. After an error, those that were
        yielded are appended, and no others. `fence` gets the newest snapshot first, and may refuse to append.
        """
        asked_ns = perf_counter_ns()
        with self._active.held():
            if fence is not None:
                fence(self._snapshots.refresh())
            for run in runs:
                yield self._append(asked_ns, run)
                asked_ns = perf_counter_ns()

    def end_transaction(self, marker: BatchRun, fence: Callable[[Snapshot], None]) -> Appended | None:
        """Append the end marker of a producer's transaction, if it is open here; returns None if it is not.

        `fence` is that of `append_runs`. Raises what that raises.
        """
        asked_ns = perf_counter_ns()
        with self._active.held():
            fence(self._snapshots.refresh())
            return self._append(asked_ns, marker) if self._appends.has_open(marker.rows[0]) else None

    def _append(self, asked_ns: int, run: BatchRun) -> Appended:
        try:
            appended = self._appends.append(run)
        except StorageFullError:
            # without space for that either, the segment stays active, and takes appends when there is space again
            with suppress(DistlogError):
                self._active.seal()
            raise
        self._active.lock.count(1, run.data.nbytes, perf_counter_ns() - asked_ns)
        return appended

    def append_batches(self, data: Buffer, fence: Callable[[Snapshot], None] | None = None) -> AppendInfo:
        """Append the batch that a Kafka producer made, after the checks of `log_validator.validate`.

        `fence` is that of `append_runs`; it says whether the batch's transaction is open, and without it a batch of a
        transaction is refused. Raises what `validate` raises, and the errors of `append`; then nothing was appended.
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
        with self._active.held():
            if fence is not None:
                fence(self._snapshots.refresh())
            appended = self._append(asked_ns, run)
        return AppendInfo(appended, snapshot.partitions[self.partition].log_start_offset)

    def roll(self) -> None:
        """End the active segment and begin the next one; does nothing if none is active, or it is empty."""
        with self._active.held():
            if (segment := self._active.recover()) and segment.size:
                roll(self._active)

    def flush(self, appended: Appended | None = None) -> None:
        """Return when the records of `appended` are on the device; without it, when all that the log has now are.

        Threads and processes that wait for this share one sync. Raises StorageError if a sync failed, in this process
        or another: records that were not on the device before are lost, and are cut off. Give `appended` for records
        that are acknowledged after it: without, those that another process's failed sync cut off are not missed.
        """
        self._flush.flush(appended)

    def flush_if_due(self) -> bool:
        """Flush all records if the topic's flush policy asks for it now; returns whether it did.

        For `flush.ms`, call it now and then, from any process. While nothing is due it takes no lock, and opens no
        file of a segment. Raises as `flush` does.
        """
        if not self._flush.is_due():
            return False
        self._flush.flush(None)
        return True

    def checkpoint(self) -> None:
        """Flush, and have nothing of the log walked after a restart of the machine: as Kafka's clean shutdown.

        Call it before the end of a program that appended; it syncs the indexes too. Raises as `flush` does.
        """
        self._flush.checkpoint()

    def end(self) -> LogEnd:
        """The log's end, and the end of what is on the device; recovers the log if needed."""
        with self._active.held():
            segment = self._active.recover()
            if segment is None:
                end = self._snapshots.snapshot.partitions[self.partition].log_end_offset
                return LogEnd(end, end)
            return LogEnd(segment.next_offset, segment.state.flushed_offset)

    def producers(self) -> npt.NDArray[np.void]:
        """What the log knows of each producer, as a producer snapshot has it (ENTRY rows), by producer id.

        Raises StorageError, CorruptRecordError.
        """
        with self._active.held():
            return self._appends.producers()

    def close(self, *, flushed: bool = True) -> None:
        """Close the files; nothing is flushed, and the active segment stays active for the next process.

        The kernel may forget the errors of a file that nobody has open. So if not all is `flushed`, the next flush or
        seal writes the rest again, or raises LostRecordsError if it is gone.
        """
        self._flush.close(flushed=flushed)
        self._active.close()


def open_together(logs: Sequence[PartitionLog]) -> None:
    """Have each of these logs of one topic ready for appends; the segments that are missing begin in one commit.

    Raises the errors of `PartitionLog.append`.
    """
    open_segments([log._active for log in logs])
