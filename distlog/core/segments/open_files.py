"""Keeps the last few opened files, each as long as the file on disk is still the one that was opened."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from distlog.core.arrays import byte_array
from distlog.core.commits.segment_info import UNKNOWN, SegmentInfo
from distlog.core.errors import StorageError
from distlog.core.locks import process_lock
from distlog.core.segments.segment_parts import HEAD_BYTES, IdentifiedLogs, part_of
from distlog.core.storage.backend import Part
from distlog.core.storage.storage import Storage

T = TypeVar("T")
#: Inode, size and time of a file.
_Identity = tuple[int, int, int]


class OpenFiles(Generic[T]):
    """Up to `limit` objects by key, each opened from one file; safe between threads, and empty after pickling.

    Opening and checking a file costs much more than a lookup in it. But files are replaced or damaged, so each use
    asks the file system. With `timed`, a file with another modification time is another file. Copies in a cache are
    not `timed`: the time of a copy is its last use.
    """

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
        with suppress(OSError):
            if self._identity(path) == identity:
                with self._lock:
                    if key in self._open:
                        self._open.move_to_end(key)
                return handle
        return None

    def get(self, key: Hashable, path: str, open_file: Callable[[], T]) -> T:
        handle = self.cached(key)
        if handle is not None:
            return handle
        # identified before it is opened: if the file is replaced in between, the next use sees that
        identity, handle = self._identity(path), open_file()
        with self._lock:
            self._open[key] = path, identity, handle
            # not closed, since another thread may be using it; its memory is freed with the last reference
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


#: How many logs stay mapped. The disk space of a deleted one is free only when it is unmapped (`forget_deleted`).
OPEN_LOGS = 16
#: How much of an active log is read around a position: enough for small batches, for two of a writer, and for the
#: largest usual ones. To copy 2 MiB for one record takes longer than all else.
_PARTS_BYTES = (32 << 10, 512 << 10, 2 << 20)


@dataclass(frozen=True, slots=True)
class OpenLog:
    view: memoryview
    data: npt.NDArray[np.uint8]
    start: int = 0


class OpenLogs:
    """The mapped logs of one topic's segments on a local disk, for many small reads; thread-safe, and picklable."""

    def __init__(self, storage: Storage, topic: str, identified: IdentifiedLogs) -> None:
        self._storage, self._topic, self._identified = storage, topic, identified
        self._open: OpenFiles[OpenLog] = OpenFiles(OPEN_LOGS, timed=True)

    def get(self, segment: SegmentInfo) -> OpenLog:
        """The segment's log, checked by its length and first batch; StorageError if it is active or too short."""
        if segment.is_active:
            raise StorageError("an active segment is not mapped", partition=segment.partition, stem=segment.stem)
        key = segment.partition, segment.stem, segment.first_batch_crc
        log = self._open.cached(key)
        if log is None:
            part = part_of(self._topic, segment)
            log = self._open.get(key, self._storage.local_path(part.name), lambda: self._mapped(segment, part))
        if len(log.view) < segment.log_bytes:
            raise StorageError("a file is shorter than its segment", partition=segment.partition, stem=segment.stem)
        return log

    def around(self, segment: SegmentInfo, position: int) -> Iterator[OpenLog]:
        """The log, as `get` gives it; of an active one, which is not mapped, a part from `position` on, then more."""
        if not segment.is_active:
            yield self.get(segment)
            return
        log = part_of(self._topic, segment)
        for size in _PARTS_BYTES:
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
