"""Batches of an application: each is appended once, from any number of sends and senders."""

from __future__ import annotations

import dataclasses
import uuid
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from addresses import Address
from commits import put_commit
from topics import TINY, contents, files, topic_on, values
from uncommitted import committed, written
from uncommitted import local as local
from uncommitted import storage as storage

import distlog
from distlog import StorageFullError
from distlog.core.commits.actions import SetTransaction
from distlog.core.commits.deduplication import TAIL_LIMIT
from distlog.core.commits.snapshot import Snapshot
from distlog.core.errors import (
    CommitConflictError,
    InvalidRecordError,
)
from distlog.core.storage.storage import Storage
from distlog.core.topic import Topic
from distlog.core.write.append import AppendResult, commit_append


def test_a_replay_returns_the_first_result_and_appends_nothing(storage: Storage) -> None:
    topic = topic_on(storage, 2, TINY, checkpoint_commits=4)
    first = topic.append(values(range(30), partition=1), app_id="app", batch_id=7)
    for _ in range(6):
        topic.append(values([0], partition=1))
    for replayer in (topic, topic_on(storage)):
        assert replayer.append(values(range(99)), app_id="app", batch_id=7) == dataclasses.replace(
            first, replayed=True
        )
    assert topic.version == 7
    assert topic.end_offsets() == {0: 0, 1: 36}


def test_batches_differ_by_application_and_type(local: Storage) -> None:
    topic = topic_on(local, 1)
    names = [("app", 7), ("app", "7"), ("other", 7), ("app", 0), ("é", "\n")]
    results = [
        topic.append(values([number]), app_id=app, batch_id=batch) for number, (app, batch) in enumerate(names)
    ]
    assert [result.offsets for result in results] == [{0: (number, number + 1)} for number in range(5)]
    again = [topic_on(local).append(values([9]), app_id=app, batch_id=batch) for app, batch in names]
    assert again == [dataclasses.replace(result, replayed=True) for result in results]


def test_in_order_replays_return_the_newest_batch_and_skip_older_ones(local: Storage) -> None:
    """From a checkpoint too, with and without `in_order` in the replay."""
    topic = topic_on(local, 1, checkpoint_commits=10)

    def append(on: Topic, batch_id: int, *, in_order: bool = True) -> AppendResult:
        result, after = commit_append(
            on.handle,
            on.snapshot,
            written(on, *values([batch_id])),
            read_version=on.version,
            app_id="app",
            batch_id=batch_id,
            in_order=in_order,
        )
        on.advance(after)
        return result

    results = [append(topic, batch_id) for batch_id in range(30)]
    assert len(topic.snapshot.transactions) == 10
    for on in (topic, topic_on(local)):
        for in_order in (True, False):
            assert append(on, 29, in_order=in_order) == dataclasses.replace(results[29], replayed=True)
            assert append(on, 5, in_order=in_order) == AppendResult(None, {}, replayed=True)
    assert topic_on(local).version == 30
    assert append(topic, 30).offsets == {0: (30, 31)}


def test_in_order_a_batch_below_the_newest_was_committed_before(local: Storage) -> None:
    topic = topic_on(local, 1)
    first = topic.append(values([1]), app_id="app", batch_id=3)
    topic.append(values([2]), app_id="app", batch_id=7)
    segments = written(topic, *values([3]))

    def append(batch_id: int | str, app_id: str = "app") -> AppendResult:
        result, after = commit_append(
            topic.handle,
            topic.log.load(),
            segments,
            read_version=0,
            app_id=app_id,
            batch_id=batch_id,
            in_order=True,
        )
        topic.advance(after)
        return result

    assert append(3) == dataclasses.replace(first, replayed=True)
    assert append(5) == AppendResult(None, {}, replayed=True)
    assert topic.version == 2
    assert append(8).version == 3
    segments = written(topic, *values([4]))
    assert append(0, "another").version == 4
    segments = written(topic, *values([5]))
    assert append("a word").version == 5


def test_keyless_records_do_not_get_into_a_concurrently_compacted_topic(storage: Storage) -> None:
    """A transaction accepts the records, the topic gets `cleanup.policy=compact`, and the commit is refused."""
    topic, other = topic_on(storage, 1), topic_on(storage)
    transaction = topic.transaction()
    transaction.append(values([1]))
    other.alter_config({"cleanup.policy": "compact"})
    with pytest.raises(CommitConflictError, match="append again, with a key in each record"):
        transaction.commit()
    assert other.refresh().end_offsets() == {0: 0}
    with pytest.raises(InvalidRecordError, match="needs a key"):
        topic.append(values([1]))
    assert topic.append(values([1], key=b"k")).offsets == {0: (0, 1)}


def test_concurrent_writers_of_one_batch_get_one_result(storage: Storage) -> None:
    first, second = topic_on(storage, 1), topic_on(storage)
    mine, theirs = written(first, *values([1])), written(second, *values([2]))
    won = committed(second, theirs, app_id="app", batch_id=1)
    assert committed(first, mine, app_id="app", batch_id=1) == dataclasses.replace(won, replayed=True)
    assert first.version == 1
    assert contents(first) == {0: [b"v2"]}


