"""What merging did: as text for a person, as a table, and as JSON."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from distlog.core.display.shown import Shown
from distlog.core.display.units import counted
from distlog.core.maintenance.merging.merge_plan import MergeGroup
from distlog.core.maintenance.report_rows import sums_of, table_of

_MERGE = ("partition", "segments_before", "segments_after", "bytes", "records")


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
        sums = sums_of(self._rows(), "segments_before", "segments_after", "bytes")
        verb = "would merge" if self.dry_run else "merged"
        merged = f"{counted(sums['segments_before'], 'segment')} into {sums['segments_after']:,}"
        behind = [f"{counted(self.backlog, 'segment')} left to merge"] if self.backlog and not self.dry_run else []
        return "; ".join([f"{verb} {merged}, {counted(sums['bytes'], 'byte')}", *behind, *map(str, self.failed)])

    def to_table(self) -> pa.Table:
        """A row per partition with merged segments; it counts only these segments."""
        return table_of(self._rows(), _MERGE)

    def to_dict(self) -> dict[str, Any]:
        """The totals, the rows of the table, and the groups that cannot be merged."""
        rows, facts = self._rows(), {"version": self.version, "ok": self.ok, "dry_run": self.dry_run}
        facts |= {"backlog": self.backlog, "most_segments": self.most_segments}
        failed = [dataclasses.asdict(one) for one in self.failed]
        return {**facts, **sums_of(rows, *_MERGE[1:]), "partitions": rows, "failed": failed}

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
