"""Fair shares of clients: time of the CPU, quotas (KIP-13, KIP-55, KIP-124), and memory of requests.

A client belongs to an owner: its user or, without a login, its address. CPU time is divided among the active owners
first, then among the client ids of each owner.
"""

from __future__ import annotations

import ipaddress
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

_IPV6_PREFIX = 64  # the prefix length of an IPv6 network: a client can use any address of its network

# A use is a sum of CPU seconds that halves in each half-life: old work is forgotten, and unused time is not saved.
_HALF_LIFE_S = 1.0
#: The number of CPUs that a client keeps busy if its use stays at one second: ln 2 / half-life.
_CPUS_PER_USE = 0.6931 / _HALF_LIFE_S
_ACTIVE_S = 0.5  # a client is active for this time after a request: other clients must leave room for it
#: The largest use: as if the client kept 0.8 CPUs busy. After a second without work, it is as if it kept 0.4 busy: a
#: lone heavy owner may then run again (_HEAVY_FRACTION).
_MAX_USE_S = 0.8 / _CPUS_PER_USE
_IDLE_USE_S = 1e-6  # a share whose use has decayed to this is idle
#: Idle shares are forgotten when there are this many shares, or twice as many as were left the last time.
_MANY_SHARES = 1000
_MAX_CLIENT_ID = 512  # longer client ids are cut, since a client without a login may send ids of 32 KiB

CountKey = TypeVar("CountKey", bound=Hashable)


@dataclass(slots=True, eq=False)
class CpuShare:
    """The use of an owner, or of a client id whose `parent` is its owner. The parent of all owners is the root."""

    name: Hashable
    parent: CpuShare | None
    #: The use at `active_s`, when a request of this share last arrived or ended.
    use_s: float = 0
    active_s: float = float("-inf")
    #: When a handler last began a request of this share.
    served_s: float = float("-inf")
    children: dict[Hashable, CpuShare] = field(default_factory=dict)
    #: The active children, the least recently active first.
    active: OrderedDict[CpuShare, None] = field(default_factory=OrderedDict)

    def use(self, now_s: float) -> float:
        return self.use_s * 0.5 ** ((now_s - self.active_s) / _HALF_LIFE_S) if self.use_s else 0

    def add_use(self, used_s: float, now_s: float) -> None:
        """Add CPU time to this share and its parents, and note that they are active now. `used_s` may be 0."""
        self.use_s = min(self.use(now_s) + used_s, _MAX_USE_S)
        self.active_s = now_s
        if self.parent is not None:
            self.parent.active[self] = None
            self.parent.active.move_to_end(self)
            self.parent.add_use(used_s, now_s)

    def active_child_count(self, now_s: float) -> int:
        active = self.active
        while active:
            oldest = next(iter(active))
            if now_s - oldest.active_s <= _ACTIVE_S:
                break
            del active[oldest]
        return len(active)


def owner_name(principal: str | None, address: str) -> str:
    """The owner of a client: its user or, without a login, its address (with IPv6, its network)."""
    if principal is not None:
        return f"user {principal}"
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address
    if ip.version == 4:
        return address
    return str(ip.ipv4_mapped or ipaddress.ip_network((int(ip), _IPV6_PREFIX), strict=False))


def change_count(counts: Counter[CountKey], key: CountKey, amount: int) -> None:
    """Add to a count. A count of 0 is removed, since clients choose the keys and could fill the memory."""
    counts[key] += amount
    if not counts[key]:
        del counts[key]


