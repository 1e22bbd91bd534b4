"""The memory of requests and responses, of which one client cannot have all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

# Used by the network's thread alone.

#: A request may always use this much, so that large requests that do not arrive block no other request.
_ALWAYS_TAKEN = 64 << 10


class RequestMemory:
    """`limit` bytes for requests and responses, of which one user or address has at most three quarters."""

    def __init__(self, limit: int) -> None:
        self._limit, self._most, self.used = limit, limit * 3 // 4, 0
        # by owner, without the part that is always granted; and the holders that will release memory as they are
        self._used_by, self._releasing = Counter[str](), Counter[str]()
        #: By the waiting share: the bytes, and the callback for when they are granted.
        self.waiting: dict[MemoryShare, tuple[int, Callable[[], None]]] = {}

    def next(self) -> MemoryShare | None:
        """Return the waiting request that fits and whose owner has the least memory."""
        able = [share for share, (size, _) in self.waiting.items() if self._fits(share, size)]
        return min(able, key=lambda share: self._used_by[share.owner], default=None)

    def has(self, share: MemoryShare, size: int) -> bool:
        """Return whether a request may use `size` more bytes; a small one may until its owner has its maximum."""
        is_small = share.size + size <= _ALWAYS_TAKEN and self._used_by[share.owner] <= self._most
        return not size or is_small or self._fits(share, size)

    def _fits(self, share: MemoryShare, size: int) -> bool:
        # its own memory is released only after this
        itself = share.will_release and not share.passed
        if self._used_by[share.owner] + size > self._most and self._releasing[share.owner] > itself:
            return False
        return self.used + size <= self._limit or self._releasing.total() <= itself

    def resize(self, share: MemoryShare, size: int) -> None:
        """Set the bytes that a share has."""
        self.used += size - share.size
        if more := max(size - _ALWAYS_TAKEN, 0) - max(share.size - _ALWAYS_TAKEN, 0):
            self._used_by[share.owner] += more
            if not self._used_by[share.owner]:
                del self._used_by[share.owner]
        share.size = size
        self.count(share)

    def count(self, share: MemoryShare) -> None:
        """Note whether a holder will release its memory without getting more."""
        will_release = share.size > 0 and (share not in self.waiting or share.passed > 0)
        if will_release == share.will_release:
            return
        share.will_release = will_release
        self._releasing[share.owner] += 1 if will_release else -1
        if not self._releasing[share.owner]:
            del self._releasing[share.owner]


class MemoryShare:
    """The memory of a connection's requests and responses; `owner` is the user or address that has it.

    `passed` is the part that is released without more memory, while another request of the connection waits.
    """

    def __init__(self, memory: RequestMemory, owner: str) -> None:
        self._memory, self.owner, self.size, self.passed = memory, owner, 0, 0
        #: For RequestMemory: whether it will release its memory without getting more.
        self.will_release = False

    def reserve(self, size: int, on_granted: Callable[[], None]) -> bool:
        """Reserve more memory for a request; returns False if it must wait: then `on_granted` is called later."""
        if self._memory.has(self, size):
            self.give(size)
            return True
        self._memory.waiting[self] = size, on_granted
        self._memory.count(self)
        return False

    def give_back(self, size: int) -> None:
        """Release memory, and grant it to waiting requests."""
        if not size:
            return
        self._memory.resize(self, self.size - size)
        while first := self._memory.next():
            size, on_granted = self._memory.waiting.pop(first)
            first.give(size)
            on_granted()

    def give_up(self) -> None:
        """Wait for no more memory."""
        self._memory.waiting.pop(self, None)
        self._memory.count(self)

    def give(self, size: int) -> None:
        """Count bytes that are used already, whether they fit or not."""
        if size:
            self._memory.resize(self, self.size + size)

    def let_pass(self, size: int) -> None:
        """Add to the bytes that are released without more memory, or subtract negative ones."""
        self.passed += size
        self._memory.count(self)
