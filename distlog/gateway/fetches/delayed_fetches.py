"""Fetches that wait for records: Kafka's purgatory of DelayedFetch.

An append through this gateway wakes those that it completes. What other processes append is looked for now and then.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from distlog.core.errors import DistlogError
from distlog.gateway.server.request import Request
from distlog.gateway.topics.partition import Partition, VisibleEnd

_log = logging.getLogger("distlog.gateway")
#: How often the ends of local logs are looked at while somebody waits; the looks take at most a tenth of the time.
_LOOK_S = 0.02
_SHARE = 10


@dataclass(slots=True, eq=False)
class DelayedFetch:
    """A fetch that waits until `missing` bytes have come, or until `deadline_s` of the monotonic clock.

    `seen` is up to where it has looked, by partition.
    """

    request: Request
    deadline_s: float
    committed: bool
    missing: int = 0
    seen: dict[Partition, VisibleEnd] = field(default_factory=dict)
    is_waiting: bool = False

    @property
    def is_over(self) -> bool:
        """Whether it must be answered now, whatever there is."""
        return time.monotonic() >= self.deadline_s

    @property
    def is_complete(self) -> bool:
        """Whether enough has come since, or a partition cannot be read any more, which it must tell."""
        grown = 0
        for partition, before in self.seen.items():
            now = _end_of(partition, self.committed)
            if now is None or now.offset < before.offset:
                return True
            if now.offset > before.offset:
                # a merge makes a log smaller; what came is some bytes then
                grown += max(now.log_bytes - before.log_bytes, 1)
        return grown > 0 and grown >= self.missing


class DelayedFetches:
    """All fetches that wait, for many threads; `again` has a request handled again."""

    def __init__(self, again: Callable[[Request], None], refresh_ms: int) -> None:
        self._again, self._refresh_ms = again, refresh_ms
        self._lock = threading.Lock()
        self._waiting: dict[DelayedFetch, None] = {}
        self._of: defaultdict[Partition, set[DelayedFetch]] = defaultdict(set)
        self._changed, self.is_stopped = threading.Event(), False
        self._thread = threading.Thread(target=self._look_now_and_then, name="delayed-fetches", daemon=True)

    def __len__(self) -> int:
        return len(self._waiting)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Have all that wait answered now, and those that come."""
        self.is_stopped = True
        self._changed.set()
        self._wake(list(self._waiting))

    def wait(self, delayed: DelayedFetch) -> bool:
        """Have `delayed` wait; False if it must not, since enough has come meanwhile, or it is over."""
        with self._lock:
            if self.is_stopped or delayed.is_over:
                return False
            delayed.is_waiting = True
            self._waiting[delayed] = None
            for partition in delayed.seen:
                self._of[partition].add(delayed)
        self._changed.set()
        # what came after it had looked, and before it waited, woke nobody
        return not (delayed.is_complete and self._taken(delayed))

    def appended(self, partition: Partition) -> None:
        """Wake the fetches that are complete now; call it after each append."""
        if partition in self._of:
            with self._lock:
                found = list(self._of.get(partition, ()))
            self._wake([delayed for delayed in found if delayed.is_complete])

    def _wake(self, found: list[DelayedFetch]) -> None:
        for delayed in found:
            if self._taken(delayed):
                self._again(delayed.request)

    def _taken(self, delayed: DelayedFetch) -> bool:
        """Take it from those that wait; False if another thread has done so."""
        with self._lock:
            if not delayed.is_waiting:
                return False
            delayed.is_waiting = False
            del self._waiting[delayed]
            for partition in delayed.seen:
                self._of[partition].discard(delayed)
                if not self._of[partition]:
                    del self._of[partition]
            return True

    def _look_now_and_then(self) -> None:
        while not self.is_stopped:
            if not self._waiting:
                self._changed.wait()
                self._changed.clear()
                continue
            begun_s = time.monotonic()
            try:
                self._look()
            except Exception:
                _log.exception("a look for new records failed")
            took_s = time.monotonic() - begun_s
            time.sleep(max(_LOOK_S, _SHARE * took_s))

    def _look(self) -> None:
        """Wake what is over, what is complete by other processes, and what nobody waits for any more."""
        with self._lock:
            waiting, partitions = list(self._waiting), list(self._of)
        for topic in {partition.fresh for partition in partitions if not partition.fresh.is_local}:
            # an error is told by the fetches that it wakes
            with suppress(DistlogError, OSError):
                topic.refresh(self._refresh_ms)
        self._wake([each for each in waiting if each.is_over or each.request.is_gone or each.is_complete])


def _end_of(partition: Partition, committed: bool) -> VisibleEnd | None:
    try:
        return partition.visible_end(committed=committed)
    except (DistlogError, OSError):
        return None
