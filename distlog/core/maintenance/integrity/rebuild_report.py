"""The reports of an index rebuild: what it found and did, for each segment and for a topic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from distlog.core.commits.format.segment_info import SegmentInfo
from distlog.core.display.shown import Shown
from distlog.core.display.units import counted
from distlog.core.maintenance.integrity.index_files import State

_REPORT = pa.schema(
    [
        ("partition", pa.int64()),
        ("base_offset", pa.int64()),
        ("stem", pa.string()),
        ("log_bytes", pa.int64()),
        ("offset_index", pa.string()),
        ("time_index", pa.string()),
        ("transaction_index", pa.string()),
        ("files_written", pa.int64()),
        ("bytes_written", pa.int64()),
        ("error", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class SegmentRebuild:
    """The rebuild of one segment: the states found, and the sizes of the index files written, both by suffix.

    `facts` are the right values of SegmentInfo's fields about the index files and the log.
    """

    segment: SegmentInfo
    found: Mapping[str, State]
    written: Mapping[str, int]
    facts: Mapping[str, int]
    error: str | None = None

    @property
    def ok(self) -> bool:
        """Whether all indexes are right now."""
        return self.error is None and (self.found[".txnindex"] == "fine" or ".txnindex" in self.written)

    def row(self) -> dict[str, Any]:
        """The row of `RebuildReport.to_table`."""
        return {
            **{name: getattr(self.segment, name) for name in ("partition", "base_offset", "stem", "log_bytes")},
            "offset_index": self.found[".index"],
            "time_index": self.found[".timeindex"],
            "transaction_index": self.found[".txnindex"],
            "files_written": len(self.written),
            "bytes_written": sum(self.written.values()),
            "error": self.error,
        }


@dataclass(frozen=True, slots=True, repr=False)
class RebuildReport(Shown):
    """The rebuild of every segment of a topic; with `dry_run`, `written` is what would be written."""

    version: int
    segments: tuple[SegmentRebuild, ...]
    dry_run: bool

    @property
    def ok(self) -> bool:
        """Whether all indexes of the topic are right now."""
        return all(segment.ok for segment in self.segments)

    @property
    def rebuilt(self) -> tuple[SegmentRebuild, ...]:
        """The segments that got a new index file."""
        return tuple(segment for segment in self.segments if segment.written)

    def __str__(self) -> str:
        size = sum(sum(each.written.values()) for each in self.rebuilt)
        verb = "would rebuild" if self.dry_run else "rebuilt"
        damaged = sum(not each.ok for each in self.segments)
        rest = f"; {damaged:,} cannot be rebuilt" if damaged else ""
        segments = f"{len(self.rebuilt):,} of {counted(len(self.segments), 'segment')}"
        return f"{verb} the indexes of {segments}, {counted(size, 'byte')}{rest}"

    def to_table(self) -> pa.Table:
        """A row per segment, by partition and base offset."""
        return pa.Table.from_pylist([segment.row() for segment in self.segments], _REPORT)

    def to_dict(self) -> dict[str, Any]:
        """The totals, and a row for each segment that was not fine."""
        rows = self.to_table().to_pylist()
        return {
            "version": self.version,
            "dry_run": self.dry_run,
            "ok": self.ok,
            "segments_checked": len(rows),
            "segments_rebuilt": len(self.rebuilt),
            "bytes_checked": sum(row["log_bytes"] for row in rows),
            "bytes_written": sum(row["bytes_written"] for row in rows),
            "segments": [row for row, each in zip(rows, self.segments, strict=True) if each.written or not each.ok],
        }
