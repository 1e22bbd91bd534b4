"""The sink as Spark drives it: planner, tasks and commit in processes of their own, attempts that fail or linger."""

from __future__ import annotations

import pickle
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from conftest import Address, S3Server
from fault_proxy import LOSE_REPLY, FaultProxy
from kafka.partitioner.default import murmur2
from pyspark import InheritableThread, TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.datasource import CaseInsensitiveDict, WriterCommitMessage
from pyspark.sql.types import BinaryType, StructField, StructType

import distlog
from distlog.core import paths
from distlog.core.commits.actions import SetConfig
from distlog.core.commits.commit_files import CommitFiles
from distlog.core.commits.commit_log import CommitLog
from distlog.core.errors import CommitConflictError, InvalidConfigError, InvalidRecordError
from distlog.core.storage.storage import Storage
from distlog.core.topics.append_commit import AppendResult
from distlog.spark import append
from distlog.spark.data_source import DistlogDataSource
from distlog.spark.sink import write_commit
from distlog.spark.sink.batch_sink import DistlogWriter
from distlog.spark.sink.commits import MicroBatch, find_write, is_of_run
from distlog.spark.sink.task_write import Written

pytestmark = pytest.mark.spark

KEY_VALUE = StructType([StructField("key", BinaryType()), StructField("value", BinaryType())])


@pytest.fixture
def topic(tmp_path: Path) -> distlog.Topic:
    return distlog.create(str(tmp_path / "clicks"), partitions=2)


def writer(url: str, schema: StructType = KEY_VALUE, **options: Any) -> DistlogWriter:
    """What Spark makes in its planning process."""
    source = DistlogDataSource(options=CaseInsensitiveDict({"path": url, **options}))
    made = source.writer(schema, overwrite=False)
    assert isinstance(made, DistlogWriter)
    return made


def sent(value: Any) -> Any:
    """A value as another process gets it."""
    return pickle.loads(pickle.dumps(value))


def write(planned: DistlogWriter, *values: str) -> WriterCommitMessage:
    """One attempt of one task, whose rows have no key."""
    batch = pa.record_batch({"key": pa.nulls(len(values), pa.binary()), "value": [v.encode() for v in values]})
    return sent(sent(planned).write(iter([batch])))  # type: ignore[no-any-return]


def commit(planned: DistlogWriter, *messages: WriterCommitMessage | None) -> None:
    sent(planned).commit(list(messages))


def values(topic: distlog.Topic) -> list[str]:
    """All values, in order of partition and offset."""
    return [value.decode() for value in topic.refresh().scan().to_table().column("value").to_pylist()]


def test_rows_keep_the_order_of_the_tasks_and_of_their_rows(tmp_path: Path) -> None:
    topic = distlog.create(str(tmp_path / "clicks"))
    planned = writer(topic.url)
    late, early = write(planned, "c", "d"), write(planned, "a", "b")
    commit(planned, early, late)
    assert values(topic) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("option", ["compression", "kafka.compression.type"])
def test_a_write_chooses_its_codec(topic: distlog.Topic, option: str) -> None:
    planned = writer(topic.url, **{option: "zstd"})
    commit(planned, write(planned, "a", "b"))
    assert set(topic.refresh().segments()["compression"].to_pylist()) == {"zstd"}
    with pytest.raises(InvalidConfigError, match="brotli"):
        writer(topic.url, **{option: "brotli"})


def test_a_write_for_another_topic_than_the_paths_is_refused(topic: distlog.Topic) -> None:
    commit(planned := writer(topic.url, topic=topic.name), write(planned, "a"))
    with pytest.raises(InvalidConfigError, match="option topic must name the topic of the path"):
        writer(topic.url, topic="elsewhere")
    schema = StructType([*KEY_VALUE.fields])
    source = DistlogDataSource(options=CaseInsensitiveDict({"path": topic.url, "topic": "elsewhere"}))
    with pytest.raises(InvalidConfigError, match="option topic must name the topic of the path"):
        source.streamWriter(schema, overwrite=False)


def test_nothing_is_seen_before_the_commit(topic: distlog.Topic) -> None:
    planned = writer(topic.url)
    message = write(planned, "a")
    assert values(topic) == []
    commit(planned, message)
    assert values(topic) == ["a"]


def test_only_the_attempt_that_spark_chose_counts(topic: distlog.Topic) -> None:
    planned = writer(topic.url)
    write(planned, "a")
    chosen = write(planned, "a")
    commit(planned, chosen)
    write(planned, "a")  # an attempt that lingers
    assert values(topic) == ["a"]


