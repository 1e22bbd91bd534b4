"""The producers of a partition at one version, as commits record them (KIP-98, KIP-360)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from distlog.core.arrays import integers, numbers_of
from distlog.core.config import DAY_MS
from distlog.core.format.record_batch import increment_sequence
from distlog.core.integers import MAX_INT, MAX_LONG
from distlog.core.times import NO_TIMESTAMP


class ProducerTable:
    """The producers of one partition; immutable."""

    __slots__ = ("_changed", "_rows")

    def __init__(self, rows: Rows | None = None, changed: Mapping[int, ProducerState] | None = None) -> None:
        self._rows = np.empty(0, _ROW) if rows is None else rows
        self._changed = dict(changed or {})

    def get(self, producer_id: int, passed_ms: int) -> ProducerState | None:
        state = self._changed.get(producer_id)
        if state is None:
            row = int(np.searchsorted(self._rows["producer_id"], producer_id))
            if row == len(self._rows) or self._rows["producer_id"][row] != producer_id:
                return None
            state = _state(self._rows[row])
        return None if _is_over(state, passed_ms) else state

    @property
    def open_transactions(self) -> dict[int, int]:
        """The first offsets of the open transactions, by producer id."""
        rows = self._rows[self._rows["transaction_first_offset"] != NONE]
        offsets = dict(zip(rows["producer_id"].tolist(), rows["transaction_first_offset"].tolist(), strict=True))
        offsets.update((producer, state.transaction_first_offset) for producer, state in self._changed.items())
        return {producer: first for producer, first in offsets.items() if first != NONE}

    def updated(self, batches: Iterable[ProducerBatch], passed_ms: int) -> ProducerTable:
        """Return this table after a commit's batches at `passed_ms`; ValueError if their offsets are not in order."""
        changed = dict(self._changed)
        for batch in batches:
            producer = batch.producer_id
            former = changed.get(producer) or self.get(producer, passed_ms) or ProducerState()
            after = (ProducerState() if _is_over(former, passed_ms) else former).after(batch, passed_ms)
            if len(after.batches) > 1 and after.batches[-1].last_offset <= after.batches[-2].last_offset:
                raise ValueError(f"the batches of producer {producer} are not in the order of their offsets")
            changed[producer] = after
        if len(changed) > _MOST_CHANGED + len(self._rows) // _ROWS_PER_CHANGE:
            return ProducerTable(_merged(self._rows, changed))
        return ProducerTable(self._rows, changed)

    def items(self) -> Iterator[tuple[int, ProducerState]]:
        """All producers known at the time of the last batch, by producer id."""
        return ((int(row["producer_id"]), _state(row)) for row in self.rows())

    def rows(self) -> Rows:
        return _merged(self._rows, self._changed)

    @property
    def most(self) -> int:
        """The number of producers, or somewhat more; unlike `len`, it costs nothing."""
        return len(self._rows) + len(self._changed)

    def __len__(self) -> int:
        return len(self.rows())

    def __bool__(self) -> bool:
        return bool(self._changed) or len(self._rows) > 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProducerTable) and np.array_equal(self.rows(), other.rows())

    def __hash__(self) -> int:
        return hash(len(self))


#: How long a silent producer is remembered: Kafka's default of `producer.id.expiration.ms`.
EXPIRATION_MS = DAY_MS
#: The most that the time between two commits counts for.
PAUSE_MS = 3_600_000
#: How many batches of a producer are remembered, to recognize duplicates.
KEPT_BATCHES = 5
#: Stands for a missing epoch, sequence number or offset.
NONE = -1
#: The kinds of batches: data outside of transactions, data of a transaction, and the markers that end one.
DATA, TRANSACTIONAL_DATA, ABORT_MARKER, COMMIT_MARKER = range(4)


