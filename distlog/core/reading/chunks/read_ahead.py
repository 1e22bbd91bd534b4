"""Reads a log file, and fetches the bytes that will be wanted next while the last ones are decoded."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial

from distlog.core.errors import StorageError
from distlog.core.storage.local.local_disk import known_local_disk
from distlog.core.storage.parallel import in_order
from distlog.core.storage.part import Part
from distlog.core.storage.storage import Storage

#: The largest GET of a remote file that is read from end to end.
WINDOW_BYTES = 8 << 20
#: How many GETs are under way ahead of the reader; memory is bounded by this many windows.
DEPTH = 3


class LogFile:
    """The bytes of one log, read forward to `end`, or now and then beyond it.

    The first read of a remote file is one request, since it may be the only one. A second read shows that more is
    wanted: from then on windows are fetched ahead, each twice as large as the one before. With `mapped`, the bytes of
    a local file, which must be sealed, are mapped as long as they are held: a copy costs three times as much, but
    with a map a disk's error ends the process. Files on a network are copied.
    """

    def __init__(self, storage: Storage, log: Part, end: int, *, mapped: bool) -> None:
        self._storage, self._log, self._end = storage, log, end
        folder = os.path.dirname(storage.local_path(log.name)) if storage.is_local else ""
        self._is_mapped = mapped and storage.is_local and known_local_disk(folder)
        self._held = memoryview(b"")
        self._position = 0
        self._windows: Iterator[memoryview] | None = None

    def read(self, start: int, end: int) -> memoryview:
        """Bytes [start, end); `start` must never go back. Raises StorageError if the log ends before `end`."""
        if self._is_mapped:
            return self._mapped(start, end)
        if self._storage.is_local or end > self._end:
            return self._get(start, end)
        windows = self._windows or self._begin(self._get(start, end), start, end)
        while self._position + len(self._held) < end:
            kept = self._held[max(0, start - self._position) :]
            self._position += len(self._held) - len(kept)
            window = next(windows)
            self._held = memoryview(b"".join([kept, window])) if kept else window
        return self._held[start - self._position : end - self._position]

    def read_with_head(self, size: int, start: int, end: int) -> tuple[memoryview, memoryview]:
        """The first `size` bytes of the log, and bytes [start, end), read at once; replaces the first `read`."""
        if self._is_mapped:
            return self._mapped(0, size), self._mapped(start, end)
        head, data = self._storage.read_ranges([self._log.range(0, size), self._log.range(start, end)])
        if not self._storage.is_local and end <= self._end:
            self._begin(data, start, end)
        return head, data

    def _begin(self, data: memoryview, start: int, end: int) -> Iterator[memoryview]:
        self._held, self._position = data, start
        self._windows = in_order(self._ahead(end, 2 * (end - start)), DEPTH)
        return self._windows

    def _mapped(self, start: int, end: int) -> memoryview:
        name, start, end = self._log.range(start, end)
        found = self._storage.map(name, start, end)
        if len(found) < end - start:
            raise StorageError("a file is shorter than it should be", file=name, start=start, end=end)
        return found

    def _ahead(self, start: int, size: int) -> Iterator[Callable[[], memoryview]]:
        while start < self._end:
            end = min(start + min(size, WINDOW_BYTES), self._end)
            yield partial(self._get, start, end)
            start, size = end, 2 * size

    def _get(self, start: int, end: int) -> memoryview:
        return self._storage.read_joined([self._log.range(start, end)])

    def close(self) -> None:
        """Stop the requests that run ahead."""
        if self._windows is not None:
            self._windows.close()  # type: ignore[attr-defined]
