"""Records as Python values: each is checked when it comes, and together they become one Arrow batch."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distlog.core.arrow_arrays import integers, numbers_of
from distlog.core.batches.record_batch import HEADERS_TYPE
from distlog.core.config import MAX_INT, MAX_LONG
from distlog.core.errors import InvalidRecordError
from distlog.core.times import to_ms

Header = tuple[str, bytes | None]

SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("timestamp", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS_TYPE),
    ]
)

#: Attributes, and the varints for length, timestamp, offset, key and value length, and number of headers.
ROW_OVERHEAD = 1 + 5 + 10 + 5 + 5 + 5 + 5
_HEADER_OVERHEAD = 5 + 5


class Row(NamedTuple):
    """One record, with fields of SCHEMA's types; None is null, a timestamp is in ms."""

    partition: int | None
    timestamp: int | None
    key: bytes | None
    value: bytes | None
    headers: list[Header] | None

    @property
    def max_bytes(self) -> int:
        """The most bytes it can take in a batch, uncompressed (Kafka's `DefaultRecord.recordSizeUpperBound`)."""
        size = ROW_OVERHEAD + len(self.key or b"") + len(self.value or b"")
        for key, value in self.headers or ():
            size += _HEADER_OVERHEAD + len(key.encode()) + len(value or b"")
        return size


#: The number of fields of a record that a writer took: those of its Row, then the time at which it was taken.
FIELDS = len(Row._fields) + 1


def row_of(value: Any, key: Any = None, timestamp: Any = None, headers: Any = None, partition: Any = None) -> Row:
    """The row of a record's fields; text becomes UTF-8, a datetime milliseconds.

    Raises InvalidRecordError, which names the field, if one is of another type or out of range.
    """
    return Row(_partition(partition), _timestamp(timestamp), _key(key), _value(value), _headers(headers))


def columns_of(fields: Sequence[Any]) -> dict[str, Sequence[Any]]:
    """The columns of records, given FIELDS of each, one record behind the other.

    Key and value are always there; another column is left out if no record has a value for it.
    """
    columns = {name: fields[first::FIELDS] for first, name in enumerate(Row._fields)}
    optional = {name: columns[name] for name in ("partition", "timestamp", "headers")}
    empty = [name for name, values in optional.items() if values.count(None) == len(values)]
    return {name: values for name, values in columns.items() if name not in empty}


def batch_of_taken(fields: Sequence[Any], per_ms: int) -> pa.RecordBatch:
    """The batch of records, given FIELDS of each; their types are not checked again.

    A record without a timestamp gets the time at which it was taken, which counts `per_ms` units to a millisecond.
    """
    columns = columns_of(fields)
    arrays = {field.name: pa.array(columns[field.name], field.type) for field in SCHEMA if field.name in columns}
    # Arrow takes Python's integers several times as fast as numpy
    times = numbers_of(pa.array(fields[FIELDS - 1 :: FIELDS], pa.int64()))
    taken = integers(times // per_ms)
    arrays["timestamp"] = pc.coalesce(arrays["timestamp"], taken) if "timestamp" in arrays else taken
    return pa.RecordBatch.from_pydict(arrays)


def batch_of(columns: Mapping[str, Sequence[Any]], first_row: int = 0) -> pa.RecordBatch:
    """A batch of `columns` of equal length, some or all of SCHEMA's; they may hold the values that `row_of` takes.

    Raises InvalidRecordError, which counts rows from `first_row`, if a value does not fit.
    """
    given = [field for field in SCHEMA if field.name in columns]
    arrays = [_array(field, columns[field.name], first_row) for field in given]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(given))


def _array(field: pa.Field, values: Sequence[Any], first_row: int) -> pa.Array:
    # Types are checked all at once, and values one by one only if needed.
    plain = _PLAIN[field.name].issuperset(map(type, values))
    try:
        return pa.array(values if plain else _checked(field.name, values, first_row), field.type)
    except (pa.ArrowException, OverflowError) as error:
        raise InvalidRecordError(f"column {field.name} must be {field.type}: {error}") from None


def _checked(name: str, values: Iterable[Any], first_row: int) -> list[Any]:
    return [_checked_at(row, _CHECKS[name], value) for row, value in enumerate(values, first_row)]


def _checked_at(row: int, check: Callable[[Any], Any], value: Any) -> Any:
    try:
        return check(value)
    except InvalidRecordError as error:
        raise InvalidRecordError(error.message, row=row, **error.details) from None


def _timestamp(value: Any) -> int | None:
    if isinstance(value, (datetime, np.datetime64, str)):
        if value != value:  # not a time, as pandas and numpy have it: missing
            return None
        try:
            value = to_ms(value)
        except ValueError as error:
            raise InvalidRecordError(
                "a timestamp must be ms since 1970, a datetime or ISO 8601", got=repr(value)
            ) from error
    return _integer("timestamp", value, -1, MAX_LONG)


def _integer(name: str, value: Any, low: int, high: int) -> int | None:
    if value is None or (type(value) is int and low <= value <= high):
        return value
    # Takes numpy's integers too; but True is no number, and 1.5 must not become 1.
    if isinstance(value, bool) or not hasattr(value, "__index__") or not low <= operator.index(value) <= high:
        got = value if type(value) is int else type(value).__name__
        raise InvalidRecordError(f"{name} must be an integer from {low} to {high}, or None", got=got)
    return operator.index(value)


def _bytes(name: str, value: Any) -> bytes | None:
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, str):
        return _utf8(name, value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise InvalidRecordError(f"{name} must be bytes, text or None", got=type(value).__name__)


def _utf8(name: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidRecordError(f"{name} is not valid text: it holds a lone surrogate") from None


def _headers(headers: Any) -> list[Header] | None:
    if headers is None:
        return None
    if isinstance(headers, (str, bytes, Mapping)) or not isinstance(headers, Iterable):
        raise InvalidRecordError("headers must be a list of (key, value)", got=type(headers).__name__)
    return [_header(header) for header in headers]


def _header(header: Any) -> Header:
    if isinstance(header, Mapping) and header.keys() == {"key", "value"}:
        header = header["key"], header["value"]
    if not isinstance(header, (tuple, list)) or len(header) != 2 or not isinstance(header[0], str):
        raise InvalidRecordError("a header must be (text, bytes), or a dict of key and value")
    key, value = header
    _utf8("a header's key", key)
    return key, _bytes("a header's value", value)


_partition = partial(_integer, "partition", low=0, high=MAX_INT)
_key = partial(_bytes, "key")
_value = partial(_bytes, "value")

_CHECKS: Mapping[str, Callable[[Any], Any]] = {
    "partition": _partition,
    "timestamp": _timestamp,
    "key": _key,
    "value": _value,
    "headers": _headers,
}
_NULL = type(None)
#: The types that Arrow takes as they are; Arrow or `normalize` checks their ranges.
_PLAIN: Mapping[str, frozenset[type]] = {
    "partition": frozenset({int, _NULL}),
    "timestamp": frozenset({int, _NULL}),
    "key": frozenset({bytes, _NULL}),
    "value": frozenset({bytes, _NULL}),
    "headers": frozenset({_NULL}),
}
