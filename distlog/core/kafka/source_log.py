"""The bytes of a log that a broker wrote, and a walk of its batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt

from distlog.core.format.offset_and_time_index import OFFSET_ENTRY
from distlog.core.format.record_batch import HEADER_SIZE, BatchWalk, size_of_first
from distlog.core.segments.chunks import LogFile
from distlog.core.storage.backend import Part
from distlog.core.storage.durable_files import failing_as
from distlog.core.storage.mapping import SparseMap
from distlog.core.storage.storage import Storage

Positions = npt.NDArray[np.int64]

_COPIED_BYTES = 8 << 20
#: The bytes of a step of a walk: over a map with only header reads, and over a file.
_WINDOW_BYTES, _READ_BYTES = 64 << 20, 4 << 20
#: For larger batches, fetching the pages of headers is faster than reading the log: the measured disk read 45,000
#: pages a second, or 440 MB sequentially.
_WORTH_BYTES = 12 << 10
#: The number of sampled positions, and the share that must be right: other headers are fetched one by one.
_SAMPLED, _MOST = 64, 0.95
_NONE: Positions = np.zeros(0, np.int64)


class SourceLog(Protocol):
    """A log as a buffer; slices are read from its start to its end."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> memoryview: ...


class RemoteLog:
    """The `size` bytes of a log on object storage, read ahead; slices must have increasing starts."""

    def __init__(self, storage: Storage, name: str, size: int) -> None:
        self._size = size
        self._file = LogFile(storage, Part.file(name, size), size, mapped=False)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice, /) -> memoryview:
        start, end, _ = part.indices(self._size)
        return self._file.read(start, end)


def open_log(storage: Storage, name: str, size: int) -> SourceLog:
    """Open the log `name` of `size` bytes. Raises StorageError."""
    return storage.map(name) if storage.is_local else RemoteLog(storage, name, size)


def open_headers(storage: Storage, name: str, size: int, offset_index: bytes) -> SourceLog:
    """Same as `open_log`, for reading only headers; the index has their likely positions."""
    positions = batch_positions(offset_index, size) if storage.is_local else _NONE
    if len(positions) * _WORTH_BYTES > size or not len(positions):
        return open_log(storage, name, size)
    with failing_as("open the log", storage.local_path(name)):
        file = SparseMap(storage.open_file(name))
    sample = positions[:: -(-len(positions) // _SAMPLED)]
    if file.is_in_memory(sample.tolist(), HEADER_SIZE) or not _are_batches(file, sample, positions):
        return file.data
    file.read_nothing_ahead()
    return HeaderScan(file, positions)


class HeaderScan:
    """A local log of which only pages with headers are fetched; slices must have increasing starts."""

    def __init__(self, log: SparseMap, positions: Positions) -> None:
        self._log, self._positions = log, positions

    def __len__(self) -> int:
        return len(self._log.data)

    def __getitem__(self, part: slice, /) -> memoryview:
        start, end, _ = part.indices(len(self))
        first, last = np.searchsorted(self._positions, (start, end))
        self._log.announce(self._positions[first:last].tolist(), HEADER_SIZE)
        self._positions = self._positions[last:]
        return self._log.data[start:end]


def batch_positions(offset_index: bytes, size: int) -> Positions:
    """Return the positions of batches by an index of a log of `size` bytes; empty for a bad index."""
    entries_end = len(offset_index) // OFFSET_ENTRY.itemsize * OFFSET_ENTRY.itemsize
    positions = np.append(0, np.frombuffer(offset_index[:entries_end], OFFSET_ENTRY)["position"].astype(np.int64))
    is_sound = (np.diff(positions) > 0).all() and positions[-1] < size
    return positions if is_sound else _NONE


def _are_batches(log: SparseMap, sample: Positions, positions: Positions) -> bool:
    """Return whether most sampled positions have a batch that ends at the next position."""
    log.announce(sample.tolist(), HEADER_SIZE)
    ends = np.append(positions[1:], len(log.data))[np.searchsorted(positions, sample)]
    sizes = [size_of_first(log.data[position : position + HEADER_SIZE]) for position in sample]
    return bool((sample + sizes == ends).mean() >= _MOST)


def chunks(log: SourceLog, start: int, end: int) -> Iterator[memoryview]:
    """Yield the bytes from `start` to `end` in chunks."""
    for position in range(start, end, _COPIED_BYTES):
        yield log[position : min(position + _COPIED_BYTES, end)]


def log_walk(log: SourceLog, *, checked: bool, file: str, start: int = 0, size: int | None = None) -> BatchWalk:
    """Walk over the first `size` bytes of a log from byte `start`, up to damage; `checked` compares checksums."""
    # the log may have become shorter
    end = len(log) if size is None else min(size, len(log))
    step = _READ_BYTES if isinstance(log, RemoteLog) or checked else _WINDOW_BYTES
    return BatchWalk(lambda begin, stop: log[begin:stop], start, end, step, "stop", file, checked=checked)
