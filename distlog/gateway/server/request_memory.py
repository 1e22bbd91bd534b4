"""The memory of requests and responses, of which one client cannot have all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

# ---
# The memory of all requests that are received or handled (Kafka's queued.max.request.bytes).
#
# Used by the network's thread alone.


#: So much of a request is always taken, so that large ones that do not arrive do not block the others.
_ALWAYS_TAKEN = 64 << 10


class RequestMemory:
    """`limit` bytes for requests and responses, of which one user or address has three quarters at the most.

    A request keeps its memory while it waits for memory for the rest. When all holders of memory wait, one of them
    goes on beyond the limit, or none ever would. A response is there already: later requests wait for its memory.
    """

    def __init__(self, limit: int) -> None:
        self._limit, self._most, self.used = limit, limit * 3 // 4, 0
        # by owner, but for the part that is always taken; and the holders that do not wait, which will give back
        self._used_by, self._going_on = Counter[str](), Counter[str]()
        self._waiting: dict[MemoryShare, tuple[int, Callable[[], None]]] = {}

    def take(self, share: MemoryShare, size: int, go_on: Callable[[], None]) -> bool:
        """Take so many bytes more for a request; False if it must wait: then `go_on` is called when it has them."""
        if not size or self._is_small(share, size) or self._has(share, size):
            self.give(share, size)
            return True
        self._waiting[share] = size, go_on
        self._count(share, -1)
        return False

    def give_back(self, share: MemoryShare, size: int) -> None:
        """Give back so many bytes of a share, and let other requests go on."""
        if not size:
            return
        if size == share.size and share not in self._waiting:
            self._count(share, -1)
        self._resize(share, share.size - size)
        while (first := self._next()) is not None:
            size, go_on = self._waiting.pop(first)
            self._count(first, 1)
            self.give(first, size)
            go_on()

    def give_up(self, share: MemoryShare) -> None:
        """Wait for no more memory."""
        if self._waiting.pop(share, None) is not None:
            self._count(share, 1)

    def give(self, share: MemoryShare, size: int) -> None:
        """Count bytes that are there, whether they fit or not."""
        if not size:
            return
        is_new = not share.size
        self._resize(share, share.size + size)
        if is_new:
            self._count(share, 1)

    def _next(self) -> MemoryShare | None:
        """The waiting request that may go on; of several, the one whose owner has the least."""
        able = [share for share, (size, _) in self._waiting.items() if self._has(share, size)]
        return min(able, key=lambda each: self._used_by[each.owner], default=None)

    def _is_small(self, share: MemoryShare, size: int) -> bool:
        return share.size + size <= _ALWAYS_TAKEN and self._used_by[share.owner] <= self._most

    def _has(self, share: MemoryShare, size: int) -> bool:
        itself = share.size > 0 and share not in self._waiting
        if self._used_by[share.owner] + size > self._most and self._going_on[share.owner] > itself:
            return False
        return self.used + size <= self._limit or self._going_on.total() <= itself

    def _resize(self, share: MemoryShare, size: int) -> None:
        self.used += size - share.size
        self._used_by[share.owner] += max(size - _ALWAYS_TAKEN, 0) - max(share.size - _ALWAYS_TAKEN, 0)
        if not self._used_by[share.owner]:
            del self._used_by[share.owner]
        share.size = size

    def _count(self, share: MemoryShare, change: int) -> None:
        """Note that a holder begins, or ceases, to go on."""
        if share.size:
            self._going_on[share.owner] += change
            if not self._going_on[share.owner]:
                del self._going_on[share.owner]


class MemoryShare:
    """The memory of a connection's requests and responses; `owner` is the user or address that has it."""

    def __init__(self, memory: RequestMemory, owner: str) -> None:
        self._memory, self.owner, self.size = memory, owner, 0

    def take(self, size: int, go_on: Callable[[], None]) -> bool:
        """See `RequestMemory.take`."""
        return self._memory.take(self, size, go_on)

    def give(self, size: int) -> None:
        """See `RequestMemory.give`."""
        self._memory.give(self, size)

    def give_back(self, size: int) -> None:
        """See `RequestMemory.give_back`."""
        self._memory.give_back(self, size)

    def give_up(self) -> None:
        """See `RequestMemory.give_up`."""
        self._memory.give_up(self)
