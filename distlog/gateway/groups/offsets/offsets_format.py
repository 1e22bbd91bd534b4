"""The records of `__consumer_offsets`, byte for byte Kafka's: a broker that gets this topic goes on with its groups.

Source: Kafka's GroupMetadataKey and GroupMetadataValue messages; `positions_format` has those of positions. Values
are written in version 3, which brokers from 2.3 on read, and read in 0 to 3. Records of other kinds (newer groups)
stay.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from distlog.core.consumer_offsets.positions_format import (
    OFFSETS_TOPIC,
    OffsetKey,
    decode_offset_key,
    encode_offset_key,
)
from distlog.core.consumer_offsets.record_fields import FieldReader, text_field
from distlog.gateway.groups.members.group_record import GroupRecord, MemberRecord

_GROUP_KEY = 2
_VALUE_VERSION = 3


@dataclass(frozen=True, slots=True)
class GroupKey:
    """Which group."""

    group: str


def _blob(value: bytes) -> bytes:
    return struct.pack(">i", len(value)) + value


def encode_key(key: OffsetKey | GroupKey) -> bytes:
    """The bytes of a record's key."""
    if isinstance(key, OffsetKey):
        return encode_offset_key(key)
    return struct.pack(">h", _GROUP_KEY) + text_field(key.group)


def decode_key(data: bytes) -> OffsetKey | GroupKey | None:
    """What a record is about; None if it is of a kind that is not known here. Raises CorruptRecordError."""
    reader = FieldReader(data, "a key", OFFSETS_TOPIC)
    return GroupKey(reader.text()) if reader.number(">h") == _GROUP_KEY else decode_offset_key(data)


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
