"""Reads one segment: finds a position by an index, walks whole batches, and gives them out as chunks."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from typing import Any, TypeVar

import numpy as np
from crc32c import crc32c

from distlog.core.commits.segment_info import UNKNOWN, SegmentInfo
from distlog.core.errors import (
    CorruptIndexError,
    CorruptionError,
    CorruptRecordError,
    SnapshotTooOldError,
    StorageError,
    UnsupportedVersionError,
)
from distlog.core.format.index_cache import IndexCache
from distlog.core.format.kernels.file_read import WINDOW_BYTES, find_batches
from distlog.core.format.offset_and_time_index import (
    OFFSET_ENTRY,
    GrowingOffsetIndex,
    GrowingTimeIndex,
    MappedIndex,
    OffsetIndex,
    ReadBytes,
    TimeIndex,
    TimestampOffset,
)
from distlog.core.format.record_batch import BatchWalk, Headers, headers_before_damage
from distlog.core.format.transaction_index import (
    AbortedTransaction,
    decode_transactions,
)
from distlog.core.segments.chunks import (
    Chunk,
    LogFile,
    LogRange,
    OpenFiles,
    OpenLogs,
    StoredBatches,
    chunk_of_batches,
    chunk_of_files,
    cut_short,
)
from distlog.core.segments.segment_parts import (
    HEAD_BYTES,
    IdentifiedLogs,
    checksum_error,
    index_checksum,
    index_size,
    part_of,
)
from distlog.core.segments.slices import SegmentSlice, bounds_by
from distlog.core.storage.backend import Part
from distlog.core.storage.storage import Storage

#: Log bytes read and decoded at once.
CHUNK_BYTES = 8 << 20


class SegmentReader:
    """Reads the segments of one topic.

    A missing or bad index only costs time: the log is walked from its start instead. A bad index gives a warning.
    """

    def __init__(self, storage: Storage, topic: str, cache: IndexCache) -> None:
        self.storage, self.topic = storage, topic
        self._indexes = SegmentIndexes(storage, topic, cache)
        self._identified = IdentifiedLogs()
        self.logs = OpenLogs(storage, topic, self._identified)

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
            LogRange(part, log, 0, end - log.size, end, part.segment.stored_base_offset)
            for part, log, end in zip(slices, logs, ends, strict=True)
        ]
        return chunk_of_files(ranges, data)

    def chunks(self, part: SegmentSlice, step: int = CHUNK_BYTES, most_bytes: int | None = None) -> Iterator[Chunk]:
        """Chunks with the batches that `part` owns, of about `step` log bytes: use a small `step` to stop early.

        With `most_bytes` they end before a batch that would exceed it, or before bytes that are not a batch, and
        nothing is read ahead for later batches. Raises CorruptRecordError for bytes that are not a batch, after the
        batches before them, and for a chunk with a batch that is out of place, since the wrong one may be the next or
        the last one; checksums are left to `Chunk.check`.
        """
        start, hint = self._bounds(part)
        if most_bytes is not None:
            step = min(step, most_bytes + spare_bytes(part.segment))
            # without an index the wanted batches may be far away
            if start > 0 or part.start_offset <= part.segment.base_offset:
                hint = min(hint, start + step)
        walk = self._walk(part, start, hint, step, most_bytes)
        if start > 0:
            try:
                walk = chain([next(walk)], walk)
            except StopIteration:
                return
            except (CorruptIndexError, CorruptRecordError) as error:
                # the index may be wrong: the log is read from its start
                self._distrust(part.segment, error)
                walk = self._walk(part, 0, part.end_position, step, most_bytes)
        yield from walk

    def stored(self, part: SegmentSlice, most_bytes: int) -> StoredBatches | None:
        """The first batches that `part` owns, up to `most_bytes`, at least one, as a range of a local file.

        Only headers are read. None if there are no batches, if readers see other offsets or times than the file has,
        or if something is wrong with the log or its index: then `chunks` raises the error.
        """
        segment, log = part.segment, self.part(part.segment)
        if not self.storage.is_local_disk or segment.shift or segment.append_time_ms >= 0:
            return None
        with suppress(OSError, StorageError, CorruptRecordError), self.storage.opened_file(log.name) as file:
            start, log_end = log.begin + self._bounds(part)[0], log.begin + log.size
            if hasattr(os, "posix_fadvise"):
                # whoever sends them should not wait for the device, since it may have other receivers
                os.posix_fadvise(file, start, min(most_bytes, log_end - start), os.POSIX_FADV_WILLNEED)
            begin, end, next_offset = find_batches(
                file,
                (start, log_end),
                (-1 if start > log.begin else segment.stored_base_offset, segment.next_offset, segment.dense),
                (part.start_offset, part.end_offset, most_bytes),
                np.empty(WINDOW_BYTES, np.uint8),
            )
            # a file may end within a batch whose header is whole
            if begin >= 0 and os.pread(file, 1, end - 1):
                if segment.first_batch_crc != UNKNOWN:
                    self._identified.check_head(segment, log, memoryview(os.pread(file, HEAD_BYTES, log.begin)))
                return StoredBatches(self.storage, log.name, begin, end, next_offset)
        return None

    def _walk(
        self, part: SegmentSlice, position: int, hint: int, step: int, most_bytes: int | None
    ) -> Iterator[Chunk]:
        """Walk whole batches from `position`, where one begins; the wanted batches should end at `hint`."""
        segment, log = part.segment, self.part(part.segment)
        following = -1 if position > 0 else segment.stored_base_offset
        if position > 0 and self.storage.is_local:
            # files are replaced, and to check again costs little when the file is opened anyway
            self._identified.forget(segment)
        with self._explained([segment]):
            file = LogFile(self.storage, log, hint, mapped=not segment.is_active)
        read = partial(self._read_identified, file, segment)

        def headers(data: memoryview, begin: int) -> Headers:
            log_range = LogRange(part, log, begin, 0, len(data))
            rows, damage = headers_before_damage(data, log_range.file, log_range.origin)
            return rows, damage and log_range.located(damage)

        walk = BatchWalk(read, position, segment.log_bytes, step, "raise", headers=headers, hint=hint)
        batches, size = iter(walk), 0
        try:
            while walk.position < part.end_position and following < part.end_offset - segment.shift:
                try:
                    walked = next(batches, None)
                    if walked is None:
                        raise cut_short(LogRange(part, log, walk.position, 0, 0), 0)
                except CorruptRecordError:
                    # the caller's next read begins with it
                    if size and most_bytes is not None:
                        return
                    raise
                chunk = chunk_of_batches(LogRange(part, log, walked.position, 0, len(walked.data), following), walked)
                if following < 0:
                    # an index led here
                    _check_start(chunk)
                if owned := _owned(chunk):
                    yield owned
                    size += len(owned.data)
                if walked.position == 0:
                    self._identified.add(segment)
                following = int(chunk.batches["base_offset"][-1] + chunk.batches["last_offset_delta"][-1]) + 1
                if size and most_bytes is not None:
                    if size + walk.next_size > most_bytes:
                        return
                    walk.step = min(walk.step, most_bytes - size + spare_bytes(segment))
        finally:
            file.close()

    def _read_identified(self, file: LogFile, segment: SegmentInfo, position: int, end: int) -> memoryview:
        with self._explained([segment]):
            if position == 0 or self._identified.is_identified(segment):
                return file.read(position, end)
            head, data = file.read_with_head(HEAD_BYTES, position, end)
            self._identified.check_head(segment, self.part(segment), head)
            return data

    def _bounds(self, part: SegmentSlice) -> tuple[int, int]:
        """(where a batch begins, at or before the first owned one; where the last owned one should have ended)."""
        segment = part.segment
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
        """The segment's offset index, or None without a usable one, and for a small segment."""
        return self._indexes.offsets(segment) if segment.log_bytes > INDEX_WORTH_BYTES else None

    def time_entry(self, segment: SegmentInfo, timestamp_ms: int) -> TimestampOffset | None:
        """The time index's last entry below `timestamp_ms` (stored offset), or None without a usable index."""
        if segment.append_time_ms >= 0:
            # its entries have the times that the batches were written with
            return None
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
        """The aborted transactions that end in the segment, at the offsets that readers see.

        Without them aborted data would be read, so a bad index raises CorruptIndexError, a missing one
        SnapshotTooOldError.
        """
        try:
            transactions = self._indexes.aborted_transactions(segment)
        except FileNotFoundError:
            raise missing_log(segment, self.part(segment, ".txnindex")) from None
        return [transaction.moved(segment.shift) for transaction in transactions]

    def fetch_indexes(self, segments: Sequence[SegmentInfo]) -> None:
        with suppress(FileNotFoundError, StorageError):
            self._indexes.fetch(segments)

    def forget_indexes(self, segment: SegmentInfo) -> None:
        self._indexes.forget(segment)

    def forget_deleted(self) -> None:
        """Close the logs and indexes whose files are deleted: until then they take disk space."""
        self.logs.forget_deleted()
        self._indexes.forget_deleted()

    def _distrust(self, segment: SegmentInfo, error: CorruptionError) -> None:
        _log.warning("%s: scanning the log instead; verify the topic", error)
        self.forget_indexes(segment)

    @contextmanager
    def _explained(self, segments: Sequence[SegmentInfo]) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, StorageError):
            for segment in segments:
                check_log(self.storage, segment, self.part(segment))
            raise


