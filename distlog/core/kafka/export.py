"""Export: a topic as the log directory of a Kafka broker, which the broker opens as its own."""

from __future__ import annotations

import dataclasses
import json
import os
import uuid
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from crc32c import crc32c

from distlog.core import paths
from distlog.core.arrays import MAX_INT, byte_view, new_pages, table_of_numbers
from distlog.core.commits import fields
from distlog.core.commits.fields import LONG, TIMESTAMP, UUID, Integer, Text, stored
from distlog.core.commits.segment_table import SegmentInfo
from distlog.core.commits.snapshot import Snapshot
from distlog.core.display import Displayable, counted
from distlog.core.errors import (
    CorruptIndexError,
    CorruptionError,
    CorruptMetadataError,
    StorageError,
    TopicExistsError,
)
from distlog.core.format.indexes import TRANSACTION_ENTRY, IndexBytes
from distlog.core.format.record_encoder import header_offsets, write_base_offsets
from distlog.core.kafka.log_dir import check_is_no_topic
from distlog.core.kafka.partition_folder import (
    FIRST_DIRTY_OFFSETS,
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    LOG_SUFFIX,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    Epochs,
    FileName,
    PartitionName,
    file_name,
    joined_epochs,
    locked_log_dir,
    parse_file,
    read_epochs,
    read_offsets,
    write_epochs,
    write_offsets,
    write_topic_id,
)
from distlog.core.log.live_snapshot import damage_of_tail, without_tails
from distlog.core.log.producers import StoredProducers
from distlog.core.paths import LEADER_EPOCHS, SNAPSHOT_SUFFIX, new_id
from distlog.core.segments.chunks import Chunk
from distlog.core.segments.producer_states import ProducerStates, last_stable_offset, read_producer_snapshot
from distlog.core.segments.segment_parts import checksum_error
from distlog.core.segments.segment_reader import SegmentReader, TopicHandle, whole_log
from distlog.core.segments.segment_state import LogDescription
from distlog.core.storage.calls import Task, begin
from distlog.core.storage.local_files import failing_as
from distlog.core.storage.storage import FileInfo, Storage

if TYPE_CHECKING:
    from typing_extensions import Buffer, Self


def export_topic(
    handle: TopicHandle, snapshot: Snapshot, log_dir: str | os.PathLike[str], partitions: Iterable[int]
) -> ExportReport:
    """Write `partitions` of the topic into the local folder `log_dir`, next to other partitions."""
    # `local_path` refuses an object store
    target = Storage(os.path.realpath(Storage(log_dir).local_path("")))
    if os.path.isdir(target.url):
        check_is_no_topic(target, target.list_folders())
    with locked_log_dir(target, is_exclusive=True):
        folders = {n: target.child(paths.partition_dir(handle.storage.name, n)) for n in sorted(set(partitions))}
        # `damage_of_tail` needs the state by the commits alone: it walks the active segments itself
        committed = without_tails(snapshot)
        for number, folder in folders.items():
            damage = damage_of_tail(handle, committed, number)
            if damage is not None:
                # a damaged active segment ends early, so an export could delete later records of an earlier export
                raise damage
            _, exported_id = read_export(folder) or ([], snapshot.topic_id)
            if exported_id != snapshot.topic_id:
                text = "the directory has an export of another topic with this name: delete it, or choose another"
                raise TopicExistsError(text, directory=folder.url, topic_id=exported_id)
        exported = [_PartitionExport(handle, snapshot, number, folder).run() for number, folder in folders.items()]
        _write_checkpoints(target, handle.storage.name, exported)
    return ExportReport(target.url, tuple(exported))


@dataclass(frozen=True, slots=True)
class ExportedPartition:
    """A partition in the log directory after an export; `first_base_offset` is the base of its first segment."""

    partition: int
    log_start_offset: int
    last_stable_offset: int
    log_end_offset: int
    first_dirty_offset: int
    first_base_offset: int
    segments: int
    segments_written: int
    bytes_written: int


_COLUMNS = ("partition", "log_start_offset", "log_end_offset", "segments", "segments_written", "bytes_written")


