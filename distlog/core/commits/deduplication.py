"""How a topic recognizes repeated appends: by applications' batches, and by idempotent producers (KIP-98).

An application's batch is what it appends in one commit, named by an application id and a batch id. Batches are kept
for thirty days, and the newest of each application forever. If an application declares that it commits numbered
batches in order, only the last few are kept: the newest number shows which batches were committed. Otherwise, an
application that commits every ten seconds leaves 260,000 batches. So batches are rows of Arrow columns, in the order
of their commits. A slice drops the oldest batches, and a lookup scans two columns.

A producer is forgotten when no commit had its batches for EXPIRATION_MS, unless its transaction is open. Batches
and producers expire by the times of commits, so that all readers agree. The age of a batch is the sum of the pauses
between it, the later batches, and the newest commit; of a producer, between all commits from its last batch on. Each
pause counts up to a limit, so that one commit with a time far in the future makes nothing expire.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distlog.core.arrays import (
    MAX_INT,
    MAX_LONG,
    Flags,
    Longs,
    batch_of_rows,
    booleans,
    flags_of,
    integers,
    join,
    numbers_of,
    texts,
)
from distlog.core.config import DAY_MS
from distlog.core.format.record_batch import increment_sequence
from distlog.core.times import NO_TIMESTAMP

#: How long batches of applications are kept, in ms, and the most that a pause between two batches adds to an age.
KEPT_MS, MAX_PAUSE_MS = 30 * DAY_MS, DAY_MS
#: The newest batches are objects, called the tail. If there are more than this, they are moved into the columns.
TAIL_LIMIT = 256
#: How many batches of an application that commits in order are kept: those with the highest numbers. A writer repeats
#: only its newest batch: the others are kept for people who inspect the topic.
KEPT_ORDERED_BATCHES = 10
#: Up to this many applications are searched for one by one, which is faster than listing all.
_FEW_APPLICATIONS = 8
_RANGE = pa.struct({"partition": pa.int32(), "start_offset": pa.int64(), "end_offset": pa.int64()})
#: The columns of batches. A batch_id is JSON, so that the batch 7 is not the batch "7".
BATCH_SCHEMA = pa.schema(
    {
        "app_id": pa.string(),
        "batch_id": pa.string(),
        "version": pa.int64(),
        "timestamp_ms": pa.int64(),
        "offsets": pa.list_(_RANGE),
        "in_order": pa.bool_(),
    }
)
Batch = tuple[str, int | str]
"""The id of an application, and the number or name of its batch."""
#: How long a producer without new batches is remembered, in ms: Kafka's default of `producer.id.expiration.ms`.
EXPIRATION_MS = DAY_MS
#: A pause between two commits counts as at most this for the age of producers, in ms.
MAX_PRODUCER_PAUSE_MS = 3_600_000
#: How many batches of a producer are remembered, to recognize duplicates: as many as Kafka lets it have in flight.
KEPT_BATCHES = 5
#: Stands for a missing epoch, sequence number or offset.
NONE = -1
#: The kinds of batches: data outside a transaction, data in a transaction, and the markers that end one.
DATA, TRANSACTIONAL_DATA, ABORT_MARKER, COMMIT_MARKER = range(4)
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
#: The columns of a batch and of a producer, in the rows of a ProducerTable. ProducerState explains `heard_ms`.
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
PRODUCER_SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("producer_id", pa.int64()),
        *((name, pa.int64()) for name in _FIELDS),
        ("batches", pa.list_(pa.struct([(name, pa.int64()) for name in _BATCH]))),
    ]
)
#: A table is rebuilt when more than _MIN_CHANGES_TO_REBUILD + rows / _ROWS_PER_CHANGE producers have changed.
_MIN_CHANGES_TO_REBUILD = 16
_ROWS_PER_CHANGE = 64
Rows = npt.NDArray[np.void]


class TransactionTable:
    """The recent and newest batches of applications (Delta's txn actions, not Kafka's transactions); immutable.

    Batches that were committed in order are in `_ordered`, and do not age. The others are, oldest first, in
    `_silent_batches` (the newest batch of each application that has no batch younger than KEPT_MS),
    `_recent_batches`, and `_tail`. `_pauses_ms` has the sum of the pauses before each row of `_recent_batches`, plus
    any constant: only differences are used.
    """

    __slots__ = ("_ordered", "_pauses_ms", "_recent_batches", "_silent_batches", "_tail")

    def __init__(
        self,
        columns: pa.RecordBatch,
        tail: Mapping[Batch, TransactionInfo] | None = None,
        silent: pa.RecordBatch | None = None,
        pauses_ms: Longs | None = None,
        ordered: OrderedBatches | None = None,
    ) -> None:
        if ordered is None:
            in_order, ordered = flags_of(columns["in_order"]), _NO_ORDERED_BATCHES
            # most topics have no batches in order, and an Arrow kernel takes longer to begin than all else here
            if in_order.any():
                ordered = OrderedBatches.of(columns.filter(columns["in_order"]))
                columns = columns.filter(booleans(~in_order))
        self._recent_batches, self._ordered = columns, ordered
        self._tail = dict(tail or {})
        self._silent_batches = columns.slice(0, 0) if silent is None else silent
        if pauses_ms is None:
            times = numbers_of(columns["timestamp_ms"])
            pauses_ms = np.cumsum(np.minimum(np.diff(times, prepend=times[:1]), MAX_PAUSE_MS))
        self._pauses_ms = pauses_ms

    def get(self, app_id: str, batch_id: int | str) -> TransactionInfo | None:
        info = self._ordered.get(app_id, batch_id) or self._tail.get((app_id, batch_id))
        info = info or _find(self._recent_batches, app_id, batch_id)
        return info or _find(self._silent_batches, app_id, batch_id)

    def newest(self, app_id: str) -> int | None:
        """The larger of the highest number committed in order and the last number committed otherwise; or None."""
        ordered = self._ordered.newest(app_id)
        last = next((number for number in self._unordered_ids(app_id) if isinstance(number, int)), None)
        return max((number for number in (ordered, last) if number is not None), default=None)

    def _unordered_ids(self, app_id: str) -> Iterator[int | str]:
        yield from (batch_id for app, batch_id in reversed(self._tail) if app == app_id)
        for part in (self._recent_batches, self._silent_batches):
            yield from (batch_id for _, batch_id in _ids_of(part, app_id))

    def has(self, app_id: str, batch_id: int | str, *, in_order: bool = False) -> bool:
        """True if the batch was committed; with `in_order`, if its number is not above `newest`."""
        if in_order and isinstance(batch_id, int):
            newest = self.newest(app_id)
            return newest is not None and batch_id <= newest
        is_forgotten = isinstance(batch_id, int) and self._ordered.forgets(app_id, batch_id)
        return is_forgotten or self.get(app_id, batch_id) is not None

    @classmethod
    def of_columns(cls, columns: pa.RecordBatch, now_ms: int) -> TransactionTable:
        """The table of `columns`, rows of BATCH_SCHEMA; ValueError for other rows, and for times after `now_ms`."""
        if not columns.schema.equals(BATCH_SCHEMA) or any(column.null_count for column in columns.columns):
            raise ValueError("the rows are malformed")
        times = numbers_of(columns["timestamp_ms"])
        if np.any(np.diff(times) < 0) or np.any(times > now_ms) or np.any(times < 0):
            raise ValueError("the transactions are not in the order of time")
        for column in columns["offsets"].flatten().flatten():
            if column.null_count or np.any(numbers_of(column) < 0):
                raise ValueError("the offsets of a transaction are malformed")
        return cls(columns)

    @property
    def size(self) -> int:
        """The bytes of the batches that were not committed in order, without those in `_tail`."""
        return sum(int(part.nbytes) for part in (self._recent_batches, self._silent_batches) if len(part))

    def recorded(self, batch: Batch, info: TransactionInfo, former_ms: int) -> TransactionTable:
        """This table with one more batch; ValueError if it has the batch. `former_ms` is the former commit's time."""
        app_id, batch_id = batch
        earlier = self.get(app_id, batch_id)
        # after KEPT_MS a batch may be committed again, even if the table still has it as its application's newest
        if earlier and earlier.timestamp_ms >= info.timestamp_ms - KEPT_MS:
            raise ValueError(f"batch {batch_id!r} of {app_id!r} is in commit {earlier.version} already")
        table = self
        if info.in_order and isinstance(batch_id, int):
            last_forgotten = batch_id - KEPT_ORDERED_BATCHES
            numbers = (number for number in self._unordered_ids(app_id) if isinstance(number, int))
            if any(number <= last_forgotten for number in numbers):
                # `OrderedBatches.forgets` covers these numbers from now on: remove their rows. Drop expired batches
                # first: where rows are removed, several pauses become one, which counts as MAX_PAUSE_MS at most. So
                # the sum of the pauses, the age of older batches, shrinks
                table = self.updated({}, former_ms)._without_numbers(app_id, last_forgotten)
        return table.updated({batch: info}, info.timestamp_ms)

    def _without_numbers(self, app_id: str, last_forgotten: int) -> TransactionTable:
        columns = self.columns()
        stays = np.ones(len(columns), bool)
        for row, number in _ids_of(columns, app_id):
            stays[row] = isinstance(number, str) or number > last_forgotten
        return TransactionTable(columns.filter(booleans(stays)))

    def columns(self) -> pa.RecordBatch:
        """All batches as rows of BATCH_SCHEMA, in the order of their commits."""
        object_rows = [_batch_columns(part.items()) for part in (self._tail, self._ordered) if len(part)]
        rows = join([self._silent_batches, self._recent_batches, *object_rows])
        if not len(self._ordered):
            return rows
        versions = numbers_of(rows["version"])
        is_sorted = (versions[1:] >= versions[:-1]).all()
        return rows if is_sorted else rows.take(integers(np.argsort(versions, kind="stable")))

    def updated(self, added: Mapping[Batch, TransactionInfo], now_ms: int) -> TransactionTable:
        """This table with the newer batches `added`, and without old ones, except each application's newest."""
        ordered = self._ordered.updated({batch: info for batch, info in added.items() if info.in_order})
        added = {batch: info for batch, info in added.items() if not info.in_order}
        # a batch may be committed again after KEPT_MS: it then goes last, since the columns are in the order of time
        earlier = {batch: info for batch, info in self._tail.items() if batch not in added}
        silent = _without_applications(self._silent_batches, {app_id for app_id, _ in added})
        grown = TransactionTable(self._recent_batches, {**earlier, **added}, silent, self._pauses_ms, ordered)
        tail_age_ms = _pauses_within([*(info.timestamp_ms for info in grown._tail.values()), now_ms])
        if len(grown._tail) > TAIL_LIMIT or tail_age_ms > KEPT_MS:
            columns = join([self._recent_batches, _batch_columns(grown._tail.items())])
            grown = TransactionTable(columns, {}, silent, ordered=ordered)
        return grown._without_old(now_ms)

    def __len__(self) -> int:
        return len(self._silent_batches) + len(self._recent_batches) + len(self._tail) + len(self._ordered)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TransactionTable) and bool(self.columns().equals(other.columns()))

    def __reduce__(self) -> tuple[Any, ...]:
        # silent batches are restored as recent ones; by their age, the next update makes them silent again
        stored = join([self._silent_batches, self._recent_batches, _batch_columns(self._ordered.items())])
        return _restore_transactions, (stored.serialize().to_pybytes(), self._tail)

    def _without_old(self, now_ms: int) -> TransactionTable:
        if not len(self._recent_batches):
            return self
        newest = self._recent_batches["timestamp_ms"][-1].as_py()
        pauses_since = _pauses_within([newest, *(info.timestamp_ms for info in self._tail.values()), now_ms])
        # the number of leading rows whose age is more than KEPT_MS
        old_count = int(np.searchsorted(self._pauses_ms, self._pauses_ms[-1] + pauses_since - KEPT_MS))
        if not old_count:
            return self
        recent = self._recent_batches.slice(old_count)
        active = {app_id for app_id, _ in self._tail}
        newest_rows = _newest_of_silent(self._recent_batches.slice(0, old_count), recent["app_id"], active)
        silent = join([self._silent_batches, newest_rows])
        return TransactionTable(recent, self._tail, silent, self._pauses_ms[old_count:], self._ordered)


