"""What a partition's log says of each producer: Kafka's `ProducerStateManager` (KIP-98, KIP-360).

A producer numbers its records from 0 on, in each partition. So a log can tell a batch that it has already from the
next one, and from one before which others are missing. It keeps the last five batches of each producer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from distlog.core.batches.record_batch import ABORT, COMMIT, CONTROL, TRANSACTIONAL, increment_sequence
from distlog.core.errors import InvalidRecordError, OutOfOrderSequenceError, ProducerFencedError
from distlog.core.times import NO_TIMESTAMP
from distlog.core.transactions.open_transactions import control_type, coordinator_epoch
from distlog.core.transactions.producer_snapshot import ENTRY, write_producer_snapshot
from distlog.core.transactions.producer_state import (
    KEPT_BATCHES,
    NONE,
    KnownBatch,
    ProducerState,
    entry_of,
    state_of,
)

#: Kafka's producer.id.expiration.check.interval.ms: how often all producers are looked at.
EXPIRATION_CHECK_MS = 600_000
#: Raises an error for a batch (a BATCH row) that must not be the first one of a producer that the log does not know.
FirstBatch = Callable[[Any], None]


def any_first(row: Any) -> None:
    """Let a producer that the log does not know begin with any batch, as Kafka does."""


class ProducerStates:
    """The states of a partition's producers, by producer id, at one offset of its log.

    A log that was cleaned, or cut at its beginning, does not tell of all producers. So a walk may begin with a
    snapshot before `offset`: batches below that are passed over. A walk that is not `whole` begins without one behind
    batches that count.
    """

    def __init__(
        self, states: Mapping[int, ProducerState] | None = None, offset: int = 0, *, whole: bool = True
    ) -> None:
        self._states, self.offset, self._is_whole = dict(states or {}), offset, whole
        self._opened = {
            producer: state.transaction_first_offset
            for producer, state in self._states.items()
            if state.transaction_first_offset != NONE
        }

    @classmethod
    def of_snapshot(cls, entries: npt.NDArray[np.void], offset: int = 0) -> ProducerStates:
        """The states that a producer snapshot before `offset` holds (ENTRY rows)."""
        return cls({int(entry["producer_id"]): state_of(entry) for entry in entries}, offset)

    def __len__(self) -> int:
        return len(self._states)

    def get(self, producer_id: int) -> ProducerState | None:
        """What is known of a producer; it changes with `see`."""
        return self._states.get(producer_id)

    @property
    def opened(self) -> Mapping[int, int]:
        """The first offsets of the open transactions, by producer id."""
        return self._opened

    def has_open(self, producer_id: int, epoch: int) -> bool:
        """Whether a transaction of the producer in this epoch, or one before, is open.

        An end marker that also fences its producer is of the next epoch.
        """
        return producer_id in self._opened and self._states[producer_id].epoch <= epoch

    def snapshot(self) -> bytes:
        """The content of the producer snapshot at the end of what was seen."""
        return write_producer_snapshot(self.entries())

    def entries(self) -> npt.NDArray[np.void]:
        """What such a snapshot has of each producer (ENTRY rows), by producer id."""
        return np.array([entry_of(producer, state) for producer, state in sorted(self._states.items())], ENTRY)

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
            producer = int(row["producer_id"])
            if not self._is_whole and row["attributes"] & CONTROL and producer not in self._states:
                # it does not tell how far its producer has counted
                continue
            state = self._states.setdefault(producer, ProducerState())
            state.heard_ms = max(state.heard_ms, heard_ms)
            if not row["attributes"] & CONTROL:
                state.add(row, int(row["base_offset"]) + int(row["last_offset_delta"]) + shift)
            elif control_type(data, row) in (ABORT, COMMIT):
                state.end_transaction(row, coordinator_epoch(data, row))
            if state.transaction_first_offset != NONE:
                self._opened[producer] = state.transaction_first_offset
            else:
                self._opened.pop(producer, None)

    def recall(self, earlier: ProducerStates) -> None:
        """Take from `earlier`, which says more of a part of the log before, the batches that are not known here."""
        for producer, state in self._states.items():
            before = earlier.get(producer)
            if before is not None:
                state.recall(before)

    def check(self, rows: npt.NDArray[Any], first: FirstBatch = any_first) -> KnownBatch | None:
        """Check batches that are to be appended together (BATCH rows, offsets from 0 on); of end markers, the epoch.

        Returns the last of them as the log has it, if it has it already; then all of them are there. Raises
        ProducerFencedError for an epoch below the producer's, OutOfOrderSequenceError for a sequence number that is
        not the next one, InvalidRecordError while the producer's transaction is open, and the errors of `first`.
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
            _check_epoch(scratch[producer], row)
            if not row["attributes"] & CONTROL:
                _check_next(scratch[producer], row, first)
                scratch[producer].add(row, int(row["base_offset"]) + int(row["last_offset_delta"]))
        return None


def _check_epoch(state: ProducerState, row: Any) -> None:
    if row["producer_epoch"] < state.epoch:
        raise ProducerFencedError(
            "a newer producer with this id has written: end this one",
            producer_id=int(row["producer_id"]),
            producer_epoch=int(row["producer_epoch"]),
            current_epoch=state.epoch,
        )


def _check_next(state: ProducerState, row: Any, first: FirstBatch) -> None:
    epoch, sequence, producer = int(row["producer_epoch"]), int(row["base_sequence"]), int(row["producer_id"])
    if state.transaction_first_offset != NONE and not row["attributes"] & TRANSACTIONAL:
        raise InvalidRecordError("the producer's transaction is open: end it first", producer_id=producer)
    if sequence == NONE and row["attributes"] & TRANSACTIONAL:
        # the coordinator of groups appends it for the producer, and does not number it
        return
    if state.epoch == NONE:
        # of a producer that is not known any more, or not yet, any number may come
        first(row)
        return
    expected = increment_sequence(state.last_sequence, 1) if epoch == state.epoch else 0
    if sequence != expected:
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
