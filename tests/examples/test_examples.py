"""The examples run, and do what their text promises."""

from __future__ import annotations

import json
import runpy
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import distlog

pytestmark = pytest.mark.spark

MINUTE = 60_000
START = 1_700_000_040_000


def example(name: str) -> dict[str, Any]:
    return runpy.run_path(str(Path(__file__).parents[2] / "examples" / f"{name}.py"))


def run(name: str, spark: SparkSession, folder: Path) -> None:
    """Run an example to its end, from `source` to `target`."""
    query = example(name)["start"](spark, f"{folder}/source", f"{folder}/target", f"{folder}/checkpoint")
    assert query.awaitTermination(600)


def test_finished_windows_are_counted_and_late_records_dropped(spark: SparkSession, tmp_path: Path) -> None:
    source = distlog.create(f"{tmp_path}/source", partitions=2)
    target = distlog.create(f"{tmp_path}/target", partitions=2)
    minutes = [START + minute * MINUTE for minute in range(3)]
    clicks = [(key, minute + n) for key in ("a", "b") for minute in minutes for n in range(minute // MINUTE % 3 + 2)]
    source.append([{"key": key, "value": "click", "timestamp": time} for key, time in clicks])
    run("windowed_count", spark, tmp_path)
    assert target.refresh().scan().count() == 0
    source.append([{"key": "b", "value": "an hour later", "timestamp": START + 60 * MINUTE}])
    run("windowed_count", spark, tmp_path)
    source.append([{"key": "a", "value": "too late", "timestamp": START}])
    run("windowed_count", spark, tmp_path)
    rows = target.refresh().scan().to_table().to_pylist()
    counts = {(row["key"].decode(), row["timestamp"].timestamp() * 1000): json.loads(row["value"]) for row in rows}
    counter = Counter((key, START + (time - START) // MINUTE * MINUTE) for key, time in clicks)
    assert {window: result["count"] for window, result in counts.items()} == dict(counter)
    assert len(rows) == 6


def test_a_compacted_topic_holds_each_keys_total(spark: SparkSession, tmp_path: Path) -> None:
    source = distlog.create(f"{tmp_path}/source")
    config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
    target = distlog.create(f"{tmp_path}/target", partitions=2, config=config)
    for amounts in ({"a": 1, "b": 5}, {"a": 10}):
        source.append([{"key": key, "value": str(amount)} for key, amount in amounts.items()])
        run("compacted_table", spark, tmp_path)
    target.refresh().compact()
    rows = target.refresh().scan(columns=["key", "value"]).to_table().to_pylist()
    assert {row["key"]: row["value"] for row in rows} == {b"a": b"11", b"b": b"5"}
    assert len(rows) < 4


def test_a_copy_has_another_number_of_partitions_and_each_keys_order(spark: SparkSession, tmp_path: Path) -> None:
    source = distlog.create(f"{tmp_path}/source", partitions=2)
    target = distlog.create(f"{tmp_path}/target", partitions=5)
    for first in (0, 100):
        numbers = range(first, first + 100)
        source.append([{"key": f"k{n % 11}", "value": str(n), "headers": [("n", b"%d" % n)]} for n in numbers])
        run("repartition", spark, tmp_path)
    values_by_key: dict[bytes, list[int]] = {}
    for row in target.refresh().scan().to_table().to_pylist():
        assert row["headers"] == [{"key": "n", "value": row["value"]}]
        values_by_key.setdefault(row["key"], []).append(int(row["value"]))
    assert values_by_key == {b"k%d" % key: list(range(key, 200, 11)) for key in range(11)}
    assert min(target.end_offsets().values()) > 0


#: A query for Spark's Kafka source; only `format` and the path of `load` change.
KAFKA_OPTIONS = {
    "kafka.bootstrap.servers": "localhost:9092",
    "kafka.group.id": "reports",
    "kafka.isolation.level": "read_committed",
    "kafka.security.protocol": "PLAINTEXT",
    "subscribe": "clicks",
    "startingOffsets": """{"clicks":{"0":1,"1":-2}}""",
    "maxOffsetsPerTrigger": "2",
    "minPartitions": "2",
    "failOnDataLoss": "true",
    "includeHeaders": "true",
    "fetchOffset.numRetries": "3",
    "kafkaConsumer.pollTimeoutMs": "1000",
}


def job_of_kafka(records: DataFrame) -> DataFrame:
    texts = ("CAST(key AS STRING)", "CAST(value AS STRING)")
    return records.selectExpr(*texts, "topic", "partition", "offset", "timestamp", "timestampType", "headers")


def test_a_query_for_kafkas_source_runs_with_another_format_and_a_path(spark: SparkSession, tmp_path: Path) -> None:
    topic = distlog.create(f"{tmp_path}/clicks", partitions=2)
    for number in range(10):
        topic.append([{"key": "k", "value": f"v{number}", "timestamp": START}], partition=number % 2)
    records = spark.readStream.format("distlog").options(**KAFKA_OPTIONS).load(topic.url)
    assert records.schema["offset"].dataType.simpleString() == "bigint"
    stream = job_of_kafka(records).writeStream.format("memory").queryName("moved").trigger(availableNow=True)
    query = stream.option("checkpointLocation", f"{tmp_path}/checkpoint").start()
    assert query.awaitTermination(600)
    assert [batch["numInputRows"] for batch in query.recentProgress if batch["numInputRows"]] == [2, 2, 2, 2, 1]
    copied = sorted((row.partition, row.offset, row.value) for row in spark.table("moved").collect())
    assert copied == [(0, n, f"v{2 * n}") for n in range(1, 5)] + [(1, n, f"v{2 * n + 1}") for n in range(5)]
