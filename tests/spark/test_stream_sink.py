"""The sink of a stream without Spark: the commit of a micro-batch, and refused ones."""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from addresses import Address
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import IntegerType, StringType, StructField, StructType
from sink_queries import KEY_VALUE, Query, result_of, segments_of, sent, values, writer
from sink_queries import topic as topic
from topics import files, named_files

import distlog
from distlog.core.errors import (
    CommitConflictError,
    CommitStateUnknownError,
    InvalidConfigError,
    InvalidRecordError,
    TopicNotFoundError,
)
from distlog.core.storage.storage import Storage
from distlog.core.write.append import AppendResult
from distlog.spark.data_source import DistlogDataSource


def test_a_micro_batch_is_one_commit_that_names_the_query_and_the_batch(topic: distlog.Topic) -> None:
    query = Query(topic.url)
    query.commit(0, query.write(0, ["a", "b"], ["c"]))
    query.batch(1, "d")
    assert values(topic) == ["a", "b", "c", "d"]
    assert topic.version == 2
    assert result_of(topic, "query", 1) == AppendResult(2, {0: (3, 4)}, replayed=True)


def test_nothing_is_seen_before_the_commit_and_an_abort_deletes_nothing(topic: distlog.Topic) -> None:
    query = Query(topic.url)
    messages = query.write(0, ["a"])
    assert values(topic) == []
    query.commit(0, messages)
    writer(topic.url).abort([*messages, None], 0)
    assert values(topic) == ["a"]


def test_a_batch_without_rows_is_no_commit(topic: distlog.Topic) -> None:
    query = Query(topic.url)
    query.commit(0, query.write(0, [], []))
    assert topic.refresh().version == 0
    query.commit(0, query.write(0, [], ["a"]))
    assert values(topic) == ["a"]


def test_rows_are_accepted_as_in_the_batch_sink(tmp_path: Path) -> None:
    topic = distlog.create(str(tmp_path / "clicks"), partitions=3)
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    batch = pa.record_batch(
        {
            "key": ["k", None],
            "value": ["text", "more"],
            "timestamp": pa.array([1_700_000_000_123_456, None], pa.timestamp("us", "Europe/Berlin")),
            "headers": pa.array([[{"key": "h", "value": b"x"}], None], pa.list_(header)),
            "partition": pa.array([2, 1], pa.int32()),
        }
    )
    planned = writer(topic.url, compression="zstd")
    message = sent(sent(planned).write(iter([batch])))
    writer(topic.url, txnAppId="app").commit([message], 0)
    records = {row["partition"]: row for row in topic.refresh().scan().to_table().to_pylist()}
    assert (records[2]["key"], records[2]["value"], records[1]["value"]) == (b"k", b"text", b"more")
    assert records[2]["headers"] == [{"key": "h", "value": b"x"}]
    assert records[2]["timestamp"].timestamp() == 1_700_000_000.123
    assert set(topic.segments()["compression"].to_pylist()) == {"zstd"}


def test_invalid_writes_are_refused_before_any_task(topic: distlog.Topic) -> None:
    source = DistlogDataSource(options=CaseInsensitiveDict({"path": topic.url}))
    with pytest.raises(InvalidConfigError, match=r"use outputMode\('append'\)"):
        source.streamWriter(KEY_VALUE, overwrite=True)
    with pytest.raises(InvalidConfigError, match="leave txnVersion out"):
        writer(topic.url, txnAppId="app", txnVersion="3")
    with pytest.raises(InvalidConfigError, match="did you mean txnAppId"):
        writer(topic.url, txnAppIds="app")
    with pytest.raises(InvalidConfigError, match="brotli"):
        writer(topic.url, compression="brotli")
    with pytest.raises(InvalidConfigError, match="mergeSegments must be auto or true or false"):
        writer(topic.url, mergeSegments="yes")
    with pytest.raises(InvalidRecordError, match="give app_id and batch_id together"):
        writer(topic.url, txnAppId="")
    with pytest.raises(InvalidRecordError, match="column value must be binary or string"):
        writer(topic.url, StructType([StructField("value", IntegerType())]))
    with pytest.raises(TopicNotFoundError):
        writer(topic.url + "-not")
    # options that Spark adds itself are accepted
    writer(topic.url, StructType([StructField("value", StringType())]), checkpointLocation="/x", queryName="q")


