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
from distlog.core.read.kafka_offsets import OFFSETS_TOPIC, FieldReader, OffsetKey, Position, WaitingChanges
from distlog.gateway.config import GroupConfigs, GroupSettings
from distlog.gateway.groups.classic_group import ClassicGroup, GroupPhase, GroupRecord, OnStored
from distlog.gateway.groups.consumer_group import ConsumerGroup
from distlog.gateway.groups.offsets_format import (
    ClassicGroupKey,
    ConsumerGroupKey,
    ConsumerValue,
    GroupChange,
    PendingOffset,
    RecordKind,
)
from distlog.gateway.groups.offsets_topic import OffsetsTopic
from distlog.gateway.protocol.error_codes import CoordinatorError
from distlog.gateway.protocol.messages import ErrorCode


@dataclass(slots=True)
class Group:
    """A group with its offsets. A thread that has locked a group that `is_gone` must look up the name again."""

    membership: ClassicGroup | ConsumerGroup
    offsets: GroupOffsets
    lock: threading.RLock = field(default_factory=threading.RLock)
    is_gone: bool = False
    queued_deadline: float = inf  # the earliest deadline in the timer's queue, in ms of the registry's clock


class _Entry(Protocol):
    lock: Any
    is_gone: bool


Entry = TypeVar("Entry", bound=_Entry)


class CoordinatedEntries(ABC, Generic[Entry]):
    """Groups or transactions by name, each with a lock; `check` raises for names of other gateways."""

    def __init__(self, check: Callable[[str], None], new: Callable[[str], Entry]) -> None:
        self.check, self._new = check, new
        self._lock, self._entries = threading.Lock(), dict[str, Entry]()
        self._unload_count = 0

    @contextmanager
    def lock_entry(
        self, name: str, *, create: bool = False, missing_code: ErrorCode = ErrorCode.none, is_loading: bool = False
    ) -> Iterator[Entry]:
        """Lock an entry. A missing entry is created, or raises CoordinatorError with `missing_code`."""
        while True:
            unload_count = self._unload_count
            if not is_loading:  # `check` would refuse an entry that is being loaded
                self.check(name)
            with self._lock:
                entry = self._entries.get(name)
                if entry is None and create:
                    entry = self._entries[name] = self._new(name)
            if entry is None:
                if unload_count != self._unload_count:
                    # unloaded after `check`: repeat it, since members that get `missing_code` give up partitions
                    continue
                raise CoordinatorError(missing_code)  # callers that give no code suppress the error
            with entry.lock:
                if entry.is_gone:
                    continue
                if not is_loading:  # check again, since the entry may have been created during `unload`
                    self.check(name)
                yield entry
                return

    @abstractmethod
    def load(self, stored: Iterable[Any], /) -> None:
        """Add the entries of stored records."""

    def unload(self, is_unloaded: Callable[[str], bool]) -> None:
        """Remove the entries whose names are unloaded. When this returns, no thread uses these entries."""
        with self._lock:
            self._unload_count += 1
            unloaded = {name: entry for name, entry in self._entries.items() if is_unloaded(name)}
        for name, entry in unloaded.items():
            with entry.lock:
                self.remove(name, entry)
                self.on_unloaded(entry)

    def on_unloaded(self, entry: Entry) -> None:
        """Answer the requests that wait for the entry; its lock is held."""

    def remove(self, name: str, entry: Entry) -> None:
        """Remove an entry; the caller holds its lock."""
        entry.is_gone = True
        with self._lock:
            self._entries.pop(name, None)

    def names(self) -> list[str]:
        with self._lock:
            return sorted(self._entries)

    def all(self) -> list[Entry]:
        """All entries; other threads may remove entries concurrently."""
        with self._lock:
            return list(self._entries.values())

    def get(self, name: str) -> Entry | None:
        return self._entries.get(name)


MAX_TEXT_BYTES = 32_767  # the longest text that a record of `__consumer_offsets` holds
_LOAD_PAUSE_MS = 1000  # if a group is being loaded at its deadline, the timer checks it again after this pause


