"""Reports of retention, restore and delete-records: as text for a person, as a table, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from distlog.core.config import TopicConfig
from distlog.core.display.shown import Shown
from distlog.core.display.units import counted
from distlog.core.maintenance.report_rows import sums_of, table_of
from distlog.core.maintenance.restore import PartitionRestore
from distlog.core.maintenance.retention import PartitionRetention
from distlog.core.times import iso

_RETENTION = (
    *("partition", "segments", "bytes", "records"),
    *("below_log_start", "above_size", "too_old", "log_start_offset"),
)
_RESTORE = ("partition", "segments", "records", "bytes", "lost", "offsets", "log_start_offset")


@dataclass(frozen=True, slots=True, repr=False)
class RetentionReport(Shown):
    """What retention deleted, or would delete with `dry_run`. Holds only the partitions that lose something."""

    version: int
    partitions: tuple[PartitionRetention, ...]
    dry_run: bool
    config: TopicConfig = field(default_factory=TopicConfig)

    def __str__(self) -> str:
        sums = sums_of(self._rows(), "segments", "bytes", "records")
        verb = "would delete" if self.dry_run else "deleted"
        return "; ".join([f"{verb} {', '.join(counted(n, name[:-1]) for name, n in sums.items())}", *self._reasons()])

    def _reasons(self) -> Iterator[str]:
        """How many segments go by which rule, and why."""
        sums = sums_of(self._rows(), "too_old", "above_size", "below_log_start")
        if sums["too_old"]:
            newest = iso(max(one.newest_ms for one in self.partitions))
            yield f"{sums['too_old']:,} by retention.ms={self.config.retention_ms} (the newest record is of {newest})"
        if sums["above_size"]:
            yield f"{sums['above_size']:,} by retention.bytes={self.config.retention_bytes}"
        if sums["below_log_start"]:
            yield f"{sums['below_log_start']:,} below the log start offset, where records were deleted"

    def to_table(self) -> pa.Table:
        """A row per partition that loses something: what it loses, segments by rule, its new log start offset."""
        return table_of(self._rows(), _RETENTION)

    def to_dict(self) -> dict[str, Any]:
        """The totals, and the rows of the table."""
        rows = self._rows()
        sums = sums_of(rows, "segments", "bytes", "records")
        limits = {name: self.config.all()[name] for name in ("retention.ms", "retention.bytes")}
        return {"version": self.version, "dry_run": self.dry_run, **sums, "config": limits, "partitions": rows}

    def _rows(self) -> list[dict[str, int]]:
        return [
            {
                "partition": each.partition,
                "segments": len(each.segments),
                "bytes": each.log_bytes,
                "records": each.records,
                "below_log_start": each.below_log_start,
                "above_size": each.above_size,
                "too_old": each.too_old,
                "newest_ms": each.newest_ms,
                "log_start_offset": each.log_start_offset,
            }
            for each in self.partitions
        ]


@dataclass(frozen=True, slots=True, repr=False)
class RestoreReport(Shown):
    """What came back of version `restored`, or would with `dry_run`.

    `expired` counts the segments that retention would delete now, among them perhaps those that came back.
    """

    version: int
    restored: int
    partitions: tuple[PartitionRestore, ...]
    expired: int
    dry_run: bool

    def __str__(self) -> str:
        sums = sums_of(self._rows(), "segments", "records", "bytes", "lost")
        lost, verb = sums.pop("lost"), "would restore" if self.dry_run else "restored"
        parts = [f"{verb} {', '.join(counted(number, name[:-1]) for name, number in sums.items())}"]
        uncut = [one.offsets for one in self.partitions if one.offsets and not one.segments]
        if uncut:
            where = f"{counted(sum(uncut), 'offset')} of {counted(len(uncut), 'partition')}"
            parts.append(f"{where} can be read again: only the log start was ahead of them")
        if lost:
            why = "the files are gone, or what they were merged into stays, since it holds later records too"
            parts.append(f"{counted(lost, 'segment')} cannot come back: {why}")
        if self.partitions == ():
            parts = [f"nothing to restore: version {self.restored} had no record that is not there"]
        if self.expired:
            segments = counted(self.expired, "segment")
            parts.append(f"the next retention deletes {segments}: first set retention.ms and retention.bytes higher")
        return "; ".join(parts)

    def to_table(self) -> pa.Table:
        """A row per partition: what came back, segments that did not, offsets above the log start again, and it."""
        return table_of(self._rows(), _RESTORE)

    def to_dict(self) -> dict[str, Any]:
        """The totals, and the rows of the table."""
        rows = self._rows()
        facts = {"version": self.version, "restored": self.restored, "dry_run": self.dry_run, "expired": self.expired}
        return {**facts, **sums_of(rows, "segments", "records", "bytes", "lost", "offsets"), "partitions": rows}

    def _rows(self) -> list[dict[str, int]]:
        return [
            {
                "partition": each.partition,
                "segments": len(each.segments),
                "records": each.records,
                "bytes": each.log_bytes,
                "lost": each.lost,
                "offsets": each.offsets,
                "log_start_offset": each.log_start_offset,
            }
            for each in self.partitions
        ]


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
        return table_of(self._rows(), ("partition", "log_start_offset"))

    def to_dict(self) -> dict[str, Any]:
        """The version, and the rows of the table."""
        return {"version": self.version, "partitions": self._rows()}

    def _rows(self) -> list[dict[str, int]]:
        starts = self.log_start_offsets.items()
        return [{"partition": number, "log_start_offset": offset} for number, offset in starts]
