"""The records of `__consumer_offsets`, in Kafka's formats.

A classic group has one record: Kafka's messages GroupMetadataKey and GroupMetadataValue. The gateway writes their
version 3, which brokers read since Kafka 2.3, and reads versions 0 to 3. A consumer group (of the newer protocol,
KIP-848) has a message in version 0 for each RecordKind: ConsumerGroupMetadata, ConsumerGroupMemberMetadata,
ConsumerGroupTargetAssignmentMetadata, ConsumerGroupTargetAssignmentMember, ConsumerGroupCurrentMemberAssignment.
Other records are ignored. The format of committed offsets is in `core.read.kafka_offsets`.
"""

from __future__ import annotations

import struct
import uuid
from dataclasses import dataclass
from enum import IntEnum
from itertools import groupby
from operator import itemgetter

from distlog.core.errors import CorruptRecordError
from distlog.core.read.kafka_offsets import (
    OFFSETS_TOPIC,
    FieldReader,
    OffsetKey,
    Position,
    decode_offset_key,
    encode_offset_key,
    text_field,
)
from distlog.gateway.groups.classic_group import GroupRecord, MemberRecord
from distlog.gateway.protocol.messages import uvarint

TopicIdPartition = tuple[uuid.UUID, int]


@dataclass(frozen=True, slots=True)
class ClassicGroupKey:
    group: str


class RecordKind(IntEnum):
    """The kinds of records of a consumer group; the number is the version of the key."""

    EPOCH = 3
    MEMBER = 5
    TARGET_EPOCH = 6
    TARGET = 7
    CURRENT = 8


MEMBER_RECORD_KINDS = (RecordKind.MEMBER, RecordKind.TARGET, RecordKind.CURRENT)


@dataclass(frozen=True, slots=True)
class ConsumerGroupKey:
    group: str
    kind: RecordKind
    #: Empty if the kind is not in MEMBER_RECORD_KINDS.
    member_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberMetadata:
    """The fields of a member's last heartbeats. `pattern` is a regular expression of topic names."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    rebalance_timeout_ms: int = -1
    assignor: str | None = None


class MemberState(IntEnum):
    """The step of a member on its way to its target assignment, by Kafka's numbers."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2


@dataclass(frozen=True, slots=True)
class CurrentAssignment:
    """The partitions that a member has, and the partitions that it must still give back (`revoking`)."""

    epoch: int
    previous_epoch: int
    state: MemberState
    assigned: frozenset[TopicIdPartition]
    revoking: frozenset[TopicIdPartition]


#: An epoch; or the metadata, the target assignment or the current assignment of a member.
ConsumerValue = int | MemberMetadata | frozenset[TopicIdPartition] | CurrentAssignment
#: A key and its new value; None deletes it.
GroupChange = (
    tuple[OffsetKey, Position | None]
    | tuple[ClassicGroupKey, GroupRecord | None]
    | tuple[ConsumerGroupKey, ConsumerValue | None]
)


@dataclass(frozen=True, slots=True)
class PendingOffset:
    """An offset that applies when the transaction of its producer is committed."""

    producer_id: int
    key: OffsetKey
    position: Position


#: The versions in which the key and the value of a classic group are written.
_CLASSIC_KEY_VERSION, _CLASSIC_VALUE_VERSION = 2, 3


def _blob(value: bytes) -> bytes:
    return struct.pack(">i", len(value)) + value


def encode_key(key: OffsetKey | ClassicGroupKey | ConsumerGroupKey) -> bytes:
    if isinstance(key, OffsetKey):
        return encode_offset_key(key)
    if isinstance(key, ClassicGroupKey):
        return struct.pack(">h", _CLASSIC_KEY_VERSION) + text_field(key.group)
    data = struct.pack(">h", key.kind) + text_field(key.group)
    return data + text_field(key.member_id) if key.kind in MEMBER_RECORD_KINDS else data


def decode_key(data: bytes) -> OffsetKey | ClassicGroupKey | ConsumerGroupKey | None:
    """The key of a record; None for a record of another kind. Raises CorruptRecordError."""
    reader = FieldReader(data, "a key", OFFSETS_TOPIC)
    version = reader.number(">h")
    if version == _CLASSIC_KEY_VERSION:
        return ClassicGroupKey(reader.text())
    if version not in set(RecordKind):
        # the key of a committed offset, or of an unknown kind
        return decode_offset_key(data)
    kind = RecordKind(version)
    return ConsumerGroupKey(reader.text(), kind, reader.text() if kind in MEMBER_RECORD_KINDS else "")


def encode_group(record: GroupRecord) -> bytes:
    fields = [struct.pack(">h", _CLASSIC_VALUE_VERSION), text_field(record.protocol_type)]
    fields += struct.pack(">i", record.generation), text_field(record.protocol), text_field(record.leader)
    fields.append(struct.pack(">qi", record.phase_since_ms, len(record.members)))
    for member in record.members:
        fields += map(text_field, (member.id, member.instance_id, member.client_id, member.client_host))
        fields.append(struct.pack(">ii", member.rebalance_timeout_ms, member.session_timeout_ms))
        fields += _blob(member.subscription), _blob(member.assignment)
    return b"".join(fields)


