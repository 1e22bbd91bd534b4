"""Turns records into rows of Spark's own Kafka source: Arrow batches with exactly its columns and types."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from distlog.core.arrow_arrays import integers, numbers_of, texts
from distlog.core.buffers import new_array
from distlog.core.config import TopicConfig
from distlog.core.errors import InvalidConfigError, InvalidRecordError
from distlog.core.kernels.times import to_microseconds
from distlog.core.topics.appending.appendable import IGNORED, unknown_columns

HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
TYPES: Mapping[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": HEADERS,
}

#: The columns that can be appended, and their types. Other columns that a read gives are ignored.
_WRITABLE: Mapping[str, tuple[type[DataType], ...]] = {
    "key": (BinaryType, StringType),
    "value": (BinaryType, StringType),
    "timestamp": (TimestampType, LongType),
    "headers": (ArrayType,),
    "partition": (IntegerType, LongType, ShortType, ByteType),
}

#: The core's name of each column, by Spark's name. `topic` is missing: no record holds the topic's name.
_STORED = {name: "timestamp_type" if name == "timestampType" else name for name in TYPES if name != "topic"}
SPARK_NAMES = {stored: name for name, stored in _STORED.items()}


def schema_of(columns: Sequence[str] | None, include_headers: bool) -> StructType:
    """The schema of a read: `columns` in that order, or all columns, without headers unless `include_headers`."""
    names = columns or [name for name in TYPES if include_headers or name != "headers"]
    for name in names:
        if name not in TYPES:
            raise InvalidConfigError(f"no column {name}; there are {', '.join(TYPES)}")
    if len(set(names)) < len(names):
        raise InvalidConfigError("name each column once", columns=",".join(names))
    return StructType([StructField(name, TYPES[name]) for name in names])


def check_schema(schema: StructType) -> None:
    """Raise InvalidConfigError unless each field of a user's schema is one of ours, by name and type."""
    schema_of(schema.names, include_headers=True)
    for field in schema:
        if field.dataType != TYPES[field.name]:
            wanted, got = TYPES[field.name].simpleString(), field.dataType.simpleString()
            raise InvalidConfigError(f"column {field.name} must be {wanted}, not {got}; cast it after the read")
        if field.name in ("key", "value") and not field.nullable:
            raise InvalidConfigError(f"column {field.name} can hold nulls: declare it nullable")


def check_writable(schema: StructType, config: TopicConfig) -> None:
    """Raise InvalidRecordError unless rows of `schema` can be appended to a topic of this config."""
    if unknown := set(schema.names).difference(_WRITABLE, IGNORED):
        raise InvalidRecordError(unknown_columns(unknown, _WRITABLE))
    for field in schema:
        if field.name in IGNORED:
            continue
        accepted = _WRITABLE[field.name]
        if not isinstance(field.dataType, accepted) or (field.name == "headers" and not _are_headers(field.dataType)):
            wanted = " or ".join(kind.typeName() for kind in accepted)
            raise InvalidRecordError(f"column {field.name} must be {wanted}", type=field.dataType.simpleString())
    needed = ["value", "key"] if "compact" in config.cleanup_policy else ["value"]
    for name in needed:
        if name not in schema.names:
            raise InvalidRecordError(f"a {name} column is needed", columns=",".join(schema.names))


def _are_headers(kind: DataType) -> bool:
    return kind.simpleString() in (HEADERS.simpleString(), HEADERS.simpleString().replace("binary", "string"))


class RowFormat:
    """Turns batches of the core into batches of a Spark schema that passed `check_schema`. It can be pickled."""

    def __init__(self, topic: str, schema: StructType) -> None:
        self._topic = topic
        self._schema = to_arrow_schema(schema, timezone="UTC")

    @property
    def stored_columns(self) -> tuple[str, ...]:
        """The columns to read, by the core's names."""
        return tuple(_STORED[name] for name in self._schema.names if name in _STORED)

    def format(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same records, batch by batch. Raises InvalidRecordError for a time that Spark cannot hold."""
        topics = pa.nulls(0, pa.string())
        for batch in batches:
            if len(topics) < batch.num_rows and "topic" in self._schema.names:
                topics = texts([self._topic]).take(integers(np.zeros(batch.num_rows, np.int64)))
            columns = [
                topics.slice(0, batch.num_rows)
                if field.name == "topic"
                else _CONVERT.get(field.name, _unchanged)(batch.column(_STORED[field.name]), field.type)
                for field in self._schema
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _unchanged(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return column


def _to_microseconds(column: pa.Array, kind: pa.DataType) -> pa.Array:
    times = numbers_of(column.view(pa.int64()))
    converted = new_array(times.size, np.int64)
    if not to_microseconds(times, converted):
        raise InvalidRecordError(
            "a timestamp is beyond what Spark can hold; read without it, as in option('columns', 'offset,value')",
            timestamp_ms=max(times.tolist(), key=abs),
        )
    return pa.Array.from_buffers(kind, times.size, [None, pa.py_buffer(converted)], 0)


def _headers(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The headers, with empty lists in place of nulls: Spark takes quadratic time for runs of null arrays."""
    names, values = column.values.flatten()
    entries = pa.StructArray.from_arrays([names, values], fields=list(kind.value_type))
    return pa.ListArray.from_arrays(column.offsets, entries, type=kind)


_CONVERT: Mapping[str, Callable[[pa.Array, pa.DataType], pa.Array]] = {
    "timestamp": _to_microseconds,
    "headers": _headers,
}
