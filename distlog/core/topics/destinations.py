"""The destinations of a writer's buffers, and the outcomes: one commit, or in place, each partition by itself."""

from __future__ import annotations

import logging
import os
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from distlog.core.batches.record_batch import BatchFormat
from distlog.core.batches.record_encoder import EncodedBatches, RecordEncoder, RecordInput
from distlog.core.commits.current_snapshot import CurrentSnapshot
from distlog.core.commits.snapshot import Snapshot
from distlog.core.config import DAY_MS, TopicConfig
from distlog.core.errors import (
    CommitStateUnknownError,
    DistlogError,
    OffsetOutOfRangeError,
    StorageError,
    TopicNotFoundError,
    TransactionTooOldError,
)
from distlog.core.log.flush import Appended, LostRecordsError
from distlog.core.log.log_validator import ValidBatch, runs
from distlog.core.log.partition_log import PartitionLog, most_open_logs, open_together, without_open_logs
from distlog.core.segments.segment_writer import batch_format, codec_of
from distlog.core.storage.parallel import cores, in_order, in_parallel
from distlog.core.topic_handle import TopicHandle
from distlog.core.topics.append_commit import AppendResult, Transaction
from distlog.core.topics.appendable import normalize
from distlog.core.topics.appender import Partitioner

_log = logging.getLogger("distlog")


@dataclass(frozen=True, slots=True)
class Delivery:
    """The records of one partition in one buffer: at `first_offset` (in) to `end_offset` (out), or an `error`.

    With an error there are no offsets, and records without a key have no partition, since none was chosen for them.
    """

    partition: int | None
    first_offset: int | None
    end_offset: int | None
    record_count: int
    error: BaseException | None


OnDelivery = Callable[[Delivery], object]


def delivered(result: AppendResult) -> list[Delivery]:
    return [Delivery(number, first, end, end - first, None) for number, (first, end) in result.offsets.items()]


def failed(counts: Mapping[int | None, int], error: BaseException | None) -> list[Delivery]:
    return [Delivery(number, None, None, count, error) for number, count in counts.items()]


def deliver(deliveries: Iterable[Delivery], call: OnDelivery) -> None:
    """Call `call` for each delivery; errors of a call are logged."""
    for delivery in deliveries:
        try:
            call(delivery)
        except BaseException:  # noqa: PERF203 - none must end the thread that commits, or keep the next from its call
            _log.exception("the on_delivery of a writer failed with %r", delivery)


class Failure(NamedTuple):
    """Records of one partition that were not appended, or, if `in_doubt`, may have been."""

    partition: int
    record_count: int
    error: BaseException
    in_doubt: bool


class SendResult(NamedTuple):
    result: AppendResult
    deliveries: list[Delivery]
    failures: Sequence[Failure] = ()


class Destination(Protocol):
    """Takes the buffers of one writer, one at a time."""

    def send(self, records: pa.RecordBatch) -> SendResult:
        """Append the records; an error that is raised concerns all of them."""

    @property
    def is_flushed(self) -> bool:
        """True if all records sent are known to be durable."""

    def flush(self) -> None:
        """Return when all records sent are durable."""

    def close(self) -> None:
        """Flush, and close files; a later `send` opens them again."""

    def begin_child(self) -> None:
        """Become usable in a forked child, in any state of the parent's threads."""


class WritableTopic(Protocol):
    """The part of a topic that a writer needs."""

    @property
    def handle(self) -> TopicHandle: ...

    @property
    def current(self) -> CurrentSnapshot: ...

    def destination(self, compression: str | None) -> Destination: ...


