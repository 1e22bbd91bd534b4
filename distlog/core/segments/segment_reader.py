"""Reads segments as chunks (whole batches) or as Arrow; has the handle of a topic, with its reader and commit log."""

from __future__ import annotations

import itertools
import logging
import os
import platform
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain, islice
from random import Random, SystemRandom
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from distlog.core import VERSION, paths
from distlog.core.arrays import Longs
from distlog.core.commits.commit_log import CommitLog, trusted_ms
from distlog.core.commits.deduplication import EXPIRATION_MS
from distlog.core.commits.group_commit import PendingAppendQueue
from distlog.core.commits.segment_table import UNKNOWN, SegmentInfo
from distlog.core.commits.snapshot_loader import NO_DEFAULTS
from distlog.core.errors import CorruptIndexError, CorruptionError, CorruptRecordError, StorageError
from distlog.core.format.indexes import (
    OFFSET_ENTRY,
    AbortedTransaction,
    GrowingOffsetIndex,
    IndexCache,
    OffsetIndex,
    TimestampOffset,
)
from distlog.core.format.kernels.batch_scan import SMALLEST_PREFIX, WINDOW_BYTES, find_batches
from distlog.core.format.key_index import KeyBatches, KeyIndexBuilder
from distlog.core.format.record_batch import LOG_OVERHEAD, BatchWalk, Headers, headers_before_damage, size_of_first
from distlog.core.segments.chunks import (
    Chunk,
    Isolation,
    LogRange,
    SegmentSlice,
    StoredBatches,
    bounds_by,
    chunk_of_batches,
    chunk_of_files,
    cut_short,
)
from distlog.core.segments.segment_parts import (
    DEPTH,
    HEAD_BYTES,
    IdentifiedLogs,
    LogFile,
    OpenLogs,
    SegmentIndexes,
    check_log,
    missing_file_error,
    part_of,
)
from distlog.core.storage.backend import Part
from distlog.core.storage.calls import in_order, prefetched, process_lock
from distlog.core.storage.storage import Storage
from distlog.core.times import now_ms

_log = logging.getLogger("distlog")

#: The log bytes that are read and decoded at once, of one segment, and of a group of small ones.
CHUNK_BYTES = GROUP_BYTES = 8 << 20
#: The log bytes of a local chunk if values and headers are not decoded, since each byte then needs less work.
NARROW_BYTES = 32 << 20
#: The log bytes of the first local chunk: few, since it is decoded before others are read, and may be enough.
FIRST_BYTES = 1 << 20
#: Segments up to this number of bytes are read whole and decoded together.
SMALL_BYTES = 1 << 20
#: A segment with a log up to this size is read without its indexes.
INDEX_WORTH_BYTES = 256 << 10
#: At least this many spare bytes are read: indexes lead to before the first wanted batch, or to the last one's start.
_SPARE_BYTES = 64 << 10
#: The record batches of one chunk that are decoded ahead, each of about OUTPUT_BYTES at most.
AHEAD_BATCHES = 4
#: The most pairs of a key and a batch that TailKeys remembers, in 12 bytes each, unless one segment has more.
_MOST_PAIRS = 1 << 24


class _FirstRead(NamedTuple):
    """Bytes [start, end) of a log, and before them, if `has_head`, its first HEAD_BYTES, which identify it."""

    log: Part
    has_head: bool
    start: int
    end: int

    @property
    def ranges(self) -> list[tuple[str, int, int]]:
        head = [self.log.range(0, HEAD_BYTES)] if self.has_head else []
        return [*head, self.log.range(self.start, self.end)]


