"""Bounds the bytes of all requests that are received or handled (Kafka's queued.max.request.bytes).

Used by the network's thread alone.
"""

from __future__ import annotations

from collections.abc import Callable

#: So much of a request is always taken, so that large ones that do not arrive keep nobody else from working.
_ALWAYS_TAKEN = 64 << 10


class RequestMemory:
    """`limit` bytes for large requests. One alone may be larger than that.

    Parts of requests are there while they wait for memory for the rest. When all that have some wait, one of them
    goes on beyond the limit, or none ever would.
    """

    def __init__(self, limit: int) -> None:
        self._limit, self.used = limit, 0
        self._holders = set[MemoryShare]()
        self._waiting: dict[MemoryShare, tuple[int, Callable[[], None]]] = {}

    def take(self, share: MemoryShare, size: int, go_on: Callable[[], None]) -> bool:
        """Take so many bytes more for a request; if there are none now, `go_on` is called when they were taken."""
        if share.size + size <= _ALWAYS_TAKEN or self._has(share, size):
            self._give(share, size)
            return True
        self._waiting[share] = size, go_on
        return False

    def give_back(self, share: MemoryShare) -> None:
        """Give back all of a share, which waits for no more, and let others go on."""
        self.used -= share.size
        share.size = 0
        self._holders.discard(share)
        self._waiting.pop(share, None)
        while self._waiting:
            first, (size, go_on) = next(iter(self._waiting.items()))
            if not self._has(first, size):
                return
            del self._waiting[first]
            self._give(first, size)
            go_on()

    def _give(self, share: MemoryShare, size: int) -> None:
        self._holders.add(share)
        share.size += size
        self.used += size

    def _has(self, share: MemoryShare, size: int) -> bool:
        return self.used + size <= self._limit or (self._holders - {share}) <= self._waiting.keys()


class MemoryShare:
    """What the request of one connection has of it."""

    def __init__(self, memory: RequestMemory) -> None:
        self._memory, self.size = memory, 0

    def take(self, size: int, go_on: Callable[[], None]) -> bool:
        """See `RequestMemory.take`."""
        return self._memory.take(self, size, go_on)

    def give_back(self) -> None:
        """Give back all."""
        self._memory.give_back(self)
