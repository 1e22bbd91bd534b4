"""A map of a sealed file of which only small places are looked at, far from each other.

A page that is missed makes the system read ahead, often megabytes, so with the usual map a cold file is read nearly
as a whole. Here each place is announced, and nothing else is read. The device then has many small requests at once,
which it answers faster than one after the other.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from distlog.core.storage.local.mapping import map_sealed, read_nothing_ahead


class SparseMap:
    """The bytes of the file at `path`, as `map_sealed` maps it; slices of it are memoryviews. Raises OSError."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.data = map_sealed(self._file)
        except BaseException:
            os.close(self._file)
            raise

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if hasattr(self, "data"):
            close(self._file)

    def is_in_memory(self, places: Iterable[int], size: int) -> bool:
        """Whether `size` bytes at each of the places can be had without the device; False if nobody knows."""
        buffer = bytearray(size)
        try:
            return all(os.preadv(self._file, [buffer], place, os.RWF_NOWAIT) for place in places)
        except OSError:
            return False

    def announce(self, places: Iterable[int], size: int) -> None:
        """Have the system fetch `size` bytes at each of the places; it goes on when it has asked for them."""
        for place in places:
            os.posix_fadvise(self._file, place, size, os.POSIX_FADV_WILLNEED)

    def read_nothing_ahead(self) -> None:
        """From now on a page that is missed is fetched alone."""
        if len(self.data):
            read_nothing_ahead(self.data)
