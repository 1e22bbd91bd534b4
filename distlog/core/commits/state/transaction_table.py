"""The set transactions of a topic: which batches of which applications it holds, to recognise replays.

They are kept for thirty days, and the newest of each application for ever. Of an application that commits its batches
in order only the last few are kept: the newest number tells which batches were committed.

Who commits in no order every ten seconds leaves 260,000 of them, so they are columns, in the order of their commits:
to forget the oldest is a slice, to look one up is a scan of two columns in Arrow.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distlog.core.arrow_arrays import booleans, numbers_of, texts
from distlog.core.commits.state.columns import join
from distlog.core.commits.state.ordered_batches import OrderedBatches
from distlog.core.commits.state.transaction_columns import SCHEMA, Batch, TransactionInfo, find, ids_of, to_columns
from distlog.core.config import DAY_MS

KEPT_MS = 30 * DAY_MS
#: The most that the time between two batches counts for in the age of those before.
PAUSE_MS = DAY_MS
TAIL_LIMIT = 256
_LOOKED_FOR_ONE_BY_ONE = 8


class TransactionTable:
    """The batches that were committed lately, and each application's newest; immutable.

    Its parts, in the order of their commits: `_silent` (the newest of each application of which nothing is younger
    than KEPT_MS), `_columns`, `_tail`. Those in order are in `_ordered`, and do not age. A batch's age is the time
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
            ordered = OrderedBatches.of(columns.filter(columns["in_order"]))
            columns = columns.filter(pc.invert(columns["in_order"])) if len(ordered) else columns
        self._columns, self._ordered = columns, ordered
        self._tail = dict(tail or {})
        self._silent = columns.slice(0, 0) if silent is None else silent
        self._passed = _passed(numbers_of(columns["timestamp_ms"])) if passed is None else passed

    def get(self, app_id: str, batch_id: int | str) -> TransactionInfo | None:
        """The batch's commit and offsets; None if it was not committed, or is old and was forgotten."""
        recent = self._ordered.get(app_id, batch_id) or self._tail.get((app_id, batch_id))
        return recent or find(self._columns, app_id, batch_id) or find(self._silent, app_id, batch_id)

    def newest(self, app_id: str) -> int | None:
        """The number of the application's batch that was committed last; None if no batch of it has a number.

        If the application has committed in order, and a greater number then, it is that number.
        """
        ordered = self._ordered.newest(app_id)
        recent = (batch_id for app, batch_id in reversed(self._tail) if app == app_id)
        stored = (batch_id for part in (self._columns, self._silent) for _, batch_id in ids_of(part, app_id))
        last = next((number for number in itertools.chain(recent, stored) if isinstance(number, int)), None)
        return max((number for number in (ordered, last) if number is not None), default=None)

    def is_forgotten(self, app_id: str, batch_id: int | str) -> bool:
        """Whether the application commits in order, and has come so far that this batch is not known any more."""
        return isinstance(batch_id, int) and self._ordered.forgets(app_id, batch_id)

    def unordered_numbers(self, app_id: str) -> list[int]:
        """The numbers of the application's batches that were not committed in order."""
        recent = [batch_id for app, batch_id in self._tail if app == app_id]
        stored = [batch_id for part in (self._columns, self._silent) for _, batch_id in ids_of(part, app_id)]
        return [number for number in (*recent, *stored) if isinstance(number, int)]

    def without(self, app_id: str, up_to: int) -> TransactionTable:
        """This table without the application's batches of numbers up to `up_to`."""
        columns = self.columns()
        kept = np.ones(len(columns), bool)
        for row, number in ids_of(columns, app_id):
            kept[row] = isinstance(number, str) or number > up_to
        return TransactionTable(columns.filter(booleans(kept)))

    def columns(self) -> pa.RecordBatch:
        """All batches as one Arrow batch of SCHEMA, in the order of their commits."""
        parts = (self._silent, self._columns, to_columns(self._tail.items()), to_columns(self._ordered.items()))
        rows = join([part for part in parts if len(part)] or [self._columns])
        return rows.take(np.argsort(numbers_of(rows["version"]), kind="stable")) if len(self._ordered) else rows

    def updated(self, added: Mapping[Batch, TransactionInfo], now_ms: int) -> TransactionTable:
        """This table with the later batches `added`, and without batches older than KEPT_MS at `now_ms`.

        The newest batch of each application stays, at any age: its writer may repeat it after a long pause.
        """
        ordered = self._ordered.updated({batch: info for batch, info in added.items() if info.in_order})
        added = {batch: info for batch, info in added.items() if not info.in_order}
        # A batch may come again after KEPT_MS; it then goes last, since the columns are in the order of time.
        before = {batch: info for batch, info in self._tail.items() if batch not in added}
        silent = _without_applications(self._silent, {app_id for app_id, _ in added})
        grown = TransactionTable(self._columns, {**before, **added}, silent, self._passed, ordered)
        if len(grown._tail) > TAIL_LIMIT or grown._tail_age(now_ms) > KEPT_MS:
            grown = TransactionTable(
                join([self._columns, to_columns(grown._tail.items())]), {}, silent, ordered=ordered
            )
        return grown._without_old(now_ms)

    def __len__(self) -> int:
        return len(self._silent) + len(self._columns) + len(self._tail) + len(self._ordered)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TransactionTable) and bool(self.columns().equals(other.columns()))

    def __hash__(self) -> int:
        return hash(len(self))

    def __repr__(self) -> str:
        return f"<TransactionTable of {len(self)} batches>"

    def __reduce__(self) -> tuple[Any, ...]:
        stored = join([self._silent, self._columns, to_columns(self._ordered.items())])
        return _restore, (stored.serialize().to_pybytes(), self._tail)

    def _tail_age(self, now_ms: int) -> int:
        """The age of the first batch of the tail."""
        return _time_within([*(info.timestamp_ms for info in self._tail.values()), now_ms])

    def _without_old(self, now_ms: int) -> TransactionTable:
        if not len(self._columns):
            return self
        newest = self._columns["timestamp_ms"][-1].as_py()
        since = _time_within([newest, *(info.timestamp_ms for info in self._tail.values()), now_ms])
        old = int(np.searchsorted(self._passed, self._passed[-1] + since - KEPT_MS))
        if not old:
            return self
        rest = self._columns.slice(old)
        active = {app_id for app_id, _ in self._tail}
        silent = join([self._silent, _newest_of_silent(self._columns.slice(0, old), rest["app_id"], active)])
        return TransactionTable(rest, self._tail, silent, self._passed[old:], self._ordered)


