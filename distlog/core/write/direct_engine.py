"""The engine that appends directly to active segments, on a local disk."""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from itertools import islice
from typing import TypeVar

from distlog.core.commits.commit_log import CurrentSnapshot
from distlog.core.config import DAY_MS
from distlog.core.errors import (
    CommitStateUnknownError,
    DistlogError,
    OffsetOutOfRangeError,
    StorageError,
    TopicNotFoundError,
    TransactionTooOldError,
)
from distlog.core.format.record_encoder import EncodedBatches
from distlog.core.log.flush import Appended, LostRecordsError
from distlog.core.log.log_validator import runs
from distlog.core.log.partition_log import PartitionLog, most_open_logs, open_together, without_open_logs
from distlog.core.segments.topic_handle import TopicHandle
from distlog.core.storage.parallel import in_order, in_parallel
from distlog.core.storage.retry import Deadline
from distlog.core.write.append import AppendResult
from distlog.core.write.engine import (
    DELIVERY_TIMEOUT_S,
    Appends,
    Failure,
    Fence,
    PartitionBatches,
    workers_for,
)

#: With a longer `flush.ms` there is no sync in the background.
_LONGEST_MS = DAY_MS

Item = TypeVar("Item")


class DirectEngine:
    """Appends to the active segments of partitions; then calls `on_append`.

    Partitions succeed or fail by themselves. By default, records are acknowledged when they are durable; readers may
    see them earlier. A topic's flush policy may leave syncs to later, to `flush` and `close` at the latest.
    `lock_timeout_s` limits the wait for each lock.
    """

    def __init__(
        self,
        handle: TopicHandle,
        current: CurrentSnapshot,
        on_append: Callable[[], None],
        lock_timeout_s: float | None = None,
    ) -> None:
        self._handle, self._current, self._on_append = handle, current, on_append
        self._lock_timeout_s = lock_timeout_s
        self._logs: OrderedDict[int, PartitionLog] = OrderedDict()
        self._group_size = 1
        self.begin_child()
        weakref.finalize(self, _close, self._logs, os.getpid()).atexit = False

    def begin_child(self) -> None:
        """Become usable in a forked child: no thread there holds the lock, and unflushed records are the parent's."""
        self._lock = threading.RLock()
        # by partition and segment: the last records that were acknowledged before they were synced
        self._unflushed: dict[int, dict[str, Appended]] = {}
        self._timer: threading.Timer | None = None
        self._loss: DistlogError | None = None
        # the partitions that were appended to since the last `close`
        self._used = set[int]()

    def append(self, parts: Sequence[PartitionBatches], fence: Fence | None = None) -> Appends:
        """Append the batches, each partition's in their order."""
        appends = [_PartAppend(part, fence) for part in parts]
        with self._lock:
            try:
                for group in self._in_groups(appends):
                    self._append(group)
                    deadline = Deadline(DELIVERY_TIMEOUT_S)
                    while (retries := [append for append in group if append.is_retriable]) and deadline.pause():
                        for append in retries:
                            append.reset()
                        self._append(retries)
            except BaseException as error:
                for append in appends:
                    append.fail_remaining(error)
            finally:
                self._on_append()
        offsets = {
            append.partition: (append.acknowledged[0].first_offset, append.acknowledged[-1].end_offset)
            for append in appends
            if append.acknowledged
        }
        return Appends(AppendResult(None, offsets), [failure for append in appends for failure in append.failures])

    def _append(self, appends: Sequence[_PartAppend]) -> None:
        """Append while threads encode the next partitions; then flush all partitions in parallel."""
        workers = workers_for([append.part for append in appends])
        try:
            self._open([append.partition for append in appends])
            encodings, queued = (append.encode for append in appends), 2 * workers if workers > 1 else 0
            for append in in_order(encodings, queued, workers=workers, joined=True):
                append.append(self._log(append.partition), self._lock_timeout_s)
            logs = [(append, self._log(append.partition)) for append in appends]
            in_parallel(lambda pair: pair[0].flush(pair[1], self._lock_timeout_s), logs)
        finally:
            # an interrupt may come when some records are acknowledged already
            self._note_unflushed(appends)
        self._sync_sealed(appends)

    def _in_groups(self, items: Sequence[Item]) -> Iterator[Sequence[Item]]:
        """The items in groups of as many partitions as may have open files; a group's logs stay open."""
        self._group_size = size = most_open_logs(self, len(self._logs))
        return (items[first : first + size] for first in range(0, len(items), size))

    def _open(self, partitions: Sequence[int]) -> None:
        """Create the missing active segments in one commit, since each commit costs several syncs."""
        self._used.update(partitions)
        states = self._current.snapshot.partitions
        missing = [partition for partition in partitions if states[partition].active is None]
        if len(missing) > 1:
            # a partition that cannot be opened raises that itself, and keeps no other from it
            with suppress(DistlogError):
                open_together([self._log(partition) for partition in missing])

    def _note_unflushed(self, appends: Sequence[_PartAppend]) -> None:
        for append in appends:
            for appended in append.acknowledged:
                if appended.flush_due:
                    self._forget(append.partition, appended.stem)
                else:
                    self._unflushed.setdefault(append.partition, {})[appended.stem] = appended
        self._sync_later()

    def _forget(self, partition: int, stem: str) -> None:
        stems = self._unflushed.get(partition, {})
        stems.pop(stem, None)
        if not stems:
            self._unflushed.pop(partition, None)

    def _sync_sealed(self, appends: Sequence[_PartAppend]) -> None:
        """Sync earlier segments, which seals did or records are lost: later their commits may be deleted."""
        for append in appends:
            for stem in list(self._unflushed.get(append.partition, ())):
                if append.acknowledged and stem != append.acknowledged[-1].stem:
                    self._sync_one(append.partition, stem, 0)

    def _log(self, partition: int) -> PartitionLog:
        """The partition's log; other logs stay open, the last used ones, as many as may."""
        if partition not in self._logs:
            most = max(most_open_logs(self, len(self._logs)), self._group_size)
            # they may have records that the flush policy left unflushed; if that cannot be noted now, they stay open
            for oldest in list(islice(self._logs, max(0, len(self._logs) - most + 1))):
                with suppress(StorageError):
                    self._logs[oldest].close(flushed=False, timeout_s=0)
                    del self._logs[oldest]
            self._logs[partition] = PartitionLog(self._handle, partition, self._current)
        self._logs.move_to_end(partition)
        return self._logs[partition]

    @property
    def is_flushed(self) -> bool:
        return not self._unflushed

    def flush(self) -> None:
        """Return when all appended records are durable, also records that the flush policy left unsynced.

        Raises LostRecordsError if a sync failed, now or in the background, so that acknowledged records are lost, and
        OffsetOutOfRangeError if they are so old that it is unknown; each is raised once. After other errors, the next
        flush tries again.
        """
        with self._lock:
            failure = self._sync()
            error, self._loss = self._loss or failure, None
        if error is not None:
            raise error

    def _sync(self) -> DistlogError | None:
        """Sync each partition; returns an error after which a sync may still succeed."""
        failure: DistlogError | None = None
        for partition, stem in [(partition, stem) for partition, stems in self._unflushed.items() for stem in stems]:
            failure = self._sync_one(partition, stem, self._lock_timeout_s) or failure
        return failure

    def _sync_one(self, partition: int, stem: str, timeout_s: float | None) -> DistlogError | None:
        try:
            self._log(partition).flush(self._unflushed[partition][stem], timeout_s=timeout_s)
        except (LostRecordsError, TopicNotFoundError, OffsetOutOfRangeError) as error:
            # the commits that would show it will not come back either
            self._loss = self._loss or error
        except DistlogError as error:
            return error
        # only now: after an interrupt or an error, the next flush must know the records
        self._forget(partition, stem)
        return None

    def _sync_later(self) -> None:
        flush_ms = self._current.snapshot.config.flush_ms
        if self._timer is None and self._unflushed and flush_ms <= _LONGEST_MS:
            timer = threading.Timer(flush_ms / 1000, self._sync_in_background)
            timer.daemon = True
            with suppress(RuntimeError):  # there can be no more threads: `close` syncs
                timer.start()
                self._timer = timer

    def _sync_in_background(self) -> None:
        with self._lock:
            self._timer = None
            try:
                self._sync()
            finally:
                self._sync_later()

    def close(self) -> None:
        """Flush, and close the files; opened again, no byte of the logs is read, even after a reboot."""
        with self._lock:
            try:
                self.flush()
                partitions = sorted(self._used)
                self._used.clear()
                for group in self._in_groups(partitions):
                    in_parallel(self._checkpoint_of, [self._log(partition) for partition in group])
            finally:
                _close(self._logs, os.getpid())
                without_open_logs(self)

    def _checkpoint_of(self, log: PartitionLog) -> None:
        # the records are durable already
        with suppress(DistlogError):
            log.checkpoint(timeout_s=self._lock_timeout_s)


