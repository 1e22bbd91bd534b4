"""Reads a partition of a broker as the broker loads it: segment by segment, with recovery after a crash.

An import may extend a topic of an earlier import. The topic's log ends at `topic_end` (0 for a new topic), often
within a segment to which the broker has appended since. The import splits this segment at `topic_end`.
"""

from __future__ import annotations

import dataclasses
import itertools
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from distlog.core.arrays import MAX_INT, MAX_LONG, byte_array, numbers_of
from distlog.core.commits.actions import Action, Add, Cleaned, SetLogStartOffset
from distlog.core.commits.deduplication import NONE, ProducerBatch
from distlog.core.commits.segment_table import SegmentInfo
from distlog.core.config import TopicConfig
from distlog.core.errors import CorruptIndexError, CorruptRecordError
from distlog.core.format.indexes import AbortedTransaction, IndexBytes
from distlog.core.format.record_batch import CONTROL, Batches, BatchWalk, Source
from distlog.core.format.record_decoder import BatchSelection, decode, decode_parts
from distlog.core.kafka.log_dir import LogDir
from distlog.core.kafka.partition_folder import (
    FIRST_DIRTY_OFFSETS,
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
    Epochs,
    PartitionFolder,
    PartitionName,
)
from distlog.core.maintain.verify import complete_index
from distlog.core.maintain.verify_segment import CHECKS, IndexCheck
from distlog.core.segments.producer_states import OpenTransactions, ProducerStates, batches_of, read_producer_snapshot
from distlog.core.segments.segment_parts import index_fields_of
from distlog.core.segments.segment_state import LogDescription, RecordStats, UnfitBatchError
from distlog.core.storage.backend import Part
from distlog.core.times import NO_TIMESTAMP

#: The records of batches of old formats are read in parts of about this many decompressed bytes.
_PART_BYTES = 4 << 20
_INDEX_NAMES = {".index": "offset index", ".timeindex": "time index", ".txnindex": "transaction index"}


class AdoptedSegment(NamedTuple):
    """A segment to be committed: the bytes from `position` to `end` of its file."""

    info: SegmentInfo
    #: By suffix, the name of a broker's valid file, or the content of a rebuilt file.
    files: Mapping[str, str | IndexBytes]
    position: int
    #: The error at which the segment ends early, if any.
    damage: CorruptRecordError | None
    #: The suffixes of the rebuilt files.
    rebuilt: tuple[str, ...]
    #: The number of offsets between the last batch and the next segment.
    gap: int = 0
    #: Whether offsets are missing between batches, as in a compacted log.
    is_sparse: bool = False

    @property
    def end(self) -> int:
        return self.position + self.info.log_bytes


class PartitionReading(NamedTuple):
    """A read of a partition: its open transactions and producers after the batches that were read so far."""

    folder: PartitionFolder
    #: The topic's `index.interval.bytes`.
    interval_bytes: int
    topic_end: int
    transactions: OpenTransactions
    producers: ProducerStates


def read_segments(
    reading: PartitionReading, base_offset: int, next_file_base: int | None, *, checked: bool
) -> Iterator[AdoptedSegment]:
    """Describe the file at `base_offset`; several segments if it spans `topic_end`, or its indexes overflow."""
    # a broker also splits segments whose indexes overflow (KAFKA-6264, `LocalLog.splitOverflowedSegment`)
    names: Mapping[str, str] = reading.folder.loaded.segments[base_offset]
    file, position = names[".log"], 0
    begin: int | None = base_offset
    while begin is not None:
        inspection = _SegmentInspection(reading, names, begin, next_file_base)
        # if not `checked`, records of large batches are not read: checksums in headers are combined to the log's
        walk = reading.folder.walk(file, checked=checked, start=position, offset_index=inspection.indexes[".index"])
        for batches in walk:
            inspection.add(walk, batches)
        yield inspection.finish(walk, position)
        names = {".log": file}  # the broker's index files describe only the first of several segments
        position, begin = walk.position, inspection.next_base_offset