def decode_group(group: str, data: bytes) -> GroupRecord | None:
    """The value of a classic group's record; None in an unknown version. Raises CorruptRecordError."""
    reader = FieldReader(data, "a group", OFFSETS_TOPIC)
    version = reader.number(">h")
    if not 0 <= version <= _CLASSIC_VALUE_VERSION:
        return None
    return GroupRecord(
        group=group,
        protocol_type=reader.text(),
        generation=reader.number(">i"),
        protocol=reader.nullable_text(),
        leader=reader.nullable_text(),
        phase_since_ms=reader.number(">q") if version > 1 else -1,
        members=tuple(_member(reader, version) for _ in range(reader.number(">i"))),
    )


def _member(reader: FieldReader, version: int) -> MemberRecord:
    member_id = reader.text()
    instance_id = reader.nullable_text() if version > 2 else None
    client_id, client_host = reader.text(), reader.text()
    # version 0 has one timeout for both
    rebalance_timeout_ms = reader.number(">i")
    session_timeout_ms = reader.number(">i") if version > 0 else rebalance_timeout_ms
    return MemberRecord(
        id=member_id,
        instance_id=instance_id,
        client_id=client_id,
        client_host=client_host,
        rebalance_timeout_ms=rebalance_timeout_ms,
        session_timeout_ms=session_timeout_ms,
        subscription=reader.blob(),
        assignment=reader.blob(),
    )


#: A value in a consumer group's record begins with its version (0), and ends with its number of tagged fields.
_CONSUMER_VERSION, _NO_TAGS = struct.pack(">h", 0), b"\0"


def encode_consumer_value(value: ConsumerValue) -> bytes:
    if isinstance(value, int):
        fields = [struct.pack(">i", value)]
    elif isinstance(value, frozenset):
        fields = [_encode_partitions(value)]
    elif isinstance(value, CurrentAssignment):
        fields = [struct.pack(">iib", value.epoch, value.previous_epoch, value.state)]
        fields += _encode_partitions(value.assigned), _encode_partitions(value.revoking)
    else:
        fields = [*map(_text, (value.instance_id, value.rack_id, value.client_id, value.client_host))]
        fields += _length(len(value.topics)), *map(_text, value.topics)
        fields += _text(value.pattern), struct.pack(">i", value.rebalance_timeout_ms), _text(value.assignor)
    return _CONSUMER_VERSION + b"".join(fields) + _NO_TAGS


def decode_consumer_value(kind: RecordKind, data: bytes) -> ConsumerValue | None:
    """The value of a consumer group's record; None in an unknown version. Raises CorruptRecordError."""
    reader = FieldReader(data, "a group", OFFSETS_TOPIC)
    if reader.number(">h") != 0:
        return None
    # after the version, lengths are varints (KIP-482)
    reader.is_flexible = True
    if kind in (RecordKind.EPOCH, RecordKind.TARGET_EPOCH):
        return reader.number(">i")
    if kind is RecordKind.TARGET:
        return _read_partitions(reader)
    if kind is RecordKind.CURRENT:
        epoch, previous, state = reader.number(">i"), reader.number(">i"), reader.number(">b")
        if state not in set(MemberState):
            return None
        assigned, revoking = _read_partitions(reader), _read_partitions(reader)
        return CurrentAssignment(epoch, previous, MemberState(state), assigned, revoking)
    return MemberMetadata(
        instance_id=reader.nullable_text(),
        rack_id=reader.nullable_text(),
        client_id=reader.text(),
        client_host=reader.text(),
        topics=tuple(reader.text() for _ in range(reader.count())),
        pattern=reader.nullable_text(),
        rebalance_timeout_ms=reader.number(">i"),
        assignor=reader.nullable_text(),
    )


def _length(count: int) -> bytes:
    """The varint of `count + 1`, since 0 stands for null (KIP-482)."""
    return uvarint(count + 1)


def _text(value: str | None) -> bytes:
    if value is None:
        return _length(-1)
    data = value.encode("utf-8")
    return _length(len(data)) + data


def _encode_partitions(partitions: frozenset[TopicIdPartition]) -> bytes:
    by_topic = groupby(sorted(partitions), itemgetter(0))
    topics = [(topic, [number for _, number in topic_partitions]) for topic, topic_partitions in by_topic]
    fields = [_length(len(topics))]
    for topic, numbers in topics:
        fields += topic.bytes, _length(len(numbers)), struct.pack(f">{len(numbers)}i", *numbers), _NO_TAGS
    return b"".join(fields)


def _read_partitions(reader: FieldReader) -> frozenset[TopicIdPartition]:
    partitions = set[TopicIdPartition]()
    # a null list (-1) is read as an empty one
    for _ in range(reader.count()):
        topic = uuid.UUID(bytes=reader.read(16))
        count = reader.count()
        if count < 0:
            text = f"cannot read a group of {OFFSETS_TOPIC}: the list of partitions of a topic is null"
            raise CorruptRecordError(f"{text}; restore {OFFSETS_TOPIC} from a copy")
        partitions.update((topic, number) for number in struct.unpack(f">{count}i", reader.read(4 * count)))
        reader.skip_tags()
    return frozenset(partitions)
