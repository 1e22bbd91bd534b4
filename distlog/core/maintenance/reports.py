"""Reports of retention, delete-records and merging: as text for a person, as a table, and as JSON."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from distlog.core.config import TopicConfig
from distlog.core.display.shown import Shown
from distlog.core.display.units import counted
from distlog.core.maintenance.merge_plan import MergeGroup
from distlog.core.maintenance.restore import PartitionRestore
from distlog.core.maintenance.retention import PartitionRetention
from distlog.core.times import iso

_RETENTION = (
    *("partition", "segments", "bytes", "records"),
    *("below_log_start", "above_size", "too_old", "log_start_offset"),
)
_RESTORE = ("partition", "segments", "records", "bytes", "lost", "offsets", "log_start_offset")
_MERGE = ("partition", "segments_before", "segments_after", "bytes", "records")


@dataclass(frozen=True, slots=True, repr=False)
class RetentionReport(Shown):
    """What retention deleted, or would delete with `dry_run`. Holds only the partitions that lose something."""

    version: int
    partitions: tuple[PartitionRetention, ...]
    dry_run: bool
    config: TopicConfig = field(default_factory=TopicConfig)

    def __str__(self) -> str:
        sums = _sums(self._rows(), "segments", "bytes", "records")
        verb = "would delete" if self.dry_run else "deleted"
        return "; ".join([f"{verb} {', '.join(counted(n, name[:-1]) for name, n in sums.items())}", *self._reasons()])

    def _reasons(self) -> Iterator[str]:
        """How many segments go by which rule, and why."""
        sums = _sums(self._rows(), "too_old", "above_size", "below_log_start")
        if sums["too_old"]:
            newest = iso(max(one.newest_ms for one in self.partitions))
            yield f"{sums['too_old']:,} by retention.ms={self.config.retention_ms} (the newest record is of {newest})"
        if sums["above_size"]:
            yield f"{sums['above_size']:,} by retention.bytes={self.config.retention_bytes}"
        if sums["below_log_start"]:
            yield f"{sums['below_log_start']:,} below the log start offset, where records were deleted"

    def to_table(self) -> pa.Table:
        """A row per partition that loses something: what it loses, segments by rule, its new log start offset."""
        return _table(self._rows(), _RETENTION)

    def to_dict(self) -> dict[str, Any]:
        """The totals, and the rows of the table."""
        rows = self._rows()
        sums = _sums(rows, "segments", "bytes", "records")
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
        sums = _sums(self._rows(), "segments", "records", "bytes", "lost")
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
        return _table(self._rows(), _RESTORE)

    def to_dict(self) -> dict[str, Any]:
        """The totals, and the rows of the table."""
        rows = self._rows()
        facts = {"version": self.version, "restored": self.restored, "dry_run": self.dry_run, "expired": self.expired}
        return {**facts, **_sums(rows, "segments", "records", "bytes", "lost", "offsets"), "partitions": rows}

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
        return _table(self._rows(), ("partition", "log_start_offset"))

    def to_dict(self) -> dict[str, Any]:
        """The version, and the rows of the table."""
        return {"version": self.version, "partitions": self._rows()}

    def _rows(self) -> list[dict[str, int]]:
        starts = self.log_start_offsets.items()
        return [{"partition": number, "log_start_offset": offset} for number, offset in starts]


@dataclass(frozen=True, slots=True)
class Unmergeable:
    """A group that cannot be merged, and why. It stays as it is, and the other groups are merged without it."""

    partition: int
    base_offset: int
    next_offset: int
    reason: str

    def __str__(self) -> str:
        offsets = f"offsets {self.base_offset:,} to {self.next_offset:,}"
        return f"cannot merge {offsets} of partition {self.partition}: {self.reason}"


@dataclass(frozen=True, slots=True, repr=False)
class MergeReport(Shown):
    """The groups that were merged into one segment each, or would be with `dry_run`, and the groups that failed.

    `backlog` says how far merging is behind: the segments of `version` that are worth merging, as those that came
    meanwhile. `most_segments` is how many the partition with the most of them has.
    """

    version: int
    groups: tuple[MergeGroup, ...]
    dry_run: bool
    failed: tuple[Unmergeable, ...] = ()
    backlog: int = 0
    most_segments: int = 0

    @property
    def ok(self) -> bool:
        """Whether every group that was worth it could be merged."""
        return not self.failed

    def __str__(self) -> str:
        sums = _sums(self._rows(), "segments_before", "segments_after", "bytes")
        verb = "would merge" if self.dry_run else "merged"
        merged = f"{counted(sums['segments_before'], 'segment')} into {sums['segments_after']:,}"
        behind = [f"{counted(self.backlog, 'segment')} left to merge"] if self.backlog and not self.dry_run else []
        return "; ".join([f"{verb} {merged}, {counted(sums['bytes'], 'byte')}", *behind, *map(str, self.failed)])

    def to_table(self) -> pa.Table:
        """A row per partition with merged segments; it counts only these segments."""
        return _table(self._rows(), _MERGE)

    def to_dict(self) -> dict[str, Any]:
        """The totals, the rows of the table, and the groups that cannot be merged."""
        rows, facts = self._rows(), {"version": self.version, "ok": self.ok, "dry_run": self.dry_run}
        facts |= {"backlog": self.backlog, "most_segments": self.most_segments}
        failed = [dataclasses.asdict(one) for one in self.failed]
        return {**facts, **_sums(rows, *_MERGE[1:]), "partitions": rows, "failed": failed}

    def _rows(self) -> list[dict[str, int]]:
        groups: dict[int, list[MergeGroup]] = defaultdict(list)
        for group in self.groups:
            groups[group.partition].append(group)
        return [
            {
                "partition": partition,
                "segments_before": sum(len(group.segments) for group in each),
                "segments_after": len(each),
                "bytes": sum(group.log_bytes for group in each),
                "records": sum(group.records for group in each),
            }
            for partition, each in sorted(groups.items())
        ]


def _sums(rows: list[dict[str, int]], *names: str) -> dict[str, int]:
    return {name: sum(row[name] for row in rows) for name in names}


def _table(rows: list[dict[str, int]], names: tuple[str, ...]) -> pa.Table:
    return pa.Table.from_pylist(rows, pa.schema([(name, pa.int64()) for name in names]))