@dataclass(frozen=True, slots=True)
class TransactionInfo:
    """The commit of an application's batch (not a Kafka transaction), and its offsets [start, end) by partition."""

    version: int
    timestamp_ms: int
    offsets: Mapping[int, tuple[int, int]]
    in_order: bool = False


def _batch_columns(batches: Iterable[tuple[Batch, TransactionInfo]]) -> pa.RecordBatch:
    rows: Iterable[dict[str, Any]] = (
        {
            "app_id": app_id,
            "batch_id": json.dumps(batch_id),
            "version": info.version,
            "timestamp_ms": info.timestamp_ms,
            "offsets": [
                {"partition": partition, "start_offset": start, "end_offset": end}
                for partition, (start, end) in info.offsets.items()
            ],
            "in_order": info.in_order,
        }
        for (app_id, batch_id), info in batches
    )
    return batch_of_rows(list(rows), BATCH_SCHEMA)


def _info_at(columns: pa.RecordBatch, row: int) -> TransactionInfo:
    ranges = columns["offsets"][row].as_py()
    offsets = {item["partition"]: (item["start_offset"], item["end_offset"]) for item in ranges}
    names = ("version", "timestamp_ms", "in_order")
    version, timestamp_ms, in_order = (columns[name][row].as_py() for name in names)
    return TransactionInfo(version, timestamp_ms, offsets, in_order)


