"""Snapshots and commits as tables, for people."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distlog.core.arrow_arrays import booleans, integers, numbers_of
from distlog.core.commits.format.actions import Add, Remove, SetTransaction
from distlog.core.commits.format.commit import Commit
from distlog.core.commits.state.snapshot import PartitionState, Snapshot
from distlog.core.display.listing import Listing

_HISTORY = pa.schema(
    [
        ("version", pa.int64()),
        ("timestamp", pa.timestamp("ms", "UTC")),
        ("operation", pa.string()),
        ("writer", pa.string()),
        ("segments_added", pa.int64()),
        ("segments_removed", pa.int64()),
        ("records_added", pa.int64()),
        ("bytes_added", pa.int64()),
        ("app_id", pa.string()),
        ("batch_id", pa.string()),
    ]
)


#: What is shown of a commit and of a segment; the tables have more.
_COMMIT = ("version", "timestamp", "operation", "writer", "records_added", "bytes_added", "segments_added")
_SEGMENT = (
    *("partition", "base_offset", "next_offset", "record_count", "log_bytes"),
    *("first_timestamp", "max_timestamp", "compression", "is_active"),
)
#: The times of a segment, which a snapshot holds as ms.
_TIMES = ("first_timestamp", "min_timestamp", "max_timestamp", "append_time_ms", "created_ms")


def history(commits: Sequence[Commit]) -> Listing:
    """One row per commit, in the order given."""
    table = pa.Table.from_pylist([_history_row(commit) for commit in commits], _HISTORY)
    return Listing(table, "commits", _COMMIT)


def _history_row(commit: Commit) -> dict[str, object]:
    added = [action.segment for action in commit.actions if isinstance(action, Add)]
    batch = next((action for action in commit.actions if isinstance(action, SetTransaction)), None)
    return {
        "version": commit.version,
        "timestamp": commit.timestamp_ms,
        "operation": commit.operation,
        "writer": commit.writer,
        "segments_added": len(added),
        "segments_removed": sum(isinstance(action, Remove) for action in commit.actions),
        "records_added": sum(segment.record_count for segment in added),
        "bytes_added": sum(segment.log_bytes for segment in added),
        "app_id": batch.app_id if batch else None,
        "batch_id": str(batch.batch_id) if batch else None,
    }


def segments(snapshot: Snapshot) -> Listing:
    """One row per live segment, by partition and base offset, with every fact that the snapshot holds.

    A time is null where the snapshot has none. `is_active` says that a segment still grows: the row is what readers
    of this snapshot see of it.
    """
    table = pa.Table.from_batches([state.segments.columns() for state in snapshot.partitions])
    for name in _TIMES:
        table = table.set_column(table.schema.get_field_index(name), name, _times(table[name]))
    is_active = booleans(np.concatenate([_active(each) for each in snapshot.partitions]))
    return Listing(table.append_column("is_active", is_active), "segments", _SEGMENT)


def _active(state: PartitionState) -> npt.NDArray[np.bool_]:
    is_active = np.zeros(len(state.segments), np.bool_)
    is_active[-1:] = [segment.is_active for segment in state.segments[-1:]]
    return is_active


def partitions(snapshot: Snapshot) -> pa.Table:
    """One row per partition: its offsets, segments, records and bytes, and the time of its newest record."""
    states = snapshot.partitions
    newest = [int(state.segments.max_timestamps.max(initial=-1)) for state in states]
    columns = {
        "partition": range(len(states)),
        "log_start_offset": [state.log_start_offset for state in states],
        "log_end_offset": [state.log_end_offset for state in states],
        "segments": [len(state.segments) for state in states],
        "records": [int(state.segments.record_counts.sum()) for state in states],
        "bytes": [int(state.segments.log_bytes.sum()) for state in states],
    }
    table = pa.table({name: integers(column) for name, column in columns.items()})
    return table.append_column("newest_record", _times(integers(newest)))


def _times(column: pa.Array | pa.ChunkedArray) -> pa.ChunkedArray:
    """Times in ms since 1970 as Arrow has them; null where there is none, which is below 0."""
    values = numbers_of(column)
    known = pc.if_else(booleans(values >= 0), integers(values), pa.nulls(len(values), pa.int64()))
    return pa.chunked_array([known.cast(pa.timestamp("ms", "UTC"))])