class SegmentReader:
    """Reads the segments of one topic. A missing or bad index only costs time; a bad one is logged as a warning."""

    def __init__(self, storage: Storage, topic: str, cache: IndexCache) -> None:
        self.storage, self.topic = storage, topic
        self._indexes = SegmentIndexes(storage, topic, cache)
        self._identified = IdentifiedLogs()
        self.logs = OpenLogs(storage, topic, self._identified)
        self.tail_keys = TailKeys()

    def part(self, segment: SegmentInfo, suffix: str = ".log") -> Part:
        return part_of(self.topic, segment, suffix)

    def name(self, segment: SegmentInfo, suffix: str = ".log") -> str:
        return self.part(segment, suffix).name

    def whole_chunk(self, slices: Sequence[SegmentSlice]) -> Chunk:
        logs = [self.part(part.segment) for part in slices]
        with self._explained([part.segment for part in slices]):
            data = self.storage.read_joined([log.full_range for log in logs])
        ends = np.cumsum([log.size for log in logs]).tolist()
        ranges = [
            LogRange(
                part, log, position=0, start=end - log.size, end=end, first_offset=part.segment.stored_base_offset
            )
            for part, log, end in zip(slices, logs, ends, strict=True)
        ]
        return chunk_of_files(ranges, data)

    def located_chunk(self, slices: Sequence[SegmentSlice]) -> Chunk:
        """Return the batches of small located slices (with known positions of batches) as one chunk."""
        parts, ranges, start = self._located_batches(slices), list[LogRange](), 0
        for part, data in zip(slices, parts, strict=True):
            end = start + len(data)
            first_offset = -1 if part.start_position > 0 else part.segment.stored_base_offset
            ranges.append(LogRange(part, self.part(part.segment), part.start_position, start, end, first_offset))
            start = end
        return chunk_of_files(ranges, memoryview(b"".join(parts)))

    def _located_batches(self, slices: Sequence[SegmentSlice]) -> list[memoryview]:
        """Return the bytes of each slice's batches, after a check that the log is the segment's."""
        reads = [self._first_read(part) for part in slices]
        with self._explained([part.segment for part in slices]):
            blocks = iter(self.storage.read_ranges(list(chain.from_iterable(read.ranges for read in reads))))
            parts, missing = list[memoryview | None](), list[tuple[str, int, int]]()
            for part, read in zip(slices, reads, strict=True):
                if read.has_head:
                    self._identified.check_head(part.segment, read.log, next(blocks))
                start, last_batch, data = part.start_position, part.end_position - 1, next(blocks)
                # the size is not checked: a wrong one leads to a wrong header or the log's end, and the chunk raises
                size = max(size_of_first(data[last_batch - read.start :]), SMALLEST_PREFIX)
                end = min(last_batch + size, read.log.size)
                if read.start <= start and end <= read.end:
                    parts.append(data[start - read.start : end - read.start])
                else:
                    parts.append(None)
                    missing.append(read.log.range(start, end))
            complete = iter(self.storage.read_ranges(missing))
            return [next(complete) if data is None else data for data in parts]

    def _first_read(self, part: SegmentSlice) -> _FirstRead:
        """Return the first read of a located slice: locally the last batch's size, else probably all batches."""
        if self.storage.is_local:
            start = part.end_position - 1
            end = min(start + LOG_OVERHEAD, part.segment.log_bytes)
            # the file may have been replaced, and another check costs little, since the file is opened anyway
            self._identified.forget(part.segment)
        else:
            start, end = self._bounds(part)
        is_unknown = self._may_be_another(part) and not self._identified.is_identified(part.segment)
        has_head = part.start_position > 0 and is_unknown
        return _FirstRead(self.part(part.segment), has_head, start, end)

    def chunks(self, part: SegmentSlice, step: int = CHUNK_BYTES, most_bytes: int | None = None) -> Iterator[Chunk]:
        """Yield chunks of about `step` log bytes with the batches that belong to `part`.

        With `most_bytes`, the chunks have at most this size, unless the first batch is larger. Then nothing is read
        ahead, and the chunks end before bytes that are not a batch. Without it, bytes that are not a batch raise
        CorruptRecordError after the batches before them. A misplaced batch always raises. Checksums are not compared.
        """
        start, likely_end = self._bounds(part)
        if most_bytes is not None:
            step = min(step, most_bytes + spare_bytes(part.segment))
            # if the walk starts at 0 for lack of an index, perhaps far before the wanted batches, `likely_end` stays
            if start > 0 or part.start_offset <= part.segment.base_offset:
                likely_end = min(likely_end, start + step)
        walk = self._walk(part, start, likely_end, step, most_bytes)
        # the index that led to `start` may be wrong, and if it is, the log is read from its start
        if start > 0 and not part.is_located:
            try:
                walk = chain([next(walk)], walk)
            except StopIteration:
                return
            except (CorruptIndexError, CorruptRecordError) as error:
                self._distrust(part.segment, error)
                walk = self._walk(part, 0, part.end_position, step, most_bytes)
        yield from walk

    def stored(self, part: SegmentSlice, most_bytes: int) -> StoredBatches | None:
        """Return the first batches of `part`, up to `most_bytes`, in their file; None if `chunks` must read them."""
        segment, log = part.segment, self.part(part.segment)
        # `chunks` changes the bytes if readers get other offsets or times than the stored ones
        if not self.storage.is_local_disk or segment.shift or segment.append_time_ms >= 0:
            return None
        with suppress(OSError, StorageError, CorruptRecordError), self.storage.opened_file(log.name) as file:
            start, log_end = log.begin + self._bounds(part)[0], log.begin + log.size
            if hasattr(os, "posix_fadvise"):
                # a sender should not wait for the disk, since it may have other receivers
                os.posix_fadvise(file, start, min(most_bytes, log_end - start), os.POSIX_FADV_WILLNEED)
            begin, end, next_offset = find_batches(
                file,
                (start, log_end),  # where to search; then the offsets to expect, as in `LogRange.check_row`
                (-1 if start > log.begin else segment.stored_base_offset, segment.next_offset, segment.dense),
                (part.start_offset, part.end_offset, most_bytes),  # what to find
                np.empty(WINDOW_BYTES, np.uint8),
            )
            # the file may end within the last batch
            if begin >= 0 and os.pread(file, 1, end - 1):
                if segment.first_batch_crc != UNKNOWN:
                    self._identified.check_head(segment, log, memoryview(os.pread(file, HEAD_BYTES, log.begin)))
                return StoredBatches(self.storage, log.name, begin, end, next_offset)
        return None

    def _walk(
        self, part: SegmentSlice, position: int, likely_end: int, step: int, most_bytes: int | None
    ) -> Iterator[Chunk]:
        """Walk whole batches from `position`, the start of one; the wanted batches probably end at `likely_end`."""
        segment, log = part.segment, self.part(part.segment)
        next_offset = -1 if position > 0 else segment.stored_base_offset
        if position > 0 and self.storage.is_local:
            self._identified.forget(segment)  # as in `_first_read`, another check costs little
        with self._explained([segment]):
            file = LogFile(self.storage, log, likely_end, mapped=not segment.is_active)
        read = partial(self._read_identified, file, segment) if self._may_be_another(part) else file.read

        def headers(data: memoryview, begin: int) -> Headers:
            log_range = LogRange(part, log, begin, 0, len(data))
            rows, damage = headers_before_damage(data, log_range.file, log_range.origin)
            return rows, damage and log_range.located(damage)

        walk = BatchWalk(
            read, position, segment.log_bytes, step, on_damage="raise", headers=headers, likely_end=likely_end
        )
        batches, size = iter(walk), 0
        try:
            while walk.position < part.end_position and next_offset < part.end_offset - segment.shift:
                try:
                    walked = next(batches, None)
                    if walked is None:
                        raise cut_short(LogRange(part, log, walk.position, start=0, end=0), position=0)
                except CorruptRecordError:
                    # the caller's next read begins at the bad bytes, and raises the error
                    if size and most_bytes is not None:
                        return
                    raise
                log_range = LogRange(part, log, walked.position, 0, len(walked.data), next_offset)
                chunk = chunk_of_batches(log_range, walked)
                if next_offset < 0:
                    _check_start(chunk)  # an index led here
                if owned := _owned(chunk):
                    yield owned
                    size += len(owned.data)
                if walked.position == 0:
                    self._identified.add(segment)
                next_offset = int(chunk.batches["base_offset"][-1] + chunk.batches["last_offset_delta"][-1]) + 1
                if size and most_bytes is not None:
                    if size + walk.next_size > most_bytes:
                        return
                    walk.step = min(walk.step, most_bytes - size + spare_bytes(segment))
        finally:
            file.close()

    def _may_be_another(self, part: SegmentSlice) -> bool:
        """Return whether the log must be identified; in a store, not for located slices if its stem is unique."""
        return not part.is_located or self.storage.is_local or not paths.is_own_stem(part.segment.stem)

    def _read_identified(self, file: LogFile, segment: SegmentInfo, position: int, end: int) -> memoryview:
        with self._explained([segment]):
            if position == 0 or self._identified.is_identified(segment):
                return file.read(position, end)
            head, data = file.read_with_head(HEAD_BYTES, position, end)
            self._identified.check_head(segment, self.part(segment), head)
            return data

    def _bounds(self, part: SegmentSlice) -> tuple[int, int]:
        """Return the position of a batch at or before the slice's first, and a likely end of the slice's last."""
        segment = part.segment
        if part.is_located:
            return part.start_position, min(part.end_position - 1 + spare_bytes(segment), segment.log_bytes)
        starts_inside = part.start_offset > segment.base_offset or part.start_position > 0
        ends_inside = part.end_offset < segment.next_offset
        if segment.log_bytes <= INDEX_WORTH_BYTES or not (starts_inside or ends_inside):
            return 0, part.end_position
        index = self._indexes.offsets(segment)
        if index is None:
            return 0, part.end_position
        try:
            return bounds_by(index, part)
        except CorruptIndexError as error:
            self._distrust(segment, error)
            return 0, part.end_position

    def offset_index(self, segment: SegmentInfo) -> OffsetIndex | GrowingOffsetIndex | None:
        """Return the segment's offset index, or None if it has no good one or is small."""
        return self._indexes.offsets(segment) if segment.log_bytes > INDEX_WORTH_BYTES else None

    def time_entry(self, segment: SegmentInfo, timestamp_ms: int) -> TimestampOffset | None:
        """Return the last entry of the time index below `timestamp_ms`, with a stored offset, or None."""
        if segment.append_time_ms >= 0:
            return None  # the time index has other times, with which the batches were written
        index = self._indexes.times(segment) if segment.log_bytes > INDEX_WORTH_BYTES else None
        if index is None:
            return None
        try:
            entry = index.lookup(timestamp_ms - 1)
        except CorruptIndexError as error:
            self._distrust(segment, error)
            return None
        return entry if entry.timestamp >= 0 else None

    def aborted_transactions(self, segment: SegmentInfo) -> list[AbortedTransaction]:
        """Return the aborted transactions that end in the segment, with the offsets for readers."""
        try:
            transactions = self._indexes.aborted_transactions(segment)
        except FileNotFoundError:
            raise missing_file_error(self.name(segment, ".txnindex"), segment.partition) from None
        return [transaction.moved(segment.shift) for transaction in transactions]

    def fetch_indexes(self, segments: Sequence[SegmentInfo]) -> None:
        with suppress(FileNotFoundError, StorageError):
            self._indexes.fetch(segments)

    def forget_indexes(self, segment: SegmentInfo) -> None:
        self._indexes.forget(segment)

    def forget_deleted(self) -> None:
        """Close logs and indexes whose files are deleted, since open files take disk space."""
        self.logs.forget_deleted()
        self._indexes.forget_deleted()

    def _distrust(self, segment: SegmentInfo, error: CorruptionError) -> None:
        _log.warning("%s: scanning the log instead; verify the topic", error)
        self.forget_indexes(segment)

    @contextmanager
    def _explained(self, segments: Sequence[SegmentInfo]) -> Iterator[None]:
        """Replace the error of a failed read by a clearer one if the log of a segment is missing or too short."""
        try:
            yield
        except (FileNotFoundError, StorageError):
            for segment in segments:
                check_log(self.storage, segment, self.part(segment))
            raise


