"""Fetches that wait for records, and appends that wait for a partition's lock (Kafka's purgatories)."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Generic, TypeVar

from distlog.core.errors import DistlogError
from distlog.core.log.partition_log import SHORT_WAIT_S
from distlog.gateway.server.fairness import CpuShare, change_count
from distlog.gateway.server.request import Request
from distlog.gateway.topics.partition import Partition, VisibleEnd

#: A fetch gets at most a quarter of the free memory, or _MIN_BYTES: a few slow clients cannot occupy all memory.
_FREE_MEMORY_DIVISOR = 4
_MIN_BYTES = 64 << 10


class FetchMemory:
    """`limit` bytes for records, from their fetch until the client has received the response."""

    def __init__(self, limit: int) -> None:
        self._limit, self.used, self._lock = limit, 0, threading.Lock()

    def reserve(self, size: int) -> int:
        """Reserve up to `size` bytes before records are read. Returns the reserved bytes, 0 if none are free."""
        with self._lock:
            free = max(self._limit - self.used, 0)
            size = min(size, max(free // _FREE_MEMORY_DIVISOR, min(free, _MIN_BYTES)))
            self.used += size
            return size

    def release(self, size: int) -> None:
        """Release bytes that were not read, or were sent. A negative `size` counts bytes that were not reserved."""
        with self._lock:
            self.used -= size


_log = logging.getLogger("distlog.gateway")
#: A pause takes this many times as long as the check before it, but at most the longest pause.
_PAUSE_FACTOR = 10

Operation = TypeVar("Operation", bound="DelayedOperation")


class _Purgatory(ABC, Generic[Operation]):
    """Requests that wait. A thread checks them, with pauses of `shortest_s` to `longest_s`."""

    def __init__(self, name: str, retry: Callable[[Request], None], shortest_s: float, longest_s: float) -> None:
        self._name, self._retry, self._shortest_s, self._longest_s = name, retry, shortest_s, longest_s
        self._lock = threading.Lock()
        self._waiting: dict[Operation, None] = {}
        self._changed, self.is_stopped = threading.Event(), False
        self._thread = threading.Thread(target=self._check_periodically, name=name, daemon=True)

    def __len__(self) -> int:
        return len(self._waiting)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Let handlers answer all waiting requests now. Later requests do not wait."""
        self.is_stopped = True
        self._changed.set()
        with self._lock:
            waiting = list(self._waiting)
        self._wake(waiting)

    def _add(self, operation: Operation) -> bool:
        """Let a request wait. Returns False if its time is over, or if the gateway is stopping."""
        with self._lock:
            if self.is_stopped or operation.is_over:
                return False
            operation.is_waiting = True
            self._waiting[operation] = None
            self._watch(operation)
        self._changed.set()
        return True

    def _wake(self, waiting: Iterable[Operation]) -> None:
        """Let handlers handle these requests again, except those that another thread has woken."""
        for operation in waiting:
            if self._claim(operation):
                self._retry(operation.request)

    def _claim(self, operation: Operation) -> bool:
        """End the wait of a request. Returns False if another thread has already ended it."""
        with self._lock:
            if not operation.is_waiting:
                return False
            operation.is_waiting = False
            del self._waiting[operation]
            self._unwatch(operation)
            return True

    @abstractmethod
    def _watch(self, operation: Operation) -> None:
        """Note what a request waits for. The lock is held."""

    def _unwatch(self, operation: Operation) -> None:
        """Forget what a request waited for. The lock is held."""

    @abstractmethod
    def _check(self) -> None:
        """Wake the requests that need not wait any longer, or whose time is over."""

    def _check_periodically(self) -> None:
        while not self.is_stopped:
            if not self._waiting:
                self._changed.wait()
                self._changed.clear()
                continue
            started_s = time.monotonic()
            try:
                self._check()
            except Exception:
                _log.exception("a check by %s failed", self._name)
            duration_s = time.monotonic() - started_s
            time.sleep(min(max(self._shortest_s, _PAUSE_FACTOR * duration_s), self._longest_s))