class _SegmentInspection:
    """Describes a segment, batch by batch; `next_file_base` is None for the last file."""

    def __init__(
        self, reading: PartitionReading, names: Mapping[str, str], base_offset: int, next_file_base: int | None
    ) -> None:
        self.reading, self.names = reading, names
        self.base_offset, self.next_file_base = base_offset, next_file_base
        folder = self.folder = reading.folder
        self.stem = f"{base_offset:020d}"
        self.log = LogDescription(base_offset, interval_bytes=reading.interval_bytes)
        self.aborted = list[AbortedTransaction]()
        #: The batch with the segment's largest timestamp so far: bytes that hold it, and an array with its header.
        self.newest_batch: tuple[memoryview, Any] | None = None
        self.has_old_formats = self.is_sparse = False
        #: The base offset of the next segment if it is in the same file; None if the next file follows.
        self.next_base_offset: int | None = None
        # index checks need the end of the segment before its batches are read: use the largest possible end
        empty_segment, _ = LogDescription(base_offset).describe(folder.name.partition, self.stem, created_ms=0)
        max_end = (base_offset + MAX_INT + 1) if next_file_base is None else next_file_base
        bounds = dataclasses.replace(empty_segment, next_offset=max_end, log_bytes=folder.size(names[".log"]))
        self.indexes, self.checks = dict[str, bytes](), dict[str, IndexCheck]()
        for suffix in _INDEX_NAMES:
            data = self.indexes[suffix] = folder.read(names[suffix]) if suffix in names else b""
            with suppress(CorruptIndexError):
                part = Part.file(names.get(suffix, ""), len(data))
                self.checks[suffix] = CHECKS[suffix](part, bounds, data)

    def add(self, walk: BatchWalk, batches: Batches) -> None:
        """Add the next batches; ends the walk at `topic_end`, or before a batch that cannot come next."""
        topic_end = self.reading.topic_end
        if self.base_offset < topic_end <= int(batches.rows["base_offset"][-1]):
            row = int(np.argmax(batches.rows["base_offset"] >= topic_end))
            self.next_base_offset = int(batches.rows["base_offset"][row])
            batches = walk.stop(batches, row)
            if not len(batches.rows):
                return
        first_offset = self.log.next_offset
        try:
            self.log.add(batches.data, batches.rows)
        except UnfitBatchError as error:
            self.next_base_offset = self._overflow_base_offset(batches, error.row)
            text = f"a record batch cannot follow the earlier batches: {error}"
            batches = walk.stop(batches, error.row, reason=text if self.next_base_offset is None else None)
            if not len(batches.rows):
                return
            self.log.add(batches.data, batches.rows)  # the failed call added no batch
        if self.log.next_offset < 0:
            text = "a record has the offset 2^63 - 1: no log can end after it"
            raise CorruptRecordError(text, file=self.folder.path(self.names[".log"]))
        # a batch that a cleaner emptied does not start or abort transactions
        nonempty_rows = batches.rows[batches.rows["record_count"] > 0]
        self.aborted += self.reading.transactions.observe(batches.data, nonempty_rows)
        self.reading.producers.observe(batches.data, batches.rows)
        for check in self.checks.values():
            check.add(batches.rows, batches.position)
        row = int(batches.rows["max_timestamp"].argmax())
        largest = NO_TIMESTAMP if self.newest_batch is None else self.newest_batch[1]["max_timestamp"][0]
        if batches.rows["max_timestamp"][row] > largest:
            self.newest_batch = batches.data, batches.rows[row : row + 1].copy()
        self.is_sparse |= bool(batches.rows["record_count"].sum() < self.log.next_offset - first_offset)
        self.has_old_formats |= bool((batches.rows["magic"] < 2).any())

    def _overflow_base_offset(self, batches: Batches, row: int) -> int | None:
        """Return the base offset of the refused batch if it only overflows this segment; None if it is bad."""
        base_offset = int(batches.rows["base_offset"][row])
        ends = (batches.rows["base_offset"] + batches.rows["last_offset_delta"] + 1).tolist()
        is_in_order = base_offset >= (ends[row - 1] if row else self.log.next_offset)
        # indexes store offsets relative to the segment's base offset as int32
        is_too_far = ends[row] - self.base_offset > MAX_INT + 1
        return base_offset if is_in_order and is_too_far else None

    def finish(self, walk: BatchWalk, position: int) -> AdoptedSegment:
        """Return the segment, from byte `position` of the file to the end of the walk."""
        created_ms = self.folder.modified_ms(self.names[".log"])
        info, built_indexes = self.log.describe(self.folder.name.partition, self.stem, created_ms)
        files, rebuilt = self._files(built_indexes)
        # the content of each index: the broker's if `files` has its name, else the rebuilt one
        contents = {suffix: self.indexes[suffix] if isinstance(file, str) else file for suffix, file in files.items()}
        record_fields: dict[str, Any] = {}
        if self.has_old_formats:
            record_fields = _record_fields(self.folder, self.names[".log"], position, position + self.log.size)
        elif self.newest_batch:
            record_fields = {"offset_of_max_timestamp": _offset_of_max_timestamp(*self.newest_batch)}
        changes: dict[str, Any] = {
            **record_fields,
            **index_fields_of({suffix: contents.get(suffix, b"") for suffix in _INDEX_NAMES}),
            "first_unstable_offset": self.reading.transactions.first_offset,
        }
        next_base = self.next_file_base if self.next_base_offset is None else self.next_base_offset
        gap = 0
        if walk.damage is None and next_base is not None:
            gap = max(0, next_base - info.next_offset)
        info = dataclasses.replace(info, next_offset=info.next_offset + gap, **changes)
        # before the next file a segment may be missing, but a gap within a file shows that the log was compacted
        is_sparse = self.is_sparse or (gap > 0 and self.next_base_offset is not None)
        files = {".log": self.names[".log"], **files}
        return AdoptedSegment(info, files, position, walk.damage, rebuilt, gap, is_sparse)

    def _files(self, built_indexes: Mapping[str, IndexBytes]) -> tuple[dict[str, str | IndexBytes], tuple[str, ...]]:
        """Return the index files with entries, and the suffixes of rebuilt indexes."""
        valid = {suffix for suffix, check in self.checks.items() if check.mismatch() is None}
        # the existing transaction index if it is valid and lists all of `aborted`, else a new one
        txn_index = complete_index(self.indexes[".txnindex"] if ".txnindex" in valid else b"", self.aborted)
        files, rebuilt = dict[str, str | IndexBytes](), []
        for suffix, built in {**built_indexes, ".txnindex": txn_index}.items():
            existing = self.indexes[suffix]
            # offset and time indexes only have samples, so a complete index may differ from the rebuilt one
            is_complete = bool(existing) or not built
            if suffix == ".txnindex":
                # without an entry, readers of committed records would return an aborted transaction's records
                is_complete = existing == built
            if suffix in valid and is_complete:
                if existing:
                    files[suffix] = self.names[suffix]
                continue
            if built:
                files[suffix] = built
            rebuilt.append(suffix)
        return files, tuple(rebuilt)


