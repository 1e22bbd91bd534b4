"""Which batches of which applications a topic holds: how a replayed batch is known, for thirty days.

A stream that commits every ten seconds leaves 260,000 of them, so they are columns, in the order of
their commits: to forget the oldest is a slice, to look one up is a scan of two columns in Arrow.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distlog.core.commits.columns import join
from distlog.core.config import DAY_MS

KEPT_MS = 30 * DAY_MS
TAIL_LIMIT = 256

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
}
SCHEMA = pa.schema(_COLUMNS)

Batch = tuple[str, int | str]


@dataclass(frozen=True, slots=True)
class TransactionInfo:
    """When an application's batch was committed, and the `(start_offset, end_offset)` it got by partition."""

    version: int
    timestamp_ms: int
    offsets: Mapping[int, tuple[int, int]]


class TransactionTable:
    """The batches that were committed lately; immutable."""

    __slots__ = ("_columns", "_tail")

    def __init__(self, columns: pa.RecordBatch, tail: Mapping[Batch, TransactionInfo] | None = None) -> None:
        self._columns = columns
        self._tail = dict(tail or {})

    def get(self, app_id: str, batch_id: int | str) -> TransactionInfo | None:
        """The batch's commit and offsets, or None if it was not committed within KEPT_MS of the head."""
        recent = self._tail.get((app_id, batch_id))
        return recent or self._get_old(app_id, batch_id)

    def columns(self) -> pa.RecordBatch:
        """All batches as one Arrow batch of SCHEMA, in the order of their commits."""
        return join([self._columns, _to_columns(self._tail)]) if self._tail else self._columns

    def updated(self, added: Mapping[Batch, TransactionInfo], now_ms: int) -> TransactionTable:
        """This table with `added`, all of them later, and without what is older than KEPT_MS at `now_ms`."""
        # A name may come back after KEPT_MS; it goes last then, since time orders the columns.
        before = {batch: info for batch, info in self._tail.items() if batch not in added}
        grown = TransactionTable(self._columns, {**before, **added})
        if len(grown._tail) > TAIL_LIMIT:
            grown = TransactionTable(grown.columns())
        return grown._without_older_than(now_ms - KEPT_MS)

    def __len__(self) -> int:
        return len(self._columns) + len(self._tail)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TransactionTable) and bool(self.columns().equals(other.columns()))

    def __hash__(self) -> int:
        return hash(len(self))

    def __repr__(self) -> str:
        return f"<TransactionTable of {len(self)} batches>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self._columns.serialize().to_pybytes(), self._tail)

    def _get_old(self, app_id: str, batch_id: int | str) -> TransactionInfo | None:
        columns = self._columns
        same_batch = pc.equal(columns["batch_id"], pa.scalar(json.dumps(batch_id)))
        same_app = pc.equal(columns["app_id"], pa.scalar(app_id))
        row = pc.index(pc.and_(same_batch, same_app), True).as_py()
        if row < 0:
            return None
        ranges = columns["offsets"][row].as_py()
        offsets = {item["partition"]: (item["start_offset"], item["end_offset"]) for item in ranges}
        return TransactionInfo(columns["version"][row].as_py(), columns["timestamp_ms"][row].as_py(), offsets)

    def _without_older_than(self, timestamp_ms: int) -> TransactionTable:
        old = int(np.searchsorted(self._columns["timestamp_ms"].to_numpy(), timestamp_ms))
        kept = {batch: info for batch, info in self._tail.items() if info.timestamp_ms >= timestamp_ms}
        return self if old == 0 and len(kept) == len(self._tail) else TransactionTable(self._columns.slice(old), kept)


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
        }
        for (app_id, batch_id), info in batches.items()
    )
    return pa.RecordBatch.from_pylist(list(rows), schema=SCHEMA)
