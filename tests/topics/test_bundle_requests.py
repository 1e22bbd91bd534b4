"""The number of requests of an append: one PUT a task and one commit, for any number of partitions."""

from __future__ import annotations

from random import Random

import pytest
from addresses import Address
from bundled import bundles, rows, segments
from topics import NOW, contents, topic_on

from distlog.core.config import TopicConfig
from distlog.core.storage.storage import Storage, StorageCounters
from distlog.core.topic import Topic
from distlog.core.write.append import Appender, commit_append

TASKS = 4


def requests(storage: Storage) -> tuple[int, int, int, int]:
    counters: StorageCounters = storage.counters
    return counters.gets, counters.puts, counters.lists, counters.deletes


def since(storage: Storage, old_requests: tuple[int, int, int, int]) -> tuple[int, ...]:
    return tuple(now - then for now, then in zip(requests(storage), old_requests, strict=True))


def task(topic: Topic) -> Appender:
    """Return the appender of one task of a write, which loads nothing."""
    return Appender(
        topic.storage,
        topic.name,
        TopicConfig(),
        topic.partitions,
        read_version=topic.version,
        first_partition=0,
        clock=lambda: NOW,
        random=Random(0),
        workers=1,
    )


@pytest.mark.s3
@pytest.mark.parametrize("partitions", [2, 20, 200])
def test_tasks_put_a_bundle_each_and_their_driver_one_commit(s3_url: Address, partitions: int) -> None:
    topic = topic_on(Storage(*s3_url).child("t"), partitions)
    old_requests, written = requests(topic.storage), []
    for number in range(TASKS):
        appender = task(topic)
        appender.append(rows(partitions, 2, 2 * number))
        written += appender.close()
    assert since(topic.storage, old_requests) == (0, TASKS, 0, 0)
    commit_append(topic.handle, topic.snapshot, written, read_version=topic.version)
    assert since(topic.storage, old_requests) == (0, TASKS + 1, 0, 0)
    assert len(bundles(topic.storage)) == TASKS
    assert {len(content) for content in contents(topic.refresh()).values()} == {2 * TASKS}


@pytest.mark.s3
def test_an_append_is_a_refresh_a_bundle_and_a_commit(s3_url: Address) -> None:
    topic = topic_on(Storage(*s3_url).child("t"), 50)
    for first in range(2):
        old_requests = requests(topic.storage)
        topic.append(rows(50, 1, first))
        assert since(topic.storage, old_requests) == (1, 2, 0, 0)
    with topic.transaction() as transaction:
        transaction.append(rows(50, 1, 2))
        transaction.append(rows(20, 1, 3))
        old_requests = requests(topic.storage)
    assert since(topic.storage, old_requests) == (0, 2, 0, 0)


@pytest.mark.s3
def test_a_writer_on_an_object_store_bundles_each_buffer(s3_url: Address) -> None:
    topic = topic_on(Storage(*s3_url).child("t"), 10)
    with topic.writer(linger_ms=60_000) as writer:
        for row in rows(10, 3):
            writer.append(row["value"], partition=row["partition"])
        old_requests = requests(topic.storage)
        writer.flush()
        assert since(topic.storage, old_requests)[1:] == (2, 0, 0)
    assert len(bundles(topic.storage)) == 1
    assert {segment.is_bundled for segment in segments(topic.refresh())} == {True}
