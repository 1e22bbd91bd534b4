"""Locates, checks and opens the parts of a segment in storage: its log and its indexes."""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from crc32c import crc32c

from distlog.core import paths
from distlog.core.arrays import Bytes, byte_array
from distlog.core.commits.segment_table import OWN_FILE, UNKNOWN, SegmentInfo
from distlog.core.errors import (
    CorruptIndexError,
    CorruptRecordError,
    SnapshotTooOldError,
    StorageError,
    UnsupportedVersionError,
)
from distlog.core.format.indexes import (
    AbortedTransaction,
    GrowingOffsetIndex,
    GrowingTimeIndex,
    IndexBytes,
    IndexCache,
    OffsetIndex,
    ReadBytes,
    TimeIndex,
    decode_transactions,
)
from distlog.core.format.kernels.batch_scan import CRC_AT, CRC_START, MAGIC_AT
from distlog.core.storage.backend import Part, too_short_error
from distlog.core.storage.calls import in_order, process_lock
from distlog.core.storage.local_files import known_local_disk
from distlog.core.storage.storage import Storage

_log = logging.getLogger("distlog")

#: This many first bytes of a log include the checksum of its first batch, in all formats.
HEAD_BYTES = CRC_START
_LEGACY_CRC_AT = 12  # the position of the checksum in formats 0 and 1
#: The most identified logs that are remembered.
REMEMBERED = 4096
#: The most indexes that stay open; each costs a mapping of its file.
OPEN_INDEXES = 64
#: The most logs that stay mapped. The disk space of a deleted log is free only after `forget_deleted`.
OPEN_LOGS = 16
#: The largest GET, in bytes, of a remote file that is read forward, and the number of GETs ahead of the reader.
WINDOW_BYTES, DEPTH = 8 << 20, 3
#: The sizes of reads of an active log, which are tried in turn until one has the wanted batches.
_READ_BYTES = (32 << 10, 512 << 10, 2 << 20)

T = TypeVar("T")
IndexT = TypeVar("IndexT", OffsetIndex, TimeIndex)


class IndexFields(NamedTuple):
    """The fields of SegmentInfo with the size and CRC-32C of one index, and its position in a shared object."""

    size: str
    checksum: str
    position: str | None


#: The fields of each index, by the suffix of its file.
INDEX_FIELDS = {
    ".index": IndexFields("offset_index_bytes", "offset_index_crc32c", "offset_index_position"),
    ".timeindex": IndexFields("time_index_bytes", "time_index_crc32c", "time_index_position"),
    ".txnindex": IndexFields("txn_index_bytes", "txn_index_crc32c", None),
    ".keyindex": IndexFields("key_index_bytes", "key_index_crc32c", "key_index_position"),
}
#: The indexes that a cache copies from a store, since they are read whole. A search of a key index reads few blocks.
_CACHED = (".index", ".timeindex", ".txnindex")


def index_fields_of(files: Mapping[str, IndexBytes]) -> dict[str, Any]:
    """Return the SegmentInfo fields of index files, which are given by suffix; empty bytes mean no file."""
    sizes: dict[str, Any] = {INDEX_FIELDS[suffix].size: len(data) for suffix, data in files.items()}
    return sizes | {INDEX_FIELDS[suffix].checksum: crc32c(data) for suffix, data in files.items()}


def index_size(segment: SegmentInfo, suffix: str) -> int:
    return int(getattr(segment, INDEX_FIELDS[suffix].size))


def index_checksum(segment: SegmentInfo, suffix: str) -> int:
    """The CRC-32C of an index file; UNKNOWN if its commit does not have it."""
    return int(getattr(segment, INDEX_FIELDS[suffix].checksum))


def remedy(segment: SegmentInfo) -> str:
    """Return the remedy for a bad index file; a writer of an active segment rebuilds its indexes itself."""
    return "the next append or roll rebuilds it" if segment.is_active else "rebuild the index"


def checksum_error(segment: SegmentInfo, suffix: str, part: Part, checksum: int) -> CorruptIndexError | None:
    """The error if `part`, an index of the segment, has the wrong CRC-32C `checksum`; None if it is right."""
    expected = index_checksum(segment, suffix)
    if expected in (UNKNOWN, checksum):
        return None
    return CorruptIndexError(
        f"the checksum of the index file differs from its segment's metadata: {remedy(segment)}",
        file=part.name,
        partition=segment.partition,
        **({} if part.is_file else {"position": part.begin}),
    )


