"""Snapshots and commits as tables, for people."""

from __future__ import annotations

import html as markup
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from distlog.core.arrow_arrays import booleans
from distlog.core.commits.actions import Add, Remove, SetTransaction
from distlog.core.commits.commit import Commit
from distlog.core.commits.snapshot import PartitionState, Snapshot

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


def history(commits: Sequence[Commit]) -> pa.Table:
    """One row per commit, in the order given."""
    return pa.Table.from_pylist([_history_row(commit) for commit in commits], _HISTORY)


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


def segments(snapshot: Snapshot) -> pa.Table:
    """One row per live segment, by partition and base offset, with every fact that the snapshot holds.

    `is_active` says that a segment still grows: the row is what readers of this snapshot see of it.
    """
    table = pa.Table.from_batches([state.segments.columns() for state in snapshot.partitions])
    return table.append_column("is_active", booleans(np.concatenate([_active(each) for each in snapshot.partitions])))


def _active(state: PartitionState) -> npt.NDArray[np.bool_]:
    is_active = np.zeros(len(state.segments), np.bool_)
    is_active[-1:] = [segment.is_active for segment in state.segments[-1:]]
    return is_active


def html(snapshot: Snapshot, url: str) -> str:
    """The snapshot as an HTML table, a row per partition."""
    rows = "".join(
        f"<tr><td>{number}</td><td>{state.log_start_offset}</td><td>{state.log_end_offset}</td>"
        f"<td>{len(state.segments)}</td><td>{int(state.segments.log_bytes.sum())}</td></tr>"
        for number, state in enumerate(snapshot.partitions)
    )
    return (
        f"<b>{markup.escape(snapshot.name)}</b> version {snapshot.version} at {markup.escape(url)}"
        "<table><tr><th>partition</th><th>log start</th><th>log end</th><th>segments</th><th>bytes</th></tr>"
        f"{rows}</table>"
    )
