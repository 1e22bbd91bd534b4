"""Checks the rows of an append, converts them to Arrow columns, and groups them by partition."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date
from functools import partial
from sys import getsizeof
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distlog.core.arrays import (
    MAX_INT,
    MAX_LONG,
    MIN_LONG,
    Bytes,
    Longs,
    column_of,
    flags_of,
    integers,
    numbers_of,
    scalar_of,
)
from distlog.core.config import TopicConfig
from distlog.core.errors import InvalidRecordError
from distlog.core.format.kernels.record_write import fill_partitions, first_out_of_range, group_rows
from distlog.core.format.record_batch import HEADER_SIZE, HEADERS_TYPE
from distlog.core.format.record_encoder import invalid_array_error, largest_batch
from distlog.core.times import NO_TIMESTAMP, WHOLE_TIME, in_ms, scale, to_ms, wrong_unit

_TIME_KINDS = (pa.types.is_timestamp, pa.types.is_integer, pa.types.is_null)
_TEXT_KINDS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)


def timestamps_of(
    batch: pa.RecordBatch, config: TopicConfig, now_ms: int, first_row: int, unit: str = "ms"
) -> pa.Array:
    """Return the records' times in ms since 1970, int64 without nulls. A missing time is `now_ms`."""
    if config.message_timestamp_type == "LogAppendTime" or "timestamp" not in batch.schema.names:
        return integers(np.full(batch.num_rows, now_ms))
    column = _in_ms(scaled(batch.column("timestamp"), unit, first_row))
    column = pc.fill_null(column, scalar_of(now_ms, pa.int64())) if column.null_count else column
    low, high = (value.as_py() for value in pc.min_max(column).values())
    earliest_ms, latest_ms = _limits(config, now_ms)
    if low is not None and (low < earliest_ms or high > latest_ms):
        is_too_early = pc.and_(pc.less(column, earliest_ms), pc.not_equal(column, NO_TIMESTAMP))
        is_bad = pc.or_(is_too_early, pc.greater(column, latest_ms))
        row = pc.index(is_bad, True).as_py()
        if row >= 0:  # no row is bad if the only low times are NO_TIMESTAMP
            timestamp, limits = column[row].as_py(), {"earliest": earliest_ms, "latest": latest_ms}
            raise InvalidRecordError(_timestamp_fault(timestamp), row=first_row + row, timestamp=timestamp, **limits)
    return column


def check_timestamp(timestamp: int | None, config: TopicConfig, now_ms: int) -> None:
    if timestamp in (None, NO_TIMESTAMP) or config.message_timestamp_type != "CreateTime":
        return
    earliest_ms, latest_ms = _limits(config, now_ms)
    if not earliest_ms <= timestamp <= latest_ms:
        limits = {"earliest": earliest_ms, "latest": latest_ms}
        raise InvalidRecordError(_timestamp_fault(timestamp), timestamp=timestamp, **limits)


def scaled(column: pa.Array, unit: str, first_row: int = 0) -> pa.Array:
    """Convert integers in `unit` to milliseconds. Returns other types, and negative numbers, unchanged."""
    if unit == "ms" or not pa.types.is_integer(column.type):
        return column
    divisor, factor = scale(unit)
    try:
        numbers = column.cast(pa.int64())
    except pa.ArrowException as error:
        raise InvalidRecordError(f"{WHOLE_TIME}: {error}", timestamp_unit=unit) from None
    largest = pc.max(numbers).as_py()
    if largest is not None and (fault := wrong_unit(largest, unit)):
        row = first_row + pc.index(numbers, largest).as_py()
        raise InvalidRecordError(fault, row=row, timestamp=largest, timestamp_unit=unit)
    times = pc.divide(numbers, divisor) if divisor > 1 else pc.multiply(numbers, factor)
    return pc.if_else(pc.less(numbers, 0), numbers, times)


