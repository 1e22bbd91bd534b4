"""A topic that the gateway answers for, and its partitions."""

from __future__ import annotations

import threading
from contextlib import suppress

from distlog.core.errors import DistlogError, TopicNotFoundError
from distlog.core.topics.topic import Topic
from distlog.gateway.fresh_topic import FreshTopic
from distlog.gateway.open_logs import OpenLogs
from distlog.gateway.partition import Partition


class HostedTopic(FreshTopic):
    """The topic in the folder `name`; safe between threads. `logs` keeps the files of its partitions open."""

    def __init__(self, name: str, topic: Topic, logs: OpenLogs) -> None:
        super().__init__(name, topic)
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

    def close(self) -> None:
        """Have all that was appended on the device, and close the files."""
        with self._partitions_lock:
            partitions = list(self._partitions.values())
        for partition in partitions:
            # a topic that was dropped has nothing to close
            with suppress(DistlogError):
                partition.close()