def _offset_of_max_timestamp(data: memoryview, batch: Any) -> int:
    """Return the offset of the first record with the largest timestamp of a batch; -1 for a control batch."""
    if batch["attributes"][0] & CONTROL:
        return -1  # readers skip its record
    records = decode(data, batch, columns=("offset", "timestamp"))
    timestamps = numbers_of(records.column(1).view("int64"))
    rows = np.flatnonzero(timestamps == batch["max_timestamp"][0])
    return int(records.column(0)[int(rows[0])].as_py()) if len(rows) else -1


def _record_fields(folder: PartitionFolder, name: str, start: int, end: int) -> dict[str, Any]:
    """Return the fields of a segment that batch headers of formats 0 and 1 lack, from its records."""
    stats = RecordStats()
    for batches in folder.walk(name, checked=False, start=start, end=end):
        data, source = byte_array(batches.data), Source(folder.path(name), batches.position)
        selection = BatchSelection(
            data, batches.rows, shift=0, partition=0, start_offset=0, end_offset=MAX_LONG, source=source
        )
        for records in decode_parts(selection, ("offset", "timestamp"), _PART_BYTES):
            stats.add(records)
    return stats.fields()


@dataclass(frozen=True, slots=True)
class AdoptedPartition:
    """A partition to be committed; `notes` lists the files that were cut, skipped or rebuilt."""

    name: PartitionName
    folder: PartitionFolder
    log_start_offset: int
    log_end_offset: int
    first_dirty_offset: int
    segments: tuple[AdoptedSegment, ...]
    producer_snapshot: bytes
    epochs: Epochs
    high_watermark: int
    topic_id: uuid.UUID | None
    notes: tuple[str, ...]

    @property
    def log_bytes(self) -> int:
        return sum(segment.info.log_bytes for segment in self.segments)

    @property
    def completeness(self) -> tuple[int, int, int]:
        """A replica's rank, as in a leader election (leader epoch, log end offset), then by high watermark."""
        return (self.epochs[-1][0] if self.epochs else -1), self.log_end_offset, self.high_watermark

    def actions(self) -> Iterator[Action]:
        first_base = self.segments[0].info.base_offset if self.segments else self.log_start_offset
        if first_base:
            # a segment is added at the log end: first move the start and the end of the empty partition there
            yield SetLogStartOffset(self.name.partition, first_base)
        yield from (Add(segment.info) for segment in self.segments)
        if self.log_start_offset > first_base:
            yield SetLogStartOffset(self.name.partition, self.log_start_offset)
        if self.first_dirty_offset > self.log_start_offset:
            yield Cleaned(self.name.partition, self.first_dirty_offset)

    def producer_batches(self, known_end: int, max_producers: int) -> tuple[ProducerBatch, ...]:
        """Return the batches of up to `max_producers` producers; the topic has the batches below `known_end`."""
        entries = read_producer_snapshot(self.producer_snapshot)
        # sort the most important producers last: by time, and those with open transactions after all others
        order = np.lexsort((entries["last_timestamp"], entries["transaction_first_offset"] != NONE))
        batches = (batch for entry in entries[np.sort(order[-max_producers:])] for batch in batches_of(entry))
        return tuple(batch for batch in batches if batch.is_within(known_end, self.log_end_offset))