def check_log(storage: Storage, segment: SegmentInfo, log: Part) -> None:
    """Raise SnapshotTooOldError if `log` is missing, CorruptRecordError if a sealed segment's log is cut short."""
    try:
        size = storage.size(log.name)
    except FileNotFoundError:
        raise missing_log(segment, log) from None
    is_short = size < log.begin + log.size
    if is_short and segment.is_active:
        raise SnapshotTooOldError(
            "the end of an active segment was cut off: refresh the topic, since a recovery cuts records that were "
            "not durable; if that does not help, it was cut otherwise: verify",
            file=log.name,
            partition=segment.partition,
        )
    if is_short:
        raise CorruptRecordError(
            "the file is shorter than its segment: verify, then restore it from a copy",
            file=log.name,
            position=size,
            partition=segment.partition,
        )


def missing_log(segment: SegmentInfo, part: Part) -> SnapshotTooOldError:
    return missing_file_error(part.name, segment.partition)


def missing_file_error(name: str, partition: int) -> SnapshotTooOldError:
    return SnapshotTooOldError(
        "a file of this version is missing: refresh the topic and read again: vacuum deletes what newer versions "
        "do not have; if that does not help, it was deleted otherwise: verify, then restore it from a copy",
        file=name,
        partition=partition,
    )