#: The shortest and the longest pause between checks for new records while fetches wait.
_CHECK_S, _MAX_CHECK_PAUSE_S = 0.02, 1.0
#: The most partitions that fetches watch. A partition counts once for each fetch that watches it.
_MAX_WATCHED = 200_000
#: The most fetches of one client that an append wakes, since this delays the append's response.
_MAX_WOKEN = 16


@dataclass(slots=True, eq=False)
class DelayedOperation:
    request: Request
    deadline_s: float
    is_waiting: bool = field(default=False, init=False)

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.deadline_s


@dataclass(slots=True, eq=False)
class DelayedFetch(DelayedOperation):
    """A fetch that waits for `missing` bytes of new records."""

    committed: bool
    #: The requested partitions, by the topic's name or id and the partition's number.
    partitions: Mapping[tuple[str | uuid.UUID, int], Any]
    missing: int = 0
    #: The ends of the partitions when they were read. Records past these ends are new.
    visible_ends: dict[Partition, VisibleEnd] = field(default_factory=dict)
    #: The partitions whose appends wake the fetch; none if the client watches too many.
    watched: tuple[Partition, ...] = ()

    def is_complete(self, ends: _VisibleEnds, partitions: Iterable[Partition]) -> bool:
        """Whether these partitions have enough new records, or a partition cannot be read any more."""
        growths = [self._growth(partition, ends) for partition in partitions]
        if None in growths:
            return True
        new_bytes = sum(growth or 0 for growth in growths)
        return new_bytes > 0 and new_bytes >= self.missing

    def _growth(self, partition: Partition, ends: _VisibleEnds) -> int | None:
        """The bytes of new records; None if the partition cannot be read any more."""
        current, previous = ends(partition, self.committed), self.visible_ends.get(partition)
        # another thread has read the fetch again, which does not wait for this partition any more
        if previous is None:
            return 0
        if current is None or current.offset < previous.offset:
            return None
        # at least one byte for new records, since a merge may make the log smaller
        return max(current.log_bytes - previous.log_bytes, 1) if current.offset > previous.offset else 0


#: Returns a partition's visible end, None after an error. The bool is True for readers of committed records.
_VisibleEnds = Callable[[Partition, bool], VisibleEnd | None]


def _visible_end(partition: Partition, committed: bool) -> VisibleEnd | None:
    with suppress(DistlogError, OSError):
        return partition.visible_end(committed=committed)
    return None