def _in_ms(column: pa.Array) -> pa.Array:
    if any(is_text(column.type) for is_text in _TEXT_KINDS):
        column = _parsed_times(column)
    if pa.types.is_date(column.type):
        column = column.cast(pa.timestamp("ms"))
    if not any(is_kind(column.type) for is_kind in _TIME_KINDS):
        # floats are probably seconds from `time.time()`
        advice = "; multiply seconds by 1000 and cast them" if pa.types.is_floating(column.type) else ""
        text = f"column timestamp must be a timestamp, a date, int64 milliseconds, or ISO 8601 text{advice}"
        raise InvalidRecordError(text, type=column.type)
    try:
        if pa.types.is_timestamp(column.type):
            kind = pa.timestamp("ms", column.type.tz)
            column = column.cast(options=pc.CastOptions(kind, allow_time_truncate=True))
        return column.cast(pa.int64())
    except pa.ArrowException as error:
        raise InvalidRecordError(f"column timestamp must fit int64 milliseconds: {error}") from None


def _parsed_times(texts: pa.Array) -> pa.Array:
    """Parse ISO 8601 texts that all have a zone, or all have none."""
    with suppress(pa.ArrowException):
        return texts.cast(pa.timestamp("ns", "UTC"))
    try:
        return texts.cast(pa.timestamp("ns"))
    except pa.ArrowException as error:
        text = f"column timestamp must be ISO 8601 if it is text, with a zone in all rows or in none: {error}"
        raise InvalidRecordError(text) from None


def _timestamp_fault(timestamp: int) -> str:
    if fault := wrong_unit(timestamp):
        return fault
    if timestamp < NO_TIMESTAMP:
        return "a timestamp is in milliseconds since 1970, and cannot be before 1970; -1 means none"
    return (
        "a timestamp must be -1, or at most message.timestamp.before.max.ms before now and "
        "message.timestamp.after.max.ms after now: give milliseconds, or set these limits higher"
    )


def _limits(config: TopicConfig, now_ms: int) -> tuple[int, int]:
    earliest_ms = max(now_ms - config.message_timestamp_before_max_ms, NO_TIMESTAMP)
    return earliest_ms, min(now_ms + config.message_timestamp_after_max_ms, MAX_LONG)


Header = tuple[str, bytes | None]

_FIELD_TYPES = {"partition": pa.int32(), "timestamp": pa.int64(), "key": pa.binary(), "value": pa.binary()}
SCHEMA = pa.schema({**_FIELD_TYPES, "headers": HEADERS_TYPE})

#: The attributes, and the largest varints of length, timestamp, offset, key length, value length and header count.
ROW_OVERHEAD = 1 + 5 + 10 + 5 + 5 + 5 + 5
_HEADER_OVERHEAD = 5 + 5  # the varints of the lengths of its key and value


class Row(NamedTuple):
    partition: int | None
    timestamp: int | None
    key: bytes | None
    value: bytes | None
    headers: list[Header] | None

    @property
    def max_bytes(self) -> int:
        """The largest size of the record in an uncompressed batch (Kafka's `DefaultRecord.recordSizeUpperBound`)."""
        size = ROW_OVERHEAD + len(self.key or b"") + len(self.value or b"")
        for key, value in self.headers or ():
            size += _HEADER_OVERHEAD + len(key.encode()) + len(value or b"")
        return size


#: A writer keeps its records as one flat list: the fields of a record's Row, its append time, then the next record.
FIELDS_PER_RECORD = len(Row._fields) + 1


def row_of(
    value: Any, key: Any = None, timestamp: Any = None, headers: Any = None, partition: Any = None, unit: str = "ms"
) -> Row:
    return Row(_partition(partition), _timestamp(timestamp, unit), _key(key), _value(value), _headers(headers))


def columns_of(flat_fields: Sequence[Any]) -> dict[str, Sequence[Any]]:
    """Return the columns of records with FIELDS_PER_RECORD values each, without optional columns that are empty."""
    columns = {name: flat_fields[index::FIELDS_PER_RECORD] for index, name in enumerate(Row._fields)}
    optional = {name: columns[name] for name in ("partition", "timestamp", "headers")}
    empty = [name for name, values in optional.items() if values.count(None) == len(values)]
    return {name: values for name, values in columns.items() if name not in empty}


