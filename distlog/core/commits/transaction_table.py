"""The set transactions of a topic: which batches of which applications it holds, to recognise replays.

They are kept for thirty days, and the newest of each application for ever.

A stream that commits every ten seconds leaves 260,000 of them, so they are columns, in the order of
their commits: to forget the oldest is a slice, to look one up is a scan of two columns in Arrow.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distlog.core.commits.columns import join
from distlog.core.config import DAY_MS

KEPT_MS = 30 * DAY_MS
#: The most that the time between two batches counts for in the age of those before.
PAUSE_MS = DAY_MS
TAIL_LIMIT = 256
_LOOKED_FOR_ONE_BY_ONE = 8

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
    "unknown": pa.string(),
}
SCHEMA = pa.schema(_COLUMNS)

Batch = tuple[str, int | str]


@dataclass(frozen=True, slots=True)
class TransactionInfo:
    """When an application's batch was committed, and its `(start_offset, end_offset)` by partition.

    `unknown` holds fields that only a newer library knows.
    """

    version: int
    timestamp_ms: int
    offsets: Mapping[int, tuple[int, int]]
    unknown: str = ""


class TransactionTable:
    """The batches that were committed lately, and each application's newest; immutable.

    Its parts, in the order of their commits: `_silent` (the newest of each application of which nothing is younger
    than KEPT_MS), `_columns`, `_tail`. A batch's age is the time that went by at the head since, in which the pause
    between two batches counts as PAUSE_MS at most: a commit from the far future, and those that must come after it,
    make no batch older by more than that. `_passed` is the time that went by up to each row of `_columns`.
    """

    __slots__ = ("_columns", "_passed", "_silent", "_tail")

    def __init__(
        self,
        columns: pa.RecordBatch,
        tail: Mapping[Batch, TransactionInfo] | None = None,
        silent: pa.RecordBatch | None = None,
        passed: npt.NDArray[np.int64] | None = None,
    ) -> None:
        self._columns = columns
        self._tail = dict(tail or {})
        self._silent = columns.slice(0, 0) if silent is None else silent
        self._passed = _passed(columns["timestamp_ms"].to_numpy()) if passed is None else passed

    def get(self, app_id: str, batch_id: int | str) -> TransactionInfo | None:
        """The batch's commit and offsets; None if it was not committed, or is old and was forgotten."""
        recent = self._tail.get((app_id, batch_id))
        return recent or _find(self._columns, app_id, batch_id) or _find(self._silent, app_id, batch_id)

    def newest(self, app_id: str) -> int | None:
        """The number of the application's batch that was committed last; None if no batch of it has a number."""
        recent = (batch_id for app, batch_id in reversed(self._tail) if app == app_id)
        numbers = itertools.chain(recent, _ids_of(self._columns, app_id), _ids_of(self._silent, app_id))
        return next((number for number in numbers if isinstance(number, int)), None)

    def columns(self) -> pa.RecordBatch:
        """All batches as one Arrow batch of SCHEMA, in the order of their commits."""
        parts = (self._silent, self._columns, _to_columns(self._tail))
        return join([part for part in parts if len(part)] or [self._columns])

    def updated(self, added: Mapping[Batch, TransactionInfo], now_ms: int) -> TransactionTable:
        """This table with the later batches `added`, and without batches older than KEPT_MS at `now_ms`.

        The newest batch of each application stays, at any age: its writer may repeat it after a long pause.
        """
        # A batch may come again after KEPT_MS; it then goes last, since the columns are in the order of time.
        before = {batch: info for batch, info in self._tail.items() if batch not in added}
        silent = _without_applications(self._silent, {app_id for app_id, _ in added})
        grown = TransactionTable(self._columns, {**before, **added}, silent, self._passed)
        if len(grown._tail) > TAIL_LIMIT or grown._tail_age(now_ms) > KEPT_MS:
            grown = TransactionTable(join([self._columns, _to_columns(grown._tail)]), {}, silent)
        return grown._without_old(now_ms)

    def __len__(self) -> int:
        return len(self._silent) + len(self._columns) + len(self._tail)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TransactionTable) and bool(self.columns().equals(other.columns()))

    def __hash__(self) -> int:
        return hash(len(self))

    def __repr__(self) -> str:
        return f"<TransactionTable of {len(self)} batches>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (join([self._silent, self._columns]).serialize().to_pybytes(), self._tail)

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
        return TransactionTable(rest, self._tail, silent, self._passed[old:])


def _passed(times: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The time that went by from the first of `times` to each of them, with pauses cut to PAUSE_MS."""
    return np.cumsum(np.minimum(np.diff(times, prepend=times[:1]), PAUSE_MS))


def _time_within(times: Sequence[int]) -> int:
    return sum(min(after - before, PAUSE_MS) for before, after in itertools.pairwise(times))


def _find(columns: pa.RecordBatch, app_id: str, batch_id: int | str) -> TransactionInfo | None:
    same_batch = pc.equal(columns["batch_id"], pa.scalar(json.dumps(batch_id)))
    same_app = pc.equal(columns["app_id"], pa.scalar(app_id))
    rows = pc.indices_nonzero(pc.and_(same_batch, same_app))
    if not len(rows):
        return None
    row = rows[-1].as_py()
    ranges = columns["offsets"][row].as_py()
    offsets = {item["partition"]: (item["start_offset"], item["end_offset"]) for item in ranges}
    version, timestamp_ms, unknown = (columns[name][row].as_py() for name in ("version", "timestamp_ms", "unknown"))
    return TransactionInfo(version, timestamp_ms, offsets, unknown)


def _ids_of(columns: pa.RecordBatch, app_id: str) -> Iterator[int | str]:
    """The application's batch ids in `columns`, the last one first."""
    for row in reversed(pc.indices_nonzero(pc.equal(columns["app_id"], pa.scalar(app_id))).to_numpy()):
        yield json.loads(columns["batch_id"][int(row)].as_py())


def _without_applications(columns: pa.RecordBatch, app_ids: Iterable[str]) -> pa.RecordBatch:
    found = pc.is_in(columns["app_id"], value_set=pa.array(app_ids, pa.string()))
    return columns.filter(pc.invert(found)) if pc.any(found).as_py() else columns


def _newest_of_silent(old: pa.RecordBatch, rest: pa.Array, active: Container[str]) -> pa.RecordBatch:
    """Of the `old` rows, the last one of each application that is neither in `rest` nor `active`."""
    last = {app_id: row for row, app_id in enumerate(old["app_id"].to_pylist()) if app_id not in active}
    if len(last) > _LOOKED_FOR_ONE_BY_ONE:
        later = set(pc.unique(rest).to_pylist())
    else:
        later = {app_id for app_id in last if pc.index(rest, app_id).as_py() >= 0}
    return old.take(pa.array(sorted(row for app_id, row in last.items() if app_id not in later), pa.int64()))


EMPTY = TransactionTable(pa.RecordBatch.from_pylist([], schema=SCHEMA))


def _restore(columns: bytes, tail: Mapping[Batch, TransactionInfo]) -> TransactionTable:
    return TransactionTable(pa.ipc.read_record_batch(pa.py_buffer(columns), SCHEMA), tail)


def _to_columns(batches: Mapping[Batch, TransactionInfo]) -> pa.RecordBatch:
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
            "unknown": info.unknown,
        }
        for (app_id, batch_id), info in batches.items()
    )
    return pa.RecordBatch.from_pylist(list(rows), schema=SCHEMA)
