"""The positions in `__consumer_offsets`, byte for byte Kafka's.

Source: Kafka's OffsetCommitKey and OffsetCommitValue messages. Values are written in version 3, which brokers from
2.3 on read, and read in 0 to 4, which brokers of 4.1 write.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from distlog.core.consumer_offsets.record_fields import FieldReader, text_field

#: The topic's name, in Kafka too.
OFFSETS_TOPIC = "__consumer_offsets"
#: The versions of keys of positions.
_OFFSET_KEYS = (0, 1)
_VALUE_VERSION, _FLEXIBLE_VERSION = 3, 4


@dataclass(frozen=True, slots=True, order=True)
class OffsetKey:
    """Whose position: of a group, in a topic's partition."""

    group: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class Position:
    """The next offset that a group reads; committed at `commit_ms` (since 1970), with a text of the client's."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_ms: int = 0


def encode_offset_key(key: OffsetKey) -> bytes:
    """The bytes of a position's key."""
    return struct.pack(">h", 1) + text_field(key.group) + text_field(key.topic) + struct.pack(">i", key.partition)


def offset_key_prefixes(group: str, topic: str) -> tuple[bytes, ...]:
    """What the keys of a group's positions in a topic begin with, in each version."""
    return tuple(struct.pack(">h", version) + text_field(group) + text_field(topic) for version in _OFFSET_KEYS)


def decode_offset_key(data: bytes) -> OffsetKey | None:
    """Whose position a record has; None if it is of another kind. Raises CorruptRecordError."""
    reader = FieldReader(data, "a key", OFFSETS_TOPIC)
    if reader.number(">h") not in _OFFSET_KEYS:
        return None
    return OffsetKey(reader.text(), reader.text(), reader.number(">i"))


def encode_position(position: Position) -> bytes:
    """The bytes of a position."""
    head = struct.pack(">hqi", _VALUE_VERSION, position.offset, position.leader_epoch)
    return head + text_field(position.metadata) + struct.pack(">q", position.commit_ms)


def decode_position(data: bytes) -> Position | None:
    """A position; None in a version that is not known here. Raises CorruptRecordError."""
    reader = FieldReader(data, "a position", OFFSETS_TOPIC)
    version = reader.number(">h")
    if not 0 <= version <= _FLEXIBLE_VERSION:
        return None
    reader.is_flexible = version == _FLEXIBLE_VERSION
    offset = reader.number(">q")
    epoch = reader.number(">i") if version >= _VALUE_VERSION else -1
    return Position(offset, epoch, reader.text(), reader.number(">q"))


def offsets_partition(group: str, partitions: int) -> int:
    """The partition of `__consumer_offsets` that has a group: Java's hash of its name, as Kafka's brokers count."""
    hashed = 0
    units = group.encode("utf-16-be")
    for high, low in zip(units[::2], units[1::2], strict=True):
        hashed = (31 * hashed + (high << 8 | low)) & 0xFFFFFFFF
    # the most negative number has no positive one: Kafka takes 0
    signed = hashed - (1 << 32) if hashed >> 31 else hashed
    return (0 if signed == -(1 << 31) else abs(signed)) % partitions
