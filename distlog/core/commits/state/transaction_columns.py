"""An application's batch in a commit, and such batches as Arrow columns."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from distlog.core.arrow_arrays import texts

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
    "unknown": pa.string(),
}
SCHEMA = pa.schema(_COLUMNS)

Batch = tuple[str, int | str]


@dataclass(frozen=True, slots=True)
class TransactionInfo:
    """When an application's batch was committed, and its `(start_offset, end_offset)` by partition.

    `in_order` is that of SetTransaction. `unknown` holds fields that only a newer library knows.
    """

    version: int
    timestamp_ms: int
    offsets: Mapping[int, tuple[int, int]]
    unknown: str = ""
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
            "unknown": info.unknown,
        }
        for (app_id, batch_id), info in batches
    )
    return pa.RecordBatch.from_pylist(list(rows), schema=SCHEMA)


def info_at(columns: pa.RecordBatch, row: int) -> TransactionInfo:
    """The batch in one row of the columns."""
    ranges = columns["offsets"][row].as_py()
    offsets = {item["partition"]: (item["start_offset"], item["end_offset"]) for item in ranges}
    names = ("version", "timestamp_ms", "unknown", "in_order")
    version, timestamp_ms, unknown, in_order = (columns[name][row].as_py() for name in names)
    return TransactionInfo(version, timestamp_ms, offsets, unknown, in_order)


def find(columns: pa.RecordBatch, app_id: str, batch_id: int | str) -> TransactionInfo | None:
    """The last row of the application's batch, or None."""
    same_batch = pc.equal(columns["batch_id"], texts([json.dumps(batch_id)])[0])
    same_app = pc.equal(columns["app_id"], texts([app_id])[0])
    rows = pc.indices_nonzero(pc.and_(same_batch, same_app))
    return info_at(columns, rows[-1].as_py()) if len(rows) else None


def ids_of(columns: pa.RecordBatch, app_id: str) -> Iterator[tuple[int, int | str]]:
    """The rows of the application with their batch ids, the last one first."""
    for row in reversed(pc.indices_nonzero(pc.equal(columns["app_id"], texts([app_id])[0])).to_pylist()):
        yield row, json.loads(columns["batch_id"][row].as_py())
