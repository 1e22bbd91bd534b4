"""Drives the stream sink as Spark does: planner, tasks and the process that commits have nothing in common."""

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
from distlog.core.write.append import AppendResult, replayed
from distlog.spark.data_source import DistlogDataSource
from distlog.spark.sink import MicroBatch, WriteOptions, WrittenSegments
from distlog.spark.stream_sink import DistlogStreamWriter

KEY_VALUE = StructType([StructField("key", BinaryType()), StructField("value", BinaryType())])


@pytest.fixture
def topic(tmp_path: Path) -> distlog.Topic:
    """An empty topic of one partition on a local disk."""
    return distlog.create(str(tmp_path / "clicks"))


def sent(value: Any) -> Any:
    """A value as another process gets it."""
    return pickle.loads(pickle.dumps(value))


def writer(url: str, schema: StructType = KEY_VALUE, **options: Any) -> DistlogStreamWriter:
    """What Spark makes for a micro-batch, in the planner, and again in the process that commits."""
    source = DistlogDataSource(options=CaseInsensitiveDict({"path": url, **options}))
    distlog_stream_writer = source.streamWriter(schema, overwrite=False)
    assert isinstance(distlog_stream_writer, DistlogStreamWriter)
    return distlog_stream_writer


class Query:
    """A streaming query into the topic at `url`."""

    def __init__(self, url: str, query_id: str = "query", **options: Any) -> None:
        self.url, self.query_id, self.options = url, query_id, options

    def write(self, batch_id: int, *tasks: Sequence[str]) -> list[WrittenSegments]:
        """The messages of the tasks of a micro-batch; each task has rows without a key."""
        planned = sent(writer(self.url, **self.options))
        messages = [planned.write(iter([rows(values)] if values else [])) for values in tasks]
        # what Spark tells a task
        batch = MicroBatch(self.query_id, batch_id) if self.query_id else None
        return [sent(dataclasses.replace(message, micro_batch=batch)) for message in messages]

    def commit(self, batch_id: int, messages: Sequence[Any]) -> None:
        """What the process that commits does with the messages."""
        options = WriteOptions.parse(CaseInsensitiveDict({"path": self.url, **self.options}), is_stream=True)
        DistlogStreamWriter(options, None).commit(messages, batch_id)

    def batch(self, batch_id: int, *values: str) -> None:
        """A micro-batch of one task."""
        self.commit(batch_id, self.write(batch_id, values))


def rows(values: Sequence[str]) -> pa.RecordBatch:
    """Rows without a key."""
    return pa.record_batch({"key": pa.nulls(len(values), pa.binary()), "value": [value.encode() for value in values]})


def values(topic: distlog.Topic) -> list[str]:
    """All values, in order of partition and offset."""
    return [value.decode() for value in topic.refresh().scan().to_table().column("value").to_pylist()]


def result_of(topic: distlog.Topic, query_id: str, batch_id: int) -> AppendResult | None:
    """What the topic knows of the query's micro-batch, if that is done."""
    return replayed(topic.refresh().snapshot, query_id, batch_id)


def segments_of(topic: distlog.Topic) -> int:
    """How many segments the topic has now."""
    return int(topic.refresh().segments().num_rows)
