"""Fair scheduling of clients: no client's requests can occupy all handlers."""

from __future__ import annotations

import ipaddress
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

# A use is a time of the CPU that halves as time passes, so a client that was idle owes nothing for an hour ago, and
# gets nothing for it either.

#: A client without a name is known by its address; of IPv6 by the network that one customer of a provider has.
_IPV6_PREFIX = 64
#: The time in which a use halves, and the CPUs of a client that has used one second in it without an end.
_HALF_LIFE_S = 1.0
_RATE_OF_USE = 0.6931 / _HALF_LIFE_S
#: A client stays active this long after each request: the rest must leave it some room until then.
_ACTIVE_S = 0.5
#: The most that is counted, so that nobody waits for more than a second after having had everything for long.
_MOST_S = 0.8 / _RATE_OF_USE
#: A smaller use counts as none.
_NO_USE_S = 1e-6
#: Idle shares are forgotten when this many exist, or twice as many as the active ones.
_MANY = 1000
#: Client ids with this many equal leading characters have one share: each may have 32 KiB without a login.
_MOST_NAME = 512


@dataclass(slots=True, eq=False)
class CpuUse:
    """The use of a user or an address, or of one of its client ids, which counts for both."""

    name: Hashable
    part_of: CpuUse | None
    use_s: float = 0
    noted_s: float = 0
    active_s: float = float("-inf")
    served_s: float = float("-inf")
    #: The parts, and the active ones in the order of their last signs.
    parts: dict[Hashable, CpuUse] = field(default_factory=dict)
    active: OrderedDict[CpuUse, None] = field(default_factory=OrderedDict)

    def use(self, now_s: float) -> float:
        """The seconds of CPU time that count now."""
        return self.use_s * 0.5 ** ((now_s - self.noted_s) / _HALF_LIFE_S) if self.use_s else 0

    def note(self, used_s: float, now_s: float) -> None:
        """Count a use, and a sign of the client."""
        self.use_s, self.noted_s, self.active_s = min(self.use(now_s) + used_s, _MOST_S), now_s, now_s
        if self.part_of is not None:
            self.part_of.active[self] = None
            self.part_of.active.move_to_end(self)
            self.part_of.note(used_s, now_s)

    def active_parts(self, now_s: float) -> int:
        """The number of its parts that are active."""
        active = self.active
        while active:
            oldest = next(iter(active))
            if now_s - oldest.active_s <= _ACTIVE_S:
                break
            del active[oldest]
        return len(active)


def owner_of(principal: str | None, address: str) -> str:
    """The name of the share of a client: its user's, or its address's while it has no user."""
    if principal is not None:
        return f"user {principal}"
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if parsed.version == 4:
        return address
    mapped = parsed.ipv4_mapped
    return str(mapped or ipaddress.ip_network((int(parsed), _IPV6_PREFIX), strict=False))