def test_an_object_store_is_written(s3_url: Address) -> None:
    topic = distlog.create(s3_url.url, 2, storage_options=s3_url.options)
    query = Query(s3_url.url, **{f"storage.{name}": value for name, value in s3_url.options.items()})
    for number in range(10):
        query.batch(number, f"{number}")
    query.batch(9, "9")
    assert sorted(map(int, values(topic))) == list(range(10))


def test_a_repeated_batch_keeps_its_offsets_and_leaves_files_to_vacuum(topic: distlog.Topic) -> None:
    query = Query(topic.url)
    query.batch(0, "a")
    query.batch(1, "b")
    first, named = result_of(topic, "query", 1), files(topic.storage)
    assert named == named_files(topic)
    restarted = Query(topic.url)
    restarted.batch(1, "b")
    restarted.batch(2, "c")
    assert values(topic) == ["a", "b", "c"]
    assert result_of(topic, "query", 1) == first
    leftover = files(topic.storage) - named_files(topic)
    assert sorted(Path(name).suffix for name in leftover) == [".log", ".timeindex"]


def test_repeated_batches_are_logged_quietly(topic: distlog.Topic, caplog: pytest.LogCaptureFixture) -> None:
    query = Query(topic.url)
    query.batch(0, "a")
    with caplog.at_level(logging.INFO):
        query.batch(0, "a")
    assert "batch 0 of query is in version 1 of clicks already" in caplog.text
    assert [record.levelname for record in caplog.records if "batch 0" in record.message] == ["INFO"]


def test_a_repeated_batch_with_other_rows_is_skipped_with_a_warning(
    topic: distlog.Topic, caplog: pytest.LogCaptureFixture
) -> None:
    query = Query(topic.url)
    query.batch(0, "a")
    query.batch(0, "a", "b")
    assert values(topic) == ["a"]
    assert "batch 0 of query was skipped: it has 2 records now, and had 1 in version 1 of clicks" in caplog.text


def test_a_batch_below_the_last_is_skipped_with_a_warning(
    topic: distlog.Topic, caplog: pytest.LogCaptureFixture
) -> None:
    query = Query(topic.url)
    query.batch(7, "a")
    query.batch(3, "b")
    assert values(topic) == ["a"]
    assert "batch 3 of query was skipped, since clicks has a later one" in caplog.text
    query.batch(8, "c")
    assert values(topic) == ["a", "c"]


def test_a_new_checkpoint_is_a_new_query(topic: distlog.Topic) -> None:
    Query(topic.url, "old").batch(0, "a")
    Query(topic.url, "new").batch(0, "a")
    assert values(topic) == ["a", "a"]


def test_txnAppId_identifies_the_query_over_all_checkpoints(topic: distlog.Topic) -> None:  # noqa: N802
    Query(topic.url, "old", txnAppId="clicks").batch(0, "a")
    Query(topic.url, "new", txnAppId="clicks").batch(0, "a")
    Query(topic.url, "new", txnAppId="clicks").batch(1, "b")
    assert values(topic) == ["a", "b"]
    assert result_of(topic, "new", 1) is None


def test_a_commit_needs_the_query_id_or_txnAppId(  # noqa: N802
    topic: distlog.Topic,
) -> None:
    unknown = Query(topic.url, query_id="")
    with pytest.raises(CommitConflictError, match="give the option txnAppId"):
        unknown.batch(0, "a")
    assert values(topic) == []
    Query(topic.url, query_id="", txnAppId="clicks").batch(0, "a")
    assert values(topic) == ["a"]


@pytest.mark.parametrize("landed", [True, False])
def test_after_an_unknown_outcome_the_batch_is_appended_once(
    topic: distlog.Topic, monkeypatch: pytest.MonkeyPatch, landed: bool
) -> None:
    query, real = Query(topic.url), Storage.put_if_absent

    def no_answer(storage: Storage, name: str, data: bytes, **options: Any) -> bytes:
        if landed:
            real(storage, name, data, **options)
        raise CommitStateUnknownError("no answer")

    messages = query.write(0, ["a"])
    with monkeypatch.context() as broken:
        broken.setattr(Storage, "put_if_absent", no_answer)
        with pytest.raises(CommitStateUnknownError):
            query.commit(0, messages)
    Query(topic.url).batch(0, "a")
    assert values(topic) == ["a"]
    assert topic.refresh().version == 1


def test_concurrent_appends_come_first(topic: distlog.Topic) -> None:
    query = Query(topic.url)
    messages = query.write(0, ["a"])
    topic.append([{"value": b"before"}])
    committing = writer(topic.url)
    topic.append([{"value": b"while"}])
    committing.commit(messages, 0)
    assert values(topic) == ["before", "while", "a"]


