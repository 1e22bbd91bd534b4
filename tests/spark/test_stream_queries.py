"""Streaming queries of Spark itself into topics."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from addresses import Address
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import distlog
from distlog.core.commits.actions import SetTransaction
from distlog.core.commits.snapshot_loader import CommitFiles

pytestmark = pytest.mark.spark


@pytest.fixture
def topic(tmp_path: Path) -> distlog.Topic:
    return distlog.create(str(tmp_path / "clicks"))


def put_in(folder: Path, *lines: str) -> None:
    """Write each line as a file, and so as a micro-batch."""
    (folder / "in").mkdir(exist_ok=True)
    begin = len(list((folder / "in").iterdir()))
    for number, line in enumerate(lines, begin):
        (folder / "in" / f"{number}.txt").write_text(line)


def lines_of(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.readStream.format("text").option("maxFilesPerTrigger", "1").load(str(folder / "in"))


def start(frame: DataFrame, folder: Path, url: str, mode: str = "append", **options: str) -> StreamingQuery:
    stream = frame.writeStream.format("distlog").outputMode(mode).options(**options)
    return stream.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start(url)


def run(spark: SparkSession, folder: Path, url: str, **options: str) -> None:
    start(lines_of(spark, folder), folder, url, **options).awaitTermination()


def run_each(spark: SparkSession, folder: Path, write_batch: Callable[[DataFrame, int], None]) -> None:
    query = lines_of(spark, folder).writeStream.foreachBatch(write_batch)
    query.option("checkpointLocation", str(folder / "checkpoint")).trigger(
        availableNow=True
    ).start().awaitTermination()


def forget(folder: Path, batch: int) -> None:
    """Remove Spark's record of a batch that the sink has committed, as after a kill."""
    for commit_file in (folder / "checkpoint" / "commits").glob(f"*{batch}*"):
        commit_file.unlink()


def values(topic: distlog.Topic) -> list[str]:
    return [value.decode() for value in topic.refresh().scan().to_table().column("value").to_pylist()]


def test_a_query_commits_each_repeated_micro_batch_once(
    spark: SparkSession, topic: distlog.Topic, tmp_path: Path
) -> None:
    put_in(tmp_path, "a", "b")
    run(spark, tmp_path, topic.url)
    assert sorted(values(topic)) == ["a", "b"]
    old_values = values(topic)
    forget(tmp_path, 1)
    put_in(tmp_path, "c")
    run(spark, tmp_path, topic.url)
    assert values(topic) == [*old_values, "c"]
    assert topic.version == 3
    (commit,) = (
        action for action in CommitFiles(topic.storage).read_existing(3).actions if isinstance(action, SetTransaction)
    )
    assert commit.app_id in (tmp_path / "checkpoint" / "metadata").read_text()
    assert commit.batch_id == 2


def test_a_new_checkpoint_repeats_unless_the_application_has_a_name(
    spark: SparkSession, topic: distlog.Topic, tmp_path: Path
) -> None:
    put_in(tmp_path, "a")
    for options, expected in (({}, ["a"]), ({"txnAppId": "app"}, ["a", "a"]), ({"txnAppId": "app"}, ["a", "a"])):
        run(spark, tmp_path, topic.url, **options)
        shutil.rmtree(tmp_path / "checkpoint")
        assert values(topic) == expected


def test_complete_and_update_mode_are_refused(spark: SparkSession, topic: distlog.Topic, tmp_path: Path) -> None:
    put_in(tmp_path, "a")
    counts = lines_of(spark, tmp_path).groupBy("value").count().select("value")
    with pytest.raises(Exception, match=r"a topic is append only: use outputMode\('append'\)"):
        start(counts, tmp_path, topic.url, "complete").awaitTermination()
    shutil.rmtree(tmp_path / "checkpoint")
    with pytest.raises(Exception, match="does not support Update mode"):
        start(counts, tmp_path, topic.url, "update").awaitTermination()
    assert values(topic) == []


def test_an_invalid_row_fails_the_query_and_its_batch(
    spark: SparkSession, topic: distlog.Topic, tmp_path: Path
) -> None:
    put_in(tmp_path, "a", "b")
    frame = lines_of(spark, tmp_path).selectExpr("value", "if(value = 'b', 5, 0) as partition")
    with pytest.raises(Exception, match="give one from 0 to 0") as raised:
        start(frame, tmp_path, topic.url).awaitTermination()
    assert "InvalidRecordError" in str(raised.value)
    assert values(topic) in ([], ["a"])
    mended = lines_of(spark, tmp_path).selectExpr("value", "0 as partition")
    start(mended, tmp_path, topic.url).awaitTermination()
    assert sorted(values(topic)) == ["a", "b"]


def test_keys_headers_and_times_go_to_an_object_store_with_its_settings(
    spark: SparkSession, tmp_path: Path, s3_url: Address
) -> None:
    topic = distlog.create(s3_url.url, 2, storage_options=s3_url.options)
    put_in(tmp_path, "a", "b", "c")
    frame = lines_of(spark, tmp_path).selectExpr(
        "value as key",
        "cast(value as binary) as value",
        "timestamp_millis(1234) as timestamp",
        "array(struct('h' as key, cast(value as binary) as value)) as headers",
    )
    storage = {f"storage.{name}": str(value) for name, value in s3_url.options.items()}
    start(frame, tmp_path, s3_url.url, compression="zstd", **storage).awaitTermination()
    rows = topic.refresh().scan().to_table().to_pylist()
    assert sorted(row["key"] for row in rows) == [b"a", b"b", b"c"]
    assert {row["timestamp"].timestamp() for row in rows} == {1.234}
    assert all(row["headers"] == [{"key": "h", "value": row["value"]}] for row in rows)
    assert set(topic.segments()["compression"].to_pylist()) == {"zstd"}


def save(frame: DataFrame, url: str, **options: str) -> None:
    frame.write.format("distlog").mode("append").options(**options).save(url)


def test_a_foreachBatch_without_rows_is_no_commit_and_small_segments_are_merged(  # noqa: N802 - Spark's name
    spark: SparkSession, topic: distlog.Topic, tmp_path: Path
) -> None:
    put_in(tmp_path, *"abcdefghij")
    versions: list[int] = []

    def write_batch(frame: DataFrame, batch: int) -> None:
        save(frame.where("value <> 'a'"), topic.url, txnAppId="copy", txnVersion=str(batch))
        versions.append(topic.refresh().version)

    run_each(spark, tmp_path, write_batch)
    assert sorted(values(topic)) == list("bcdefghij")
    assert topic.segments().num_rows == 2
    assert sum(old_version == after for old_version, after in zip([0, *versions], versions, strict=False)) == 1


def test_spark_refuses_real_time_mode_as_documented(
    spark: SparkSession, tmp_path: Path, topic: distlog.Topic
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "streaming.md").read_text()
    rows = spark.readStream.format("distlog").load(topic.url).select("value").writeStream.outputMode("update")
    for sink, path, name in [
        ("console", {}, "STREAMING_REAL_TIME_MODE.INPUT_STREAM_NOT_SUPPORTED"),
        ("distlog", {"path": topic.url}, "OPERATOR_OR_SINK_NOT_IN_ALLOWLIST"),
    ]:
        query = rows.format(sink).option("checkpointLocation", str(tmp_path / sink)).options(**path)
        with pytest.raises(Exception, match=name):
            query.trigger(realTime="5 seconds").start().awaitTermination()
        assert f"`{name}`" in page