class CpuShares:
    """The shares of all clients. Callers of a CpuShare's methods hold `lock`. `clock_s` is monotonic."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self.clock_s, self.lock = clock_s, threading.Lock()
        self.root = CpuShare("all", None)
        self._count, self._forget_at_count = 0, _MANY_SHARES

    def share(self, owner: str, client_id: str) -> CpuShare:
        """Return the share of a client id. Without a lock: a share that is lost in a race loses only its past use."""
        if self._count >= self._forget_at_count:
            self._forget_idle()
        return self._child(self._child(self.root, owner), client_id[:_MAX_CLIENT_ID])

    def leaves_room(self, share: CpuShare) -> bool:
        """Whether a request need not queue, as its client and owner are below their allowances. Acquires the lock."""
        now_s, allowance = self.clock_s(), _ALLOWED_FRACTION
        with self.lock:
            for level in (share.parent, share):
                assert level is not None
                assert level.parent is not None
                # this share counts as active, since its request is about to be handled
                active = level.parent.active_child_count(now_s) + (level not in level.parent.active)
                allowance /= active
                if level.use(now_s) * _CPUS_PER_USE > allowance:
                    return False
        return True

    def _child(self, parent: CpuShare, name: Hashable) -> CpuShare:
        share = parent.children.get(name)
        if share is None:
            share = parent.children[name] = CpuShare(name, parent)
            self._count += 1
        return share

    def _forget_idle(self) -> None:
        """Forget idle shares. A client that sends again starts without use."""
        now_s = self.clock_s()
        # lists, since the thread of authentication may add a share concurrently
        owners = list(self.root.children.values())
        # the root is last, since an owner that still has client ids is not idle
        for parent in (*owners, self.root):
            parent.children = {
                child.name: child
                for child in list(parent.children.values())
                if child.children or child.use(now_s) > _IDLE_USE_S or now_s - child.active_s <= _ACTIVE_S
            }
        self._count = len(self.root.children) + sum(len(owner.children) for owner in owners)
        self._forget_at_count = max(_MANY_SHARES, 2 * self._count)


# The queue picks the owner with the least use, then its client id with the least use, then this id's oldest request.
# Threads share one interpreter, so a client that computes all the time slows down other clients. While several
# clients are active, a client near its allowance gets one handler, and all heavy clients share a part of the time.

#: The fraction of the time that all heavy clients share.
_HEAVY_FRACTION = 0.4
#: A client's allowance, as a fraction of an equal share of the time. A client above it with many requests is heavy.
_ALLOWED_FRACTION = 0.8
#: A client with at most this many waiting requests limits itself: it sends the next one after a response.
_FEW_WAITING = 4

Waiting = TypeVar("Waiting")


class FairQueue(Generic[Waiting]):
    """The queued items (requests) of each share, for `handlers` threads. The caller holds the lock of `shares`."""

    def __init__(self, shares: CpuShares, handlers: int) -> None:
        self._shares, self._handlers = shares, handlers
        self._waiting: dict[CpuShare, dict[CpuShare, deque[Waiting]]] = {}
        # the number of running items of each owner, and of each client id
        self._running = Counter[CpuShare]()
        self._waiting_count = 0

    def __len__(self) -> int:
        return self._waiting_count

    def put(self, share: CpuShare, item: Waiting) -> None:
        share.add_use(0, self._shares.clock_s())
        assert share.parent is not None
        self._waiting.setdefault(share.parent, {}).setdefault(share, deque()).append(item)
        self._waiting_count += 1

    def next(self, *, limited: bool = True) -> Waiting | None:
        """Remove and return the next item to run; None if no item may run now. If not `limited`, any item may run."""
        now_s, root = self._shares.clock_s(), self._shares.root
        owner_fraction = 1 / max(root.active_child_count(now_s), len(self._waiting), 1)  # an owner's equal share
        for owner in self._runnable(root, self._waiting, 1.0, now_s, limited):
            for share in self._runnable(owner, self._waiting[owner], owner_fraction, now_s, limited):
                self._running[owner] += 1
                self._running[share] += 1
                owner.served_s = share.served_s = now_s
                queue = self._waiting[owner][share]
                item = queue.popleft()
                self._waiting_count -= 1
                if not queue:
                    del self._waiting[owner][share]
                    if not self._waiting[owner]:
                        del self._waiting[owner]
                return item
        return None

    def end(self, share: CpuShare, used_s: float) -> None:
        share.add_use(used_s, self._shares.clock_s())
        assert share.parent is not None
        for level in (share, share.parent):
            change_count(self._running, level, -1)

    def _runnable(
        self, parent: CpuShare, waiting: Mapping[CpuShare, object], time_fraction: float, now_s: float, limited: bool
    ) -> list[CpuShare]:
        """The children of `parent` among `waiting` that may run another item now, the least use first.

        The children together have `time_fraction` of the interpreter's time. If not `limited`, all may run.
        """
        ordered = list(waiting)
        if len(ordered) > 1:
            ordered.sort(key=lambda share: (share.use(now_s), share.served_s))
        if not limited or not ordered:
            return ordered
        # also count shares that have waited for more than _ACTIVE_S, which are no longer in `active`
        active = parent.active_child_count(now_s) + sum(share not in parent.active for share in waiting)
        if active == 1:
            # an only owner leaves a handler to others; an owner's only client id leaves two, one for other ids
            reserved = 1 if parent is self._shares.root else 2
            return [share for share in ordered if self._running[share] < max(self._handlers - reserved, 1)]
        # shares above their allowance with many items are heavy: they may run while they use little in all
        allowance = _ALLOWED_FRACTION * time_fraction / active
        max_handlers = max(self._handlers // active, 1)
        cpus = {share: share.use(now_s) * _CPUS_PER_USE for share in ordered}
        heavy = {share for share in ordered if cpus[share] > allowance and self._items_of(share) > _FEW_WAITING}
        may_run_heavy = sum(cpus[share] for share in heavy) < _HEAVY_FRACTION * time_fraction
        # a share that uses more than half of its allowance gets one handler at a time
        return [
            share
            for share in ordered
            if (may_run_heavy or share not in heavy)
            and self._running[share] < (1 if cpus[share] > allowance / 2 else max_handlers)
        ]

    def _items_of(self, share: CpuShare) -> int:
        """The number of queued items of an owner, or of one of its client ids."""
        if share in self._waiting:
            return sum(map(len, self._waiting[share].values()))
        assert share.parent is not None
        return len(self._waiting[share.parent][share])


PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE = "producer_byte_rate", "consumer_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"
#: The names of all quotas in Kafka: two of bytes per second, and one in percent of a handler's time.
NAMES = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE)
USER, CLIENT_ID = "user", "client-id"
#: The longest name of a user or client id that may have a quota of its own.
MAX_NAME_BYTES = 1 << 10
#: The name that stands for all users, or client ids, that have no quota of their own.
DEFAULT = None


class Entity(NamedTuple):
    """The clients to which a quota applies. `parts` are (USER or CLIENT_ID, name), sorted."""

    parts: tuple[tuple[str, str | None], ...]

    @classmethod
    def of(cls, parts: Mapping[str, str | None]) -> Entity:
        return cls(tuple(sorted(parts.items())))


Limits = Mapping[Entity, Mapping[str, float]]
#: The user and client id that share one quota. An empty name stands for all users, or all client ids.
_Debtor = tuple[str, str]


def _entities(user: str, client_id: str) -> Iterator[tuple[Entity, _Debtor]]:
    """Yield the entities to which a client belongs, in Kafka's order, and the debtor of each entity's quota."""
    for name in (user, DEFAULT):
        for client in (client_id, DEFAULT):
            yield Entity.of({USER: name, CLIENT_ID: client}), (user, client_id)
        yield Entity.of({USER: name}), (user, "")
    for client in (client_id, DEFAULT):
        yield Entity.of({CLIENT_ID: client}), ("", client_id)


# The bytes or the time that a client uses are its debt, which its quota pays off over time. A debt of one second is
# allowed, as in Kafka's windows. After that, the next request is read after a pause, which the response states.

_BURST_S = 1.0
#: The longest pause for the time of handlers, as in Kafka.
_LONGEST_WAIT_S = {REQUEST_PERCENTAGE: 1.0}
#: The longest pause for bytes: shorter than the request timeout of clients (30 s).
_LONGEST_WAIT_FOR_BYTES_S = 20.0
_MANY_DEBTS = 10_000  # if there are more debts than this, those that are paid off are forgotten


@dataclass(slots=True)
class _Debt:
    #: How long the quota needs to pay off the debt, from `noted_s` on.
    seconds: float = 0
    noted_s: float = 0

    def left_s(self, now_s: float) -> float:
        return max(self.seconds - (now_s - self.noted_s), 0)


class Quotas:
    """The quotas of all clients and their debts, for many threads. `clock_s` is monotonic."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s, self._lock = clock_s, threading.Lock()
        self.limits: Limits = {}
        self._debts: dict[tuple[str, _Debtor], _Debt] = {}  # by the name of the quota and the debtor

    def set(self, limits: Limits) -> None:
        with self._lock:
            self.limits = dict(limits)
            if not limits:
                self._debts = {}

    def note(self, user: str, client_id: str, name: str, amount: float) -> None:
        """Add `amount`, in bytes or in seconds of a handler, to the debt of a client for the quota `name`."""
        if not self.limits or amount <= 0:
            return
        limit, debtor = self._limit_and_debtor(user, client_id, name)
        if limit is None:
            return
        now_s = self._clock_s()
        paid_per_second = limit / 100 if name == REQUEST_PERCENTAGE else limit
        with self._lock:
            if len(self._debts) > _MANY_DEBTS:
                self._debts = {key: debt for key, debt in self._debts.items() if debt.left_s(now_s)}
            debt = self._debts.setdefault((name, debtor), _Debt())
            debt.seconds = debt.left_s(now_s) + amount / paid_per_second
            debt.noted_s = now_s

    def wait_s(self, user: str, client_id: str) -> float:
        """Return the seconds until the next request of a client may be read."""
        return max(self._wait_s(user, client_id, name) for name in NAMES) if self.limits else 0

    def _wait_s(self, user: str, client_id: str, name: str) -> float:
        limit, debtor = self._limit_and_debtor(user, client_id, name)
        if limit is None:
            return 0
        with self._lock:
            debt = self._debts.get((name, debtor))
            wait_s = 0 if debt is None else debt.left_s(self._clock_s()) - _BURST_S
        return min(max(wait_s, 0), _LONGEST_WAIT_S.get(name, _LONGEST_WAIT_FOR_BYTES_S))

    def _limit_and_debtor(self, user: str, client_id: str, name: str) -> tuple[float | None, _Debtor]:
        limits = self.limits
        # without a login, client ids may have any length: a cut one is still too long to have a quota of its own
        for entity, debtor in _entities(user, client_id[: MAX_NAME_BYTES + 1]):
            limit = limits.get(entity, {}).get(name)
            if limit is not None:
                return limit, debtor
        return None, ("", "")


