"""The file of an offset or time index of a sealed segment: a mapped array of entries of one size.

Every slot of the file counts as an entry (Kafka's `AbstractIndex`). So a file that a crash left untrimmed ends in
zero entries: lookups are right but slow, and `sanity_check` refuses it. Sealed files never change (see `mapping`).
Those of an active segment are read by `growing_index`, and written by the segment.
"""

from __future__ import annotations

import struct
from types import TracebackType
from typing import ClassVar, TypeVar

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from distlog.core.errors import CorruptIndexError
from distlog.core.indexes.index_entries import Column
from distlog.core.kernels.index_search import first_bad_slot, floor_slot
from distlog.core.storage.local.mapping import map_sealed

IndexT = TypeVar("IndexT", bound="MappedIndex")


class MappedIndex:
    """What OffsetIndex and TimeIndex share: the file, its length and its entries as bytes.

    `base_offset` is added to the relative offsets of the file. The index may be `size` bytes of a larger file, from
    `begin` on. Raises FileNotFoundError. A mapping lives until the last lookup in it returns.
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
        self._entries = len(self._mapped) // self._stride

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

    def checksum(self) -> int:
        """The CRC-32C of the file."""
        return crc32c(self._data.data)

    def close(self) -> None:
        """Let go of the file; a second call does nothing."""
        self._mapped = None

    @property
    def _data(self) -> npt.NDArray[np.uint8]:
        if self._mapped is None:
            raise ValueError(f"the index is closed: {self.path}")
        return self._mapped

    def _floor_slot(self, target: int, column: Column) -> int:
        return floor_slot(self._data, self._entries, target, *column)

    def _ceiling_slot(self, target: int, column: Column) -> int:
        return self._floor_slot(target - 1, column) + 1

    def _read(self, slot: int) -> tuple[int, int]:
        # The two fields of an entry, as they are stored.
        data = self._data
        first, second = self.PACKED.unpack_from(data.data, slot * self._stride)
        if first < 0 or second < 0:
            raise self._negative(slot)
        return first, second

    def _check_length(self) -> None:
        if len(self._data) % self._stride:
            position = self._entries * self._stride
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

    def _corrupt(self, message: str, position: int) -> CorruptIndexError:
        return CorruptIndexError(message, file=self.path, position=self._begin + position)
