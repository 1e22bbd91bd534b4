"""What a caller appends, made into columns: `normalize` turns Arrow, pandas or dicts into one Arrow batch.

The columns of a normalized batch are, in this order: `partition` int32 (only when the input has one), `timestamp`
int64 (ms since the epoch, no nulls), `key` binary, `value` binary, and `headers` (only when the input has them).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from distlog.core.config import MAX_LONG, TopicConfig
from distlog.core.errors import InvalidRecordError
from distlog.core.record_batch import HEADERS_TYPE

ACCEPTED = ("partition", "timestamp", "key", "value", "headers")
#: Columns of a scan that an append gives anew; a scan's result can so be appended as it is.
IGNORED = ("offset", "timestamp_type", "timestampType", "topic")
NO_TIMESTAMP = -1
#: What is routed and encoded at once; more would leave the processor's caches, and memory unbounded.
SLICE_BYTES = 8 << 20
_ROWS_PER_BATCH = 65_536
_DICT_SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("timestamp", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS_TYPE),
    ]
)

#: Arrow (table, batch or reader), a pandas DataFrame, or an iterable of dicts.
Appendable = Any


def batches(data: Appendable) -> Iterator[pa.RecordBatch]:
    """The rows of anything that can be appended, Arrow, pandas, or an iterable of dicts, some MiB at a time.

    Raises InvalidRecordError when it is none of these, or a dict does not fit.
    """
    for batch in _as_given(data):
        rows = max(1, batch.num_rows * SLICE_BYTES // max(batch.nbytes, SLICE_BYTES))
        yield from (batch.slice(start, rows) for start in range(0, batch.num_rows, rows))


def _as_given(data: Appendable) -> Iterator[pa.RecordBatch]:
    if isinstance(data, pa.RecordBatch):
        yield data
    elif isinstance(data, pa.Table):
        yield from data.to_batches()
    elif isinstance(data, pa.RecordBatchReader):
        yield from data
    elif type(data).__module__.split(".")[0] == "pandas":
        yield from pa.Table.from_pandas(data, preserve_index=False).to_batches()
    elif isinstance(data, Iterable) and not isinstance(data, (str, bytes, Mapping)):
        yield from _batches_of_dicts(iter(data))
    else:
        raise InvalidRecordError("append takes Arrow, pandas or an iterable of dicts", type=type(data).__name__)


def _batches_of_dicts(rows: Iterator[Any]) -> Iterator[pa.RecordBatch]:
    while chunk := list(islice(rows, _ROWS_PER_BATCH)):
        yield _batch_of_dicts(chunk)


def _batch_of_dicts(rows: list[Mapping[str, Any]]) -> pa.RecordBatch:
    names = {name for row in rows for name in _mapping(row)}
    _check_names(names)
    fields = [field for field in _DICT_SCHEMA if field.name in names or field.name == "value"]
    columns = [_column_of([row.get(field.name) for row in rows], field) for field in fields]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def _mapping(row: Any) -> Mapping[str, Any]:
    if not isinstance(row, Mapping):
        raise InvalidRecordError(
            "a record is a dict with key, value, timestamp, headers, partition", got=type(row).__name__
        )
    return row


def _column_of(values: list[Any], field: pa.Field) -> pa.Array:
    if field.name == "headers":
        values = [None if row is None else [_header(item) for item in row] for row in values]
    elif field.name in ("key", "value"):
        values = [value.encode() if isinstance(value, str) else value for value in values]
    elif field.name == "timestamp":
        values = [int(value.timestamp() * 1000) if hasattr(value, "timestamp") else value for value in values]
    try:
        return pa.array(values, field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidRecordError(f"column {field.name} must be {field.type}: {error}") from None


def _header(item: Any) -> dict[str, Any]:
    key, value = (item["key"], item["value"]) if isinstance(item, Mapping) else item
    return {"key": key, "value": value.encode() if isinstance(value, str) else value}


def normalize(batch: pa.RecordBatch, config: TopicConfig, now_ms: int) -> pa.RecordBatch:
    """The columns to be written for `batch`, under the topic's rules.

    A missing or null timestamp becomes `now_ms`; LogAppendTime is left to the encoder. Raises InvalidRecordError
    naming the column, and the row where there is one, for an unknown column, a type that does not fit, a null
    key on a compacted topic, or a timestamp that the topic's limits refuse.
    """
    _check_names(set(batch.schema.names))
    if "value" not in batch.schema.names:
        raise InvalidRecordError("a value column is needed", columns=batch.schema.names)
    columns = {"timestamp": _timestamps(batch, config, now_ms)}
    columns["key"] = _binary(batch, "key")
    columns["value"] = _binary(batch, "value")
    if "partition" in batch.schema.names:
        columns = {"partition": _cast(batch, "partition", pa.int32()), **columns}
    if "headers" in batch.schema.names and not pa.types.is_null(batch.schema.field("headers").type):
        columns["headers"] = _cast(batch, "headers", HEADERS_TYPE)
    if "compact" in config.cleanup_policy and columns["key"].null_count:
        row = pc.index(pc.is_null(columns["key"]), True).as_py()
        raise InvalidRecordError("a compacted topic needs a key in every record", row=row)
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _check_names(names: set[str]) -> None:
    unknown = sorted(names.difference(ACCEPTED, IGNORED))
    if unknown:
        raise InvalidRecordError(f"unknown column {unknown[0]}; known are {', '.join(ACCEPTED)}")


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
    if batch.column(name).type == pa.large_binary():
        return batch.column(name)
    if pa.types.is_large_string(batch.column(name).type):
        return _cast(batch, name, pa.large_binary())
    return _cast(batch, name, pa.binary())


def _timestamps(batch: pa.RecordBatch, config: TopicConfig, now_ms: int) -> pa.Array:
    if config.message_timestamp_type == "LogAppendTime" or "timestamp" not in batch.schema.names:
        return pa.repeat(pa.scalar(now_ms, pa.int64()), batch.num_rows)
    column = batch.column("timestamp")
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64())
    elif not pa.types.is_integer(column.type) and not pa.types.is_null(column.type):
        raise InvalidRecordError("column timestamp must be a timestamp or int64 milliseconds", type=column.type)
    column = pc.fill_null(column.cast(pa.int64()), now_ms)
    _check_timestamps(column, config, now_ms)
    return column


def _check_timestamps(column: pa.Array, config: TopicConfig, now_ms: int) -> None:
    low, high = (value.as_py() for value in pc.min_max(column).values())
    if low is None:
        return
    before = max(now_ms - config.message_timestamp_before_max_ms, NO_TIMESTAMP)
    after = min(now_ms + config.message_timestamp_after_max_ms, MAX_LONG)
    if low >= before and high <= after:
        return
    # -1 means "no timestamp" (RecordBatch.NO_TIMESTAMP) and passes Kafka's limits
    refused = pc.or_(pc.and_(pc.less(column, before), pc.not_equal(column, NO_TIMESTAMP)), pc.greater(column, after))
    row = pc.index(refused, True).as_py()
    if row >= 0:
        raise InvalidRecordError(
            "a timestamp must be -1, or not negative and within message.timestamp.before.max.ms and after.max.ms",
            row=row,
            timestamp=column[row].as_py(),
        )
