"""A topic that the gateway answers for, and its partitions."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from contextlib import suppress

from distlog.core.errors import DistlogError, TopicNotFoundError
from distlog.core.log.appended import AppendInfo
from distlog.core.topics.topic import Topic
from distlog.gateway.fresh_topic import FreshTopic
from distlog.gateway.gathered_appends import GatheredAppends
from distlog.gateway.open_logs import OpenLogs
from distlog.gateway.partition import Partition


class HostedTopic(FreshTopic):
    """The topic in the folder `name`; safe between threads. `logs` keeps the files of its partitions open.

    On an object store, appends are gathered for `linger_ms`, or until they are `linger_bytes`.
    """

    def __init__(self, name: str, topic: Topic, logs: OpenLogs, linger_ms: int, linger_bytes: int) -> None:
        super().__init__(name, topic)
        self._gathered = GatheredAppends(self, linger_ms, linger_bytes)
        self._logs, self._partitions_lock = logs, threading.Lock()
        self._partitions: dict[int, Partition] = {}

    def partition(self, number: int) -> Partition:
        """The partition with this number. Raises TopicNotFoundError."""
        found = self._partitions.get(number)
        if found is None:
            if not 0 <= number < len(self.snapshot.partitions):
                raise TopicNotFoundError("the topic has no such partition", topic=self.name, partition=number)
            with self._partitions_lock:
                found = self._partitions.setdefault(number, Partition(self, number, self._logs))
        return found

    def append(self, number: int, records: bytes, *, in_transaction: bool = False) -> Future[AppendInfo]:
        """Append a producer's batch: in place on a local disk, where it is there at once, else with the next commit.

        Batches `in_transaction` are for a local disk alone. The future has the error of an append that failed.
        Raises TopicNotFoundError.
        """
        partition = self.partition(number)
        if not self.is_local:
            return self._gathered.append(number, records)
        told: Future[AppendInfo] = Future()
        try:
            told.set_result(partition.append(records, in_transaction=in_transaction))
        except Exception as error:
            told.set_exception(error)
        return told

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