@dataclass(frozen=True, slots=True, repr=False)
class ExportReport(Displayable):
    """The contents of the log directory `log_dir` after an export, and what the export wrote."""

    log_dir: str
    partitions: tuple[ExportedPartition, ...]

    def __str__(self) -> str:
        size = sum(partition.bytes_written for partition in self.partitions)
        segments = sum(partition.segments_written for partition in self.partitions)
        partitions = counted(len(self.partitions), "partition")
        amounts = f"{counted(segments, 'segment')}, {counted(size, 'byte')}"
        return "\n".join([f"exported {partitions} to {self.log_dir}: wrote {amounts}", *self.notes])

    @property
    def notes(self) -> tuple[str, ...]:
        """A line per partition with an open transaction, which a broker cannot end."""
        return tuple(
            f"partition {entry.partition}: a transaction is open from offset {entry.last_stable_offset} on, where "
            "consumers of committed records will stop: end it, and export again"
            for entry in self.partitions
            if entry.last_stable_offset < entry.log_end_offset
        )

    def to_table(self) -> pa.Table:
        return table_of_numbers(self._rows(), _COLUMNS)

    def to_dict(self) -> dict[str, Any]:
        return {"log_dir": self.log_dir, "partitions": self._rows(), "notes": list(self.notes)}

    def _rows(self) -> list[dict[str, int]]:
        return [{name: getattr(partition, name) for name in _COLUMNS} for partition in self.partitions]


#: The file that lists the exported segments; a broker ignores it. An export writes it first, with planned segments as
#: incomplete, so that the next export can continue after a crash. If a log has another size, a broker changed it.
EXPORT_FILE = ".distlog-export.json"
_VERSION = 1


def _epochs(value: Any) -> tuple[tuple[int, int], ...]:
    if not isinstance(value, list) or any(not isinstance(pair, list) or len(pair) != 2 for pair in value):
        raise ValueError("must be a list of [epoch, offset]")
    return tuple((Integer(0, MAX_INT)(epoch), LONG(start)) for epoch, start in value)


@dataclass(frozen=True, slots=True)
class ExportedSegment:
    """A segment in the folder; `is_complete` once all its files are written. `stem` is empty if it has no batch."""

    base_offset: int = stored(LONG)
    stem: str = stored(Text("[a-z0-9-]{0,64}"))
    log_bytes: int = stored(LONG)
    crc32c: int = stored(Integer(0, 2**32 - 1))
    append_time_ms: int = stored(TIMESTAMP, default=-1)
    end_offset: int = stored(LONG, default=0)
    epochs: tuple[tuple[int, int], ...] = stored(_epochs, default=())
    is_complete: bool = stored(fields.boolean, default=False)

    @classmethod
    def of(cls, segment: SegmentInfo) -> ExportedSegment:
        return cls(segment.base_offset, segment.stem, segment.log_bytes, segment.crc32c, segment.append_time_ms)

    def is_complete_copy_of(self, segment: SegmentInfo) -> bool:
        planned = ExportedSegment.of(segment)
        return self == dataclasses.replace(planned, end_offset=self.end_offset, epochs=self.epochs, is_complete=True)


def empty_segment(offset: int, *, is_complete: bool) -> ExportedSegment:
    """Describe a segment without a batch, which only marks the start or end of the log."""
    return ExportedSegment(offset, stem="", log_bytes=0, crc32c=0, end_offset=offset, is_complete=is_complete)