class TailKeys:
    """Remembers the keys of active segments that were read so far; for many threads, and empty after pickling."""

    def __init__(self) -> None:
        # by partition and stem: the keys, and the position up to which the log was read
        self._tails = OrderedDict[tuple[int, str], tuple[KeyIndexBuilder, int]]()
        self._lock = process_lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return TailKeys, ()

    def find(self, reader: SegmentReader, segment: SegmentInfo, hashes: Longs) -> KeyBatches:
        """Return the batches of an active segment that may have a key with one of the hashes."""
        with self._lock:
            key = segment.partition, segment.stem
            # removed until it is complete, since after an error a builder may lack keys
            keys, position = self._tails.pop(key, (KeyIndexBuilder(), 0))
            # `is_located` only for the start, which needs no index: `chunks` reads to the end of the log
            unread = _full_slice(segment)._replace(start_position=position, is_located=position > 0)
            chunks = reader.chunks(unread) if position < segment.log_bytes else iter(())
            for chunk in chunks:
                chunk.check()
                keys.add(chunk.data, chunk.batches, position)
                position += len(chunk.data)
            self._tails[key] = keys, position
            while len(self._tails) > 1 and sum(keys.pairs for keys, _ in self._tails.values()) > _MOST_PAIRS:
                self._tails.popitem(last=False)
            return keys.find(hashes)


