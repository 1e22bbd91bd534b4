"""The set transactions of a topic: which batches of which applications it holds, to recognise replays."""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distlog.core.arrays import batch_of_rows, booleans, flags_of, integers, join, numbers_of, texts
from distlog.core.config import DAY_MS


class TransactionTable:
    """The batches that were committed lately, and each application's newest; immutable.

    Its parts, in the order of their commits: `_silent` (the newest of each application of which nothing is younger
    than KEPT_MS), `_columns`, `_tail`. Batches in order are in `_ordered`, and do not age. A batch's age is the time
    that went by at the head since, in which the pause between two batches counts as PAUSE_MS at most: a commit from
    the far future, and those that must come after it, make no batch older by more than that. `_passed` is the time
    that went by up to each row of `_columns`.
    """

    __slots__ = ("_columns", "_ordered", "_passed", "_silent", "_tail")

    def __init__(
        self,
        columns: pa.RecordBatch,
        tail: Mapping[Batch, TransactionInfo] | None = None,
        silent: pa.RecordBatch | None = None,
        passed: npt.NDArray[np.int64] | None = None,
        ordered: OrderedBatches | None = None,
    ) -> None:
        if ordered is None:
            in_order, ordered = flags_of(columns["in_order"]), _NONE
            # a kernel of Arrow takes longer to begin than all else here, and most topics need none
            if in_order.any():
                ordered = OrderedBatches.of(columns.filter(columns["in_order"]))
                columns = columns.filter(booleans(~in_order))
        self._columns, self._ordered = columns, ordered
        self._tail = dict(tail or {})
        self._silent = columns.slice(0, 0) if silent is None else silent
        self._passed = _passed(numbers_of(columns["timestamp_ms"])) if passed is None else passed

    def get(self, app_id: str, batch_id: int | str) -> TransactionInfo | None:
        recent = self._ordered.get(app_id, batch_id) or self._tail.get((app_id, batch_id))
        return recent or find(self._columns, app_id, batch_id) or find(self._silent, app_id, batch_id)

    def newest(self, app_id: str) -> int | None:
        """Return the number of the application's batch that was committed last; None if no batch has a number.

        If the application has committed in order, and a greater number then, it is that number.
        """
        ordered = self._ordered.newest(app_id)
        recent = (batch_id for app, batch_id in reversed(self._tail) if app == app_id)
        stored = (batch_id for part in (self._columns, self._silent) for _, batch_id in ids_of(part, app_id))
        last = next((number for number in itertools.chain(recent, stored) if isinstance(number, int)), None)
        return max((number for number in (ordered, last) if number is not None), default=None)

    def has(self, app_id: str, batch_id: int | str, *, in_order: bool = False) -> bool:
        """True if the batch was committed, as far as is known, or `in_order` a later one."""
        if in_order and isinstance(batch_id, int):
            newest = self.newest(app_id)
            return newest is not None and batch_id <= newest
        return self.get(app_id, batch_id) is not None or self.is_forgotten(app_id, batch_id)

    @property
    def size(self) -> int:
        """The bytes of the batches that were not committed in order, without the last few."""
        return sum(int(part.nbytes) for part in (self._columns, self._silent) if len(part))

    def is_forgotten(self, app_id: str, batch_id: int | str) -> bool:
        """True if the application commits in order, and has come so far that this batch is not known any more."""
        return isinstance(batch_id, int) and self._ordered.forgets(app_id, batch_id)

    def unordered_numbers(self, app_id: str) -> list[int]:
        """The numbers of the application's batches that were not committed in order."""
        recent = [batch_id for app, batch_id in self._tail if app == app_id]
        stored = [batch_id for part in (self._columns, self._silent) for _, batch_id in ids_of(part, app_id)]
        return [number for number in (*recent, *stored) if isinstance(number, int)]

    def without(self, app_id: str, up_to: int) -> TransactionTable:
        """This table without the application's batches of numbers up to `up_to`."""
        columns = self.columns()
        stays = np.ones(len(columns), bool)
        for row, number in ids_of(columns, app_id):
            stays[row] = isinstance(number, str) or number > up_to
        return TransactionTable(columns.filter(booleans(stays)))

    def columns(self) -> pa.RecordBatch:
        """All batches as one Arrow batch of SCHEMA, in the order of their commits."""
        late = [to_columns(part.items()) for part in (self._tail, self._ordered) if len(part)]
        rows = join([self._silent, self._columns, *late])
        if not len(self._ordered):
            return rows
        versions = numbers_of(rows["version"])
        is_sorted = (versions[1:] >= versions[:-1]).all()
        return rows if is_sorted else rows.take(integers(np.argsort(versions, kind="stable")))

    def updated(self, added: Mapping[Batch, TransactionInfo], now_ms: int) -> TransactionTable:
        """This table with the later batches `added`, and without batches older than KEPT_MS at `now_ms`.

        The newest batch of each application stays, at any age: its writer may repeat it after a long pause.
        """
        ordered = self._ordered.updated({batch: info for batch, info in added.items() if info.in_order})
        added = {batch: info for batch, info in added.items() if not info.in_order}
        # A batch may come again after KEPT_MS; it then goes last, since the columns are in the order of time.
        earlier = {batch: info for batch, info in self._tail.items() if batch not in added}
        silent = _without_applications(self._silent, {app_id for app_id, _ in added})
        grown = TransactionTable(self._columns, {**earlier, **added}, silent, self._passed, ordered)
        tail_age_ms = _time_within([*(info.timestamp_ms for info in grown._tail.values()), now_ms])
        if len(grown._tail) > TAIL_LIMIT or tail_age_ms > KEPT_MS:
            grown = TransactionTable(
                join([self._columns, to_columns(grown._tail.items())]), {}, silent, ordered=ordered
            )
        return grown._without_old(now_ms)

    def __len__(self) -> int:
        return len(self._silent) + len(self._columns) + len(self._tail) + len(self._ordered)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TransactionTable) and bool(self.columns().equals(other.columns()))

    def __reduce__(self) -> tuple[Any, ...]:
        stored = join([self._silent, self._columns, to_columns(self._ordered.items())])
        return _restore, (stored.serialize().to_pybytes(), self._tail)

    def _without_old(self, now_ms: int) -> TransactionTable:
        if not len(self._columns):
            return self
        newest = self._columns["timestamp_ms"][-1].as_py()
        since = _time_within([newest, *(info.timestamp_ms for info in self._tail.values()), now_ms])
        old = int(np.searchsorted(self._passed, self._passed[-1] + since - KEPT_MS))
        if not old:
            return self
        recent = self._columns.slice(old)
        active = {app_id for app_id, _ in self._tail}
        silent = join([self._silent, _newest_of_silent(self._columns.slice(0, old), recent["app_id"], active)])
        return TransactionTable(recent, self._tail, silent, self._passed[old:], self._ordered)