def _close(logs: OrderedDict[int, PartitionLog], process: int) -> None:
    # a forked child must not wait for the locks of its parent
    while logs and process == os.getpid():
        logs.popitem(last=False)[1].close()


#: The errors after which batches of a producer are tried again.
_RETRIABLE = (StorageError, CommitStateUnknownError, TransactionTooOldError)


class _PartAppend:
    """The append of one partition's batches; an error stops this partition alone."""

    def __init__(self, part: PartitionBatches, fence: Fence | None) -> None:
        self.part, self.partition = part, part.partition
        self._fence = None if fence is None else partial(fence.check, partitions=(part.partition,))
        self._batches: EncodedBatches | None = None
        self._appended: list[Appended] = []
        self._acknowledged = 0
        self._error: BaseException | None = None
        self._is_rest_in_doubt = False

    def encode(self) -> _PartAppend:
        try:
            self._batches = self.part.encode()
        except BaseException as error:
            self._error = error
        return self

    def append(self, log: PartitionLog, timeout_s: float | None) -> None:
        """Append the batches that are not appended, with no record of others between them; see `append_runs`."""
        batches, self._batches = self._batches, None
        if batches is None:
            return
        try:
            part = self.part
            every_run = runs(batches, part.config, part.now_ms, in_transaction=part.form.transactional)
            missing = islice(every_run, len(self._appended), None)
            # closed at once, since it holds the partition's lock
            with closing(log.append_runs(missing, self._fence, timeout_s=timeout_s)) as appends:
                for appended in appends:
                    self._appended.append(appended)
        except DistlogError as error:
            self._error = error
        except BaseException as error:
            # only distlog's errors promise that nothing was appended
            self._error, self._is_rest_in_doubt = error, True
            raise

    def flush(self, log: PartitionLog, timeout_s: float | None = None) -> None:
        """Acknowledge the appended records, after a sync if the topic's flush policy wants one."""
        try:
            for appended in self._appended[self._acknowledged :]:
                if appended.flush_due:
                    log.flush(appended, timeout_s=timeout_s)
                self._acknowledged += 1
        except BaseException as error:
            # it may still be flushed by another process
            self._error = self._error or error

    def fail_remaining(self, error: BaseException) -> None:
        if sum(map(_count, self.acknowledged)) < self.part.record_count:
            self._error = self._error or error

    @property
    def is_retriable(self) -> bool:
        return self.part.has_producer and isinstance(self._error, _RETRIABLE) and not self._is_rest_in_doubt

    def reset(self) -> None:
        """Forget the error before the next try."""
        if isinstance(self._error, LostRecordsError):
            del self._appended[self._acknowledged :]
        self._error = None

    @property
    def acknowledged(self) -> list[Appended]:
        """The records that were appended, and are as safe as the topic wants it; the offsets follow each other."""
        return self._appended[: self._acknowledged]

    @property
    def failures(self) -> list[Failure]:
        """The records without acknowledgement: the ones that may be in the log, and the ones that are not."""
        if self._error is None:
            return []
        doubtful = sum(map(_count, self._appended[self._acknowledged :]))
        missing = self.part.record_count - sum(map(_count, self._appended))
        if self._is_rest_in_doubt:
            doubtful, missing = doubtful + missing, 0
        counts = ((doubtful, True), (missing, False))
        return [Failure(self.partition, count, self._error, in_doubt) for count, in_doubt in counts if count]


def _count(appended: Appended) -> int:
    return appended.end_offset - appended.first_offset
