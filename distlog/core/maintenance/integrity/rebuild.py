"""Index rebuild: makes the index files of each segment from its log alone, and compares every checksum of the log.

An index that is right is left alone, even one of another `index.interval.bytes` unless `force` is given. Each file is
replaced in one step, under its old name; an index in a bundle gets a file instead. Then a commit records the new
sizes, checksums and places, and facts of the log that no commit recorded before. A reader in between finds an index
with an unexpected checksum and scans the log instead.
Transaction indexes are made from the logs of the whole partition, since a transaction may begin in another segment.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from crc32c import crc32c

from distlog.core.commits.format.actions import Action, Add, Remove
from distlog.core.commits.format.segment_info import OWN_FILE, UNKNOWN, SegmentInfo
from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.config import TopicConfig
from distlog.core.errors import CorruptRecordError, SnapshotTooOldError
from distlog.core.maintenance.integrity.index_files import IndexFile, State, find_indexes
from distlog.core.maintenance.integrity.rebuild_report import RebuildReport, SegmentRebuild
from distlog.core.maintenance.integrity.transaction_rebuild import rebuild_transactions
from distlog.core.maintenance.run import Run, Tell, each_segment, run_here, tell_nothing
from distlog.core.reading.files.segment_reader import SegmentReader
from distlog.core.reading.whole_log import whole_log
from distlog.core.segments.index_facts import INDEX_FIELDS, index_checksum, index_facts, index_size
from distlog.core.segments.log_description import LogDescription
from distlog.core.topic_handle import TopicHandle


@dataclass(frozen=True, slots=True)
class RebuiltIndexes:
    """The state of a segment's index files (`found`), and the `files` that must be written, both by suffix.

    `facts` are fields of SegmentInfo as they should be after the write, whether they change or not. `error` says why
    the log itself cannot be trusted; then nothing is written.
    """

    segment: SegmentInfo
    found: Mapping[str, State]
    files: Mapping[str, bytes]
    facts: Mapping[str, int]
    error: str | None = None


def rebuild_segment(
    reader: SegmentReader, segment: SegmentInfo, config: TopicConfig, *, force: bool = False
) -> RebuiltIndexes:
    """Make the index files that the segment should have from its log; returns only those that must be written.

    With `force` these are all files that differ from what the topic's present config gives. Nothing is written here.
    Memory is a few chunks of the log, and the indexes.
    """
    indexes = find_indexes(reader, segment)
    log = LogDescription(segment.stored_base_offset, interval_bytes=config.index_interval_bytes)
    try:
        _walk(reader, segment, log, indexes)
    except (CorruptRecordError, SnapshotTooOldError) as error:
        return RebuiltIndexes(segment, {index.suffix: index.state for index in indexes}, {}, {}, str(error))
    files = log.finish()
    for index in indexes:
        index.finish()
        if index.state == "fine" and not index.data and files.get(index.suffix):
            index.state = "missing"
    found = {index.suffix: index for index in indexes}
    changed = {name: data for name, data in files.items() if force or found[name].state != "fine"}
    wrong = {name: data for name, data in changed.items() if _must_be_written(segment, found[name], data)}
    facts = _ends(log) | index_facts({name: wrong.get(name, found[name].data) for name in files})
    facts |= _places(segment, files, wrong)
    return RebuiltIndexes(segment, {index.suffix: index.state for index in indexes}, wrong, facts)


def _walk(reader: SegmentReader, segment: SegmentInfo, log: LogDescription, indexes: Sequence[IndexFile]) -> None:
    position = 0
    # a time index has the times in the log, even if the commit gave the records another time
    for chunk in whole_log(reader, dataclasses.replace(segment, append_time_ms=-1)):
        log.add(chunk.data, chunk.batches)
        for index in indexes:
            index.add(chunk.batches, position)
        position += len(chunk.data)


def _ends(log: LogDescription) -> dict[str, int]:
    """The SegmentInfo fields that tell this log from others; none if it is empty."""
    state = log.state
    if state.batches == 0:
        return {}
    return {"first_batch_crc": state.first_batch_crc, "last_batch_crc": state.last_batch_crc}


def _places(segment: SegmentInfo, suffixes: Iterable[str], written: Container[str]) -> dict[str, int]:
    """The fields of SegmentInfo that say where the indexes are: those `written` are files, the others stay."""
    fields = [(suffix, field) for suffix in suffixes if (field := INDEX_FIELDS[suffix].position)]
    return {field: OWN_FILE if suffix in written else getattr(segment, field) for suffix, field in fields}


def _must_be_written(segment: SegmentInfo, index: IndexFile, data: bytes) -> bool:
    """Whether the file differs from `data`, its right content, or from the size or checksum that its segment has."""
    known = index_size(segment, index.suffix), index_checksum(segment, index.suffix)
    return index.data != data or known not in ((len(data), crc32c(data)), (len(data), UNKNOWN))


def write_indexes(reader: SegmentReader, rebuilt: RebuiltIndexes, *, dry_run: bool = False) -> SegmentRebuild:
    """Replace the segment's index files by those of `rebuilt`; an empty index is forgotten, not written."""
    if not dry_run:
        facts: dict[str, Any] = {**rebuilt.facts}
        after = dataclasses.replace(rebuilt.segment, **facts)
        names = {reader.name(after, suffix): data for suffix, data in rebuilt.files.items() if data}
        reader.storage.put_many(names)
        reader.forget_indexes(rebuilt.segment)
    sizes = {suffix: len(data) for suffix, data in rebuilt.files.items()}
    return SegmentRebuild(rebuilt.segment, rebuilt.found, sizes, rebuilt.facts, rebuilt.error)


