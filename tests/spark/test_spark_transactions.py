"""Spark reads the committed records of producers that append in place, while their transactions begin and end."""

from __future__ import annotations

from pathlib import Path

import pytest
from partition_logs import Process, append, new_topic
from pyspark.sql import SparkSession
from streams import Stream
from transacting import Sender

from distlog.core.transactions.open_transactions import IsolationLevel


def read(spark: SparkSession, folder: Path, isolation: IsolationLevel = "read_committed") -> list[bytes]:
    """The values of all records, in their order."""
    reader = spark.read.format("distlog").option("kafka.isolation.level", isolation)
    rows = reader.load(str(folder)).orderBy("partition", "offset").select("value").collect()
    return [bytes(row.value) for row in rows]


@pytest.mark.spark
def test_spark_stops_before_an_open_transaction_and_passes_over_what_was_aborted(
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


def test_a_stream_goes_on_behind_each_transaction_when_it_ends(tmp_path: Path) -> None:
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
