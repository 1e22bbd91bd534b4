"""The bytes of a log that a broker wrote, and a walk of its batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt

from distlog.core.batches.record_batch import HEADER_SIZE
from distlog.core.batches.walk import BatchWalk, size_of_first
from distlog.core.indexes.offset_and_time_index import OFFSET_ENTRY
from distlog.core.reading.chunks import LogFile
from distlog.core.storage.backend import Part
from distlog.core.storage.durable_files import failing_as
from distlog.core.storage.mapping import SparseMap
from distlog.core.storage.storage import Storage

Places = npt.NDArray[np.int64]

_COPIED_BYTES = 8 << 20
#: The bytes that a walk takes at once: of a map of which only headers are looked at, and of a file that is read.
_WINDOW_BYTES, _READ_BYTES = 64 << 20, 4 << 20
#: From batches of this size on it is faster to fetch the pages of their headers than to read all of the log: where it
#: was measured, the disk gave 45,000 pages a second, or 440 MB in a row.
_WORTH_BYTES = 12 << 10
#: How many places are tried first, and how many of them must be right: other headers are fetched one by one.
_SAMPLED, _MOST = 64, 0.95
_NONE: Places = np.zeros(0, np.int64)


class SourceLog(Protocol):
    """A log as a buffer of so many bytes; slices are taken from its beginning to its end."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> memoryview: ...


class RemoteLog:
    """The `size` bytes of a log on object storage, read ahead; no slice may begin before the last one."""

    def __init__(self, storage: Storage, name: str, size: int) -> None:
        self._size = size
        self._file = LogFile(storage, Part.file(name, size), size, mapped=False)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice, /) -> memoryview:
        start, end, _ = part.indices(self._size)
        return self._file.read(start, end)


def open_log(storage: Storage, name: str, size: int) -> SourceLog:
    """The log `name`, of `size` bytes. Raises StorageError."""
    return storage.map(name) if storage.is_local else RemoteLog(storage, name, size)


def open_headers(storage: Storage, name: str, size: int, offset_index: bytes) -> SourceLog:
    """As `open_log`, to look at headers alone; the index tells where they may be, and need not be right."""
    places = batch_places(offset_index, size) if storage.is_local else _NONE
    if len(places) * _WORTH_BYTES > size or not len(places):
        return open_log(storage, name, size)
    with failing_as("open the log", storage.local_path(name)):
        file = SparseMap(storage.open_file(name))
    sample = places[:: -(-len(places) // _SAMPLED)]
    if file.is_in_memory(sample.tolist(), HEADER_SIZE) or not _are_batches(file, sample, places):
        return file.data
    file.read_nothing_ahead()
    return HeaderScan(file, places)


class HeaderScan:
    """A local log of which only the pages with headers are fetched; no slice may begin before the last one."""

    def __init__(self, log: SparseMap, places: Places) -> None:
        self._log, self._places = log, places

    def __len__(self) -> int:
        return len(self._log.data)

    def __getitem__(self, part: slice, /) -> memoryview:
        start, end, _ = part.indices(len(self))
        first, last = np.searchsorted(self._places, (start, end))
        self._log.announce(self._places[first:last].tolist(), HEADER_SIZE)
        self._places = self._places[last:]
        return self._log.data[start:end]


def batch_places(offset_index: bytes, size: int) -> Places:
    """The positions where batches begin by an index of a log of `size` bytes; none if it cannot be its index."""
    whole = len(offset_index) // OFFSET_ENTRY.itemsize * OFFSET_ENTRY.itemsize
    places = np.append(0, np.frombuffer(offset_index[:whole], OFFSET_ENTRY)["position"].astype(np.int64))
    is_sound = (np.diff(places) > 0).all() and places[-1] < size
    return places if is_sound else _NONE


def _are_batches(log: SparseMap, sample: Places, places: Places) -> bool:
    """True if at most of the places of the sample there is a batch that goes up to the next place."""
    log.announce(sample.tolist(), HEADER_SIZE)
    ends = np.append(places[1:], len(log.data))[np.searchsorted(places, sample)]
    sizes = [size_of_first(log.data[place : place + HEADER_SIZE]) for place in sample]
    return bool((sample + sizes == ends).mean() >= _MOST)


def pieces(log: SourceLog, start: int, end: int) -> Iterator[memoryview]:
    """Yield the bytes from `start` to `end`, piece by piece."""
    for position in range(start, end, _COPIED_BYTES):
        yield log[position : min(position + _COPIED_BYTES, end)]


def log_walk(log: SourceLog, *, checked: bool, file: str, start: int = 0, size: int | None = None) -> BatchWalk:
    """A walk over the first `size` bytes of a log from byte `start` on, up to damage; `checked`: by checksums."""
    # a log that got shorter meanwhile ends where it ends
    end = len(log) if size is None else min(size, len(log))
    step = _READ_BYTES if isinstance(log, RemoteLog) or checked else _WINDOW_BYTES
    return BatchWalk(lambda begin, stop: log[begin:stop], start, end, step, "stop", file, checked=checked)
