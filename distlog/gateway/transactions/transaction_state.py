"""What is known of a transactional producer: who it is now, and how far its newest transaction is (KIP-98)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from kio.schema.errors import ErrorCode

from distlog.gateway.groups.offsets.positions import TopicPartition

#: Stands for an epoch or a time that there is not.
NONE = -1
#: Above it, a producer gets a new id: the last epoch is left for the end marker that fences.
LAST_EPOCH = (1 << 15) - 2


class TransactionRefusedError(Exception):
    """The coordinator refuses what a producer asked for, with this code of Kafka's."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


class Status(Enum):
    """How far a transaction is, by Kafka's numbers (TransactionState). Prepare: it is decided."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5

    @property
    def kafka_name(self) -> str:
        """The name by which Kafka's admin clients know it: `PrepareCommit`."""
        return self.name.title().replace("_", "")


_COMPLETE = {Status.PREPARE_COMMIT: Status.COMPLETE_COMMIT, Status.PREPARE_ABORT: Status.COMPLETE_ABORT}
_OVER = (Status.EMPTY, *_COMPLETE.values())


@dataclass(frozen=True, slots=True)
class ProducerId:
    """A producer as its batches name it."""

    id: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionState:
    """A transactional producer, and its newest transaction. Times are ms since 1970.

    `last_epoch`, which is not stored, is the epoch before, if its producer itself asked for the next one (KIP-360).
    """

    transactional_id: str
    producer: ProducerId
    timeout_ms: int
    status: Status = Status.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    updated_ms: int
    started_ms: int = NONE
    last_epoch: int = NONE

    @property
    def is_decided(self) -> bool:
        """Whether it is committed or aborted, and its end markers are still to be written."""
        return self.status in _COMPLETE

    @property
    def is_over(self) -> bool:
        """Whether there is nothing to do for it."""
        return self.status in _OVER

    def has_timed_out(self, now_ms: int) -> bool:
        """Whether it has been open for longer than its producer allowed."""
        return self.status is Status.ONGOING and now_ms - self.started_ms >= self.timeout_ms

    def begun_again(self, producer: ProducerId, timeout_ms: int, now_ms: int, last_epoch: int) -> TransactionState:
        """The state when its next producer begins."""
        return TransactionState(
            transactional_id=self.transactional_id,
            producer=producer,
            timeout_ms=timeout_ms,
            updated_ms=now_ms,
            last_epoch=last_epoch,
        )

    def with_partitions(self, partitions: frozenset[TopicPartition], now_ms: int) -> TransactionState:
        """The transaction, begun if it is not, with these partitions besides."""
        known = self.partitions if self.status is Status.ONGOING else frozenset()
        started_ms = self.started_ms if self.status is Status.ONGOING else now_ms
        return replace(
            self, status=Status.ONGOING, partitions=known | partitions, started_ms=started_ms, updated_ms=now_ms
        )

    def decided(self, now_ms: int, *, is_committed: bool, fences: bool = False) -> TransactionState:
        """The transaction with its decision; one that `fences` is of the next epoch, which no producer has."""
        status = Status.PREPARE_COMMIT if is_committed else Status.PREPARE_ABORT
        producer = ProducerId(self.producer.id, self.producer.epoch + fences)
        last_epoch = NONE if fences else self.last_epoch
        return replace(self, status=status, producer=producer, last_epoch=last_epoch, updated_ms=now_ms)

    def completed(self, now_ms: int) -> TransactionState:
        """The decided transaction when all of its markers are on the device."""
        return replace(self, status=_COMPLETE[self.status], partitions=frozenset(), updated_ms=now_ms)


def check_producer(state: TransactionState | None, producer: ProducerId) -> None:
    """Raise TransactionRefusedError unless `state` is of this very producer."""
    if state is None or state.producer.id != producer.id:
        raise TransactionRefusedError(ErrorCode.invalid_producer_id_mapping)
    if state.producer.epoch != producer.epoch:
        raise TransactionRefusedError(ErrorCode.producer_fenced)


def check_open(state: TransactionState | None, producer: ProducerId, place: TopicPartition) -> None:
    """Raise TransactionRefusedError unless the producer's transaction is open, and has the partition `place`."""
    check_producer(state, producer)
    if state is None or state.status is not Status.ONGOING or place not in state.partitions:
        raise TransactionRefusedError(ErrorCode.invalid_txn_state)