def test_a_stream_and_a_direct_writer_keep_their_order(topic: distlog.Topic) -> None:
    query = Query(topic.url)
    with topic.writer(linger_ms=0) as live:
        for number in range(20):
            live.append(f"live {number}".encode())
            live.flush()
            query.batch(number, f"batch {number}")
    appended = values(topic)
    assert appended == [f"{name} {number}" for number in range(20) for name in ("live", "batch")]
    assert segments_of(topic) < 16
    assert topic.verify().ok


def test_a_concurrently_compacted_topic_refuses_null_keys(topic: distlog.Topic) -> None:
    query = Query(topic.url)
    messages = query.write(0, ["a"])
    topic.alter_config({"cleanup.policy": "compact"})
    with pytest.raises(CommitConflictError, match="append again, with a key in each record"):
        query.commit(0, messages)
    with pytest.raises(InvalidRecordError, match="needs a key"):
        query.write(0, ["a"])
    assert topic.refresh().end_offsets() == {0: 0}


def test_a_concurrently_dropped_topic_gets_nothing(topic: distlog.Topic) -> None:
    query = Query(topic.url)
    messages = query.write(0, ["a"])
    topic.drop()
    with pytest.raises(TopicNotFoundError, match="there is no topic here"):
        query.write(0, ["a"])
    with pytest.raises(TopicNotFoundError, match="there is no topic here"):
        query.commit(0, messages)
    recreated = distlog.create(topic.url)
    with pytest.raises(CommitConflictError, match="the topic was dropped"):
        query.commit(0, messages)
    assert values(recreated) == []
    query.batch(0, "a")
    assert values(recreated) == ["a"]


def test_a_folder_recreated_between_two_batches_is_another_topic(topic: distlog.Topic) -> None:
    query = Query(topic.url)
    for number in range(3):
        query.batch(number, "old")
    shutil.rmtree(topic.url)
    for appends in (1, 5):
        recreated = distlog.create(topic.url)
        for _ in range(appends):
            recreated.append([{"value": b"x"}])
        query.batch(3, "new")
        assert values(recreated) == ["x"] * appends + ["new"]
        assert recreated.verify().ok
        shutil.rmtree(topic.url)


def test_small_segments_are_merged_unless_disabled(topic: distlog.Topic) -> None:
    query = Query(topic.url, mergeSegments="false")
    for number in range(9):
        query.batch(number, "a")
    assert segments_of(topic) == 9
    Query(topic.url).batch(9, "b")
    assert segments_of(topic) == 1
    assert values(topic) == ["a"] * 9 + ["b"]
    assert topic.refresh().end_offsets() == {0: 10}


@pytest.mark.parametrize("error", [CommitConflictError("lost"), OSError("disk"), CommitStateUnknownError("?")])
def test_a_merge_that_fails_does_not_fail_the_query(
    topic: distlog.Topic,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise error

    query = Query(topic.url)
    with monkeypatch.context() as broken:
        broken.setattr("distlog.core.maintain.merge.merge_groups", fail)
        for number in range(9):
            query.batch(number, "a")
    assert caplog.text.count("small segments of clicks were not merged") == 2
    assert (segments_of(topic), len(values(topic))) == (9, 9)
    query.batch(9, "a")
    assert (segments_of(topic), len(values(topic))) == (1, 10)


def test_an_unreadable_segment_is_logged_and_the_query_continues(
    topic: distlog.Topic, caplog: pytest.LogCaptureFixture
) -> None:
    query = Query(topic.url)
    query.batch(0, "a")
    (log,) = Path(topic.url).glob("*/*.log")
    log.write_bytes(log.read_bytes()[:-1] + b"!")
    for number in range(1, 9):
        query.batch(number, "a")
    assert "cannot merge offsets 0 to 8 of partition 0" in caplog.text
    assert topic.refresh().end_offsets() == {0: 9}


def test_concurrent_merges_lose_nothing(
    topic: distlog.Topic, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    query, merging = Query(topic.url), threading.Lock()
    from distlog.core.maintain import merge as merging_module

    real: Callable[..., Any] = merging_module.do_job

    def late(*arguments: Any, **options: Any) -> Any:
        if merging.acquire(blocking=False):
            distlog.open(topic.url).compact()
            merging.release()
        return real(*arguments, **options)

    monkeypatch.setattr(merging_module, "do_job", late)
    for number in range(12):
        query.batch(number, f"{number}")
    assert values(topic) == [f"{number}" for number in range(12)]
    assert "not merged" not in caplog.text
    assert topic.verify().ok
