"""What a scan of records finds, as arrays that kernels fill, and its way into Arrow."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa

from distlog.core.buffers import new_array
from distlog.core.kernels.record_scan import gather_slices, locate_headers
from distlog.core.record_batch import SCHEMA

_HEADERS = SCHEMA.field("headers").type
_NO_HEADERS = pa.array([], _HEADERS.value_type)


@dataclass(frozen=True, slots=True)
class Slices:
    """A column of byte strings, as positions in a buffer; nothing of it is allocated if it is not asked for."""

    positions: np.ndarray
    offsets: np.ndarray
    valid: np.ndarray

    @classmethod
    def allocate(cls, size: int) -> Slices:
        """Room for `size` strings."""
        offsets = new_array(size + 1, np.int32)
        offsets[0] = 0
        return cls(new_array(size, np.int64), offsets, new_array(size, np.bool_))

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The arrays in the order in which the scan kernels take them."""
        return self.positions, self.offsets, self.valid

    def to_arrow(self, kind: pa.DataType, data: np.ndarray, count: int) -> pa.Array:
        """The first `count` strings, copied from `data`."""
        valid = self.valid[:count]
        nulls = count - int(np.count_nonzero(valid))
        if count and nulls == count:
            return pa.nulls(count, kind)
        offsets = self.offsets[: count + 1]
        copied = new_array(int(offsets[-1]), np.uint8)
        gather_slices(data, self.positions[:count], offsets, copied)
        bitmap = pa.py_buffer(np.packbits(valid, bitorder="little")) if nulls else None
        return pa.Array.from_buffers(kind, count, [bitmap, pa.py_buffer(offsets), pa.py_buffer(copied)], nulls)


@dataclass(frozen=True, slots=True)
class RecordFields:
    """Room for the fields of `size` records; a scan fills the first `count` slots of each."""

    offsets: np.ndarray
    timestamps: np.ndarray
    key: Slices
    value: Slices
    header_positions: np.ndarray
    header_offsets: np.ndarray

    @classmethod
    def allocate(cls, size: int, asked: Collection[str]) -> RecordFields:
        """Room for `size` records, their key, value and headers only where these are asked for."""
        headers = size if "headers" in asked else 0
        header_offsets = new_array(headers + 1, np.int32)
        header_offsets[0] = 0
        return cls(
            new_array(size, np.int64),
            new_array(size, np.int64),
            Slices.allocate(size if "key" in asked else 0),
            Slices.allocate(size if "value" in asked else 0),
            new_array(headers, np.int64),
            header_offsets,
        )

    def arrays(self) -> tuple[np.ndarray, ...]:
        """The arrays in the order in which the scan kernels take them."""
        headers = (self.header_positions, self.header_offsets)
        return (self.offsets, self.timestamps, *self.key.arrays(), *self.value.arrays(), *headers)

    def to_arrow(self, name: str, data: np.ndarray, count: int) -> pa.Array:
        """Column `name` of SCHEMA, of the first `count` records; `data` is what was scanned."""
        if name in ("key", "value"):
            slices: Slices = getattr(self, name)
            return slices.to_arrow(pa.binary(), data, count)
        if name == "headers":
            return _headers(data, self.header_positions[:count], self.header_offsets[: count + 1])
        return fixed_width(name, (self.offsets if name == "offset" else self.timestamps)[:count])


def fixed_width(name: str, values: np.ndarray) -> pa.Array:
    """Column `name` of SCHEMA over `values`, without a copy and without nulls."""
    return pa.Array.from_buffers(SCHEMA.field(name).type, values.size, [None, pa.py_buffer(values)], 0)


@lru_cache
def struct_of(columns: tuple[str, ...]) -> pa.DataType:
    """The asked columns of SCHEMA as one struct type; KeyError for a name that it does not have."""
    return pa.struct([SCHEMA.field(name) for name in columns])


def _headers(data: np.ndarray, positions: np.ndarray, offsets: np.ndarray) -> pa.Array:
    total = int(offsets[-1])
    pairs = _header_pairs(data, positions, offsets, total) if total else _NO_HEADERS
    return pa.Array.from_buffers(_HEADERS, positions.size, [None, pa.py_buffer(offsets)], 0, children=[pairs])


def _header_pairs(data: np.ndarray, positions: np.ndarray, offsets: np.ndarray, total: int) -> pa.Array:
    keys, values = Slices.allocate(total), Slices.allocate(total)
    locate_headers(data, positions, offsets, *keys.arrays(), *values.arrays())
    children = [_text(keys, data, total), values.to_arrow(pa.binary(), data, total)]
    return pa.StructArray.from_buffers(_HEADERS.value_type, total, [None], 0, children=children)


def _text(slices: Slices, data: np.ndarray, count: int) -> pa.Array:
    text = slices.to_arrow(pa.string(), data, count)
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        # Java's `new String(bytes, UTF_8)` puts U+FFFD where bytes are not UTF-8, and so does Python.
        raw = text.view(pa.binary()).to_pylist()
        return pa.array([key.decode("utf-8", "replace") for key in raw], pa.string())
    return text