def _find(columns: pa.RecordBatch, app_id: str, batch_id: int | str) -> TransactionInfo | None:
    if not len(columns):
        return None
    same_batch = pc.equal(columns["batch_id"], texts([json.dumps(batch_id)])[0])
    same_app = pc.equal(columns["app_id"], texts([app_id])[0])
    rows = pc.indices_nonzero(pc.and_(same_batch, same_app))
    return _info_at(columns, rows[-1].as_py()) if len(rows) else None


def _ids_of(columns: pa.RecordBatch, app_id: str) -> Iterator[tuple[int, int | str]]:
    """Yield the row number and the batch id of each row of the application, the last row first."""
    if not len(columns):
        return
    for row in reversed(pc.indices_nonzero(pc.equal(columns["app_id"], texts([app_id])[0])).to_pylist()):
        yield row, json.loads(columns["batch_id"][row].as_py())


class OrderedBatches:
    """The last batches that each application committed in order (KEPT_ORDERED_BATCHES); immutable."""

    __slots__ = ("_batches",)

    def __init__(self, batches: Mapping[str, Mapping[int, TransactionInfo]]) -> None:
        self._batches = batches

    @classmethod
    def of(cls, columns: pa.RecordBatch) -> OrderedBatches:
        """The batches in `columns`, which are in the order of commits; ValueError for a batch without a number."""
        newest, rows = dict[str, int](), list[tuple[int, Batch]]()
        # from the last row on, since `updated` would drop most earlier rows: no objects are made for these
        names = zip(columns["app_id"].to_pylist(), columns["batch_id"].to_pylist(), strict=True)
        for row, (app_id, text) in reversed(list(enumerate(names))):
            number = json.loads(text)
            if type(number) is not int:
                raise ValueError("a batch in order has no number")
            if number > newest.get(app_id, number) - KEPT_ORDERED_BATCHES:
                rows.append((row, (app_id, number)))
            newest[app_id] = max(number, newest.get(app_id, number))
        return _NO_ORDERED_BATCHES.updated({batch: _info_at(columns, row) for row, batch in reversed(rows)})

    def get(self, app_id: str, batch_id: int | str) -> TransactionInfo | None:
        return self._batches.get(app_id, {}).get(batch_id) if isinstance(batch_id, int) else None

    def newest(self, app_id: str) -> int | None:
        return max(self._batches.get(app_id, ()), default=None)

    def forgets(self, app_id: str, number: int) -> bool:
        """True if the number is so far below the newest one that its batch is not kept."""
        newest = self.newest(app_id)
        return newest is not None and number <= newest - KEPT_ORDERED_BATCHES

    def updated(self, added: Mapping[Batch, TransactionInfo]) -> OrderedBatches:
        """These batches and the newer ones `added`, without numbers that are far below the newest."""
        changed = dict[str, dict[int, TransactionInfo]]()
        for (app_id, number), info in added.items():
            if isinstance(number, int):
                earlier_batches = changed.get(app_id) or self._batches.get(app_id, {})
                retained = {
                    batch_number: earlier
                    for batch_number, earlier in earlier_batches.items()
                    if batch_number > number - KEPT_ORDERED_BATCHES and batch_number != number
                }
                changed[app_id] = {**retained, number: info}
        return OrderedBatches({**self._batches, **changed}) if changed else self

    def items(self) -> Iterator[tuple[Batch, TransactionInfo]]:
        pairs = [((app, number), info) for app, batches in self._batches.items() for number, info in batches.items()]
        return iter(sorted(pairs, key=lambda item: (item[1].version, item[0])))

    def __len__(self) -> int:
        return sum(len(batches) for batches in self._batches.values())


