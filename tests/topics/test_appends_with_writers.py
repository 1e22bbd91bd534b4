"""Bulk appends, transactions, settings and drops, with concurrent direct appends."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from partition_logs import Process, append, new_topic, sealed

from distlog.core import opening as open_topic
from distlog.core.errors import (
    InvalidRecordError,
    StorageError,
    TopicNotFoundError,
    TransactionTooOldError,
)
from distlog.core.log.active_partition import ActiveSeals
from distlog.core.write.append import commit_append


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return new_topic(tmp_path / "events", partitions=3)


def rows(*values: bytes, partition: int = 0) -> list[dict[str, object]]:
    return [{"value": value, "partition": partition} for value in values]


def test_a_bulk_append_follows_direct_appends_and_writers_continue_after_it(folder: Path) -> None:
    process, other = Process(folder), Process(folder)
    append(process[0], b"a")
    append(other[0], b"b")
    result = process.topic().append(rows(b"c", b"d"))
    assert result.offsets == {0: (2, 4)}
    assert append(other[0], b"e") == (4, 5)
    assert append(process[0], b"f") == (5, 6)
    assert process.values()[0] == [b"a", b"b", b"c", b"d", b"e", b"f"]
    assert process.anomalies() == ()


def test_an_append_to_many_partitions_and_the_seals_that_it_needs_are_one_commit(folder: Path) -> None:
    process = Process(folder)
    for partition in range(3):
        append(process[partition], b"a")
    topic = process.topic()
    topic.append([*rows(b"b", partition=2), *rows(b"b")])
    commit = topic.log.history(1)[0]
    assert (commit.operation, commit.version) == ("append", 4)
    kinds = [(type(action).__name__, getattr(action, "partition", None)) for action in commit.actions]
    assert kinds == [("Seal", 0), ("Add", None), ("Seal", 2), ("Add", None), ("Add", None), ("Add", None)]
    assert [bool(state.active) for state in topic.snapshot.partitions] == [False, True, False]


def test_a_transaction_follows_the_direct_appends_made_while_it_was_open(folder: Path) -> None:
    process = Process(folder)
    with process.topic().transaction() as transaction:
        transaction.append(rows(b"b"))
        append(process[0], b"a")
        transaction.append(rows(b"c", partition=1))
    assert transaction.result.offsets == {0: (1, 2), 1: (0, 1)}
    assert process.values() == {0: [b"a", b"b"], 1: [b"c"], 2: []}


def test_an_empty_append_seals_nothing(folder: Path) -> None:
    process = Process(folder)
    append(process[0], b"a")
    process.topic().append([])
    assert process.head().partitions[0].active


def test_an_append_with_too_old_files_leaves_the_active_segment(folder: Path) -> None:
    process = Process(folder)
    slow = process.topic()
    appender = slow.appender()
    appender.append(rows(b"late"))
    segments = appender.close()
    append(process[0], b"a")
    process.topic().alter_config({"file.delete.delay.ms": 0})
    append(process[0], b"b")
    process.topic().vacuum()
    with pytest.raises(TransactionTooOldError):
        commit_append(slow.handle, slow.snapshot, segments, read_version=slow.version)
    assert append(process[0], b"c") == (2, 3)
    assert sealed(process.head()) == [(0, 1)]


def test_without_an_active_segment_an_append_makes_no_more_requests_than_its_commit_needs(folder: Path) -> None:
    process = Process(folder)
    append(process[1], b"a")
    topic = process.topic()
    appender = topic.appender()
    appender.append(rows(b"a"))
    segments, counters = appender.close(), topic.storage.counters
    old_counters = counters.gets, counters.puts, counters.lists
    commit_append(topic.handle, topic.snapshot, segments, read_version=topic.version)
    assert (counters.gets - old_counters[0], counters.puts - old_counters[1], counters.lists - old_counters[2]) == (
        0,
        1,
        0,
    )


def test_a_bulk_append_does_not_wait_forever_for_a_lock(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process, other = Process(folder), Process(folder)
    append(process[0], b"a")
    topic = process.topic()
    monkeypatch.setattr("distlog.core.write.append.ActiveSeals", partial(ActiveSeals, timeout_s=0))
    with other.holding(0), pytest.raises(StorageError, match="holds the lock"):
        topic.append(rows(b"b"))
    assert append(process[0], b"c") == (1, 2)


def test_writers_of_a_dropped_topic_fail_and_keep_earlier_records(folder: Path) -> None:
    process, other = Process(folder), Process(folder)
    append(process[0], b"a")
    append(other[0], b"b")
    reader = process.topic()
    process.topic().drop()
    for appender in (process, other):
        for partition in (0, 1):
            with pytest.raises(TopicNotFoundError, match="dropped"):
                append(appender[partition], b"c")
    assert reader.scan(columns=["value"]).to_table()["value"].to_pylist() == [b"a", b"b"]
    kinds = [type(action).__name__ for action in process.handle.log.history(1)[0].actions]
    assert kinds == ["Seal", "Add", "Drop"]


def test_writers_of_a_topic_that_was_dropped_and_created_again_are_refused(folder: Path) -> None:
    process, other = Process(folder), Process(folder)
    append(process[0], b"old")
    append(other[0], b"old")
    process.topic().drop()
    created = open_topic.create(str(folder), 3)
    new = Process(folder)
    assert append(new[0], b"new") == (0, 1)
    for appender in (process, other):
        changes = (
            partial(append, appender[0], b"c"),
            partial(append, appender[1], b"c"),
            appender[0].flush,
            appender[0].roll,
        )
        for change in changes:
            with pytest.raises(TopicNotFoundError, match="open it again"):
                change()
    assert append(new[0], b"newer") == (1, 2)
    assert new.values() == {0: [b"new", b"newer"], 1: [], 2: []}
    assert new.head().topic_id == created.snapshot.topic_id
    assert new.anomalies() == ()


def test_the_next_append_of_every_process_uses_changed_settings(folder: Path) -> None:
    process, other = Process(folder), Process(folder)
    append(process[0], b"a")
    append(other[0], b"b")
    config = process.topic().alter_config({"max.message.bytes": 100, "message.timestamp.type": "LogAppendTime"})
    for appender in (other, process):
        append(appender[0], b"c")
        assert appender.snapshots.snapshot.config == config
        with pytest.raises(InvalidRecordError, match=r"max\.message\.bytes"):
            append(appender[0], b"c" * 100)
    assert process.values()[0] == [b"a", b"b", b"c", b"c"]


def test_a_smaller_segment_size_rolls_the_next_append(folder: Path) -> None:
    process, other = Process(folder), Process(folder)
    append(other[0], b"a")
    append(process[0], b"a")
    process.topic().alter_config({"internal.segment.bytes": 200})
    for _ in range(4):
        append(other[0], b"b" * 20)
    assert sealed(process.head()) == [(0, 2), (2, 4)]
    assert process.anomalies() == ()


def test_another_index_interval_holds_from_the_next_append_on(folder: Path) -> None:
    process, other = Process(folder), Process(folder)
    for _ in range(5):
        append(other[0], b"a")
    process.topic().alter_config({"index.interval.bytes": 1 << 20})
    for _ in range(5):
        append(other[0], b"b")
    other[0].roll()
    old_segment, after = process.head().partitions[0].segments
    assert (old_segment.offset_index_bytes, after.offset_index_bytes) == (4 * 8, 0)
    assert process.anomalies() == ()
