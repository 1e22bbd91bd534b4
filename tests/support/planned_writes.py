"""Writes as Spark plans and does them, but without Spark."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import CaseInsensitiveDict, WriterCommitMessage
from pyspark.sql.types import BinaryType, StructField, StructType

import distlog
from distlog.spark.data_source import DistlogDataSource
from distlog.spark.sink import DistlogWriter, MicroBatch, WrittenSegments

KEY_VALUE = StructType([StructField("key", BinaryType()), StructField("value", BinaryType())])


def writer(url: str, schema: StructType = KEY_VALUE, **options: Any) -> DistlogWriter:
    source = DistlogDataSource(options=CaseInsensitiveDict({"path": url, **options}))
    data_writer = source.writer(schema, overwrite=False)
    assert isinstance(data_writer, DistlogWriter)
    return data_writer


def sent(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def write(planned: DistlogWriter, *values: str) -> WriterCommitMessage:
    """One attempt of one task, whose rows have no key."""
    batch = pa.record_batch({"key": pa.nulls(len(values), pa.binary()), "value": [v.encode() for v in values]})
    return sent(sent(planned).write(iter([batch])))  # type: ignore[no-any-return]


def commit(planned: DistlogWriter, *messages: WriterCommitMessage | None) -> None:
    sent(planned).commit(list(messages))


def values(topic: distlog.Topic) -> list[str]:
    return [value.decode() for value in topic.refresh().scan().to_table().column("value").to_pylist()]


def of_micro_batch(message: WriterCommitMessage, batch: int = 3) -> WrittenSegments:
    assert isinstance(message, WrittenSegments)
    return WrittenSegments(message.segments, MicroBatch("query", batch))