_RANGE = pa.struct(
    [pa.field("partition", pa.int32()), pa.field("start_offset", pa.int64()), pa.field("end_offset", pa.int64())]
)
# A batch_id is kept as JSON, so that the batch 7 is not the batch "7".
_COLUMNS: dict[str, pa.DataType] = {
    "app_id": pa.string(),
    "batch_id": pa.string(),
    "version": pa.int64(),
    "timestamp_ms": pa.int64(),
    "offsets": pa.list_(_RANGE),
    "in_order": pa.bool_(),
}
SCHEMA = pa.schema(_COLUMNS)

Batch = tuple[str, int | str]


@dataclass(frozen=True, slots=True)
class TransactionInfo:
    """The time of the commit of an application's batch, and its `(start_offset, end_offset)` by partition.

    `in_order` is the same as in SetTransaction.
    """

    version: int
    timestamp_ms: int
    offsets: Mapping[int, tuple[int, int]]
    in_order: bool = False


def to_columns(batches: Iterable[tuple[Batch, TransactionInfo]]) -> pa.RecordBatch:
    """The batches as columns of SCHEMA."""
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
    return batch_of_rows(list(rows), SCHEMA)


def info_at(columns: pa.RecordBatch, row: int) -> TransactionInfo:
    """The batch in one row of the columns."""
    ranges = columns["offsets"][row].as_py()
    offsets = {item["partition"]: (item["start_offset"], item["end_offset"]) for item in ranges}
    names = ("version", "timestamp_ms", "in_order")
    version, timestamp_ms, in_order = (columns[name][row].as_py() for name in names)
    return TransactionInfo(version, timestamp_ms, offsets, in_order)