def test_an_abort_deletes_nothing_since_the_commit_may_have_landed(topic: distlog.Topic) -> None:
    planned = writer(topic.url)
    message = write(planned, "a", "b")
    commit(planned, message)
    sent(planned).abort([message, None])
    assert values(topic) == ["a", "b"]


def test_a_second_commit_of_one_write_changes_nothing(topic: distlog.Topic) -> None:
    planned = writer(topic.url)
    message = write(planned, "a")
    topic.append([{"value": b"other", "partition": 1}])
    commit(planned, message)
    topic.append([{"value": b"other", "partition": 1}])
    commit(planned, message)
    assert values(topic) == ["a", "other", "other"]


def test_a_task_without_a_message_is_not_left_out(topic: distlog.Topic) -> None:
    planned = writer(topic.url)
    with pytest.raises(CommitConflictError, match="nothing was committed"):
        commit(planned, write(planned, "a"), None)
    assert values(topic) == []


def test_no_rows_are_no_commit(topic: distlog.Topic) -> None:
    planned = writer(topic.url)
    commit(planned, write(planned), sent(planned).write(iter([])))
    assert topic.refresh().version == 0


def test_small_writes_without_keys_take_the_partitions_in_turn(topic: distlog.Topic) -> None:
    for value in "abcd":
        planned = writer(topic.url)
        commit(planned, write(planned, value))
    assert topic.refresh().end_offsets() == {0: 2, 1: 2}


def test_a_transaction_is_written_once(topic: distlog.Topic) -> None:
    transaction = {"txnAppId": "job", "txnVersion": "7"}
    first = writer(topic.url, **transaction)
    commit(first, write(first, "a"))
    again = writer(topic.url, **transaction)
    assert write(again, "a") == Written()
    commit(again, write(again, "a"))
    following = writer(topic.url, txnAppId="job", txnVersion="8")
    commit(following, write(following, "b"))
    assert values(topic) == ["a", "b"]