#: Each connection may use this much, even if all memory is reserved for large requests that never arrive.
_ALWAYS_ADMITTED_BYTES = 64 << 10


class RequestMemory:
    """`limit` bytes for requests and responses, of which an owner gets at most three quarters. For one thread."""

    def __init__(self, limit: int) -> None:
        self._limit, self._owner_limit, self.used = limit, limit * 3 // 4, 0
        # by owner: the bytes of its connections above _ALWAYS_ADMITTED_BYTES
        self._large_bytes = Counter[str]()
        # by owner: the number of its shares with `will_release`
        self._releasing = Counter[str]()
        #: By waiting share: the bytes that it waits for, and the function to call when they are reserved.
        self.waiting: dict[MemoryShare, tuple[int, Callable[[], None]]] = {}

    def next_admitted(self) -> MemoryShare | None:
        fitting = [share for share, (size, _) in self.waiting.items() if self._fits(share, size)]
        return min(fitting, key=lambda share: self._large_bytes[share.owner], default=None)

    def admits(self, share: MemoryShare, size: int) -> bool:
        """Whether a share may use `size` more bytes. A small share may, unless its owner exceeds its limit."""
        is_small = share.size + size <= _ALWAYS_ADMITTED_BYTES and self._large_bytes[share.owner] <= self._owner_limit
        return not size or is_small or self._fits(share, size)

    def _fits(self, share: MemoryShare, size: int) -> bool:
        """Whether `size` is within both limits. A limit does not apply if a wait for it would never end."""
        # Only a share with `will_release` can end the wait. `own_count` is 1 if this share has it only until it
        # waits, as it has no releasable bytes
        own_count = int(share.will_release and not share.releasable)
        if self._large_bytes[share.owner] + size > self._owner_limit and self._releasing[share.owner] > own_count:
            return False
        return self.used + size <= self._limit or self._releasing.total() <= own_count

    def resize(self, share: MemoryShare, size: int) -> None:
        self.used += size - share.size
        change = max(size - _ALWAYS_ADMITTED_BYTES, 0) - max(share.size - _ALWAYS_ADMITTED_BYTES, 0)
        if change:
            change_count(self._large_bytes, share.owner, change)
        share.size = size
        self.update_releasing(share)

    def update_releasing(self, share: MemoryShare) -> None:
        """Note whether a share will release memory even if it gets no more."""
        will_release = share.size > 0 and (share not in self.waiting or share.releasable > 0)
        if will_release == share.will_release:
            return
        share.will_release = will_release
        change_count(self._releasing, share.owner, 1 if will_release else -1)


