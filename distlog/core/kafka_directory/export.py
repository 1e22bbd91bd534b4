"""Export: a topic as the log directory of a Kafka broker, which the broker opens as its own."""

from __future__ import annotations

import dataclasses
import json
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from crc32c import crc32c

from distlog.core import paths
from distlog.core.arrays import new_pages, table_of_numbers
from distlog.core.batches.record_batch import header_offsets, write_base_offsets
from distlog.core.commits import fields
from distlog.core.commits.fields import LONG, TIMESTAMP, UUID, Integer, Text, stored
from distlog.core.commits.segment_info import SegmentInfo
from distlog.core.commits.snapshot import Snapshot
from distlog.core.config import MAX_INT
from distlog.core.display import Shown, counted
from distlog.core.errors import (
    CorruptIndexError,
    CorruptionError,
    CorruptMetadataError,
    StorageError,
    TopicExistsError,
)
from distlog.core.indexes.transaction_index import TRANSACTION_ENTRY
from distlog.core.kafka_directory.log_dir import refuse_topic
from distlog.core.kafka_directory.partition_folder import (
    FIRST_DIRTY_OFFSETS,
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    LOG_SUFFIX,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    Epochs,
    PartitionName,
    file_name,
    joined_epochs,
    parse_file,
    read_epochs,
    read_offsets,
    without_broker,
    write_epochs,
    write_offsets,
    write_topic_id,
)
from distlog.core.log.live_snapshot import damage_of_tail, without_tails
from distlog.core.log.producers import StoredProducers
from distlog.core.log.segment_recovery import new_epochs
from distlog.core.paths import LEADER_EPOCHS, SNAPSHOT_SUFFIX
from distlog.core.reading.chunks import Chunk
from distlog.core.reading.pipeline import whole_log
from distlog.core.reading.segment_reader import SegmentReader
from distlog.core.reading.stable_offset import last_stable_offset
from distlog.core.segments.segment_parts import checksum_error
from distlog.core.segments.segment_state import LogDescription
from distlog.core.storage.backend import byte_view
from distlog.core.storage.durable_files import failing_as
from distlog.core.storage.parallel import Task, begin
from distlog.core.storage.storage import Storage
from distlog.core.topic_handle import TopicHandle, new_id
from distlog.core.transactions.producer_states import ProducerStates, read_producer_snapshot

# A broker ignores the list. Before files are changed it names all that will be there, and which of these are whole;
# so an export that died is taken up by the next one. If a file has another size than it says, a broker has written
# there.


EXPORT_FILE = ".distlog-export.json"
_VERSION = 1


def _epochs(value: Any) -> tuple[tuple[int, int], ...]:
    if not isinstance(value, list) or any(not isinstance(pair, list) or len(pair) != 2 for pair in value):
        raise ValueError("must be a list of [epoch, offset]")
    return tuple((Integer(0, MAX_INT)(epoch), LONG(start)) for epoch, start in value)


@dataclass(frozen=True, slots=True)
class ExportedSegment:
    """A segment of the topic in the folder (an empty stem: none); `done` says that its files are whole."""

    base_offset: int = stored(LONG)
    stem: str = stored(Text("[a-z0-9-]{0,64}"))
    log_bytes: int = stored(LONG)
    crc32c: int = stored(Integer(0, 2**32 - 1))
    append_time_ms: int = stored(TIMESTAMP, default=-1)
    end_offset: int = stored(LONG, default=0)
    epochs: tuple[tuple[int, int], ...] = stored(_epochs, default=())
    done: bool = stored(fields.boolean, default=False)

    @classmethod
    def of(cls, segment: SegmentInfo) -> ExportedSegment:
        """A segment that is to be exported."""
        identity = segment.stem, segment.log_bytes, segment.crc32c, segment.append_time_ms
        return cls(segment.base_offset, *identity)

    def is_of(self, segment: SegmentInfo) -> bool:
        """True if the folder has the segment already, whole."""
        names = ("base_offset", "stem", "log_bytes", "crc32c", "append_time_ms")
        return self.done and all(getattr(self, name) == getattr(segment, name) for name in names)


def empty_segment(base_offset: int, *, done: bool) -> ExportedSegment:
    """A segment without a batch, which only marks where the log begins or ends."""
    return ExportedSegment(base_offset, "", 0, 0, end_offset=base_offset, done=done)


def read_export(folder: Storage) -> tuple[list[ExportedSegment], str] | None:
    """The segments and the topic id of the last export into `folder`, if any. Raises CorruptMetadataError."""
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
    """Replace the record of the last export."""
    body = {"version": _VERSION, "topic_id": topic_id, "segments": [fields.write(segment) for segment in segments]}
    folder.put(EXPORT_FILE, json.dumps(body).encode())


