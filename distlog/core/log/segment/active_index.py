"""An index file of a segment that is being appended to: entries are written and read in place, never mapped.

Many processes have such a file open. One of them appends under the partition's lock, and cuts the file to its entries
when it seals the segment. A process that had the file mapped would be killed (SIGBUS) by touching a part that was
cut. It would touch such a part if its state were older than a recovery that dropped entries. A read of that part only
comes out short, and the log is then walked from the last entry that is there. The segment's state says how many
entries count, not the file's length; behind them are zeros, up to the preallocated size.
"""

from __future__ import annotations

import os

import numpy as np
from crc32c import crc32c

from distlog.core.indexes.growing_index import floor_in_place
from distlog.core.indexes.index_entries import Column
from distlog.core.log.segment.active_file import ActiveFile, FileCalls


class ActiveIndex:
    """An index of entries of one type, whose first field is the key; `max_bytes` is its preallocated size, or 0."""

    def __init__(
        self, path: str, entry: np.dtype[np.void], max_bytes: int, calls: FileCalls = os, *, writable: bool = True
    ) -> None:
        self.file = ActiveFile(path, calls, writable=writable)
        self.max_bytes = max_bytes // entry.itemsize * entry.itemsize
        self._entry, self._key = entry, Column(entry.itemsize, 0, entry[0].itemsize)

    def create(self) -> None:
        """Create the file, filled with `max_bytes` zeros."""
        self.file.create()
        self.file.cut(0, self.max_bytes)

    def floor(self, target: int, size: int) -> tuple[int, int]:
        """(key, second field) of the last entry in the first `size` bytes whose key is not above `target`.

        (-1, 0) if there is none.
        """
        _, key, value = floor_in_place(self.file.read, size, target, self._entry, self._key)
        return key, value

    def has_entries(self, size: int, checksum: int) -> bool:
        """Whether the first `size` bytes are there, and have this CRC-32C."""
        return self.file.size() >= size and (not size or crc32c(self.file.read(0, size)) == checksum)

    def trim(self, size: int) -> None:
        """Cut the file to its entries, which are `size` bytes; one that somebody cut to less stays as it is."""
        if size or self.file.size():
            self.file.cut(min(size, self.file.size()))

    def clear(self, size: int) -> None:
        """Fill the file with zeros from `size`, the end of the entries, up to `max_bytes`."""
        if self.max_bytes or size or self.file.size():
            end = min(size, self.file.size())
            self.file.cut(end)
            self.file.cut(end, self.max_bytes)
