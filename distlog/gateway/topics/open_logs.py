"""Keeps the files of partitions that are appended to open, but not of too many at once."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress

from distlog.core.errors import DistlogError
from distlog.core.log.partition.partition_log import PartitionLog

#: How many partitions' files stay open; each partition has about ten.
OPEN_LOGS = 64


class _NotOpenError(Exception):
    """The log was closed meanwhile, so there is nothing to do."""


def _not_open() -> PartitionLog:
    raise _NotOpenError


class OpenLogs:
    """Logs by partition, for many threads: those in use, and of the others the ones that were used last."""

    def __init__(self, limit: int = OPEN_LOGS) -> None:
        self._limit, self._lock = limit, threading.Lock()
        self._logs: OrderedDict[Hashable, PartitionLog] = OrderedDict()
        self._users = Counter[Hashable]()
        # those that are closed when nobody uses them any more
        self._ending = set[Hashable]()

    @contextmanager
    def use(self, partition: Hashable, open_log: Callable[[], PartitionLog]) -> Iterator[PartitionLog]:
        """The partition's log, which stays open meanwhile."""
        with self._lock:
            log = self._logs.get(partition)
            if log is None:
                log = self._logs[partition] = open_log()
            self._logs.move_to_end(partition)
            self._users[partition] += 1
        try:
            yield log
        finally:
            for other in self._release(partition):
                # it may have what the flush policy left unflushed
                other.close(flushed=False)

    def flush_due(self) -> None:
        """Flush the logs for which their topics' flush policies ask now."""
        with self._lock:
            partitions = list(self._logs)
        for partition in partitions:
            # who waits for such records is told of an error by the log itself
            with suppress(DistlogError, _NotOpenError), self.use(partition, _not_open) as log:
                log.flush_if_due()

    def close(self, partition: Hashable) -> None:
        """Close the partition's log, after a checkpoint, if it is open: now, or when nobody uses it any more."""
        with self._lock:
            if partition in self._users:
                self._ending.add(partition)
                return
            log = self._logs.pop(partition, None)
        if log is not None:
            try:
                log.checkpoint()
            finally:
                log.close()

    def _release(self, partition: Hashable) -> list[PartitionLog]:
        with self._lock:
            self._users[partition] -= 1
            if self._users[partition]:
                return []
            del self._users[partition]
            if len(self._logs) <= self._limit and partition not in self._ending:
                return []
            unused = [each for each in self._logs if each not in self._users]
            too_many = max(len(self._logs) - self._limit, 0)
            closed = set(unused[:too_many]) | (self._ending & {partition})
            self._ending -= closed
            return [self._logs.pop(each) for each in unused if each in closed]
