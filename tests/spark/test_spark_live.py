"""Spark reads the tail of a topic to which another process appends in place."""

from __future__ import annotations

from pathlib import Path

import pytest
from live_writer import LiveWriter, expected
from pyspark.sql import SparkSession

import distlog

pytestmark = pytest.mark.spark


def test_spark_reads_what_a_living_writer_has_written(spark: SparkSession, tmp_path: Path) -> None:
    url = str(tmp_path / "topic")
    distlog.create(url, 3, config={"internal.segment.bytes": "20000", "index.interval.bytes": "100"})
    writer = LiveWriter(url, 0, 1000)
    try:
        writer.wait_for(500)
        pinned = spark.read.format("distlog").load(url)
        count = pinned.count()
        writer.wait_for(1000)
        assert 500 <= pinned.count() == count
        rows = spark.read.format("distlog").option("minPartitions", 8).load(url).collect()
    finally:
        writer.kill()
    found = {number: [int(row.value) for row in rows if row.partition == number] for number in range(3)}
    assert {number: sorted(values) for number, values in found.items()} == expected(3, 1000)
    offsets = {number: {row.offset for row in rows if row.partition == number} for number in range(3)}
    assert offsets == {number: set(range(len(values))) for number, values in found.items()}