def part_of(topic: str, segment: SegmentInfo, suffix: str = ".log") -> Part:
    """Return the file, or the range of a bundle, with a segment's log or index. An active file may be longer."""
    if suffix == ".log":
        size, position = segment.log_bytes, segment.log_position
    else:
        size, field = index_size(segment, suffix), INDEX_FIELDS[suffix].position
        position = OWN_FILE if field is None else getattr(segment, field)
    if position != OWN_FILE:
        return Part(paths.bundle_file(segment.stem), position, size, is_file=False)
    return Part(paths.segment_file(topic, segment.partition, segment.stem, suffix), 0, size, is_file=True)


# Similar segments have their batches at the same positions and offsets. The metadata has the checksums of the first
# and last batch, which distinguish their logs. So a read from the middle of a log also checks the first batch's.


class IdentifiedLogs:
    """Remembers which logs of a topic have the first batch of their segment; for many threads, and picklable."""

    def __init__(self) -> None:
        self._keys_seen: set[tuple[int, str, int]] = set()

    def __reduce__(self) -> tuple[Any, ...]:
        return IdentifiedLogs, ()

    def is_identified(self, segment: SegmentInfo) -> bool:
        """True if the log was checked, or the metadata has no checksum of its beginning."""
        return segment.first_batch_crc == UNKNOWN or _key(segment) in self._keys_seen

    def add(self, segment: SegmentInfo) -> None:
        if len(self._keys_seen) >= REMEMBERED:
            self._keys_seen = set()
        self._keys_seen.add(_key(segment))

    def forget(self, segment: SegmentInfo) -> None:
        self._keys_seen.discard(_key(segment))

    def check_head(self, segment: SegmentInfo, log: Part, head: memoryview) -> None:
        """Raise CorruptRecordError if `head`, the first HEAD_BYTES of `log`, is not of the segment's log."""
        crc_position = CRC_AT if head[MAGIC_AT] >= 2 else _LEGACY_CRC_AT
        if int.from_bytes(head[crc_position : crc_position + 4], "big") != segment.first_batch_crc:
            self.forget(segment)
            raise another_log_error(segment, log.name, log.begin)
        self.add(segment)


def _key(segment: SegmentInfo) -> tuple[int, str, int]:
    return segment.partition, segment.stem, segment.first_batch_crc


def another_log_error(segment: SegmentInfo, file: str, position: int) -> CorruptRecordError:
    text = "the file is the log of another segment, or damaged: verify, then restore it from a copy"
    return CorruptRecordError(text, file=file, position=position, partition=segment.partition)


def check_log(storage: Storage, segment: SegmentInfo, log: Part) -> None:
    """Raise an error if `log` is missing or too short."""
    try:
        size = storage.size(log.name)
    except FileNotFoundError:
        raise missing_file_error(log.name, segment.partition) from None
    is_short = size < log.begin + log.size
    if is_short and segment.is_active:
        raise SnapshotTooOldError(
            "the end of an active segment was cut off: refresh the topic, since a recovery cuts records that were "
            "not durable; if that does not help, verify",
            file=log.name,
            partition=segment.partition,
        )
    if is_short:
        text = "the file is shorter than its segment: verify, then restore it from a copy"
        raise CorruptRecordError(text, file=log.name, position=size, partition=segment.partition)


def missing_file_error(name: str, partition: int) -> SnapshotTooOldError:
    return SnapshotTooOldError(
        "a file of this version is missing: refresh the topic and read again, since vacuum deletes files that newer "
        "versions do not have; if that does not help, verify, then restore the file from a copy",
        file=name,
        partition=partition,
    )