#: How many indexes stay open; each costs a mapping of its file.
OPEN_INDEXES = 64

_SUFFIXES = (".index", ".timeindex", ".txnindex")

_log = logging.getLogger("distlog")

T = TypeVar("T")
IndexT = TypeVar("IndexT", bound=MappedIndex)


class SegmentIndexes:
    """The indexes of one topic's segments, the last few open, remote ones cached. Thread-safe, and picklable."""

    def __init__(self, storage: Storage, topic: str, cache: IndexCache) -> None:
        self._storage, self._topic, self._cache = storage, topic, cache
        self._open: OpenFiles[Any] = OpenFiles(OPEN_INDEXES, timed=storage.is_local)

    def __reduce__(self) -> tuple[Any, ...]:
        return SegmentIndexes, (self._storage, self._topic, self._cache)

    def offsets(self, segment: SegmentInfo) -> OffsetIndex | GrowingOffsetIndex | None:
        """The segment's offset index, or None without a usable one; a bad one gives a warning."""
        if segment.is_active:
            return GrowingOffsetIndex(*self._growing(segment, ".index"))

        return self._usable(segment, ".index", OffsetIndex, lambda index: index.sanity_check(segment.log_bytes))

    def times(self, segment: SegmentInfo) -> TimeIndex | GrowingTimeIndex | None:
        if segment.is_active:
            return GrowingTimeIndex(*self._growing(segment, ".timeindex"))

        end = segment.next_offset - segment.shift
        return self._usable(segment, ".timeindex", TimeIndex, lambda index: index.sanity_check(end))

    def aborted_transactions(self, segment: SegmentInfo) -> list[AbortedTransaction]:
        """The aborted transactions that end in the segment, at stored offsets; FileNotFoundError without the file."""

        def read(path: str, _: int) -> list[AbortedTransaction]:
            with open(path, "rb") as file:
                return self._decoded(segment, part, file.read())

        if not segment.txn_index_bytes:
            return []
        part = self._part(segment, ".txnindex")
        if segment.is_active:
            return self._decoded(segment, part, self._read(part.name, 0, part.size))
        try:
            return self._fetched(segment, ".txnindex", read)
        except (FileNotFoundError, StorageError):
            raise
        except OSError as error:
            if self._storage.is_local:
                raise StorageError(f"cannot read: {error.strerror}", file=part.name) from error
            # there is no place for a copy, as on a full disk
            _log.warning("%s: the transaction index is read from the store each time", error)
        return self._decoded(segment, part, self._storage.read(*part.full_range))

    def _decoded(self, segment: SegmentInfo, part: Part, data: bytes) -> list[AbortedTransaction]:
        error = checksum_error(segment, ".txnindex", part, crc32c(data))
        if error is not None:
            raise error
        return decode_transactions(data, part.name, segment.stored_base_offset)

    def forget(self, segment: SegmentInfo) -> None:
        for suffix in _SUFFIXES:
            self._drop(segment, suffix)

    def forget_deleted(self) -> None:
        self._open.forget_deleted()

    def _usable(
        self, segment: SegmentInfo, suffix: str, kind: type[IndexT], check: Callable[[IndexT], None]
    ) -> IndexT | None:
        if not index_size(segment, suffix):
            return None
        # not for a remote index: asking the cache for its copy marks that as used
        cached: IndexT | None = self._open.cached(_key(segment, suffix)) if self._storage.is_local else None
        if cached is not None:
            return cached
        try:
            return self._fetched(segment, suffix, partial(self._open_index, segment, suffix, kind, check))
        except (CorruptIndexError, OSError) as error:
            _log.warning("%s: scanning the log instead; rebuild the indexes to be fast again", error)
            return None

    def _growing(self, segment: SegmentInfo, suffix: str) -> tuple[ReadBytes, int, int]:
        part = self._part(segment, suffix)
        return partial(self._read, part.name), part.size, segment.stored_base_offset

    def _read(self, name: str, start: int, end: int) -> bytes:
        # without an index the log is read from its start, which reports a missing log
        try:
            return self._storage.read(name, start, end)
        except FileNotFoundError:
            return b""

    def _fetched(self, segment: SegmentInfo, suffix: str, use: Callable[[str, int], T]) -> T:
        """The result of `use` for the index in a local file; a bad or lost copy is fetched again."""
        try:
            return use(*self._location(segment, suffix))
        except (CorruptIndexError, UnsupportedVersionError, FileNotFoundError):
            self._drop(segment, suffix)
            if self._storage.is_local:
                raise
        return use(*self._location(segment, suffix))

    def _location(self, segment: SegmentInfo, suffix: str) -> tuple[str, int]:
        part = self._part(segment, suffix)
        if not part.is_file and not self._storage.is_local:
            # a lookup of a time needs both
            self.fetch([segment])
        return self._cache.local_file(self._storage, part, tag=_tag(segment, suffix))

    def fetch(self, segments: Sequence[SegmentInfo]) -> None:
        parts = [(self._part(segment, suffix), _tag(segment, suffix)) for segment in segments for suffix in _SUFFIXES]
        in_bundles = [(part, tag) for part, tag in parts if part.size and not part.is_file]
        if in_bundles and not self._storage.is_local:
            self._cache.fetch(self._storage, in_bundles)

    def _open_index(
        self,
        segment: SegmentInfo,
        suffix: str,
        kind: type[IndexT],
        check: Callable[[IndexT], None],
        path: str,
        begin: int,
    ) -> IndexT:
        def open_index() -> IndexT:
            index = kind(path, segment.stored_base_offset, begin, index_size(segment, suffix))
            self._check_checksum(segment, suffix, index)
            check(index)
            return index

        index: IndexT = self._open.get(_key(segment, suffix), path, open_index)
        return index

    def _check_checksum(self, segment: SegmentInfo, suffix: str, index: MappedIndex) -> None:
        error = checksum_error(segment, suffix, self._part(segment, suffix), index.checksum())
        if error is not None:
            raise error

    def _drop(self, segment: SegmentInfo, suffix: str) -> None:
        self._cache.discard(self._storage, self._part(segment, suffix), tag=_tag(segment, suffix))
        self._open.forget(_key(segment, suffix))

    def _part(self, segment: SegmentInfo, suffix: str) -> Part:
        return part_of(self._topic, segment, suffix)


