"""The records of `__consumer_offsets`, byte for byte Kafka's, and the positions of one group."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from distlog.core.format.record_batch import COMMIT, CONTROL
from distlog.core.kafka.transactions import TopicPartition as TopicPartition
from distlog.core.read.consumer_offsets import (
    OFFSETS_TOPIC,
    FieldReader,
    OffsetKey,
    Position,
    WaitingChanges,
    decode_offset_key,
    encode_offset_key,
    text_field,
)
from distlog.core.segments.open_transactions import control_type
from distlog.gateway.groups.classic_group import ClassicGroup, GroupPhase, GroupRecord, MemberRecord
from distlog.gateway.groups.consumer_group import ConsumerGroup
from distlog.gateway.groups.consumer_records import (
    ConsumerKey,
    ConsumerValue,
    decode_consumer_key,
    encode_consumer_key,
)
from distlog.gateway.topics.partition import PartitionTail


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


class EndedTransaction(NamedTuple):
    """A transaction that has its end marker in a partition."""

    producer_id: int
    is_committed: bool


def ended_transactions(tail: PartitionTail) -> Iterator[EndedTransaction]:
    """The transactions that have ended in a partition since the last look. Raises DistlogError."""
    for batches in tail.batches():
        for row in batches.rows[batches.rows["attributes"] & CONTROL != 0]:
            yield EndedTransaction(int(row["producer_id"]), control_type(batches.data, row) == COMMIT)


# Source: Kafka's GroupMetadataKey and GroupMetadataValue messages; `core.read.consumer_offsets` has the positions.
# Values are written in version 3, which brokers from 2.3 on read, and read in 0 to 3. Groups of the newer protocol
# have other records (distlog.gateway.groups.consumer_records). Records of other kinds stay.

_GROUP_KEY = 2
_VALUE_VERSION = 3


@dataclass(frozen=True, slots=True)
class GroupKey:
    """The key of a group's record."""

    group: str


def _blob(value: bytes) -> bytes:
    return struct.pack(">i", len(value)) + value


def encode_key(key: OffsetKey | GroupKey | ConsumerKey) -> bytes:
    """The bytes of a record's key."""
    if isinstance(key, ConsumerKey):
        return encode_consumer_key(key)
    if isinstance(key, OffsetKey):
        return encode_offset_key(key)
    return struct.pack(">h", _GROUP_KEY) + text_field(key.group)


def decode_key(data: bytes) -> OffsetKey | GroupKey | ConsumerKey | None:
    """The subject of a record; None for an unknown kind. Raises CorruptRecordError."""
    reader = FieldReader(data, "a key", OFFSETS_TOPIC)
    if reader.number(">h") == _GROUP_KEY:
        return GroupKey(reader.text())
    return decode_consumer_key(data) or decode_offset_key(data)


def encode_group(record: GroupRecord) -> bytes:
    """The bytes of a group."""
    head = struct.pack(">h", _VALUE_VERSION) + text_field(record.protocol_type) + struct.pack(">i", record.generation)
    names = text_field(record.protocol) + text_field(record.leader) + struct.pack(">q", record.since_ms)
    parts = [struct.pack(">i", len(record.members))]
    for member in record.members:
        parts += map(text_field, (member.id, member.instance_id, member.client_id, member.client_host))
        parts.append(struct.pack(">ii", member.rebalance_timeout_ms, member.session_timeout_ms))
        parts += _blob(member.subscription), _blob(member.assignment)
    return head + names + b"".join(parts)


def decode_group(group: str, data: bytes) -> GroupRecord | None:
    """A group; None in an unknown version. Raises CorruptRecordError."""
    reader = FieldReader(data, "a group", OFFSETS_TOPIC)
    version = reader.number(">h")
    if not 0 <= version <= _VALUE_VERSION:
        return None
    return GroupRecord(
        group=group,
        protocol_type=reader.text(),
        generation=reader.number(">i"),
        protocol=reader.nullable_text(),
        leader=reader.nullable_text(),
        since_ms=reader.number(">q") if version > 1 else -1,
        members=tuple(_member(reader, version) for _ in range(reader.number(">i"))),
    )


def _member(reader: FieldReader, version: int) -> MemberRecord:
    id, instance = reader.text(), reader.nullable_text() if version > 2 else None
    client_id, client_host = reader.text(), reader.text()
    first, second = reader.number(">i"), reader.number(">i") if version > 0 else None
    return MemberRecord(
        id=id,
        instance_id=instance,
        client_id=client_id,
        client_host=client_host,
        rebalance_timeout_ms=first,
        session_timeout_ms=first if second is None else second,
        subscription=reader.blob(),
        assignment=reader.blob(),
    )


#: A key and its new value; None deletes it.
GroupChange = (
    tuple[OffsetKey, Position | None] | tuple[GroupKey, GroupRecord | None] | tuple[ConsumerKey, ConsumerValue | None]
)


