"""Makes columns of what a caller appends: `normalize` turns Arrow, pandas or dicts into one Arrow batch.

The columns of a normalized batch are, in this order: `partition` int32 (only when the input has one), `timestamp`
int64 (ms since 1970, no nulls), `key` binary, `value` binary, and `headers` (only when the input has them).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from sys import getsizeof
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from distlog.core.batches.record_batch import HEADER_SIZE, HEADERS_TYPE
from distlog.core.batches.record_input import unfit
from distlog.core.config import TopicConfig
from distlog.core.errors import InvalidRecordError
from distlog.core.topics.appending.rows import Row, batch_of
from distlog.core.topics.appending.timestamps import check_timestamp, timestamps_of

ACCEPTED = ("partition", "timestamp", "key", "value", "headers")
#: Columns of a scan that an append sets anew, so that a scan's result can be appended as it is.
IGNORED = ("offset", "timestamp_type", "timestampType", "topic")
#: Bytes routed and encoded at once; more would not fit the processor's caches, and memory would be unbounded.
SLICE_BYTES = 8 << 20
_ROWS_PER_BATCH = 65_536
_USUAL_KINDS = (
    pa.types.is_binary,
    pa.types.is_string,
    pa.types.is_large_binary,
    pa.types.is_large_string,
    pa.types.is_fixed_size_binary,
    pa.types.is_primitive,
    pa.types.is_null,
)
_KEY_NEEDED = "a compacted topic needs a key in every record"

#: Arrow (table, batch, reader, whatever has `__arrow_c_stream__`), a pandas DataFrame, or an iterable of dicts.
Appendable = Any


def batches(data: Appendable) -> Iterator[pa.RecordBatch]:
    """The rows of Arrow, pandas, or an iterable of dicts, some MiB at a time.

    Raises InvalidRecordError if `data` is none of these, or a dict does not fit.
    """
    for batch in _as_given(data):
        _check_memory(batch)
        rows = max(1, batch.num_rows * SLICE_BYTES // max(batch.nbytes, SLICE_BYTES))
        yield from (batch.slice(start, rows) for start in range(0, batch.num_rows, rows))


def rows_of(data: Appendable) -> int | None:
    """How many rows `data` has, if it says so without being read."""
    if isinstance(data, pa.Table | pa.RecordBatch):
        return int(data.num_rows)
    # a scan would read for its length
    return len(data) if isinstance(data, list | tuple) or hasattr(data, "iloc") else None


def _check_memory(batch: pa.RecordBatch) -> None:
    """Raise InvalidRecordError if an array points outside its memory, which Arrow itself does not check.

    For the usual types the offsets are checked when they are used.
    """
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        usual = any(is_kind(column.type) for is_kind in _USUAL_KINDS)
        try:
            column.validate(full=name in ACCEPTED and not usual)
        except pa.ArrowException as error:
            raise unfit(name, error) from None


def _as_given(data: Appendable) -> Iterator[pa.RecordBatch]:
    if isinstance(data, pa.RecordBatch):
        yield data
    elif isinstance(data, pa.Table):
        yield from data.to_batches()
    elif isinstance(data, pa.RecordBatchReader):
        yield from data
    elif type(data).__module__.split(".")[0] == "pandas" and hasattr(data, "columns"):
        yield from _table_of_pandas(data).to_batches()
    elif hasattr(data, "__arrow_c_stream__"):
        yield from _stream_of(data)
    elif isinstance(data, Iterable) and not isinstance(data, (str, bytes, Mapping)):
        yield from _batches_of_dicts(iter(data))
    else:
        raise InvalidRecordError("append takes Arrow, pandas or an iterable of dicts", type=type(data).__name__)


def _stream_of(data: Any) -> pa.RecordBatchReader:
    """The batches of what speaks Arrow's C stream interface: Polars, DuckDB, a scan, and others."""
    try:
        return pa.RecordBatchReader.from_stream(data)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InvalidRecordError(f"its Arrow stream has no columns: {error}", type=type(data).__name__) from None


def _table_of_pandas(frame: Any) -> pa.Table:
    try:
        return pa.Table.from_pandas(frame, preserve_index=False)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InvalidRecordError(f"a column of the DataFrame cannot become an Arrow column: {error}") from None


