"""Writes records as segments from offset 0 on, in files or bundles; a commit moves the segments to their offsets."""

from __future__ import annotations

import dataclasses
import io
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from distlog.core import paths
from distlog.core.arrays import BLOCK_BYTES, MAX_INT, PAGE_BYTES, Bytes, Longs, byte_array
from distlog.core.commits.segment_table import (
    NO_OFFSET,
    OWN_FILE,
    TIME_OF_COMMIT,
    SegmentInfo,
    SegmentTable,
    of_numbers,
)
from distlog.core.commits.snapshot import Snapshot
from distlog.core.config import TopicConfig
from distlog.core.errors import CorruptRecordError, InvalidRecordError, StorageError
from distlog.core.format.compression import CODEC_NAMES
from distlog.core.format.indexes import TIME_ENTRY, AbortedTransaction, IndexBytes, encode_transactions
from distlog.core.format.kernels.batch_scan import crcs_of_rows
from distlog.core.format.kernels.record_write import copy_slices
from distlog.core.format.key_index import LEAST_LOG_BYTES, KeyIndexBuilder
from distlog.core.format.record_encoder import (
    BatchFormat,
    EncodedBatches,
    RecordEncoder,
    RecordInput,
    ValidBatch,
    batch_format,
    header_offsets,
    time_span,
    write_base_offsets,
)
from distlog.core.segments.producer_states import OpenTransactions
from distlog.core.segments.segment_parts import INDEX_FIELDS, index_fields_of
from distlog.core.segments.segment_reader import TopicHandle, whole_log
from distlog.core.segments.segment_state import LogDescription, RollTime
from distlog.core.storage.storage import ObjectWriter, Storage

# A bundle is one object with the small segments of many partitions, since each file costs a request or a sync. It has
# the logs, by partition, and then the indexes, with the same bytes as separate files. On a disk, each log begins at a
# page. The segments of a bundle have its stem, so it has at most one segment of a partition. The partition's next
# segment in an append goes to the next bundle, so that retention can delete a long load in parts.

if TYPE_CHECKING:
    from typing_extensions import Buffer

_log = logging.getLogger("distlog")


