"""Lookups in the indexes of an active segment: entries are read in place, and never mapped or kept.

Another process appends to such a file, and may cut it; a process that had it mapped would be killed (SIGBUS) by
touching a part that was cut. Whoever knows the segment's state tells how many bytes of entries count. Behind them are
newer entries, or zeros.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from distlog.core.buffers import byte_array
from distlog.core.indexes.index_entries import Column, column
from distlog.core.indexes.offset_index import ENTRY as OFFSET_ENTRY
from distlog.core.indexes.offset_index import OffsetPosition
from distlog.core.indexes.time_index import ENTRY as TIME_ENTRY
from distlog.core.indexes.time_index import TimestampOffset
from distlog.core.kernels.index_search import WARM_BYTES, floor_slot
from distlog.core.times import NO_TIMESTAMP

#: Reads the bytes of the file from a position (in) to another (out); fewer if the file is shorter.
ReadBytes = Callable[[int, int], memoryview | bytes]

_OFFSETS, _POSITIONS = column(OFFSET_ENTRY, "relative_offset"), column(OFFSET_ENTRY, "position")
_TIMESTAMPS = column(TIME_ENTRY, "timestamp")


def floor_in_place(
    read: ReadBytes, size: int, target: int, entry: np.dtype[np.void], key: Column
) -> tuple[int, int, int]:
    """(slot, first field, second field) of the last entry in `size` bytes whose key is not above `target`.

    (-1, -1, 0) if there is none. Reads the last 8192 bytes first, then larger and larger parts before them.
    """
    stride = entry.itemsize
    end, step = size // stride * stride, WARM_BYTES // stride * stride
    while end > 0:
        start = max(end - step, 0)
        data = byte_array(read(start, end))
        slot = floor_slot(data, len(data) // stride, target, *key)
        if slot >= 0:
            first, second = np.frombuffer(data.data, entry, 1, slot * stride)[0].item()
            if first >= 0 and second >= 0:
                return start // stride + slot, first, second
        end, step = start, 2 * step
    return -1, -1, 0


class GrowingOffsetIndex:
    """The first `size` bytes of a growing offset index; lookups as in OffsetIndex."""

    def __init__(self, read: ReadBytes, size: int, base_offset: int) -> None:
        self._read, self._size, self._base_offset = read, size, base_offset

    def lookup(self, offset: int) -> OffsetPosition:
        """The entry with the largest offset not above `offset`, or (base offset, 0)."""
        return self._floor(offset - self._base_offset, _OFFSETS)

    def position_floor(self, position: int) -> OffsetPosition:
        """The entry with the largest position not above `position`, or (base offset, 0)."""
        return self._floor(position, _POSITIONS)

    def ceiling(self, offset: int) -> OffsetPosition | None:
        """The entry with the smallest offset not below `offset`, or None."""
        slot, *_ = floor_in_place(self._read, self._size, offset - self._base_offset - 1, OFFSET_ENTRY, _OFFSETS)
        start = (slot + 1) * OFFSET_ENTRY.itemsize
        data = self._read(start, min(start + OFFSET_ENTRY.itemsize, self._size))
        if len(data) < OFFSET_ENTRY.itemsize:
            return None
        relative_offset, position = np.frombuffer(data, OFFSET_ENTRY)[0].item()
        return OffsetPosition(self._base_offset + relative_offset, position)

    def _floor(self, target: int, key: Column) -> OffsetPosition:
        _, relative_offset, position = floor_in_place(self._read, self._size, target, OFFSET_ENTRY, key)
        return OffsetPosition(self._base_offset + max(relative_offset, 0), position)


class GrowingTimeIndex:
    """The first `size` bytes of a growing time index; lookups as in TimeIndex."""

    def __init__(self, read: ReadBytes, size: int, base_offset: int) -> None:
        self._read, self._size, self._base_offset = read, size, base_offset

    def lookup(self, timestamp: int) -> TimestampOffset:
        """The entry with the largest timestamp not above `timestamp`, or (-1, base offset)."""
        _, found, relative_offset = floor_in_place(self._read, self._size, timestamp, TIME_ENTRY, _TIMESTAMPS)
        return TimestampOffset(found if found >= 0 else NO_TIMESTAMP, self._base_offset + relative_offset)