def read_export(folder: Storage) -> tuple[list[ExportedSegment], str] | None:
    """Read the segments and the topic id of the last export into `folder`, if any. Raises CorruptMetadataError."""
    try:
        data = folder.read(EXPORT_FILE)
    except FileNotFoundError:
        return None
    try:
        body = json.loads(data)
        segments = [fields.read(ExportedSegment, segment) for segment in body["segments"]]
        return segments, UUID(body["topic_id"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        text = f"not the record of an export: {error}; empty the partition's folder, and export again"
        raise CorruptMetadataError(text, file=folder.local_path(EXPORT_FILE)) from None


def write_export(folder: Storage, segments: list[ExportedSegment], topic_id: str) -> None:
    body = {"version": _VERSION, "topic_id": topic_id, "segments": [fields.write(segment) for segment in segments]}
    folder.put(EXPORT_FILE, json.dumps(body).encode())


def prepare_folder(folder: Storage) -> list[ExportedSegment]:
    """Return the last export's segments. Deletes an empty log of a broker; StorageError if it has records."""
    folder.refuse_links()
    last_export = read_export(folder)
    files = _segment_files(folder)
    log_sizes = {name.offset: file.size for file, name in files if name.suffix == LOG_SUFFIX and not name.temporary}
    if last_export is None:
        if any(log_sizes.values()):
            text = "the partition's folder has records that no export wrote: export into another log directory"
            raise StorageError(text, directory=folder.url)
        folder.delete([file.name for file, _ in files])
        return []
    segments, _ = last_export
    unlisted = log_sizes.keys() - {segment.base_offset for segment in segments}
    complete = [segment for segment in segments if segment.is_complete]
    changed = [segment.base_offset for segment in complete if log_sizes.get(segment.base_offset) != segment.log_bytes]
    if foreign_offsets := [*sorted(unlisted), *changed]:
        text = "a broker has written to the folder since the last export: export into another log directory"
        raise StorageError(text, directory=folder.url, base_offset=foreign_offsets[0])
    return segments


def _snapshot_names_by_offset(folder: Storage) -> dict[int, str]:
    return {
        parsed.offset: file.name
        for file, parsed in _segment_files(folder)
        if parsed.suffix == SNAPSHOT_SUFFIX and not parsed.temporary
    }


def _segment_files(folder: Storage) -> list[tuple[FileInfo, FileName]]:
    return [(file, parsed) for file in folder.list() if (parsed := parse_file(file.name)) is not None]


#: If a segment lacks a file with one of the suffixes, a broker assumes a loss, and reads the log.
_REQUIRED_SUFFIXES = (".log", ".index", ".timeindex")
#: The most bytes and files that wait in memory to be written together.
_BUFFER_BYTES, _BUFFER_FILES = 16 << 20, 64


class ExportedFiles:
    """Writes the files of a partition's `folder`, many small ones together, in the background of a `with` block."""

    def __init__(self, folder: Storage) -> None:
        self.folder = folder
        self._buffered: dict[str, Buffer] = {}
        #: The creation times of the buffered segments, by base offset.
        self._created_ms: dict[int, int] = {}
        self._buffered_bytes = 0
        self._writing: Task[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._wait()
                _write(self.folder, *self._pop_buffered())
        finally:
            # the write must end with this export, since the next export may write the same files
            with suppress(Exception):
                self._wait()

    def add(self, segment: SegmentInfo, files: Mapping[str, Buffer]) -> None:
        """Buffer or write a segment's files, by suffix, and delete a transaction index that it no longer has."""
        self._buffered |= {file_name(segment.base_offset, suffix): data for suffix, data in files.items()}
        self._created_ms[segment.base_offset] = segment.created_ms
        self._buffered_bytes += sum(byte_view(data).nbytes for data in files.values())
        if self._buffered_bytes >= _BUFFER_BYTES or len(self._buffered) >= _BUFFER_FILES:
            self._wait()
            self._writing = begin(partial(_write, self.folder, *self._pop_buffered()))

    def _wait(self) -> None:
        if self._writing is not None:
            self._writing.wait()

    def _pop_buffered(self) -> tuple[dict[str, Buffer], dict[int, int]]:
        buffered = self._buffered, self._created_ms
        self._buffered, self._created_ms, self._buffered_bytes = {}, {}, 0
        return buffered


def _write(folder: Storage, files: Mapping[str, Buffer], created_ms: Mapping[int, int]) -> None:
    folder.put_many(files)
    transaction_indexes = [file_name(base_offset, ".txnindex") for base_offset in created_ms]
    folder.delete([name for name in transaction_indexes if name not in files])
    for base_offset, time_ms in created_ms.items():
        _set_times(folder, base_offset, time_ms)


def _set_times(folder: Storage, base_offset: int, time_ms: int) -> None:
    """Set the files' times, which a broker's retention uses for records without a time."""
    for suffix in _REQUIRED_SUFFIXES:
        path = folder.local_path(file_name(base_offset, suffix))
        with failing_as("set the time of", path):
            os.utime(path, (time_ms / 1000, time_ms / 1000))


_SMALL_BYTES = 4 << 20  # logs up to this size are buffered, and written together with other files

# A broker's log has two things in its bytes that a topic may have only in a commit: the final offsets (the commit has
# a `shift`, to be added to the offsets in the file), and with LogAppendTime, the time of the append (`Chunk.timed`).


def export_segment(
    reader: SegmentReader, segment: SegmentInfo, files: ExportedFiles, producers: ProducerStates, interval_bytes: int
) -> ExportedSegment:
    """Write the segment's files, replacing files of its base offset; updates `producers` with its batches."""
    log = LogDescription(segment.base_offset, interval_bytes=interval_bytes)
    epochs = list[tuple[int, int]]()

    def batches() -> Iterator[memoryview]:
        position = 0  # in the exported log
        for chunk in whole_log(reader, segment):
            data, rows = _with_shifted_offsets(chunk.timed(), segment.shift, position)
            position += len(data)
            # yield first, so that the bytes are written in the background while they are read here
            yield data
            log.add(data, rows)
            producers.observe(data, rows)
            epochs.extend(_new_epochs(rows, epochs[-1][0] if epochs else -1))

    small_log: dict[str, Buffer] = {}
    if segment.log_bytes <= _SMALL_BYTES:
        chunks = list(batches())
        small_log[".log"] = chunks[0] if len(chunks) == 1 else b"".join(chunks)
    else:
        temporary = paths.temporary_file(new_id())
        with files.folder.open_write(temporary) as writer:
            for data in batches():
                writer.write_behind(data)
        path = files.folder.local_path(file_name(segment.base_offset, ".log"))
        with failing_as("replace", path):
            os.replace(files.folder.local_path(temporary), path)
    files.add(segment, small_log | _indexes(reader, segment, log.finish()))
    exported = ExportedSegment.of(segment)
    return dataclasses.replace(exported, end_offset=log.next_offset, epochs=tuple(epochs), is_complete=True)


def _with_shifted_offsets(chunk: Chunk, shift: int, position: int) -> tuple[memoryview, npt.NDArray[Any]]:
    """Return the bytes and rows of the chunk with offsets increased by `shift`; `position` is in the new file."""
    if not shift:
        return chunk.data, chunk.batches
    # align the memory to the pages of the file, so that it is written without a copy (`write_behind`)
    data = new_pages(len(chunk.data), position)
    data[:] = chunk.data
    rows = chunk.batches.copy()
    rows["base_offset"] += shift
    stored_offsets = header_offsets(chunk.batches, rows["base_offset"].astype(np.int64))
    write_base_offsets(data, rows["position"], stored_offsets)
    return data.data, rows


def _indexes(reader: SegmentReader, segment: SegmentInfo, rebuilt: Mapping[str, IndexBytes]) -> dict[str, IndexBytes]:
    """Return the index files of the segment if they are valid, else the indexes `rebuilt` from its log."""
    files = dict(rebuilt)
    # with LogAppendTime, exported batches have other times than stored batches, which the stored indexes describe
    if not segment.is_active and segment.append_time_ms < 0:
        for suffix in rebuilt:
            with suppress(CorruptIndexError):
                files[suffix] = _stored_index(reader, segment, suffix) or rebuilt[suffix]
    if transactions := _stored_index(reader, segment, ".txnindex"):
        entries = np.frombuffer(transactions, TRANSACTION_ENTRY).copy()
        for name in ("first_offset", "last_offset", "last_stable_offset"):
            entries[name] += segment.shift
        files[".txnindex"] = entries.tobytes()
    return files


def _stored_index(reader: SegmentReader, segment: SegmentInfo, suffix: str) -> bytes:
    part = reader.part(segment, suffix)
    try:
        data = reader.storage.read(*part.full_range) if part.size else b""
    except FileNotFoundError:
        raise CorruptIndexError("the index file is missing: rebuild the indexes", file=part.name) from None
    if len(data) != part.size:
        raise CorruptIndexError("the index file is too short: rebuild the indexes", file=part.name)
    if (error := checksum_error(segment, suffix, part, crc32c(data))) is not None:
        raise error
    return data


class _PartitionExport:
    """The export of a partition; after `run`, `present` has the segments in its folder."""

    def __init__(self, handle: TopicHandle, snapshot: Snapshot, partition: int, folder: Storage) -> None:
        self._handle, self._topic_id = handle, snapshot.topic_id
        self._interval = snapshot.config.index_interval_bytes
        self._partition, self._state, self._folder = partition, snapshot.partitions[partition], folder
        self._source = handle.storage.child(paths.partition_dir(handle.name, partition))
        self._files = ExportedFiles(folder)
        self.present: list[ExportedSegment] = []

    def run(self) -> ExportedPartition:
        written_segments = self._write()
        if PARTITION_METADATA not in {file.name for file in self._folder.list()}:
            self._folder.put(PARTITION_METADATA, write_topic_id(uuid.UUID(self._topic_id)))
        return ExportedPartition(
            partition=self._partition,
            log_start_offset=self._state.log_start_offset,
            last_stable_offset=last_stable_offset(self._handle.reader, self._state),
            log_end_offset=self._state.log_end_offset,
            first_dirty_offset=self._state.first_dirty_offset,
            first_base_offset=self.present[0].base_offset,
            segments=len(self.present),
            segments_written=len(written_segments),
            bytes_written=sum(segment.log_bytes for segment in written_segments),
        )

    def _write(self) -> list[SegmentInfo]:
        """Write the segments that the folder lacks, and the files next to them; returns the written segments."""
        last_export = prepare_folder(self._folder)
        segments = [segment for segment in self._state.segments if segment.next_offset > self._state.log_start_offset]
        nonempty = {entry.base_offset: entry for entry in last_export if entry.stem}
        unchanged = {
            segment.base_offset: entry
            for segment in segments
            if (entry := nonempty.get(segment.base_offset)) is not None and entry.is_complete_copy_of(segment)
        }
        producers = self._exported_producers(segments, unchanged) if unchanged else None
        if producers is None:
            unchanged = {}
            topic_producers = StoredProducers(self._handle.storage, self._handle.name, self._partition)
            producers = topic_producers.newest(segments, self._state.log_end_offset)
        new_segments = [segment for segment in segments if segment.base_offset not in unchanged]
        if not new_segments and self._holds_all(last_export, unchanged):
            self.present = last_export
            return []
        # list the future content of the folder before a change
        offsets = {self._state.log_start_offset, self._state.log_end_offset}
        planned = {offset: empty_segment(offset, is_complete=False) for offset in offsets}
        planned |= {entry.base_offset: dataclasses.replace(entry, is_complete=False) for entry in last_export}
        planned |= {segment.base_offset: ExportedSegment.of(segment) for segment in new_segments}
        planned |= unchanged
        write_export(self._folder, [planned[base] for base in sorted(planned)], self._topic_id)
        with self._files:
            for segment in segments:
                if (entry := unchanged.get(segment.base_offset)) is None:
                    if segment is segments[-1] and producers.offset <= segment.base_offset:
                        # a broker that recovers the last segment starts with producers before its first batch
                        self._folder.put(file_name(segment.base_offset, SNAPSHOT_SUFFIX), producers.snapshot())
                    entry = export_segment(self._handle.reader, segment, self._files, producers, self._interval)
                self.present.append(entry)
        self._finish(last_export, producers)
        return new_segments

    def _holds_all(self, last_export: list[ExportedSegment], unchanged: dict[int, ExportedSegment]) -> bool:
        """Return whether the folder has exactly the partition's log, from its start to its end."""
        if not last_export:
            return False
        nonempty = [entry for entry in last_export if entry.stem]
        has_start = last_export[0].base_offset <= self._state.log_start_offset
        has_end = last_export[-1].end_offset == self._state.log_end_offset
        is_complete = all(entry.is_complete for entry in last_export)
        return has_start and has_end and is_complete and nonempty == list(unchanged.values())

    def _exported_producers(self, segments: list[SegmentInfo], unchanged: Container[int]) -> ProducerStates | None:
        """Return the producers after the `unchanged` segments; None if no snapshot of the last export has them."""
        unchanged_end = max(segment.next_offset for segment in segments if segment.base_offset in unchanged)
        for offset, name in sorted(_snapshot_names_by_offset(self._folder).items(), reverse=True):
            if unchanged_end <= offset <= self._state.log_end_offset:
                with suppress(CorruptionError):
                    return ProducerStates.of_snapshot(read_producer_snapshot(self._folder.read(name)), offset)
        return None

    def _finish(self, last_export: list[ExportedSegment], producers: ProducerStates) -> None:
        """Add empty segments at the ends, delete obsolete files, and write the files next to the segments."""
        start, end = self._state.log_start_offset, self._state.log_end_offset
        if not self.present or self.present[0].base_offset > start:
            self._put_empty(0, start)
        if self.present[-1].end_offset < end:
            self._put_empty(len(self.present), end)
        bases = {entry.base_offset for entry in self.present}
        for obsolete in {entry.base_offset for entry in last_export} - bases:
            self._folder.delete([file_name(obsolete, suffix) for suffix in paths.SEGMENT_SUFFIXES])
        self._folder.put(file_name(end, SNAPSHOT_SUFFIX), producers.snapshot())
        snapshots = _snapshot_names_by_offset(self._folder)
        # a broker that recovers the last segment needs the snapshot at its base offset
        self._folder.delete([name for offset, name in snapshots.items() if offset not in (end, max(bases))])
        imported_epochs: Epochs = []
        # an imported topic has the leader epochs of its broker
        with suppress(FileNotFoundError, CorruptionError):
            imported_epochs = read_epochs(self._source.read(LEADER_EPOCHS))
        epochs = joined_epochs([imported_epochs, *(entry.epochs for entry in self.present)], start)
        self._folder.put(LEADER_EPOCHS, write_epochs(epochs))
        write_export(self._folder, self.present, self._topic_id)

    def _put_empty(self, index: int, offset: int) -> None:
        self._folder.put_many({file_name(offset, suffix): b"" for suffix in _REQUIRED_SUFFIXES})
        # a broker takes the time of an empty log's file as its largest timestamp. A search by time ends at the first
        # segment whose largest timestamp is late enough; with a time before 1970, no search ends here
        _set_times(self._folder, offset, time_ms=-1000)
        self.present.insert(index, empty_segment(offset, is_complete=True))


def _write_checkpoints(target: Storage, topic: str, exported: list[ExportedPartition]) -> None:
    """Update the log directory's checkpoints, without changing the lines of other partitions."""
    ends = {entry.partition: entry.log_end_offset for entry in exported}
    starts, first_dirty_offsets = dict[int, int | None](), dict[int, int | None]()
    for entry in exported:
        start, first_dirty = entry.log_start_offset, entry.first_dirty_offset
        starts[entry.partition] = start if start > entry.first_base_offset else None
        first_dirty_offsets[entry.partition] = first_dirty if first_dirty > start else None
    _update_checkpoint(target, RECOVERY_POINTS, topic, ends)
    _update_checkpoint(target, HIGH_WATERMARKS, topic, ends)
    _update_checkpoint(target, LOG_START_OFFSETS, topic, starts)
    _update_checkpoint(target, FIRST_DIRTY_OFFSETS, topic, first_dirty_offsets)


def _update_checkpoint(target: Storage, name: str, topic: str, offsets: Mapping[int, int | None]) -> None:
    """Set the offsets of the topic's partitions in a checkpoint file; None removes a partition."""
    stored_offsets = dict[PartitionName, int]()
    with suppress(FileNotFoundError):
        stored_offsets = read_offsets(target.read(name), file=target.local_path(name))
    changed = {PartitionName(topic, partition): offset for partition, offset in offsets.items()}
    updated = {name: offset for name, offset in (stored_offsets | changed).items() if offset is not None}
    if updated != stored_offsets:
        target.put(name, write_offsets(updated))


def _new_epochs(rows: npt.NDArray[Any], latest: int) -> list[tuple[int, int]]:
    """Return (leader epoch, start offset) of each epoch above `latest` that begins in these batches."""
    highest = np.maximum.accumulate(np.concatenate([[latest], rows["leader_epoch"]]))
    rises = np.flatnonzero(highest[1:] > highest[:-1])
    epochs: list[int] = rows["leader_epoch"][rises].tolist()
    return list(zip(epochs, rows["base_offset"][rises].tolist(), strict=True))