_NO_ORDERED_BATCHES = OrderedBatches({})


def _pauses_within(times: Sequence[int]) -> int:
    return sum(min(end - start, MAX_PAUSE_MS) for start, end in itertools.pairwise(times))


def _without_applications(columns: pa.RecordBatch, app_ids: Collection[str]) -> pa.RecordBatch:
    if not app_ids or not len(columns):
        return columns
    removed = pc.is_in(columns["app_id"], value_set=texts([*app_ids]))
    return columns.filter(pc.invert(removed)) if pc.any(removed).as_py() else columns


def _newest_of_silent(old: pa.RecordBatch, recent_ids: pa.Array, active: Container[str]) -> pa.RecordBatch:
    """Return the last `old` row of each application, unless it is in `recent_ids` or `active`."""
    last = {app_id: row for row, app_id in enumerate(old["app_id"].to_pylist()) if app_id not in active}
    if len(last) > _FEW_APPLICATIONS:
        later = set(pc.unique(recent_ids).to_pylist())
    else:
        later = {app_id for app_id in last if pc.index(recent_ids, texts([app_id])[0]).as_py() >= 0}
    return old.take(integers(sorted(row for app_id, row in last.items() if app_id not in later)))


NO_TRANSACTIONS = TransactionTable(batch_of_rows([], BATCH_SCHEMA))


