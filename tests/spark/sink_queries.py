"""Drives the stream sink like Spark: planner, tasks and the committing process share nothing."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import BinaryType, StructField, StructType

import distlog
from distlog.core.write.append import AppendResult, earlier_result
from distlog.spark.data_source import DistlogDataSource
from distlog.spark.sink import DistlogStreamWriter, MicroBatch, WriteOptions, WrittenSegments

KEY_VALUE = StructType([StructField("key", BinaryType()), StructField("value", BinaryType())])


@pytest.fixture
def topic(tmp_path: Path) -> distlog.Topic:
    return distlog.create(str(tmp_path / "clicks"))


def sent(value: Any) -> Any:
    """Return a value as another process receives it."""
    return pickle.loads(pickle.dumps(value))


def writer(url: str, schema: StructType = KEY_VALUE, **options: Any) -> DistlogStreamWriter:
    """Return Spark's writer for a micro-batch, in the planner and again in the committing process."""
    source = DistlogDataSource(options=CaseInsensitiveDict({"path": url, **options}))
    distlog_stream_writer = source.streamWriter(schema, overwrite=False)
    assert isinstance(distlog_stream_writer, DistlogStreamWriter)
    return distlog_stream_writer


class Query:
    """A streaming query into the topic at `url`."""

    def __init__(self, url: str, query_id: str = "query", **options: Any) -> None:
        self.url, self.query_id, self.options = url, query_id, options

    def write(self, batch_id: int, *tasks: Sequence[str]) -> list[WrittenSegments]:
        """Return the messages of the tasks of a micro-batch; each task has rows without a key."""
        planned = sent(writer(self.url, **self.options))
        messages = [planned.write(iter([rows(values)] if values else [])) for values in tasks]
        batch = MicroBatch(self.query_id, batch_id) if self.query_id else None
        return [sent(dataclasses.replace(message, micro_batch=batch)) for message in messages]

    def commit(self, batch_id: int, messages: Sequence[Any]) -> None:
        """Commit the messages as the committing process does."""
        options = WriteOptions.parse(CaseInsensitiveDict({"path": self.url, **self.options}), is_stream=True)
        DistlogStreamWriter(options, None).commit(messages, batch_id)

    def batch(self, batch_id: int, *values: str) -> None:
        self.commit(batch_id, self.write(batch_id, values))


def rows(values: Sequence[str]) -> pa.RecordBatch:
    return pa.record_batch({"key": pa.nulls(len(values), pa.binary()), "value": [value.encode() for value in values]})


def values(topic: distlog.Topic) -> list[str]:
    return [value.decode() for value in topic.refresh().scan().to_table().column("value").to_pylist()]


def result_of(topic: distlog.Topic, query_id: str, batch_id: int) -> AppendResult | None:
    """Return the topic's result of the query's micro-batch, if it was committed."""
    return earlier_result(topic.refresh().snapshot, query_id, batch_id)


def segments_of(topic: distlog.Topic) -> int:
    return int(topic.refresh().segments().num_rows)