class GroupRegistry(CoordinatedEntries[Group]):
    """The groups by name, thread-safe. `on_earlier_deadline` is called when `due_s` becomes shorter."""

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
        super().__init__(self._check_may_serve, lambda name: Group(self._new_classic(name), GroupOffsets(name)))
        self.store, self.clock, self.wall_clock = store, clock, wall_clock
        self.configs = GroupConfigs(settings)
        self._new_id, self._on_earlier_deadline, self._check_coordinated = new_id, on_earlier_deadline, check
        self._queue: list[tuple[float, str]] = []
        self._is_stopped = False

    def _check_may_serve(self, name: str) -> None:
        if self._is_stopped:
            raise CoordinatorError(ErrorCode.not_coordinator)
        self._check_coordinated(name)

    def load(self, changes: Iterable[GroupChange | PendingOffset]) -> None:
        """Load stored groups. The sessions of their members begin now."""
        values: dict[OffsetKey | ClassicGroupKey, Position | GroupRecord] = {}  # the newest value of each key
        consumer_groups: dict[str, dict[ConsumerGroupKey, ConsumerValue]] = {}
        pending = list[PendingOffset]()
        for change in changes:
            if isinstance(change, PendingOffset):
                pending.append(change)
                continue
            key, value = change
            is_consumer = isinstance(key, ConsumerGroupKey)
            records: dict[Any, Any] = consumer_groups.setdefault(key.group, {}) if is_consumer else values
            if value is None:
                records.pop(key, None)
            else:
                records[key] = value
        for key, value in values.items():
            # `locked` would refuse the empty name, under which Kafka may have stored a group
            with self._loading(key.group) as group:
                if isinstance(key, OffsetKey) and isinstance(value, Position):
                    group.offsets.apply({(key.topic, key.partition): value})
                elif isinstance(value, GroupRecord) and isinstance(group.membership, ClassicGroup):
                    group.membership.restore(value)
        for name, records in consumer_groups.items():
            if not records:
                continue
            has_members = any(key.kind is RecordKind.MEMBER for key in records)
            with self._loading(name) as group:
                # an empty consumer group can become a classic group: if that has members, these records are old
                if has_members or group.membership.phase is GroupPhase.EMPTY:
                    group.membership = self._new_consumer_group(name)
                    group.membership.restore(records)
        for pending_offset in pending:
            key = pending_offset.key
            with self._loading(key.group) as group:
                positions = {(key.topic, key.partition): pending_offset.position}
                group.offsets.add_pending(pending_offset.producer_id, positions)

    @contextmanager
    def _loading(self, name: str) -> Iterator[Group]:
        with self.lock_entry(name, create=True, is_loading=True) as group:
            yield group
            self._queue_deadline(name, group)

    @contextmanager
    def locked(
        self, name: str, *, create: bool = False, missing_code: ErrorCode = ErrorCode.unknown_member_id
    ) -> Iterator[Group]:
        """Lock a group, as `lock_entry` does. Raises CoordinatorError also for a name that no group may have."""
        if not name or len(name.encode("utf-8", "surrogatepass")) > MAX_TEXT_BYTES:
            raise CoordinatorError(ErrorCode.invalid_group_id)
        with self.lock_entry(name, create=create, missing_code=missing_code) as group:
            try:
                yield group
            finally:
                self._queue_deadline(name, group)

    def each_locked(self) -> Iterator[Group]:
        """Yield each group of this gateway with its lock held."""
        for name in self.names():
            with suppress(CoordinatorError), self.locked(name) as group:
                yield group

    def on_unloaded(self, entry: Group) -> None:
        # classic requests wait for other members; in the newer protocol they wait only for a store, which calls back
        if isinstance(entry.membership, ClassicGroup):
            for member in entry.membership.members:
                member.refuse(ErrorCode.not_coordinator)

    def _new_classic(self, name: str) -> ClassicGroup:
        return ClassicGroup(
            name,
            self.configs.settings,
            clock=self.clock,
            wall_clock=self.wall_clock,
            new_id=self._new_id,
            save=lambda record, on_stored: self._store(name, [(ClassicGroupKey(name), record)], on_stored),
        )

    def _new_consumer_group(self, name: str) -> ConsumerGroup:
        return ConsumerGroup(
            name, self.configs, clock=self.clock, wall_clock=self.wall_clock, new_id=self._new_id, save=self._store
        )

    def as_classic(self, group: Group, *, joins: bool = False) -> ClassicGroup:
        """The group as a classic group; an empty group of the newer protocol becomes one if a member `joins`."""
        membership = group.membership
        if isinstance(membership, ClassicGroup):
            return membership
        if not joins:
            raise CoordinatorError(ErrorCode.unknown_member_id)
        if membership.members:
            raise CoordinatorError(ErrorCode.inconsistent_group_protocol)
        self.store.store(membership.id, membership.deletions(), lambda code: None)
        classic = group.membership = self._new_classic(membership.id)
        return classic

    def as_consumer_group(self, group: Group, *, joins: bool = False) -> ConsumerGroup:
        """The group as one of the newer protocol; an empty classic group becomes one if a member `joins`."""
        membership = group.membership
        if isinstance(membership, ConsumerGroup):
            return membership
        if membership.phase is not GroupPhase.EMPTY:
            raise CoordinatorError(ErrorCode.group_id_not_found)  # Kafka's code for members of the other protocol
        if not joins:
            raise CoordinatorError(ErrorCode.unknown_member_id)
        self.store.store(membership.id, [(ClassicGroupKey(membership.id), None)], lambda code: None)
        consumer_group = group.membership = self._new_consumer_group(membership.id)
        return consumer_group

    def delete(self, group: Group, on_stored: OnStored) -> None:
        """Delete a group without members, and its offsets; the caller holds its lock."""
        membership, offsets = group.membership, group.offsets
        deletions: Sequence[GroupChange] = [(ClassicGroupKey(membership.id), None)]
        if isinstance(membership, ConsumerGroup):
            deletions = membership.deletions()
        deletions = [*offsets.with_keys(dict.fromkeys(offsets.partitions)), *deletions]  # None deletes an offset
        # store before the removal: if a client creates the group again, its records must follow these in the log
        self.store.store(membership.id, deletions, on_stored)
        self.remove(membership.id, group)

    def _store(self, name: str, changes: Sequence[GroupChange], on_stored: OnStored) -> None:
        group = self._entries[name]

        def on_stored_locked(code: ErrorCode) -> None:
            with group.lock:
                on_stored(code)
                self._queue_deadline(name, group)

        self.store.store(name, changes, on_stored_locked)

    @property
    def next_deadline(self) -> float:
        with self._lock:
            return self._queue[0][0] if self._queue else inf

    @property
    def due_s(self) -> float:
        """The seconds until `expire` has work."""
        return max(0.0, (self.next_deadline - self.clock()) / 1000)

    def stop(self) -> None:
        """Refuse waiting and later requests of members, so that they look for another gateway."""
        self._is_stopped = True
        for group in self.all():
            with group.lock:
                self.on_unloaded(group)

    def expire(self) -> None:
        """Apply the deadlines that are over, of all groups."""
        while self.next_deadline <= self.clock():
            with self._lock:
                deadline, name = heapq.heappop(self._queue)
            try:
                with self.locked(name) as group:
                    # the queue may also have former deadlines of the group, which do not apply any more
                    if deadline == group.queued_deadline:
                        group.queued_deadline = inf
                        group.membership.expire()
            except CoordinatorError:
                # the group was removed, or is being loaded and must be queued again, unless another thread did it
                loading = self.get(name)
                if loading is not None and loading.queued_deadline == deadline:
                    loading.queued_deadline = self.clock() + _LOAD_PAUSE_MS
                    with self._lock:
                        heapq.heappush(self._queue, (loading.queued_deadline, name))

    def _queue_deadline(self, name: str, group: Group) -> None:
        """Queue a group's next deadline for the timer, unless the queue has an earlier one."""
        deadline = group.membership.next_deadline
        if deadline >= group.queued_deadline:
            return
        group.queued_deadline = deadline
        with self._lock:
            heapq.heappush(self._queue, (deadline, name))
            is_first = self._queue[0][0] == deadline
        if is_first:
            self._on_earlier_deadline()