class SegmentWriter:
    """Writes the records of one partition as segments that begin at offset 0, in about 6 MiB of memory.

    A segment ends before it exceeds `segment.bytes`, `segment.index.bytes`, or `segment.ms` less a random part of
    `segment.jitter.ms`. The bytes do not depend on how records are split into appends.
    """

    def __init__(
        self,
        storage: Storage,
        topic: str,
        partition: int,
        read_version: int,
        config: TopicConfig,
        *,
        codec: str,
        clock: Callable[[], int],
        new_id: Callable[[], str],
        random: Random,
        bundles: Bundles | None = None,
        gather_bytes: int = BLOCK_BYTES,
    ) -> None:
        self._storage, self._topic, self._partition, self._read_version = storage, topic, partition, read_version
        self._config, self._clock, self._new_id, self._bundles = config, clock, new_id, bundles
        form = batch_format(config, codec, clock, random)
        self._encoder, self._roll_time = RecordEncoder(form, gather_bytes=gather_bytes), RollTime(form.window_ms)
        self._segment: SegmentFile | None = None
        self._sealed: list[SegmentInfo] = []
        self._is_aborted = False

    def append(self, source: RecordInput, rows: Longs) -> None:
        with self._adding_partition_to_errors():
            for encoded in self._encoder.append(source, rows):
                self._write(encoded)

    @property
    def is_uploading(self) -> bool:
        """True if the open segment is too large to be held in memory, so that `close` sends requests."""
        return self._segment is not None and self._segment.is_uploading

    def close(self) -> list[SegmentInfo]:
        """Make all files durable; returns the segments, each from offset 0 on."""
        if self._is_aborted:
            text = "cannot close the segment, since an earlier failure aborted it"
            raise StorageError(f"{text}: append the records again with a new writer", partition=self._partition)
        with self._adding_partition_to_errors():
            self._write(self._encoder.finish())
        self._seal()
        return self._sealed

    def abort(self) -> None:
        """Stop without a result; vacuum deletes the files already written, since nothing references them."""
        self._is_aborted = True
        if self._segment is not None:
            self._segment.abort()

    @contextmanager
    def _adding_partition_to_errors(self) -> Iterator[None]:
        try:
            yield
        except InvalidRecordError as error:
            row = error.details.pop("row")
            details = {"partition": self._partition, "row_of_partition": row, **error.details}
            raise InvalidRecordError(error.message, **details) from None

    def _write(self, encoded: EncodedBatches) -> None:
        batches, data = encoded.batches, np.frombuffer(encoded.data, np.uint8)
        spans = batches["last_offset_delta"].astype(np.int64) + 1
        bases = np.cumsum(spans) - spans  # the offsets of the batches, from 0 on and without gaps
        # relative to their batches, which get other base offsets in segments; unused for batches without timestamps
        deltas_of_max = encoded.offsets_of_max_timestamp - batches["base_offset"]
        first = 0
        while first < len(batches):
            segment = self._segment = self._segment or self._open()
            if segment.must_end:
                self._seal()
                continue
            base_offsets = bases[first:] - bases[first] + segment.next_offset
            end = first + self._room(segment, batches[first:], base_offsets, encoded.min_timestamps[first:])
            if end > first:
                rows = batches[first:end].copy()
                start = int(rows["position"][0])
                rows["position"] -= start
                part = data[start : start + int(rows["size"].sum())]
                base_offsets = base_offsets[: end - first]
                offsets_of_max = deltas_of_max[first:end] + base_offsets
                segment.write(part, rows, base_offsets, offsets_of_max, encoded.min_timestamps[first:end])
                first = end
                self._encoder.file_position = segment.size  # aligns its memory with the file
            else:
                self._seal()

    def _room(
        self, segment: SegmentFile, batches: npt.NDArray[Any], base_offsets: Longs, min_timestamps: Longs
    ) -> int:
        now_ms = self._clock()
        if segment.size == 0:
            self._roll_time.open(batches[0], int(min_timestamps[0]), now_ms)
        return min(segment.room(batches, base_offsets), self._roll_time.room(batches, now_ms))

    def _open(self) -> SegmentFile:
        stem = paths.new_stem(self._read_version, self._new_id())
        return SegmentFile(self._storage, self._topic, self._partition, stem, self._config, self._bundles)

    def _seal(self) -> None:
        if self._segment is not None:
            self._sealed.append(self._segment.seal_appended(self._clock()))
            self._segment = None


#: The largest log in a bundle. A segment with a larger log gets its own files, so that it is not held in memory.
LARGEST_PART = 8 << 20
#: About the largest bundle. Its parts are held until it is written, so this limits the memory of an append.
LARGEST_BUNDLE = 128 << 20
#: A larger object is streamed instead of put: past a disk's page cache, or as an upload in parts.
_PUT_BYTES = 16 << 20

#: The fields of SegmentInfo with the position of a part, by the suffix that its file would have.
_POSITION_FIELDS = {".log": "log_position"} | {
    suffix: field.position for suffix, field in INDEX_FIELDS.items() if field.position
}


@dataclasses.dataclass(frozen=True, slots=True)
class _Bundle:
    """The buffers of each part of a bundle, by partition and suffix."""

    stem: str
    segments: dict[int, Mapping[str, Sequence[Buffer]]] = dataclasses.field(default_factory=dict)


