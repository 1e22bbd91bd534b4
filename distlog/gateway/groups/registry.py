"""The groups that a gateway coordinates: each has members, offsets, a lock and a timer."""

from __future__ import annotations

import heapq
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from math import inf
from typing import Any, Generic, Protocol, TypeVar

from distlog.core.errors import CorruptRecordError
from distlog.core.kafka.transactions import TopicPartition as TopicPartition
from distlog.core.read.consumer_offsets import OFFSETS_TOPIC, FieldReader, OffsetKey, Position, WaitingChanges
from distlog.gateway.config import GroupConfigs, GroupSettings
from distlog.gateway.groups.classic_group import ClassicGroup, GroupPhase, GroupRecord, Stored
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
    """A group with its offsets. After a wait for the lock, a thread looks up a group again if it `is_gone`."""

    membership: ClassicGroup | ConsumerGroup
    offsets: GroupOffsets
    lock: threading.RLock = field(default_factory=threading.RLock)
    is_gone: bool = False
    #: The earliest deadline of the group in the timer's queue, in ms of the registry's clock.
    wakes_at: float = inf


class _Entry(Protocol):
    lock: Any
    is_gone: bool


Entry = TypeVar("Entry", bound=_Entry)


class CoordinatedEntries(ABC, Generic[Entry]):
    """Groups or transactions by name, each with a lock, as long as this gateway coordinates them; for many threads.

    `check` raises CoordinatorError for a name that this gateway does not coordinate, or not yet.
    """

    def __init__(self, check: Callable[[str], None], new: Callable[[str], Entry]) -> None:
        self.check, self._new = check, new
        self._lock, self._entries = threading.Lock(), dict[str, Entry]()
        self._unloads = 0

    @contextmanager
    def lock_entry(
        self, name: str, *, make: bool = False, missing: ErrorCode = ErrorCode.none, is_loading: bool = False
    ) -> Iterator[Entry]:
        """Lock an entry; a missing one is made, or CoordinatorError has the code `missing`.

        An entry that is unloaded at the same time is not missing: members would give up their partitions. While it
        `is_loading`, the name is not checked.
        """
        while True:
            unloads = self._unloads
            if not is_loading:
                self.check(name)
            with self._lock:
                entry = self._entries.get(name)
                if entry is None and make:
                    entry = self._entries[name] = self._new(name)
            if entry is None:
                if unloads != self._unloads:
                    continue
                raise CoordinatorError(missing)
            with entry.lock:
                if entry.is_gone:
                    continue
                if not is_loading:
                    # the entry may have been made during `unload`
                    self.check(name)
                yield entry
                return

    @abstractmethod
    def load(self, stored: Iterable[Any], /) -> None:
        """Add the entries of stored records."""

    def unload(self, is_of: Callable[[str], bool]) -> None:
        """Forget the entries with these names; no thread uses one when this returns."""
        with self._lock:
            self._unloads += 1
            unloaded = {name: entry for name, entry in self._entries.items() if is_of(name)}
        for name, entry in unloaded.items():
            with entry.lock:
                self.remove(name, entry)
                self.on_unloaded(entry)

    def on_unloaded(self, entry: Entry) -> None:
        """Answer the requests that wait for the entry; its lock is held."""

    def remove(self, name: str, entry: Entry) -> None:
        """Remove an entry whose lock is held; a thread that waits for the lock looks the name up again."""
        entry.is_gone = True
        with self._lock:
            self._entries.pop(name, None)

    def names(self) -> list[str]:
        with self._lock:
            return sorted(self._entries)

    def all(self) -> list[Entry]:
        """All entries, some of which may be forgotten concurrently."""
        with self._lock:
            return list(self._entries.values())

    def get(self, name: str) -> Entry | None:
        return self._entries.get(name)


#: The longest text that a record of `__consumer_offsets` holds, in bytes.
MAX_TEXT_BYTES = 32_767
#: The pause before the timer checks a group again whose deadline came while it was being loaded.
_LOAD_PAUSE_MS = 1000