class ProducerBatch(NamedTuple):
    """One batch of a producer; `timestamp` is the largest.

    `coordinator_epoch` is of a marker. `last_sequence` is NONE for markers, and for data that is not numbered.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    kind: int
    coordinator_epoch: int

    @property
    def is_marker(self) -> bool:
        return self.kind >= ABORT_MARKER

    def is_within(self, start_offset: int, end_offset: int) -> bool:
        """True if its numbers can be, and its offsets lie from `start_offset` (in) to `end_offset` (out)."""
        is_legal = all(low <= value <= high for value, (low, high) in zip(self, BOUNDS.values(), strict=True))
        return is_legal and start_offset <= self.last_offset - self.offset_delta and self.last_offset < end_offset


#: The smallest and the largest value of each field of a ProducerBatch.
BOUNDS = {
    "producer_id": (0, MAX_LONG),
    "producer_epoch": (0, 2**15 - 1),
    "last_sequence": (NONE, MAX_INT),
    "last_offset": (0, MAX_LONG - 1),
    "offset_delta": (0, MAX_INT),
    "timestamp": (-(2**63), MAX_LONG),
    "kind": (DATA, COMMIT_MARKER),
    "coordinator_epoch": (-(2**31), MAX_INT),
}


def sufficient_batches(batches: Iterable[ProducerBatch]) -> list[ProducerBatch]:
    """Return the batches of a partition, in their order, that give the same states as `batches`.

    These are the last KEPT_BATCHES of data, the markers, and the first batch of an open transaction of each producer.
    """
    all_batches = list(batches)
    keeps, following = [False] * len(all_batches), dict[int, int]()
    first, ended_producers = dict[int, int](), set[int]()
    for number in range(len(all_batches) - 1, -1, -1):
        batch = all_batches[number]
        producer = batch.producer_id
        if batch.is_marker:
            keeps[number] = True
            ended_producers.add(producer)
        else:
            following[producer] = following.get(producer, 0) + 1
            keeps[number] = following[producer] <= KEPT_BATCHES
            if batch.kind == TRANSACTIONAL_DATA and producer not in ended_producers:
                first[producer] = number
    for number in first.values():
        keeps[number] = True
    return [batch for batch, is_kept in zip(all_batches, keeps, strict=True) if is_kept]


class KnownBatch(NamedTuple):
    """A batch of data that the log has; `timestamp` is its largest."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        return int(increment_sequence(self.last_sequence, -self.offset_delta))

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


@dataclass(frozen=True, slots=True)
class ProducerState:
    """One producer: its newest epoch, and its last batches of that epoch, the oldest first.

    Times are ms, and -1 stands for none: `coordinator_epoch` is of the last end marker,
    `transaction_first_offset` of the open transaction.
    """

    epoch: int = NONE
    batches: tuple[KnownBatch, ...] = ()
    last_timestamp: int = NO_TIMESTAMP
    coordinator_epoch: int = NONE
    transaction_first_offset: int = NONE
    # The time of its last batch by this process's clock, or by the time passed in commits.
    heard_ms: int = NO_TIMESTAMP

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NONE

    def has_expired(self, now_ms: int, after_ms: int = EXPIRATION_MS) -> bool:
        """True if it was silent for `after_ms` at `now_ms`, and its transaction is not open."""
        silent_ms = now_ms - max(self.last_timestamp, self.heard_ms)
        return self.transaction_first_offset == NONE and silent_ms >= after_ms

    def find_batch(self, epoch: int, first_sequence: int, last_sequence: int) -> KnownBatch | None:
        """The batch with exactly these numbers, if it is kept."""
        if epoch != self.epoch or first_sequence < 0:
            return None
        for batch in self.batches:
            if batch.last_sequence == last_sequence and batch.first_sequence == first_sequence:
                return batch
        return None

    def after(self, batch: ProducerBatch, heard_ms: int = NO_TIMESTAMP) -> ProducerState:
        """Return the state after the next batch, as the log has it; a new epoch restarts the sequence at 0."""
        batches = self.batches if batch.producer_epoch == self.epoch else ()
        coordinator, first = self.coordinator_epoch, self.transaction_first_offset
        if batch.is_marker:
            coordinator, first = batch.coordinator_epoch, NONE
        else:
            added = KnownBatch(batch.last_sequence, batch.last_offset, batch.offset_delta, batch.timestamp)
            batches = (*batches, added)[-KEPT_BATCHES:]
            if batch.kind == TRANSACTIONAL_DATA and first == NONE:
                first = added.first_offset
        return ProducerState(
            batch.producer_epoch, batches, batch.timestamp, coordinator, first, max(self.heard_ms, heard_ms)
        )

    def with_earlier(self, earlier: ProducerState) -> ProducerState:
        """This state with the batches of `earlier` that lie before its own, if they are of this epoch."""
        if earlier.epoch != self.epoch or not self.batches:
            return self
        first = self.batches[0].last_offset
        batches = (*(batch for batch in earlier.batches if batch.last_offset < first), *self.batches)[-KEPT_BATCHES:]
        return replace(self, batches=batches)


