"""The memory of requests and responses, of which one client cannot have all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

# Used by the network's thread alone.

#: So much of a request is always taken, so that large ones that do not arrive do not block the others.
_ALWAYS_TAKEN = 64 << 10


class RequestMemory:
    """`limit` bytes for requests and responses, of which one user or address has three quarters at the most."""

    def __init__(self, limit: int) -> None:
        self._limit, self._most, self.used = limit, limit * 3 // 4, 0
        # by owner, but for the part that is always taken; and the holders that will give back without any more
        self._used_by, self._going_on = Counter[str](), Counter[str]()
        #: By the share that waits: the bytes, and what goes on then.
        self.waiting: dict[MemoryShare, tuple[int, Callable[[], None]]] = {}

    def next(self) -> MemoryShare | None:
        """The waiting request that may go on; of several, the one whose owner has the least."""
        able = [share for share, (size, _) in self.waiting.items() if self._fits(share, size)]
        return min(able, key=lambda each: self._used_by[each.owner], default=None)

    def has(self, share: MemoryShare, size: int) -> bool:
        """True if a request may take so many bytes more: while its owner has less than its most, a small one may."""
        is_small = share.size + size <= _ALWAYS_TAKEN and self._used_by[share.owner] <= self._most
        return not size or is_small or self._fits(share, size)

    def _fits(self, share: MemoryShare, size: int) -> bool:
        # what it has itself comes back only after this
        itself = share.goes_on and not share.passed
        if self._used_by[share.owner] + size > self._most and self._going_on[share.owner] > itself:
            return False
        return self.used + size <= self._limit or self._going_on.total() <= itself

    def resize(self, share: MemoryShare, size: int) -> None:
        """Note that a share has so many bytes from now on."""
        self.used += size - share.size
        if more := max(size - _ALWAYS_TAKEN, 0) - max(share.size - _ALWAYS_TAKEN, 0):
            self._used_by[share.owner] += more
            if not self._used_by[share.owner]:
                del self._used_by[share.owner]
        share.size = size
        self.count(share)

    def count(self, share: MemoryShare) -> None:
        """Note whether a holder goes on."""
        goes_on = share.size > 0 and (share not in self.waiting or share.passed > 0)
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
        """Take so many bytes more for a request; False if it must wait: then `go_on` is called when it has them."""
        if self._memory.has(self, size):
            self.give(size)
            return True
        self._memory.waiting[self] = size, go_on
        self._memory.count(self)
        return False

    def give_back(self, size: int) -> None:
        """Give back so many bytes, and let other requests go on."""
        if not size:
            return
        self._memory.resize(self, self.size - size)
        while first := self._memory.next():
            wanted, go_on = self._memory.waiting.pop(first)
            first.give(wanted)
            go_on()

    def give_up(self) -> None:
        """Wait for no more memory."""
        self._memory.waiting.pop(self, None)
        self._memory.count(self)

    def give(self, size: int) -> None:
        """Count bytes that are there, whether they fit or not."""
        if size:
            self._memory.resize(self, self.size + size)

    def let_pass(self, size: int) -> None:
        """Count so many bytes as of requests that go on by themselves; negative: as of none any more."""
        self.passed += size
        self._memory.count(self)