@dataclass(frozen=True, slots=True)
class PendingPosition:
    """A position that counts when the transaction of its producer is committed."""

    producer_id: int
    key: OffsetKey
    position: Position


class Positions:
    """The durable positions of `group`."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._by_partition: dict[TopicPartition, Position] = {}
        self._topics: frozenset[str] | None = frozenset()
        self._waiting = WaitingChanges[TopicPartition, Position]()
        #: How many changes of each position are on their way into the log; and changes of transactions.
        self._storing, self._joining = Counter[TopicPartition](), Counter[TopicPartition]()
        #: The transactions that ended while positions of any were on their way: producer ids, and whether committed.
        self._ended = list[tuple[int, bool]]()

    def __len__(self) -> int:
        return len(self._by_partition)

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(sorted(self._by_partition))

    @property
    def topics(self) -> frozenset[str]:
        """The topics that have a position."""
        if self._topics is None:
            self._topics = frozenset(topic for topic, _ in self._by_partition)
        return self._topics

    def get(self, topic: str, partition: int) -> Position | None:
        """The position in a partition, if there is one."""
        return self._by_partition.get((topic, partition))

    def apply(self, changes: Mapping[TopicPartition, Position | None]) -> None:
        """Take stored changes; None deletes. They supersede earlier positions of transactions, however these end."""
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
        """Changes are on their way into the log."""
        self._storing += Counter(iter(partitions))

    def end_storing(self, partitions: Iterable[TopicPartition]) -> None:
        """Changes are in the log, or failed."""
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
        """Note that offsets of a transaction are in flight; returns the `first_end` for `joined`."""
        self._joining += Counter(iter(partitions))
        return len(self._ended)

    def joined(self, producer_id: int, positions: Mapping[TopicPartition, Position], first_end: int) -> None:
        """Note that offsets of the producer's transaction are in the log; it may have ended already, after them."""
        outcome = next(
            (committed for ended_id, committed in self._ended[first_end:] if ended_id == producer_id), None
        )
        if outcome is None:
            self.wait_for(producer_id, positions)
        elif outcome:
            self._add(positions)

    def end_joining(self, partitions: Iterable[TopicPartition]) -> None:
        """Note that offsets of a transaction are in the log, or failed."""
        self._joining -= Counter(iter(partitions))
        if not self._joining:
            self._ended.clear()

    def is_joining(self, partitions: Iterable[TopicPartition] | None = None) -> bool:
        """True if offsets of any partition, or of `partitions`, are in flight as part of a transaction."""
        return any(self._joining[partition] for partition in (self._joining if partitions is None else partitions))

    @property
    def has_pending(self) -> bool:
        """True if any position depends on the end of a transaction, or will."""
        return bool(self._joining) or bool(self._waiting)

    @property
    def pending(self) -> frozenset[TopicPartition]:
        """The partitions in which the position depends on the end of a transaction."""
        return self._waiting.keys

    def wait_for(self, producer_id: int, positions: Mapping[TopicPartition, Position]) -> None:
        """Add offsets that apply when the transaction of this producer is committed."""
        for partition, position in positions.items():
            self._waiting.add(producer_id, partition, position)

    def end_transaction(self, producer_id: int, *, is_committed: bool) -> None:
        """Take, or forget, the positions of a transaction that ended."""
        self._add(self._waiting.end(producer_id, is_committed=is_committed))
        if self._joining:
            self._ended.append((producer_id, is_committed))

    def keys(self, changes: Mapping[TopicPartition, Position | None]) -> list[tuple[OffsetKey, Position | None]]:
        """The changes as they are stored."""
        return [(OffsetKey(self._group, *partition), position) for partition, position in changes.items()]

    def older(self, times_ms: Mapping[str, int]) -> list[TopicPartition]:
        """The partitions whose offsets were committed before their topic's time."""
        if times_ms.keys().isdisjoint(self.topics):
            return []
        return [
            partition
            for partition, committed in self._by_partition.items()
            if committed.commit_ms < times_ms.get(partition[0], 0)
        ]

    def expired(self, group: ClassicGroup | ConsumerGroup, now_ms: int, retention_ms: int) -> list[TopicPartition]:
        """The partitions whose positions expire after `retention_ms`, since the group is empty, or since the commit.

        A group with members keeps its positions in the topics that they read (KIP-211), or all if these are unknown.
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
    """The topics that the group's members subscribe to; None if their subscriptions are of an unknown kind."""
    if group.phase is GroupPhase.EMPTY:
        return frozenset()
    if isinstance(group, ConsumerGroup):
        return group.read_topics
    if group.members.protocol_type != "consumer":
        return None
    topics = [subscribed_topics(member.subscription(group.protocol)) for member in group.members]
    subscriptions = [topics_of_member for topics_of_member in topics if topics_of_member is not None]
    return frozenset[str]().union(*subscriptions) if len(subscriptions) == len(topics) else None