class SegmentIndexes:
    """The indexes of one topic's segments: keeps some open, and caches remote ones. Thread-safe, and picklable."""

    def __init__(self, storage: Storage, topic: str, cache: IndexCache) -> None:
        self._storage, self._topic, self._cache = storage, topic, cache
        self._open: OpenFiles[Any] = OpenFiles(OPEN_INDEXES, timed=storage.is_local)

    def __reduce__(self) -> tuple[Any, ...]:
        return SegmentIndexes, (self._storage, self._topic, self._cache)

    def offsets(self, segment: SegmentInfo) -> OffsetIndex | GrowingOffsetIndex | None:
        """The segment's offset index, or None if there is none or it is bad, which is logged as a warning."""
        if segment.is_active:
            return GrowingOffsetIndex(*self._growing(segment, ".index"))
        return self._usable(segment, ".index", OffsetIndex, segment.log_bytes)

    def times(self, segment: SegmentInfo) -> TimeIndex | GrowingTimeIndex | None:
        if segment.is_active:
            return GrowingTimeIndex(*self._growing(segment, ".timeindex"))
        return self._usable(segment, ".timeindex", TimeIndex, segment.next_offset - segment.shift)

    def aborted_transactions(self, segment: SegmentInfo) -> list[AbortedTransaction]:
        """The aborted transactions that end in the segment, at stored offsets; FileNotFoundError without the file."""
        if not segment.txn_index_bytes:
            return []
        part = self._part(segment, ".txnindex")
        if segment.is_active:
            return self._decoded(segment, part, self._read(part.name, 0, part.size))
        try:
            return self._fetched(
                segment, ".txnindex", lambda path, _: self._decoded(segment, part, Path(path).read_bytes())
            )
        except (FileNotFoundError, StorageError):
            raise
        except OSError as error:
            if self._storage.is_local:
                raise StorageError(f"cannot read: {error.strerror}", file=part.name) from error
            # a copy cannot be stored, as on a full disk
            _log.warning("the transaction index cannot be cached, so it is read from the store each time: %s", error)
        return self._decoded(segment, part, self._storage.read(*part.full_range))

    def _decoded(self, segment: SegmentInfo, part: Part, data: bytes) -> list[AbortedTransaction]:
        error = checksum_error(segment, ".txnindex", part, crc32c(data))
        if error is not None:
            raise error
        return decode_transactions(data, part.name, segment.stored_base_offset)

    def forget(self, segment: SegmentInfo) -> None:
        for suffix in _CACHED:
            self._drop(segment, suffix)

    def forget_deleted(self) -> None:
        self._open.forget_deleted()

    def _usable(self, segment: SegmentInfo, suffix: str, kind: type[IndexT], end: int) -> IndexT | None:
        """The open index, or None if there is none or it is bad; `end` is the bound of its entries."""
        if not index_size(segment, suffix):
            return None
        key = _index_key(segment, suffix)
        # a remote index is found through the cache each time, which marks its copy as used
        cached: IndexT | None = self._open.cached(key) if self._storage.is_local else None
        if cached is not None:
            return cached
        try:
            index: IndexT = self._fetched(
                segment,
                suffix,
                lambda path, begin: self._open.get(
                    key, path, lambda: self._checked_index(segment, suffix, kind, end, path, begin)
                ),
            )
            return index
        except (CorruptIndexError, OSError) as error:
            _log.warning("%s: scanning the log instead; rebuild the indexes", error)
            return None

    def _growing(self, segment: SegmentInfo, suffix: str) -> tuple[ReadBytes, int, int]:
        part = self._part(segment, suffix)
        return partial(self._read, part.name), part.size, segment.stored_base_offset

    def _read(self, name: str, start: int, end: int) -> bytes:
        # without an index, the log is read from its start; if the log is missing, too, that read raises the error
        try:
            return self._storage.read(name, start, end)
        except FileNotFoundError:
            return b""

    def _fetched(self, segment: SegmentInfo, suffix: str, use: Callable[[str, int], T]) -> T:
        """Return the result of `use` for the index in a local file; a bad or lost copy is fetched again."""
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
            self.fetch([segment])  # all indexes in one request, since a lookup of a time needs two indexes
        return self._cache.local_file(self._storage, part, tag=_tag(segment, suffix))

    def fetch(self, segments: Sequence[SegmentInfo]) -> None:
        parts = [(self._part(segment, suffix), _tag(segment, suffix)) for segment in segments for suffix in _CACHED]
        in_bundles = [(part, tag) for part, tag in parts if part.size and not part.is_file]
        if in_bundles and not self._storage.is_local:
            self._cache.fetch(self._storage, in_bundles)

    def _checked_index(
        self, segment: SegmentInfo, suffix: str, kind: type[IndexT], end: int, path: str, begin: int
    ) -> IndexT:
        index = kind(path, segment.stored_base_offset, begin, index_size(segment, suffix))
        error = checksum_error(segment, suffix, self._part(segment, suffix), index.checksum())
        if error is not None:
            raise error
        index.sanity_check(end)
        return index

    def _drop(self, segment: SegmentInfo, suffix: str) -> None:
        self._cache.discard(self._storage, self._part(segment, suffix), tag=_tag(segment, suffix))
        self._open.forget(_index_key(segment, suffix))

    def _part(self, segment: SegmentInfo, suffix: str) -> Part:
        return part_of(self._topic, segment, suffix)


