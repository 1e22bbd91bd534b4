"""Opens the indexes of segments when they are needed; the last few stay open.

Opening and checking a large index takes milliseconds, a lookup a microsecond. If the metadata has a checksum, it is
compared when the index is opened.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from crc32c import crc32c

from distlog.core.commits.format.segment_info import SegmentInfo
from distlog.core.errors import CorruptIndexError, StorageError, UnsupportedVersionError
from distlog.core.indexes.growing_index import GrowingOffsetIndex, GrowingTimeIndex, ReadBytes
from distlog.core.indexes.index_cache import IndexCache
from distlog.core.indexes.mapped_index import MappedIndex
from distlog.core.indexes.offset_index import OffsetIndex
from distlog.core.indexes.time_index import TimeIndex
from distlog.core.indexes.transaction_index import ENTRY, AbortedTransaction, TransactionIndex, decode_transactions
from distlog.core.reading.files.open_files import OpenFiles
from distlog.core.segments.index_facts import checksum_error, index_checksum, index_size
from distlog.core.segments.segment_parts import part_of
from distlog.core.storage.part import Part
from distlog.core.storage.storage import Storage

#: How many indexes stay open; each costs a mapping of its file.
OPEN_INDEXES = 64

_SUFFIXES = (".index", ".timeindex", ".txnindex")

_log = logging.getLogger("distlog")

T = TypeVar("T")
IndexT = TypeVar("IndexT", bound=MappedIndex)


class SegmentIndexes:
    """The indexes of one topic's segments; remote ones come from a cache. Safe between threads, and picklable."""

    def __init__(self, storage: Storage, topic: str, cache: IndexCache) -> None:
        self._storage, self._topic, self._cache = storage, topic, cache
        self._open: OpenFiles[Any] = OpenFiles(OPEN_INDEXES, timed=storage.is_local)

    def __reduce__(self) -> tuple[Any, ...]:
        return SegmentIndexes, (self._storage, self._topic, self._cache)

    def offsets(self, segment: SegmentInfo) -> OffsetIndex | GrowingOffsetIndex | None:
        """The segment's offset index, or None without a usable one; a bad one gives a warning."""
        if segment.is_active:
            return GrowingOffsetIndex(*self._growing(segment, ".index"))

        def check(index: OffsetIndex) -> None:
            index.sanity_check(segment.log_bytes)

        return self._usable(segment, ".index", OffsetIndex, check)

    def times(self, segment: SegmentInfo) -> TimeIndex | GrowingTimeIndex | None:
        """The segment's time index, or None without a usable one; a bad one gives a warning."""
        if segment.is_active:
            return GrowingTimeIndex(*self._growing(segment, ".timeindex"))

        def check(index: TimeIndex) -> None:
            index.sanity_check(segment.next_offset - segment.shift)

        return self._usable(segment, ".timeindex", TimeIndex, check)

    def aborted_transactions(self, segment: SegmentInfo) -> list[AbortedTransaction]:
        """The aborted transactions that end in the segment, at stored offsets.

        Raises CorruptIndexError, UnsupportedVersionError, StorageError, and FileNotFoundError if the file is gone.
        """

        def read(path: str, _: int) -> list[AbortedTransaction]:
            index = TransactionIndex(path, segment.stored_base_offset)
            self._check_checksum(segment, ".txnindex", index)
            index.sanity_check()
            found = index.transactions()
            if len(found) * ENTRY.itemsize != segment.txn_index_bytes:
                # a missing index file counts as empty, so compare the size
                raise CorruptIndexError(
                    "the local copy of a transaction index was deleted while it was read: read again", file=path
                )
            return found

        if not segment.txn_index_bytes:
            return []
        if segment.is_active:
            return self._growing_transactions(segment)
        try:
            return self._fetched(segment, ".txnindex", read)
        except (FileNotFoundError, StorageError):
            raise
        except OSError as error:
            raise StorageError(
                f"cannot read: {error.strerror}", file=self._part(segment, ".txnindex").name
            ) from error

    def forget(self, segment: SegmentInfo) -> None:
        """Forget the segment's indexes, and delete their copies: they were found wrong, or replaced."""
        for suffix in _SUFFIXES:
            self._drop(segment, suffix)

    def _usable(
        self, segment: SegmentInfo, suffix: str, kind: type[IndexT], check: Callable[[IndexT], None]
    ) -> IndexT | None:
        if not index_size(segment, suffix):
            return None
        # not for a remote index: asking the cache for its copy marks that as used
        known: IndexT | None = self._open.known(_key(segment, suffix)) if self._storage.is_local else None
        if known is not None:
            return known
        try:
            return self._fetched(segment, suffix, partial(self._opened, segment, suffix, kind, check))
        except (CorruptIndexError, OSError) as error:
            _log.warning("%s: scanning the log instead; rebuild the indexes to be fast again", error)
            return None

    def _growing_transactions(self, segment: SegmentInfo) -> list[AbortedTransaction]:
        part = self._part(segment, ".txnindex")
        data = self._read(part.name, 0, part.size)
        error = checksum_error(segment, ".txnindex", part, crc32c(data))
        if error is not None:
            raise error
        return decode_transactions(data, part.name)

    def _growing(self, segment: SegmentInfo, suffix: str) -> tuple[ReadBytes, int, int]:
        part = self._part(segment, suffix)
        return partial(self._read, part.name), part.size, segment.stored_base_offset

    def _read(self, name: str, start: int, end: int) -> bytes:
        # without an index the log is read from its start, which tells if that is gone, too
        try:
            return self._storage.read(name, start, end)
        except FileNotFoundError:
            return b""

    def _fetched(self, segment: SegmentInfo, suffix: str, use: Callable[[str, int], T]) -> T:
        """What `use` makes of the index at a place of a local file; a copy that is bad or gone is fetched again."""
        try:
            return use(*self._place(segment, suffix))
        except (CorruptIndexError, UnsupportedVersionError, FileNotFoundError):
            self._drop(segment, suffix)
            if self._storage.is_local:
                raise
        return use(*self._place(segment, suffix))

    def _place(self, segment: SegmentInfo, suffix: str) -> tuple[str, int]:
        part = self._part(segment, suffix)
        if not part.is_file and not self._storage.is_local:
            # who looks for a time needs both
            self.fetch([segment])
        return self._cache.place(self._storage, part, tag=_tag(segment, suffix))

    def fetch(self, segments: Sequence[SegmentInfo]) -> None:
        """Copy the indexes of `segments` that are in remote bundles; those of one bundle come with one request."""
        wanted = [(self._part(one, suffix), _tag(one, suffix)) for one in segments for suffix in _SUFFIXES]
        in_bundles = [(part, tag) for part, tag in wanted if part.size and not part.is_file]
        if in_bundles and not self._storage.is_local:
            self._cache.fetch(self._storage, in_bundles)

    def _opened(
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

        opened: IndexT = self._open.get(_key(segment, suffix), path, open_index)
        return opened

    def _check_checksum(self, segment: SegmentInfo, suffix: str, index: MappedIndex | TransactionIndex) -> None:
        """Raise CorruptIndexError unless the index, or its copy, has the checksum in its segment's metadata."""
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
