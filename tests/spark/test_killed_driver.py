"""A driver is killed during streaming queries: restarted queries leave each record once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from forked_programs import run
from pyspark.sql import DataFrame, SparkSession
from sink_queries import values
from spark_python import forked_python

import distlog
from distlog.spark import to_table

pq = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("pandas")

pytestmark = [pytest.mark.spark, pytest.mark.long]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("killed")
    for name in ("each", "sink"):
        distlog.create(str(folder / name / "clicks"))
        (folder / name / "in").mkdir()
        for number, line in enumerate("abc"):
            (folder / name / "in" / f"{number}.txt").write_text(line)
    append(distlog.create(str(folder / "clicks"), 2, config={"retention.ms": -1}), 0, 45)
    options = {"env": {**os.environ, **forked_python()}, "imports": ["distlog.spark"], "timeout": 1000}
    ended = run("killed_driver", folder, module=True, **options)
    assert ended.returncode, ended.stderr
    return folder


def append(topic: distlog.Topic, first: int, count: int) -> None:
    topic.append([{"key": f"k{n}", "value": f"v{n}", "partition": n % 2} for n in range(first, first + count)])


def rows(table: Path) -> list[tuple[int, int, bytes]]:
    """Return (partition, offset, value) of all rows, read without Spark."""
    rows_read = pq.read_table(table).select(["partition", "offset", "value"]).to_pylist()
    return sorted((row["partition"], row["offset"], row["value"]) for row in rows_read)


def test_a_table_is_finished_by_the_next_run(spark: SparkSession, killed: Path) -> None:
    """With a part of a batch written, or a whole batch that Spark has not recorded."""
    part, full = killed / "part", killed / "whole"
    assert 20 < len(rows(part)) < 30
    assert len(rows(full)) == 30
    topic = distlog.open(str(killed / "clicks"))
    append(topic, 45, 5)
    rows_read = topic.refresh().scan(columns=["partition", "offset", "value"]).to_table().to_pylist()
    for table in (part, full):
        to_table(spark, topic, str(table))
        assert rows(table) == sorted((row["partition"], row["offset"], row["value"]) for row in rows_read)


def test_a_committed_batch_that_spark_has_not_recorded_is_appended_once(spark: SparkSession, killed: Path) -> None:
    topics = {name: distlog.open(str(killed / name / "clicks")) for name in ("each", "sink")}

    def save(frame: DataFrame, batch: int) -> None:
        writer = frame.write.format("distlog").mode("append").option("txnAppId", "each").option("txnVersion", batch)
        writer.save(topics["each"].url)

    for name, topic in topics.items():
        checkpoint = killed / name / "checkpoint"
        assert sorted(file.name for file in (checkpoint / "offsets").glob("?")) == ["0", "1"]
        assert sorted(file.name for file in (checkpoint / "commits").glob("?")) == ["0"]
        old_values = values(topic)
        assert (len(old_values), topic.version) == (2, 2)
        lines = spark.readStream.format("text").option("maxFilesPerTrigger", "1").load(str(killed / name / "in"))
        stream = lines.writeStream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        written = stream.foreachBatch(save) if name == "each" else stream.format("distlog").option("path", topic.url)
        written.start().awaitTermination()
        assert values(topic)[:2] == old_values
        assert sorted(values(topic)) == ["a", "b", "c"]
        assert topic.verify().ok
