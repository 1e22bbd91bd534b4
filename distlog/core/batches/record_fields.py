"""The fields that a scan of records finds, as arrays that kernels fill, and their conversion to Arrow."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa

from distlog.core.batches.record_batch import SCHEMA
from distlog.core.buffers import fitted, new_array
from distlog.core.kernel_tuples import HeaderPlaces, Slices
from distlog.core.kernels.record_scan import locate_headers

_HEADERS = SCHEMA.field("headers").type
_NO_HEADERS = pa.nulls(0, _HEADERS.value_type)
#: Columns of so many rows with one value share their memory, for the _CONSTANTS values that were used last.
_CONSTANT_ROWS, _CONSTANTS = range(1 << 14, 1 << 17), 8


@dataclass(frozen=True, slots=True)
class RecordFields:
    """Room for the fields of `size` records; a scan fills the first `count` slots of each."""

    offsets: np.ndarray
    timestamps: np.ndarray
    key: Slices
    value: Slices
    headed: HeaderPlaces

    @classmethod
    def allocate(cls, size: int, asked: Collection[str], copied_bytes: int = 0) -> RecordFields:
        """Room for `size` records; keys, values and headers get room only if they are in `asked`.

        With `copied_bytes`, the size of the sections, keys and values are copied. Without it, positions are found.
        """
        places = size + 1 if "headers" in asked else 0
        return cls(
            new_array(size, np.int64),
            new_array(size, np.int64),
            _allocate(size, copied_bytes) if "key" in asked else _allocate(0, 0),
            _allocate(size, copied_bytes) if "value" in asked else _allocate(0, 0),
            HeaderPlaces(new_array(places, np.int64), new_array(places, np.int64)),
        )

    def to_arrow(self, name: str, count: int) -> pa.Array:
        """Column `name` (offset, timestamp, key or value) of the first `count` records, which were copied."""
        if name in ("key", "value"):
            return _strings(self.key if name == "key" else self.value, pa.binary(), count)
        return fixed_width(name, (self.offsets if name == "offset" else self.timestamps)[:count])


def headers_to_arrow(data: np.ndarray, headed: HeaderPlaces, count: int, header_count: int, room: int) -> pa.Array:
    """The headers of the first `count` records, `header_count` in all, as a column; sections have `room` bytes."""
    if not header_count:
        return pa.Array.from_buffers(_HEADERS, count, [None, _repeated(0, count + 1)], 0, children=[_NO_HEADERS])
    offsets = new_array(count + 1, np.int32)
    pairs = _header_pairs(data, headed, count, offsets, header_count, room)
    return pa.Array.from_buffers(_HEADERS, count, [None, pa.py_buffer(offsets)], 0, children=[pairs])


def of_one_value(name: str, value: int, count: int) -> pa.Array:
    """Column `name` of SCHEMA, which must be of int32, with `count` times `value`; batches share its memory."""
    return pa.Array.from_buffers(SCHEMA.field(name).type, count, [None, _repeated(value, count)], 0)


def fixed_width(name: str, values: np.ndarray) -> pa.Array:
    """Column `name` of SCHEMA over `values`, without a copy and without nulls."""
    return pa.Array.from_buffers(SCHEMA.field(name).type, values.size, [None, pa.py_buffer(values)], 0)


@lru_cache
def struct_of(columns: tuple[str, ...]) -> pa.DataType:
    """The given columns of SCHEMA as one struct type; KeyError for a name that SCHEMA does not have."""
    return pa.struct([SCHEMA.field(name) for name in columns])


def _repeated(value: int, count: int) -> pa.Buffer:
    if count in _CONSTANT_ROWS:
        return _shared(value, _CONSTANT_ROWS.stop).slice(0, 4 * count)
    return _filled(value, count)


@lru_cache(_CONSTANTS)
def _shared(value: int, count: int) -> pa.Buffer:
    return _filled(value, count)


def _filled(value: int, count: int) -> pa.Buffer:
    values = np.full(count, value, np.int32)
    values.flags.writeable = False
    return pa.py_buffer(values)


def _allocate(size: int, copied_bytes: int) -> Slices:
    offsets = new_array(size + 1, np.int32)
    offsets[0] = 0
    copies, positions = new_array(copied_bytes, np.uint8), new_array(0 if copied_bytes else size, np.int64)
    return Slices(offsets, new_array(size, np.bool_), copies, positions)


def _strings(slices: Slices, kind: pa.DataType, count: int) -> pa.Array:
    valid = slices.valid[:count]
    nulls = count - int(np.count_nonzero(valid))
    if count and nulls == count:
        return pa.nulls(count, kind)
    copied = fitted(slices.copies, int(slices.offsets[count]))
    bitmap = pa.py_buffer(np.packbits(valid, bitorder="little")) if nulls else None
    offsets = pa.py_buffer(slices.offsets[: count + 1])
    return pa.Array.from_buffers(kind, count, [bitmap, offsets, pa.py_buffer(copied)], nulls)


def _header_pairs(
    data: np.ndarray, headed: HeaderPlaces, count: int, offsets: np.ndarray, header_count: int, room: int
) -> pa.Array:
    key, value = _allocate(header_count, room), _allocate(header_count, room)
    locate_headers(data, headed, count, offsets, key, value)
    children = [_text(key, header_count), _strings(value, pa.binary(), header_count)]
    return pa.StructArray.from_buffers(_HEADERS.value_type, header_count, [None], 0, children=children)


def _text(slices: Slices, count: int) -> pa.Array:
    text = _strings(slices, pa.string(), count)
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        # Java's `new String(bytes, UTF_8)` puts U+FFFD in place of bytes that are not UTF-8; Python does the same.
        raw = text.view(pa.binary()).to_pylist()
        return pa.array([key.decode("utf-8", "replace") for key in raw], pa.string())
    return text