def known_segments(folder: Storage) -> list[ExportedSegment]:
    """The segments that an earlier export left, by base offset; deletes the empty log that a broker made."""
    folder.refuse_links()
    last = read_export(folder)
    files = [(file, parsed) for file in folder.list() if (parsed := parse_file(file.name)) is not None]
    sizes = {each.offset: file.size for file, each in files if each.suffix == LOG_SUFFIX and not each.temporary}
    if last is None:
        if any(sizes.values()):
            text = "this partition's folder holds records that no export wrote: export into another log directory"
            raise StorageError(text, directory=folder.url)
        folder.delete([file.name for file, _ in files])
        return []
    # the logs must be those that the export wrote
    segments, _ = last
    unknown = sizes.keys() - {each.base_offset for each in segments}
    changed = [each.base_offset for each in segments if each.done and sizes.get(each.base_offset) != each.log_bytes]
    for offset in (*sorted(unknown), *changed):
        why = "a broker has written here since the last export: export into another log directory"
        raise StorageError(why, directory=folder.url, base_offset=offset)
    return segments


def snapshots(folder: Storage) -> dict[int, str]:
    """The producer snapshots in the folder, by offset."""
    files = [(parsed, file.name) for file in folder.list() if (parsed := parse_file(file.name)) is not None]
    return {
        parsed.offset: name for parsed, name in files if parsed.suffix == SNAPSHOT_SUFFIX and not parsed.temporary
    }


if TYPE_CHECKING:
    from typing_extensions import Buffer, Self

#: A broker that finds no file of these takes it for the loss of one, and reads the whole log.
_ALWAYS = (".log", ".index", ".timeindex")
#: So many bytes, or so many files, are held at most before they are written.
_HELD_BYTES, _HELD_FILES = 16 << 20, 64