def _restore_transactions(columns: bytes, tail: Mapping[Batch, TransactionInfo]) -> TransactionTable:
    return TransactionTable(pa.ipc.read_record_batch(pa.py_buffer(columns), BATCH_SCHEMA), tail)


class ProducerTable:
    """The producers of one partition; immutable. `changed` has the few that differ from `rows`, or are not in it.

    `passed_ms` (Snapshot.passed_ms) is the sum of the pauses between commits, each of MAX_PRODUCER_PAUSE_MS at most.
    """

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
            state = _producer_state(self._rows[row])
        return None if _has_expired_in_log(state, passed_ms) else state

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
            former = changed.get(producer) or self.get(producer, passed_ms)
            if former is None or _has_expired_in_log(former, passed_ms):
                former = ProducerState()
            state = former.after(batch, passed_ms)
            if len(state.batches) > 1 and state.batches[-1].last_offset <= state.batches[-2].last_offset:
                raise ValueError(f"the batches of producer {producer} are not in the order of their offsets")
            changed[producer] = state
        if len(changed) > _MIN_CHANGES_TO_REBUILD + len(self._rows) // _ROWS_PER_CHANGE:
            return ProducerTable(_merged_rows(self._rows, changed))
        return ProducerTable(self._rows, changed)

    def items(self) -> Iterator[tuple[int, ProducerState]]:
        """The producers that had not expired at the last batch, by producer id."""
        return ((int(row["producer_id"]), _producer_state(row)) for row in self.rows())

    def rows(self) -> Rows:
        return _merged_rows(self._rows, self._changed)

    @property
    def max_count(self) -> int:
        """The number of producers, or slightly more, since `len` takes long."""
        return len(self._rows) + len(self._changed)

    def __len__(self) -> int:
        return len(self.rows())

    def __bool__(self) -> bool:
        return bool(self._changed) or len(self._rows) > 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProducerTable) and np.array_equal(self.rows(), other.rows())

    def __hash__(self) -> int:
        return hash(len(self))


class ProducerBatch(NamedTuple):
    """One batch of a producer; `timestamp` is its largest timestamp. `last_sequence` is NONE for a marker."""

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
        """True if its fields are in BOUNDS, and its offsets in the range from `start_offset` to `end_offset - 1`."""
        is_legal = all(low <= value <= high for value, (low, high) in zip(self, BOUNDS.values(), strict=True))
        return is_legal and start_offset <= self.last_offset - self.offset_delta and self.last_offset < end_offset


