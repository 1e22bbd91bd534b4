"""Index rebuild: the index files of each segment from its log alone, with every checksum compared.

What is right is left alone: an index made with another `index.interval.bytes` is, unless `force` says otherwise. The
files are replaced where they are, each in one step; only then does a commit tell their new sizes, if they changed, so
whoever reads in between finds an index of the wrong size and scans. A transaction index cannot be made from one
segment, since a transaction may begin in another: it is checked, and kept.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from crc32c import crc32c

from distlog.core.commits.actions import Action, Add, Remove
from distlog.core.commits.commit_log import CommitLog
from distlog.core.commits.segment_info import SegmentInfo
from distlog.core.commits.snapshot import Snapshot
from distlog.core.config import TopicConfig
from distlog.core.errors import CorruptRecordError, SnapshotTooOldError
from distlog.core.indexes.index_builder import IndexBuilder
from distlog.core.maintenance.each_segment import Tell, each_segment, tell_nobody
from distlog.core.maintenance.index_files import SIZES, IndexFile, State, find_indexes
from distlog.core.segments.segment import SegmentReader
from distlog.core.segments.slices import SegmentSlice

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
class RebuiltIndexes:
    """What was found of a segment's index files, and those that must be written, by suffix.

    `error` says why the log itself cannot be trusted; nothing is written then.
    """

    segment: SegmentInfo
    found: Mapping[str, State]
    files: Mapping[str, bytes]
    error: str | None = None


@dataclass(frozen=True, slots=True)
class SegmentRebuild:
    """What became of one segment: what was found, and the sizes of the index files that were written, by suffix."""

    segment: SegmentInfo
    found: Mapping[str, State]
    written: Mapping[str, int]
    error: str | None = None

    @property
    def ok(self) -> bool:
        """Whether all indexes are right now."""
        return self.error is None and self.found[".txnindex"] == "fine"

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


@dataclass(frozen=True, slots=True)
class RebuildReport:
    """Every segment that was looked at; with `dry_run`, what was written is what would be."""

    version: int
    segments: tuple[SegmentRebuild, ...]
    dry_run: bool

    @property
    def ok(self) -> bool:
        """Whether all indexes of the topic are right now."""
        return all(segment.ok for segment in self.segments)

    @property
    def rebuilt(self) -> tuple[SegmentRebuild, ...]:
        """The segments of which an index file was written."""
        return tuple(segment for segment in self.segments if segment.written)

    def __str__(self) -> str:
        size = sum(sum(each.written.values()) for each in self.rebuilt)
        verb = "would rebuild" if self.dry_run else "rebuilt"
        damaged = sum(not each.ok for each in self.segments)
        rest = f"; {damaged:,} cannot be rebuilt" if damaged else ""
        return f"{verb} the indexes of {len(self.rebuilt):,} of {len(self.segments):,} segments, {size:,} bytes{rest}"

    def to_table(self) -> pa.Table:
        """A row per segment, by partition and base offset."""
        return pa.Table.from_pylist([segment.row() for segment in self.segments], _REPORT)

    def to_dict(self) -> dict[str, Any]:
        """The sums, and a row for each segment that was not fine."""
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


def rebuild_segment(
    reader: SegmentReader, segment: SegmentInfo, config: TopicConfig, *, force: bool = False
) -> RebuiltIndexes:
    """The index files that the segment should have, made from its log; only those that must be written.

    With `force` these are all that differ from what the topic's config gives today. Nothing is written here. Memory
    is a few chunks of the log, and the indexes.
    """
    indexes = find_indexes(reader, segment)
    builder = IndexBuilder(config.index_interval_bytes)
    try:
        _walk(reader, segment, builder, indexes)
    except (CorruptRecordError, SnapshotTooOldError) as error:
        return RebuiltIndexes(segment, {index.suffix: index.state for index in indexes}, {}, str(error))
    files = builder.finish()
    for index in indexes:
        index.finish()
        if index.state == "fine" and not index.data and files.get(index.suffix):
            index.state = "missing"
    found = {index.suffix: index for index in indexes}
    wrong = {
        suffix: data
        for suffix, data in files.items()
        if found[suffix].data != data and (force or found[suffix].state != "fine")
    }
    return RebuiltIndexes(segment, {index.suffix: index.state for index in indexes}, wrong)


def _walk(reader: SegmentReader, segment: SegmentInfo, builder: IndexBuilder, indexes: Sequence[IndexFile]) -> None:
    position = crc = 0
    # a time index has the times that are in the log, also where the commit gave another
    stored = dataclasses.replace(segment, append_time_ms=-1)
    for chunk in reader.chunks(SegmentSlice(stored, segment.base_offset, segment.next_offset, 0, segment.log_bytes)):
        chunk.check()
        crc = crc32c(chunk.data, crc)
        builder.add(chunk.batches, chunk.batches["base_offset"] - segment.stored_base_offset, position)
        for index in indexes:
            index.add(chunk.batches, position)
        position += len(chunk.data)
    if (position, crc) != (segment.log_bytes, segment.crc32c):
        raise CorruptRecordError(
            "the log file is not the one that was committed: verify, then restore it from a copy",
            file=reader.name(segment),
            partition=segment.partition,
        )


def write_indexes(reader: SegmentReader, rebuilt: RebuiltIndexes, *, dry_run: bool = False) -> SegmentRebuild:
    """Replace the segment's files by those of `rebuilt`; an index that is empty now is only forgotten."""
    if not dry_run:
        names = {reader.name(rebuilt.segment, suffix): data for suffix, data in rebuilt.files.items() if data}
        reader.storage.put_many(names)
        reader.forget_indexes(rebuilt.segment)
    sizes = {suffix: len(data) for suffix, data in rebuilt.files.items()}
    return SegmentRebuild(rebuilt.segment, rebuilt.found, sizes, rebuilt.error)


