"""The records of `__transaction_state`: the state of the transactions of each transactional id (KIP-98)."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum

from distlog.core.errors import CorruptRecordError
from distlog.core.read.consumer_offsets import FieldReader, text_field

#: Stands for a missing epoch or time.
NONE = -1


class TransactionStatus(Enum):
    """The state of a transaction, by Kafka's numbers (TransactionState). Prepare: it is decided."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5

    @property
    def kafka_name(self) -> str:
        return self.name.title().replace("_", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionState:
    """A transactional producer: its current id and epoch, and its newest transaction (KIP-98); times in ms.

    `last_epoch`, which is not stored, is the last epoch, if its producer itself asked for the next one (KIP-360), or
    had a transaction that timed out (KIP-588).
    """

    transactional_id: str
    producer: ProducerId
    timeout_ms: int
    status: TransactionStatus = TransactionStatus.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    updated_ms: int
    started_ms: int = NONE
    last_epoch: int = NONE

    @property
    def is_decided(self) -> bool:
        """True if it is committed or aborted, and its end markers are still to be written."""
        return self.status in _COMPLETE

    @property
    def is_over(self) -> bool:
        return self.status in _OVER

    def has_timed_out(self, now_ms: int) -> bool:
        return self.status is TransactionStatus.ONGOING and now_ms - self.started_ms >= self.timeout_ms

    def not_after(self, now_ms: int) -> TransactionState:
        """Return a copy; an open one started now at the latest, since a future start would keep it open for longer.

        A stored decision does not change: its time distinguishes it from others.
        """
        is_ahead = self.status is TransactionStatus.ONGOING and self.started_ms > now_ms
        return replace(self, started_ms=now_ms) if is_ahead else self

    def restarted(self, producer: ProducerId, timeout_ms: int, now_ms: int, last_epoch: int) -> TransactionState:
        return TransactionState(
            transactional_id=self.transactional_id,
            producer=producer,
            timeout_ms=timeout_ms,
            updated_ms=now_ms,
            last_epoch=last_epoch,
        )

    def with_partitions(self, partitions: frozenset[TopicPartition], now_ms: int) -> TransactionState:
        current = self.partitions if self.status is TransactionStatus.ONGOING else frozenset()
        started_ms = self.started_ms if self.status is TransactionStatus.ONGOING else now_ms
        return replace(
            self,
            status=TransactionStatus.ONGOING,
            partitions=current | partitions,
            started_ms=started_ms,
            updated_ms=now_ms,
        )

    def decided(self, now_ms: int, *, is_committed: bool, fences: bool = False) -> TransactionState:
        """The transaction with its decision; one that `fences` is of the next epoch, which no producer has."""
        status = TransactionStatus.PREPARE_COMMIT if is_committed else TransactionStatus.PREPARE_ABORT
        producer = ProducerId(self.producer.id, self.producer.epoch + fences)
        last_epoch = NONE if fences else self.last_epoch
        return replace(self, status=status, producer=producer, last_epoch=last_epoch, updated_ms=now_ms)

    def timed_out(self, now_ms: int) -> TransactionState:
        """The transaction, aborted as it was open for too long; its producer may ask for the next epoch (KIP-588)."""
        return replace(self.decided(now_ms, is_committed=False, fences=True), last_epoch=self.producer.epoch)

    def completed(self, now_ms: int) -> TransactionState:
        return replace(self, status=_COMPLETE[self.status], partitions=frozenset(), updated_ms=now_ms)


#: The topic's name, in Kafka too.
TRANSACTIONS_TOPIC = "__transaction_state"
#: A topic and its partition.
TopicPartition = tuple[str, int]


#: Above it, a producer gets a new id: the last epoch is left for the end marker that fences.
LAST_EPOCH = (1 << 15) - 2


_COMPLETE = {
    TransactionStatus.PREPARE_COMMIT: TransactionStatus.COMPLETE_COMMIT,
    TransactionStatus.PREPARE_ABORT: TransactionStatus.COMPLETE_ABORT,
}
_OVER = (TransactionStatus.EMPTY, *_COMPLETE.values())


@dataclass(frozen=True, slots=True)
class ProducerId:
    id: int
    epoch: int


# Byte for byte Kafka's TransactionLogKey and TransactionLogValue. A key is its version (int16: 0) and the
# transactional id. A value of version 0 is: version int16, producer id int64, producer epoch int16, timeout in ms
# int32, status int8, an array of topic and array of partitions (int32), or null (length -1), and the times in ms of
# the last change and of the start (int64). Texts have an int16 length in front, arrays an int32 one. Version 1, which
# brokers write from Kafka 4 on, is read too: it has the same fields, flexible.

_VERSION, _FLEXIBLE_VERSION = 0, 1
_HEAD, _TIMES, _COUNT = struct.Struct(">hqhib"), struct.Struct(">qq"), struct.Struct(">i")


def encode_key(transactional_id: str) -> bytes:
    return struct.pack(">h", _VERSION) + text_field(transactional_id)


def decode_key(data: bytes) -> str | None:
    reader = FieldReader(data, "a key", TRANSACTIONS_TOPIC)
    return reader.text() if reader.number(">h") == _VERSION else None


def encode_state(state: TransactionState) -> bytes:
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
    reader = FieldReader(data, "a value", TRANSACTIONS_TOPIC)
    if (version := reader.number(">h")) not in (_VERSION, _FLEXIBLE_VERSION):
        raise CorruptRecordError(f"a value of {TRANSACTIONS_TOPIC} has an unknown version", version=version)
    reader.is_flexible = version == _FLEXIBLE_VERSION
    producer = ProducerId(reader.number(">q"), reader.number(">h"))
    timeout_ms, status = reader.number(">i"), reader.number(">b")
    if status not in {status_.value for status_ in TransactionStatus}:
        raise CorruptRecordError(f"a value of {TRANSACTIONS_TOPIC} has an unknown status", status=status)
    partitions = frozenset(_topic_partitions(reader))
    return TransactionState(
        transactional_id=transactional_id,
        producer=producer,
        timeout_ms=timeout_ms,
        status=TransactionStatus(status),
        partitions=partitions,
        updated_ms=reader.number(">q"),
        started_ms=reader.number(">q"),
    )


def _topic_partitions(reader: FieldReader) -> Iterator[TopicPartition]:
    for _ in range(reader.count()):
        topic = reader.text()
        for _ in range(reader.count()):
            yield topic, reader.number(">i")
        reader.skip_tags()


def apply_state(newest: dict[str, TransactionState], key: bytes | None, value: bytes | None) -> None:
    transactional_id = decode_key(key or b"")
    if transactional_id is None:
        return
    if value is None:
        newest.pop(transactional_id, None)
    else:
        newest[transactional_id] = decode_state(transactional_id, value)
