"""The bytes of a log that a broker wrote: a map of a local file, or what object storage gives, window by window."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from distlog.core.reading.read_ahead import LogFile
from distlog.core.storage.part import Part
from distlog.core.storage.storage import Storage

_COPIED_BYTES = 8 << 20


class SourceLog(Protocol):
    """A log as a buffer of so many bytes; slices are taken from its beginning to its end."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> memoryview: ...


class RemoteLog:
    """The `size` bytes of a log on object storage; the next ones are fetched while the last ones are looked at.

    Memory is bounded by a few windows. A slice must not begin before the one that was taken last.
    """

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


def pieces(log: SourceLog, size: int) -> Iterator[memoryview]:
    """Yield the first `size` bytes, piece by piece."""
    for start in range(0, size, _COPIED_BYTES):
        yield log[start : min(start + _COPIED_BYTES, size)]
