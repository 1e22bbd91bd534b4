"""The records of `__consumer_offsets`, byte for byte Kafka's: a broker that gets this topic goes on with its groups.

Source: Kafka's OffsetCommitKey, OffsetCommitValue, GroupMetadataKey and GroupMetadataValue messages. Values are
written in version 3, which brokers from 2.3 on read, and read in 0 to 3. Records of other kinds (newer groups) stay.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from distlog.gateway.groups.members.group_record import GroupRecord, MemberRecord
from distlog.gateway.groups.offsets.record_fields import FieldReader, text_field

_OFFSET_KEYS, _GROUP_KEY = (0, 1), 2
_VALUE_VERSION = 3
_TOPIC = "__consumer_offsets"


@dataclass(frozen=True, slots=True, order=True)
class OffsetKey:
    """Whose position: of a group, in a topic's partition."""

    group: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class GroupKey:
    """Which group."""

    group: str


@dataclass(frozen=True, slots=True)
class Position:
    """The next offset that a group reads; committed at `commit_ms` (since 1970), with a text of the client's."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_ms: int = 0


def _blob(value: bytes) -> bytes:
    return struct.pack(">i", len(value)) + value


def encode_key(key: OffsetKey | GroupKey) -> bytes:
    """The bytes of a record's key."""
    if isinstance(key, GroupKey):
        return struct.pack(">h", _GROUP_KEY) + text_field(key.group)
    return struct.pack(">h", 1) + text_field(key.group) + text_field(key.topic) + struct.pack(">i", key.partition)


def decode_key(data: bytes) -> OffsetKey | GroupKey | None:
    """What a record is about; None if it is of a kind that is not known here. Raises CorruptRecordError."""
    reader = FieldReader(data, "a key", _TOPIC)
    version = reader.number(">h")
    if version in _OFFSET_KEYS:
        return OffsetKey(reader.text(), reader.text(), reader.number(">i"))
    return GroupKey(reader.text()) if version == _GROUP_KEY else None


def encode_position(position: Position) -> bytes:
    """The bytes of a position."""
    head = struct.pack(">hqi", _VALUE_VERSION, position.offset, position.leader_epoch)
    return head + text_field(position.metadata) + struct.pack(">q", position.commit_ms)


def decode_position(data: bytes) -> Position | None:
    """A position; None in a version that is not known here. Raises CorruptRecordError."""
    reader = FieldReader(data, "a position", _TOPIC)
    version = reader.number(">h")
    if not 0 <= version <= _VALUE_VERSION:
        return None
    offset = reader.number(">q")
    epoch = reader.number(">i") if version == _VALUE_VERSION else -1
    return Position(offset, epoch, reader.text(), reader.number(">q"))


def encode_group(record: GroupRecord) -> bytes:
    """The bytes of a group."""
    head = struct.pack(">h", _VALUE_VERSION) + text_field(record.protocol_type) + struct.pack(">i", record.generation)
    names = text_field(record.protocol) + text_field(record.leader) + struct.pack(">q", record.since_ms)
    return head + names + _members(record.members)


def _members(members: Sequence[MemberRecord]) -> bytes:
    parts = [struct.pack(">i", len(members))]
    for member in members:
        parts += map(text_field, (member.id, member.instance_id, member.client_id, member.client_host))
        parts.append(struct.pack(">ii", member.rebalance_timeout_ms, member.session_timeout_ms))
        parts += _blob(member.subscription), _blob(member.assignment)
    return b"".join(parts)


def decode_group(group: str, data: bytes) -> GroupRecord | None:
    """A group; None in a version that is not known here. Raises CorruptRecordError."""
    reader = FieldReader(data, "a group", _TOPIC)
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


def offsets_partition(group: str, partitions: int) -> int:
    """The partition of `__consumer_offsets` that has a group: Java's hash of its name, as Kafka's brokers count."""
    hashed = 0
    units = group.encode("utf-16-be")
    for high, low in zip(units[::2], units[1::2], strict=True):
        hashed = (31 * hashed + (high << 8 | low)) & 0xFFFFFFFF
    # the most negative number has no positive one: Kafka takes 0
    signed = hashed - (1 << 32) if hashed >> 31 else hashed
    return (0 if signed == -(1 << 31) else abs(signed)) % partitions