# A table by producer id, and the few rows that changed since it was made: a commit costs as much as the producers
# that it names. A producer that no commit named for EXPIRATION_MS is forgotten, unless its transaction is open. That
# goes by the times of commits, so that all readers agree; a pause between two has PAUSE_MS at most, so that a commit
# from the far future makes no producer forgotten. Rows are dropped when the table is rebuilt.

_BATCH = ("last_sequence", "last_offset", "offset_delta", "timestamp")
_FIELDS = ("epoch", "coordinator_epoch", "transaction_first_offset", "last_timestamp", "heard_ms")
_ROW = np.dtype(
    [
        ("producer_id", np.int64),
        *((name, np.int64) for name in _FIELDS),
        ("count", np.int64),
        ("batches", np.int64, (KEPT_BATCHES, len(_BATCH))),
    ]
)
#: The producers of all partitions in a checkpoint.
SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("producer_id", pa.int64()),
        *((name, pa.int64()) for name in _FIELDS),
        ("batches", pa.list_(pa.struct([(name, pa.int64()) for name in _BATCH]))),
    ]
)
#: Producers that may change before the table is rebuilt, and one more for each _ROWS_PER_CHANGE of its rows.
_MOST_CHANGED = 16
_ROWS_PER_CHANGE = 64

Rows = npt.NDArray[np.void]


NO_PRODUCERS = ProducerTable()


def _is_over(state: ProducerState, passed_ms: int) -> bool:
    return state.transaction_first_offset == NONE and passed_ms - state.heard_ms >= EXPIRATION_MS


def _state(row: Any) -> ProducerState:
    epoch, coordinator, first, timestamp, heard_ms = (int(row[name]) for name in _FIELDS)
    batches = tuple(KnownBatch(*batch) for batch in row["batches"][: int(row["count"])].tolist())
    return ProducerState(epoch, batches, timestamp, coordinator, first, heard_ms)


def _row(producer: int, state: ProducerState) -> tuple[Any, ...]:
    batches = np.zeros((KEPT_BATCHES, len(_BATCH)), np.int64)
    batches[: len(state.batches)] = np.array(state.batches, np.int64).reshape(-1, len(_BATCH))
    fields = state.epoch, state.coordinator_epoch, state.transaction_first_offset, state.last_timestamp
    return (producer, *fields, state.heard_ms, len(state.batches), batches)


def _merged(rows: Rows, changed: Mapping[int, ProducerState]) -> Rows:
    """All rows by producer id, without producers that had expired at the time of the last batch."""
    if changed:
        unchanged = rows[~np.isin(rows["producer_id"], np.fromiter(changed, np.int64, len(changed)))]
        rows = np.concatenate([unchanged, np.array([_row(*item) for item in changed.items()], _ROW)])
        rows = rows[np.argsort(rows["producer_id"])]
    young = rows["heard_ms"] > rows["heard_ms"].max(initial=0) - EXPIRATION_MS
    young_rows: Rows = rows[young | (rows["transaction_first_offset"] != NONE)]
    return young_rows


_NO_COLUMNS = pa.RecordBatch.from_arrays([pa.nulls(0, spec.type) for spec in SCHEMA], schema=SCHEMA)


