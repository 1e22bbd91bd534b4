"""A topic that the gateway answers for, and its partitions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from distlog.core.errors import DistlogError, TopicNotFoundError
from distlog.core.log.partition.appended import Appended, AppendInfo
from distlog.core.log.partition.batch_runs import BatchRun
from distlog.core.storage.parallel import in_parallel
from distlog.core.topics.topic import Topic
from distlog.core.transactions.producer_states import FirstBatch
from distlog.gateway.commits.commit_log_producers import CommitLogProducers, ProducersByPartition
from distlog.gateway.commits.gathered_appends import GatheredAppends
from distlog.gateway.commits.gathered_batch import Fence
from distlog.gateway.fresh_topic import FreshTopic
from distlog.gateway.topics.failed_batches import FailedBatches
from distlog.gateway.topics.open_logs import OpenLogs
from distlog.gateway.topics.partition import Partition

T = TypeVar("T")


class HostedTopic(FreshTopic):
    """The topic in the folder `name`; safe between threads. `logs` keeps the files of its partitions open.

    On an object store, appends are gathered for `linger_ms`, or until they are `linger_bytes`.
    """

    def __init__(
        self, name: str, topic: Topic, logs: OpenLogs, linger_ms: int, linger_bytes: int, failed: FailedBatches
    ) -> None:
        super().__init__(name, topic)
        self._failed = failed
        self._gathered = GatheredAppends(self, linger_ms, linger_bytes, ProducersByPartition(self._new_producers))
        self._logs, self._partitions_lock = logs, threading.Lock()
        self._partitions: dict[int, Partition] = {}

    def partition(self, number: int) -> Partition:
        """The partition with this number. Raises TopicNotFoundError."""
        found = self._partitions.get(number)
        if found is None:
            if not 0 <= number < len(self.snapshot.partitions):
                raise TopicNotFoundError("the topic has no such partition", topic=self.name, partition=number)
            with self._partitions_lock:
                found = self._partitions.setdefault(number, self._made(number))
        return found

    def _made(self, number: int) -> Partition:
        return Partition(self, number, self._logs, self._first(number))

    def _new_producers(self, number: int) -> CommitLogProducers:
        return CommitLogProducers(self.topic.reader, self.topic.clock, self._first(number))

    def _first(self, number: int) -> FirstBatch:
        return partial(self._failed.check, self.name, number)

    def append(self, number: int, records: bytes, fence: Fence | None = None) -> Future[AppendInfo]:
        """Append a producer's batch: in place on a local disk, where it is there at once, else with the next commit.

        `fence` says for each snapshot whether the transaction of the batch is open; without it, a batch of a
        transaction is refused. Such a batch is on the device when it is there. The future has the error of an append
        that failed, or was refused. Raises TopicNotFoundError.
        """
        partition = self.partition(number)
        if not self.is_local:
            return self._gathered.append(number, records, fence)

        def append() -> AppendInfo:
            info = partition.append(records, fence)
            if fence is not None:
                partition.sync(info.appended)
            return info

        return _told(append)

    def append_run(self, number: int, run: BatchRun, fence: Fence, *, is_durable: bool = True) -> Appended:
        """Append a batch of the gateway itself, unless `fence` refuses; on the device, unless that may wait.

        Raises the errors of appends, and those of `fence`.
        """
        partition = self.partition(number)
        if not self.is_local:
            return self._gathered.append_runs({number: run}, fence)[number].result().appended
        appended = partition.append_run(run, fence)
        if is_durable:
            partition.sync(appended)
        return appended

    def append_run_later(self, number: int, run: BatchRun, fence: Fence) -> Future[AppendInfo]:
        """On an object store, append a batch of the gateway itself with the next commit; see `append_run`."""
        return self._gathered.append_runs({number: run}, fence, at_once=False)[number]

    def end_transaction(self, markers: Mapping[int, BatchRun], fence: Fence) -> dict[int, Future[Any]]:
        """Have the end markers of a producer's transaction in these partitions on the device, unless `fence` refuses.

        In place, there is none if nothing of the producer is open. In a commit there always is: only so a batch that
        was checked before it, and comes later, meets a conflict, and is checked again. There all are one commit.
        Each future has the error of its partition, those of `append_run`. Raises StorageError.
        """
        if not self.is_local:
            return dict(self._gathered.append_runs(markers, fence))
        told = in_parallel(lambda number: _told(lambda: self._end_in_place(number, markers[number], fence)), markers)
        return dict(zip(markers, told, strict=True))

    def _end_in_place(self, number: int, marker: BatchRun, fence: Fence) -> None:
        partition = self.partition(number)
        # one that is there already may not be on the device: then all is flushed
        partition.sync(partition.end_transaction(marker, fence))

    def hurry(self) -> None:
        """Let no append wait for others: the gateway ends."""
        self._gathered.hurry()

    def close(self) -> None:
        """Have all that was appended on the device, and close the files."""
        self._gathered.close()
        with self._partitions_lock:
            partitions = list(self._partitions.values())
        for partition in partitions:
            # a topic that was dropped has nothing to close
            with suppress(DistlogError):
                partition.close()


def _told(work: Callable[[], T]) -> Future[T]:
    """What comes of the work, which is done now."""
    told: Future[T] = Future()
    try:
        told.set_result(work())
    except Exception as error:
        told.set_exception(error)
    return told
