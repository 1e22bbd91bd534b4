"""Spark on topics of a broker: the data source, committed records, compaction and retention as jobs do them."""

from __future__ import annotations

from pathlib import Path

import pytest
from adopted import rows
from log_dirs import copy_of, golden_of
from pyspark.sql import SparkSession

import distlog
from distlog.spark.frames import compact

pytestmark = pytest.mark.spark

CONFIG = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}


def test_spark_reads_and_maintains_topics_that_were_adopted_in_place(spark: SparkSession, tmp_path: Path) -> None:
    first = distlog.adopt(copy_of("first", tmp_path / "first")).topics
    old = distlog.adopt(copy_of("logs", tmp_path / "old"), config=CONFIG).topics
    reader = spark.read.format("distlog").option("kafka.isolation.level", "read_committed")
    found = reader.load(first["txn"].url).orderBy("offset").select("offset", "key", "value").toArrow().to_pylist()
    expected = golden_of("first")["txn-0"].records(committed=True)
    assert found == [{name: row[name] for name in ("offset", "key", "value")} for row in expected]
    for name in ("v0-lz4", "mixed"):
        assert compact(spark, old[name].url).to_dict()["ok"]
        records = golden_of("logs")[f"{name}-0"].records()
        last = {row["key"]: row["offset"] for row in records if row["key"] is not None}
        topic = old[name].refresh()
        assert [row["offset"] for row in rows(topic.scan().to_table())] == sorted(last.values())
        assert topic.verify().ok