def sufficient_batches(batches: Iterable[ProducerBatch]) -> list[ProducerBatch]:
    """Return the batches, among a partition's `batches` in order, that suffice for the same states of producers.

    These are all markers, and for each producer its last KEPT_BATCHES of data, and the first of its open transaction.
    """
    all_batches = list(batches)
    keeps, later_counts = [False] * len(all_batches), dict[int, int]()
    transaction_starts, ended_producers = dict[int, int](), set[int]()
    # from the last batch to the first: `later_counts` and `ended_producers` are of the batches after `number`
    for number in range(len(all_batches) - 1, -1, -1):
        batch = all_batches[number]
        producer = batch.producer_id
        if batch.is_marker:
            keeps[number] = True
            ended_producers.add(producer)
        else:
            later_counts[producer] = later_counts.get(producer, 0) + 1
            keeps[number] = later_counts[producer] <= KEPT_BATCHES
            if batch.kind == TRANSACTIONAL_DATA and producer not in ended_producers:
                transaction_starts[producer] = number
    for number in transaction_starts.values():
        keeps[number] = True
    return [batch for batch, is_kept in zip(all_batches, keeps, strict=True) if is_kept]


class KnownBatch(NamedTuple):
    """A batch of data in the log; `timestamp` is its largest timestamp."""

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
    """One producer: its newest epoch, and its last batches in this epoch, the oldest first; -1 stands for none."""

    epoch: int = NONE
    batches: tuple[KnownBatch, ...] = ()
    last_timestamp: int = NO_TIMESTAMP
    coordinator_epoch: int = NONE
    transaction_first_offset: int = NONE
    # The time of its last batch: in a ProducerTable a `passed_ms`, elsewhere by this process's clock (`has_expired`).
    heard_ms: int = NO_TIMESTAMP

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NONE

    def has_expired(self, now_ms: int, after_ms: int = EXPIRATION_MS) -> bool:
        """True if the producer had no batch for `after_ms` at `now_ms`, and no transaction is open."""
        silent_ms = now_ms - max(self.last_timestamp, self.heard_ms)
        return self.transaction_first_offset == NONE and silent_ms >= after_ms

    def find_batch(self, epoch: int, first_sequence: int, last_sequence: int) -> KnownBatch | None:
        """The batch with exactly these sequence numbers, if it is among `batches`."""
        if epoch != self.epoch or first_sequence < 0:
            return None
        for batch in self.batches:
            if batch.last_sequence == last_sequence and batch.first_sequence == first_sequence:
                return batch
        return None

    def after(self, batch: ProducerBatch, heard_ms: int = NO_TIMESTAMP) -> ProducerState:
        """Return the state after the next batch in the log; a new epoch forgets the batches of the former one."""
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
        """This state with the batches of `earlier` before its own ones, if both have the same epoch."""
        if earlier.epoch != self.epoch or not self.batches:
            return self
        first = self.batches[0].last_offset
        batches = (*(batch for batch in earlier.batches if batch.last_offset < first), *self.batches)[-KEPT_BATCHES:]
        return replace(self, batches=batches)


NO_PRODUCERS = ProducerTable()


def _has_expired_in_log(state: ProducerState, passed_ms: int) -> bool:
    """Same as ProducerState.has_expired, by the times of commits instead of a clock, so that all readers agree."""
    return state.transaction_first_offset == NONE and passed_ms - state.heard_ms >= EXPIRATION_MS


def _producer_state(row: Any) -> ProducerState:
    epoch, coordinator, first, timestamp, heard_ms = (int(row[name]) for name in _FIELDS)
    batches = tuple(KnownBatch(*batch) for batch in row["batches"][: int(row["count"])].tolist())
    return ProducerState(epoch, batches, timestamp, coordinator, first, heard_ms)


def _producer_row(producer: int, state: ProducerState) -> tuple[Any, ...]:
    batches = np.zeros((KEPT_BATCHES, len(_BATCH)), np.int64)
    batches[: len(state.batches)] = np.array(state.batches, np.int64).reshape(-1, len(_BATCH))
    fields = state.epoch, state.coordinator_epoch, state.transaction_first_offset, state.last_timestamp
    return (producer, *fields, state.heard_ms, len(state.batches), batches)


def _merged_rows(rows: Rows, changed: Mapping[int, ProducerState]) -> Rows:
    """All rows by producer id, without producers that had expired at the last batch."""
    if changed:
        unchanged = rows[~np.isin(rows["producer_id"], np.fromiter(changed, np.int64, len(changed)))]
        rows = np.concatenate([unchanged, np.array([_producer_row(*item) for item in changed.items()], _ROW)])
        rows = rows[np.argsort(rows["producer_id"])]
    is_live = rows["heard_ms"] > rows["heard_ms"].max(initial=0) - EXPIRATION_MS
    live_rows: Rows = rows[is_live | (rows["transaction_first_offset"] != NONE)]
    return live_rows