class CpuUses:
    """The shares of all clients, for many threads with its `lock`. `clock_s` is monotonic."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self.clock_s, self.lock = clock_s, threading.Lock()
        self.all = CpuUse("all", None)
        self._count, self._forget_at = 0, _MANY

    def share(self, owner: str, client_id: str) -> CpuUse:
        """The share of a client."""
        if self._count >= self._forget_at:
            self._forget_idle()
        of_owner = self._part(self.all, owner)
        return self._part(of_owner, client_id[:_MOST_NAME])

    def leaves_room(self, share: CpuUse) -> bool:
        """True if a client has used less than its part of the time, among those that are active."""
        now_s, part = self.clock_s(), 2 * _HEAVY_PART
        with self.lock:
            for level in (share.part_of, share):
                assert level is not None
                assert level.part_of is not None
                part /= max(level.part_of.active_parts(now_s) + (level not in level.part_of.active), 1)
                if level.use(now_s) * _RATE_OF_USE > part:
                    return False
        return True

    def _part(self, parent: CpuUse, name: Hashable) -> CpuUse:
        share = parent.parts.get(name)
        if share is None:
            share = parent.parts[name] = CpuUse(name, parent)
            self._count += 1
        return share

    def _forget_idle(self) -> None:
        """Forget idle shares, of all owners: one that comes back begins with nothing."""
        now_s = self.clock_s()
        # lists, since the thread of authentication may add a share concurrently
        owners = list(self.all.parts.values())
        for parent in (*owners, self.all):
            parent.parts = {
                part.name: part
                for part in list(parent.parts.values())
                if part.parts or part.use(now_s) > _NO_USE_S or now_s - part.active_s <= _ACTIVE_S
            }
        self._count = len(self.all.parts) + sum(len(owner.parts) for owner in owners)
        self._forget_at = max(_MANY, 2 * self._count)


# The client with the least use is next: first among users and addresses, then among its client ids, and the
# oldest of their requests. That alone is not enough: Python's threads share one interpreter, so one that computes
# all the time slows every other down. So while several clients are active, the ones that use more
# than their part have half of the time in all, and one handler each.

#: The part of the time of all that use more than their part.
_HEAVY_PART = 0.4
#: A client with so few requests that wait leaves room by itself: it sends the next when it has the answer.
_FEW = 4


Waiting = TypeVar("Waiting")


class FairQueue(Generic[Waiting]):
    """Waiting items of shares, and the running ones: at most `size`. The caller has the lock."""

    def __init__(self, shares: CpuUses, size: int) -> None:
        self._shares, self._size = shares, size
        self._waiting: dict[CpuUse, dict[CpuUse, deque[Waiting]]] = {}
        self._running = Counter[CpuUse]()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, share: CpuUse, item: Waiting) -> None:
        """Have an item wait."""
        share.note(0, self._shares.clock_s())
        assert share.part_of is not None
        self._waiting.setdefault(share.part_of, {}).setdefault(share, deque()).append(item)
        self._count += 1

    def next(self, *, limited: bool = True) -> Waiting | None:
        """The next item, which runs now; None if there is none that may run now. Without a limit, all may."""
        now_s, root = self._shares.clock_s(), self._shares.all
        part = 1 / max(root.active_parts(now_s), len(self._waiting), 1)
        for owner in self._in_turn(root, self._waiting, 1.0, now_s, limited):
            for share in self._in_turn(owner, self._waiting[owner], part, now_s, limited):
                self._running[owner] += 1
                self._running[share] += 1
                owner.served_s = share.served_s = now_s
                queue = self._waiting[owner][share]
                item = queue.popleft()
                self._count -= 1
                if not queue:
                    del self._waiting[owner][share]
                    if not self._waiting[owner]:
                        del self._waiting[owner]
                return item
        return None

    def end(self, share: CpuUse, used_s: float) -> None:
        """Note that an item has run, and used `used_s`."""
        share.note(used_s, self._shares.clock_s())
        assert share.part_of is not None
        for level in (share, share.part_of):
            self._running[level] -= 1
            if not self._running[level]:
                del self._running[level]

    def _in_turn(
        self, parent: CpuUse, waiting: Mapping[CpuUse, object], part: float, now_s: float, limited: bool
    ) -> list[CpuUse]:
        """The shares that may run another item, the least use first. `part` of the time is the parent's."""
        ordered = list(waiting)
        if len(ordered) > 1:
            ordered.sort(key=lambda share: (share.use(now_s), share.served_s))
        if not limited or not ordered:
            return ordered
        active = parent.active_parts(now_s) + sum(share not in parent.active for share in waiting)
        if active == 1:
            # a handler is left to another client that comes: to one of the same address, and to one of another
            reserved = 1 if parent.part_of is None else 2
            return [share for share in ordered if self._running[share] < max(self._size - reserved, 1)]
        allowance, most = 2 * _HEAVY_PART * part / active, max(self._size // active, 1)
        heavy = {
            share for share in ordered if share.use(now_s) * _RATE_OF_USE > allowance and self._waits_of(share) > _FEW
        }
        has_time = sum(share.use(now_s) for share in heavy) * _RATE_OF_USE < _HEAVY_PART * part
        able = ordered if has_time else [share for share in ordered if share not in heavy]
        # one that has used its part, or will soon, does not get all at once
        return [
            share
            for share in able
            if self._running[share] < (1 if share.use(now_s) * _RATE_OF_USE > allowance / 2 else most)
        ]

    def _waits_of(self, share: CpuUse) -> int:
        parts = self._waiting.get(share)
        if parts is not None:
            return sum(map(len, parts.values()))
        assert share.part_of is not None
        return len(self._waiting[share.part_of][share])