def rebuild_segments(
    handle: TopicHandle,
    snapshot: Snapshot,
    run: Run | None = None,
    *,
    force: bool = False,
    dry_run: bool = False,
    tell: Tell = tell_nothing,
) -> Iterator[SegmentRebuild]:
    """Rebuild the indexes of every segment, without the commit that records the new sizes and checksums."""
    work = partial(_rebuild, handle.reader, config=snapshot.config, force=force, dry_run=dry_run)
    return each_segment(run or run_here(handle.storage), work, snapshot, tell)


def _rebuild(
    reader: SegmentReader, segment: SegmentInfo, *, config: TopicConfig, force: bool, dry_run: bool
) -> SegmentRebuild:
    return write_indexes(reader, rebuild_segment(reader, segment, config, force=force), dry_run=dry_run)


def commit_facts(handle: TopicHandle, snapshot: Snapshot, rebuilt: Sequence[SegmentRebuild]) -> Snapshot:
    """Record the changed facts of the segments that are still live, in one commit if anything changed."""

    def plan(current: Snapshot) -> list[Action] | None:
        return [action for each in rebuilt for action in _describe(current, each)] or None

    _, after = handle.log.commit(snapshot, "rebuild", plan)
    return after


def _describe(snapshot: Snapshot, rebuilt: SegmentRebuild) -> list[Action]:
    now = live_segment(snapshot, rebuilt.segment)
    if now is None:
        return []
    facts: dict[str, Any] = {**rebuilt.facts}
    described = dataclasses.replace(now, **facts)
    return [] if described == now else [Remove(now.partition, now.stem), Add(described)]


def live_segment(snapshot: Snapshot, segment: SegmentInfo) -> SegmentInfo | None:
    """The segment as it is in `snapshot`, or None if it is no longer live."""
    table = snapshot.partitions[segment.partition].segments
    index = table.find(segment.base_offset)
    return table[index] if index < len(table) and table[index].stem == segment.stem else None


def rebuild_indexes(
    handle: TopicHandle,
    snapshot: Snapshot,
    run: Run | None = None,
    *,
    force: bool = False,
    dry_run: bool = False,
    tell: Tell = tell_nothing,
) -> tuple[RebuildReport, Snapshot]:
    """Make the index files of all segments right; returns the report and the new state.

    With `force` every index becomes what the topic's present config gives. A segment with a damaged log is reported
    and left as it is. `tell` gets the records and log bytes of each segment when it is done. Raises
    CommitStateUnknownError: then the indexes are right, but their sizes and checksums are perhaps not recorded yet.
    """
    after = snapshot = handle.log.refresh(snapshot)
    rebuilt = list(rebuild_segments(handle, snapshot, run, force=force, dry_run=dry_run, tell=tell))
    rebuilt = rebuild_transactions(handle.reader, snapshot, rebuilt, dry_run=dry_run)
    if not dry_run:
        after = commit_facts(handle, snapshot, rebuilt)
    if any(each.error for each in rebuilt):
        # a segment that was removed and vacuumed meanwhile is not damaged
        after = handle.log.refresh(after)
        rebuilt = [each for each in rebuilt if not each.error or live_segment(after, each.segment)]
    return RebuildReport(after.version, tuple(rebuilt), dry_run), after
