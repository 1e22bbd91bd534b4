"""Spark reads a topic in Kafka's tiered storage as any other topic, by the option `tiered`."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import S3Server
from pyspark.sql import SparkSession
from tiered_buckets import DATA, golden_partitions

from distlog.core.errors import InvalidConfigError
from distlog.core.storage.storage import Storage
from distlog.spark.read_options import ReadOptions
from distlog.spark.sink import WriteOptions
from distlog.spark.stream_plan import StreamOptions

pytestmark = pytest.mark.spark

FOUND = golden_partitions()["compressed.tiered-txn-0"]
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
    found = [(row.offset, row.key, row.value) for row in frame.orderBy("offset").collect()]
    assert found == [(each["offset"], each["key"], each["value"]) for each in FOUND.records()]
    committed = reader.option("kafka.isolation.level", "read_committed").load(f"{address.url}/prefix-")
    offsets = [row.offset for row in committed.select("offset").orderBy("offset").collect()]
    assert offsets == [each["offset"] for each in FOUND.records(committed=True)]


@pytest.mark.parametrize(
    "given", [{"tiered": "true"}, {**OPTIONS, "versionAsOf": "0"}, {**OPTIONS, "timestampAsOf": "0"}]
)
def test_a_bucket_needs_the_topics_name_and_has_no_versions(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfigError, match="subscribe"):
        ReadOptions.parse({**given, "path": FOUND.url})


def test_a_bucket_is_neither_streamed_nor_written() -> None:
    with pytest.raises(InvalidConfigError, match="tiered is for batch reads"):
        StreamOptions.parse({**OPTIONS, "path": FOUND.url})
    with pytest.raises(InvalidConfigError, match="only Kafka's brokers add"):
        WriteOptions.parse({**OPTIONS, "path": FOUND.url})
