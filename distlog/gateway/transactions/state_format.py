"""The records of `__transaction_state`, byte for byte those of Kafka's TransactionLogKey and TransactionLogValue.

A key is its version (int16: 0) and the transactional id. A value of version 0 is: version int16, producer id int64,
producer epoch int16, timeout in ms int32, status int8, an array of topic and array of partitions (int32), or null
(length -1), and the times in ms of the last change and of the start (int64). Texts have an int16 length in front,
arrays an int32 one. Version 1, which brokers write from Kafka 4 on, is read too: it has the same fields, flexible.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from distlog.core.consumer_offsets.record_fields import FieldReader, text_field
from distlog.core.errors import CorruptRecordError
from distlog.gateway.groups.offsets.positions import TopicPartition
from distlog.gateway.transactions.transaction_state import ProducerId, Status, TransactionState

_VERSION, _FLEXIBLE_VERSION = 0, 1
_HEAD, _TIMES, _COUNT = struct.Struct(">hqhib"), struct.Struct(">qq"), struct.Struct(">i")
_TOPIC = "__transaction_state"


def encode_key(transactional_id: str) -> bytes:
    """The bytes of a record's key."""
    return struct.pack(">h", _VERSION) + text_field(transactional_id)


def decode_key(data: bytes) -> str | None:
    """The transactional id; None for a key of another kind. Raises CorruptRecordError."""
    reader = FieldReader(data, "a key", _TOPIC)
    return reader.text() if reader.number(">h") == _VERSION else None


def encode_state(state: TransactionState) -> bytes:
    """The bytes of a value."""
    producer = state.producer
    head = _HEAD.pack(_VERSION, producer.id, producer.epoch, state.timeout_ms, state.status.value)
    return head + _partitions(state.partitions) + _TIMES.pack(state.updated_ms, state.started_ms)


def _partitions(partitions: Iterable[TopicPartition]) -> bytes:
    topics = dict[str, list[int]]()
    for topic, number in sorted(partitions):
        topics.setdefault(topic, []).append(number)
    if not topics:
        return _COUNT.pack(-1)
    parts = [_COUNT.pack(len(topics))]
    for topic, numbers in topics.items():
        parts.append(text_field(topic) + struct.pack(f">i{len(numbers)}i", len(numbers), *numbers))
    return b"".join(parts)


def decode_state(transactional_id: str, data: bytes) -> TransactionState:
    """A value; raises CorruptRecordError for one that does not decode, or of a version that is not known."""
    reader = FieldReader(data, "a value", _TOPIC)
    if (version := reader.number(">h")) not in (_VERSION, _FLEXIBLE_VERSION):
        raise CorruptRecordError(f"a value of {_TOPIC} is of a version that is not known", version=version)
    reader.is_flexible = version == _FLEXIBLE_VERSION
    producer = ProducerId(reader.number(">q"), reader.number(">h"))
    timeout_ms, status = reader.number(">i"), reader.number(">b")
    if status not in {each.value for each in Status}:
        raise CorruptRecordError(f"a value of {_TOPIC} has a status that is not known", status=status)
    partitions = frozenset(_places(reader))
    return TransactionState(
        transactional_id=transactional_id,
        producer=producer,
        timeout_ms=timeout_ms,
        status=Status(status),
        partitions=partitions,
        updated_ms=reader.number(">q"),
        started_ms=reader.number(">q"),
    )


def _places(reader: FieldReader) -> Iterator[TopicPartition]:
    for _ in range(reader.count()):
        topic = reader.text()
        for _ in range(reader.count()):
            yield topic, reader.number(">i")
        reader.skip_tags()
