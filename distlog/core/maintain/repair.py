"""Cuts active segments where damage begins that no crash explains, and reports the lost records.

Appends refuse a damaged log without changing it: acknowledged records are never cut automatically. Restoring the file
is better, since the offsets that are cut off are assigned again. A sealed segment is not repaired but restored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from distlog.core.arrays import table_of_rows
from distlog.core.commits.commit_log import CurrentSnapshot
from distlog.core.commits.snapshot import Snapshot
from distlog.core.display import Shown, counted
from distlog.core.log.active_partition import ActivePartition, TruncatedTail
from distlog.core.segments.topic_handle import TopicHandle


def repair(handle: TopicHandle, snapshot: Snapshot, *, dry_run: bool = False) -> tuple[RepairReport, Snapshot]:
    """Cut and seal each active segment that refuses appends; returns the report and the new state.

    A log that is as a crash leaves it is recovered, as by an append. Raises StorageError if a lock is not free.
    """
    snapshots, truncated_tails = CurrentSnapshot(handle.log, handle.log.refresh(snapshot)), list[TruncatedTail]()
    for number, state in enumerate(snapshots.snapshot.partitions):
        if state.active is None:
            continue
        partition = ActivePartition(handle, number, snapshots)
        try:
            with partition.held():
                tail = partition.repair(dry_run=dry_run)
        finally:
            partition.close()
        if tail is not None:
            truncated_tails.append(tail)
    return RepairReport(snapshots.snapshot.version, tuple(truncated_tails), dry_run), snapshots.snapshot


_NUMBERS = ("partition", "start_offset", "end_offset", "position", "bytes")
_TABLE = pa.schema([*((name, pa.int64()) for name in _NUMBERS), ("file", pa.string()), ("reason", pa.string())])


@dataclass(frozen=True, slots=True, repr=False)
class RepairReport(Shown):
    """The ends that a repair cut off, or would with `dry_run`: one for each partition that appends refuse."""

    version: int
    partitions: tuple[TruncatedTail, ...]
    dry_run: bool

    def __str__(self) -> str:
        if not self.partitions:
            return "nothing to repair: every active segment takes appends"
        verb = "would cut" if self.dry_run else "cut"
        size = sum(tail.size for tail in self.partitions)
        offsets = sum(max(tail.end_offset - tail.start_offset, 0) for tail in self.partitions)
        return f"{verb} {counted(len(self.partitions), 'partition')}, {counted(size, 'byte')}, {offsets:,} offsets"

    def to_table(self) -> pa.Table:
        """A row per partition: the lost offsets, the position and size of the cut, and the reason."""
        return table_of_rows([_row(tail) for tail in self.partitions], _TABLE)

    def to_dict(self) -> dict[str, Any]:
        """The totals, and the rows of the table."""
        rows = [_row(tail) for tail in self.partitions]
        summary = {"version": self.version, "dry_run": self.dry_run}
        return {**summary, "bytes": sum(row["bytes"] for row in rows), "partitions": rows}


def _row(tail: TruncatedTail) -> dict[str, Any]:
    numbers = {name: getattr(tail, "size" if name == "bytes" else name) for name in _NUMBERS}
    return {**numbers, "file": tail.file, "reason": tail.reason.message}