def spare_bytes(segment: SegmentInfo) -> int:
    """Return twice the average distance in the log between entries of the offset index, at least _SPARE_BYTES."""
    entries = segment.offset_index_bytes // OFFSET_ENTRY.itemsize
    distance = segment.log_bytes // entries if entries else 0
    return min(max(2 * distance, _SPARE_BYTES), CHUNK_BYTES)


def _check_start(chunk: Chunk) -> None:
    """Raise an error if an index led to no batch, or past the first wanted batch."""
    (log_range,), first = chunk.ranges, chunk.rows(0, 1)
    first.check()
    part, base_offset = log_range.slice, int(first.batches["base_offset"][0]) + log_range.slice.segment.shift
    if log_range.position > part.start_position and base_offset > max(part.start_offset, part.segment.base_offset):
        raise CorruptIndexError(
            "the offset index leads past the offset: rebuild the index",
            file=log_range.file,
            position=log_range.file_position,
            partition=part.segment.partition,
        )


def _owned(chunk: Chunk) -> Chunk | None:
    """Return the batches that begin in the slice's byte range and may have its offsets, or None if there are none."""
    (log_range,), batches = chunk.ranges, chunk.batches
    part, shift = log_range.slice, log_range.slice.segment.shift
    if part.covers_segment:
        return chunk
    positions, base_offsets = batches["position"] + log_range.position, batches["base_offset"] + shift
    owned = (positions >= part.start_position) & (positions < part.end_position)
    owned &= (base_offsets + batches["last_offset_delta"] >= part.start_offset) & (base_offsets < part.end_offset)
    if owned.all():
        return chunk
    rows = np.flatnonzero(owned)
    return chunk.rows(int(rows[0]), int(rows[-1]) + 1) if len(rows) else None