def _index_key(segment: SegmentInfo, suffix: str) -> tuple[Any, ...]:
    """Return the key of an index among the open ones, unique among all versions of the topic."""
    size, checksum = index_size(segment, suffix), index_checksum(segment, suffix)
    return segment.partition, segment.stem, segment.crc32c, suffix, size, checksum


def _tag(segment: SegmentInfo, suffix: str) -> str:
    """Return the tag of a cached copy, which differs for a rebuilt index and for another log of the same name."""
    return f"{segment.crc32c:08x} {index_checksum(segment, suffix):x}"


class LogFile:
    """Reads the bytes of one log forward, mostly up to `likely_end`.

    The first read of a remote file is one request, since it may be the only read. From the second read on, windows
    are fetched ahead, each twice as large as the one before. With `mapped`, a sealed file on a local disk is mapped,
    since a copy costs three times as much. But an error of the disk then ends the process.
    """

    def __init__(self, storage: Storage, log: Part, likely_end: int, *, mapped: bool) -> None:
        self._storage, self._log, self._likely_end = storage, log, likely_end
        folder = os.path.dirname(storage.local_path(log.name)) if storage.is_local else ""
        self._is_mapped = mapped and storage.is_local and known_local_disk(folder)
        # bytes that were fetched ahead, from `_position` on
        self._held = memoryview(b"")
        self._position = 0
        self._windows: Iterator[memoryview] | None = None

    def read(self, start: int, end: int) -> memoryview:
        """Return bytes [start, end); `start` must not decrease. Raises StorageError if the log ends before `end`."""
        if self._is_mapped:
            return self._mapped(start, end)
        if self._storage.is_local or end > self._likely_end:
            return self._get(start, end)
        windows = self._windows or self._fetch_ahead(self._get(start, end), start, end)
        while self._position + len(self._held) < end:
            # drop the bytes before `start`, and append the next window
            remaining = self._held[max(0, start - self._position) :]
            self._position += len(self._held) - len(remaining)
            window = next(windows)
            self._held = memoryview(b"".join([remaining, window])) if remaining else window
        return self._held[start - self._position : end - self._position]

    def read_with_head(self, size: int, start: int, end: int) -> tuple[memoryview, memoryview]:
        """Return the first `size` bytes of the log, and bytes [start, end), in place of the first `read`."""
        if self._is_mapped:
            return self._mapped(0, size), self._mapped(start, end)
        head, data = self._storage.read_ranges([self._log.range(0, size), self._log.range(start, end)])
        if not self._storage.is_local and end <= self._likely_end:
            self._fetch_ahead(data, start, end)
        return head, data

    def _fetch_ahead(self, data: memoryview, start: int, end: int) -> Iterator[memoryview]:
        self._held, self._position = data, start
        self._windows = in_order(self._windows_after(end, 2 * (end - start)), DEPTH)  # starts at the first `next`
        return self._windows

    def _mapped(self, start: int, end: int) -> memoryview:
        name, start, end = self._log.range(start, end)
        mapped = self._storage.map(name, start, end)
        if len(mapped) < end - start:
            raise too_short_error(name, start, end)
        return mapped

    def _windows_after(self, start: int, size: int) -> Iterator[Callable[[], memoryview]]:
        while start < self._likely_end:
            end = min(start + min(size, WINDOW_BYTES), self._likely_end)
            yield partial(self._get, start, end)
            start, size = end, 2 * size

    def _get(self, start: int, end: int) -> memoryview:
        return self._storage.read_joined([self._log.range(start, end)])

    def close(self) -> None:
        if self._windows is not None:
            self._windows.close()  # type: ignore[attr-defined]