def _passed(times: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The time that went by from the first of `times` to each of them, with pauses cut to PAUSE_MS."""
    return np.cumsum(np.minimum(np.diff(times, prepend=times[:1]), PAUSE_MS))


def _time_within(times: Sequence[int]) -> int:
    return sum(min(after - before, PAUSE_MS) for before, after in itertools.pairwise(times))


def _without_applications(columns: pa.RecordBatch, app_ids: Iterable[str]) -> pa.RecordBatch:
    found = pc.is_in(columns["app_id"], value_set=texts([*app_ids]))
    return columns.filter(pc.invert(found)) if pc.any(found).as_py() else columns


def _newest_of_silent(old: pa.RecordBatch, rest: pa.Array, active: Container[str]) -> pa.RecordBatch:
    """Of the `old` rows, the last one of each application that is neither in `rest` nor `active`."""
    last = {app_id: row for row, app_id in enumerate(old["app_id"].to_pylist()) if app_id not in active}
    if len(last) > _LOOKED_FOR_ONE_BY_ONE:
        later = set(pc.unique(rest).to_pylist())
    else:
        later = {app_id for app_id in last if pc.index(rest, app_id).as_py() >= 0}
    return old.take(pa.array(sorted(row for app_id, row in last.items() if app_id not in later), pa.int64()))


EMPTY = TransactionTable(pa.RecordBatch.from_arrays([pa.nulls(0, spec.type) for spec in SCHEMA], schema=SCHEMA))


def _restore(columns: bytes, tail: Mapping[Batch, TransactionInfo]) -> TransactionTable:
    return TransactionTable(pa.ipc.read_record_batch(pa.py_buffer(columns), SCHEMA), tail)
