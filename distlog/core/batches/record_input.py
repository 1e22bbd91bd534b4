"""The columns of records to write, as arrays for kernels, for any Arrow type and slice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from distlog.core.arrow_arrays import flags_of
from distlog.core.batches.record_batch import HEADERS_TYPE
from distlog.core.buffers import byte_array
from distlog.core.errors import InvalidRecordError
from distlog.core.kernel_tuples import ByteColumn, Columns, HeaderColumn
from distlog.core.kernels.record_write import ascend_within

_OFFSET_TYPES = {pa.binary(): np.int32, pa.string(): np.int32, pa.large_binary(): np.int64}


@dataclass(frozen=True, slots=True)
class RecordInput:
    """Records to write, one per row."""

    timestamps: np.ndarray
    key: ByteColumn
    value: ByteColumn
    headers: HeaderColumn | None

    def columns(self) -> Columns:
        """All columns, in the order in which kernels take them."""
        return self.timestamps, self.key, self.value, self.headers

    @classmethod
    def from_arrow(cls, records: pa.RecordBatch) -> RecordInput:
        """The columns timestamp, key, value and, optionally, headers of `records`; other columns are ignored.

        The arrays are not trusted: an offset that does not fit its data is never used. Raises InvalidRecordError when
        a column is missing, has another type, or points outside its memory, or when a timestamp is null.
        """
        names = records.schema.names
        missing = {"timestamp", "key", "value"}.difference(names)
        if missing:
            raise InvalidRecordError("records lack a column", column=", ".join(sorted(missing)))
        try:
            return cls(
                _timestamps(_sized(records, "timestamp")),
                *_alike(*(_byte_column(_sized(records, name), name) for name in ("key", "value"))),
                _header_column(_sized(records, "headers")) if "headers" in names else None,
            )
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InvalidRecordError(f"key and value must be binary, headers like {HEADERS_TYPE}: {error}") from None


def _sized(records: pa.RecordBatch, name: str) -> pa.Array:
    """A column whose buffers are checked to be as long as its length requires."""
    column = records.column(name)
    try:
        column.validate()
    except pa.ArrowInvalid as error:
        raise unfit(name, error) from None
    return column


def unfit(column: str, reason: object) -> InvalidRecordError:
    """The error for an array that points outside its memory."""
    return InvalidRecordError(f"column {column} is not a valid Arrow array: {reason}")


def _byte_column(array: pa.Array, name: str) -> ByteColumn:
    """The strings of `array`: null, binary or large_binary without a copy, other types through Arrow's cast."""
    count = len(array)
    if array.type == pa.null():
        return ByteColumn(_frozen(np.zeros(count + 1, np.int32)), _frozen(np.zeros(count, np.bool_)), _NO_DATA)
    if array.type not in _OFFSET_TYPES:
        array = array.cast(pa.large_binary())
    _, offsets, data = array.buffers()
    offsets = _offsets(array, offsets, _OFFSET_TYPES[array.type], data.size if data else 0, name)
    return ByteColumn(offsets, _valid(array), byte_array(data) if data else _NO_DATA)


def _alike(key: ByteColumn, value: ByteColumn) -> tuple[ByteColumn, ByteColumn]:
    """Both columns with offsets of the same width, the wider of the two."""
    kind = np.result_type(key.offsets, value.offsets)
    key, value = (
        column._replace(offsets=_frozen(column.offsets.astype(kind, copy=False))) for column in (key, value)
    )
    return key, value


def _header_column(array: pa.Array) -> HeaderColumn | None:
    """The headers of `array`, a list<struct<key: string, value: binary>>, or None if it has no headers at all."""
    if array.type == pa.null() or len(array) == 0:
        return None
    array = array.cast(HEADERS_TYPE)
    pairs = array.values
    offsets = _offsets(array, array.buffers()[1], np.int32, len(pairs), "headers")
    firsts, ends = offsets[:-1], offsets[1:]
    if array.null_count:
        ends = _frozen(np.where(_valid(array), ends, firsts))
    keys = _byte_column(pairs.field(0), "headers")
    if pairs.null_count:
        present = _valid(pairs) & keys.valid if keys.valid.size else _valid(pairs)
        keys = keys._replace(valid=_frozen(present))
    return HeaderColumn(firsts, ends, keys, _byte_column(pairs.field(1), "headers"))


def _frozen(array: np.ndarray) -> np.ndarray:
    # Always read-only, so that kernels are compiled once and not for each mix of read-only and writable.
    array.flags.writeable = False
    return array


def _offsets(array: pa.Array, buffer: pa.Buffer | None, kind: Any, end: int, name: str) -> np.ndarray:
    if buffer is None or len(array) == 0:
        return _frozen(np.zeros(len(array) + 1, kind))
    offsets = _frozen(_items(buffer, kind, array.offset, len(array) + 1))
    if not ascend_within(offsets, end):
        raise unfit(name, "its offsets do not ascend within its data")
    return offsets


def _valid(array: pa.Array) -> np.ndarray:
    return _frozen(flags_of(array.is_valid())) if array.null_count else _NO_NULLS


def _timestamps(array: pa.Array) -> np.ndarray:
    if not (pa.types.is_int64(array.type) or (pa.types.is_timestamp(array.type) and array.type.unit == "ms")):
        raise InvalidRecordError("timestamps must be timestamp[ms] or int64", type=str(array.type))
    if array.null_count:
        raise InvalidRecordError("a timestamp is null", row=int(np.argmin(_valid(array))))
    return _frozen(_items(array.buffers()[1], np.int64, array.offset, len(array)))


def _items(buffer: pa.Buffer | None, kind: Any, first: int, count: int) -> np.ndarray:
    # The bytes after them may be no whole item.
    if buffer is None or count == 0:
        return np.empty(0, kind)
    return np.frombuffer(buffer, kind, count, first * np.dtype(kind).itemsize)


_NO_DATA = _frozen(np.empty(0, np.uint8))
_NO_NULLS = _frozen(np.empty(0, np.bool_))