def find(columns: pa.RecordBatch, app_id: str, batch_id: int | str) -> TransactionInfo | None:
    """The last row of the application's batch, or None."""
    if not len(columns):
        return None
    same_batch = pc.equal(columns["batch_id"], texts([json.dumps(batch_id)])[0])
    same_app = pc.equal(columns["app_id"], texts([app_id])[0])
    rows = pc.indices_nonzero(pc.and_(same_batch, same_app))
    return info_at(columns, rows[-1].as_py()) if len(rows) else None


def ids_of(columns: pa.RecordBatch, app_id: str) -> Iterator[tuple[int, int | str]]:
    """The rows of the application with their batch ids, the last one first."""
    if not len(columns):
        return
    for row in reversed(pc.indices_nonzero(pc.equal(columns["app_id"], texts([app_id])[0])).to_pylist()):
        yield row, json.loads(columns["batch_id"][row].as_py())


#: A batch in order makes batches forgotten whose numbers are lower by this much or more. A writer repeats only its
#: newest batch; the few before it are for people to see.
KEPT_NUMBERS = 10


class OrderedBatches:
    """By application, the batches that it committed in order with its last KEPT_NUMBERS numbers; immutable.

    They do not expire, and there are at most KEPT_NUMBERS of an application whose numbers grow.
    """

    __slots__ = ("_batches",)

    def __init__(self, batches: Mapping[str, Mapping[int, TransactionInfo]]) -> None:
        self._batches = batches

    @classmethod
    def of(cls, columns: pa.RecordBatch) -> OrderedBatches:
        """The batches in `columns`, in the order of their commits, without those that later ones make forgotten.

        Raises ValueError for a batch without a number.
        """
        newest, rows = dict[str, int](), list[tuple[int, Batch]]()
        names = zip(columns["app_id"].to_pylist(), columns["batch_id"].to_pylist(), strict=True)
        for row, (app_id, text) in reversed(list(enumerate(names))):
            number = json.loads(text)
            if type(number) is not int:
                raise ValueError("a batch in order has no number")
            if number > newest.get(app_id, number) - KEPT_NUMBERS:
                rows.append((row, (app_id, number)))
            newest[app_id] = max(number, newest.get(app_id, number))
        return _NONE.updated({batch: info_at(columns, row) for row, batch in reversed(rows)})

    def get(self, app_id: str, batch_id: int | str) -> TransactionInfo | None:
        """The batch's commit and offsets; None if it was not committed in order, or was forgotten."""
        return self._batches.get(app_id, {}).get(batch_id) if isinstance(batch_id, int) else None

    def newest(self, app_id: str) -> int | None:
        """The greatest number that the application committed in order, or None."""
        return max(self._batches.get(app_id, ()), default=None)

    def forgets(self, app_id: str, number: int) -> bool:
        """True if a batch of this number would be forgotten if it was committed."""
        newest = self.newest(app_id)
        return newest is not None and number <= newest - KEPT_NUMBERS

    def updated(self, added: Mapping[Batch, TransactionInfo]) -> OrderedBatches:
        """These batches and the later ones `added`, each of which makes much lower numbers forgotten."""
        changed = dict[str, dict[int, TransactionInfo]]()
        for (app_id, number), info in added.items():
            if isinstance(number, int):
                earlier_batches = changed.get(app_id) or self._batches.get(app_id, {})
                retained = {
                    batch_number: earlier
                    for batch_number, earlier in earlier_batches.items()
                    if number - KEPT_NUMBERS < batch_number != number
                }
                changed[app_id] = {**retained, number: info}
        return OrderedBatches({**self._batches, **changed}) if changed else self

    def items(self) -> Iterator[tuple[Batch, TransactionInfo]]:
        """All batches, by version, application and number."""
        pairs = [
            ((app_id, number), info) for app_id, batches in self._batches.items() for number, info in batches.items()
        ]
        return iter(sorted(pairs, key=lambda item: (item[1].version, item[0])))

    def __len__(self) -> int:
        return sum(len(batches) for batches in self._batches.values())


_NONE = OrderedBatches({})


# Batches are kept for thirty days, and the newest of each application forever. If an application commits its batches
# in order, only the last few are kept: the newest number shows which batches were committed.
#
# An application that commits in no order every ten seconds leaves 260,000 batches, so they are columns, in the order
# of their commits: forgetting the oldest is a slice, a lookup is a scan of two columns in Arrow.


KEPT_MS = 30 * DAY_MS
#: The longest time between two batches that counts in the age of earlier batches.
PAUSE_MS = DAY_MS
TAIL_LIMIT = 256
_LOOKED_FOR_ONE_BY_ONE = 8


