"""Transactions: several appends and one commit, or none, after any failure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from topics import TINY, contents, files, stored, topic_on, values

from distlog.core.errors import DistlogError, InvalidRecordError
from distlog.core.storage.storage import Storage
from distlog.core.topic import Topic
from distlog.core.write.append import AppendResult


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path / "topic"))


@pytest.fixture
def topic(storage: Storage) -> Topic:
    return topic_on(storage, 2, TINY)


def test_several_appends_become_visible_together(topic: Topic, storage: Storage) -> None:
    reader = topic_on(storage)
    with topic.transaction() as transaction:
        assert transaction.append(values(range(30)), partition=1) == 30
        assert transaction.append(values(range(30, 40), partition=0)) == 10
        assert transaction.append(iter(values(range(40, 45), partition=1))) == 5
        assert transaction.result == AppendResult(None)
        assert reader.refresh().version == 0
    assert transaction.result == AppendResult(1, {0: (0, 10), 1: (0, 35)})
    assert contents(reader.refresh()) == contents(topic)
    assert contents(topic) == {
        0: [b"v%d" % number for number in range(30, 40)],
        1: [b"v%d" % number for number in (*range(30), *range(40, 45))],
    }


def test_a_block_that_raises_appends_nothing(topic: Topic) -> None:
    def change_my_mind() -> None:
        with topic.transaction() as transaction:
            transaction.append(values(range(30)))
            raise KeyError("changed my mind")

    with pytest.raises(KeyError):
        change_my_mind()
    assert topic.refresh().version == 0
    assert topic.append(values([1]), 0).offsets == {0: (0, 1)}


def test_a_transaction_in_which_an_append_failed_cannot_be_committed(topic: Topic) -> None:
    transaction = topic.transaction()

    def go_on_after_an_error() -> None:
        with transaction:
            transaction.append(values([1]))
            with pytest.raises(InvalidRecordError):
                transaction.append([*values(range(70_000)), {"value": 3}])
            with pytest.raises(InvalidRecordError, match="row=70000"):
                transaction.append(values([2]))

    for attempt in (go_on_after_an_error, transaction.commit):
        with pytest.raises(InvalidRecordError, match="row=70000"):
            attempt()
    assert topic.refresh().version == 0


def test_a_failed_transaction_repeats_its_error_without_a_memory_leak(topic: Topic) -> None:
    transaction = topic.transaction()
    with pytest.raises(InvalidRecordError) as first:
        transaction.append([{"value": 3}])
    lengths = []
    for _ in range(4):
        with pytest.raises(InvalidRecordError) as raised:
            transaction.commit()
        assert raised.value is first.value
        lengths.append(len(raised.traceback))
    assert lengths == lengths[:1] * 4


def test_a_failed_append_closes_its_files_at_once(storage: Storage) -> None:
    topic = topic_on(Storage(f"{storage.url}-large"), 1)
    transaction = topic.transaction()
    rows = [{"value": b"x" * 1000_000}] * 20
    assert transaction.append(rows) == 20
    assert len(files(topic.storage)) == 1
    with pytest.raises(InvalidRecordError):
        transaction.append([{"value": 3}])
    assert files(topic.storage) == set()


def test_an_abort_ends_a_transaction_quietly(topic: Topic) -> None:
    with topic.transaction() as transaction:
        transaction.append(values([1]))
        transaction.abort()
    with topic.transaction() as failed:
        with pytest.raises(InvalidRecordError):
            failed.append([{"value": 3}])
        failed.abort()
        failed.abort()
    for ended in (transaction, failed):
        for call in (ended.commit, lambda ended=ended: ended.append([])):
            with pytest.raises(InvalidRecordError, match="the transaction has ended: start another one"):
                call()
    assert topic.refresh().version == 0


def test_a_commit_ends_a_transaction_before_its_block_does(topic: Topic) -> None:
    with topic.transaction() as transaction:
        transaction.append(values([1]), 0)
        assert transaction.commit() == AppendResult(1, {0: (0, 1)})
        with pytest.raises(InvalidRecordError, match="has ended"):
            transaction.append(values([2]))
        with pytest.raises(InvalidRecordError, match="has ended"):
            transaction.commit()
    assert transaction.result == AppendResult(1, {0: (0, 1)})
    assert topic.refresh().version == 1


def test_a_transaction_without_a_block_waits_for_its_commit(topic: Topic) -> None:
    first, second = topic.transaction(), topic.transaction()
    first.append(values([1]), 0)
    second.append(values([2]), 0)
    topic.append(values([0]), 0)
    assert second.commit().offsets == {0: (1, 2)}
    assert first.commit().offsets == {0: (2, 3)}
    assert contents(topic)[0] == [b"v0", b"v2", b"v1"]


def test_an_empty_transaction_commits_nothing(topic: Topic) -> None:
    with topic.transaction() as transaction:
        pass
    assert (transaction.result, topic.refresh().version) == (AppendResult(None), 0)


def test_the_rows_of_a_replay_are_not_read(topic: Topic, storage: Storage) -> None:
    def unread() -> Iterator[dict[str, Any]]:
        raise AssertionError("a replay reads its input")
        yield {}

    with topic.transaction("app", 1) as first:
        first.append(values([1]), 0)
    names = files(storage)
    with topic_on(storage).transaction("app", 1) as again:
        assert again.append(unread()) == 0
    assert again.result == dataclasses.replace(first.result, replayed=True)
    assert files(storage) == names


def test_overlapping_transactions_commit_a_batch_once(topic: Topic, storage: Storage) -> None:
    transactions = [topic_on(storage).transaction("app", 1) for _ in range(3)]
    for number, transaction in enumerate(transactions):
        transaction.append(values([number]), 0)
    results = [transaction.commit() for transaction in transactions]
    assert [result.replayed for result in results] == [False, True, True]
    assert {(result.version, result.offsets[0]) for result in results} == {(1, (0, 1))}
    assert contents(topic.refresh())[0] == [b"v0"]


def test_appends_of_one_transaction_may_differ_in_columns_and_types(topic: Topic) -> None:
    with topic.transaction() as transaction:
        transaction.append([{"value": "a", "headers": [("h", b"1")]}], 0)
        transaction.append([{"value": "b", "key": None}], 0)
        transaction.append(pa.table({"value": pa.array(["c"], pa.large_string())}), 0)
        transaction.append(pa.table({"value": pa.array([b"d"], pa.binary_view()), "key": pa.nulls(1)}), 0)
        transaction.append([{"value": None, "key": b"k", "headers": []}], 0)
    rows = stored(topic.scan([0]).to_table())
    assert [row["value"] for row in rows] == [b"a", b"b", b"c", b"d", None]
    assert [row["headers"] for row in rows] == [[{"key": "h", "value": b"1"}], [], [], [], []]
    assert rows[4]["key"] == b"k"


def test_a_transaction_of_a_dropped_topic_fails(topic: Topic, storage: Storage) -> None:
    transaction = topic.transaction()
    transaction.append(values([1]))
    topic_on(storage).drop()
    with pytest.raises(DistlogError, match="the topic was dropped"):
        transaction.commit()
    with pytest.raises(DistlogError, match="the topic was dropped"):
        topic.transaction()
