"""Transactions of producers: readers get all records of one, in all partitions, or none; on a disk and in memory."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from test_producer import again, failing, in_child
from transacting import values_seen

import distlog
from distlog.core.errors import (
    InvalidConfigError,
    InvalidRecordError,
    ProducerFencedError,
    StorageError,
)


@pytest.fixture
def local(tmp_path: Path) -> distlog.Topic:
    return distlog.create(str(tmp_path / "events"), partitions=2)


def fill(producer: Any, *numbers: int) -> None:
    for number in numbers:
        if number < 0:
            producer.append(b"wrong", partition=number)
        producer.append(b"%d" % number, partition=number % 2)


def test_a_transaction_is_visible_after_its_commit_only(topic: distlog.Topic) -> None:
    with topic.producer("payments") as producer:
        producer.begin()
        fill(producer, 0, 1)
        producer.flush()
        for isolation in ("read_committed", "read_uncommitted"):
            assert values_seen(again(topic), isolation) == {0: [], 1: []}
        fill(producer, 2)
        result = producer.commit()
        assert values_seen(again(topic)) == {0: [b"0", b"2"], 1: [b"1"]}
        assert result.offsets == {0: (0, 2), 1: (0, 1)}
        assert result.version is not None
        producer.begin()
        fill(producer, 3, 4)
        producer.flush()
        producer.abort()
        with producer.begin():
            fill(producer, 5)
    assert values_seen(again(topic)) == {0: [b"0", b"2"], 1: [b"1", b"5"]}
    assert again(topic).verify().anomalies == ()


def test_a_block_that_raises_is_aborted_and_the_producer_continues(topic: distlog.Topic) -> None:
    deliveries: list[distlog.Delivery] = []
    with topic.producer("payments", linger_ms=60_000, on_delivery=deliveries.append) as producer:
        with pytest.raises(InvalidRecordError), producer.begin():
            fill(producer, 0, 1, -1)
        with producer.begin():
            fill(producer, 2)
    assert values_seen(again(topic)) == {0: [b"2"], 1: []}
    assert [(delivery.record_count, delivery.error is None) for delivery in deliveries][-1] == (1, True)
    assert all(delivery.error for delivery in deliveries[:-1])


def test_a_producer_that_is_closed_aborts_its_transaction(topic: distlog.Topic) -> None:
    with topic.producer("payments") as producer:
        producer.begin()
        fill(producer, 0, 1)
        producer.flush()
    assert values_seen(again(topic)) == {0: [], 1: []}
    again(topic).append([{"value": b"later", "partition": 0}])
    assert values_seen(again(topic))[0] == [b"later"]


def test_a_second_instance_fences_the_first_and_aborts_what_it_left_open(topic: distlog.Topic) -> None:
    first = topic.producer("payments")
    first.begin()
    fill(first, 0, 1)
    first.flush()
    second = again(topic).producer("payments")
    with pytest.raises(ProducerFencedError):
        first.commit()
    with suppress(ProducerFencedError):
        first.close()
    with second.begin():
        fill(second, 2)
    second.close()
    assert values_seen(again(topic)) == {0: [b"2"], 1: []}
    assert again(topic).verify().anomalies == ()


def test_a_transaction_without_records_costs_no_commit(topic: distlog.Topic) -> None:
    with topic.producer("payments") as producer:
        version = again(topic).version
        assert producer.begin().__enter__().commit().offsets == {}
        producer.begin()
        producer.abort()
    assert again(topic).version == version


def test_a_fenced_instance_cannot_commit_a_transaction_without_records_either(topic: distlog.Topic) -> None:
    first = topic.producer("payments")
    first.begin()
    second = again(topic).producer("payments")
    with pytest.raises(ProducerFencedError):
        first.commit()
    with suppress(ProducerFencedError):
        first.close()
    second.close()


def test_a_flushed_transaction_is_one_commit(topic: distlog.Topic) -> None:
    with topic.producer("payments") as producer:
        version = again(topic).version
        for _ in range(5):
            with producer.begin():
                fill(producer, 0, 1)
                producer.flush()
                fill(producer, 2, 3)
        assert again(topic).version == version + 5


def test_two_producers_and_a_writer_run_concurrently(topic: distlog.Topic) -> None:
    first, second = again(topic).producer("payments"), again(topic).producer("refunds")
    first.begin()
    fill(first, 0)
    first.flush()
    with second.begin():
        fill(second, 2)
    with again(topic).writer() as writer:
        writer.append(b"plain", partition=0)
    assert values_seen(again(topic)) == {0: [b"2", b"plain"], 1: []}
    first.commit()
    assert values_seen(again(topic)) == {0: [b"2", b"plain", b"0"], 1: []}
    first.close()
    second.close()


def test_records_outside_of_transactions_are_appended_by_themselves(topic: distlog.Topic) -> None:
    with topic.producer("payments") as producer:
        fill(producer, 0)
        with producer.begin():
            fill(producer, 2)
        fill(producer, 4)
        producer.flush()
        assert values_seen(again(topic))[0] == [b"0", b"2", b"4"]


def test_transactions_need_an_id_a_begin_and_an_end(topic: distlog.Topic) -> None:
    with topic.producer() as nameless, pytest.raises(InvalidConfigError, match="transactional_id"):
        nameless.begin()
    with topic.producer("payments") as producer:
        for end in (producer.commit, producer.abort):
            with pytest.raises(InvalidRecordError, match="begin"):
                end()
        producer.begin()
        with pytest.raises(InvalidRecordError, match="open"):
            producer.begin()


def test_a_consumer_waits_for_the_end_of_a_transaction(local: distlog.Topic) -> None:
    with local.producer("payments") as producer:
        producer.begin()
        fill(producer, 0)
        producer.flush()
        with again(local).consume(timeout=0.05, partitions=[0]) as consumer:
            assert list(consumer) == []
            producer.commit()
            assert [batch["value"].to_pylist() for batch in consumer] == [[b"0"]]


@pytest.mark.parametrize(("call", "spared"), [("write", 0), ("write", 1), ("fsync", 0), ("fsync", 1)])
def test_after_a_failure_only_an_abort_is_possible(
    local: distlog.Topic, monkeypatch: pytest.MonkeyPatch, call: str, spared: int
) -> None:
    producer = local.producer("payments")
    with producer.begin():
        fill(producer, 0)
    producer.begin()
    fill(producer, 2)
    with monkeypatch.context() as patches:
        failing(patches, call, ".tmp", spared=spared, times=1, code=5)
        with pytest.raises(StorageError):
            producer.commit()
    with pytest.raises(StorageError):
        producer.commit()
    producer.abort()
    with producer.begin():
        fill(producer, 4)
    producer.close()
    assert values_seen(again(local))[0] == [b"0", b"4"]
    assert again(local).verify().anomalies == ()


def test_a_forked_child_cannot_commit_or_abort(local: distlog.Topic) -> None:
    producer = local.producer("payments")
    producer.begin()
    fill(producer, 0)
    producer.flush()
    assert in_child(producer.commit) == 3
    assert in_child(producer.abort) == 3
    assert in_child(producer.close) == 0
    producer.commit()
    producer.close()
    assert values_seen(again(local))[0] == [b"0"]