class CommitDestination:
    """Commits each buffer: on object stores and network mounts. A commit is durable, so there is nothing to flush."""

    def __init__(self, handle: TopicHandle, current: CurrentSnapshot, compression: str | None) -> None:
        self._handle, self._current, self._compression = handle, current, compression

    def send(self, records: pa.RecordBatch) -> SendResult:
        result = self._commit(records)
        return SendResult(result, delivered(result))

    def _commit(self, records: pa.RecordBatch) -> AppendResult:
        with Transaction(self._handle, self._current, compression=self._compression) as transaction:
            transaction.append(records)
        return transaction.result

    @property
    def is_flushed(self) -> bool:
        return True

    def flush(self) -> None:
        """There is nothing to flush."""

    def close(self) -> None:
        """There is nothing to close."""

    def begin_child(self) -> None:
        """There is nothing that a fork could harm."""


#: Roughly the most bytes that a batch of a few records takes in addition to them.
_SPARE_BYTES = 1 << 12
#: A buffer of fewer bytes is encoded faster than threads can share it.
_SHARED_BYTES = 1 << 20
#: The errors after which a producer sends again.
_PASSING = (StorageError, CommitStateUnknownError, TransactionTooOldError)


class Encoding(NamedTuple):
    config: TopicConfig
    form: BatchFormat
    now_ms: int