def to_columns(tables: Mapping[int, ProducerTable]) -> pa.RecordBatch:
    """The producers of partitions, which ascend, as columns of SCHEMA."""
    parts = {number: table.rows() for number, table in tables.items() if table}
    if not parts:
        # most topics have no producers, and the rest takes a tenth of the time of a small checkpoint
        return _NO_COLUMNS
    rows: Rows = np.concatenate([np.empty(0, _ROW), *parts.values()])
    counts = np.fromiter(map(len, parts.values()), np.int64, len(parts))
    partitions = np.repeat(np.fromiter(parts, np.int64, len(parts)), counts)
    is_there = np.arange(KEPT_BATCHES) < rows["count"][:, None]
    flat = rows["batches"][is_there]
    ends = np.concatenate([[0], np.cumsum(rows["count"])])
    batches = pa.ListArray.from_arrays(
        integers(ends, pa.int32()),
        pa.StructArray.from_arrays([integers(column) for column in flat.T], names=list(_BATCH)),
    )
    columns = [integers(rows[name]) for name in ("producer_id", *_FIELDS)]
    return pa.RecordBatch.from_arrays([integers(partitions, pa.int32()), *columns, batches], schema=SCHEMA)


def of_columns(columns: pa.RecordBatch, log_ends: npt.NDArray[np.int64], passed_ms: int) -> dict[int, ProducerTable]:
    """The table of each partition with producers, from columns of SCHEMA; ValueError for wrong ones.

    The logs end at `log_ends`. `passed_ms` is the snapshot's.
    """
    columns = columns.select(SCHEMA.names)
    if columns.schema.types != SCHEMA.types or any(column.null_count for column in columns):
        raise ValueError("its producers are malformed")
    if not len(columns):
        return {}
    partitions = numbers_of(columns["partition"])
    if np.any(partitions < 0) or np.any(partitions >= len(log_ends)) or np.any(np.diff(partitions) < 0):
        raise ValueError("its producers are not in the order of their partitions")
    rows = np.zeros(len(columns), _ROW)
    for name in ("producer_id", *_FIELDS):
        rows[name] = numbers_of(columns[name])
    lists = columns["batches"]
    rows["count"] = numbers_of(lists.value_lengths())
    if np.any(rows["count"] > KEPT_BATCHES):
        raise ValueError(f"a producer has more than {KEPT_BATCHES} batches")
    structs = lists.flatten()
    flat = [structs.field(number) for number in range(len(_BATCH))]
    if structs.null_count or any(column.null_count for column in flat):
        raise ValueError("its producers are malformed")
    is_there = np.arange(KEPT_BATCHES) < rows["count"][:, None]
    rows["batches"][is_there] = np.stack([numbers_of(column) for column in flat], axis=1)
    _check(partitions, rows, is_there, log_ends[partitions], passed_ms)
    numbers, firsts = np.unique(partitions, return_index=True)
    ends = np.append(firsts, len(partitions))[1:]
    bounds = zip(numbers.tolist(), firsts.tolist(), ends.tolist(), strict=True)
    return {number: ProducerTable(rows[first:end]) for number, first, end in bounds}


def _check(
    partitions: npt.NDArray[Any],
    rows: Rows,
    is_there: npt.NDArray[np.bool_],
    ends: npt.NDArray[np.int64],
    passed_ms: int,
) -> None:
    """Raise ValueError for states that no commits can lead to."""
    order = (np.diff(partitions) == 0) & (np.diff(rows["producer_id"]) <= 0)
    wrong = [order, (rows["heard_ms"] < 0) | (rows["heard_ms"] > passed_ms)]
    wrong += [~_within(rows["producer_id"], "producer_id"), ~_within(rows["epoch"], "producer_epoch")]
    wrong += [~_within(rows["coordinator_epoch"], "coordinator_epoch")]
    first = rows["transaction_first_offset"]
    wrong += [(first < NONE) | (first >= ends)]
    sequences, offsets, deltas = (rows["batches"][:, :, number] for number in range(3))
    wrong += [~_within(sequences, "last_sequence"), ~_within(offsets, "last_offset")]
    wrong += [(deltas < 0) | (deltas > offsets), is_there & (offsets >= ends[:, None])]
    wrong += [is_there[:, 1:] & (offsets[:, 1:] <= offsets[:, :-1])]
    if any(np.any(index) for index in wrong):
        raise ValueError("its states of producers contradict each other")


def _within(values: npt.NDArray[Any], name: str) -> npt.NDArray[np.bool_]:
    low, high = BOUNDS[name]
    is_within: npt.NDArray[np.bool_] = (values >= low) & (values <= high)
    return is_within