class ExportedFiles:
    """The files of a partition's `folder`; in a `with` block a thread writes many small ones at once."""

    def __init__(self, folder: Storage) -> None:
        self.folder = folder
        self._files: dict[str, Buffer] = {}
        self._times: dict[int, int] = {}
        self._held = 0
        self._writing: Task[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._settle()
                _write(self.folder, *self._take())
        finally:
            if self._writing is not None:
                # the next export may write the same files
                with suppress(Exception):
                    self._writing.wait()

    def add(self, segment: SegmentInfo, files: Mapping[str, Buffer]) -> None:
        """Write a segment's files, by suffix, now or later; files that it has no more are deleted then."""
        self._files |= {file_name(segment.base_offset, suffix): data for suffix, data in files.items()}
        self._times[segment.base_offset] = segment.created_ms
        self._held += sum(byte_view(data).nbytes for data in files.values())
        if self._held >= _HELD_BYTES or len(self._files) >= _HELD_FILES:
            self._settle()
            self._writing = begin(partial(_write, self.folder, *self._take()))

    def _settle(self) -> None:
        """Wait for what is being written. Raises its StorageError."""
        if self._writing is not None:
            self._writing.wait()

    def _take(self) -> tuple[dict[str, Buffer], dict[int, int]]:
        """The files that are held, and the times of their segments; they are held no more."""
        written = self._files, self._times
        self._files, self._times, self._held = {}, {}, 0
        return written


def _write(folder: Storage, files: Mapping[str, Buffer], times: Mapping[int, int]) -> None:
    """Write the files of segments, which have these times by their base offsets."""
    folder.put_many(files)
    transactions = [file_name(base_offset, ".txnindex") for base_offset in times]
    folder.delete([name for name in transactions if name not in files])
    for base_offset, time_ms in times.items():
        _set_times(folder, base_offset, time_ms)


def write_empty(folder: Storage, base_offset: int) -> None:
    """Write the files of a segment without a batch."""
    # dated before 1970: a broker takes the file's time for the log's largest timestamp, where a search by time ends
    folder.put_many({file_name(base_offset, suffix): b"" for suffix in _ALWAYS})
    _set_times(folder, base_offset, -1000)


def _set_times(folder: Storage, base_offset: int, time_ms: int) -> None:
    """Retention of a broker counts from the file's time if records have no time."""
    for suffix in _ALWAYS:
        path = folder.local_path(file_name(base_offset, suffix))
        with failing_as("set the time of", path):
            os.utime(path, (time_ms / 1000, time_ms / 1000))


#: Logs up to this size are written together with other files.
_SMALL_BYTES = 4 << 20


def export_segment(
    reader: SegmentReader, segment: SegmentInfo, files: ExportedFiles, producers: ProducerStates, interval_bytes: int
) -> ExportedSegment:
    """Write the segment's files, instead of those of its base offset; `producers` see its batches."""
    log = LogDescription(segment.base_offset, interval_bytes=interval_bytes)
    epochs = list[tuple[int, int]]()

    def pieces() -> Iterator[memoryview]:
        position = 0
        for chunk in whole_log(reader, segment):
            data, rows = _moved(chunk.timed(), segment.shift, position)
            position += len(data)
            yield data
            log.add(data, rows)
            producers.see(data, rows)
            epochs.extend(new_epochs(rows, epochs[-1][0] if epochs else -1))

    index_files: dict[str, Buffer] = {}
    if segment.log_bytes <= _SMALL_BYTES:
        held = list(pieces())
        index_files[".log"] = held[0] if len(held) == 1 else b"".join(held)
    else:
        temporary = paths.temporary_file(new_id())
        with files.folder.open_write(temporary) as writer:
            for piece in pieces():
                writer.write_behind(piece)
        path = files.folder.local_path(file_name(segment.base_offset, ".log"))
        with failing_as("replace", path):
            os.replace(files.folder.local_path(temporary), path)
    files.add(segment, index_files | _indexes(reader, segment, log.finish()))
    exported = ExportedSegment.of(segment)
    return dataclasses.replace(exported, end_offset=log.next_offset, epochs=tuple(epochs), done=True)


def _moved(chunk: Chunk, shift: int, position: int) -> tuple[memoryview, npt.NDArray[Any]]:
    """The bytes and rows of the chunk, whose offsets are higher by `shift`, to be written at `position`."""
    if not shift:
        return chunk.data, chunk.batches
    data, rows = new_pages(len(chunk.data), position), chunk.batches.copy()
    data[:] = chunk.data
    rows["base_offset"] += shift
    write_base_offsets(data, rows["position"], header_offsets(chunk.batches, rows["base_offset"].astype(np.int64)))
    return data.data, rows


def _indexes(reader: SegmentReader, segment: SegmentInfo, made: dict[str, bytes]) -> dict[str, bytes]:
    """The index files: the segment's own if they serve, else the ones that were `made` from its log."""
    files = dict(made)
    if not segment.is_active and segment.append_time_ms < 0:
        for suffix in made:
            stored = _stored(reader, segment, suffix)
            files[suffix] = made[suffix] if isinstance(stored, CorruptIndexError) else stored or made[suffix]
    transactions = _stored(reader, segment, ".txnindex")
    if isinstance(transactions, CorruptIndexError):
        raise transactions
    if transactions:
        entries = np.frombuffer(transactions, TRANSACTION_ENTRY).copy()
        for name in ("first_offset", "last_offset", "last_stable_offset"):
            entries[name] += segment.shift
        files[".txnindex"] = entries.tobytes()
    return files


def _stored(reader: SegmentReader, segment: SegmentInfo, suffix: str) -> bytes | CorruptIndexError:
    """The content of an index file, or what is wrong with it."""
    part = reader.part(segment, suffix)
    try:
        data = reader.storage.read(*part.whole) if part.size else b""
    except FileNotFoundError:
        return CorruptIndexError("the index file is gone: rebuild the indexes", file=part.name)
    if len(data) != part.size:
        return CorruptIndexError("the index file is too short: rebuild the indexes", file=part.name)
    return checksum_error(segment, suffix, part, crc32c(data)) or data


@dataclass(frozen=True, slots=True)
class ExportedPartition:
    """A partition in the log directory: its offsets, and what this export wrote."""

    partition: int
    log_start_offset: int
    last_stable_offset: int
    log_end_offset: int
    first_dirty_offset: int
    first_base_offset: int
    segments: int
    segments_written: int
    bytes_written: int


def export_partition(handle: TopicHandle, snapshot: Snapshot, partition: int, log_dir: Storage) -> ExportedPartition:
    """Write the partition into its folder in `log_dir`."""
    folder = log_dir.child(paths.partition_dir(handle.storage.name, partition))
    state = snapshot.partitions[partition]
    export = _PartitionExport(handle, snapshot, partition, folder)
    written = export.run()
    if PARTITION_METADATA not in {file.name for file in folder.list()}:
        folder.put(PARTITION_METADATA, write_topic_id(uuid.UUID(snapshot.topic_id)))
    return ExportedPartition(
        partition,
        state.log_start_offset,
        last_stable_offset(handle.reader, state),
        state.log_end_offset,
        state.first_dirty_offset,
        export.present[0].base_offset,
        len(export.present),
        len(written),
        sum(segment.log_bytes for segment in written),
    )


class _PartitionExport:
    """The export of one partition; `present` is what its folder holds at the end."""

    def __init__(self, handle: TopicHandle, snapshot: Snapshot, partition: int, folder: Storage) -> None:
        self._handle, self._topic_id = handle, snapshot.topic_id
        self._interval = snapshot.config.index_interval_bytes
        self._partition, self._state, self._folder = partition, snapshot.partitions[partition], folder
        self._source = handle.storage.child(paths.partition_dir(handle.name, partition))
        self._files = ExportedFiles(folder)
        self.present: list[ExportedSegment] = []

    def run(self) -> list[SegmentInfo]:
        """Write what is new; returns the segments that were written."""
        before = known_segments(self._folder)
        segments = [each for each in self._state.segments if each.next_offset > self._state.log_start_offset]
        whole = {each.base_offset: each for each in before if each.stem}
        kept = {
            each.base_offset: known
            for each in segments
            if (known := whole.get(each.base_offset)) is not None and known.is_of(each)
        }
        producers = self._producers(segments, kept)
        if producers is None:
            kept, producers = {}, self._producers(segments, {}) or ProducerStates()
        new = [each for each in segments if each.base_offset not in kept]
        if not new and self._holds_all(before, kept):
            self.present = before
            return []
        # says what the folder will hold, before any of it is changed
        offsets = {self._state.log_start_offset, self._state.log_end_offset}
        planned = {offset: empty_segment(offset, done=False) for offset in offsets}
        planned |= {each.base_offset: dataclasses.replace(each, done=False) for each in before}
        planned |= {each.base_offset: ExportedSegment.of(each) for each in new} | kept
        write_export(self._folder, [planned[base] for base in sorted(planned)], self._topic_id)
        with self._files:
            self.present = [self._segment(each, kept, producers, segments[-1]) for each in segments]
        self._finish(before, producers)
        return new

    def _holds_all(self, before: list[ExportedSegment], kept: dict[int, ExportedSegment]) -> bool:
        """True if the folder holds what the partition has now, from its log start to its log end, and no more."""
        if not before:
            return False
        filled = [each for each in before if each.stem]
        bounds = before[0].base_offset, before[-1].end_offset
        within = bounds[0] <= self._state.log_start_offset and bounds[1] == self._state.log_end_offset
        return within and filled == list(kept.values()) and all(each.done for each in before)

    def _producers(self, segments: list[SegmentInfo], kept: dict[int, ExportedSegment]) -> ProducerStates | None:
        """The producers before the first batch to export; None if the segments that stay do not determine them."""
        end = self._state.log_end_offset
        if not kept:
            return StoredProducers(self._handle.storage, self._handle.name, self._partition).newest(segments, end)
        stays_to = max(each.next_offset for each in segments if each.base_offset in kept)
        for offset, name in sorted(snapshots(self._folder).items(), reverse=True):
            if stays_to <= offset <= end:
                with suppress(CorruptionError):
                    return ProducerStates.of_snapshot(read_producer_snapshot(self._folder.read(name)), offset)
        return None

    def _segment(
        self, segment: SegmentInfo, kept: dict[int, ExportedSegment], producers: ProducerStates, last: SegmentInfo
    ) -> ExportedSegment:
        if segment.base_offset in kept:
            return kept[segment.base_offset]
        if segment is last and producers.offset <= segment.base_offset:
            self._put_snapshot(segment.base_offset, producers)
        return export_segment(self._handle.reader, segment, self._files, producers, self._interval)

    def _put_snapshot(self, offset: int, producers: ProducerStates) -> None:
        self._folder.put(file_name(offset, SNAPSHOT_SUFFIX), producers.snapshot())

    def _finish(self, before: list[ExportedSegment], producers: ProducerStates) -> None:
        """Fill in the ends of the log, take away what is no more, and write what is beside the segments."""
        start, end = self._state.log_start_offset, self._state.log_end_offset
        if not self.present or self.present[0].base_offset > start:
            self._put_empty(0, start)
        if self.present[-1].end_offset < end:
            self._put_empty(len(self.present), end)
        bases = {each.base_offset for each in self.present}
        for gone in {each.base_offset for each in before} - bases:
            self._folder.delete([file_name(gone, suffix) for suffix in paths.SEGMENT_SUFFIXES])
        self._put_snapshot(end, producers)
        stale = [name for offset, name in snapshots(self._folder).items() if offset not in (end, max(bases))]
        self._folder.delete(stale)
        adopted: Epochs = []
        # of a topic whose first part a broker wrote
        with suppress(FileNotFoundError, CorruptionError):
            adopted = read_epochs(self._source.read(LEADER_EPOCHS))
        epochs = joined_epochs([adopted, *(each.epochs for each in self.present)], start)
        self._folder.put(LEADER_EPOCHS, write_epochs(epochs))
        write_export(self._folder, self.present, self._topic_id)

    def _put_empty(self, place: int, offset: int) -> None:
        write_empty(self._folder, offset)
        self.present.insert(place, empty_segment(offset, done=True))


_COLUMNS = ("partition", "log_start_offset", "log_end_offset", "segments", "segments_written", "bytes_written")


@dataclass(frozen=True, slots=True, repr=False)
class ExportReport(Shown):
    """The contents of the log directory `log_dir` after an export, and the part that the export wrote."""

    log_dir: str
    partitions: tuple[ExportedPartition, ...]

    def __str__(self) -> str:
        size = sum(each.bytes_written for each in self.partitions)
        segments = sum(each.segments_written for each in self.partitions)
        whole = counted(len(self.partitions), "partition")
        head = f"exported {whole} to {self.log_dir}: wrote {counted(segments, 'segment')}, {counted(size, 'byte')}"
        return "\n".join([head, *self.notes])

    @property
    def notes(self) -> tuple[str, ...]:
        """A line for each partition with an open transaction, which a broker cannot end."""
        return tuple(
            f"partition {each.partition}: a transaction is open from offset {each.last_stable_offset} on, where "
            "consumers of committed records will stop: end it, and export again"
            for each in self.partitions
            if each.last_stable_offset < each.log_end_offset
        )

    def to_table(self) -> pa.Table:
        """A row per partition."""
        return table_of_numbers(self._rows(), _COLUMNS)

    def to_dict(self) -> dict[str, Any]:
        """The log directory, the rows of the table, and the notes."""
        return {"log_dir": self.log_dir, "partitions": self._rows(), "notes": list(self.notes)}

    def _rows(self) -> list[dict[str, int]]:
        return [{name: getattr(each, name) for name in _COLUMNS} for each in self.partitions]


def export_topic(
    handle: TopicHandle, snapshot: Snapshot, log_dir: str | os.PathLike[str], partitions: Iterable[int]
) -> ExportReport:
    """Write `partitions` of the topic into the local folder `log_dir`, next to what else is there."""
    target = Storage(os.path.realpath(Storage(log_dir).local_path("")))
    if os.path.isdir(target.url):
        refuse_topic(target, target.list_folders())
    with without_broker(target, alone=True):
        chosen, committed = sorted(set(partitions)), without_tails(snapshot)
        for number in chosen:
            # readers see it up to the damage, and an earlier export may have what is behind that
            if (damage := damage_of_tail(handle, committed, number)) is not None:
                raise damage
            folder = target.child(paths.partition_dir(handle.storage.name, number))
            if (last := read_export(folder)) is not None and last[1] != snapshot.topic_id:
                text = "another topic of this name was exported to here: export to another directory, or delete that"
                raise TopicExistsError(text, directory=folder.url, topic_id=last[1])
        exported = [export_partition(handle, snapshot, number, target) for number in chosen]
        _write_checkpoints(target, handle.storage.name, exported)
    return ExportReport(target.url, tuple(exported))


def _write_checkpoints(target: Storage, topic: str, exported: list[ExportedPartition]) -> None:
    """Bring the log directory's checkpoints up to date; lines of other partitions stay as they are."""
    ends = {each.partition: each.log_end_offset for each in exported}
    starts = {
        each.partition: each.log_start_offset if each.log_start_offset > each.first_base_offset else None
        for each in exported
    }
    cleaned = {
        each.partition: each.first_dirty_offset if each.first_dirty_offset > each.log_start_offset else None
        for each in exported
    }
    _merge(target, RECOVERY_POINTS, topic, ends)
    _merge(target, HIGH_WATERMARKS, topic, ends)
    _merge(target, LOG_START_OFFSETS, topic, starts)
    _merge(target, FIRST_DIRTY_OFFSETS, topic, cleaned)


def _merge(target: Storage, name: str, topic: str, offsets: Mapping[int, int | None]) -> None:
    """Set the offsets of the topic's partitions in a checkpoint file; None takes a partition out."""
    before = dict[PartitionName, int]()
    with suppress(FileNotFoundError):
        before = read_offsets(target.read(name), file=target.local_path(name))
    known = dict(before)
    for partition, offset in offsets.items():
        known.pop(PartitionName(topic, partition), None)
        if offset is not None:
            known[PartitionName(topic, partition)] = offset
    if known != before:
        target.put(name, write_offsets(known))
