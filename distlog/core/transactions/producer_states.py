"""What a partition's log says of each producer: Kafka's `ProducerStateManager` (KIP-98, KIP-360).

A producer numbers its records from 0 on, in each partition. So a log can tell a batch that it has already from the
next one, and from one before which others are missing. It keeps the last five batches of each producer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from distlog.core.batches.record_batch import ABORT, COMMIT, CONTROL, TRANSACTIONAL, increment_sequence
from distlog.core.config import DAY_MS
from distlog.core.errors import InvalidRecordError, OutOfOrderSequenceError, ProducerFencedError
from distlog.core.times import NO_TIMESTAMP
from distlog.core.transactions.open_transactions import control_type, coordinator_epoch
from distlog.core.transactions.producer_snapshot import ENTRY, write_producer_snapshot

#: Kafka's producer.id.expiration.ms: how long a silent producer is remembered.
EXPIRATION_MS = DAY_MS
#: Kafka's producer.id.expiration.check.interval.ms: how often all producers are looked at.
EXPIRATION_CHECK_MS = 600_000
#: How many batches of a producer are remembered, so that they are known again.
KEPT_BATCHES = 5
_NONE = -1


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

    epoch: int = _NONE
    batches: deque[KnownBatch] = field(default_factory=lambda: deque(maxlen=KEPT_BATCHES))
    last_timestamp: int = NO_TIMESTAMP
    coordinator_epoch: int = _NONE
    transaction_first_offset: int = _NONE
    # When this process heard of it last: records may have old times. Kafka goes by their times alone.
    heard_ms: int = NO_TIMESTAMP

    @property
    def last_sequence(self) -> int:
        """The sequence number of the last record of this epoch; -1 if there is none."""
        return self.batches[-1].last_sequence if self.batches else _NONE

    def has_expired(self, now_ms: int) -> bool:
        """Whether it was silent for EXPIRATION_MS at `now_ms`, and its transaction is not open."""
        silent_ms = now_ms - max(self.last_timestamp, self.heard_ms)
        return self.transaction_first_offset == _NONE and silent_ms >= EXPIRATION_MS

    def copy(self) -> ProducerState:
        """Another object that says the same."""
        return replace(self, batches=self.batches.copy())

    def known(self, epoch: int, first_sequence: int, last_sequence: int) -> KnownBatch | None:
        """The batch with exactly these numbers, if it is one of those that are kept."""
        if epoch != self.epoch or first_sequence < 0:
            return None
        numbers = first_sequence, last_sequence
        return next((each for each in self.batches if (each.first_sequence, each.last_sequence) == numbers), None)

    def add(self, row: Any, last_offset: int) -> None:
        """Take the next batch of data (a BATCH row), which ends at `last_offset`, as the log has it."""
        self._begin(int(row["producer_epoch"]))
        delta, sequence = int(row["last_offset_delta"]), int(row["base_sequence"])
        self.last_timestamp = int(row["max_timestamp"])
        # the coordinator of consumer groups does not number its records
        last_sequence = _NONE if sequence < 0 else int(increment_sequence(sequence, delta))
        self.batches.append(KnownBatch(last_sequence, last_offset, delta, self.last_timestamp))
        if row["attributes"] & TRANSACTIONAL and self.transaction_first_offset == _NONE:
            self.transaction_first_offset = last_offset - delta

    def end_transaction(self, row: Any, coordinator: int) -> None:
        """Take an end marker (a BATCH row); one of another epoch makes the sequence begin at 0 again."""
        self._begin(int(row["producer_epoch"]))
        self.last_timestamp = int(row["max_timestamp"])
        self.coordinator_epoch = coordinator
        self.transaction_first_offset = _NONE

    def _begin(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch = epoch
            self.batches.clear()


class ProducerStates:
    """The states of a partition's producers, by producer id, at one offset of its log.

    A log that was cleaned, or cut at its beginning, does not tell of all producers. So a walk may begin with a
    snapshot before `offset`: batches below that are passed over.
    """

    def __init__(self, states: Mapping[int, ProducerState] | None = None, offset: int = 0) -> None:
        self._states, self.offset = dict(states or {}), offset

    @classmethod
    def of_snapshot(cls, entries: npt.NDArray[np.void], offset: int = 0) -> ProducerStates:
        """The states that a producer snapshot before `offset` holds (ENTRY rows)."""
        return cls({int(entry["producer_id"]): _state_of(entry) for entry in entries}, offset)

    def __len__(self) -> int:
        return len(self._states)

    def get(self, producer_id: int) -> ProducerState | None:
        """What is known of a producer; it changes with `see`."""
        return self._states.get(producer_id)

    def snapshot(self) -> bytes:
        """The content of the producer snapshot at the end of what was seen."""
        rows = [_entry_of(producer, state) for producer, state in sorted(self._states.items())]
        return write_producer_snapshot(np.array(rows, ENTRY))

    def expire(self, now_ms: int, producers: Iterable[int] | None = None) -> None:
        """Forget who was silent for EXPIRATION_MS at `now_ms`, unless its transaction is open; or only of these."""
        for producer in list(self._states if producers is None else producers):
            state = self._states.get(producer)
            if state is not None and state.has_expired(now_ms):
                del self._states[producer]

    def see(self, data: Any, rows: npt.NDArray[Any], shift: int = 0, *, heard_ms: int = NO_TIMESTAMP) -> None:
        """Take batches (BATCH rows) of `data` as the log has them, unchecked; `shift` is added to their offsets.

        `heard_ms` is the time now, if the batches have just been appended.
        """
        of_producers = (rows["producer_id"] >= 0) & (rows["base_offset"] + shift >= self.offset)
        for row in _telling(rows[of_producers]):
            state = self._states.setdefault(int(row["producer_id"]), ProducerState())
            state.heard_ms = max(state.heard_ms, heard_ms)
            if not row["attributes"] & CONTROL:
                state.add(row, int(row["base_offset"]) + int(row["last_offset_delta"]) + shift)
            elif control_type(data, row) in (ABORT, COMMIT):
                state.end_transaction(row, coordinator_epoch(data, row))

    def check(self, rows: npt.NDArray[Any]) -> KnownBatch | None:
        """Check batches of data that are to be appended together (BATCH rows, offsets from 0 on).

        Returns the last of them as the log has it, if it has it already; then all of them are there. Raises
        ProducerFencedError for an epoch below the producer's, OutOfOrderSequenceError for a sequence number that is
        not the next one, InvalidRecordError while the producer's transaction is open.
        """
        last = rows[-1]
        state = self._states.get(int(last["producer_id"]))
        numbers = _sequences(last)
        if state and (known := state.known(int(last["producer_epoch"]), *numbers)):
            return known
        scratch: dict[int, ProducerState] = {}
        for row in rows[rows["producer_id"] >= 0]:
            producer = int(row["producer_id"])
            if producer not in scratch:
                scratch[producer] = self._states.get(producer, ProducerState()).copy()
            _check_next(scratch[producer], row)
            scratch[producer].add(row, int(row["base_offset"]) + int(row["last_offset_delta"]))
        return None


def _check_next(state: ProducerState, row: Any) -> None:
    epoch, sequence, producer = int(row["producer_epoch"]), int(row["base_sequence"]), int(row["producer_id"])
    if epoch < state.epoch:
        raise ProducerFencedError(
            "a newer producer with this id has written: end this one",
            producer_id=producer,
            producer_epoch=epoch,
            current_epoch=state.epoch,
        )
    if state.transaction_first_offset != _NONE and not row["attributes"] & TRANSACTIONAL:
        raise InvalidRecordError("the producer's transaction is open: end it first", producer_id=producer)
    # of a producer that is not known any more, or not yet, any number may come
    expected = increment_sequence(state.last_sequence, 1) if epoch == state.epoch else 0
    if state.epoch != _NONE and sequence != expected:
        raise OutOfOrderSequenceError(
            "the batch does not follow the producer's last one, so batches are missing, or it is an old one: "
            "begin a new producer",
            producer_id=producer,
            producer_epoch=epoch,
            sequence=sequence,
            expected=int(expected),
        )


def _telling(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The rows without batches of data, outside of transactions, behind which KEPT_BATCHES of the producer follow."""
    if len(rows) <= KEPT_BATCHES:
        return rows
    data = np.flatnonzero(rows["attributes"] & CONTROL == 0)
    order = data[np.argsort(rows["producer_id"][data], kind="stable")]
    producers = rows["producer_id"][order]
    following = np.searchsorted(producers, producers, side="right") - np.arange(len(producers)) - 1
    kept = rows["attributes"] & (CONTROL | TRANSACTIONAL) != 0
    kept[order[following < KEPT_BATCHES]] = True
    found: npt.NDArray[Any] = rows[kept]
    return found


def _sequences(row: Any) -> tuple[int, int]:
    first = int(row["base_sequence"])
    return first, int(increment_sequence(first, int(row["last_offset_delta"])))


def _state_of(entry: Any) -> ProducerState:
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


def _entry_of(producer: int, state: ProducerState) -> tuple[int, ...]:
    last = state.batches[-1] if state.batches else KnownBatch(_NONE, _NONE, 0, NO_TIMESTAMP)
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