def producer_columns(tables: Mapping[int, ProducerTable]) -> pa.RecordBatch:
    """The producers in tables of ascending partitions, as rows of PRODUCER_SCHEMA."""
    parts = {number: table.rows() for number, table in tables.items() if table}
    if not parts:
        # most topics have no producers, and the code below takes a tenth of the time of a small checkpoint
        return batch_of_rows([], PRODUCER_SCHEMA)
    rows: Rows = np.concatenate([np.empty(0, _ROW), *parts.values()])
    counts = np.fromiter(map(len, parts.values()), np.int64, len(parts))
    partitions = np.repeat(np.fromiter(parts, np.int64, len(parts)), counts)
    # a row has KEPT_BATCHES slots, of which `count` are used: make a list column of the used ones
    is_present = np.arange(KEPT_BATCHES) < rows["count"][:, None]
    flat = rows["batches"][is_present]
    ends = np.concatenate([[0], np.cumsum(rows["count"])])
    batches = pa.ListArray.from_arrays(
        integers(ends, pa.int32()),
        pa.StructArray.from_arrays([integers(column) for column in flat.T], names=list(_BATCH)),
    )
    columns = [integers(rows[name]) for name in ("producer_id", *_FIELDS)]
    return pa.RecordBatch.from_arrays([integers(partitions, pa.int32()), *columns, batches], schema=PRODUCER_SCHEMA)


def producer_tables(columns: pa.RecordBatch, log_ends: Longs, passed_ms: int) -> dict[int, ProducerTable]:
    """The table of each partition with producers, from rows of PRODUCER_SCHEMA; ValueError for wrong rows."""
    columns = columns.select(PRODUCER_SCHEMA.names)
    if columns.schema.types != PRODUCER_SCHEMA.types or any(column.null_count for column in columns):
        raise ValueError("the producers are malformed")
    if not len(columns):
        return {}
    partitions = numbers_of(columns["partition"])
    if np.any(partitions < 0) or np.any(partitions >= len(log_ends)) or np.any(np.diff(partitions) < 0):
        raise ValueError("the producers are not in the order of their partitions")
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
        raise ValueError("the producers are malformed")
    is_present = np.arange(KEPT_BATCHES) < rows["count"][:, None]
    rows["batches"][is_present] = np.stack([numbers_of(column) for column in flat], axis=1)
    _check_states(partitions, rows, is_present, log_ends[partitions], passed_ms)
    numbers, first_rows = np.unique(partitions, return_index=True)
    end_rows = np.append(first_rows, len(partitions))[1:]
    bounds = zip(numbers.tolist(), first_rows.tolist(), end_rows.tolist(), strict=True)
    return {number: ProducerTable(rows[first:end]) for number, first, end in bounds}


def _check_states(partitions: npt.NDArray[Any], rows: Rows, is_present: Flags, ends: Longs, passed_ms: int) -> None:
    """Raise ValueError for rows out of order or out of bounds; `ends` has the log end of each row's partition."""
    is_out_of_order = (np.diff(partitions) == 0) & (np.diff(rows["producer_id"]) <= 0)
    wrong = [is_out_of_order, (rows["heard_ms"] < 0) | (rows["heard_ms"] > passed_ms)]
    wrong += [~_within(rows["producer_id"], "producer_id"), ~_within(rows["epoch"], "producer_epoch")]
    wrong += [~_within(rows["coordinator_epoch"], "coordinator_epoch")]
    first = rows["transaction_first_offset"]
    wrong += [(first < NONE) | (first >= ends)]
    # by row and slot; unused slots are 0, which passes
    sequences, offsets, deltas = (rows["batches"][:, :, number] for number in range(3))
    wrong += [~_within(sequences, "last_sequence"), ~_within(offsets, "last_offset")]
    wrong += [(deltas < 0) | (deltas > offsets), is_present & (offsets >= ends[:, None])]
    wrong += [is_present[:, 1:] & (offsets[:, 1:] <= offsets[:, :-1])]
    if any(np.any(flags) for flags in wrong):
        raise ValueError("the states of producers contradict each other")


def _within(values: npt.NDArray[Any], name: str) -> Flags:
    low, high = BOUNDS[name]
    is_within: Flags = (values >= low) & (values <= high)
    return is_within
