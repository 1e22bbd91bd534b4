"""A topic as a table of Parquet: incremental, each record once after any kill, and refused inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from framed_values import avro, framed, registered
from job_runs import job as job
from pyspark.sql import SparkSession

import distlog
from distlog.spark import to_table

pytest.importorskip("pandas")

pytestmark = pytest.mark.spark


USERS = {"type": "record", "name": "U", "fields": [{"name": "user", "type": "string"}]}


def topic_at(folder: Path, **config: Any) -> distlog.Topic:
    return distlog.create(str(folder / "clicks"), 2, config={"retention.ms": -1, **config})


def append(topic: distlog.Topic, first: int, count: int) -> None:
    topic.append([{"key": f"k{n}", "value": f"v{n}", "partition": n % 2} for n in range(first, first + count)])


def rows(table: Path) -> list[tuple[int, int, bytes]]:
    """Return (partition, offset, value) of all rows, read without Spark."""
    values = pq.read_table(table).select(["partition", "offset", "value"]).to_pylist()
    return sorted((row["partition"], row["offset"], row["value"]) for row in values)


def stored(topic: distlog.Topic) -> list[tuple[int, int, bytes]]:
    values = topic.refresh().scan(columns=["partition", "offset", "value"]).to_table().to_pylist()
    return sorted((row["partition"], row["offset"], row["value"]) for row in values)


def test_each_run_adds_new_records(spark: SparkSession, tmp_path: Path) -> None:
    topic, table = topic_at(tmp_path), tmp_path / "table"
    append(topic, 0, 30)
    report = to_table(spark, topic, f"{table}/")
    assert (report.rows, report.batches, report.table) == (30, 1, str(table))
    assert rows(table) == stored(topic)
    append(topic, 30, 25)
    report = to_table(spark, topic.url, str(table), max_offsets=10)
    assert (report.rows, report.batches) == (25, 3)
    assert rows(table) == stored(topic)
    assert to_table(spark, topic, str(table)).rows == 0
    frame = spark.read.parquet(str(table))
    assert frame.columns == ["partition", "offset", "timestamp", "key", "value", "batch"]
    assert (frame.count(), frame.where("batch = 0").count()) == (55, 30)


def test_a_table_of_another_checkpoint_or_topic_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    topic, table = topic_at(tmp_path), tmp_path / "table [a]{b}"
    append(topic, 0, 10)
    to_table(spark, topic, str(table), checkpoint=str(tmp_path / "state"))
    old_rows = rows(table)
    with pytest.raises(distlog.InvalidConfigError, match="of another topic or checkpoint"):
        to_table(spark, topic, str(table), checkpoint=str(tmp_path / "other"))
    other = topic_at(tmp_path / "other")
    append(other, 100, 3)
    with pytest.raises(distlog.InvalidConfigError, match="of another topic or checkpoint"):
        to_table(spark, other, str(table))
    spark.range(3).write.parquet(str(tmp_path / "foreign[c]"))
    with pytest.raises(distlog.InvalidConfigError, match="not a table of a topic"):
        to_table(spark, topic, str(tmp_path / "foreign[c]"))
    assert rows(table) == old_rows


def test_a_folder_of_the_topic_is_refused_as_table(spark: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "logs"
    topic, other = topic_at(root), distlog.create(str(root / "other"))
    append(topic, 0, 3)
    link, clicks = tmp_path / "link", Path(topic.url)
    link.symlink_to(clicks)
    locations = [
        clicks,
        f"file:{clicks}/",
        f"file://{clicks}/clicks-0",
        f"{root}/x/../clicks/new",
        root,
        tmp_path,
        "/",
    ]
    old_paths = sorted(tmp_path.rglob("*"))
    for folder in map(str, [*locations, link, f"{link}/new", other.url]):
        with pytest.raises(distlog.InvalidConfigError, match="the folder is "):
            to_table(spark, topic, folder)
        with pytest.raises(distlog.InvalidConfigError, match="the folder is "):
            to_table(spark, topic, str(tmp_path / "table"), checkpoint=folder)
        with pytest.raises(distlog.InvalidConfigError, match="the folder is "):
            to_table(spark, topic, folder, output="delta")
    with pytest.raises(distlog.InvalidConfigError, match="the folder is "):
        to_table(spark, distlog.open(str(link)), str(clicks))
    assert sorted(tmp_path.rglob("*")) == old_paths


LATEST = """
SELECT last.* FROM (SELECT max_by(struct(*), offset) AS last FROM changes GROUP BY key) WHERE NOT last.deleted
"""


def test_a_compacted_topic_is_a_table_of_changes(spark: SparkSession, tmp_path: Path) -> None:
    topic, table = topic_at(tmp_path, **{"cleanup.policy": "compact"}), tmp_path / "table"
    topic.append([{"key": "a", "value": "1"}, {"key": "b", "value": "1"}, {"key": "a", "value": "2"}])
    with pytest.raises(distlog.InvalidConfigError, match="the topic is compacted"):
        to_table(spark, topic, str(table))
    to_table(spark, topic, str(table), changes=True)
    topic.append([{"key": "b", "value": None}, {"key": "c", "value": "1"}])
    to_table(spark, topic, str(table), changes=True)
    spark.read.parquet(str(table)).createOrReplaceTempView("changes")
    assert sorted((bytes(row.key), bytes(row.value)) for row in spark.sql(LATEST).collect()) == [
        (b"a", b"2"),
        (b"c", b"1"),
    ]


def test_values_become_columns(spark: SparkSession, tmp_path: Path) -> None:
    topic, table = topic_at(tmp_path), tmp_path / "table"
    topic.append([{"value": '{"user": "ann"}'}, {"value": "{"}])
    with pytest.raises(Exception, match="the value is not JSON"):
        to_table(spark, topic, str(table), format="json", schema="user string")
    to_table(spark, topic, str(table), format="json", schema="user string", on_error="null")
    assert pq.read_table(table)["user"].to_pylist() == ["ann", None]
    for name in ("batch", "Batch"):
        with pytest.raises(distlog.InvalidConfigError, match="no field can be"):
            to_table(spark, topic, str(table), format="json", schema=f"{name} int")


def test_the_job_accepts_schemas_of_a_registrys_topic(
    job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("fastavro")
    topic = topic_at(tmp_path)
    topic.append([{"value": framed(4, avro(USERS, {"user": "ann"}))}])
    schemas = distlog.create(str(tmp_path / "_schemas"), config={"retention.ms": -1})
    schemas.append([registered("clicks-value", 1, 4, USERS)])
    arguments = ("to_table", "--topic", topic.url, "--table", tmp_path / "table", "--format", "avro", "--json")
    assert "needs --schema" in job(*arguments).err
    ran = job(*arguments, "--registry", schemas.url)
    assert (ran.status, {**ran.summary, "seconds": 0}) == (
        0,
        {"topic": topic.url, "table": str(tmp_path / "table"), "rows": 1, "batches": 1, "seconds": 0},
    )
    assert pq.read_table(tmp_path / "table")["user"].to_pylist() == ["ann"]
    topic.append([{"value": framed(4, avro(USERS, {"user": "bob"}))}])
    (tmp_path / "user.avsc").write_text('{"type":"record","name":"U","fields":[{"name":"user","type":"string"}]}')
    monkeypatch.setenv("DISTLOG_SCHEMA_REGISTRY", schemas.url)
    ran = job(*arguments[:-1], "--schema-file", tmp_path / "user.avsc", "--max-offsets", "5")
    assert (ran.status, ran.out.startswith(f"added 1 row of {topic.url} to {tmp_path / 'table'} in 1 batch")) == (
        0,
        True,
    )
    assert sorted(pq.read_table(tmp_path / "table")["user"].to_pylist()) == ["ann", "bob"]
    assert job(*arguments[:-1], "--subject", "x", "--schema", "y").status == 2
