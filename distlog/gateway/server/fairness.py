"""Fair shares of clients: time of the CPU, quotas (KIP-13, KIP-55, KIP-124), and memory of requests."""

from __future__ import annotations

import ipaddress
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

# A use is CPU time that decays by half in each half-life: old work is forgotten, and idle time gains nothing.

#: A client without a user is identified by its address; with IPv6 by its network, with a prefix of this length.
_IPV6_PREFIX = 64
#: The half-life of a use; and how many CPUs a client keeps busy whose use stays at one second.
_HALF_LIFE_S = 1.0
_RATE_OF_USE = 0.6931 / _HALF_LIFE_S
#: How long a client counts as active after a request: in this time, other clients must leave room for it.
_ACTIVE_S = 0.5
#: The largest use: even a client that used all the time for long waits at most a second.
_MOST_S = 0.8 / _RATE_OF_USE
#: A share with less use is idle.
_NO_USE_S = 1e-6
#: Idle shares are forgotten when this many exist, or twice as many as the active ones.
_MANY = 1000
#: Client ids with this many equal leading characters have one share: each may have 32 KiB without a login.
_MOST_NAME = 512


@dataclass(slots=True, eq=False)
class CpuUse:
    """The use of a user or an address; or of one of its client ids, whose use also counts for `part_of`."""

    name: Hashable
    part_of: CpuUse | None
    use_s: float = 0
    noted_s: float = 0
    active_s: float = float("-inf")
    served_s: float = float("-inf")
    #: The parts by name; and the active parts, the least recently active first.
    parts: dict[Hashable, CpuUse] = field(default_factory=dict)
    active: OrderedDict[CpuUse, None] = field(default_factory=OrderedDict)

    def use(self, now_s: float) -> float:
        return self.use_s * 0.5 ** ((now_s - self.noted_s) / _HALF_LIFE_S) if self.use_s else 0

    def note(self, used_s: float, now_s: float) -> None:
        self.use_s, self.noted_s, self.active_s = min(self.use(now_s) + used_s, _MOST_S), now_s, now_s
        if self.part_of is not None:
            self.part_of.active[self] = None
            self.part_of.active.move_to_end(self)
            self.part_of.note(used_s, now_s)

    def active_parts(self, now_s: float) -> int:
        active = self.active
        while active:
            oldest = next(iter(active))
            if now_s - oldest.active_s <= _ACTIVE_S:
                break
            del active[oldest]
        return len(active)


def share_name(principal: str | None, address: str) -> str:
    """The name of a client's share: its user, or its address (a network with IPv6) while `principal` is None."""
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
        if self._count >= self._forget_at:
            self._forget_idle()
        of_owner = self._part(self.all, owner)
        return self._part(of_owner, client_id[:_MOST_NAME])

    def leaves_room(self, share: CpuUse) -> bool:
        """True if a client has used less than its part of the time: other active clients have theirs."""
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
        """Forget idle shares; a client that sends again later starts with no use."""
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


# The user or address with the least use is next, then its client id with the least use, then the oldest request.
# Threads share one interpreter, so a client that computes all the time slows down the other clients. While several
# clients are active, the clients above their part have less than half of the time together, and one handler each.

