"""Repair: cuts active segments where a damage begins that no crash explains, and says what is gone.

Appends refuse such a log, and change nothing: acknowledged records are never cut automatically. To bring the file
back is better, since the offsets that are cut off are given again. A sealed segment is not repaired but restored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from distlog.core.arrays import table_of_rows
from distlog.core.commits.current_snapshot import CurrentSnapshot
from distlog.core.commits.snapshot import Snapshot
from distlog.core.display import Shown, counted
from distlog.core.log.active_partition import ActivePartition, TruncatedTail
from distlog.core.segments.topic_handle import TopicHandle

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
        size = sum(lost.size for lost in self.partitions)
        offsets = sum(max(lost.end_offset - lost.start_offset, 0) for lost in self.partitions)
        return f"{verb} {counted(len(self.partitions), 'partition')}, {counted(size, 'byte')}, {offsets:,} offsets"

    def to_table(self) -> pa.Table:
        """A row per partition: the offsets that are gone, where its log was cut, how many bytes, and why."""
        return table_of_rows([_row(lost) for lost in self.partitions], _TABLE)

    def to_dict(self) -> dict[str, Any]:
        """The totals, and the rows of the table."""
        rows = [_row(lost) for lost in self.partitions]
        facts = {"version": self.version, "dry_run": self.dry_run}
        return {**facts, "bytes": sum(row["bytes"] for row in rows), "partitions": rows}


def _row(lost: TruncatedTail) -> dict[str, Any]:
    facts = {name: getattr(lost, "size" if name == "bytes" else name) for name in _NUMBERS}
    return {**facts, "file": lost.file, "reason": lost.reason.message}


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
                lost = partition.repair(dry_run=dry_run)
        finally:
            partition.close()
        if lost is not None:
            truncated_tails.append(lost)
    return RepairReport(snapshots.snapshot.version, tuple(truncated_tails), dry_run), snapshots.snapshot
