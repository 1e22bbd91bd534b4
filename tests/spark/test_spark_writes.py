"""Writes of a session: their records, failed tasks, and foreachBatch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from addresses import Address
from planned_writes import values
from pyspark import InheritableThread, TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

import distlog
from distlog.spark import append

pytestmark = pytest.mark.spark


pytestmark = pytest.mark.spark


def save(df: DataFrame, address: Address | str, **options: str) -> None:
    url = address if isinstance(address, str) else address.url
    storage = {} if isinstance(address, str) else {f"storage.{k}": v for k, v in address.options.items()}
    df.write.format("distlog").mode("append").options(**storage, **options).save(url)


def failure(df: DataFrame, url: str, **options: str) -> str:
    with pytest.raises(Exception) as raised:  # noqa: PT011 - each process of Spark has a type of its own for it
        save(df, url, **options)
    return str(raised.value)


def numbers(spark: SparkSession, count: int, tasks: int) -> DataFrame:
    columns = ["cast(id as string) key", "cast(id as string) value"]
    return spark.range(0, count, 1, tasks).selectExpr(*columns)


def sorted_values(topic: distlog.Topic) -> list[int]:
    return sorted(map(int, values(topic)))


def test_records_round_trip(spark: SparkSession, topic: distlog.Topic) -> None:
    df = numbers(spark, 100, 3).select(
        F.col("key"),
        F.col("value").cast("binary"),
        F.expr("timestamp_millis(cast(value as long))").alias("timestamp"),
        F.expr("array(struct('h' as key, cast(value as binary) as value))").alias("headers"),
    )
    save(df, topic.url)
    back = spark.read.format("distlog").option("includeHeaders", "true").load(topic.url)
    assert back.exceptAll(df.select(F.col("key").cast("binary"), *back.columns[1:2], "timestamp", "headers").join(
        back.select("value", "topic", "partition", "offset", "timestampType"), "value"
    ).select(*back.columns)).count() == 0  # fmt: skip
    assert back.count() == 100
    save(back, topic.url)
    assert sorted_values(topic) == sorted(2 * list(range(100)))


def fail_first(attempts: int) -> Any:
    """Return a mapInArrow function whose task 1 fails after its rows in its first attempts."""

    def run(batches: Any) -> Any:
        yield from batches
        context = TaskContext.get()
        assert context is not None
        if context.partitionId() == 1 and context.attemptNumber() < attempts:
            raise RuntimeError("this attempt fails")

    return run


def test_a_task_that_fails_once_is_written_once(spark: SparkSession, topic: distlog.Topic) -> None:
    df = numbers(spark, 60, 3)
    save(df.mapInArrow(fail_first(1), df.schema), topic.url)
    assert sorted_values(topic) == list(range(60))
    assert topic.version == 1


def test_a_failed_job_leaves_the_topic_unchanged(spark: SparkSession, topic: distlog.Topic) -> None:
    df = numbers(spark, 60, 3)
    assert "this attempt fails" in failure(df.mapInArrow(fail_first(9), df.schema), topic.url)
    assert topic.refresh().version == 0
    assert values(topic) == []


def test_bad_rows_fail_the_job_by_name(spark: SparkSession, topic: distlog.Topic) -> None:
    text = failure(numbers(spark, 5, 1).selectExpr("value", "5 as partition"), topic.url)
    assert "the partition does not exist: give one from 0 to 1 (partition=5 row=0)" in text


def test_an_object_store_is_written_through_storage_options(spark: SparkSession, s3_url: Address) -> None:
    topic = distlog.create(s3_url.url, 2, storage_options=s3_url.options)
    df = numbers(spark, 40, 2)
    save(df, s3_url)
    assert sorted_values(topic) == list(range(40))
    text = failure(df, s3_url.url + "-not", **{f"storage.{k}": v for k, v in s3_url.options.items()})
    assert s3_url.options["secret"] not in text


def test_large_types_and_other_time_zones_are_written(spark: SparkSession, topic: distlog.Topic) -> None:
    changed = {
        "spark.sql.execution.arrow.useLargeVarTypes": "true",
        "spark.sql.session.timeZone": "America/New_York",
    }
    old_settings = {name: spark.conf.get(name) for name in changed}
    try:
        for name, value in changed.items():
            spark.conf.set(name, value)
        save(numbers(spark, 3, 1).withColumn("timestamp", F.expr("timestamp_millis(1234)")), topic.url)
    finally:
        for name, value in old_settings.items():
            spark.conf.set(name, str(value))
    assert sorted_values(topic) == [0, 1, 2]
    assert {time.timestamp() for time in topic.scan().to_table()["timestamp"].to_pylist()} == {1.234}


def run_stream(spark: SparkSession, folder: Path, write_batch: Any) -> None:
    """Write all of `folder`/in, in one or several micro-batches, in one run of a query."""
    stream = spark.readStream.format("text").option("maxFilesPerTrigger", "1").load(str(folder / "in"))
    query = stream.writeStream.foreachBatch(write_batch).option("checkpointLocation", str(folder / "checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination()


def files(folder: Path, lines: Sequence[str]) -> None:
    (folder / "in").mkdir()
    for number, line in enumerate(lines):
        (folder / "in" / f"{number}.txt").write_text(line)


def save_batch(df: DataFrame, batch: int, url: str) -> None:
    save(df, url, txnAppId="copy", txnVersion=str(batch))


def append_in_thread(df: DataFrame, batch: int, url: str) -> None:
    thread = InheritableThread(target=append, args=(df, url), kwargs={"app_id": "copy", "batch_id": batch})
    thread.start()
    thread.join()


@pytest.mark.parametrize("write", [save_batch, append_in_thread])
def test_foreachBatch_with_a_name_is_exactly_once(  # noqa: N802 - Spark's name
    spark: SparkSession, topic: distlog.Topic, tmp_path: Path, write: Callable[[DataFrame, int, str], None]
) -> None:
    files(tmp_path, ["a", "b"])
    run_stream(spark, tmp_path, lambda df, batch: write(df, batch, topic.url))
    assert sorted(values(topic)) == ["a", "b"]
    for commit_file in (tmp_path / "checkpoint" / "commits").glob("*1*"):
        commit_file.unlink()
    run_stream(spark, tmp_path, lambda df, batch: write(df, batch, topic.url))
    assert sorted(values(topic)) == ["a", "b"]


@pytest.mark.parametrize("write", [save, append])
def test_foreachBatch_without_a_name_is_refused(  # noqa: N802 - Spark's name
    spark: SparkSession, topic: distlog.Topic, tmp_path: Path, write: Callable[[DataFrame, str], object]
) -> None:
    files(tmp_path, ["a"])
    with pytest.raises(Exception, match=r'app_id="NAME", batch_id=batch_id.*"txnAppId", "NAME"'):
        run_stream(spark, tmp_path, lambda df, batch: write(df, topic.url))
    assert values(topic) == []
    if write is append:
        assert list(tmp_path.glob("clicks/**/*.log")) == [], "it was refused before its tasks ran"