def test_what_was_committed_before_is_durable_when_its_repetition_is_done(
    topic: distlog.Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    transaction = {"txnAppId": "job", "txnVersion": "7"}
    first = writer(topic.url, **transaction)
    commit(first, write(first, "a"))
    again, synced = writer(topic.url, **transaction), list[str]()
    monkeypatch.setattr(Storage, "sync", lambda self, folder: synced.append(folder))
    commit(again, write(again, "a"))
    assert synced == [paths.COMMITS_DIR]


def test_of_two_writers_of_one_transaction_the_second_yields(topic: distlog.Topic) -> None:
    one, other = (writer(topic.url, txnAppId="job", txnVersion="7") for _ in range(2))
    messages = [write(one, "a"), write(other, "a")]
    commit(one, messages[0])
    commit(other, messages[1])
    assert values(topic) == ["a"]


def test_a_topic_that_was_made_again_meanwhile_gets_nothing(topic: distlog.Topic) -> None:
    planned = writer(topic.url)
    message = write(planned, "a")
    topic.drop()
    anew = distlog.create(topic.url)
    with pytest.raises(CommitConflictError, match="created again"):
        commit(planned, message)
    assert values(anew) == []


def test_a_commit_bears_the_ids_of_its_write_and_its_run(topic: distlog.Topic) -> None:
    planned = writer(topic.url, writeId="mine")
    commit(planned, of_micro_batch(write(planned, "a"), "run"))
    plain = writer(topic.url)
    commit(plain, write(plain, "b"))
    first, second = CommitFiles(topic.storage).read_existing(1), CommitFiles(topic.storage).read_existing(2)
    assert (first.write_id, first.run_id) == ("mine", "run")
    assert second.write_id
    assert second.run_id is None
    assert first.writer == second.writer
    assert "mine" not in first.writer


def in_task_of(run: str | None) -> Any:
    """The context of a task of a micro-batch."""
    told = {"sql.streaming.queryId": "query", "streaming.sql.batchId": "3", "spark.jobGroup.id": run}
    return SimpleNamespace(getLocalProperty=told.get, partitionId=lambda: 0)


@pytest.mark.parametrize(("told", "kept"), [(None, None), ("", None), ("a run", "a run"), ("x" * 2000, "x" * 1000)])
def test_whatever_spark_calls_a_run_can_be_committed(
    topic: distlog.Topic, monkeypatch: pytest.MonkeyPatch, told: str | None, kept: str | None
) -> None:
    planned = writer(topic.url)
    with monkeypatch.context() as patch:
        patch.setattr(TaskContext, "get", lambda: in_task_of(told))
        message = write(planned, "a")
    commit(planned, message)
    assert CommitFiles(topic.storage).read_existing(1).run_id == kept


def test_an_id_that_no_commit_can_hold_is_refused_before_any_task(topic: distlog.Topic) -> None:
    with pytest.raises(InvalidConfigError, match="writeId must be at most 1000"):
        writer(topic.url, writeId="x" * 1001)


def test_who_writes_under_the_name_of_ids_is_not_taken_for_them(topic: distlog.Topic) -> None:
    name = "distlog 1.0 host write=mine run=same"
    log = CommitLog(topic.storage, clock=lambda: 0, random=random.Random(0), writer=name)
    log.commit(topic.snapshot, "config", lambda head: [SetConfig({})])
    assert find_write(topic.storage, "mine", 0) is None
    assert not is_of_run(topic.storage, 1, "same")


def test_of_a_commit_between_no_manifest_is_read_to_find_a_write(topic: distlog.Topic) -> None:
    large = CommitLog(topic.storage, clock=lambda: 0, random=random.Random(0), writer="a", commit_limit=100)
    large.commit(topic.snapshot, "config", lambda head: [SetConfig({"retention.ms": "1"})])
    planned = writer(topic.url, writeId="mine")
    commit(planned, write(planned, "a"))
    (manifest,) = [file.name for file in topic.storage.list(paths.COMMITS_DIR) if "manifest" in file.name]
    topic.storage.delete([manifest])
    assert find_write(topic.storage, "mine", 0) == AppendResult(2, {1: (0, 1)})
    assert find_write(topic.storage, "mine", 0, head=1) is None


def of_micro_batch(message: WriterCommitMessage, run: str, batch: int = 3) -> Written:
    assert isinstance(message, Written)
    return Written(message.segments, MicroBatch("query", batch, run))


def test_a_micro_batch_that_is_repeated_after_a_restart_is_written_once(topic: distlog.Topic) -> None:
    for run in ("before", "after"):
        planned = writer(topic.url)
        commit(planned, of_micro_batch(write(planned, "a"), run))
    planned = writer(topic.url)
    commit(planned, of_micro_batch(write(planned, "b"), "after", batch=4))
    assert values(topic) == ["a", "b"]


@pytest.mark.parametrize(("run", "rows"), [("same", ["b"]), ("other", ["b", "c"])])
def test_a_second_write_of_a_micro_batch_is_an_error_and_not_lost(
    topic: distlog.Topic, run: str, rows: list[str]
) -> None:
    planned = writer(topic.url)
    commit(planned, of_micro_batch(write(planned, "a"), "same"))
    second = writer(topic.url)
    with pytest.raises(InvalidRecordError, match="its own txnAppId"):
        commit(second, of_micro_batch(write(second, *rows), run))
    named = writer(topic.url, txnAppId="second", txnVersion="3")
    commit(named, of_micro_batch(write(named, *rows), run))
    assert values(topic) == ["a", *rows]


def test_a_second_write_of_a_micro_batch_is_an_error_in_every_run(topic: distlog.Topic) -> None:
    for run in ("one", "two", "three"):
        first, second = writer(topic.url), writer(topic.url)
        messages = of_micro_batch(write(first, "a"), run), of_micro_batch(write(second, "b"), run)
        commit(first, messages[0])
        with pytest.raises(InvalidRecordError, match="its own txnAppId"):
            commit(second, messages[1])
        assert values(topic) == ["a"]


def test_of_two_writes_of_a_micro_batch_at_once_the_second_is_not_lost_in_silence(
    topic: distlog.Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = writer(topic.url), writer(topic.url)
    messages = of_micro_batch(write(first, "a"), "run"), of_micro_batch(write(second, "b"), "run")
    real = write_commit.commit_append

    def late(*given: Any, **options: Any) -> Any:
        monkeypatch.undo()
        commit(first, messages[0])
        return real(*given, **options)

    monkeypatch.setattr(write_commit, "commit_append", late)
    with pytest.raises(InvalidRecordError, match="its own txnAppId"):
        commit(second, messages[1])
    assert values(topic) == ["a"]


def test_micro_batches_merge_small_segments_and_other_writes_only_if_they_are_told(topic: distlog.Topic) -> None:
    topic = distlog.create(topic.url + "-of-one")
    for _ in range(9):
        planned = writer(topic.url)
        commit(planned, write(planned, "a"))
    assert topic.refresh().segments().num_rows == 9
    planned = writer(topic.url, mergeSegments="true")
    commit(planned, write(planned, "a"))
    assert topic.refresh().segments().num_rows == 1
    for number in range(8):
        planned = writer(topic.url)
        commit(planned, of_micro_batch(write(planned, "a"), "run", number))
    assert topic.refresh().segments().num_rows == 2
    assert values(topic) == 18 * ["a"]


def test_a_micro_batch_without_rows_is_no_commit(topic: distlog.Topic) -> None:
    planned = writer(topic.url)
    commit(planned, of_micro_batch(write(planned), "run"))
    assert topic.refresh().version == 0


def test_a_micro_batch_below_the_last_is_skipped(topic: distlog.Topic) -> None:
    for number, run in ((7, "run"), (3, "another run")):
        planned = writer(topic.url)
        commit(planned, of_micro_batch(write(planned, f"{number}"), run, number))
    assert values(topic) == ["7"]


def test_a_commit_whose_reply_was_lost_is_one_commit(s3_server: S3Server) -> None:
    address = s3_server.address()
    topic = distlog.create(address.url, storage_options=address.options)
    with FaultProxy(s3_server.endpoint) as proxy:
        options = {**address.options, "endpoint_url": proxy.url}
        planned = writer(address.url, **{f"storage.{name}": value for name, value in options.items()})
        message = write(planned, "a")
        proxy.inject("PUT", LOSE_REPLY, path="*/_commits/*")
        commit(planned, message)
        assert proxy.count("PUT", "*/_commits/*") >= 1
    assert values(topic) == ["a"]
    assert topic.version == 1


def test_writers_in_other_processes_may_commit_meanwhile(topic: distlog.Topic) -> None:
    planned = [writer(topic.url) for _ in range(6)]
    messages = [write(each, f"{number}", f"{number}") for number, each in enumerate(planned)]
    threads = [threading.Thread(target=commit, args=pair) for pair in zip(planned, messages, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = values(topic)
    assert sorted(found) == sorted(2 * [str(number) for number in range(6)])
    assert found[::2] == found[1::2]


def test_types_that_spark_may_send_are_taken(topic: distlog.Topic) -> None:
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    batch = pa.record_batch(
        {
            "key": pa.array(["k"], pa.large_string()),
            "value": pa.array([b"v"], pa.large_binary()),
            "timestamp": pa.array([1_700_000_000_123_456], pa.timestamp("us", "Europe/Berlin")),
            "headers": pa.array([[{"key": "h", "value": b"x"}]], pa.list_(pa.field("element", header))),
            "partition": pa.array([1], pa.int64()),
            "topic": pa.array(["ignored"]),
            "offset": pa.array([77]),
        }
    )
    planned = writer(topic.url)
    commit(planned, sent(planned.write(iter([batch, batch.slice(0, 0), batch]))))
    (first, second) = topic.refresh().scan().to_table().to_pylist()
    assert (first["offset"], second["offset"], first["partition"]) == (0, 1, 1)
    assert (first["key"], first["value"], first["headers"]) == (b"k", b"v", [{"key": "h", "value": b"x"}])
    assert first["timestamp"].timestamp() == 1_700_000_000.123


def test_keys_go_where_kafkas_own_producer_sends_them(tmp_path: Path) -> None:
    topic = distlog.create(str(tmp_path / "clicks"), partitions=7)
    keys = [random.Random(1).randbytes(length) for length in range(40) for _ in range(5)]
    planned = writer(topic.url)
    rows = pa.record_batch({"key": keys, "value": keys})
    commit(planned, sent(planned.write(iter([rows]))))
    found = topic.refresh().scan().to_table()
    assert found.num_rows == len(keys)
    for key, partition in zip(found["key"].to_pylist(), found["partition"].to_pylist(), strict=True):
        assert partition == (murmur2(key) & 0x7FFFFFFF) % 7


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


def test_what_is_written_is_read_again(spark: SparkSession, topic: distlog.Topic) -> None:
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


def test_an_empty_frame_appends_nothing(spark: SparkSession, topic: distlog.Topic) -> None:
    save(numbers(spark, 0, 1), topic.url)
    assert topic.refresh().version == 0


def fail_first(attempts: int) -> Any:
    """A mapInArrow function whose task 1 fails in its first attempts, after it gave its rows."""

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


def test_a_job_that_fails_leaves_the_topic_as_it_was(spark: SparkSession, topic: distlog.Topic) -> None:
    df = numbers(spark, 60, 3)
    assert "this attempt fails" in failure(df.mapInArrow(fail_first(9), df.schema), topic.url)
    assert topic.refresh().version == 0
    assert values(topic) == []


def test_what_cannot_be_written_is_refused_before_any_task(spark: SparkSession, topic: distlog.Topic) -> None:
    text = failure(spark.range(3).selectExpr("id as value", "raise_error('a task ran') as key"), topic.url)
    assert "column value must be binary or string" in text
    assert "did you mean txnVersion?" in failure(numbers(spark, 1, 1), topic.url, txnVersions="3")
    assert "TopicNotFoundError" in failure(numbers(spark, 1, 1), topic.url + "-not")


def test_bad_rows_fail_the_job_and_say_which(spark: SparkSession, topic: distlog.Topic) -> None:
    text = failure(numbers(spark, 5, 1).selectExpr("value", "5 as partition"), topic.url)
    assert "the topic has partitions 0 to 1 (partition=5 row=0)" in text


def test_a_log_is_not_overwritten(spark: SparkSession, topic: distlog.Topic) -> None:
    with pytest.raises(Exception, match="a log is only appended to"):
        numbers(spark, 1, 1).write.format("distlog").mode("overwrite").save(topic.url)


def test_concurrent_jobs_append_all_their_rows(spark: SparkSession, topic: distlog.Topic) -> None:
    frames = [numbers(spark, 50, 2).selectExpr(f"'{job}' as key", "value") for job in range(3)]
    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(append, frames, [topic.url] * 3))
    assert sorted(result.version or 0 for result in results) == [1, 2, 3]
    table = topic.refresh().scan().to_table()
    rows = zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True)
    by_job: dict[bytes, list[int]] = {}
    for key, value in rows:
        by_job.setdefault(key, []).append(int(value))
    assert by_job == {b"%d" % job: list(range(50)) for job in range(3)}


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
    before = {name: spark.conf.get(name) for name in changed}
    try:
        for name, value in changed.items():
            spark.conf.set(name, value)
        save(numbers(spark, 3, 1).withColumn("timestamp", F.expr("timestamp_millis(1234)")), topic.url)
    finally:
        for name, value in before.items():
            spark.conf.set(name, str(value))
    assert sorted_values(topic) == [0, 1, 2]
    assert {time.timestamp() for time in topic.scan().to_table()["timestamp"].to_pylist()} == {1.234}


def run_stream(spark: SparkSession, folder: Path, write_batch: Any) -> None:
    """All there is in `folder`/in, in one micro-batch or several, as one run of one query."""
    stream = spark.readStream.format("text").option("maxFilesPerTrigger", "1").load(str(folder / "in"))
    query = stream.writeStream.foreachBatch(write_batch).option("checkpointLocation", str(folder / "checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination()


def files(folder: Path, lines: Sequence[str]) -> None:
    (folder / "in").mkdir()
    for number, line in enumerate(lines):
        (folder / "in" / f"{number}.txt").write_text(line)


def append_in_thread(df: DataFrame, url: str) -> None:
    thread = InheritableThread(target=append, args=(df, url))
    thread.start()
    thread.join()


@pytest.mark.parametrize("write", [save, append_in_thread])
def test_foreachBatch_is_exactly_once_without_further_ado(  # noqa: N802 - Spark's name
    spark: SparkSession, topic: distlog.Topic, tmp_path: Path, write: Callable[[DataFrame, str], None]
) -> None:
    files(tmp_path, ["a", "b"])
    run_stream(spark, tmp_path, lambda df, batch: write(df, topic.url))
    assert sorted(values(topic)) == ["a", "b"]
    for done in (tmp_path / "checkpoint" / "commits").glob("*1*"):
        done.unlink()  # as if the driver had died before Spark noted that batch 1 was done
    run_stream(spark, tmp_path, lambda df, batch: write(df, topic.url))
    assert sorted(values(topic)) == ["a", "b"]


def test_two_writes_of_one_foreachBatch_need_names(  # noqa: N802 - Spark's name
    spark: SparkSession, topic: distlog.Topic, tmp_path: Path
) -> None:
    files(tmp_path, ["a"])

    def twice(df: DataFrame, batch: int) -> None:
        save(df, topic.url)
        save(df, topic.url)

    with pytest.raises(Exception, match="its own txnAppId"):
        run_stream(spark, tmp_path, twice)
    assert values(topic) == ["a"]

    def named(df: DataFrame, batch: int) -> None:
        save(df, topic.url)
        save(df, topic.url, txnAppId="second", txnVersion=str(batch))

    run_stream(spark, tmp_path, named)
    assert values(topic) == ["a", "a"]