class GroupRegistry(CoordinatedEntries[Group]):
    """The groups by name; for many threads. `clock` gives ms that never go back; `wall_clock` ms since 1970.

    `check` raises CoordinatorError for a group that this gateway does not coordinate, or not yet.
    `on_earlier_deadline` is called when `due_s` becomes less.
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
        super().__init__(self._check, lambda name: Group(self._new_classic(name), GroupOffsets(name)))
        self.store, self.clock, self.wall_clock = store, clock, wall_clock
        self.configs = GroupConfigs(settings)
        self._new_id, self._on_earlier, self._check_led = new_id, on_earlier_deadline, check
        # deadlines and names of groups, as a heap
        self._queue: list[tuple[float, str]] = []
        self._is_over = False

    def _check(self, name: str) -> None:
        if self._is_over:
            raise CoordinatorError(ErrorCode.not_coordinator)
        self._check_led(name)

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
            # Kafka also has a group without a name, which no client can use here
            with self._loading(key.group) as group:
                if isinstance(key, OffsetKey) and isinstance(value, Position):
                    group.offsets.apply({(key.topic, key.partition): value})
                elif isinstance(value, GroupRecord) and isinstance(group.membership, ClassicGroup):
                    group.membership.restore(value)
        for name, records in consumers.items():
            if not records:
                continue
            has_members = any(key.kind is RecordKind.MEMBER for key in records)
            with self._loading(name) as group:
                # a group that became a classic group, but whose old records could not be deleted, has members
                if has_members or group.membership.phase is GroupPhase.EMPTY:
                    group.membership = self._new_consumers(name)
                    group.membership.restore(records)
        for pending_offset in pending:
            key = pending_offset.key
            with self._loading(key.group) as group:
                positions = {(key.topic, key.partition): pending_offset.position}
                group.offsets.wait_for(pending_offset.producer_id, positions)

    @contextmanager
    def _loading(self, name: str) -> Iterator[Group]:
        with self.lock_entry(name, make=True, is_loading=True) as group:
            yield group
            self._queue_up(name, group)

    @contextmanager
    def locked(
        self, name: str, *, make: bool = False, missing: ErrorCode = ErrorCode.unknown_member_id
    ) -> Iterator[Group]:
        """Lock a group, as `lock_entry` does; CoordinatorError also for a name that no group may have."""
        if not name or len(name.encode("utf-8", "surrogatepass")) > MAX_TEXT_BYTES:
            raise CoordinatorError(ErrorCode.invalid_group_id)
        with self.lock_entry(name, make=make, missing=missing) as group:
            try:
                yield group
            finally:
                self._queue_up(name, group)

    def each_locked(self) -> Iterator[Group]:
        """Yield each group of this gateway with its lock held."""
        for name in self.names():
            with suppress(CoordinatorError), self.locked(name) as group:
                yield group

    def on_unloaded(self, entry: Group) -> None:
        # members of the newer protocol wait for nothing but the storage
        for member in entry.membership.members if isinstance(entry.membership, ClassicGroup) else ():
            member.refuse(ErrorCode.not_coordinator)

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
        membership, offsets = group.membership, group.offsets
        of_group: Sequence[GroupChange] = [(GroupKey(membership.id), None)]
        if isinstance(membership, ConsumerGroup):
            of_group = membership.records_to_delete()
        # before the removal: a client that creates the group again must store after this
        self.store.store(membership.id, [*offsets.keys(dict.fromkeys(offsets.partitions)), *of_group], on_stored)
        self.remove(membership.id, group)

    def _store(self, name: str, changes: Sequence[GroupChange], on_stored: Stored) -> None:
        group = self._entries[name]

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
        """The seconds until `expire` has work."""
        return max(0.0, (self.next_deadline - self.clock()) / 1000)

    def end(self) -> None:
        """Send all members to another gateway, now and later."""
        self._is_over = True
        for group in self.all():
            with group.lock:
                self.on_unloaded(group)

    def expire(self) -> None:
        """Run the timers of the groups whose deadlines are over."""
        while self.next_deadline <= self.clock():
            with self._lock:
                deadline, name = heapq.heappop(self._queue)
            try:
                with self.locked(name) as group:
                    # else the group was queued again, with an earlier deadline
                    if deadline == group.wakes_at:
                        group.wakes_at = inf
                        group.membership.expire()
            except CoordinatorError:
                # nothing else may queue a group again that is being loaded
                loading = self.get(name)
                if loading is not None and loading.wakes_at == deadline:
                    loading.wakes_at = self.clock() + _LOAD_PAUSE_MS
                    with self._lock:
                        heapq.heappush(self._queue, (loading.wakes_at, name))

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


def subscribed_topics(subscription: bytes) -> frozenset[str] | None:
    """The topics; None if the bytes, which only clients interpret, are not a subscription."""
    reader = FieldReader(subscription, "a subscription", OFFSETS_TOPIC)
    try:
        reader.number(">h")
        return frozenset([reader.text() for _ in range(reader.count())])
    except CorruptRecordError:
        return None


class GroupOffsets:
    def __init__(self, group: str) -> None:
        self._group = group
        self._by_partition: dict[TopicPartition, Position] = {}
        self._topics: frozenset[str] | None = frozenset()
        self._waiting = WaitingChanges[TopicPartition, Position]()
        #: The numbers of changes in flight by partition: outside of transactions, and in transactions.
        self._storing, self._joining = Counter[TopicPartition](), Counter[TopicPartition]()
        #: The producer ids of transactions that ended while offsets were in flight; True if committed.
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
        """Note that offsets of the producer's transaction, which may have ended already, are in the log."""
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
        """The offsets that were unused for `retention_ms`: since the group is empty, or since their commit (KIP-211).

        A group with members keeps the offsets in topics that the members read; all offsets if the topics are unknown.
        """
        topics = read_topics(group)
        is_settled = isinstance(group, ConsumerGroup) or group.phase in (GroupPhase.EMPTY, GroupPhase.STABLE)
        if topics is None or not is_settled:
            return []
        since_ms = group.since_ms if group.phase is GroupPhase.EMPTY else 0
        return [
            (topic, partition)
            for (topic, partition), position in self._by_partition.items()
            if topic not in topics and max(position.commit_ms, since_ms) + retention_ms <= now_ms
        ]


def read_topics(group: ClassicGroup | ConsumerGroup) -> frozenset[str] | None:
    """The topics that the members subscribe to; None if a subscription cannot be read."""
    if group.phase is GroupPhase.EMPTY:
        return frozenset()
    if isinstance(group, ConsumerGroup):
        return group.read_topics
    if group.members.protocol_type != "consumer":
        return None
    topics = [subscribed_topics(member.subscription(group.protocol)) for member in group.members]
    subscriptions = [topics_of_member for topics_of_member in topics if topics_of_member is not None]
    return frozenset[str]().union(*subscriptions) if len(subscriptions) == len(topics) else None