Group = list[SegmentSlice]
#: Returns a chunk. A remote chunk is in memory before the call; a local one may be read by the call.
ChunkLoader = Callable[[], Chunk]


def read_slices(
    reader: SegmentReader,
    slices: Iterable[SegmentSlice],
    columns: Sequence[str],
    isolation: Isolation,
    max_workers: int,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of `slices`, in order, in batches of up to some MB.

    Small segments are read in groups. Chunks have some MB of whole batches, and are fetched ahead if they are remote.
    Local files are decoded by `max_workers` threads, including the caller's, and remote files by the caller alone.
    The memory is limited to a few chunks per thread.
    """
    is_local = reader.storage.is_local
    # requests take most of the time of remote files, so to decode ahead would need to fetch more ahead
    workers = max_workers if is_local else 1
    step = CHUNK_BYTES if {"value", "headers"}.intersection(columns) else NARROW_BYTES
    chunks = _local_chunks(reader, slices, step) if is_local else _remote_chunks(reader, groups(slices, GROUP_BYTES))
    for chunk in islice(chunks, 1):  # it may be enough, so it is decoded before more is read
        yield from chunk().records(columns, isolation)
    tasks = (partial(_decoded, chunk, columns, isolation, workers) for chunk in chunks)
    for batches in in_order(tasks, workers + 1, workers=workers, joined=True):
        yield from batches


def groups(slices: Iterable[SegmentSlice], room: int) -> Iterator[Group]:
    """Group small slices up to GROUP_BYTES, or `room` for the first group; a large slice is a group of its own."""
    group: Group = []
    group_bytes = 0
    for part in slices:
        size = part.estimated_bytes if part.is_located else part.segment.log_bytes
        is_small = _small(part)
        is_alike = not group or (group[-1].is_located == part.is_located and group[-1].keys is part.keys)
        if group and (not is_small or group_bytes + size > room or not is_alike):
            yield group
            group, group_bytes, room = [], 0, GROUP_BYTES
        if is_small:
            group.append(part)
            group_bytes += size
        else:
            yield [part]
    if group:
        yield group


def _small(part: SegmentSlice) -> bool:
    size = part.segment.log_bytes
    if part.is_located:
        return part.estimated_bytes <= SMALL_BYTES
    has_all_bytes = (part.start_position, part.end_position) == (0, size)
    return has_all_bytes and (size <= INDEX_WORTH_BYTES or (part.covers_segment and size <= SMALL_BYTES))


def _local_chunks(reader: SegmentReader, slices: Iterable[SegmentSlice], step: int) -> Iterator[ChunkLoader]:
    for number, group in enumerate(groups(slices, min(FIRST_BYTES, GROUP_BYTES))):
        if _small(group[0]):
            yield partial(_chunk_of, reader, group)
        else:
            chunks = reader.chunks(group[0], step)
            if number == 0:
                chunks = _growing(chunks)
            for chunk in chunks:
                yield partial(_same, chunk)


def _growing(chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    """Yield the chunks of one segment, with the first one cut in two after FIRST_BYTES."""
    for chunk in islice(chunks, 1):
        count = int(np.searchsorted(chunk.batches["position"], FIRST_BYTES))
        yield chunk.rows(0, count)
        if count < len(chunk.batches):
            yield chunk.rows(count, len(chunk.batches))
    yield from chunks


def _remote_chunks(reader: SegmentReader, groups: Iterator[Group]) -> Iterator[ChunkLoader]:
    for chunks in in_order((partial(_fetched, reader, group) for group in groups), DEPTH):
        for chunk in chunks:
            yield partial(_same, chunk)


def _fetched(reader: SegmentReader, group: Group) -> Iterable[Chunk]:
    if _small(group[0]):
        return [_chunk_of(reader, group)]
    chunks = reader.chunks(group[0])
    return chain(list(islice(chunks, 1)), chunks)  # only the first chunk is read now


def _chunk_of(reader: SegmentReader, group: Group) -> Chunk:
    return reader.located_chunk(group) if group[0].is_located else reader.whole_chunk(group)


def _same(chunk: Chunk) -> Chunk:
    return chunk


def _decoded(
    load_chunk: ChunkLoader, columns: Sequence[str], isolation: Isolation, workers: int
) -> Iterator[pa.RecordBatch]:
    """Yield the records of one chunk; with several workers, AHEAD_BATCHES are decoded now, and others on demand."""
    return prefetched(load_chunk().records(columns, isolation), AHEAD_BATCHES if workers > 1 else 0)


def whole_log(reader: SegmentReader, segment: SegmentInfo) -> Iterator[Chunk]:
    """Yield the segment's checked chunks; commit nothing before the end, where the file's checksum is compared."""
    size = checksum = 0
    for chunk in reader.chunks(_full_slice(segment)):
        chunk.check()
        size, checksum = size + len(chunk.data), crc32c(chunk.data, checksum)
        yield chunk
    _compare(reader, segment, size, checksum)


def whole_logs(reader: SegmentReader, segments: Iterable[SegmentInfo]) -> Iterator[Chunk]:
    """Yield the `whole_log` of each of `segments`, in their order; small ones are read at once, as one chunk."""
    for group in groups(map(_full_slice, segments), GROUP_BYTES):
        if len(group) == 1:
            yield from whole_log(reader, group[0].segment)
        else:
            yield from whole_groups(reader, [[part.segment for part in group]])


def whole_groups(reader: SegmentReader, groups: Sequence[Sequence[SegmentInfo]]) -> Iterator[Chunk]:
    """Read all `groups` of small segments at once, close ranges by one request; yields a chunk for each group."""
    chunk = reader.whole_chunk([_full_slice(segment) for group in groups for segment in group])
    chunk.check()
    for log_range in chunk.ranges:
        data = chunk.data[log_range.start : log_range.end]
        _compare(reader, log_range.slice.segment, len(data), crc32c(data))
    ends = list(itertools.accumulate(map(len, groups)))
    return (chunk.part(end - len(group), end) for group, end in zip(groups, ends, strict=True))


def _full_slice(segment: SegmentInfo) -> SegmentSlice:
    return SegmentSlice(segment, segment.base_offset, segment.next_offset, 0, segment.log_bytes)


def _compare(reader: SegmentReader, segment: SegmentInfo, size: int, checksum: int) -> None:
    if (size, checksum) != (segment.log_bytes, segment.crc32c):
        raise CorruptRecordError(
            "the log file is not the one that was committed: verify, then restore it from a copy",
            file=reader.name(segment),
            position=reader.part(segment).begin,
            partition=segment.partition,
        )


@dataclass(frozen=True, eq=False)
class TopicHandle:
    """The topic called `name` in `storage`, with the objects for all work on it.

    `random` must be unpredictable, since compaction hashes keys with a secret from it. It is not pickled.
    """

    storage: Storage
    name: str
    log: CommitLog
    clock: Callable[[], int] = now_ms
    new_id: Callable[[], str] = paths.new_id
    random: Random = field(default_factory=SystemRandom)
    #: How long a producer without appends is remembered, in ms: Kafka's `producer.id.expiration.ms`.
    producer_expiration_ms: int = EXPIRATION_MS

    @classmethod
    def of(
        cls,
        storage: Storage,
        name: str,
        log: CommitLog | None = None,
        clock: Callable[[], int] = now_ms,
        new_id: Callable[[], str] = paths.new_id,
        producer_expiration_ms: int = EXPIRATION_MS,
        defaults: Mapping[str, object] = NO_DEFAULTS,
    ) -> TopicHandle:
        """Return the handle of a topic, with a new commit log if `log` is None."""
        commit_log = log or topic_log(storage, clock, defaults=defaults)
        return cls(storage, name, commit_log, clock, new_id, producer_expiration_ms=producer_expiration_ms)

    @cached_property
    def reader(self) -> SegmentReader:
        return SegmentReader(self.storage, self.name, IndexCache())

    @cached_property
    def append_queue(self) -> PendingAppendQueue:
        return PendingAppendQueue(self.log)

    def trusted_ms(self) -> int:
        """Return this process's time in ms, or the store's if this process is far ahead. Sends a request."""
        return trusted_ms(self.clock(), self.storage)

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = self.storage, self.name, None, self.clock, self.new_id, self.producer_expiration_ms
        return TopicHandle.of, (*arguments, dict(self.log.defaults))


def topic_log(
    storage: Storage,
    clock: Callable[[], int] = now_ms,
    *,
    engine: str | None = None,
    defaults: Mapping[str, object] = NO_DEFAULTS,
) -> CommitLog:
    """Return the commit log of the topic in `storage`, even of a dropped one; `defaults` are for missing settings."""
    names = ("distlog", VERSION, engine, platform.node())
    writer = " ".join(filter(None, names))
    return CommitLog(storage, clock=clock, random=SystemRandom(), writer=writer, defaults=defaults)
