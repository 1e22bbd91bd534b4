"""The sink without Spark: planner, tasks and commit, and attempts that fail or linger."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from addresses import S3Server
from commits import put_commit
from fault_proxy import LOSE_REPLY, FaultProxy
from kafka.partitioner.default import murmur2
from planned_writes import KEY_VALUE, commit, of_micro_batch, sent, values, write, writer
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StructType

import distlog
from distlog.core import paths
from distlog.core.commits import checkpoint
from distlog.core.commits.actions import SetConfig, SetLogHorizon, SetTransaction, SetVacuumHorizon
from distlog.core.commits.commit_log import CommitLog
from distlog.core.commits.deduplication import TAIL_LIMIT
from distlog.core.commits.snapshot_loader import CommitFiles
from distlog.core.errors import (
    CommitConflictError,
    CommitStateUnknownError,
    CorruptMetadataError,
    InvalidConfigError,
    StorageFullError,
)
from distlog.core.storage.storage import Storage
from distlog.spark.data_source import DistlogDataSource
from distlog.spark.sink import WrittenSegments, is_committed


def test_rows_keep_the_order_of_the_tasks_and_of_their_rows(tmp_path: Path) -> None:
    topic = distlog.create(str(tmp_path / "clicks"))
    planned = writer(topic.url)
    late, early = write(planned, "c", "d"), write(planned, "a", "b")
    commit(planned, early, late)
    assert values(topic) == ["a", "b", "c", "d"]


def test_a_batch_id_without_space_is_refused_before_any_task(topic: distlog.Topic) -> None:
    topic.alter_config({"batch.ids.bytes": 0})
    many = [SetTransaction("job", number, {}) for number in range(TAIL_LIMIT + 1)]
    put_commit(topic.log, topic.refresh().snapshot, "append", lambda _: many)
    with pytest.raises(StorageFullError, match=r"batch\.ids\.bytes"):
        writer(topic.url, txnAppId="job", txnVersion="a new one")
    writer(topic.url, txnAppId="job", txnVersion="7")
    writer(topic.url)


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


def test_only_the_attempt_that_spark_selects_is_committed(topic: distlog.Topic) -> None:
    planned = writer(topic.url)
    write(planned, "a")
    selected = write(planned, "a")
    commit(planned, selected)
    write(planned, "a")
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


def test_a_missing_task_message_is_refused(topic: distlog.Topic) -> None:
    planned = writer(topic.url)
    with pytest.raises(CommitConflictError, match="nothing was committed"):
        commit(planned, write(planned, "a"), None)
    assert values(topic) == []


def test_an_empty_write_commits_nothing(topic: distlog.Topic) -> None:
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
    assert write(again, "a") == WrittenSegments()
    commit(again, write(again, "a"))
    following = writer(topic.url, txnAppId="job", txnVersion="8")
    commit(following, write(following, "b"))
    assert values(topic) == ["a", "b"]


def test_a_repeated_commit_makes_the_first_durable(topic: distlog.Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    transaction = {"txnAppId": "job", "txnVersion": "7"}
    first = writer(topic.url, **transaction)
    commit(first, write(first, "a"))
    again, synced = writer(topic.url, **transaction), list[str]()
    monkeypatch.setattr(Storage, "sync", lambda self, folder: synced.append(folder))
    commit(again, write(again, "a"))
    assert synced == [paths.COMMITS_DIR]


def test_the_second_writer_of_a_transaction_yields(topic: distlog.Topic) -> None:
    first, other = (writer(topic.url, txnAppId="job", txnVersion="7") for _ in range(2))
    messages = [write(first, "a"), write(other, "a")]
    commit(first, messages[0])
    commit(other, messages[1])
    assert values(topic) == ["a"]


def test_a_concurrently_recreated_topic_gets_nothing(topic: distlog.Topic) -> None:
    planned = writer(topic.url)
    message = write(planned, "a")
    topic.drop()
    new_topic = distlog.create(topic.url)
    with pytest.raises(CommitConflictError, match="created again"):
        commit(planned, message)
    assert values(new_topic) == []


def test_a_commit_has_the_id_of_its_write(topic: distlog.Topic) -> None:
    for value in "ab":
        planned = writer(topic.url)
        commit(planned, write(planned, value))
    first, second = CommitFiles(topic.storage).read_existing(1), CommitFiles(topic.storage).read_existing(2)
    assert first.write_id
    assert second.write_id not in (None, first.write_id)
    assert first.writer == second.writer
    assert first.write_id not in first.writer


def test_an_app_id_of_the_library_is_refused(topic: distlog.Topic) -> None:
    name = "distlog 1.0 host write=mine"
    log = CommitLog(topic.storage, clock=lambda: 0, random=random.Random(0), writer=name)
    put_commit(log, topic.snapshot, "config", lambda head: [SetConfig({})])
    assert not is_committed(topic.storage, "mine", 0, newest=1)


@pytest.mark.parametrize("read", [2, 5])
def test_the_outcome_is_unknown_after_vacuum_deleted_possible_commits(topic: distlog.Topic, read: int) -> None:
    for number in range(6):
        topic.append([{"value": b"%d" % number}])
    put_commit(topic.handle.log, topic.snapshot, "gc", lambda _: [SetVacuumHorizon(4), SetLogHorizon(4)])
    checkpoint.write(topic.storage, topic.handle.log.load(4))
    topic.storage.delete([paths.commit_file(version) for version in range(4)])
    if read == 5:
        assert not is_committed(topic.storage, "mine", read, newest=7)
        return
    with pytest.raises(CommitStateUnknownError, match=r"longer than commits are kept.*log_floor=4"):
        is_committed(topic.storage, "mine", read, newest=7)
    topic.storage.delete([paths.commit_file(6)])
    with pytest.raises(CorruptMetadataError, match="restore the file from a copy"):
        is_committed(topic.storage, "mine", 5, newest=7)


def test_a_commit_with_a_lost_response_is_one_commit(s3_server: S3Server) -> None:
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


def test_writers_in_other_processes_may_commit_concurrently(topic: distlog.Topic) -> None:
    planned = [writer(topic.url) for _ in range(6)]
    messages = [write(write_plan, f"{number}", f"{number}") for number, write_plan in enumerate(planned)]
    threads = [threading.Thread(target=commit, args=pair) for pair in zip(planned, messages, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    all_values = values(topic)
    assert sorted(all_values) == sorted(2 * [str(number) for number in range(6)])
    assert all_values[::2] == all_values[1::2]


def test_types_of_spark_are_accepted(topic: distlog.Topic) -> None:
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
    table = topic.refresh().scan().to_table()
    assert table.num_rows == len(keys)
    for key, partition in zip(table["key"].to_pylist(), table["partition"].to_pylist(), strict=True):
        assert partition == (murmur2(key) & 0x7FFFFFFF) % 7


def save(topic: distlog.Topic, batch: int, *values: str, app_id: str = "app", times: int = 1) -> None:
    """Write a micro-batch; Spark requests its commit `times` times."""
    planned = writer(topic.url, txnAppId=app_id, txnVersion=str(batch))
    message = of_micro_batch(write(planned, *values), batch)
    for _ in range(times):
        commit(planned, message)


def test_a_micro_batch_without_a_name_is_refused(topic: distlog.Topic) -> None:
    planned = writer(topic.url)
    with pytest.raises(InvalidConfigError, match=r'app_id="NAME", batch_id=batch_id.*"txnVersion", batch_id'):
        commit(planned, of_micro_batch(write(planned, "a")))
    assert topic.refresh().version == 0


def test_a_micro_batch_that_is_repeated_is_written_once(topic: distlog.Topic) -> None:
    for _ in range(2):
        save(topic, 3, "a", times=2)
    save(topic, 4, "b")
    save(topic, 4, "c", app_id="second")
    assert sorted(values(topic)) == ["a", "b", "c"]


def test_only_the_newest_batches_of_a_query_are_remembered(topic: distlog.Topic) -> None:
    """Ordered numbers use no space of batch.ids.bytes, and a lower one is skipped."""
    for number in range(20):
        save(topic, number, "a")
    assert len(topic.refresh().snapshot.transactions) <= 10
    save(topic, 3, "again")
    assert values(topic) == ["a"] * 20


def test_micro_batches_merge_small_segments_and_writes_on_request(topic: distlog.Topic) -> None:
    topic = distlog.create(topic.url + "-of-one")
    for _ in range(9):
        planned = writer(topic.url)
        commit(planned, write(planned, "a"))
    assert topic.refresh().segments().num_rows == 9
    planned = writer(topic.url, mergeSegments="true")
    commit(planned, write(planned, "a"))
    assert topic.refresh().segments().num_rows == 1
    for number in range(8):
        save(topic, number, "a")
    assert topic.refresh().segments().num_rows == 2
    assert values(topic) == 18 * ["a"]