def read_partition(log_dir: LogDir, name: PartitionName, config: TopicConfig, topic_end: int) -> AdoptedPartition:
    """Describe the whole partition, with notes on the segments from `topic_end` on."""
    folder, interval_bytes = log_dir.folder(name), config.index_interval_bytes
    reading = PartitionReading(folder, interval_bytes, topic_end, OpenTransactions(), folder.producers())
    notes = [f"{file}: {reason}" for file, reason in sorted(folder.loaded.left_out.items())]
    segments = list(_segments(log_dir, reading, notes))
    # 0 if the log starts with its first segment
    start = log_dir.offset(LOG_START_OFFSETS, name)
    end = segments[-1].info.next_offset if segments else start
    if segments and end < start:
        notes.append(f"the log ends at {end}, below its log start offset {start}: it is empty")
        segments, end = [], start
    if segments:
        start = max(start, segments[0].info.base_offset)
    is_cleaned = "compact" in config.cleanup_policy or name in log_dir.checkpoints[FIRST_DIRTY_OFFSETS]
    # a compacted log may lack offsets; in another log, each gap gets a note
    if is_cleaned or any(segment.is_sparse for segment in segments):
        segments = [
            segment._replace(info=dataclasses.replace(segment.info, compacted=segment.gap > 0 or segment.is_sparse))
            for segment in segments
        ]
    else:
        hint = "a segment is missing, or the log was compacted: then adopt with cleanup.policy=compact"
        notes += [
            f"no batch holds the offsets from {gap_end - segment.gap} to {gap_end}: {hint}"
            for segment in segments
            if segment.gap and (gap_end := segment.info.next_offset) > max(start, topic_end)
        ]
    high_watermark = log_dir.offset(HIGH_WATERMARKS, name)
    if end < high_watermark:
        text = f"records that a broker had acknowledged from {end} to {high_watermark} are missing"
        notes.append(f"the log ends at {end}, below its high watermark {high_watermark}: {text}")
    nonempty = (segment for segment in segments if segment.info.next_offset > max(start, segment.info.base_offset))
    return AdoptedPartition(
        name=name,
        folder=folder,
        log_start_offset=start,
        log_end_offset=end,
        first_dirty_offset=min(log_dir.offset(FIRST_DIRTY_OFFSETS, name), end),
        segments=tuple(nonempty),
        producer_snapshot=_producers(folder, segments, reading.producers, end).snapshot(),
        epochs=folder.leader_epochs(start, end),
        high_watermark=high_watermark,
        topic_id=folder.topic_id(),
        notes=tuple(notes),
    )