def _passed(times: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the time from the first of `times` to each one, with pauses cut to PAUSE_MS."""
    return np.cumsum(np.minimum(np.diff(times, prepend=times[:1]), PAUSE_MS))


def _time_within(times: Sequence[int]) -> int:
    return sum(min(end - start, PAUSE_MS) for start, end in itertools.pairwise(times))


def _without_applications(columns: pa.RecordBatch, app_ids: Collection[str]) -> pa.RecordBatch:
    if not app_ids or not len(columns):
        return columns
    removed = pc.is_in(columns["app_id"], value_set=texts([*app_ids]))
    return columns.filter(pc.invert(removed)) if pc.any(removed).as_py() else columns


def _newest_of_silent(old: pa.RecordBatch, recent_ids: pa.Array, active: Container[str]) -> pa.RecordBatch:
    """Return the last of the `old` rows of each application that is not in `recent_ids` or `active`."""
    last = {app_id: row for row, app_id in enumerate(old["app_id"].to_pylist()) if app_id not in active}
    if len(last) > _LOOKED_FOR_ONE_BY_ONE:
        later = set(pc.unique(recent_ids).to_pylist())
    else:
        later = {app_id for app_id in last if pc.index(recent_ids, texts([app_id])[0]).as_py() >= 0}
    return old.take(integers(sorted(row for app_id, row in last.items() if app_id not in later)))


NO_TRANSACTIONS = TransactionTable(
    pa.RecordBatch.from_arrays([pa.nulls(0, spec.type) for spec in SCHEMA], schema=SCHEMA)
)


def _restore(columns: bytes, tail: Mapping[Batch, TransactionInfo]) -> TransactionTable:
    return TransactionTable(pa.ipc.read_record_batch(pa.py_buffer(columns), SCHEMA), tail)


class TransactionDraft:
    """A private, mutable copy of a TransactionTable."""

    def __init__(self, table: TransactionTable) -> None:
        self._table = table
        self._added: dict[Batch, TransactionInfo] = {}
        #: by application, up to which number a batch in order has made batches forgotten
        self._forgotten: dict[str, int] = {}
        #: by application, the numbers in `_table` that were not committed in order, if they are known
        self._unordered: dict[str, list[int]] = {}

    def record(self, app_id: str, batch_id: int | str, info: TransactionInfo, before_ms: int) -> None:
        """Record a batch, in a commit that follows one of the time `before_ms`.

        Raises ValueError if the batch was committed before, in the last thirty days.
        """
        earlier = self._added.pop((app_id, batch_id), None) or self._table.get(app_id, batch_id)
        is_known = earlier is not None and not self._is_forgotten(app_id, batch_id, earlier)
        if earlier and is_known and earlier.timestamp_ms >= info.timestamp_ms - KEPT_MS:
            raise ValueError(f"batch {batch_id!r} of {app_id!r} is in commit {earlier.version} already")
        if info.in_order and isinstance(batch_id, int):
            self._forget(app_id, batch_id - KEPT_NUMBERS, before_ms)
        else:
            self._unordered.pop(app_id, None)
        self._added[app_id, batch_id] = info

    def finish(self, now_ms: int) -> TransactionTable:
        """The table after the last commit, whose time is `now_ms`."""
        return self._table.updated(self._added, now_ms)

    def _is_forgotten(self, app_id: str, batch_id: int | str, info: TransactionInfo) -> bool:
        return info.in_order and isinstance(batch_id, int) and batch_id <= self._forgotten.get(app_id, -1)

    def _forget(self, app_id: str, up_to: int, before_ms: int) -> None:
        self._forgotten[app_id] = max(up_to, self._forgotten.get(app_id, -1))
        if app_id not in self._unordered:
            self._merge_added(before_ms)
            self._unordered[app_id] = self._table.unordered_numbers(app_id)
        if any(number <= up_to for number in self._unordered[app_id]):
            # first what is too old goes: without these batches, others look younger
            self._merge_added(before_ms)
            self._table = self._table.without(app_id, up_to)
            self._unordered[app_id] = [number for number in self._unordered[app_id] if number > up_to]

    def _merge_added(self, before_ms: int) -> None:
        """Bring the table to where it is when each commit is folded by itself."""
        last_ms = max((info.timestamp_ms for info in self._added.values()), default=before_ms)
        self._table = self._table.updated(self._added, max(before_ms, last_ms))
        self._added = {}