def _key(segment: SegmentInfo, suffix: str) -> tuple[Any, ...]:
    """The key of an index: no other index of the topic has it, in any version."""
    size, checksum = index_size(segment, suffix), index_checksum(segment, suffix)
    return segment.partition, segment.stem, segment.crc32c, suffix, size, checksum


def _tag(segment: SegmentInfo, suffix: str) -> str:
    """The key of a copy: an index of the same name and size has another if its log differs, or if it was rebuilt."""
    return f"{segment.crc32c:08x} {index_checksum(segment, suffix):x}"


#: The least extra bytes that are read, since an index leads to a position before the first batch.
_SPARE_BYTES = 64 << 10
#: A range of fewer bytes is read whole, without asking an index.
INDEX_WORTH_BYTES = 256 << 10


def spare_bytes(segment: SegmentInfo) -> int:
    """Twice the average distance of two entries of the offset index in the log; at least _SPARE_BYTES."""
    entries = segment.offset_index_bytes // OFFSET_ENTRY.itemsize
    apart = segment.log_bytes // entries if entries else 0
    return min(max(2 * apart, _SPARE_BYTES), CHUNK_BYTES)


def _check_start(chunk: Chunk) -> None:
    """Refuse an index that led to no batch, or past the first wanted batch."""
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
    """The chunk of the batches that begin in the slice's byte range and may hold its offsets; None for no batch."""
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
