"""The groups of a gateway: each with members, offsets, a lock and a timer, stored when it must survive."""

from __future__ import annotations

import heapq
import struct
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from math import inf
from typing import Any

from distlog.core.kafka.transactions import TopicPartition as TopicPartition
from distlog.core.read.consumer_offsets import OffsetKey, Position, WaitingChanges
from distlog.gateway.config import GroupConfigs, GroupSettings
from distlog.gateway.groups.classic_group import ClassicGroup, ClassicMember, GroupPhase, GroupRecord, Stored
from distlog.gateway.groups.consumer_group import ConsumerGroup
from distlog.gateway.groups.offsets_format import (
    ConsumerKey,
    ConsumerValue,
    GroupChange,
    GroupKey,
    PendingOffset,
    RecordKind,
)
from distlog.gateway.groups.offsets_topic import OffsetsTopic
from distlog.gateway.protocol.error_codes import CoordinatorError
from distlog.gateway.protocol.messages import ErrorCode


@dataclass(slots=True)
class Group:
    """A group with its offsets. `is_gone`: it was forgotten, and a thread that waits for its lock must look again."""

    membership: ClassicGroup | ConsumerGroup
    offsets: GroupOffsets
    lock: threading.RLock = field(default_factory=threading.RLock)
    is_gone: bool = False
    #: The earliest deadline of the group in the timer's queue.
    wakes_at: float = inf


#: The longest text that a record of `__consumer_offsets` holds, in bytes.
MAX_TEXT_BYTES = 32_767


#: When a deadline is looked at again that came while its group was loaded.
_LOAD_LOOK_MS = 1000


