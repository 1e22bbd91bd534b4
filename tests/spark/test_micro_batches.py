"""Micro-batches of foreachBatch that are written again, without a name, or not at all; without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from planned_writes import commit, of_micro_batch, values, write, writer

import distlog
from distlog.core.errors import InvalidConfigError


@pytest.fixture
def topic(tmp_path: Path) -> distlog.Topic:
    return distlog.create(str(tmp_path / "clicks"), partitions=2)


def save(topic: distlog.Topic, batch: int, *values: str, app_id: str = "app", times: int = 1) -> None:
    """Write a micro-batch; Spark asks `times` times for its commit."""
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


def test_of_two_drivers_that_write_a_micro_batch_at_once_one_does(topic: distlog.Topic) -> None:
    drivers = [writer(topic.url, txnAppId="app", txnVersion="3") for _ in range(2)]
    messages = [of_micro_batch(write(planned, "a")) for planned in drivers]
    for planned, message in zip(drivers, messages, strict=True):
        commit(planned, message)
    assert values(topic) == ["a"]


def test_only_the_newest_batches_of_a_query_are_remembered(topic: distlog.Topic) -> None:
    """Numbers in order take no room of batch.ids.bytes, and a lower one is skipped."""
    for number in range(20):
        save(topic, number, "a")
    assert len(topic.refresh().snapshot.transactions) <= 10
    save(topic, 3, "again")
    assert values(topic) == ["a"] * 20


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
        save(topic, number, "a")
    assert topic.refresh().segments().num_rows == 2
    assert values(topic) == 18 * ["a"]


def test_a_micro_batch_without_rows_is_no_commit(topic: distlog.Topic) -> None:
    save(topic, 3)
    assert topic.refresh().version == 0
