"""The data source as a user meets it: spark.read.format("distlog")."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Address
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

import distlog
from distlog.spark.spark_session import activate

pytestmark = pytest.mark.spark


class RegisteredSource(DataSource):
    """A format that is found where it was registered alone."""

    @classmethod
    def name(cls) -> str:
        return "registered"


def test_the_format_is_found_without_being_registered(spark: SparkSession, url: str) -> None:
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
    found = load(spark, url, includeHeaders="true", minPartitions=5).collect()
    expected = distlog.open(url).scan().to_table().to_pylist()
    assert len(found) == PARTITIONS * RECORDS
    for row, record in zip(found, expected, strict=True):
        assert (bytes(row.key), bytes(row.value)) == (record["key"], record["value"])
        assert (row.partition, row.offset, row.topic) == (record["partition"], record["offset"], "clicks")
        assert (row.timestamp.timestamp(), row.timestampType) == (record["timestamp"].timestamp(), 0)
        assert row.headers == []


def test_columns_and_schemas_narrow_a_read(spark: SparkSession, url: str) -> None:
    assert load(spark, url, columns="offset,value").first().asDict() == {"offset": 0, "value": bytearray(b"v0")}
    by_schema = spark.read.format("distlog").schema("topic string, offset long").load(url)
    assert by_schema.tail(1)[0].asDict() == {"topic": "clicks", "offset": RECORDS - 1}
    assert "no column id; there are key, value, topic" in message(lambda: load(spark, url, columns="id"))
    wrong = spark.read.format("distlog").schema("offset int").load(url)
    assert "column offset must be bigint, not int" in message(wrong.collect)


def test_no_path_and_no_topic_are_explained_at_load(spark: SparkSession, tmp_path: Path) -> None:
    assert "no topic is named" in message(lambda: spark.read.format("distlog").load())
    assert "TopicNotFoundError" in message(lambda: load(spark, str(tmp_path / "nothing")))
    distlog.create(str(tmp_path / "clicks"))
    named = "no topic, but a folder of topics: add the name of one: clicks"
    assert named in message(lambda: load(spark, str(tmp_path)))
    rows = spark.createDataFrame([("a",)], "value string").write.format("distlog").mode("append")
    assert named in message(lambda: rows.save(str(tmp_path)))


def test_a_temporary_view_keeps_its_options(spark: SparkSession, url: str) -> None:
    spark.sql(f"create or replace temporary view clicks using distlog options (path '{url}', versionAsOf '1')")
    assert spark.sql("select count(*) from clicks where partition = 1").first()[0] == RECORDS // 2


def test_a_frame_is_the_snapshot_of_its_load(spark: SparkSession, tmp_path: Path) -> None:
    topic = distlog.create(str(tmp_path / "clicks"))
    topic.append([{"value": b"1"}])
    before = load(spark, topic.url)
    topic.append([{"value": b"2"}])
    assert before.union(before).count() == 2
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