def _segments(log_dir: LogDir, reading: PartitionReading, notes: list[str]) -> Iterator[AdoptedSegment]:
    folder, topic_end = reading.folder, reading.topic_end
    bases = list(folder.loaded.segments)
    recovery_point = log_dir.offset(RECOVERY_POINTS, folder.name)
    for number, (base, next_base) in enumerate(itertools.zip_longest(bases, bases[1:])):
        # after a crash, check all bytes that may not have been synced, as a broker does
        checked = not log_dir.is_clean and (next_base is None or next_base > recovery_point)
        for segment in read_segments(reading, base, next_base, checked=checked):
            if segment.damage is not None and not checked and next_base is not None:
                # this is not a torn write, since the bytes were synced: a cut would drop acknowledged records
                raise segment.damage
            if segment.info.base_offset >= topic_end:
                notes += _notes(folder, segment, bases[number + 1 :], topic_end)
            if next_base is not None and segment.info.next_offset > next_base:
                text = f"the log has batches past {next_base}, where the next segment begins: restore it from a copy"
                raise CorruptRecordError(text, file=folder.path(str(segment.files[".log"])))
            yield segment
            if segment.damage is not None:
                # cut the log here, as a broker does
                return


def _producers(
    folder: PartitionFolder, segments: list[AdoptedSegment], states: ProducerStates, end: int
) -> ProducerStates:
    """Return the producers at the log end: `states`, unless they began with a snapshot past the end of a cut log."""
    if states.offset <= end:  # the offset of the snapshot
        return states
    states = folder.producers(end)
    for segment in segments:
        name = str(segment.files[".log"])
        for batches in folder.walk(name, checked=False, start=segment.position, end=segment.end):
            states.observe(batches.data, batches.rows)
    return states


def _notes(folder: PartitionFolder, segment: AdoptedSegment, later_bases: list[int], topic_end: int) -> list[str]:
    log, notes = str(segment.files[".log"]), []
    # the topic has the first part of this file: the split at the topic's end needs no note
    continues_topic = topic_end and segment.info.base_offset == topic_end
    if segment.position and not continues_topic:
        text = "it becomes a separate segment: its offsets are too far above the earlier offsets"
        notes.append(f"{log}: from position {segment.position} on, {text}")
    if segment.damage is not None:
        cut_bytes = folder.size(log) - segment.end
        notes.append(f"{log}: cut {cut_bytes} bytes from position {segment.end}: {segment.damage.message}")
        notes += [f"{base:020d}.log: skipped, since it follows the cut" for base in later_bases]
    rebuilt = [_INDEX_NAMES[suffix] for suffix in segment.rebuilt if not (segment.position and continues_topic)]
    return notes + ([f"{log}: rebuilt the {' and the '.join(rebuilt)}"] if rebuilt else [])
