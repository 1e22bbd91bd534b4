"""The data source for users: spark.read.format("distlog")."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from addresses import Address, S3Server
from adopted import rows
from log_dirs import copy_of, golden_of
from partition_logs import Process, append, new_topic
from planned_reads import (
    PARTITIONS,
    RECORDS,
    fill,
    load,
    message,
    storage_options,
)
from planned_reads import url as url
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from streams import Stream
from tiered_buckets import DATA, golden_partitions
from transacting import Sender

import distlog
from distlog.core.errors import InvalidConfigError
from distlog.core.segments.chunks import IsolationLevel
from distlog.core.storage.storage import Storage
from distlog.spark.executor import SparkExecutor
from distlog.spark.options import ReadOptions
from distlog.spark.sink import WriteOptions
from distlog.spark.spark_session import activate
from distlog.spark.stream_plan import StreamOptions

pytestmark = pytest.mark.spark


class RegisteredSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "registered"


def test_the_format_needs_no_registration(spark: SparkSession, url: str) -> None:
    spark.dataSource.register(RegisteredSource)
    other = spark.newSession()
    activate(other)
    try:
        assert "DATA_SOURCE_NOT_FOUND" in message(lambda: other.read.format("registered").load(url))
        assert load(other, url).count() == PARTITIONS * RECORDS
    finally:
        activate(spark)


def test_a_topic_has_the_schema_of_the_kafka_source(spark: SparkSession, url: str) -> None:
    kafka = (
        "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
    )
    assert load(spark, url).schema == spark.createDataFrame([], kafka).schema
    with_headers = load(spark, url, includeHeaders="true").schema
    assert with_headers[-1].simpleString() == "headers:array<struct<key:string,value:binary>>"
    assert all(field.nullable for field in with_headers)


def test_every_record_is_read_once_and_in_order(spark: SparkSession, url: str) -> None:
    loaded = load(spark, url, includeHeaders="true", minPartitions=5).collect()
    expected = distlog.open(url).scan().to_table().to_pylist()
    assert len(loaded) == PARTITIONS * RECORDS
    for row, record in zip(loaded, expected, strict=True):
        assert (bytes(row.key), bytes(row.value)) == (record["key"], record["value"])
        assert (row.partition, row.offset, row.topic) == (record["partition"], record["offset"], "clicks")
        assert (row.timestamp.timestamp(), row.timestampType) == (record["timestamp"].timestamp(), 0)
        assert row.headers == []


def test_columns_and_schemas_narrow_a_read(spark: SparkSession, url: str) -> None:
    assert load(spark, url, columns="offset,value").first().asDict() == {"offset": 0, "value": bytearray(b"v0")}
    by_schema = spark.read.format("distlog").schema("topic string, offset long").load(url)
    assert by_schema.tail(1)[0].asDict() == {"topic": "clicks", "offset": RECORDS - 1}
    assert "no column id: choose from key, value, topic" in message(lambda: load(spark, url, columns="id"))
    wrong = spark.read.format("distlog").schema("offset int").load(url)
    assert "column offset must be bigint, not int" in message(wrong.collect)


def test_no_path_and_no_topic_are_explained_at_load(spark: SparkSession, tmp_path: Path) -> None:
    assert "no topic is named" in message(lambda: spark.read.format("distlog").load())
    assert "TopicNotFoundError" in message(lambda: load(spark, str(tmp_path / "nothing")))
    distlog.create(str(tmp_path / "clicks"))
    named = "not a topic, but a folder of topics: add the name of one: clicks"
    assert named in message(lambda: load(spark, str(tmp_path)))
    rows = spark.createDataFrame([("a",)], "value string").write.format("distlog").mode("append")
    assert named in message(lambda: rows.save(str(tmp_path)))


def test_a_temporary_view_keeps_its_options(spark: SparkSession, url: str) -> None:
    spark.sql(f"create or replace temporary view clicks using distlog options (path '{url}', versionAsOf '1')")
    assert spark.sql("select count(*) from clicks where partition = 1").first()[0] == RECORDS // 2


def test_a_frame_is_the_snapshot_of_its_load(spark: SparkSession, tmp_path: Path) -> None:
    topic = distlog.create(str(tmp_path / "clicks"))
    topic.append([{"value": b"1"}])
    frame = load(spark, topic.url)
    topic.append([{"value": b"2"}])
    assert frame.union(frame).count() == 2
    assert load(spark, topic.url).count() == 2


def test_an_object_store_is_read_through_storage_options(spark: SparkSession, s3_url: Address) -> None:
    fill(distlog.create(s3_url.url, PARTITIONS, storage_options=s3_url.options))
    assert load(spark, s3_url.url, minPartitions=4, **storage_options(s3_url)).count() == PARTITIONS * RECORDS


def test_bad_bytes_fail_the_job_with_file_and_position(spark: SparkSession, tmp_path: Path) -> None:
    topic = distlog.create(str(tmp_path / "clicks"))
    topic.append([{"value": b"x" * 50}])
    (log,) = Path(topic.url).glob("clicks-0/*.log")
    data = bytearray(log.read_bytes())
    data[-10] ^= 1
    log.write_bytes(data)
    text = message(load(spark, topic.url).collect)
    assert "CorruptRecordError" in text
    assert log.name in text
    assert "position=0" in text


def read(spark: SparkSession, folder: Path, isolation: IsolationLevel = "read_committed") -> list[bytes]:
    reader = spark.read.format("distlog").option("kafka.isolation.level", isolation)
    rows = reader.load(str(folder)).orderBy("partition", "offset").select("value").collect()
    return [bytes(row.value) for row in rows]


@pytest.mark.spark
def test_spark_stops_before_an_open_transaction_and_skips_aborted_records(
    spark: SparkSession, tmp_path: Path
) -> None:
    process = Process(folder := new_topic(tmp_path / "events", 2))
    sender = Sender(process)
    sender.begin().send(0, b"a").send(1, b"b").commit()
    sender.begin().send(0, b"c")
    process[0].roll()
    sender.send(0, b"d").abort()
    append(process[0], b"1")
    sender.begin().send(0, b"e").send(1, b"f")
    process[1].roll()
    append(process[1], b"2")
    assert read(spark, folder) == [b"a", b"1", b"b"]
    assert read(spark, folder, "read_uncommitted") == [b"a", b"c", b"d", b"1", b"e", b"b", b"f", b"2"]
    sender.commit()
    assert read(spark, folder) == [b"a", b"1", b"e", b"b", b"f", b"2"]


def test_a_stream_continues_after_each_transaction(tmp_path: Path) -> None:
    process = Process(folder := new_topic(tmp_path / "events"))
    sender = Sender(process)
    stream = Stream(str(folder), startingOffsets="earliest", **{"kafka.isolation.level": "read_committed"})
    sender.begin().send(0, b"a")
    assert not stream.run()
    sender.commit()
    assert stream.run() == {0: [0]}
    sender.begin().send(0, b"b")
    process[0].roll()
    append(process[0], b"1")
    assert stream.run() is None
    sender.abort()
    append(process[0], b"2")
    assert stream.run() == {0: [3, 5]}
    assert stream.run() is None


CONFIG = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}


def test_spark_reads_and_maintains_directly_adopted_topics(spark: SparkSession, tmp_path: Path) -> None:
    first = distlog.adopt(copy_of("first", tmp_path / "first")).topics
    old = distlog.adopt(copy_of("logs", tmp_path / "old"), config=CONFIG).topics
    reader = spark.read.format("distlog").option("kafka.isolation.level", "read_committed")
    loaded = reader.load(first["txn"].url).orderBy("offset").select("offset", "key", "value").toArrow().to_pylist()
    expected = golden_of("first")["txn-0"].records(committed=True)
    assert loaded == [{name: row[name] for name in ("offset", "key", "value")} for row in expected]
    for name in ("v0-lz4", "mixed"):
        assert old[name].compact(executor=SparkExecutor(spark)).to_dict()["ok"]
        records = golden_of("logs")[f"{name}-0"].records()
        last = {row["key"]: row["offset"] for row in records if row["key"] is not None}
        topic = old[name].refresh()
        assert [row["offset"] for row in rows(topic.scan().to_table())] == sorted(last.values())
        assert topic.verify().ok


TIERED = golden_partitions()["compressed.tiered-txn-0"]
OPTIONS = {"tiered": "true", "subscribe": "tiered-txn"}


def test_spark_reads_a_bucket_on_s3_committed_and_not(spark: SparkSession, s3_server: S3Server) -> None:
    address = s3_server.address()
    (source,) = (DATA / "compressed" / "some").glob("prefix-tiered-txn-*")
    Storage(*address).put_many(
        {f"{source.name}/0/{path.name}": path.read_bytes() for path in (source / "0").iterdir()}
    )
    storage = {f"storage.{name}": value for name, value in address.options.items()}
    reader = spark.read.format("distlog").options(**OPTIONS, **storage, minPartitions="3")
    frame = reader.load(f"{address.url}/prefix-")
    assert frame.rdd.getNumPartitions() >= 3
    loaded = [(row.offset, row.key, row.value) for row in frame.orderBy("offset").collect()]
    assert loaded == [(record["offset"], record["key"], record["value"]) for record in TIERED.records()]
    committed = reader.option("kafka.isolation.level", "read_committed").load(f"{address.url}/prefix-")
    offsets = [row.offset for row in committed.select("offset").orderBy("offset").collect()]
    assert offsets == [record["offset"] for record in TIERED.records(committed=True)]


@pytest.mark.parametrize(
    "options", [{"tiered": "true"}, {**OPTIONS, "versionAsOf": "0"}, {**OPTIONS, "timestampAsOf": "0"}]
)
def test_a_tiered_read_needs_a_topic_and_has_no_versions(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfigError, match="subscribe"):
        ReadOptions.parse({**options, "path": TIERED.url})


def test_a_bucket_cannot_be_streamed_or_written() -> None:
    with pytest.raises(InvalidConfigError, match="tiered is for batch reads"):
        StreamOptions.parse({**OPTIONS, "path": TIERED.url})
    with pytest.raises(InvalidConfigError, match="only Kafka brokers add"):
        WriteOptions.parse({**OPTIONS, "path": TIERED.url})