class GroupRegistry:
    """The groups by name; for many threads. `clock` gives ms that never go back; `wall_clock` ms since 1970.

    `check` raises CoordinatorError for a group that this gateway does not coordinate, or not yet.
    """

    def __init__(
        self,
        store: OffsetsTopic,
        settings: GroupSettings,
        *,
        clock: Callable[[], float] = lambda: time.monotonic() * 1000,
        wall_clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
        check: Callable[[str], None] = lambda name: None,
        on_earlier_deadline: Callable[[], object] = lambda: None,
    ) -> None:
        self.store, self.clock, self.wall_clock = store, clock, wall_clock
        self.configs = GroupConfigs(settings)
        self._new_id, self._on_earlier = new_id, on_earlier_deadline
        self.check = check
        self._lock, self._groups = threading.Lock(), dict[str, Group]()
        self._queue: list[tuple[float, str]] = []
        self._unloads = 0
        self._is_over = False

    def load(self, changes: Iterable[GroupChange | PendingOffset]) -> None:
        """Load stored groups. Members stay: their sessions begin now."""
        values: dict[OffsetKey | GroupKey, Position | GroupRecord] = {}
        consumers: dict[str, dict[ConsumerKey, ConsumerValue]] = {}
        pending = list[PendingOffset]()
        for change in changes:
            if isinstance(change, PendingOffset):
                pending.append(change)
                continue
            key, value = change
            records: dict[Any, Any] = consumers.setdefault(key.group, {}) if isinstance(key, ConsumerKey) else values
            if value is None:
                records.pop(key, None)
            else:
                records[key] = value
        for key, value in values.items():
            # Kafka has a group without a name, which no client can ask for here
            with suppress(CoordinatorError), self._locked(key.group, make=True) as group:
                if isinstance(key, OffsetKey) and isinstance(value, Position):
                    group.offsets.apply({(key.topic, key.partition): value})
                elif isinstance(value, GroupRecord) and isinstance(group.membership, ClassicGroup):
                    _restore(group.membership, value)
        for name, records in consumers.items():
            has_members = any(key.kind is RecordKind.MEMBER for key in records)
            with suppress(CoordinatorError), self._locked(name, make=bool(records)) as group:
                # a group that became a classic one, while the deletion of the other records failed, has members
                if records and (has_members or group.membership.phase is GroupPhase.EMPTY):
                    group.membership = self._new_consumers(name)
                    group.membership.restore(records)
        for position in pending:
            with suppress(CoordinatorError), self._locked(position.key.group, make=True) as group:
                group.offsets.wait_for(
                    position.producer_id, {(position.key.topic, position.key.partition): position.position}
                )

    def unload(self, is_of: Callable[[str], bool]) -> None:
        with self._lock:
            self._unloads += 1
            groups = [group for name, group in self._groups.items() if is_of(name)]
        for group in groups:
            with group.lock:
                group.is_gone = True
                with self._lock:
                    self._groups.pop(group.membership.id, None)
                _send_away(group)

    @contextmanager
    def locked(
        self, name: str, *, make: bool = False, missing: ErrorCode = ErrorCode.unknown_member_id
    ) -> Iterator[Group]:
        """Lock a group; a missing one is made, or CoordinatorError has the code `missing`.

        A group that is being unloaded is not missing: its members would give up their partitions.
        """
        if not name or len(name.encode("utf-8", "surrogatepass")) > MAX_TEXT_BYTES:
            raise CoordinatorError(ErrorCode.invalid_group_id)
        with self._locked(name, make, missing, self.check) as group:
            # it may have been made while `unload` was running
            self.check(name)
            yield group

    @contextmanager
    def _locked(
        self,
        name: str,
        make: bool,
        missing: ErrorCode = ErrorCode.none,
        check: Callable[[str], None] = lambda name: None,
    ) -> Iterator[Group]:
        while True:
            unloads = self._unloads
            check(name)
            if self._is_over:
                raise CoordinatorError(ErrorCode.not_coordinator)
            with self._lock:
                if name not in self._groups and make:
                    self._groups[name] = Group(self._new_classic(name), GroupOffsets(name))
                group = self._groups.get(name)
            if group is None:
                if unloads != self._unloads:
                    continue
                raise CoordinatorError(missing)
            with group.lock:
                if group.is_gone or self._is_over:
                    continue
                try:
                    yield group
                finally:
                    self._queue_up(name, group)
                return

    def all(self) -> list[Group]:
        """All groups, some of which may be forgotten concurrently."""
        with self._lock:
            return list(self._groups.values())

    def names(self) -> list[str]:
        with self._lock:
            return sorted(self._groups)

    def has_pending(self, name: str) -> bool:
        with self._lock:
            return name in self._groups and self._groups[name].offsets.has_pending

    def names_with_pending(self) -> list[str]:
        with self._lock:
            return [name for name, group in self._groups.items() if group.offsets.has_pending]

    def _new_classic(self, name: str) -> ClassicGroup:
        return ClassicGroup(
            name,
            self.configs.settings,
            clock=self.clock,
            wall_clock=self.wall_clock,
            new_id=self._new_id,
            save=lambda record, on_stored: self._store(name, [(GroupKey(name), record)], on_stored),
        )

    def _new_consumers(self, name: str) -> ConsumerGroup:
        return ConsumerGroup(
            name, self.configs, clock=self.clock, wall_clock=self.wall_clock, new_id=self._new_id, save=self._store
        )

    def classic(self, group: Group, *, joins: bool = False) -> ClassicGroup:
        """The group by the classic protocol; an empty one becomes one if a member `joins`."""
        membership = group.membership
        if isinstance(membership, ClassicGroup):
            return membership
        if not joins:
            raise CoordinatorError(ErrorCode.unknown_member_id)
        if membership.members:
            raise CoordinatorError(ErrorCode.inconsistent_group_protocol)
        self.store.store(membership.id, membership.records_to_delete(), lambda code: None)
        classic = group.membership = self._new_classic(membership.id)
        return classic

    def consumers(self, group: Group, *, joins: bool = False) -> ConsumerGroup:
        """The group by the newer protocol; an empty one becomes one if a member `joins`."""
        membership = group.membership
        if isinstance(membership, ConsumerGroup):
            return membership
        if membership.phase is not GroupPhase.EMPTY:
            raise CoordinatorError(ErrorCode.group_id_not_found)
        if not joins:
            raise CoordinatorError(ErrorCode.unknown_member_id)
        self.store.store(membership.id, [(GroupKey(membership.id), None)], lambda code: None)
        consumers = group.membership = self._new_consumers(membership.id)
        return consumers

    def forget(self, group: Group, on_stored: Stored) -> None:
        """Delete a group without members, and its offsets; the caller holds its lock."""
        membership = group.membership
        positions = [(key, None) for key, _ in group.offsets.keys(dict.fromkeys(group.offsets.partitions))]
        of_group: Sequence[GroupChange]
        if isinstance(membership, ConsumerGroup):
            membership.is_dead, of_group = True, membership.records_to_delete()
        else:
            membership.phase, of_group = GroupPhase.DEAD, [(GroupKey(membership.id), None)]
        group.is_gone = True
        # first: a client that creates the group again must store after this
        self.store.store(membership.id, [*positions, *of_group], on_stored)
        with self._lock:
            del self._groups[membership.id]

    def _store(self, name: str, changes: Sequence[GroupChange], on_stored: Stored) -> None:
        group = self._groups[name]

        def locked(code: ErrorCode) -> None:
            with group.lock:
                on_stored(code)
                self._queue_up(name, group)

        self.store.store(name, changes, locked)

    @property
    def next_deadline(self) -> float:
        with self._lock:
            return self._queue[0][0] if self._queue else inf

    @property
    def due_s(self) -> float:
        return max(0.0, (self.next_deadline - self.clock()) / 1000)

    def end(self) -> None:
        """Send all members to another gateway, now and later."""
        self._is_over = True
        for group in self.all():
            with group.lock:
                _send_away(group)

    def expire(self) -> None:
        while (due := self._due()) is not None:
            deadline, name = due
            try:
                with self.locked(name) as group:
                    # an earlier deadline queued the group again already; queuing each later one, too, would never end
                    if deadline == group.wakes_at:
                        group.wakes_at = inf
                        group.membership.expire()
            except CoordinatorError:
                self._put_off(name, deadline)

    def _due(self) -> tuple[float, str] | None:
        with self._lock:
            if self._queue and self._queue[0][0] <= self.clock():
                return heapq.heappop(self._queue)
        return None

    def _put_off(self, name: str, deadline: float) -> None:
        """Queue the group again while it is being loaded: it may have no other use after that."""
        with self._lock:
            group = self._groups.get(name)
            if group is not None and group.wakes_at == deadline:
                group.wakes_at = self.clock() + _LOAD_LOOK_MS
                heapq.heappush(self._queue, (group.wakes_at, name))

    def _queue_up(self, name: str, group: Group) -> None:
        """Queue a group's next deadline for the timer, unless the queue has an earlier one."""
        deadline = group.membership.next_deadline
        if deadline >= group.wakes_at:
            return
        group.wakes_at = deadline
        with self._lock:
            heapq.heappush(self._queue, (deadline, name))
            is_first = self._queue[0][0] == deadline
        if is_first:
            self._on_earlier()


