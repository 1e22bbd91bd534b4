"""The sink of a stream, driven as Spark drives it: what one micro-batch commits, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from conftest import Address
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import IntegerType, StringType, StructField, StructType
from sink_queries import KEY_VALUE, Query, result_of, sent, values, writer
from sink_queries import topic as topic

import distlog
from distlog.core.errors import CommitConflictError, InvalidConfigError, InvalidRecordError, TopicNotFoundError
from distlog.core.topics.append_commit import AppendResult
from distlog.spark.data_source import DistlogDataSource


def test_a_micro_batch_is_one_commit_that_names_the_query_and_the_batch(topic: distlog.Topic) -> None:
    query = Query(topic.url)
    query.commit(0, query.write(0, ["a", "b"], ["c"]))
    query.batch(1, "d")
    assert values(topic) == ["a", "b", "c", "d"]
    assert topic.version == 2
    assert result_of(topic, "query", 1) == AppendResult(2, {0: (3, 4)}, replayed=True)


def test_nothing_is_seen_before_the_commit_and_an_abort_deletes_nothing(topic: distlog.Topic) -> None:
    query = Query(topic.url)
    messages = query.write(0, ["a"])
    assert values(topic) == []
    query.commit(0, messages)
    writer(topic.url).abort([*messages, None], 0)
    assert values(topic) == ["a"]


def test_a_batch_without_rows_is_no_commit(topic: distlog.Topic) -> None:
    query = Query(topic.url)
    query.commit(0, query.write(0, [], []))
    assert topic.refresh().version == 0
    query.commit(0, query.write(0, [], ["a"]))
    assert values(topic) == ["a"]


def test_a_task_without_a_message_is_not_left_out(topic: distlog.Topic) -> None:
    query = Query(topic.url)
    with pytest.raises(CommitConflictError, match="a task did not report"):
        query.commit(0, [*query.write(0, ["a"]), None])
    assert values(topic) == []


def test_rows_are_taken_as_the_batch_sink_takes_them(tmp_path: Path) -> None:
    topic = distlog.create(str(tmp_path / "clicks"), partitions=3)
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    batch = pa.record_batch(
        {
            "key": ["k", None],
            "value": ["text", "more"],
            "timestamp": pa.array([1_700_000_000_123_456, None], pa.timestamp("us", "Europe/Berlin")),
            "headers": pa.array([[{"key": "h", "value": b"x"}], None], pa.list_(header)),
            "partition": pa.array([2, 1], pa.int32()),
        }
    )
    planned = writer(topic.url, compression="zstd")
    message = sent(sent(planned).write(iter([batch])))
    writer(topic.url, txnAppId="app").commit([message], 0)
    found = {row["partition"]: row for row in topic.refresh().scan().to_table().to_pylist()}
    assert (found[2]["key"], found[2]["value"], found[1]["value"]) == (b"k", b"text", b"more")
    assert found[2]["headers"] == [{"key": "h", "value": b"x"}]
    assert found[2]["timestamp"].timestamp() == 1_700_000_000.123
    assert set(topic.segments()["compression"].to_pylist()) == {"zstd"}


def test_what_cannot_be_written_is_refused_before_any_task(topic: distlog.Topic) -> None:
    source = DistlogDataSource(options=CaseInsensitiveDict({"path": topic.url}))
    with pytest.raises(InvalidConfigError, match=r"use outputMode\('append'\)"):
        source.streamWriter(KEY_VALUE, overwrite=True)
    with pytest.raises(InvalidConfigError, match="leave txnVersion out"):
        writer(topic.url, txnAppId="app", txnVersion="3")
    with pytest.raises(InvalidConfigError, match="did you mean txnAppId"):
        writer(topic.url, txnAppIds="app")
    with pytest.raises(InvalidConfigError, match="brotli"):
        writer(topic.url, compression="brotli")
    with pytest.raises(InvalidConfigError, match="mergeSegments must be auto or true or false"):
        writer(topic.url, mergeSegments="yes")
    with pytest.raises(InvalidRecordError, match="give app_id and batch_id together"):
        writer(topic.url, txnAppId="")
    with pytest.raises(InvalidRecordError, match="column value must be binary or string"):
        writer(topic.url, StructType([StructField("value", IntegerType())]))
    with pytest.raises(TopicNotFoundError):
        writer(topic.url + "-not")
    # what Spark adds for itself is no misspelt option
    writer(topic.url, StructType([StructField("value", StringType())]), checkpointLocation="/x", queryName="q")


def test_an_object_store_is_written(s3_url: Address) -> None:
    topic = distlog.create(s3_url.url, 2, storage_options=s3_url.options)
    query = Query(s3_url.url, **{f"storage.{name}": value for name, value in s3_url.options.items()})
    for number in range(10):
        query.batch(number, f"{number}")
    query.batch(9, "9")
    assert sorted(map(int, values(topic))) == list(range(10))