class Bundles:
    """Gathers the segments of one append in about `held_bytes`, and writes them as bundles; for many threads."""

    def __init__(self, storage: Storage, new_stem: Callable[[], str], held_bytes: int | None = None) -> None:
        self._storage, self._new_stem, self._held_bytes = storage, new_stem, held_bytes or LARGEST_BUNDLE
        # with a given limit, segments in a store end early to stay within it; otherwise they get their own files
        self._has_generations = held_bytes is not None and not storage.is_local
        #: Increases after each `held_bytes` of new data. A segment of an earlier generation ends at its next write.
        self.generation = 0
        self._generation_bytes = 0
        self._partitions: set[int] = set()
        self._unwritten: list[_Bundle] = []
        self._open_bytes = self._sealed_bytes = 0
        #: The SegmentInfo fields with the positions of a segment's parts, by partition and stem.
        self._positions: dict[tuple[int, str], dict[str, Any]] = {}
        self._lock = threading.Lock()

    def join(self, partition: int) -> None:
        """Note that the append has records of this partition; an append to a single partition has no bundle."""
        self._partitions.add(partition)

    @property
    def is_shared(self) -> bool:
        return len(self._partitions) > 1

    def has_room_for(self, log_bytes: int) -> bool:
        """True if an open segment of `log_bytes` may be held for a bundle."""
        has_memory = self._has_generations or self._open_bytes <= self._held_bytes
        return self.is_shared and log_bytes <= LARGEST_PART and has_memory

    def count_held(self, change: int) -> None:
        with self._lock:
            self._open_bytes += change
            self._generation_bytes += max(change, 0)
            if self._has_generations and self.is_shared and self._generation_bytes > self._held_bytes:
                self.generation, self._generation_bytes = self.generation + 1, 0

    def add(self, partition: int, log: Sequence[Buffer], indexes: Mapping[str, IndexBytes]) -> str:
        """Add the buffers of a segment's log, and its indexes by suffix, to a bundle; returns the bundle's stem."""
        parts = {".log": log, **{suffix: [data] for suffix, data in indexes.items() if data}}
        with self._lock:
            bundle = next((bundle for bundle in self._unwritten if partition not in bundle.segments), None)
            if bundle is None:
                bundle = _Bundle(self._new_stem())
                self._unwritten.append(bundle)
            bundle.segments[partition] = parts
            self._sealed_bytes += sum(map(_size, parts.values()))
            # with generations, the segments of the next generation may need the other half of the memory
            if self._sealed_bytes > self._held_bytes // (2 if self._has_generations else 1):
                self._write_bundles()
            return bundle.stem

    def close(self) -> None:
        """Write the remaining segments durably; raises StorageError."""
        with self._lock:
            self._write_bundles()

    def with_positions(self, segment: SegmentInfo) -> SegmentInfo:
        """Return a segment of a written bundle with the positions of its parts."""
        return dataclasses.replace(segment, **self._positions.get((segment.partition, segment.stem), {}))

    def _write_bundles(self) -> None:
        bundles, self._unwritten, self._sealed_bytes = self._unwritten, [], 0
        # a put needs more memory than a stream, since it joins the buffers in a copy
        put_bytes = min(_PUT_BYTES, self._held_bytes // 4) if self._storage.is_local else _PUT_BYTES
        for bundle in bundles:
            buffers = list(self._parts_of(bundle))
            bundle.segments.clear()
            _write(self._storage, paths.bundle_file(bundle.stem), buffers, put_bytes=put_bytes)

    def _parts_of(self, bundle: _Bundle) -> Iterator[Buffer]:
        """Yield the bytes of a bundle, and note the position of each part."""
        page = PAGE_BYTES if self._storage.is_local else 1
        position, segments = 0, sorted(bundle.segments.items())
        logs = [(number, ".log", parts[".log"]) for number, parts in segments]
        indexes = [(number, *part) for number, parts in segments for part in parts.items() if part[0] != ".log"]
        for partition, suffix, buffers in logs + indexes:
            gap = -position % page if suffix == ".log" else 0
            positions = self._positions.setdefault((partition, bundle.stem), {})
            positions[_POSITION_FIELDS[suffix]] = position + gap
            position += gap + _size(buffers)
            yield bytes(gap)
            yield from buffers


def _size(buffers: Sequence[Buffer]) -> int:
    return sum(memoryview(buffer).nbytes for buffer in buffers)


def _write(
    storage: Storage, name: str, buffers: list[Buffer], part_bytes: int | None = None, put_bytes: int = _PUT_BYTES
) -> None:
    if _size(buffers) <= put_bytes:
        joined = io.BytesIO()
        # each buffer is released after its copy, so that memory does not hold all bytes twice
        buffers.reverse()
        while buffers:
            joined.write(buffers.pop())
        storage.put(name, joined.getvalue())
        return
    with storage.open_write(name, part_bytes) as writer:
        for buffer in buffers:
            writer.write_behind(buffer)


def write_bundle(
    storage: Storage,
    stem: str,
    data: Bytes,
    sizes: Longs,
    indexes: Sequence[tuple[bytes, Longs]],
    part_bytes: int | None = None,
) -> list[Longs]:
    """Write a durable bundle of logs (`data`, `sizes`) and indexes (bytes, sizes); returns each kind's positions."""
    sizes = np.ascontiguousarray(sizes, np.int64)
    page = PAGE_BYTES if storage.is_local else 1
    padded_sizes = sizes + (-sizes % page)  # on a disk, each log begins at a page
    positions = np.cumsum(padded_sizes) - padded_sizes
    log, end = data, int(positions[-1] + sizes[-1])
    if page > 1:
        log = np.zeros(end, np.uint8)
        copy_slices(log, positions, data, np.cumsum(sizes) - sizes, sizes)
    all_positions = [positions]
    for entries, index_sizes in indexes:
        starts = end + np.cumsum(index_sizes) - index_sizes
        all_positions.append(np.where(index_sizes > 0, starts, OWN_FILE))
        end += len(entries)
    _write(storage, paths.bundle_file(stem), [log.data, *(entries for entries, _ in indexes)], part_bytes)
    return all_positions


def write_files(
    storage: Storage,
    topic: str,
    partition: int,
    stem: str,
    log: Bytes,
    indexes: Mapping[str, IndexBytes],
    part_bytes: int | None = None,
) -> None:
    """Write a durable segment as its own files: its log, and its indexes by suffix."""
    _write(storage, paths.segment_file(topic, partition, stem, ".log"), [log.data], part_bytes)
    files = {paths.segment_file(topic, partition, stem, suffix): data for suffix, data in indexes.items() if data}
    storage.put_many(files)


def with_aborted(
    storage: Storage, topic: str, segment: SegmentInfo, aborted: Iterable[AbortedTransaction], base_offset: int
) -> SegmentInfo:
    """Write a durable index of the transactions `aborted` in the segment at `base_offset`; returns the segment."""
    data = encode_transactions(transaction.moved(segment.stored_base_offset - base_offset) for transaction in aborted)
    if data:
        storage.put(paths.segment_file(topic, segment.partition, segment.stem, ".txnindex"), data)
    return dataclasses.replace(segment, **index_fields_of({".txnindex": data}))


def with_key_index(handle: TopicHandle, segment: SegmentInfo) -> SegmentInfo:
    """Write a durable key index, unless the log is short or damaged, or the disk is full; returns the segment."""
    if segment.log_bytes <= LEAST_LOG_BYTES:
        return segment
    keys, position = KeyIndexBuilder(), 0
    try:
        for chunk in whole_log(handle.reader, segment):
            keys.add(chunk.data, chunk.batches, position)
            position += len(chunk.data)
        file, count = keys.finish()
        handle.storage.put(handle.reader.name(segment, ".keyindex"), file)
    except (CorruptRecordError, StorageError) as error:
        _log.warning("%s: the segment has no key index; rebuild the indexes", error)
        return segment
    return dataclasses.replace(segment, key_count=count, **index_fields_of({".keyindex": file}))


#: A log up to this size is held in memory, and put with its indexes; a larger one outside of bundles is streamed.
HELD_BYTES = 1 << 20
#: A smaller buffer is copied when it is held for a bundle, since it may be a view of far more memory.
KEPT_BYTES = 1 << 18


class SegmentFile:
    """A new segment from offset 0 on, held in memory or streamed, which becomes files or parts of a bundle."""

    def __init__(
        self,
        storage: Storage,
        topic: str,
        partition: int,
        stem: str,
        config: TopicConfig,
        bundles: Bundles | None = None,
        part_bytes: int | None = None,
    ) -> None:
        self._storage, self._topic, self._partition, self._stem = storage, topic, partition, stem
        self._part_bytes = part_bytes
        self._segment_bytes = config.segment_size
        self._has_append_times = config.message_timestamp_type == "LogAppendTime"
        self._log = LogDescription(
            interval_bytes=config.index_interval_bytes,
            index_bytes=config.segment_index_bytes,
            key_index=config.key_index_enable,
        )
        self._bundles = bundles
        self._generation = bundles.generation if bundles else 0
        self._held: list[Buffer] = []
        self._stream: ObjectWriter | None = None

    @property
    def size(self) -> int:
        return self._log.size

    @property
    def is_uploading(self) -> bool:
        return self._stream is not None

    @property
    def must_end(self) -> bool:
        """True if the segment must end, to free memory for bundles."""
        return self._bundles is not None and not self.is_uploading and self._generation < self._bundles.generation

    @property
    def next_offset(self) -> int:
        return self._log.next_offset

    def room(self, batches: npt.NDArray[Any], base_offsets: Longs) -> int:
        """Return how many of the next `batches`, at `base_offsets`, fit in the segment and its indexes."""
        sizes = self.size + np.cumsum(batches["size"])
        fits = (sizes <= self._segment_bytes) & (base_offsets + batches["last_offset_delta"] <= MAX_INT)
        room = int(fits.argmin() if not fits.all() else len(fits))
        return min(room, self._log.room(batches[:room]))

    def write(
        self,
        data: Bytes,
        batches: npt.NDArray[Any],
        base_offsets: Longs,
        offsets_of_max_timestamp: Longs,
        min_timestamps: Longs,
    ) -> None:
        """Append `batches`, which fill `data`. Don't change it until the next call returns; with bundles, never."""
        write_base_offsets(data, batches["position"], header_offsets(batches, base_offsets))
        stored_batches = batches.copy()
        stored_batches["base_offset"] = base_offsets  # `data` has the last offsets of formats 0 and 1
        self._log.add(data, stored_batches, offsets_of_max_timestamp, min_timestamps)
        self._store(data.data)

    def _store(self, data: memoryview) -> None:
        if (
            self._stream is None
            and self.size > HELD_BYTES
            and not (self._bundles and self._bundles.has_room_for(self.size))
        ):
            self._stream = self._storage.open_write(self._name(".log"), self._part_bytes)
            for buffer in self._release_held():
                self._stream.write_behind(buffer)
        if self._stream is not None:
            self._stream.write_behind(data)
            return
        if self._bundles:
            self._bundles.count_held(len(data))
        is_kept = self._bundles is not None and len(data) >= KEPT_BYTES
        self._held.append(data if is_kept else bytes(data))

    def _release_held(self) -> list[Buffer]:
        held, self._held = self._held, []
        if self._bundles:
            self._bundles.count_held(-_size(held))
        return held

    def seal(self, now_ms: int) -> SegmentInfo:
        """Make the files durable and describe the segment; parts of a bundle become durable with the bundle."""
        described, files = self._log.describe(self._partition, self._stem, now_ms)
        if self._stream is None and self._bundles and self._bundles.is_shared:
            stem = self._bundles.add(self._partition, self._release_held(), files)
            return dataclasses.replace(described, stem=stem, first_unstable_offset=NO_OFFSET)
        if self._stream is None:
            files[".log"] = b"".join(self._release_held())
        else:
            self._stream.close()
        self._storage.put_many({self._name(suffix): data for suffix, data in files.items() if data})
        return dataclasses.replace(described, first_unstable_offset=NO_OFFSET)  # callers with transactions set it

    def seal_appended(self, now_ms: int) -> SegmentInfo:
        """Seal a segment of new records; with LogAppendTime, their times are the time of the commit."""
        sealed = self.seal(now_ms)
        return dataclasses.replace(sealed, append_time_ms=TIME_OF_COMMIT) if self._has_append_times else sealed

    def abort(self) -> None:
        if self._stream is not None:
            self._stream.abort()

    def _name(self, suffix: str) -> str:
        return paths.segment_file(self._topic, self._partition, self._stem, suffix)


#: About the most bytes that encoding adds to the bytes of a record in Arrow, and to the records of a batch.
_RECORD_SPARE, _BATCH_SPARE = 32, 64


@dataclasses.dataclass(frozen=True, slots=True)
class SmallSegments:
    """Segments of one batch each in memory, one per partition; `partitions` ascend. They need no SegmentWriter."""

    partitions: Longs
    encoded: EncodedBatches
    form: BatchFormat

    @classmethod
    def of(
        cls, source: RecordInput, record_bytes: int, rows: Longs, partitions: Longs, counts: Longs, form: BatchFormat
    ) -> SmallSegments | None:
        """Encode the next counts[i] of `rows` as partition i's batch; None if a partition needs several batches."""
        room = record_bytes + _RECORD_SPARE * len(rows) + _BATCH_SPARE * len(counts)
        encoded = RecordEncoder(form, room=room).append_groups(source, rows, counts)
        return None if encoded is None else cls(partitions, encoded, form)

    def write(self, storage: Storage, stem: str, now_ms: int) -> SegmentTable:
        """Write a durable bundle with this stem; returns the segments as SegmentWriter would describe them."""
        batches, count = self.encoded.batches, len(self.partitions)
        newest_ms = batches["max_timestamp"]
        has_times, deltas = newest_ms >= 0, batches["last_offset_delta"]
        time_entries = np.empty(count, TIME_ENTRY)  # one for the batch of each segment
        time_entries["timestamp"], time_entries["relative_offset"] = newest_ms, deltas
        time_indexes = time_entries[has_times].tobytes()
        data, sizes = byte_array(self.encoded.data), batches["size"]
        all_positions = write_bundle(
            storage, stem, data, sizes, [(time_indexes, np.where(has_times, TIME_ENTRY.itemsize, 0))]
        )
        view = memoryview(self.encoded.data)
        starts, has_append_time = batches["position"].tolist(), self.form.append_time is not None
        numbers = {
            "partition": self.partitions,
            "next_offset": deltas.astype(np.int64) + 1,
            "record_count": batches["record_count"],
            "log_bytes": sizes,
            "time_index_bytes": np.where(has_times, TIME_ENTRY.itemsize, 0),
            "first_timestamp": newest_ms if has_append_time else batches["base_timestamp"],
            "max_timestamp": newest_ms,
            "offset_of_max_timestamp": self.encoded.offsets_of_max_timestamp,
            "leader_epoch": np.maximum(batches["leader_epoch"], -1),
            "created_ms": np.full(count, now_ms),
            "crc32c": [
                crc32c(view[start : start + size]) for start, size in zip(starts, sizes.tolist(), strict=True)
            ],
            "min_timestamp": self.encoded.min_timestamps,
            "append_time_ms": np.full(count, TIME_OF_COMMIT if has_append_time else -1),
            "offset_index_crc32c": np.zeros(count, np.int64),
            "time_index_crc32c": np.where(has_times, crcs_of_rows(time_entries), 0),
            "txn_index_crc32c": np.zeros(count, np.int64),
            "first_batch_crc": batches["crc"],
            "last_batch_crc": batches["crc"],
            "first_unstable_offset": np.full(count, NO_OFFSET),
            "log_position": all_positions[0],
            "time_index_position": all_positions[1],
        }
        return SegmentTable(of_numbers(numbers, stem, CODEC_NAMES[self.form.codec]))


#: Batches by partition.
Parts = Mapping[int, Sequence[ValidBatch]]


class WrittenSegment(NamedTuple):
    """A segment before its commit, and its batches. The commit must check that their markers abort just `aborted`."""

    info: SegmentInfo
    batches: Sequence[ValidBatch]
    aborted: Sequence[AbortedTransaction] = ()


def write_batches(
    handle: TopicHandle, snapshot: Snapshot, batches: Parts, open_transactions: Mapping[int, Mapping[int, int]]
) -> list[WrittenSegment]:
    """Write durable segments; overwrites base offsets. `open_transactions`: starts, by partition and producer."""
    bundles = Bundles(handle.storage, lambda: paths.new_stem(snapshot.version, handle.new_id()))
    for partition in batches:
        bundles.join(partition)
    sealed = [
        segment
        for partition, parts in sorted(batches.items())
        for segment in _segments(handle, snapshot, partition, parts, bundles)
    ]
    bundles.close()
    positioned = [segment._replace(info=bundles.with_positions(segment.info)) for segment in sealed]
    ends = {number: snapshot.partitions[number].log_end_offset for number in batches}
    return list(_with_aborted(handle, positioned, ends, open_transactions))


def effect(
    written: WrittenSegment, base_offset: int, transactions: OpenTransactions
) -> tuple[list[AbortedTransaction], int]:
    """Return which `transactions` a segment at `base_offset` aborts, and the first unstable offset after it."""
    aborted, offset = list[AbortedTransaction](), base_offset
    for batch in written.batches:
        aborted += transactions.observe(batch.data, batch.rows, offset - int(batch.rows[0]["base_offset"]))
        offset += batch.offset_count
    return aborted, transactions.first_offset


def _with_aborted(
    handle: TopicHandle,
    segments: Sequence[WrittenSegment],
    ends: dict[int, int],
    open_transactions: Mapping[int, Mapping[int, int]],
) -> Iterator[WrittenSegment]:
    """Yield the segments with transaction indexes for their final offsets."""
    open_now = {number: OpenTransactions(open_transactions.get(number)) for number in ends}
    for written in segments:
        info, base = written.info, ends[written.info.partition]
        ends[info.partition] += info.next_offset
        aborted, _ = effect(written, base, open_now[info.partition])
        if not aborted:
            yield written
            continue
        yield WrittenSegment(with_aborted(handle.storage, handle.name, info, aborted, base), written.batches, aborted)


def _segments(
    handle: TopicHandle, snapshot: Snapshot, partition: int, batches: Sequence[ValidBatch], bundles: Bundles
) -> Iterator[WrittenSegment]:
    segment: SegmentFile | None = None
    held: list[ValidBatch] = []
    roll_time, now_ms = RollTime(time_span(snapshot.config)), handle.clock()
    for valid in batches:
        is_full = segment is not None and not segment.room(valid.rows, np.array([segment.next_offset]))
        if segment is not None and (is_full or not roll_time.room(valid.rows, now_ms)):
            yield WrittenSegment(segment.seal_appended(handle.clock()), held)
            segment, held = None, []
        if segment is None:
            stem = paths.new_stem(snapshot.version, handle.new_id())
            segment = SegmentFile(handle.storage, handle.name, partition, stem, snapshot.config, bundles)
            roll_time.open(valid.rows[0], valid.min_timestamp, now_ms)
        base = np.array([segment.next_offset])
        offset_of_max = (
            base + valid.offset_of_max_timestamp  # relative to the batch, which begins at 0
            if valid.offset_of_max_timestamp >= 0
            else np.array([valid.offset_of_max_timestamp])
        )
        segment.write(valid.data, valid.rows, base, offset_of_max, np.array([valid.min_timestamp]))
        held.append(valid)
    if segment is not None:
        yield WrittenSegment(segment.seal_appended(handle.clock()), held)