def batch_of_fields(flat_fields: Sequence[Any], per_ms: int, now_ms: int) -> pa.RecordBatch:
    """Return a batch of a writer's records, from their checked fields. Append times have `per_ms` units in a ms."""
    columns = columns_of(flat_fields)
    arrays = {field.name: column_of(columns[field.name], field.type) for field in SCHEMA if field.name in columns}
    # Arrow converts Python's integers several times as fast as numpy
    times = numbers_of(column_of(flat_fields[FIELDS_PER_RECORD - 1 :: FIELDS_PER_RECORD], pa.int64()))
    times_ms = integers(times // per_ms)
    if len(times_ms) and pc.max(times_ms).as_py() > now_ms:
        # if the clock went back, append times after `now_ms` become null, which `normalize` replaces by its own time
        times_ms = pc.if_else(pc.greater(times_ms, integers([now_ms])[0]), scalar_of(None, pa.int64()), times_ms)
    arrays["timestamp"] = pc.coalesce(arrays["timestamp"], times_ms) if "timestamp" in arrays else times_ms
    return pa.RecordBatch.from_pydict(arrays)


def batch_of(columns: Mapping[str, Sequence[Any]], first_row: int = 0, unit: str = "ms") -> pa.RecordBatch:
    """Return a batch of `columns`, some or all of SCHEMA's. Row numbers in errors start at `first_row`."""
    fields = [field for field in SCHEMA if field.name in columns]
    arrays = [_array(field, columns[field.name], first_row, unit) for field in fields]
    return pa.RecordBatch.from_arrays(arrays, names=[field.name for field in fields])


def _array(field: pa.Field, values: Sequence[Any], first_row: int, unit: str) -> pa.Array:
    has_other_unit = field.name == "timestamp" and unit != "ms"
    # a check per value is slow, so it is done only if the type of a value needs it
    is_convertible = _CONVERTIBLE[field.name].issuperset(map(type, values))
    try:
        if not is_convertible:
            check = partial(_timestamp, unit=unit) if has_other_unit else _CHECKS[field.name]
            values = [_checked_at(row, check, value) for row, value in enumerate(values, first_row)]
        column = column_of(values, field.type)
    except (pa.ArrowException, OverflowError) as error:
        raise InvalidRecordError(f"column {field.name} must be {field.type}: {error}") from None
    if not has_other_unit:
        return column
    # checked values are in ms already; as timestamps, since `normalize` would convert integers from `unit` again
    return (scaled(column, unit, first_row) if is_convertible else column).cast(pa.timestamp("ms"))


def _checked_at(row: int, check: Callable[[Any], Any], value: Any) -> Any:
    try:
        return check(value)
    except InvalidRecordError as error:
        raise InvalidRecordError(error.message, row=row, **error.details) from None


def _timestamp(value: Any, unit: str = "ms") -> int | None:
    given_value = value
    if isinstance(value, (date, np.datetime64, str)):
        if value != value:  # NaT of pandas or numpy
            return None
        try:
            value = to_ms(value, unit)
        except ValueError as error:
            text = "a timestamp must be ms since 1970, a datetime, a date or ISO 8601"
            raise InvalidRecordError(text, got=repr(value)) from error
    elif isinstance(value, (float, np.floating)):
        text = f"{WHOLE_TIME}: multiply seconds with a fraction by 1000, make them an int, and use the unit ms"
        raise InvalidRecordError(text, got=repr(value))
    else:
        value = _integer("timestamp", value, MIN_LONG, MAX_LONG)
        if value is not None and unit != "ms" and (fault := wrong_unit(value, unit)):
            raise InvalidRecordError(fault, timestamp=value, timestamp_unit=unit)
        value = None if value is None else in_ms(value, unit)
    time: int | None = value
    if time is not None and not -1 <= time <= MAX_LONG:
        raise InvalidRecordError(f"{WHOLE_TIME}, at least 0, or -1 for none", got=repr(given_value)[:100])
    return time


def _integer(name: str, value: Any, low: int, high: int) -> int | None:
    if value is None or (type(value) is int and low <= value <= high):
        return value
    # numpy's integers are accepted, too; but True is not a number, and 1.5 must not become 1
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
        raise InvalidRecordError(f"{name} is not valid text: it holds a lone surrogate; give bytes") from None


_HEADER_FIELDS = {"key", "value"}


def _headers(headers: Any) -> list[Header] | None:
    if headers is None:
        return None
    if isinstance(headers, (str, bytes)) or not isinstance(headers, Iterable):
        raise InvalidRecordError("headers must be a list of (key, value), or a dict", got=type(headers).__name__)
    if isinstance(headers, Mapping) and headers.keys() == _HEADER_FIELDS:
        # this may be one header of a scan, without its list, or two headers with these names
        raise InvalidRecordError("a dict of key and value is one header: give a list of dicts, or pairs (key, value)")
    return [_header(header) for header in (headers.items() if isinstance(headers, Mapping) else headers)]


def _header(header: Any) -> Header:
    if isinstance(header, Mapping) and header.keys() == _HEADER_FIELDS:
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
#: By column, the Python types that need no check per value: Arrow converts them, and it or `normalize` checks ranges.
_CONVERTIBLE: Mapping[str, frozenset[type]] = {
    **dict.fromkeys(("partition", "timestamp"), frozenset({int, _NULL})),
    **dict.fromkeys(("key", "value"), frozenset({bytes, _NULL})),
    "headers": frozenset({_NULL}),
}

ACCEPTED_COLUMNS = ("partition", "timestamp", "key", "value", "headers")
#: Columns of a scan that an append sets, so that a scan's result can be appended.
IGNORED_COLUMNS = ("offset", "timestamp_type", "timestampType", "topic")
#: The bytes of a batch that is split and encoded at once: it fits into the processor's caches, and bounds memory.
SLICE_BYTES = 8 << 20
_ROWS_PER_BATCH = 65_536
_BYTES_KINDS = (pa.types.is_binary, pa.types.is_string, pa.types.is_large_binary, pa.types.is_large_string)
_USUAL_KINDS = (*_BYTES_KINDS, pa.types.is_fixed_size_binary, pa.types.is_primitive, pa.types.is_null)
#: Types whose values have different sizes. A dictionary array stores each value once, but each record gets its own.
_VARIABLE_SIZE_KINDS = (*_BYTES_KINDS, pa.types.is_string_view)
_KEY_NEEDED = "a compacted topic needs a key in every record: give one, or set cleanup.policy=delete"

Appendable = Any
"""Arrow (table, batch, reader, any object with `__arrow_c_stream__`), a pandas DataFrame, or an iterable of dicts."""


def batches(data: Appendable, unit: str = "ms") -> Generator[pa.RecordBatch, None, None]:
    """Yield batches of about SLICE_BYTES. Raises InvalidRecordError for data of another type, or a bad dict."""
    for batch in _record_batches(data, unit):
        _check_memory(batch)
        size = batch.nbytes + sum(map(_repeated_bytes, batch.columns))
        rows = max(1, batch.num_rows * SLICE_BYTES // max(size, SLICE_BYTES))
        yield from (batch.slice(start, rows) for start in range(0, batch.num_rows, rows))


def _repeated_bytes(column: pa.Array) -> int:
    """Return the bytes of a dictionary column's values if each row stored its value; 0 for another column."""
    value_type = column.type.value_type if pa.types.is_dictionary(column.type) else None
    if value_type is None or not any(is_kind(value_type) for is_kind in _VARIABLE_SIZE_KINDS):
        return 0
    sizes = pc.binary_length(column.dictionary.cast(pa.large_binary()))
    return int(pc.sum(sizes.take(column.indices).cast(pa.int64())).as_py() or 0)


def row_count(data: Appendable) -> int | None:
    if isinstance(data, pa.Table | pa.RecordBatch):
        return int(data.num_rows)
    # `iloc` is of pandas; `len` is not called for a lazy scan, since it would read the records
    return len(data) if isinstance(data, list | tuple) or hasattr(data, "iloc") else None


def _check_memory(batch: pa.RecordBatch) -> None:
    """Raise InvalidRecordError for an array whose offsets exceed its memory. The encoder checks _USUAL_KINDS."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        is_usual = any(is_kind(column.type) for is_kind in _USUAL_KINDS)
        try:
            column.validate(full=name in ACCEPTED_COLUMNS and not is_usual)
        except pa.ArrowException as error:
            raise invalid_array_error(name, error) from None


def _record_batches(data: Appendable, unit: str) -> Iterator[pa.RecordBatch]:
    if isinstance(data, pa.RecordBatch):
        yield data
    elif isinstance(data, pa.Table):
        yield from data.to_batches()
    elif isinstance(data, pa.RecordBatchReader):
        yield from data
    elif type(data).__module__.split(".")[0] == "pandas" and hasattr(data, "columns"):
        yield from _table_of_pandas(data).to_batches()
    elif hasattr(data, "__arrow_c_stream__"):
        # close the stream, since an open stream of DuckDB blocks its connection
        with _stream_of(data) as stream:
            yield from stream
    elif isinstance(data, Iterable) and not isinstance(data, (str, bytes, Mapping)):
        first_row = 0
        for chunk in _chunks(iter(data)):
            names = {name for record in chunk for name in record}
            _check_names(names)
            columns = {name: [record.get(name) for record in chunk] for name in ACCEPTED_COLUMNS if name in names}
            yield batch_of(columns, first_row, unit)
            first_row += len(chunk)
    else:
        text = "append takes Arrow (Polars, DuckDB, any Arrow stream), pandas or an iterable of dicts"
        raise InvalidRecordError(text, type=type(data).__name__)


def _stream_of(data: Any) -> pa.RecordBatchReader:
    try:
        return pa.RecordBatchReader.from_stream(data)
    except (pa.ArrowException, TypeError, ValueError) as error:
        text = f"the Arrow stream of the data has no columns: {error}"
        raise InvalidRecordError(text, type=type(data).__name__) from None


def _table_of_pandas(frame: Any) -> pa.Table:
    # `groupby("key")`, or an index of times, turns columns into levels of the index; other indexes number the rows
    levels = [name for name in frame.index.names if name in ACCEPTED_COLUMNS and name not in frame.columns]
    frame = frame.reset_index(levels) if levels else frame
    try:
        return pa.Table.from_pandas(frame, preserve_index=False)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InvalidRecordError(f"a column of the DataFrame cannot become an Arrow column: {error}") from None


def _chunks(records: Iterator[Any]) -> Iterator[list[Mapping[str, Any]]]:
    chunk: list[Mapping[str, Any]] = []
    size = 0
    for number, record in enumerate(records):
        if type(record) is not dict and not isinstance(record, Mapping):
            text = "a record must be a dict with a value; key, timestamp, partition and headers are optional"
            raise InvalidRecordError(text, row=number, got=type(record).__name__)
        if "value" not in record:
            _check_names(record.keys())
            text = "a record needs a value; None is allowed, and deletes the key at compaction"
            raise InvalidRecordError(text, row=number)
        chunk.append(record)
        size += getsizeof(record["value"])
        if size >= SLICE_BYTES or len(chunk) == _ROWS_PER_BATCH:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def normalize(
    batch: pa.RecordBatch, config: TopicConfig, now_ms: int, first_row: int = 0, unit: str = "ms"
) -> pa.RecordBatch:
    """Return the columns to write, of the right types, with a timestamp in each row."""
    _check_names(batch.schema.names)
    if "value" not in batch.schema.names:
        raise InvalidRecordError("the data has no column value: rename or add it", columns=batch.schema.names)
    columns = {"timestamp": timestamps_of(batch, config, now_ms, first_row, unit)}
    columns["key"] = _binary(batch, "key")
    columns["value"] = _binary(batch, "value")
    if "partition" in batch.schema.names:
        columns = {"partition": _cast(batch, "partition", pa.int32()), **columns}
    if "headers" in batch.schema.names and not pa.types.is_null(batch.schema.field("headers").type):
        _check_header_fields(batch.schema.field("headers").type)
        columns["headers"] = _cast(batch, "headers", HEADERS_TYPE)
    if "compact" in config.cleanup_policy and columns["key"].null_count:
        row = pc.index(pc.is_null(columns["key"]), True).as_py()
        raise InvalidRecordError(_KEY_NEEDED, row=first_row + row)
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def max_record_bytes(config: TopicConfig, codec: str) -> int:
    """Return the uncompressed bytes of the largest record that fits a batch, as a Kafka producer computes them."""
    max_bytes = largest_batch(config) - HEADER_SIZE
    # a codec makes incompressible data a little larger, by the headers of its blocks: allow 1/1024 and 64 bytes
    return max_bytes if codec == "none" else max_bytes - (max_bytes >> 10) - 64


def check_row(row: Row, size: int, config: TopicConfig, now_ms: int, codec: str) -> None:
    """Raise InvalidRecordError for a row of at most `size` bytes that `normalize` or `encode` would refuse."""
    if row.key is None and "compact" in config.cleanup_policy:
        raise InvalidRecordError(_KEY_NEEDED)
    max_bytes = max_record_bytes(config, codec)
    if size > max_bytes:
        text = f"a record must have at most {max_bytes} bytes to fit max.message.bytes and segment.bytes"
        limit = largest_batch(config)
        raise InvalidRecordError(f"{text}: make it smaller, or raise the lower setting", size=size, limit=limit)
    check_timestamp(row.timestamp, config, now_ms)


def unknown_columns_text(names: Iterable[Any], accepted: Iterable[str] = ACCEPTED_COLUMNS) -> str:
    columns = ", ".join(sorted(map(str, names)))
    text = f"unknown column {columns}: rename it, leave it out, or put it into the value"
    return f"{text}; the columns are {', '.join(accepted)}"


def _check_names(names: Collection[Any]) -> None:
    unknown = set(names).difference(ACCEPTED_COLUMNS, IGNORED_COLUMNS)
    if unknown:
        raise InvalidRecordError(unknown_columns_text(unknown))
    if len(set(names)) < len(names):
        raise InvalidRecordError("two columns have the same name: rename one", columns=", ".join(names))


#: List views are left out, since Arrow casts them to lists that are not valid.
_LIST_KINDS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)


def _check_header_fields(kind: pa.DataType) -> None:
    """Raise InvalidRecordError for a column whose cast by Arrow would leave out or add a field."""
    is_list = any(is_kind(kind) for is_kind in _LIST_KINDS)
    # a column without headers, from Polars, has a type without fields
    if pa.types.is_map(kind) or (is_list and pa.types.is_null(kind.value_type)):
        return
    has_fields = is_list and pa.types.is_struct(kind.value_type)
    if not has_fields or sorted(field.name for field in kind.value_type) != ["key", "value"]:
        text = f"column headers must be {HEADERS_TYPE}, or a map, with the fields key and value only"
        raise InvalidRecordError(text, type=kind)


def _cast(batch: pa.RecordBatch, name: str, kind: pa.DataType) -> pa.Array:
    column = batch.column(name)
    if column.type == kind:
        return column
    try:
        return column.cast(kind)
    except pa.ArrowException as error:
        raise InvalidRecordError(f"column {name} must be {kind}, not {column.type}: {error}") from None


def _binary(batch: pa.RecordBatch, name: str) -> pa.Array:
    if name not in batch.schema.names:
        return pa.nulls(batch.num_rows, pa.binary())
    column = batch.column(name)
    if pa.types.is_dictionary(column.type) and pa.types.is_string_view(column.type.value_type):
        # Polars categories, which Arrow cannot decode
        return column.dictionary.cast(pa.binary()).take(column.indices)
    if column.type == pa.large_binary():
        return column
    if pa.types.is_large_string(column.type):
        return _cast(batch, name, pa.large_binary())
    if pa.types.is_string_view(column.type):
        return _cast(batch, name, pa.string()).cast(pa.binary())
    return _cast(batch, name, pa.binary())


Ints = npt.NDArray[np.int32]

_BYTE = np.dtype(np.uint8)


def group_by_partition(partitions: Ints, count: int) -> tuple[Longs, Longs]:
    """Return the row numbers, grouped by partition and in order within each, and the number of rows per partition."""
    order = np.empty(len(partitions), np.int64)
    counts = np.zeros(count, np.int64)
    # callers have checked the partitions; the kernel checks again, since a bad one would write outside of `counts`
    if group_rows(partitions, order, counts, np.empty(count, np.int64)) >= 0:
        raise ValueError(f"a partition is not between 0 and {count - 1}")
    return order, counts


def _buffers(array: pa.Array[Any]) -> tuple[Ints | Longs, Bytes, Bytes]:
    """Return this slice's offsets, the data, and the whole array's validity bits (empty if all are valid)."""
    valid, offsets, data = array.buffers()
    kind = np.dtype(np.int64 if pa.types.is_large_binary(array.type) else np.int32)
    slice_offsets = _view(offsets, kind)[array.offset : array.offset + len(array) + 1]
    return slice_offsets, _view(data), _view(valid if array.null_count else None)


def _view(buffer: pa.Buffer | None, kind: np.dtype[Any] = _BYTE) -> npt.NDArray[Any]:
    return np.frombuffer(memoryview(buffer) if buffer else b"", kind)


#: The bytes of keys and values after which records without a key go to the next partition.
STICKY_BYTES = 131_072


class Partitioner:
    """Splits batches of records by partition, as Kafka's `BuiltInPartitioner`.

    A record without a partition goes to `(murmur2(key) & 0x7fffffff) % partitions`. Records without a key go to one
    partition, at first to `first`, until it has `run_bytes` bytes of keys and values, then to the next partition.
    Each run continues from batch to batch.
    """

    def __init__(self, partitions: int, first: int, run_bytes: int = STICKY_BYTES) -> None:
        self._partitions, self._run_bytes = partitions, run_bytes
        self._sticky = first % partitions, 0  # the partition of the current run, and the run's bytes so far

    def group(self, records: pa.RecordBatch, first_row: int = 0) -> tuple[Longs, Longs]:
        return group_by_partition(self._partitions_of(records, first_row), self._partitions)

    def assign(self, keys: pa.Array[Any], values: pa.Array[Any]) -> Ints:
        """Return the partition of each record: by its key, or without a key by sticky runs."""
        key_offsets, key_data, valid = _buffers(keys)
        value_offsets, _, _ = _buffers(values)
        assigned = np.empty(len(keys), np.int32)
        columns = key_offsets, key_data, valid, keys.offset, value_offsets
        self._sticky = fill_partitions(*columns, self._partitions, *self._sticky, self._run_bytes, assigned)
        if self._sticky[0] < 0:
            raise ValueError("the offsets of the key column do not fit its data")
        return assigned

    def split(
        self, records: pa.RecordBatch, partition: int | None = None, first_row: int = 0
    ) -> Iterator[tuple[int, Longs]]:
        """Yield each partition with its row numbers, in order. Row numbers in errors start at `first_row`."""
        if partition is not None:
            self._check(partition)
            yield operator.index(partition), np.arange(records.num_rows)
        elif self._partitions == 1 and "partition" not in records.schema.names:
            yield 0, np.arange(records.num_rows)
        elif records.num_rows:
            yield from rows_by_partition(*self.group(records, first_row))

    def _partitions_of(self, records: pa.RecordBatch, first_row: int) -> Ints:
        assigned = self.assign(records.column("key"), records.column("value"))
        if "partition" not in records.schema.names:
            return assigned
        column = records.column("partition")
        numbers = numbers_of(column.fill_null(scalar_of(0, column.type)))
        partitions = np.where(flags_of(column.is_valid()), numbers, assigned).astype(np.int32)
        bad_row = first_out_of_range(partitions, self._partitions)
        if bad_row >= 0:
            check_row_partition(int(partitions[bad_row]), self._partitions, first_row + bad_row)
        return partitions

    def _check(self, partition: int) -> None:
        if isinstance(partition, bool) or not hasattr(partition, "__index__"):
            raise InvalidRecordError("a partition must be an integer", got=type(partition).__name__)
        check_row_partition(partition, self._partitions)


def check_row_partition(partition: int, count: int, row: int | None = None) -> None:
    if not 0 <= partition < count:
        text = f"the partition does not exist: give one from 0 to {count - 1}"
        raise InvalidRecordError(text, partition=partition, row=row)


def rows_by_partition(order: Longs, counts: Longs) -> Iterator[tuple[int, Longs]]:
    """Yield each partition that has rows, and their numbers, from the result of `group_by_partition`."""
    ends = np.cumsum(counts)
    for partition in np.flatnonzero(counts).tolist():
        yield partition, order[ends[partition] - counts[partition] : ends[partition]]
