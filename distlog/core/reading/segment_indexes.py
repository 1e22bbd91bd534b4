"""The indexes of segments, opened when they are asked for; the last few stay open.

To open a large index and to check it takes milliseconds, a lookup a microsecond. An index that is open is used as
long as its file is the one that was opened: rebuilt indexes replace files, and people damage them. Its checksum is
compared when it is opened, where its segment knows one.
"""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

from distlog.core import paths
from distlog.core.commits.segment_info import SegmentInfo
from distlog.core.errors import CorruptIndexError, StorageError, UnsupportedVersionError
from distlog.core.indexes.index_cache import IndexCache
from distlog.core.indexes.mapped_index import MappedIndex
from distlog.core.indexes.offset_index import OffsetIndex
from distlog.core.indexes.time_index import TimeIndex
from distlog.core.indexes.transaction_index import ENTRY, AbortedTransaction, TransactionIndex
from distlog.core.locks import ProcessLock
from distlog.core.segments.index_facts import checksum_error, index_checksum, index_size
from distlog.core.storage.storage import Storage

#: Indexes that stay open; one costs a mapping of its file.
OPEN_INDEXES = 64

_SUFFIXES = (".index", ".timeindex", ".txnindex")

_log = logging.getLogger("distlog")

T = TypeVar("T")
IndexT = TypeVar("IndexT", bound=MappedIndex)
#: Inode, size and time of a file, and the checksum that it should have.
_Identity = tuple[int, int, int, int]


class SegmentIndexes:
    """The indexes of one topic's segments, by way of a cache of remote files; for many threads, and picklable."""

    def __init__(self, storage: Storage, topic: str, cache: IndexCache) -> None:
        self._storage, self._topic, self._cache = storage, topic, cache
        self._open: OrderedDict[str, tuple[_Identity, Any]] = OrderedDict()
        self._lock = ProcessLock()

    def __reduce__(self) -> tuple[Any, ...]:
        return SegmentIndexes, (self._storage, self._topic, self._cache)

    def offsets(self, segment: SegmentInfo) -> OffsetIndex | None:
        """The segment's offset index, or None where there is none to use; a bad one is warned of."""

        def check(index: OffsetIndex) -> None:
            index.sanity_check(segment.log_bytes)

        return self._usable(segment, ".index", OffsetIndex, check)

    def times(self, segment: SegmentInfo) -> TimeIndex | None:
        """The segment's time index, or None where there is none to use; a bad one is warned of."""

        def check(index: TimeIndex) -> None:
            index.sanity_check(segment.next_offset - segment.shift)

        return self._usable(segment, ".timeindex", TimeIndex, check)

    def aborted_transactions(self, segment: SegmentInfo) -> list[AbortedTransaction]:
        """The aborted transactions that end in the segment, at stored offsets.

        Raises CorruptIndexError, UnsupportedVersionError, StorageError, FileNotFoundError for a file that is gone.
        """

        def read(path: str) -> list[AbortedTransaction]:
            index = TransactionIndex(path, segment.stored_base_offset)
            self._check_checksum(segment, ".txnindex", index)
            index.sanity_check()
            found = index.transactions()
            if len(found) * ENTRY.itemsize != segment.txn_index_bytes:
                # an index that is not there would be an empty one
                raise CorruptIndexError("a copy of a transaction index was lost while it was read", file=path)
            return found

        if not segment.txn_index_bytes:
            return []
        try:
            return self._fetched(segment, ".txnindex", read)
        except (FileNotFoundError, StorageError):
            raise
        except OSError as error:
            raise StorageError(
                f"cannot read: {error.strerror}", file=self._address(segment, ".txnindex")[1]
            ) from error

    def forget(self, segment: SegmentInfo) -> None:
        """Let go the segment's indexes, and copies of them: they were found wrong, or replaced."""
        for suffix in _SUFFIXES:
            self._drop(segment, suffix)

    def _usable(
        self, segment: SegmentInfo, suffix: str, kind: type[IndexT], check: Callable[[IndexT], None]
    ) -> IndexT | None:
        if not index_size(segment, suffix):
            return None
        try:
            return self._fetched(segment, suffix, lambda path: self._opened(path, segment, suffix, kind, check))
        except (CorruptIndexError, OSError) as error:
            _log.warning("%s: scanning the log instead; rebuild the indexes to be fast again", error)
            return None

    def _fetched(self, segment: SegmentInfo, suffix: str, use: Callable[[str], T]) -> T:
        """What `use` makes of the index's local path; if its copy is bad, or gone since, of another one."""
        try:
            return use(self._cache.path(*self._address(segment, suffix), tag=_tag(segment, suffix)))
        except (CorruptIndexError, UnsupportedVersionError, FileNotFoundError):
            self._drop(segment, suffix)
            if self._storage.is_local:
                raise
        return use(self._cache.path(*self._address(segment, suffix), tag=_tag(segment, suffix)))

    def _opened(
        self, path: str, segment: SegmentInfo, suffix: str, kind: type[IndexT], check: Callable[[IndexT], None]
    ) -> IndexT:
        identity = self._identity(path, index_checksum(segment, suffix))
        with self._lock:
            known = self._open.get(path)
            if known and known[0] == identity:
                self._open.move_to_end(path)
                index: IndexT = known[1]
                return index
        opened = kind(path, segment.stored_base_offset)
        self._check_checksum(segment, suffix, opened)
        check(opened)
        with self._lock:
            self._open[path] = identity, opened
            # not closed: another thread may be looking something up; its memory goes with the last reference
            while len(self._open) > OPEN_INDEXES:
                self._open.popitem(last=False)
        return opened

    def _check_checksum(self, segment: SegmentInfo, suffix: str, index: MappedIndex | TransactionIndex) -> None:
        """CorruptIndexError unless the index, or the copy of it, has the checksum that its segment knows."""
        name = self._address(segment, suffix)[1]
        error = checksum_error(segment, suffix, name, index.checksum())
        if error is not None:
            raise error

    def _identity(self, path: str, checksum: int) -> _Identity:
        status = os.stat(path)
        # the time of a copy is its last use
        return status.st_ino, status.st_size, status.st_mtime_ns if self._storage.is_local else 0, checksum

    def _drop(self, segment: SegmentInfo, suffix: str) -> None:
        path = self._cache.discard(*self._address(segment, suffix), tag=_tag(segment, suffix))
        with self._lock:
            self._open.pop(path, None)

    def _address(self, segment: SegmentInfo, suffix: str) -> tuple[Storage, str, int]:
        name = paths.segment_file(self._topic, segment.partition, segment.stem, suffix)
        return self._storage, name, index_size(segment, suffix)


def _tag(segment: SegmentInfo, suffix: str) -> str:
    """What tells a copy from one of an index of the same name and size: of another log, or rebuilt since."""
    return f"{segment.crc32c:08x} {index_checksum(segment, suffix):x}"
