"""Spark's writes, reads and maintenance with a concurrent process of direct appends."""

from __future__ import annotations

from pathlib import Path

import pytest
from partition_logs import Process, append, new_topic, sealed
from pyspark.sql import SparkSession

import distlog
from distlog.core.maintain.vacuum import vacuum
from distlog.spark import SparkExecutor
from distlog.spark import append as spark_append

pytestmark = pytest.mark.spark


@pytest.fixture
def process(tmp_path: Path) -> Process:
    process = Process(new_topic(tmp_path / "events", partitions=2))
    append(process[0], b"a", b"b")
    append(process[1], b"c")
    return process


def test_spark_writes_follow_direct_appends_and_report_their_own_offsets(
    spark: SparkSession, process: Process
) -> None:
    url = process.handle.storage.url
    rows = spark.createDataFrame([(0, b"d"), (1, b"e")], "partition int, value binary")
    assert spark_append(rows, url).offsets == {0: (2, 3), 1: (1, 2)}
    assert append(process[0], b"f") == (3, 4)
    rows.write.format("distlog").mode("append").option("txnAppId", "app").option("txnVersion", 1).save(url)
    version = process.head().version
    append(process[0], b"g")
    rows.write.format("distlog").mode("append").option("txnAppId", "app").option("txnVersion", 1).save(url)
    assert process.head().version == version + 1
    assert process.head().partitions[0].active
    assert process.values() == {0: [b"a", b"b", b"d", b"f", b"d", b"g"], 1: [b"c", b"e", b"e"]}


def test_a_loaded_frame_is_read_after_a_merge_and_a_vacuum(spark: SparkSession, process: Process) -> None:
    frame = spark.read.format("distlog").load(process.handle.storage.url)
    for value in (b"d", b"e"):
        process[0].roll()
        append(process[0], value)
    process[0].roll()
    process.topic().compact()
    assert len(sealed(process.head())) < 3
    vacuum(process.handle.storage, process.handle.log)
    assert sorted(bytes(row["value"]) for row in frame.collect()) == [b"a", b"b", b"c"]


def test_maintenance_in_tasks_leaves_active_segments_alone_and_verifies_them(
    spark: SparkSession, process: Process
) -> None:
    topic, executor = distlog.open(process.handle.storage.url), SparkExecutor(spark)
    for value in (b"d", b"e"):
        process[1].roll()
        append(process[1], value)
    topic.compact(executor=executor)
    assert topic.rebuild_indexes(force=True, executor=executor).ok
    assert sealed(process.head(), 1) == [(0, 2)]
    report = topic.verify(executor=executor)
    assert report.anomalies == ()
    assert [
        (segment.segment.partition, segment.segment.is_active, segment.records) for segment in report.segments
    ] == [
        (0, True, 2),
        (1, False, 2),
        (1, True, 1),
    ]
    assert append(process[1], b"f") == (3, 4)
    assert process.values() == {0: [b"a", b"b"], 1: [b"c", b"d", b"e", b"f"]}