def test_an_empty_append_commits_nothing_but_its_batch(local: Storage) -> None:
    topic = topic_on(local, 1)
    assert topic.append([]) == topic.append(pa.table({"value": pa.array([], pa.binary())})) == AppendResult(None)
    assert topic.version == 0
    assert topic.append([], app_id="app", batch_id=1) == AppendResult(1)
    assert topic.append(values([1]), app_id="app", batch_id=1) == AppendResult(1, replayed=True)
    assert contents(topic) == {0: []}


@pytest.mark.parametrize(
    ("app_id", "batch_id"),
    [
        ("app", None),
        (None, 1),
        ("", 1),
        (5, 1),
        ("x" * 1001, 1),
        ("\ud800", 1),
        ("app", -1),
        ("app", 2**63),
        ("app", ""),
        ("app", 1.0),
        ("app", True),
    ],
)
def test_a_batch_that_no_commit_can_hold_is_refused_before_anything_is_written(
    app_id: Any, batch_id: Any, local: Storage
) -> None:
    topic = topic_on(local, 1)
    with pytest.raises(InvalidRecordError, match="give app_id and batch_id together"):
        topic.append(values([1]), app_id=app_id, batch_id=batch_id)
    with pytest.raises(InvalidRecordError, match="give app_id and batch_id together"):
        commit_append(topic.handle, topic.snapshot, [], read_version=0, app_id=app_id, batch_id=batch_id)
    assert files(local) == set()


@pytest.mark.parametrize("app_id", ["producer:billing", "leader:0", "producer:"])
def test_an_application_cannot_use_the_id_of_a_producer_or_leader(app_id: str, local: Storage) -> None:
    topic = topic_on(local, 1)
    for append in (topic.append, lambda rows, **ids: topic.transaction(**ids)):
        with pytest.raises(InvalidRecordError, match=f"are reserved: give another app_id.*{app_id}"):
            append(values([1]), app_id=app_id, batch_id=1 << 62)
    assert files(local) == set()
    assert topic.append(values([1]), app_id=f"my-{app_id}", batch_id=1).version == 1


def test_a_batch_of_another_application_does_not_fence_a_producer(local: Storage) -> None:
    topic = topic_on(local, 1)
    with topic.producer("billing") as producer:
        with pytest.raises(InvalidRecordError, match="are reserved"):
            topic.append(values([1]), app_id="producer:billing", batch_id=1 << 62)
        producer.append(b"still mine")
    assert contents(topic.refresh()) == {0: [b"still mine"]}


def test_a_batch_id_may_be_an_integer_of_numpy(local: Storage) -> None:
    topic = topic_on(local, 1)
    ids: list[Any] = [5, np.int64(5), *np.array([5, 6])]
    versions = [topic.append(values([1]), app_id="load", batch_id=batch_id).version for batch_id in ids]
    assert versions == [1, 1, 1, 2]


RECORD = [{"value": "v"}]


@pytest.fixture
def full(memory_url: Address) -> Topic:
    topic = distlog.create(f"{memory_url.url}/clicks", 1, config={"batch.ids.bytes": 2000})
    topic.append(RECORD, app_id="job", batch_id="the first")

    def many(_: Snapshot) -> list[SetTransaction]:
        return [SetTransaction("job", uuid.uuid4().hex, {}) for _ in range(TAIL_LIMIT + 1)]

    put_commit(topic.log, topic.refresh().snapshot, "append", many)
    return topic


def test_a_new_batch_id_above_the_bound_is_refused_before_anything_is_written(full: Topic) -> None:
    old_ends, version = full.end_offsets(), full.refresh().version
    puts = full.storage.counters.puts
    with pytest.raises(StorageFullError, match=r"batch\.ids\.bytes"):
        full.append(RECORD, app_id="job", batch_id="another")
    assert (full.storage.counters.puts, full.refresh().version, full.end_offsets()) == (puts, version, old_ends)


def test_a_replay_is_recognised_above_the_bound(full: Topic) -> None:
    again = full.append(RECORD, app_id="job", batch_id="the first")
    assert (again.replayed, again.offsets) == (True, {0: (0, 1)})


def test_appends_without_an_id_and_batches_in_order_go_on_above_the_bound(full: Topic) -> None:
    full.append(RECORD)
    _, snapshot = put_commit(
        full.log, full.refresh().snapshot, "append", lambda _: [SetTransaction("stream", 7, {}, in_order=True)]
    )
    assert snapshot.transactions.get("stream", 7)


def test_a_raised_bound_accepts_new_ids(full: Topic) -> None:
    full.alter_config({"batch.ids.bytes": 1 << 20})
    assert not full.append(RECORD, app_id="job", batch_id="another").replayed


def test_the_bound_is_reached_while_an_append_waits_for_its_commit(memory_url: Address) -> None:
    writer = distlog.create(f"{memory_url.url}/clicks", 1, config={"batch.ids.bytes": 0})
    transaction = writer.transaction("job", "late")
    transaction.append(RECORD)

    def many(_: Snapshot) -> list[SetTransaction]:
        return [SetTransaction("job", uuid.uuid4().hex, {}) for _ in range(TAIL_LIMIT + 1)]

    other = distlog.open(writer.url)
    put_commit(other.log, other.snapshot, "append", many)
    with pytest.raises(StorageFullError, match="nothing was appended"):
        transaction.commit()
    assert writer.refresh().end_offsets() == {0: 0}
