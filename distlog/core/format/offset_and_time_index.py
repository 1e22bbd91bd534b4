"""The offset index and the time index of a segment (Kafka's `AbstractIndex`, `OffsetIndex`, `TimeIndex`)."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from distlog.core.arrays import byte_array
from distlog.core.errors import CorruptIndexError
from distlog.core.format.kernels.index import WARM_BYTES, first_bad_slot, floor_entry, floor_slot
from distlog.core.integers import MAX_INT, MAX_LONG
from distlog.core.storage.mapping import map_sealed
from distlog.core.times import NO_TIMESTAMP


class Column(NamedTuple):
    """The position of a field in the entries, in bytes: the last arguments of the search kernels."""

    stride: int
    start: int
    width: int


def column(entry: np.dtype[np.void], field: str) -> Column:
    fields = entry.fields
    assert fields is not None
    dtype, start = fields[field][:2]
    return Column(entry.itemsize, start, dtype.itemsize)


class MappedIndex:
    """The mapped file of an offset or time index of a sealed segment: `size` bytes from `begin`, or all.

    Every slot is an entry (Kafka's `AbstractIndex`). So a file that a crash left untrimmed ends in zero entries:
    lookups are right but slow, and `sanity_check` refuses it. A lookup that meets a negative number raises
    CorruptIndexError. With other damage it returns an entry that is not above the target, but may not be the largest:
    call `sanity_check` before you trust a file.
    """

    ENTRY: ClassVar[np.dtype[np.void]]
    PACKED: ClassVar[struct.Struct]
    OFFSETS: ClassVar[Column]

    def __init__(self, path: str, base_offset: int, begin: int = 0, size: int | None = None) -> None:
        self.path = path
        self.base_offset = base_offset
        self._begin = begin
        end = None if size is None else begin + size
        self._stride = self.ENTRY.itemsize
        with open(path, "rb", buffering=0) as file:
            mapped = map_sealed(file.fileno(), begin, end)
        self._mapped: npt.NDArray[np.uint8] | None = np.frombuffer(mapped, np.uint8)
        self.entries = len(self._mapped) // self._stride

    def checksum(self) -> int:
        return crc32c(self._data.data)

    def close(self) -> None:
        self._mapped = None

    @property
    def _data(self) -> npt.NDArray[np.uint8]:
        if self._mapped is None:
            raise ValueError(f"the index is closed: {self.path}")
        return self._mapped

    def _floor_slot(self, target: int, column: Column) -> int:
        return floor_slot(self._data, self.entries, target, *column)

    def _read(self, slot: int) -> tuple[int, int]:
        first, second = self.PACKED.unpack_from(self._data.data, slot * self._stride)
        if first < 0 or second < 0:
            raise self._negative(slot)
        return first, second

    def _check_length(self) -> None:
        if len(self._data) % self._stride:
            position = self.entries * self._stride
            raise self._corrupt(
                f"the length of the file is not a multiple of {self._stride}: rebuild the index", position=position
            )

    def _check_column(self, column: Column, field_name: str, *, step: int, largest: int) -> None:
        slot = first_bad_slot(self._data, self.entries, step, largest, *column)
        if slot >= 0:
            raise self._corrupt(
                f"an entry's {field_name} is out of order or range (a tail of zeros was not trimmed): "
                "rebuild the index",
                position=slot * self._stride,
            )

    def _negative(self, slot: int) -> CorruptIndexError:
        return self._corrupt("an entry has a negative number: rebuild the index", position=slot * self._stride)

    def _corrupt(self, message: str, position: int) -> CorruptIndexError:
        return CorruptIndexError(message, file=self.path, position=self._begin + position)


# The offset index, `<stem>.index`: from an offset to a position in the log file (Kafka's `OffsetIndex`).
#
#     position | type | field
#     0        | i32  | relative offset: the last offset of an appended batch, less the segment's base offset
#     4        | i32  | position of that batch in the log file
#
# Entries are big-endian, without a header, and sparse: one per `index.interval.bytes`, never for a segment's first
# batch. Offsets strictly increase, and so do positions.
OFFSET_ENTRY = np.dtype([("relative_offset", ">i4"), ("position", ">i4")])

_OFFSET_KEY = (OFFSET_ENTRY.itemsize, 4)
_POSITIONS = column(OFFSET_ENTRY, "position")


class OffsetPosition(NamedTuple):
    """An offset, absolute, and the position in the log file of the batch that ends with it."""

    offset: int
    position: int


class OffsetIndex(MappedIndex):
    """The offset index of one segment, mapped; see MappedIndex."""

    ENTRY: ClassVar[np.dtype[np.void]] = OFFSET_ENTRY
    PACKED: ClassVar[struct.Struct] = struct.Struct(">ii")
    OFFSETS: ClassVar[Column] = column(OFFSET_ENTRY, "relative_offset")

    def lookup(self, offset: int) -> OffsetPosition:
        """The entry with the largest offset not above `offset`, or (base offset, 0)."""
        target = offset - self.base_offset
        slot, relative_offset, position = floor_entry(self._data, self.entries, target, *_OFFSET_KEY)
        if relative_offset < 0 or position < 0:
            raise self._negative(slot)
        return OffsetPosition(self.base_offset + relative_offset, position)

    def ceiling(self, offset: int) -> OffsetPosition | None:
        """The entry with the smallest offset not below `offset`, or None."""
        slot = self._floor_slot((offset - self.base_offset) - 1, self.OFFSETS) + 1
        entry = self._entry(slot) if slot < self.entries else None
        if entry and entry.offset < offset:
            raise self._corrupt("the entries are out of order: rebuild the index", position=slot * self._stride)
        return entry

    def position_floor(self, position: int) -> OffsetPosition:
        """The entry with the largest position not above `position`, or (base offset, 0)."""
        return self._entry(self._floor_slot(position, _POSITIONS))

    def sanity_check(self, log_bytes: int | None = None) -> None:
        """Raise CorruptIndexError unless offsets and positions increase and the positions are below `log_bytes`."""
        self._check_length()
        self._check_column(self.OFFSETS, "offset", step=1, largest=MAX_INT)
        self._check_column(_POSITIONS, "position", step=1, largest=MAX_INT if log_bytes is None else log_bytes - 1)

    def _entry(self, slot: int) -> OffsetPosition:
        if slot < 0:
            return OffsetPosition(self.base_offset, 0)
        relative_offset, position = self._read(slot)
        return OffsetPosition(self.base_offset + relative_offset, position)


# The time index, `<stem>.timeindex`: from a timestamp to an offset (Kafka's `TimeIndex`).
#
#     position | type | field
#     0        | i64  | timestamp: the largest one in the segment so far, ms
#     8        | i32  | relative offset: the last offset of the batch that holds it, less the segment's base offset
#
# Entries are big-endian, without a header. Timestamps strictly increase, offsets never decrease. An entry (T, O)
# says that no record up to O is later than T, so a search for a later time may start after O. The last entry of a
# sealed segment is its maximum; one slot of the preallocated file is kept free for it.
TIME_ENTRY = np.dtype([("timestamp", ">i8"), ("relative_offset", ">i4")])

_TIME_KEY = (TIME_ENTRY.itemsize, 8)
_TIMESTAMPS = column(TIME_ENTRY, "timestamp")


class TimestampOffset(NamedTuple):
    """A timestamp in ms, and the absolute offset up to which nothing is later."""

    timestamp: int
    offset: int


class TimeIndex(MappedIndex):
    """The time index of one segment, mapped; see MappedIndex."""

    ENTRY: ClassVar[np.dtype[np.void]] = TIME_ENTRY
    PACKED: ClassVar[struct.Struct] = struct.Struct(">qi")
    OFFSETS: ClassVar[Column] = column(TIME_ENTRY, "relative_offset")

    def lookup(self, timestamp: int) -> TimestampOffset:
        """The entry with the largest timestamp not above `timestamp`, or (-1, base offset)."""
        slot, entry_timestamp, relative_offset = floor_entry(self._data, self.entries, timestamp, *_TIME_KEY)
        if slot < 0:
            return TimestampOffset(NO_TIMESTAMP, self.base_offset)
        if entry_timestamp < 0 or relative_offset < 0:
            raise self._negative(slot)
        return TimestampOffset(entry_timestamp, self.base_offset + relative_offset)

    def sanity_check(self, next_offset: int | None = None) -> None:
        """Raise CorruptIndexError unless timestamps increase and offsets, below `next_offset`, do not decrease."""
        largest = MAX_INT if next_offset is None else next_offset - 1 - self.base_offset
        self._check_length()
        self._check_column(_TIMESTAMPS, "timestamp", step=1, largest=MAX_LONG)
        self._check_column(self.OFFSETS, "offset", step=0, largest=largest)


# Indexes of an active segment are read from the file, and never mapped or cached: another process appends to the
# file, and may truncate it, which would kill a process that has it mapped (SIGBUS). The segment's state has the size
# of the valid entries. Newer entries or zeros follow.

#: Reads the bytes of the file between two positions; fewer if the file is shorter.
ReadBytes = Callable[[int, int], memoryview | bytes]


def floor_of_file(
    read: ReadBytes, size: int, target: int, entry: np.dtype[np.void], key: Column
) -> tuple[int, int, int]:
    """Return (slot, fields...) of the last entry in `size` bytes up to `target`; (-1, -1, 0) without any."""
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
        return self._floor(offset - self._base_offset, OffsetIndex.OFFSETS)

    def position_floor(self, position: int) -> OffsetPosition:
        return self._floor(position, _POSITIONS)

    def ceiling(self, offset: int) -> OffsetPosition | None:
        slot, *_ = floor_of_file(
            self._read, self._size, offset - self._base_offset - 1, OFFSET_ENTRY, OffsetIndex.OFFSETS
        )
        start = (slot + 1) * OFFSET_ENTRY.itemsize
        data = self._read(start, min(start + OFFSET_ENTRY.itemsize, self._size))
        if len(data) < OFFSET_ENTRY.itemsize:
            return None
        relative_offset, position = np.frombuffer(data, OFFSET_ENTRY)[0].item()
        return OffsetPosition(self._base_offset + relative_offset, position)

    def _floor(self, target: int, key: Column) -> OffsetPosition:
        _, relative_offset, position = floor_of_file(self._read, self._size, target, OFFSET_ENTRY, key)
        return OffsetPosition(self._base_offset + max(relative_offset, 0), position)


class GrowingTimeIndex:
    """The first `size` bytes of a growing time index; lookups as in TimeIndex."""

    def __init__(self, read: ReadBytes, size: int, base_offset: int) -> None:
        self._read, self._size, self._base_offset = read, size, base_offset

    def lookup(self, timestamp: int) -> TimestampOffset:
        _, entry_timestamp, relative_offset = floor_of_file(
            self._read, self._size, timestamp, TIME_ENTRY, _TIMESTAMPS
        )
        return TimestampOffset(
            entry_timestamp if entry_timestamp >= 0 else NO_TIMESTAMP, self._base_offset + relative_offset
        )
