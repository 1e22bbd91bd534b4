"""The reports of maintenance, and how they are shown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from distlog.core.arrays import table_of_numbers
from distlog.core.config import TopicConfig
from distlog.core.display import Shown, counted
from distlog.core.maintain.restore import PartitionRestore
from distlog.core.maintain.retention import PartitionRetention
from distlog.core.times import iso


def sums_of(rows: list[dict[str, int]], *names: str) -> dict[str, int]:
    return {name: sum(row[name] for row in rows) for name in names}


_RETENTION = (
    *("partition", "segments", "bytes", "records"),
    *("below_log_start", "above_size", "too_old", "log_start_offset"),
)
_RESTORE = ("partition", "segments", "records", "bytes", "lost", "offsets", "log_start_offset")


def _rows_of(plans: Iterable[PartitionRetention | PartitionRestore], names: Sequence[str]) -> list[dict[str, int]]:
    """The plans of partitions as rows of numbers by these names, with the number of their segments."""
    fields = {"bytes": "log_bytes", "lost": "lost_segments"}
    rows = [{name: getattr(plan, fields.get(name, name)) for name in names} for plan in plans]
    return [{**row, "segments": len(row["segments"])} for row in rows]


@dataclass(frozen=True, slots=True, repr=False)
class RetentionReport(Shown):
    """The segments that retention deleted, or would delete with `dry_run`. Holds only partitions that lose some."""

    version: int
    partitions: tuple[PartitionRetention, ...]
    dry_run: bool
    config: TopicConfig = field(default_factory=TopicConfig)

    def __str__(self) -> str:
        sums = sums_of(self._rows(), "segments", "bytes", "records")
        verb = "would delete" if self.dry_run else "deleted"
        return "; ".join([f"{verb} {', '.join(counted(n, name[:-1]) for name, n in sums.items())}", *self._reasons()])

    def _reasons(self) -> Iterator[str]:
        """Name each rule, the number of segments that go by it, and the reason."""
        sums = sums_of(self._rows(), "too_old", "above_size", "below_log_start")
        if sums["too_old"]:
            newest = iso(max(partition.newest_ms for partition in self.partitions))
            yield f"{sums['too_old']:,} by retention.ms={self.config.retention_ms} (the newest record is of {newest})"
        if sums["above_size"]:
            yield f"{sums['above_size']:,} by retention.bytes={self.config.retention_bytes}"
        if sums["below_log_start"]:
            yield f"{sums['below_log_start']:,} below the log start offset, where records were deleted"

    def to_table(self) -> pa.Table:
        """A row per partition that loses something: its losses, segments by rule, its new log start offset."""
        return table_of_numbers(self._rows(), _RETENTION)

    def to_dict(self) -> dict[str, Any]:
        """The totals, and the rows of the table."""
        rows = self._rows()
        sums = sums_of(rows, "segments", "bytes", "records")
        limits = {name: self.config.all()[name] for name in ("retention.ms", "retention.bytes")}
        return {"version": self.version, "dry_run": self.dry_run, **sums, "config": limits, "partitions": rows}

    def _rows(self) -> list[dict[str, int]]:
        return _rows_of(self.partitions, (*_RETENTION[:-1], "newest_ms", _RETENTION[-1]))


@dataclass(frozen=True, slots=True, repr=False)
class RestoreReport(Shown):
    """The segments of version `restored` that came back, or would with `dry_run`."""

    version: int
    restored: int
    partitions: tuple[PartitionRestore, ...]
    expired: int
    dry_run: bool

    def __str__(self) -> str:
        sums = sums_of(self._rows(), "segments", "records", "bytes", "lost")
        missing, verb = sums.pop("lost"), "would restore" if self.dry_run else "restored"
        parts = [f"{verb} {', '.join(counted(number, name[:-1]) for name, number in sums.items())}"]
        uncut = [plan.offsets for plan in self.partitions if plan.offsets and not plan.segments]
        if uncut:
            where = f"{counted(sum(uncut), 'offset')} of {counted(len(uncut), 'partition')}"
            parts.append(f"{where} can be read again: only the log start had moved")
        if missing:
            reasons = "their files were deleted, or they were merged into segments that have later records"
            reasons += ", or some of their keys were deleted later, and compaction dropped the deletes"
            parts.append(f"{counted(missing, 'segment')} cannot come back: {reasons}")
        if self.partitions == ():
            parts = [f"nothing to restore: version {self.restored} had no record that is not there"]
        if self.expired:
            segments = counted(self.expired, "segment")
            parts.append(f"the next retention deletes {segments}: first set retention.ms and retention.bytes higher")
        return "; ".join(parts)

    def to_table(self) -> pa.Table:
        """A row per partition: segments that came back or did not, offsets above the log start again, and it."""
        return table_of_numbers(self._rows(), _RESTORE)

    def to_dict(self) -> dict[str, Any]:
        """The totals, and the rows of the table."""
        rows = self._rows()
        fields = {
            "version": self.version,
            "restored": self.restored,
            "dry_run": self.dry_run,
            "expired": self.expired,
        }
        return {**fields, **sums_of(rows, "segments", "records", "bytes", "lost", "offsets"), "partitions": rows}

    def _rows(self) -> list[dict[str, int]]:
        return _rows_of(self.partitions, _RESTORE)


@dataclass(frozen=True, slots=True, repr=False)
class DeleteRecordsReport(Shown):
    """The new log start offsets of the partitions in the request: {partition: log start offset}."""

    version: int
    log_start_offsets: Mapping[int, int]

    def __str__(self) -> str:
        starts = (f"partition {number} starts at {offset}" for number, offset in self.log_start_offsets.items())
        return ", ".join(starts) or "nothing was asked for"

    def to_table(self) -> pa.Table:
        """A row per partition."""
        return table_of_numbers(self._rows(), ("partition", "log_start_offset"))

    def to_dict(self) -> dict[str, Any]:
        """The version, and the rows of the table."""
        return {"version": self.version, "partitions": self._rows()}

    def _rows(self) -> list[dict[str, int]]:
        starts = self.log_start_offsets.items()
        return [{"partition": number, "log_start_offset": offset} for number, offset in starts]
