"""The groups of a gateway: each behind its lock, stored when it must survive, and woken in time."""

from __future__ import annotations

import heapq
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from math import inf

from kio.schema.errors import ErrorCode

from distlog.core.consumer_offsets.positions_format import OffsetKey, Position
from distlog.gateway.group_settings import GroupSettings
from distlog.gateway.groups.group import Group
from distlog.gateway.groups.members.classic_group import ClassicGroup, GroupPhase, Stored
from distlog.gateway.groups.members.exchanges import GroupRefusedError
from distlog.gateway.groups.members.group_record import GroupRecord
from distlog.gateway.groups.members.members import Member
from distlog.gateway.groups.offsets.group_store import GroupChange, GroupStore, PendingPosition
from distlog.gateway.groups.offsets.offsets_format import GroupKey
from distlog.gateway.groups.offsets.positions import Positions

#: The longest text that a record of `__consumer_offsets` holds, in bytes.
MAX_TEXT_BYTES = 32_767


class GroupRegistry:
    """The groups by name. `clock` gives ms that never go back; `wall_clock` ms since 1970. For several threads.

    `check` raises GroupRefusedError for the name of a group that is not, or not yet, this gateway's to answer for.
    """

    def __init__(
        self,
        store: GroupStore,
        settings: GroupSettings,
        *,
        clock: Callable[[], float] = lambda: time.monotonic() * 1000,
        wall_clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
        check: Callable[[str], None] = lambda name: None,
        on_earlier_deadline: Callable[[], object] = lambda: None,
    ) -> None:
        self.store, self.clock, self.wall_clock = store, clock, wall_clock
        self._settings, self._new_id, self._on_earlier = settings, new_id, on_earlier_deadline
        self.check = check
        self._lock, self._groups = threading.Lock(), dict[str, Group]()
        self._queue: list[tuple[float, str]] = []
        self._is_over = False

    def load(self, changes: Iterable[GroupChange | PendingPosition]) -> None:
        """Learn what is stored of groups, before the first call. Members go on: their sessions begin now."""
        standing: dict[OffsetKey | GroupKey, Position | GroupRecord] = {}
        pending = list[PendingPosition]()
        for change in changes:
            if isinstance(change, PendingPosition):
                pending.append(change)
                continue
            key, value = change
            if value is None:
                standing.pop(key, None)
            else:
                standing[key] = value
        for key, value in standing.items():
            # Kafka has a group without a name, which nobody can ask for here
            with suppress(GroupRefusedError), self._opened(key.group, make=True) as group:
                if isinstance(key, OffsetKey) and isinstance(value, Position):
                    group.positions.apply({(key.topic, key.partition): value})
                elif isinstance(value, GroupRecord):
                    _restore(group.membership, value)
        for each in pending:
            with suppress(GroupRefusedError), self._opened(each.key.group, make=True) as group:
                group.positions.wait_for(each.producer_id, {(each.key.topic, each.key.partition): each.position})

    def unload(self, is_of: Callable[[str], bool]) -> None:
        """Forget the groups of these names, which `check` refuses by now: another gateway answers for them."""
        with self._lock:
            groups = [group for name, group in self._groups.items() if is_of(name)]
        for group in groups:
            with group.lock:
                group.is_gone = True
                with self._lock:
                    self._groups.pop(group.membership.id, None)
                _send_away(group.membership)

    @contextmanager
    def opened(
        self, name: str, *, make: bool = False, missing: ErrorCode = ErrorCode.unknown_member_id
    ) -> Iterator[Group]:
        """The group, behind its lock; if it is not there it is made, or GroupRefusedError says what is `missing`."""
        if not name or len(name.encode("utf-8", "surrogatepass")) > MAX_TEXT_BYTES:
            raise GroupRefusedError(ErrorCode.invalid_group_id)
        self.check(name)
        with self._opened(name, make, missing) as group:
            # it may have been made behind the back of `unload`
            self.check(name)
            yield group

    @contextmanager
    def _opened(self, name: str, make: bool, missing: ErrorCode = ErrorCode.unknown_member_id) -> Iterator[Group]:
        while True:
            if self._is_over:
                raise GroupRefusedError(ErrorCode.not_coordinator)
            group = self._found(name, make, missing)
            with group.lock:
                if group.is_gone or self._is_over:
                    continue
                try:
                    yield group
                finally:
                    self._queue_up(name, group)
                return

    def names(self) -> list[str]:
        """The groups that there are."""
        with self._lock:
            return sorted(self._groups)

    def has_pending(self, name: str) -> bool:
        """Whether positions of the group depend on how transactions end."""
        with self._lock:
            return name in self._groups and self._groups[name].positions.has_pending

    def names_with_pending(self) -> list[str]:
        """The groups of which that holds."""
        with self._lock:
            return [name for name, group in self._groups.items() if group.positions.has_pending]

    def _found(self, name: str, make: bool, missing: ErrorCode = ErrorCode.none) -> Group:
        with self._lock:
            if name in self._groups:
                return self._groups[name]
            if not make:
                raise GroupRefusedError(missing)
            membership = ClassicGroup(
                name,
                self._settings,
                clock=self.clock,
                wall_clock=self.wall_clock,
                new_id=self._new_id,
                save=self._save,
            )
            return self._groups.setdefault(name, Group(membership, Positions(name)))

    def forget(self, group: Group, done: Stored) -> None:
        """Delete a group that has no members, and its positions; the caller has its lock."""
        membership = group.membership
        places = {*group.positions, *group.positions.pending}
        positions = [(key, None) for key, _ in group.positions.keys(dict.fromkeys(places))]
        membership.phase, group.is_gone = GroupPhase.DEAD, True
        with self._lock:
            del self._groups[membership.id]
        changes: list[GroupChange] = [*positions, (GroupKey(membership.id), None)]
        self.store.store(membership.id, changes, done)

    def _save(self, record: GroupRecord, done: Stored) -> None:
        group = self._found(record.group, make=False)

        def locked(code: ErrorCode) -> None:
            with group.lock:
                done(code)
                self._queue_up(record.group, group)

        self.store.store(record.group, [(GroupKey(record.group), record)], locked)

    # --- time

    @property
    def next_deadline(self) -> float:
        """When `expire` has something to do, by the clock; `inf` if never."""
        with self._lock:
            return self._queue[0][0] if self._queue else inf

    @property
    def due_s(self) -> float:
        """The seconds until `expire` has something to do."""
        return max(0.0, (self.next_deadline - self.clock()) / 1000)

    def end(self) -> None:
        """Answer whoever waits, and whoever comes: another gateway coordinates from now on."""
        self._is_over = True
        with self._lock:
            groups = list(self._groups.values())
        for group in groups:
            with group.lock:
                _send_away(group.membership)

    def expire(self) -> None:
        """Let each group do what is due by now."""
        while (name := self._due()) is not None:
            # a group that was deleted meanwhile has nothing to do
            with suppress(GroupRefusedError), self.opened(name) as group:
                group.wakes_at = inf
                group.membership.expire()

    def _due(self) -> str | None:
        with self._lock:
            if self._queue and self._queue[0][0] <= self.clock():
                return heapq.heappop(self._queue)[1]
        return None

    def _queue_up(self, name: str, group: Group) -> None:
        """Have the timer look at a group at its next deadline; a later one is looked up when this one has come."""
        deadline = group.membership.next_deadline
        if deadline >= group.wakes_at:
            return
        group.wakes_at = deadline
        with self._lock:
            heapq.heappush(self._queue, (deadline, name))
            is_first = self._queue[0][0] == deadline
        if is_first:
            self._on_earlier()


def _send_away(group: ClassicGroup) -> None:
    for member in group.members:
        member.refuse(ErrorCode.not_coordinator)


def _restore(group: ClassicGroup, record: GroupRecord) -> None:
    group.generation, group.protocol, group.since_ms = record.generation, record.protocol, record.since_ms
    for stored in record.members:
        member = Member(
            id=stored.id,
            instance_id=stored.instance_id,
            client_id=stored.client_id,
            client_host=stored.client_host,
            rebalance_timeout_ms=stored.rebalance_timeout_ms,
            session_timeout_ms=stored.session_timeout_ms,
            protocols=((record.protocol or "", stored.subscription),),
            assignment=stored.assignment,
        )
        group.members.add(member, record.protocol_type)
        group.renew(member)
    group.members.protocol_type = record.protocol_type or None
    if record.members:
        group.members.leader, group.phase = record.leader, GroupPhase.STABLE
