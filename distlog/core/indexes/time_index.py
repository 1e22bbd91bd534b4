"""The time index, `<stem>.timeindex`: from a timestamp to an offset (Kafka's `TimeIndex`).

    position | type | field
    0        | i64  | timestamp: the largest one in the segment so far, ms
    8        | i32  | relative offset: the last offset of the batch that holds it, less the segment's base offset

Entries are big-endian, without a header. Timestamps strictly increase, offsets never decrease. An entry (T, O) says
that no record up to O is later than T, so a search for a later time may start behind O. The last entry of a sealed
segment is its maximum; one slot of the preallocated file is kept free for it.
"""

from __future__ import annotations

import struct
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from distlog.core.config import MAX_INT, MAX_LONG
from distlog.core.indexes.index_entries import Column, column, in_order
from distlog.core.indexes.mapped_index import MappedIndex
from distlog.core.kernels.index_search import floor_entry
from distlog.core.times import NO_TIMESTAMP

ENTRY = np.dtype([("timestamp", ">i8"), ("relative_offset", ">i4")])

_KEY = (ENTRY.itemsize, 8)
_TIMESTAMPS = column(ENTRY, "timestamp")


class TimestampOffset(NamedTuple):
    """A timestamp in ms, and the absolute offset up to which nothing is later."""

    timestamp: int
    offset: int


class TimeIndex(MappedIndex):
    """The time index of one segment, mapped; see MappedIndex for its arguments and the life of its file.

    A lookup that meets a negative number raises CorruptIndexError. With other damage it returns an entry of the file
    that is not above the target, but perhaps not the largest such entry: call `sanity_check` before you trust a file.
    """

    ENTRY: ClassVar[np.dtype[np.void]] = ENTRY
    PACKED: ClassVar[struct.Struct] = struct.Struct(">qi")
    OFFSETS: ClassVar[Column] = column(ENTRY, "relative_offset")

    def lookup(self, timestamp: int) -> TimestampOffset:
        """The entry with the largest timestamp not above `timestamp`, or (-1, base offset)."""
        slot, found, relative_offset = floor_entry(self._data, self._entries, timestamp, *_KEY)
        if slot < 0:
            return TimestampOffset(NO_TIMESTAMP, self.base_offset)
        if found < 0 or relative_offset < 0:
            raise self._negative(slot)
        return TimestampOffset(found, self.base_offset + relative_offset)

    def sanity_check(self, next_offset: int | None = None) -> None:
        """Raise CorruptIndexError unless timestamps increase and offsets, below `next_offset`, do not decrease.

        Stricter than Kafka's, which looks at the first and the last entry only: 2 ms for a million entries.
        """
        largest = MAX_INT if next_offset is None else next_offset - 1 - self.base_offset
        self._check_length()
        self._check_column(_TIMESTAMPS, "timestamp", step=1, largest=MAX_LONG)
        self._check_column(self.OFFSETS, "offset", step=0, largest=largest)


def encode_time_entries(timestamps: npt.NDArray[np.int64], relative_offsets: npt.NDArray[np.int64]) -> bytes:
    """The bytes of a time index with these entries.

    Raises ValueError unless timestamps increase strictly and offsets do not decrease, OverflowError unless
    timestamps are not negative and relative offsets between 0 and 2^31-1.
    """
    entries = np.empty(len(timestamps), ENTRY)
    entries["timestamp"] = in_order("timestamps", timestamps, step=1, largest=MAX_LONG)
    entries["relative_offset"] = in_order("relative offsets", relative_offsets, step=0, largest=MAX_INT)
    return entries.tobytes()
