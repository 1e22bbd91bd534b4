"""The offset index, `<stem>.index`: from an offset to a position in the log file (Kafka's `OffsetIndex`).

    position | type | field
    0        | i32  | relative offset: the last offset of an appended batch, less the segment's base offset
    4        | i32  | position of that batch in the log file

Entries are big-endian, without a header, and sparse: one per `index.interval.bytes`, never for a segment's first
batch. Offsets strictly increase, and so do positions.
"""

from __future__ import annotations

import struct
from typing import ClassVar, NamedTuple

import numpy as np

from distlog.core.config import MAX_INT
from distlog.core.indexes.index_entries import Column, column
from distlog.core.indexes.mapped_index import MappedIndex
from distlog.core.kernels.index_search import floor_entry

ENTRY = np.dtype([("relative_offset", ">i4"), ("position", ">i4")])

_KEY = (ENTRY.itemsize, 4)
_POSITIONS = column(ENTRY, "position")


class OffsetPosition(NamedTuple):
    """An offset, absolute, and the position in the log file of the batch that ends with it."""

    offset: int
    position: int


class OffsetIndex(MappedIndex):
    """The offset index of one segment, mapped; see MappedIndex for its arguments and the life of its file.

    A lookup that meets a negative number raises CorruptIndexError. With other damage it returns an entry of the file
    that is not above the target, but perhaps not the largest such entry: call `sanity_check` before you trust a file.
    """

    ENTRY: ClassVar[np.dtype[np.void]] = ENTRY
    PACKED: ClassVar[struct.Struct] = struct.Struct(">ii")
    OFFSETS: ClassVar[Column] = column(ENTRY, "relative_offset")

    def lookup(self, offset: int) -> OffsetPosition:
        """The entry with the largest offset not above `offset`, or (base offset, 0)."""
        target = offset - self.base_offset
        slot, relative_offset, position = floor_entry(self._data, self._entries, target, *_KEY)
        if relative_offset < 0 or position < 0:
            raise self._negative(slot)
        return OffsetPosition(self.base_offset + relative_offset, position)

    def ceiling(self, offset: int) -> OffsetPosition | None:
        """The entry with the smallest offset not below `offset`, or None."""
        slot = self._ceiling_slot(offset - self.base_offset, self.OFFSETS)
        entry = self._at(slot) if slot < self._entries else None
        if entry and entry.offset < offset:
            raise self._unordered(slot)
        return entry

    def position_floor(self, position: int) -> OffsetPosition:
        """The entry with the largest position not above `position`, or (base offset, 0)."""
        return self._at(self._floor_slot(position, _POSITIONS))

    def sanity_check(self, log_bytes: int | None = None) -> None:
        """Raise CorruptIndexError unless offsets and positions increase and the positions are below `log_bytes`.

        Stricter than Kafka's, which looks at the last entry only: 2 ms for a million entries.
        """
        self._check_length()
        self._check_column(self.OFFSETS, "offset", step=1, largest=MAX_INT)
        self._check_column(_POSITIONS, "position", step=1, largest=MAX_INT if log_bytes is None else log_bytes - 1)

    def _at(self, slot: int) -> OffsetPosition:
        if slot < 0:
            return OffsetPosition(self.base_offset, 0)
        relative_offset, position = self._read(slot)
        return OffsetPosition(self.base_offset + relative_offset, position)