def _batches_of_dicts(records: Iterator[Any]) -> Iterator[pa.RecordBatch]:
    first_row = 0
    for chunk in _chunks(records):
        names = {name for record in chunk for name in record}
        _check_names(names)
        columns = {name: [record.get(name) for record in chunk] for name in ACCEPTED if name in names}
        yield batch_of(columns, first_row)
        first_row += len(chunk)


def _chunks(records: Iterator[Any]) -> Iterator[list[Mapping[str, Any]]]:
    """Lists of records with some MiB of values; InvalidRecordError for a record that is no dict or has no value."""
    chunk: list[Mapping[str, Any]] = []
    size = 0
    for number, record in enumerate(records):
        if type(record) is not dict and not isinstance(record, Mapping):
            raise InvalidRecordError(
                f"a record must be a dict with {', '.join(ACCEPTED)}", row=number, got=type(record).__name__
            )
        if "value" not in record:
            _check_names(record.keys())
            raise InvalidRecordError(
                "a record needs a value; None is allowed, and deletes the key at compaction", row=number
            )
        chunk.append(record)
        size += getsizeof(record["value"])
        if size >= SLICE_BYTES or len(chunk) == _ROWS_PER_BATCH:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def normalize(batch: pa.RecordBatch, config: TopicConfig, now_ms: int, first_row: int = 0) -> pa.RecordBatch:
    """The columns to write for `batch`, by the topic's rules; errors count rows from `first_row`.

    A missing or null timestamp becomes `now_ms`; LogAppendTime is left to the encoder. Raises InvalidRecordError
    naming the column, and the row where there is one, for an unknown column, a type that does not fit, a null
    key on a compacted topic, or a timestamp that the topic's limits refuse.
    """
    _check_names(batch.schema.names)
    if "value" not in batch.schema.names:
        raise InvalidRecordError("a value column is needed", columns=batch.schema.names)
    columns = {"timestamp": timestamps_of(batch, config, now_ms, first_row)}
    columns["key"] = _binary(batch, "key")
    columns["value"] = _binary(batch, "value")
    if "partition" in batch.schema.names:
        columns = {"partition": _cast(batch, "partition", pa.int32()), **columns}
    if "headers" in batch.schema.names and not pa.types.is_null(batch.schema.field("headers").type):
        columns["headers"] = _cast(batch, "headers", HEADERS_TYPE)
    if "compact" in config.cleanup_policy and columns["key"].null_count:
        row = pc.index(pc.is_null(columns["key"]), True).as_py()
        raise InvalidRecordError(_KEY_NEEDED, row=first_row + row)
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def room_of(config: TopicConfig, codec: str) -> int:
    """The most bytes that a record may have before compression, for Kafka's producer and for the writer."""
    room = min(config.max_message_bytes, config.segment_size) - HEADER_SIZE
    # data that does not compress grows a little
    return room if codec == "none" else room - (room >> 10) - 64


def check_row(row: Row, size: int, config: TopicConfig, now_ms: int, codec: str) -> None:
    """Raise InvalidRecordError for a row that `normalize` or `encode` would refuse.

    `size` is its `max_bytes`: the largest size without compression, which Kafka's producer checks too.
    """
    if row.key is None and "compact" in config.cleanup_policy:
        raise InvalidRecordError(_KEY_NEEDED)
    room = room_of(config, codec)
    if size > room:
        raise InvalidRecordError("a record must fit max.message.bytes and segment.bytes", size=size, room=room)
    check_timestamp(row.timestamp, config, now_ms)


def unknown_columns(names: Iterable[Any], known: Iterable[str] = ACCEPTED) -> str:
    """Says which columns of an append are unknown, what is known, and what to do."""
    others = ", ".join(sorted(map(str, names)))
    return f"unknown column {others}: rename it, leave it out, or put it into the value; known are {', '.join(known)}"


def _check_names(names: Collection[Any]) -> None:
    unknown = set(names).difference(ACCEPTED, IGNORED)
    if unknown:
        raise InvalidRecordError(unknown_columns(unknown))
    if len(set(names)) < len(names):
        raise InvalidRecordError("two columns have the same name", columns=", ".join(names))


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
    if pa.types.is_string_view(batch.column(name).type):
        return _cast(batch, name, pa.string()).cast(pa.binary())
    return _cast(batch, name, pa.binary())