def _send_away(group: Group) -> None:
    # members of the newer protocol wait for nothing but the storage
    for member in group.membership.members if isinstance(group.membership, ClassicGroup) else ():
        member.refuse(ErrorCode.not_coordinator)


def _restore(group: ClassicGroup, record: GroupRecord) -> None:
    group.generation, group.protocol, group.since_ms = record.generation, record.protocol, record.since_ms
    for stored in record.members:
        member = ClassicMember(
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


def subscribed_topics(subscription: bytes) -> frozenset[str] | None:
    """The topics; None if the bytes, which only clients interpret, are not a subscription."""
    topics, position = [], 6
    try:
        (count,) = struct.unpack_from(">i", subscription, 2)
        for _ in range(count):
            (size,) = struct.unpack_from(">h", subscription, position)
            name = subscription[position + 2 : position + 2 + size]
            if len(name) != size:
                return None
            topics.append(name.decode("utf-8"))
            position += 2 + size
    except (struct.error, UnicodeDecodeError):
        return None
    return frozenset(topics)


class GroupOffsets:
    def __init__(self, group: str) -> None:
        self._group = group
        self._by_partition: dict[TopicPartition, Position] = {}
        self._topics: frozenset[str] | None = frozenset()
        self._waiting = WaitingChanges[TopicPartition, Position]()
        #: How many changes of each offset are in flight; and changes of transactions.
        self._storing, self._joining = Counter[TopicPartition](), Counter[TopicPartition]()
        #: The transactions that ended while offsets of any were in flight: producer ids, and whether committed.
        self._ended = list[tuple[int, bool]]()

    def __len__(self) -> int:
        return len(self._by_partition)

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(sorted(self._by_partition))

    @property
    def topics(self) -> frozenset[str]:
        if self._topics is None:
            self._topics = frozenset(topic for topic, _ in self._by_partition)
        return self._topics

    def get(self, topic: str, partition: int) -> Position | None:
        return self._by_partition.get((topic, partition))

    def apply(self, changes: Mapping[TopicPartition, Position | None]) -> None:
        """Apply stored changes; None deletes. They supersede earlier offsets of transactions."""
        for partition, position in changes.items():
            self._waiting.supersede(partition)
            if position is None:
                self._by_partition.pop(partition, None)
                self._topics = None
            else:
                self._add({partition: position})

    def _add(self, positions: Mapping[TopicPartition, Position]) -> None:
        if not positions.keys() <= self._by_partition.keys():
            self._topics = None
        self._by_partition.update(positions)

    def begin_storing(self, partitions: Iterable[TopicPartition]) -> None:
        self._storing += Counter(iter(partitions))

    def end_storing(self, partitions: Iterable[TopicPartition]) -> None:
        self._storing -= Counter(iter(partitions))

    @property
    def storing(self) -> frozenset[TopicPartition]:
        """The partitions whose changes are in flight, without those in transactions."""
        return frozenset(self._storing)

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """The partitions that have an offset, or may get one from a pending or in-flight change."""
        return frozenset(self._by_partition) | self.pending | self.storing

    def begin_joining(self, partitions: Iterable[TopicPartition]) -> int:
        """Note offsets of a transaction in flight; returns the `first_end` for `joined`."""
        self._joining += Counter(iter(partitions))
        return len(self._ended)

    def joined(self, producer_id: int, positions: Mapping[TopicPartition, Position], first_end: int) -> None:
        """Note that offsets of the producer's transaction are in the log; it may have ended already."""
        outcome = next(
            (committed for ended_id, committed in self._ended[first_end:] if ended_id == producer_id), None
        )
        if outcome is None:
            self.wait_for(producer_id, positions)
        elif outcome:
            self._add(positions)

    def end_joining(self, partitions: Iterable[TopicPartition]) -> None:
        self._joining -= Counter(iter(partitions))
        if not self._joining:
            self._ended.clear()

    def is_joining(self, partitions: Iterable[TopicPartition] | None = None) -> bool:
        """True if offsets of `partitions`, or of any, are in flight as part of a transaction."""
        return any(self._joining[partition] for partition in (self._joining if partitions is None else partitions))

    @property
    def has_pending(self) -> bool:
        return bool(self._joining) or bool(self._waiting)

    @property
    def pending(self) -> frozenset[TopicPartition]:
        return self._waiting.keys

    def wait_for(self, producer_id: int, positions: Mapping[TopicPartition, Position]) -> None:
        for partition, position in positions.items():
            self._waiting.add(producer_id, partition, position)

    def end_transaction(self, producer_id: int, *, is_committed: bool) -> None:
        self._add(self._waiting.end(producer_id, is_committed=is_committed))
        if self._joining:
            self._ended.append((producer_id, is_committed))

    def keys(self, changes: Mapping[TopicPartition, Position | None]) -> list[tuple[OffsetKey, Position | None]]:
        return [(OffsetKey(self._group, *partition), position) for partition, position in changes.items()]

    def older(self, times_ms: Mapping[str, int]) -> list[TopicPartition]:
        if times_ms.keys().isdisjoint(self.topics):
            return []
        return [
            partition
            for partition, committed in self._by_partition.items()
            if committed.commit_ms < times_ms.get(partition[0], 0)
        ]

    def expired(self, group: ClassicGroup | ConsumerGroup, now_ms: int, retention_ms: int) -> list[TopicPartition]:
        """The offsets unused for `retention_ms`, since the group is empty, or since the commit (KIP-211).

        A group with members keeps its offsets in the topics that they read, or all if these are unknown.
        """
        if group.phase is GroupPhase.EMPTY:
            since_ms, topics = group.since_ms, frozenset[str]()
        else:
            topics_read = read_topics(group)
            is_settled = group.phase is GroupPhase.STABLE or isinstance(group, ConsumerGroup)
            if topics_read is None or not is_settled:
                return []
            since_ms, topics = 0, topics_read
        return [
            (topic, partition)
            for (topic, partition), position in self._by_partition.items()
            if topic not in topics and max(position.commit_ms, since_ms) + retention_ms <= now_ms
        ]


def read_topics(group: ClassicGroup | ConsumerGroup) -> frozenset[str] | None:
    """The topics that the members subscribe to; None if their subscriptions are of an unknown kind."""
    if group.phase is GroupPhase.EMPTY:
        return frozenset()
    if isinstance(group, ConsumerGroup):
        return group.read_topics
    if group.members.protocol_type != "consumer":
        return None
    topics = [subscribed_topics(member.subscription(group.protocol)) for member in group.members]
    subscriptions = [topics_of_member for topics_of_member in topics if topics_of_member is not None]
    return frozenset[str]().union(*subscriptions) if len(subscriptions) == len(topics) else None