#: The inode, size in bytes, and modification time in ns (or 0) of a file.
_Identity = tuple[int, int, int]


class OpenFiles(Generic[T]):
    """Up to `limit` objects by key, each of one file, reopened if its inode, size or (if `timed`) time changes."""

    def __init__(self, limit: int, *, timed: bool) -> None:
        self._limit, self._timed = limit, timed
        self._open: OrderedDict[Hashable, tuple[str, _Identity, T]] = OrderedDict()
        self._lock = process_lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(OpenFiles, timed=self._timed), (self._limit,)

    def cached(self, key: Hashable) -> T | None:
        file = self._open.get(key)
        if file is None:
            return None
        path, identity, handle = file
        try:
            if self._identity(path) != identity:
                return None
        except OSError:
            return None
        with self._lock:
            if key in self._open:
                self._open.move_to_end(key)
        return handle

    def get(self, key: Hashable, path: str, open_file: Callable[[], T]) -> T:
        handle = self.cached(key)
        if handle is not None:
            return handle
        # takes the identity first: if the file is replaced before it is opened, the next use notices the difference
        identity, handle = self._identity(path), open_file()
        with self._lock:
            self._open[key] = path, identity, handle
            # objects are not closed, since another thread may use one; the last reference frees the mapping of a file
            while len(self._open) > self._limit:
                self._open.popitem(last=False)
        return handle

    def forget(self, key: Hashable) -> None:
        with self._lock:
            self._open.pop(key, None)

    def forget_deleted(self) -> None:
        with self._lock:
            keys = list(self._open)
        for key in keys:
            if self.cached(key) is None:
                self.forget(key)

    def _identity(self, path: str) -> _Identity:
        status = os.stat(path)
        return status.st_ino, status.st_size, status.st_mtime_ns if self._timed else 0


@dataclass(frozen=True, slots=True)
class OpenLog:
    """The bytes of a log from position `start` on, as a memoryview and as an array."""

    view: memoryview
    data: Bytes
    start: int = 0


class OpenLogs:
    """Maps the logs of one topic's segments on a local disk, for many small reads; thread-safe, and picklable."""

    def __init__(self, storage: Storage, topic: str, identified: IdentifiedLogs) -> None:
        self._storage, self._topic, self._identified = storage, topic, identified
        self._open: OpenFiles[OpenLog] = OpenFiles(OPEN_LOGS, timed=True)

    def get(self, segment: SegmentInfo) -> OpenLog:
        """Return the segment's log after a check of its first batch; StorageError if it is active or too short."""
        if segment.is_active:
            raise StorageError("an active segment is not mapped", partition=segment.partition, stem=segment.stem)
        key = segment.partition, segment.stem, segment.first_batch_crc
        log = self._open.cached(key)
        if log is None:
            part = part_of(self._topic, segment)
            log = self._open.get(key, self._storage.local_path(part.name), lambda: self._mapped(segment, part))
        if len(log.view) < segment.log_bytes:
            raise StorageError("the file is shorter than its segment", partition=segment.partition, stem=segment.stem)
        return log

    def around(self, segment: SegmentInfo, position: int) -> Iterator[OpenLog]:
        """Yield a sealed segment's whole log, or larger and larger parts of an active log from `position` on."""
        if not segment.is_active:
            yield self.get(segment)
            return
        log = part_of(self._topic, segment)
        for size in _READ_BYTES:
            end = min(position + size, segment.log_bytes)
            read = self._storage.read_joined([log.range(0, HEAD_BYTES), log.range(position, end)])
            self._identified.check_head(segment, log, read[:HEAD_BYTES])
            yield OpenLog(read[HEAD_BYTES:], byte_array(read[HEAD_BYTES:]), position)
            if end == segment.log_bytes:
                return

    def forget_deleted(self) -> None:
        self._open.forget_deleted()

    def _mapped(self, segment: SegmentInfo, log: Part) -> OpenLog:
        view = self._storage.map(*log.full_range)
        if segment.first_batch_crc != UNKNOWN and len(view) >= HEAD_BYTES:
            self._identified.check_head(segment, log, view[:HEAD_BYTES])
        return OpenLog(view, byte_array(view))
