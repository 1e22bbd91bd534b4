"""Bounds the bytes of all requests that are received or handled (Kafka's queued.max.request.bytes).

Used by the network's thread alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

#: Smaller requests are always taken, so that large ones that do not arrive keep nobody else from working.
_ALWAYS_TAKEN = 64 << 10


class RequestMemory:
    """`limit` bytes for large requests. One alone may be larger than that."""

    def __init__(self, limit: int) -> None:
        self._limit, self.used = limit, 0
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    def take(self, size: int, go_on: Callable[[], None]) -> bool:
        """Take memory for a request of so many bytes; if there is none now, `go_on` is called when it was taken."""
        if size <= _ALWAYS_TAKEN or self._has(size):
            self.used += size
            return True
        self._waiting.append((size, go_on))
        return False

    def give_back(self, size: int) -> None:
        """Give back what was taken, and let others go on."""
        self.used -= size
        while self._waiting and self._has(self._waiting[0][0]):
            size, go_on = self._waiting.popleft()
            self.used += size
            go_on()

    def _has(self, size: int) -> bool:
        return self.used == 0 or self.used + size <= self._limit
