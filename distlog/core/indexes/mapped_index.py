"""The file of an offset or time index: a mapped array of entries of one size, with Kafka's life cycle.

A new file is preallocated with zeros, so that its length does not change while entries are added; it is trimmed to
its entries when its segment is sealed. In an existing file every slot counts as an entry (Kafka's `AbstractIndex`).
So a file that a crash left untrimmed ends in zero entries: lookups are right but slow, and `sanity_check` refuses it.

One thread may append, resize and trim while others look up: an entry counts only after it is written, and a mapping
lives until the last lookup in it returns. The caller must lock to truncate or close. No other process may cut a file
that is mapped here (see `mapping`): sealed files never change, and others have one writer.
"""

from __future__ import annotations

import errno
import os
import struct
from io import FileIO
from types import TracebackType
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from distlog.core.errors import CorruptIndexError
from distlog.core.indexes.index_entries import Column, in_int
from distlog.core.kernels.index_search import first_bad_slot, floor_slot, floor_slots
from distlog.core.storage.local.mapping import map_sealed

IndexT = TypeVar("IndexT", bound="MappedIndex")


class MappedIndex:
    """What OffsetIndex and TimeIndex share: the file, its length and its entries as bytes.

    `base_offset` is added to the relative offsets of the file. If `writable`, a missing file is created with
    `max_index_size` bytes, rounded down to whole entries. An existing file keeps its size; `resize` makes room.
    Raises FileNotFoundError, and ValueError for a new file without room for one entry.
    """

    ENTRY: ClassVar[np.dtype[np.void]]
    PACKED: ClassVar[struct.Struct]
    OFFSETS: ClassVar[Column]

    def __init__(
        self, path: str, base_offset: int, *, max_index_size: int | None = None, writable: bool = False
    ) -> None:
        self.path = path
        self.base_offset = base_offset
        self._stride = self.ENTRY.itemsize
        self._file, created = _open(path, self._stride, max_index_size, writable)
        self._mapped: npt.NDArray[np.uint8] | None = np.frombuffer(map_sealed(self._file.fileno()), np.uint8)
        self._entries = 0 if created else self.max_entries
        if not writable:
            self._file.close()

    def __repr__(self) -> str:
        state = "closed" if self._mapped is None else f"{self._entries} entries"
        return f"{type(self).__name__}({self.path!r}, base_offset={self.base_offset}, {state})"

    def __enter__(self: IndexT) -> IndexT:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def entries(self) -> int:
        """The number of entries."""
        return self._entries

    @property
    def max_entries(self) -> int:
        """The number of entries that fit into the file."""
        return len(self._data) // self._stride

    @property
    def is_full(self) -> bool:
        """Whether there is no room for another entry, so that the segment must roll."""
        return self._entries >= self.max_entries

    def checksum(self) -> int:
        """The CRC-32C of the file."""
        return crc32c(self._data.data)

    def truncate_to(self, offset: int) -> None:
        """Drop the entries at `offset` and above, which makes room for new ones."""
        self._keep(self._ceiling_slot(offset - self.base_offset, self.OFFSETS))

    def truncate(self) -> None:
        """Drop all entries."""
        self._keep(0)

    def resize(self, size: int) -> bool:
        """Make the file `size` bytes long, rounded down to whole entries; False if it is already.

        Raises ValueError if the entries do not fit.
        """
        length = size // self._stride * self._stride
        if length < self._entries * self._stride:
            raise ValueError(f"{self._entries} entries do not fit in {size} bytes: {self.path}")
        if length == len(self._data):
            return False
        file = self._writable_file()
        os.ftruncate(file.fileno(), length)
        self._mapped = np.frombuffer(map_sealed(file.fileno()), np.uint8)
        return True

    def trim(self) -> bool:
        """Cut the file to its entries (Kafka's `trimToValidSize`); False if there was nothing to cut."""
        return self.resize(self._entries * self._stride)

    def flush(self) -> None:
        """Sync the entries and the length of the file to the device."""
        os.fsync(self._writable_file().fileno())

    def close(self) -> None:
        """Trim the file if it is writable, and close it; a second call does nothing."""
        if self._mapped is None:
            return
        if not self._file.closed:
            self.trim()
            self._file.close()
        self._mapped = None

    @property
    def _data(self) -> npt.NDArray[np.uint8]:
        if self._mapped is None:
            raise ValueError(f"the index is closed: {self.path}")
        return self._mapped

    def _writable_file(self) -> FileIO:
        if self._file.closed:
            raise ValueError(f"the index is not open for writing: {self.path}")
        return self._file

    def _floor_slot(self, target: int, column: Column) -> int:
        return floor_slot(self._data, self._entries, target, *column)

    def _ceiling_slot(self, target: int, column: Column) -> int:
        return self._floor_slot(target - 1, column) + 1

    def _floor_values(self, targets: npt.NDArray[np.int64], column: Column, field: str) -> npt.NDArray[np.int64]:
        # `field` of the floor entry of each target, or 0 if there is none.
        data = self._data
        slots = floor_slots(data, self._entries, np.ascontiguousarray(targets, np.int64), *column)
        found = slots >= 0
        values = np.zeros(len(slots), np.int64)
        values[found] = self._table(data)[field][slots[found]]
        if len(values) and values.min() < 0:
            slot = int(slots[values.argmin()])
            raise self._corrupt(f"an entry has a negative {field}: rebuild the index", position=slot * self._stride)
        return values

    def _table(self, data: npt.NDArray[np.uint8]) -> npt.NDArray[np.void]:
        return data[: len(data) // self._stride * self._stride].view(self.ENTRY)

    def _field(self, name: str) -> npt.NDArray[np.int64]:
        return self._table(self._data)[name][: self._entries].astype(np.int64)

    def _read(self, slot: int) -> tuple[int, int]:
        # The two fields of an entry, as they are stored.
        data = self._data
        if slot >= self._entries:
            raise ValueError(f"there is no entry {slot} of {self._entries}: {self.path}")
        first, second = self.PACKED.unpack_from(data.data, slot * self._stride)
        if first < 0 or second < 0:
            raise self._negative(slot)
        return first, second

    def _relative(self, offset: int) -> int:
        return in_int("an offset's distance from the base offset", offset - self.base_offset)

    def _append(self, *fields: int) -> None:
        self._write(self.PACKED.pack(*fields), self._entries * self._stride)
        self._entries += 1

    def _keep(self, entries: int) -> None:
        # Dropped entries become zeros. Otherwise a crash before the next trim would bring them back unnoticed.
        dropped = self._entries - entries
        if dropped > 0:
            self._entries = entries
            self._write(bytes(dropped * self._stride), entries * self._stride)

    def _write(self, data: bytes, position: int) -> None:
        # A write, not a store into the mapping: a full disk makes a write raise, but a store would kill the process.
        if os.pwrite(self._writable_file().fileno(), data, position) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)

    def _check_length(self) -> None:
        if len(self._data) % self._stride:
            position = self.max_entries * self._stride
            raise self._corrupt(
                f"the length of the file is not a multiple of {self._stride}: rebuild the index", position=position
            )

    def _check_column(self, column: Column, what: str, *, step: int, largest: int) -> None:
        slot = first_bad_slot(self._data, self._entries, step, largest, *column)
        if slot >= 0:
            raise self._corrupt(
                f"an entry's {what} is out of order or range (a tail of zeros was not trimmed): rebuild the index",
                position=slot * self._stride,
            )

    def _negative(self, slot: int) -> CorruptIndexError:
        return self._corrupt("an entry has a negative number: rebuild the index", position=slot * self._stride)

    def _unordered(self, slot: int) -> CorruptIndexError:
        return self._corrupt("the entries are out of order: rebuild the index", position=slot * self._stride)

    def _corrupt(self, message: str, **details: Any) -> CorruptIndexError:
        return CorruptIndexError(message, file=self.path, **details)


def _open(path: str, stride: int, max_index_size: int | None, writable: bool) -> tuple[FileIO, bool]:
    # Returns the file, and whether it is new.
    if not writable or os.path.exists(path):
        return FileIO(path, "r+" if writable else "r"), False
    length = (max_index_size or 0) // stride * stride
    if length == 0:
        raise ValueError(f"a new index needs a max_index_size of at least {stride} bytes: {path}")
    file = FileIO(path, "x+")
    os.ftruncate(file.fileno(), length)
    return file, True
