"""The lag of a streaming query: in Spark's progress, and against the present topic."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from addresses import S3Server
from fault_proxy import FaultProxy
from pyspark.sql import SparkSession
from streams import Stream, add_partition, append, delete_before, two_partitions

import distlog
from distlog.core.errors import InvalidConfigError, TopicNotFoundError
from distlog.spark import lag, stream


def query_of(*sources: tuple[Any, Any]) -> Any:
    progress = {"sources": [{"endOffset": end, "latestOffset": newest} for end, newest in sources]}
    return SimpleNamespace(lastProgress=SimpleNamespace(json=json.dumps(progress)))


def planned(query: Stream) -> Any:
    """Return a query that completed its last planned batch."""
    return query_of((json.loads(query.log[-1]), query.reader.reportLatestOffset()))


def lags(table: Any) -> list[tuple[int, int, int, int]]:
    return [tuple(row[name] for name in table.column_names[1:5]) for row in table.to_pylist()]  # type: ignore[misc]


def test_a_progress_has_the_lag_by_partition(tmp_path: Path) -> None:
    topic = two_partitions(tmp_path)
    query = Stream(topic.url, startingOffsets="earliest", maxOffsetsPerTrigger=4)
    query.run()
    report = query.reader.reportLatestOffset()
    assert report["offsetsBehindLatest"] == {"clicks": {"0": 3, "1": 3}}
    size = topic.segments().to_pylist()[0]["log_bytes"]
    assert report["bytesBehindLatest"]["clicks"]["0"] == pytest.approx(size * 3 / 5, rel=0.01)
    query.drain()
    assert query.reader.reportLatestOffset()["offsetsBehindLatest"] == {"clicks": {}}


def test_a_lag_is_from_the_end_of_a_batch_to_the_planned_latest_offset(tmp_path: Path) -> None:
    topic = two_partitions(tmp_path)
    query = Stream(topic.url, startingOffsets="earliest", maxOffsetsPerTrigger=4)
    query.run()
    append(topic, 1, 7)
    query_lag = lag(planned(query))
    assert query_lag.to_pylist()[0]["topic"] == "clicks"
    assert lags(query_lag) == [(0, 2, 5, 3), (1, 2, 5, 3)]
    assert all(row["lag_bytes"] > 0 for row in query_lag.to_pylist())


def test_a_lag_to_the_present_topic_counts_new_records(tmp_path: Path) -> None:
    topic = two_partitions(tmp_path)
    query = Stream(topic.url, startingOffsets="earliest")
    query.run()
    append(topic, 1, 7)
    delete_before(topic, 1, 6)
    add_partition(topic)
    reader = distlog.open(topic.url)
    append(topic, 0, 1)
    for source in (topic.url, reader):
        assert lags(lag(planned(query), source)) == [(0, 5, 6, 1), (1, 5, 12, 6)]
    sizes = lag(planned(query), topic.url).column("lag_bytes").to_pylist()
    assert sizes[1] > sizes[0] > 0


def test_a_query_of_sparks_kafka_source_has_a_lag(tmp_path: Path) -> None:
    topic = two_partitions(tmp_path)
    query = query_of(
        ({"clicks": {"1": 3, "0": 5}, "visits": {"0": 9}}, {"clicks": {"1": 4, "0": 5}, "visits": {"0": 19}}), (7, 8)
    )
    assert [(row["topic"], row["lag"], row["lag_bytes"]) for row in lag(query).to_pylist()] == [
        ("clicks", 1, None),
        ("clicks", 0, 0),
        ("visits", 10, None),
    ]
    assert lags(lag(query, topic)) == [(1, 3, 5, 2), (0, 5, 5, 0)]


def test_missing_progress_has_no_lag() -> None:
    for newest in (None, {}):
        (row,) = lag(query_of(({"clicks": {"0": 5}}, newest))).to_pylist()
        assert (row["position"], row["end_offset"], row["lag"], row["lag_bytes"]) == (5, None, None, None)


def test_other_sources_and_new_queries_have_no_rows() -> None:
    for other in (7, None, {"logOffset": 3}, [1], {"version": 1, "initial": True}, {}):
        assert lag(query_of((other, other))).num_rows == 0
    assert lag(SimpleNamespace(lastProgress=None)).num_rows == 0


def test_a_topic_that_the_query_does_not_read_fails(tmp_path: Path) -> None:
    topic = two_partitions(tmp_path)
    query = Stream(topic.url, startingOffsets="earliest")
    query.run()
    progress = planned(query)
    other = distlog.create(f"{tmp_path}/visits")
    with pytest.raises(InvalidConfigError, match=r"does not read this topic \(topic=visits reads=clicks"):
        lag(progress, other)
    topic.drop()
    again = distlog.create(topic.url, 2)
    with pytest.raises(TopicNotFoundError, match="dropped"):
        lag(progress, again)


@pytest.mark.s3
@pytest.mark.spark
def test_a_lag_to_an_open_topic_is_one_request(s3_server: S3Server) -> None:
    address = s3_server.address()
    new_topic = distlog.create(address.url, storage_options=address.options)
    new_topic.append([{"value": b"v"}] * 3)
    with FaultProxy(s3_server.endpoint) as proxy:
        topic = distlog.open(new_topic.url, storage_options={**address.options, "endpoint_url": proxy.url})
        query = query_of(({topic.name: {"0": 1}}, None))
        proxy.reset()
        assert lags(lag(query, topic)) == [(0, 1, 3, 2)]
        assert len(proxy.requests) == 1


@pytest.mark.spark
def test_a_real_query_reports_its_lag(spark: SparkSession, tmp_path: Path) -> None:
    topic = two_partitions(tmp_path)
    rows = stream(spark, topic, start=distlog.EARLIEST, max_offsets=4).writeStream.format("noop")
    query = rows.option("checkpointLocation", f"{tmp_path}/checkpoint").start()
    try:
        query.processAllAvailable()
        first = next(progress for progress in query.recentProgress if progress["batchId"] == 0)
        assert json.loads(first["sources"][0]["latestOffset"])["offsetsBehindLatest"] == {"clicks": {"0": 3, "1": 3}}
        assert lags(lag(first)) == [(0, 2, 5, 3), (1, 2, 5, 3)]
        assert lags(lag(query)) == [(0, 5, 5, 0), (1, 5, 5, 0)]
    finally:
        query.stop()
    append(topic, 0, 2)
    assert lags(lag(query, topic)) == [(0, 5, 7, 2), (1, 5, 5, 0)]