class MemoryShare:
    """A connection's memory. `releasable` bytes, of requests in flight, are released even while it waits for more."""

    def __init__(self, memory: RequestMemory, owner: str) -> None:
        self._memory, self.owner = memory, owner
        self.size = self.releasable = 0
        self.will_release = False

    def reserve(self, size: int, on_granted: Callable[[], None]) -> bool:
        """Reserve memory for a request. Returns False if the request must wait until `on_granted` is called."""
        if self._memory.admits(self, size):
            self.charge(size)
            return True
        self._memory.waiting[self] = size, on_granted
        self._memory.update_releasing(self)
        return False

    def release(self, size: int) -> None:
        if not size:
            return
        self._memory.resize(self, self.size - size)
        while share := self._memory.next_admitted():
            size, on_granted = self._memory.waiting.pop(share)
            share.charge(size)
            on_granted()

    def cancel_wait(self) -> None:
        self._memory.waiting.pop(self, None)
        self._memory.update_releasing(self)

    def charge(self, size: int) -> None:
        """Count bytes that are already used, even if they exceed the limit."""
        if size:
            self._memory.resize(self, self.size + size)

    def add_releasable(self, size: int) -> None:
        """Change the number of releasable bytes; `size` is negative before they are released."""
        self.releasable += size
        self._memory.update_releasing(self)