#: The part of the time that all clients above their part have together.
_HEAVY_PART = 0.4
#: A client with at most this many waiting requests limits itself: it sends the next one after a response.
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
        share.note(0, self._shares.clock_s())
        assert share.part_of is not None
        self._waiting.setdefault(share.part_of, {}).setdefault(share, deque()).append(item)
        self._count += 1

    def next(self, *, limited: bool = True) -> Waiting | None:
        """Remove and return the next item to run; None if no item may run now. If not `limited`, any item may run."""
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
        share.note(used_s, self._shares.clock_s())
        assert share.part_of is not None
        for level in (share, share.part_of):
            self._running[level] -= 1
            if not self._running[level]:
                del self._running[level]

    def _in_turn(
        self, parent: CpuUse, waiting: Mapping[CpuUse, object], part: float, now_s: float, limited: bool
    ) -> list[CpuUse]:
        """The shares that may run another item, the least use first. The parent's part of the time is `part`."""
        ordered = list(waiting)
        if len(ordered) > 1:
            ordered.sort(key=lambda share: (share.use(now_s), share.served_s))
        if not limited or not ordered:
            return ordered
        active = parent.active_parts(now_s) + sum(share not in parent.active for share in waiting)
        if active == 1:
            # leaves a handler to a new client of another owner, and one to a new client id of this owner
            reserved = 1 if parent.part_of is None else 2
            return [share for share in ordered if self._running[share] < max(self._size - reserved, 1)]
        allowance, most = 2 * _HEAVY_PART * part / active, max(self._size // active, 1)
        heavy = {
            share for share in ordered if share.use(now_s) * _RATE_OF_USE > allowance and self._waits_of(share) > _FEW
        }
        has_time = sum(share.use(now_s) for share in heavy) * _RATE_OF_USE < _HEAVY_PART * part
        able = ordered if has_time else [share for share in ordered if share not in heavy]
        # a share near its part gets one handler at a time
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


class Quotas:
    """The limits of all clients and their debts, for many threads. `clock_s` is monotonic."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s, self._lock = clock_s, threading.Lock()
        self.limits: Limits = {}
        self._debts: dict[tuple[str, tuple[str, str]], _Debt] = {}

    def set(self, limits: Limits) -> None:
        with self._lock:
            self.limits, self._debts = dict(limits), self._debts if limits else {}

    def note(self, user: str, client_id: str, name: str, amount: float) -> None:
        if not self.limits or amount <= 0:
            return
        limit, sharing = self._limit(user, client_id, name)
        if limit is None:
            return
        now_s, per_second = self._clock_s(), limit / 100 if name == REQUEST_PERCENTAGE else limit
        with self._lock:
            if len(self._debts) > _MANY_DEBTS:
                self._debts = {key: debt for key, debt in self._debts.items() if debt.left_s(now_s)}
            debt = self._debts.setdefault((name, sharing), _Debt())
            debt.seconds, debt.noted_s = debt.left_s(now_s) + amount / per_second, now_s

    def wait_s(self, user: str, client_id: str) -> float:
        """The seconds until the next request of a client may be read; mostly 0."""
        return max(self._wait_s(user, client_id, name) for name in NAMES) if self.limits else 0

    def _wait_s(self, user: str, client_id: str, name: str) -> float:
        limit, sharing = self._limit(user, client_id, name)
        if limit is None:
            return 0
        with self._lock:
            debt = self._debts.get((name, sharing))
            left_s = 0 if debt is None else debt.left_s(self._clock_s()) - _BURST_S
        return min(max(left_s, 0), _LONGEST_S.get(name, _LONGEST_FOR_BYTES_S))

    def _limit(self, user: str, client_id: str, name: str) -> tuple[float | None, tuple[str, str]]:
        limits = self.limits
        # clients without a login may send ids of any length: only this much is compared and kept
        for entity, sharing in _entities(user, client_id[: MOST_NAME_BYTES + 1]):
            limit = limits.get(entity, {}).get(name)
            if limit is not None:
                return limit, sharing
        return None, ("", "")


PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE = "producer_byte_rate", "consumer_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"
#: All quotas by Kafka's names: bytes in a second, and percent of the time of one handler.
NAMES = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE)
#: The longest name of a user or client id that may have a quota of its own.
MOST_NAME_BYTES = 1 << 10
#: Stands for all names that have no quota of their own.
DEFAULT = None


class Entity(NamedTuple):
    """The clients of a quota: parts are (type, name) with the type user or client-id, sorted by type."""

    parts: tuple[tuple[str, str | None], ...]

    @classmethod
    def of(cls, parts: Mapping[str, str | None]) -> Entity:
        return cls(tuple(sorted(parts.items())))


USER, CLIENT_ID = "user", "client-id"
Limits = Mapping[Entity, Mapping[str, float]]


def _entities(user: str, client_id: str) -> Iterator[tuple[Entity, tuple[str, str]]]:
    """The entities that apply to a client, in Kafka's order, each with the clients that share its quota."""
    for name in (user, DEFAULT):
        for client in (client_id, DEFAULT):
            yield Entity.of({USER: name, CLIENT_ID: client}), (user, client_id)
        yield Entity.of({USER: name}), (user, "")
    for client in (client_id, DEFAULT):
        yield Entity.of({CLIENT_ID: client}), ("", client_id)


# The bytes or the time that a client uses are a debt, which its quota pays off over time. One second of debt is
# allowed, as in Kafka's windows. With more debt, the client's next request is read after a pause, which the response
# names.

_BURST_S = 1.0
#: The longest pauses: Kafka's for the time of handlers, and for bytes one after which clients do not give up.
_LONGEST_S = {REQUEST_PERCENTAGE: 1.0}
_LONGEST_FOR_BYTES_S = 20.0
#: If there are more debts, paid debts are forgotten.
_MANY_DEBTS = 10_000


@dataclass(slots=True)
class _Debt:
    seconds: float = 0
    noted_s: float = 0

    def left_s(self, now_s: float) -> float:
        return max(self.seconds - (now_s - self.noted_s), 0)


#: The bytes that each request may always use, even while large requests that never arrive hold the memory.
_ALWAYS_TAKEN = 64 << 10


class RequestMemory:
    """`limit` bytes for requests and responses, at most three quarters for one owner; for one thread."""

    def __init__(self, limit: int) -> None:
        self._limit, self._most, self.used = limit, limit * 3 // 4, 0
        # by owner: the bytes above _ALWAYS_TAKEN, and the shares that will release memory without getting more
        self._used_by, self._releasing = Counter[str](), Counter[str]()
        #: By the waiting share: the bytes that it waits for, and the callback for their grant.
        self.waiting: dict[MemoryShare, tuple[int, Callable[[], None]]] = {}

    def next(self) -> MemoryShare | None:
        able = [share for share, (size, _) in self.waiting.items() if self._fits(share, size)]
        return min(able, key=lambda share: self._used_by[share.owner], default=None)

    def has(self, share: MemoryShare, size: int) -> bool:
        """True if a request may use `size` more bytes. A small request may until its owner has the maximum."""
        is_small = share.size + size <= _ALWAYS_TAKEN and self._used_by[share.owner] <= self._most
        return not size or is_small or self._fits(share, size)

    def _fits(self, share: MemoryShare, size: int) -> bool:
        # the share may be counted as one that will release memory, but it releases nothing while it waits
        counts_itself = share.will_release and not share.passed
        if self._used_by[share.owner] + size > self._most and self._releasing[share.owner] > counts_itself:
            return False
        return self.used + size <= self._limit or self._releasing.total() <= counts_itself

    def resize(self, share: MemoryShare, size: int) -> None:
        self.used += size - share.size
        if change := max(size - _ALWAYS_TAKEN, 0) - max(share.size - _ALWAYS_TAKEN, 0):
            self._used_by[share.owner] += change
            if not self._used_by[share.owner]:
                del self._used_by[share.owner]
        share.size = size
        self.count(share)

    def count(self, share: MemoryShare) -> None:
        """Note whether a share will release its memory without getting more."""
        will_release = share.size > 0 and (share not in self.waiting or share.passed > 0)
        if will_release == share.will_release:
            return
        share.will_release = will_release
        self._releasing[share.owner] += 1 if will_release else -1
        if not self._releasing[share.owner]:
            del self._releasing[share.owner]


class MemoryShare:
    """The memory of a connection; `passed` bytes are released while its next request waits for more."""

    def __init__(self, memory: RequestMemory, owner: str) -> None:
        self._memory, self.owner, self.size, self.passed = memory, owner, 0, 0
        self.will_release = False

    def reserve(self, size: int, on_granted: Callable[[], None]) -> bool:
        """Reserve memory for a request. Returns False if the request must wait until `on_granted` is called."""
        if self._memory.has(self, size):
            self.give(size)
            return True
        self._memory.waiting[self] = size, on_granted
        self._memory.count(self)
        return False

    def give_back(self, size: int) -> None:
        if not size:
            return
        self._memory.resize(self, self.size - size)
        while first := self._memory.next():
            size, on_granted = self._memory.waiting.pop(first)
            first.give(size)
            on_granted()

    def give_up(self) -> None:
        self._memory.waiting.pop(self, None)
        self._memory.count(self)

    def give(self, size: int) -> None:
        """Count bytes that are used already, whether they fit or not."""
        if size:
            self._memory.resize(self, self.size + size)

    def let_pass(self, size: int) -> None:
        """Change the bytes that are released without more memory."""
        self.passed += size
        self._memory.count(self)