class DelayedFetches(_Purgatory[DelayedFetch]):
    """The waiting fetches. Appends of this process wake them. The thread checks for appends of other processes."""

    def __init__(self, handle_again: Callable[[Request], None], refresh_ms: int) -> None:
        super().__init__("delayed-fetches", handle_again, _CHECK_S, _MAX_CHECK_PAUSE_S)
        self._refresh_ms = refresh_ms
        # the fetches that watch each partition, from their wait until they are read again
        self._by_partition: defaultdict[Partition, dict[DelayedFetch, None]] = defaultdict(dict)
        # by owner: the number of partitions that the owner's fetches watch
        self._watched = Counter[CpuShare]()

    def wait(self, fetch: DelayedFetch) -> bool:
        """Let a fetch wait. Returns False if there are already enough records, or if its time is over."""
        if not self._add(fetch):
            return False
        # check again, since an append between the read and this wait has not woken the fetch
        return not (fetch.is_complete(_visible_end, fetch.watched) and self._claim(fetch))

    def forget(self, fetch: DelayedFetch) -> None:
        """Stop watching the partitions of a fetch that is read again."""
        if not fetch.watched:
            return
        owner = _owner(fetch)
        with self._lock:
            change_count(self._watched, owner, -len(fetch.watched))
            for partition in fetch.watched:
                fetches = self._by_partition[partition]
                del fetches[fetch]
                if not fetches:
                    del self._by_partition[partition]
            fetch.watched = ()

    def on_append(self, partition: Partition) -> None:
        if partition not in self._by_partition:
            return
        fetches_of_share, waiting = Counter[CpuShare](), list[DelayedFetch]()
        with self._lock:
            for fetch in self._by_partition.get(partition, ()):
                # count also fetches that were woken, but are not read again yet
                fetches_of_share[fetch.request.share] += 1
                if fetch.is_waiting and fetches_of_share[fetch.request.share] <= _MAX_WOKEN:
                    waiting.append(fetch)
        ends = cache(_visible_end)
        self._wake([fetch for fetch in waiting if fetch.is_complete(ends, [partition])])

    def _watch(self, fetch: DelayedFetch) -> None:
        owner = _owner(fetch)
        watched_by_others = self._watched.total() - self._watched[owner]
        # an owner's fetches may watch half of what other owners leave of _MAX_WATCHED
        if self._watched[owner] + len(fetch.visible_ends) > (_MAX_WATCHED - watched_by_others) // 2:
            return
        fetch.watched = tuple(fetch.visible_ends)
        self._watched[owner] += len(fetch.watched)
        for partition in fetch.watched:
            self._by_partition[partition][fetch] = None

    def _check(self) -> None:
        with self._lock:
            waiting, partitions = list(self._waiting), list(self._by_partition)
        for topic in {partition.hosted for partition in partitions if not partition.hosted.is_local}:
            # the fetches of this topic get the error when they read again
            with suppress(DistlogError, OSError):
                topic.refresh(self._refresh_ms)
        ends = cache(_visible_end)
        self._wake(
            fetch
            for fetch in waiting
            if fetch.is_over or fetch.request.is_gone or fetch.is_complete(ends, fetch.watched)
        )


def _owner(fetch: DelayedFetch) -> CpuShare:
    share = fetch.request.share
    return share.parent or share


# A waiting append occupies no handler. So a lock that is held for long delays only the producers of its partition.

#: The shortest and the longest pause between checks of locks while requests wait.
_APPEND_CHECK_S, _MAX_APPEND_PAUSE_S = 0.005, 0.1


@dataclass(slots=True, eq=False)
class DelayedAppend(DelayedOperation):
    """A produce request that waits for `locks`: for a partition's flush lock (True) or append lock (False)."""

    #: Whether the request is appended even after its client has disconnected.
    is_needed: bool
    locks: dict[Partition, bool] = field(default_factory=dict, init=False)

    @property
    def is_dropped(self) -> bool:
        """Whether no more of the request is appended, since its client has disconnected."""
        return self.request.is_gone and not self.is_needed

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.deadline_s or self.is_dropped


class DelayedAppends(_Purgatory[DelayedAppend]):
    def __init__(self, handle_again: Callable[[Request], None]) -> None:
        super().__init__("delayed-appends", handle_again, _APPEND_CHECK_S, _MAX_APPEND_PAUSE_S)
        self._wait_counts = Counter[Partition]()

    def max_wait_s(self, partition: Partition) -> float:
        """The seconds that a handler may wait for a lock: 0 if other requests already wait for this partition."""
        return 0 if partition in self._wait_counts else SHORT_WAIT_S

    def wait(self, append: DelayedAppend, locks: Mapping[Partition, bool]) -> bool:
        """Let a request wait for locks. Returns False if its time is over."""
        append.locks = dict(locks)
        return self._add(append)

    def _watch(self, append: DelayedAppend) -> None:
        self._wait_counts.update(append.locks.keys())

    def _unwatch(self, append: DelayedAppend) -> None:
        for partition in append.locks:
            change_count(self._wait_counts, partition, -1)

    def _check(self) -> None:
        with self._lock:
            waiting = list(self._waiting)
        locks = {lock for append in waiting for lock in append.locks.items()}
        free = {(partition, flush) for partition, flush in locks if _is_free(partition, flush)}
        self._wake([append for append in waiting if append.is_over or not free.isdisjoint(append.locks.items())])


def _is_free(partition: Partition, flush: bool) -> bool:
    try:
        return partition.is_free(flush=flush)
    except Exception:  # the request tries again, and gets the error itself
        return True