def rebuild_segments(
    reader: SegmentReader, snapshot: Snapshot, *, force: bool = False, dry_run: bool = False, tell: Tell = tell_nobody
) -> Iterator[SegmentRebuild]:
    """Rebuild the indexes of every segment, without the commit that tells new sizes."""

    def rebuild(reader: SegmentReader, segment: SegmentInfo) -> SegmentRebuild:
        rebuilt = rebuild_segment(reader, segment, snapshot.config, force=force)
        return write_indexes(reader, rebuilt, dry_run=dry_run)

    return each_segment(reader, snapshot, rebuild, tell)


def commit_sizes(log: CommitLog, snapshot: Snapshot, rebuilt: Sequence[SegmentRebuild]) -> Snapshot:
    """Tell the new sizes of index files, of the segments that are still live, in one commit if there is any."""

    def plan(current: Snapshot) -> list[Action] | None:
        return [action for each in rebuilt for action in _resize(current, each)] or None

    _, after = log.commit(snapshot, "rebuild", plan)
    return after


def _resize(snapshot: Snapshot, rebuilt: SegmentRebuild) -> list[Action]:
    partition = rebuilt.segment.partition
    now = live_segment(snapshot, rebuilt.segment)
    if now is None or not rebuilt.written:
        return []
    sizes: dict[str, Any] = {SIZES[suffix]: size for suffix, size in rebuilt.written.items()}
    resized = dataclasses.replace(now, **sizes)
    return [] if resized == now else [Remove(partition, now.stem), Add(resized)]


def live_segment(snapshot: Snapshot, segment: SegmentInfo) -> SegmentInfo | None:
    """The segment as `snapshot` knows it, or None where it is not live any more."""
    table = snapshot.partitions[segment.partition].segments
    index = table.find(segment.base_offset)
    return table[index] if index < len(table) and table[index].stem == segment.stem else None


def rebuild_indexes(
    reader: SegmentReader,
    log: CommitLog,
    snapshot: Snapshot,
    *,
    force: bool = False,
    dry_run: bool = False,
    tell: Tell = tell_nobody,
) -> tuple[RebuildReport, Snapshot]:
    """Make the index files of all segments right; what was found and done, and the new state.

    With `force` every index becomes what the topic's config gives today. A segment whose log is damaged is reported
    and left as it is; `tell` gets the records and log bytes of each that is done. Raises CommitStateUnknownError; the
    indexes are right then, their sizes perhaps not yet told.
    """
    snapshot = log.refresh(snapshot)
    rebuilt = list(rebuild_segments(reader, snapshot, force=force, dry_run=dry_run, tell=tell))
    return finish_rebuild(log, snapshot, rebuilt, dry_run=dry_run)


def finish_rebuild(
    log: CommitLog, snapshot: Snapshot, rebuilt: Sequence[SegmentRebuild], *, dry_run: bool = False
) -> tuple[RebuildReport, Snapshot]:
    """What follows when all segments were looked at, wherever: tell the new sizes, and report."""
    after = snapshot if dry_run else commit_sizes(log, snapshot, rebuilt)
    if any(each.error for each in rebuilt):
        # what was removed and vacuumed meanwhile is not damaged
        after = log.refresh(after)
        rebuilt = [each for each in rebuilt if not each.error or live_segment(after, each.segment)]
    return RebuildReport(after.version, tuple(rebuilt), dry_run), after
