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
        # by owner, but for the part that is always taken; and the holders that will give back without any more
        self._used_by, self._going_on = Counter[str](), Counter[str]()
        self._waiting: dict[MemoryShare, tuple[int, Callable[[], None]]] = {}

    def take(self, share: MemoryShare, size: int, go_on: Callable[[], None]) -> bool:
        """Take so many bytes more for a request; False if it must wait: then `go_on` is called when it has them."""
        if not size or self._is_small(share, size) or self._has(share, size):
            self.give(share, size)
            return True
        self._waiting[share] = size, go_on
        self._count(share)
        return False

    def give_back(self, share: MemoryShare, size: int) -> None:
        """Give back so many bytes of a share, and let other requests go on."""
        if not size:
            return
        self._resize(share, share.size - size)
        while self._waiting and (first := self._next()) is not None:
            wanted, go_on = self._waiting.pop(first)
            self.give(first, wanted)
            go_on()

    def give_up(self, share: MemoryShare) -> None:
        """Wait for no more memory."""
        self._waiting.pop(share, None)
        self._count(share)

    def give(self, share: MemoryShare, size: int) -> None:
        """Count bytes that are there, whether they fit or not."""
        if size:
            self._resize(share, share.size + size)

    def let_pass(self, share: MemoryShare, size: int) -> None:
        """Count so many bytes of the share as of requests that go on by themselves; negative: as of none any more."""
        share.passed += size
        self._count(share)

    def _next(self) -> MemoryShare | None:
        """The waiting request that may go on; of several, the one whose owner has the least."""
        able = [share for share, (size, _) in self._waiting.items() if self._has(share, size)]
        return min(able, key=lambda each: self._used_by[each.owner], default=None)

    def _is_small(self, share: MemoryShare, size: int) -> bool:
        return share.size + size <= _ALWAYS_TAKEN and self._used_by[share.owner] <= self._most

    def _has(self, share: MemoryShare, size: int) -> bool:
        # what it has itself comes back only after this
        itself = share.goes_on and not share.passed
        if self._used_by[share.owner] + size > self._most and self._going_on[share.owner] > itself:
            return False
        return self.used + size <= self._limit or self._going_on.total() <= itself

    def _resize(self, share: MemoryShare, size: int) -> None:
        self.used += size - share.size
        if more := max(size - _ALWAYS_TAKEN, 0) - max(share.size - _ALWAYS_TAKEN, 0):
            self._used_by[share.owner] += more
            if not self._used_by[share.owner]:
                del self._used_by[share.owner]
        share.size = size
        self._count(share)

    def _count(self, share: MemoryShare) -> None:
        """Note whether a holder goes on."""
        goes_on = share.size > 0 and (share not in self._waiting or share.passed > 0)
        if goes_on == share.goes_on:
            return
        share.goes_on = goes_on
        self._going_on[share.owner] += 1 if goes_on else -1
        if not self._going_on[share.owner]:
            del self._going_on[share.owner]


class MemoryShare:
    """The memory of a connection's requests and responses; `owner` is the user or address that has it.

    `passed` is the part of it that comes back without any more memory, while another request of the connection waits.
    """

    def __init__(self, memory: RequestMemory, owner: str) -> None:
        self._memory, self.owner, self.size, self.passed = memory, owner, 0, 0
        #: Of RequestMemory: whether it will give back without any more.
        self.goes_on = False

    def take(self, size: int, go_on: Callable[[], None]) -> bool:
        """See `RequestMemory.take`."""
        return self._memory.take(self, size, go_on)

    def give(self, size: int) -> None:
        """See `RequestMemory.give`."""
        self._memory.give(self, size)

    def let_pass(self, size: int) -> None:
        """See `RequestMemory.let_pass`."""
        self._memory.let_pass(self, size)

    def give_back(self, size: int) -> None:
        """See `RequestMemory.give_back`."""
        self._memory.give_back(self, size)

    def give_up(self) -> None:
        """See `RequestMemory.give_up`."""
        self._memory.give_up(self)