class PartitionBuffer:
    """The `rows` of `source`, which go to `partition`, and their outcome; an error stops this partition alone."""

    def __init__(self, partition: int, source: RecordInput, rows: npt.NDArray[np.int64], record_bytes: int) -> None:
        self.partition, self._source, self._rows = partition, source, rows
        self._room = record_bytes + 8 * len(rows) + _SPARE_BYTES
        self._batches: EncodedBatches | None = None
        self._in_transaction = False
        self._appended: list[Appended] = []
        self._acknowledged = 0
        self._error: BaseException | None = None
        self._rest_in_doubt = False

    def encode(self, encoding: Encoding) -> PartitionBuffer:
        self._in_transaction = encoding.form.transactional
        try:
            encoder = RecordEncoder(encoding.form, gather_bytes=sys.maxsize, room=self._room)
            # one step takes all rows, since `gather_bytes` has no limit here
            next(encoder.append(self._source, self._rows), None)
            self._batches = encoder.finish()
        except BaseException as error:
            self._error = error
        return self

    def batches(self) -> list[ValidBatch]:
        if self._error is not None:
            raise self._error
        encoded = self._batches
        assert encoded is not None
        data = np.frombuffer(encoded.data, np.uint8)
        rows, firsts = encoded.batches.copy(), encoded.batches["base_offset"]
        ends = rows["position"] + rows["size"]
        newest = np.where(encoded.offsets_of_max_timestamp < 0, -1, encoded.offsets_of_max_timestamp - firsts)
        pieces = [data[begin:end] for begin, end in zip(rows["position"].tolist(), ends.tolist(), strict=True)]
        rows["position"] = rows["base_offset"] = 0
        facts = zip(pieces, newest.tolist(), encoded.min_timestamps.tolist(), strict=True)
        return [ValidBatch(piece, rows[at : at + 1], *times) for at, (piece, *times) in enumerate(facts)]

    def append(
        self,
        log: PartitionLog,
        encoding: Encoding,
        fence: Callable[[Snapshot], None] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Append the batches that are not appended, with no record of others between them; see `append_runs`."""
        batches, self._batches = self._batches, None
        if batches is None:
            return
        try:
            # closed at once, since it holds the partition's lock
            all_runs = runs(batches, encoding.config, encoding.now_ms, in_transaction=self._in_transaction)
            open_runs = islice(all_runs, len(self._appended), None)
            with closing(log.append_runs(open_runs, fence, timeout_s=timeout_s)) as places:
                for appended in places:
                    self._appended.append(appended)
        except DistlogError as error:
            self._error = error
        except BaseException as error:
            # only distlog's errors promise that nothing was appended
            self._error, self._rest_in_doubt = error, True
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

    def stop(self, error: BaseException) -> None:
        if sum(map(_count, self.acknowledged)) < len(self._rows):
            self._error = self._error or error

    @property
    def record_count(self) -> int:
        return len(self._rows)

    @property
    def is_done(self) -> bool:
        return self._error is None

    @property
    def may_succeed_later(self) -> bool:
        return isinstance(self._error, _PASSING) and not self._rest_in_doubt

    def begin_again(self) -> None:
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
        rest = len(self._rows) - sum(map(_count, self._appended))
        if self._rest_in_doubt:
            doubtful, rest = doubtful + rest, 0
        counts = ((doubtful, True), (rest, False))
        return [Failure(self.partition, count, self._error, in_doubt) for count, in_doubt in counts if count]


def _count(appended: Appended) -> int:
    return appended.end_offset - appended.first_offset


class Router:
    """Sends records to partitions, and chooses their encoding."""

    def __init__(self, handle: TopicHandle, compression: str | None) -> None:
        self._handle, self._compression = handle, compression
        self._partitioner: tuple[int, Partitioner] | None = None

    def route(self, records: pa.RecordBatch, snapshot: Snapshot) -> tuple[list[PartitionBuffer], Encoding]:
        config, handle, count = snapshot.config, self._handle, len(snapshot.partitions)
        form = batch_format(config, codec_of(config, self._compression), handle.clock, handle.random)
        encoding = Encoding(config, form, handle.clock())
        records = normalize(records, config, encoding.now_ms)
        source = RecordInput.from_arrow(records)
        if self._partitioner is None or self._partitioner[0] != count:
            self._partitioner = count, Partitioner(count, handle.random.randrange(count))
        parts = [
            PartitionBuffer(partition, source, rows, records.nbytes * len(rows) // records.num_rows)
            for partition, rows in self._partitioner[1].split(records)
        ]
        return parts, encoding


def workers_for(records: pa.RecordBatch) -> int:
    return cores() if records.nbytes >= _SHARED_BYTES else 1


#: With a longer `flush.ms` there is no sync in the background.
_LONGEST_MS = DAY_MS

Item = TypeVar("Item")


class InPlaceDestination:
    """Appends each buffer to the active segments of its partitions, on a local disk; then calls `moved_on`.

    Partitions succeed or fail by themselves. By default, records are acknowledged when they are durable; readers may
    see them earlier. A topic's flush policy may leave syncs to later, to `flush` and `close` at the latest.
    `lock_timeout_s` limits the wait for each lock.
    """

    def __init__(
        self,
        handle: TopicHandle,
        current: CurrentSnapshot,
        compression: str | None,
        moved_on: Callable[[], None],
        lock_timeout_s: float | None = None,
    ) -> None:
        self._handle, self._current, self._moved_on = handle, current, moved_on
        self._lock_timeout_s = lock_timeout_s
        self._router = Router(handle, compression)
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
        self._lost: DistlogError | None = None
        # the partitions that were appended to since the last `close`
        self._used = set[int]()

    def send(self, records: pa.RecordBatch) -> SendResult:
        """Append the records, each partition's in their order."""
        with self._lock:
            snapshot = self._current.refresh()
            parts, encoding = self._router.route(records, snapshot)
            workers = workers_for(records)
            try:
                for some in self._in_groups(parts):
                    self._append(some, encoding, workers)
            except BaseException as error:
                for part in parts:
                    part.stop(error)
            finally:
                self._moved_on()
        offsets = {
            part.partition: (part.acknowledged[0].first_offset, part.acknowledged[-1].end_offset)
            for part in parts
            if part.acknowledged
        }
        result = AppendResult(None, offsets)
        return SendResult(result, delivered(result), [failure for part in parts for failure in part.failures])

    def _append(self, parts: Sequence[PartitionBuffer], encoding: Encoding, workers: int) -> None:
        """Append while threads encode the next partitions; then flush all partitions in parallel."""
        encodings = (partial(part.encode, self._encoding_of(part.partition, encoding)) for part in parts)
        ahead = 2 * workers if workers > 1 else 0
        try:
            self._open([part.partition for part in parts])
            for part in in_order(encodings, ahead, workers=workers, joined=True):
                part.append(self._log(part.partition), encoding, self._fence_of(part.partition), self._lock_timeout_s)
            appended = [(part, self._log(part.partition)) for part in parts]
            in_parallel(lambda each: each[0].flush(each[1], self._lock_timeout_s), appended)
        finally:
            # an interrupt may come when some records are acknowledged already
            self._note_unflushed(parts)
        self._settle_sealed(parts)

    def _in_groups(self, items: Sequence[Item]) -> Iterator[Sequence[Item]]:
        """The items in groups of as many partitions as may have open files; a group's logs stay open."""
        self._group_size = size = most_open_logs(self, len(self._logs))
        return (items[first : first + size] for first in range(0, len(items), size))

    def _encoding_of(self, partition: int, encoding: Encoding) -> Encoding:
        return encoding

    def _fence_of(self, partition: int) -> Callable[[Snapshot], None] | None:
        """The check that may refuse an append; see `PartitionLog.append_runs`."""
        return None

    def _open(self, partitions: Sequence[int]) -> None:
        """Create the missing active segments in one commit, since each commit costs several syncs."""
        self._used.update(partitions)
        states = self._current.snapshot.partitions
        missing = [partition for partition in partitions if states[partition].active is None]
        if len(missing) > 1:
            # a partition that cannot be opened raises that itself, and keeps no other from it
            with suppress(DistlogError):
                open_together([self._log(partition) for partition in missing])

    def _note_unflushed(self, parts: Sequence[PartitionBuffer]) -> None:
        for part in parts:
            for appended in part.acknowledged:
                if appended.flush_due:
                    self._forget(part.partition, appended.stem)
                else:
                    self._unflushed.setdefault(part.partition, {})[appended.stem] = appended
        self._sync_later()

    def _forget(self, partition: int, stem: str) -> None:
        stems = self._unflushed.get(partition, {})
        stems.pop(stem, None)
        if not stems:
            self._unflushed.pop(partition, None)

    def _settle_sealed(self, parts: Sequence[PartitionBuffer]) -> None:
        """Sync earlier segments, which seals did or records are lost: later their commits may be deleted."""
        for part in parts:
            for stem in list(self._unflushed.get(part.partition, ())):
                if part.acknowledged and stem != part.acknowledged[-1].stem:
                    self._sync_one(part.partition, stem, 0)

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
        """Return when all records sent are durable, also records that the flush policy left unsynced.

        Raises LostRecordsError if a sync failed, now or in the background, so that acknowledged records are lost, and
        OffsetOutOfRangeError if they are so old that it is unknown; each is raised once. After other errors, the next
        flush tries again.
        """
        with self._lock:
            failed = self._sync()
            error, self._lost = self._lost or failed, None
        if error is not None:
            raise error

    def _sync(self) -> DistlogError | None:
        """Sync each partition; returns an error after which a sync may still succeed."""
        failed: DistlogError | None = None
        for partition, stem in [(partition, stem) for partition, stems in self._unflushed.items() for stem in stems]:
            failed = self._sync_one(partition, stem, self._lock_timeout_s) or failed
        return failed

    def _sync_one(self, partition: int, stem: str, timeout_s: float | None) -> DistlogError | None:
        try:
            self._log(partition).flush(self._unflushed[partition][stem], timeout_s=timeout_s)
        except (LostRecordsError, TopicNotFoundError, OffsetOutOfRangeError) as error:
            # the commits that would show it will not come back either
            self._lost = self._lost or error
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
                used = sorted(self._used)
                self._used.clear()
                for some in self._in_groups(used):
                    in_parallel(self._checkpoint_of, [self._log(partition) for partition in some])
            finally:
                _close(self._logs, os.getpid())
                without_open_logs(self)

    def _checkpoint_of(self, log: PartitionLog) -> None:
        # the records sent are on the device already
        with suppress(DistlogError):
            log.checkpoint(timeout_s=self._lock_timeout_s)


def _close(logs: OrderedDict[int, PartitionLog], process: int) -> None:
    # a forked child must not wait for the locks of its parent
    while logs and process == os.getpid():
        logs.popitem(last=False)[1].close()