def parse_subscription(subscription: bytes) -> frozenset[str] | None:
    """The topics of a member's subscription; None if the bytes are not in the format of Kafka's consumers."""
    reader = FieldReader(subscription, "a subscription", OFFSETS_TOPIC)  # the names are for texts of errors
    try:
        reader.number(">h")  # the version
        return frozenset([reader.text() for _ in range(reader.count())])
    except CorruptRecordError:
        return None


class GroupOffsets:
    """The committed offsets of a group, its offsets in open transactions (pending), and its changes in flight."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._by_partition: dict[TopicPartition, Position] = {}
        self._topics: frozenset[str] | None = frozenset()  # the topics that have offsets; None to collect them again
        self._pending = WaitingChanges[TopicPartition, Position]()
        self._in_flight, self._transactional_in_flight = Counter[TopicPartition](), Counter[TopicPartition]()
        #: The producer ids of transactions that ended while offsets were in flight, and whether they were committed.
        self._ended_transactions = list[tuple[int, bool]]()

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
        """Apply stored changes, of which None deletes an offset. Stored changes supersede pending offsets."""
        for partition, position in changes.items():
            self._pending.supersede(partition)
            if position is None:
                self._by_partition.pop(partition, None)
                self._topics = None
            else:
                self._add({partition: position})

    def _add(self, positions: Mapping[TopicPartition, Position]) -> None:
        if not positions.keys() <= self._by_partition.keys():
            self._topics = None
        self._by_partition.update(positions)

    def begin_commit(self, partitions: Iterable[TopicPartition]) -> None:
        self._in_flight += Counter(iter(partitions))  # `iter`: a Counter takes the values of a dict as counts

    def end_commit(self, partitions: Iterable[TopicPartition]) -> None:
        self._in_flight -= Counter(iter(partitions))

    @property
    def in_flight(self) -> frozenset[TopicPartition]:
        """The partitions with changes in flight, outside of transactions."""
        return frozenset(self._in_flight)

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """The partitions that have an offset, or may get one from a pending or in-flight change."""
        return frozenset(self._by_partition) | self.pending | self.in_flight

    def begin_transactional_commit(self, partitions: Iterable[TopicPartition]) -> int:
        """Note a transaction's offsets in flight. Returns `ended_count`, the number of transactions that ended."""
        self._transactional_in_flight += Counter(iter(partitions))
        return len(self._ended_transactions)

    def add_transactional(
        self, producer_id: int, positions: Mapping[TopicPartition, Position], ended_count: int
    ) -> None:
        """Add offsets of a producer's transaction, which may have ended since `begin_transactional_commit`."""
        outcome = next(
            (committed for ended_id, committed in self._ended_transactions[ended_count:] if ended_id == producer_id),
            None,
        )
        if outcome is None:  # the transaction is still open
            self.add_pending(producer_id, positions)
        elif outcome:
            self._add(positions)

    def end_transactional_commit(self, partitions: Iterable[TopicPartition]) -> None:
        self._transactional_in_flight -= Counter(iter(partitions))
        if not self._transactional_in_flight:
            self._ended_transactions.clear()

    def has_transactional_commit(self, partitions: Iterable[TopicPartition] | None = None) -> bool:
        """Whether a transaction's offsets are in flight, in one of `partitions`, or in any partition if None."""
        in_flight = self._transactional_in_flight
        return any(in_flight[partition] for partition in (in_flight if partitions is None else partitions))

    @property
    def has_pending(self) -> bool:
        """Whether there are pending offsets, or offsets of transactions in flight."""
        return bool(self._transactional_in_flight) or bool(self._pending)

    @property
    def pending(self) -> frozenset[TopicPartition]:
        return self._pending.keys

    def add_pending(self, producer_id: int, positions: Mapping[TopicPartition, Position]) -> None:
        """Add offsets that apply when the producer's transaction is committed."""
        for partition, position in positions.items():
            self._pending.add(producer_id, partition, position)

    def end_transaction(self, producer_id: int, *, is_committed: bool) -> None:
        self._add(self._pending.end(producer_id, is_committed=is_committed))
        if self._transactional_in_flight:
            self._ended_transactions.append((producer_id, is_committed))

    def with_keys(self, changes: Mapping[TopicPartition, Position | None]) -> list[tuple[OffsetKey, Position | None]]:
        """The changes as records: the key of each offset, and the new value; None deletes the offset."""
        return [(OffsetKey(self._group, *partition), position) for partition, position in changes.items()]

    def older_than(self, replaced_ms: Mapping[str, int]) -> list[TopicPartition]:
        """The partitions whose offset was committed before their topic replaced a dropped one, at `replaced_ms`."""
        if replaced_ms.keys().isdisjoint(self.topics):
            return []
        return [
            partition
            for partition, position in self._by_partition.items()
            if position.commit_ms < replaced_ms.get(partition[0], 0)
        ]

    def expired(self, group: ClassicGroup | ConsumerGroup, now_ms: int, retention_ms: int) -> list[TopicPartition]:
        """The partitions without subscribers whose offset was unused for `retention_ms` (KIP-211)."""
        topics = subscribed_topics(group)
        # during a rebalance of a classic group, members that have subscriptions may not have joined again
        is_settled = isinstance(group, ConsumerGroup) or group.phase in (GroupPhase.EMPTY, GroupPhase.STABLE)
        if topics is None or not is_settled:
            return []
        empty_since_ms = group.phase_since_ms if group.phase is GroupPhase.EMPTY else 0
        return [
            (topic, partition)
            for (topic, partition), position in self._by_partition.items()
            if topic not in topics and max(position.commit_ms, empty_since_ms) + retention_ms <= now_ms
        ]


def subscribed_topics(group: ClassicGroup | ConsumerGroup) -> frozenset[str] | None:
    """The topics that the members subscribe to; None if a subscription cannot be read."""
    if group.phase is GroupPhase.EMPTY:
        return frozenset()
    if isinstance(group, ConsumerGroup):
        return group.subscribed_topics
    if group.members.protocol_type != "consumer":
        return None
    topics = set[str]()
    for member in group.members:
        subscription = parse_subscription(member.subscription(group.protocol))
        if subscription is None:
            return None
        topics |= subscription
    return frozenset(topics)
