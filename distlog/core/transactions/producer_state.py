"""What is known of one producer: its newest epoch, its last batches, and its open transaction (KIP-98, KIP-360)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from distlog.core.batches.record_batch import TRANSACTIONAL, increment_sequence
from distlog.core.config import DAY_MS
from distlog.core.times import NO_TIMESTAMP

#: Kafka's producer.id.expiration.ms: how long a silent producer is remembered.
EXPIRATION_MS = DAY_MS
#: How many batches of a producer are remembered, so that they are known again.
KEPT_BATCHES = 5
#: Stands for an epoch, a sequence number or an offset that there is not.
NONE = -1


class KnownBatch(NamedTuple):
    """A batch of data that the log has; `timestamp` is its largest."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        """The sequence number of its first record."""
        return int(increment_sequence(self.last_sequence, -self.offset_delta))

    @property
    def first_offset(self) -> int:
        """The offset of its first record."""
        return self.last_offset - self.offset_delta


@dataclass(slots=True)
class ProducerState:
    """One producer: its newest epoch, and its last batches of that epoch, the oldest first.

    Times are ms, and -1 stands for none: `coordinator_epoch` is that of the last end marker,
    `transaction_first_offset` that of the open transaction.
    """

    epoch: int = NONE
    batches: deque[KnownBatch] = field(default_factory=lambda: deque(maxlen=KEPT_BATCHES))
    last_timestamp: int = NO_TIMESTAMP
    coordinator_epoch: int = NONE
    transaction_first_offset: int = NONE
    # When this process heard of it last: records may have old times. Kafka goes by their times alone.
    heard_ms: int = NO_TIMESTAMP

    @property
    def last_sequence(self) -> int:
        """The sequence number of the last record of this epoch; -1 if there is none."""
        return self.batches[-1].last_sequence if self.batches else NONE

    def has_expired(self, now_ms: int) -> bool:
        """Whether it was silent for EXPIRATION_MS at `now_ms`, and its transaction is not open."""
        silent_ms = now_ms - max(self.last_timestamp, self.heard_ms)
        return self.transaction_first_offset == NONE and silent_ms >= EXPIRATION_MS

    def copy(self) -> ProducerState:
        """Another object that says the same."""
        return replace(self, batches=self.batches.copy())

    def known(self, epoch: int, first_sequence: int, last_sequence: int) -> KnownBatch | None:
        """The batch with exactly these numbers, if it is one of those that are kept."""
        if epoch != self.epoch or first_sequence < 0:
            return None
        numbers = first_sequence, last_sequence
        return next((each for each in self.batches if (each.first_sequence, each.last_sequence) == numbers), None)

    def recall(self, earlier: ProducerState) -> None:
        """Put the batches of `earlier` that lie before all that is known, if they are of this epoch, before it."""
        if earlier.epoch == self.epoch and self.batches:
            first = self.batches[0].last_offset
            before = [each for each in earlier.batches if each.last_offset < first]
            self.batches = deque([*before, *self.batches], maxlen=KEPT_BATCHES)

    def add(self, row: Any, last_offset: int) -> None:
        """Take the next batch of data (a BATCH row), which ends at `last_offset`, as the log has it."""
        self._begin(int(row["producer_epoch"]))
        delta, sequence = int(row["last_offset_delta"]), int(row["base_sequence"])
        self.last_timestamp = int(row["max_timestamp"])
        # the coordinator of consumer groups does not number its records
        last_sequence = NONE if sequence < 0 else int(increment_sequence(sequence, delta))
        self.batches.append(KnownBatch(last_sequence, last_offset, delta, self.last_timestamp))
        # a batch that compaction emptied was of a transaction that is decided; its marker may be gone
        if row["attributes"] & TRANSACTIONAL and row["record_count"] and self.transaction_first_offset == NONE:
            self.transaction_first_offset = last_offset - delta

    def end_transaction(self, row: Any, coordinator: int) -> None:
        """Take an end marker (a BATCH row); one of another epoch makes the sequence begin at 0 again."""
        self._begin(int(row["producer_epoch"]))
        self.last_timestamp = int(row["max_timestamp"])
        self.coordinator_epoch = coordinator
        self.transaction_first_offset = NONE

    def _begin(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch = epoch
            self.batches.clear()


def state_of(entry: Any) -> ProducerState:
    """The state that an entry of a producer snapshot (an ENTRY row) holds."""
    state = ProducerState(
        int(entry["producer_epoch"]),
        last_timestamp=int(entry["last_timestamp"]),
        coordinator_epoch=int(entry["coordinator_epoch"]),
        transaction_first_offset=int(entry["transaction_first_offset"]),
    )
    if entry["last_offset"] >= 0:
        batch = ("last_sequence", "last_offset", "offset_delta", "last_timestamp")
        state.batches.append(KnownBatch(*(int(entry[name]) for name in batch)))
    return state


def entry_of(producer: int, state: ProducerState) -> tuple[int, ...]:
    """The entry that a producer snapshot has of the producer."""
    last = state.batches[-1] if state.batches else KnownBatch(NONE, NONE, 0, NO_TIMESTAMP)
    return (
        producer,
        state.epoch,
        last.last_sequence,
        last.last_offset,
        last.offset_delta,
        state.last_timestamp,
        state.coordinator_epoch,
        state.transaction_first_offset,
    )
