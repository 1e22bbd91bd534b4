"""The coordinator of transactions by a clock that tests move: timeouts, failures of the storage, another gateway."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from transaction_parts import ID, TIMEOUT_MS, Parts

import distlog
from distlog.core.errors import StorageError
from distlog.core.log.appended import LostRecordsError
from distlog.gateway.partition import Partition
from distlog.gateway.transactions.transaction_coordinator import EXPIRATION_MS
from distlog.gateway.transactions.transaction_state import LAST_EPOCH, ProducerId, Status, TransactionRefusedError

NOTHING = ([], [], None)


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    for name in ("clicks", "views", "__transaction_state", "__consumer_offsets"):
        distlog.create(str(tmp_path / name))
    made = Parts(tmp_path)
    yield made
    made.close()


def opened(parts: Parts) -> ProducerId:
    """A transaction with a record in two topics."""
    producer = parts.begin()
    parts.coordinator.add_partitions(ID, producer, [("clicks", 0), ("views", 0)])
    parts.send(producer, b"a")
    parts.send(producer, b"b", "views")
    return producer


def status(parts: Parts) -> Status:
    (state,) = parts.coordinator.states([ID])
    return state.status


def failing(name: str, monkeypatch: pytest.MonkeyPatch, topic: str, error: Exception | None = None) -> None:
    """Have a step in the partitions of a topic fail."""
    work = getattr(Partition, name)

    def failed(partition: Partition, *given: Any) -> Any:
        if partition.fresh.name == topic:
            raise error or StorageError("the disk failed")
        return work(partition, *given)

    monkeypatch.setattr(Partition, name, failed)


def test_a_transaction_that_is_open_for_too_long_is_aborted_and_its_producer_fenced(parts: Parts) -> None:
    producer = opened(parts)
    parts.now_ms += TIMEOUT_MS - 1
    parts.coordinator.tick()
    assert status(parts) is Status.ONGOING
    parts.now_ms += 1
    parts.coordinator.tick()
    assert status(parts) is Status.COMPLETE_ABORT
    with pytest.raises(TransactionRefusedError, match="producer_fenced"):
        parts.coordinator.end(ID, producer, is_committed=True)
    assert parts.seen() == NOTHING
    # nothing hides what others append behind it
    distlog.open(str(parts.root / "clicks")).append([{"value": b"c"}])
    assert parts.seen()[0] == [b"c"]


def test_the_next_gateway_lets_the_same_time_pass(parts: Parts) -> None:
    opened(parts)
    parts.now_ms += TIMEOUT_MS
    after = parts.killed()
    after.services.tick()
    assert status(after) is Status.COMPLETE_ABORT
    assert after.seen() == NOTHING


def test_a_producer_that_lives_goes_on_at_the_next_gateway(parts: Parts) -> None:
    producer = opened(parts)
    after = parts.killed()
    after._sequences = parts._sequences
    after.send(producer, b"c")
    after.coordinator.end(ID, producer, is_committed=True)
    assert after.seen() == ([b"a", b"c"], [b"b"], None)


def test_a_marker_that_cannot_be_written_is_written_later_and_the_id_waits(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = opened(parts)
    with monkeypatch.context() as patches:
        failing("end_transaction", patches, "views")
        parts.coordinator.end(ID, producer, is_committed=True)
        for again in (
            lambda: parts.coordinator.add_partitions(ID, producer, [("clicks", 0)]),
            lambda: parts.coordinator.end(ID, producer, is_committed=True),
            parts.begin,
        ):
            with pytest.raises(TransactionRefusedError, match="concurrent_transactions"):
                again()
        assert status(parts) is Status.PREPARE_COMMIT
        parts.coordinator.tick()
    assert parts.seen()[1] == []
    parts.coordinator.tick()
    assert status(parts) is Status.COMPLETE_COMMIT
    assert parts.seen() == ([b"a"], [b"b"], None)


def test_what_may_be_lost_is_not_committed(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = opened(parts)
    with monkeypatch.context() as patches:
        failing("sync", patches, "views", LostRecordsError("lost"))
        with pytest.raises(TransactionRefusedError, match="producer_fenced"):
            parts.coordinator.end(ID, producer, is_committed=True)
    parts.coordinator.tick()
    assert (status(parts), parts.seen()) == (Status.COMPLETE_ABORT, NOTHING)


def test_a_decision_that_is_not_kept_may_be_asked_for_again(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = opened(parts)
    with monkeypatch.context() as patches:
        failing("append_run", patches, "__transaction_state")
        with pytest.raises(StorageError):
            parts.coordinator.end(ID, producer, is_committed=True)
    assert (status(parts), parts.seen()) == (Status.ONGOING, NOTHING)
    parts.coordinator.end(ID, producer, is_committed=True)
    assert parts.seen() == ([b"a"], [b"b"], None)


@pytest.mark.parametrize("is_created_again_before", [True, False])
def test_with_a_topic_that_was_dropped_its_part_is_gone_and_nothing_stays_open(
    parts: Parts, is_created_again_before: bool
) -> None:
    producer, url = opened(parts), str(parts.root / "views")
    distlog.open(url).drop()
    if is_created_again_before:
        distlog.create(url)
    parts.coordinator.end(ID, producer, is_committed=True)
    assert status(parts) is Status.COMPLETE_COMMIT
    topic = distlog.open(url) if is_created_again_before else distlog.create(url)
    topic.append([{"value": b"new"}])
    assert parts.seen() == ([b"a"], [b"new"], None)


def test_one_gateway_at_a_time_has_the_transactions_of_a_root(parts: Parts) -> None:
    opened(parts)
    other = Parts(parts.root)
    with pytest.raises(TransactionRefusedError) as refused:
        other.begin()
    assert refused.value.code is ErrorCode.coordinator_not_available
    other.services.tick()
    parts.services.stop()
    other.services.tick()
    assert status(other) is Status.ONGOING
    other.begin()
    assert other.seen() == NOTHING
    other.close()


def test_an_id_that_nobody_uses_is_forgotten(parts: Parts) -> None:
    producer = opened(parts)
    parts.coordinator.end(ID, producer, is_committed=True)
    parts.now_ms += EXPIRATION_MS - 1
    parts.coordinator.tick()
    assert status(parts) is Status.COMPLETE_COMMIT
    parts.now_ms += 1
    parts.coordinator.tick()
    assert parts.coordinator.states() == []
    after = parts.killed()
    assert after.coordinator.states() == []
    fresh = after.begin()
    assert (fresh.id != producer.id, fresh.epoch) == (True, 0)


def test_when_its_epochs_are_used_up_a_producer_gets_another_id(parts: Parts) -> None:
    first = parts.begin()
    (state,) = parts.coordinator.states([ID])
    held = parts.coordinator._transactions[ID]
    held.state = state.begun_again(ProducerId(first.id, LAST_EPOCH), TIMEOUT_MS, parts.now_ms, -1)
    last = ProducerId(first.id, LAST_EPOCH)
    parts.coordinator.add_partitions(ID, last, [("clicks", 0)])
    parts.send(last, b"a")
    # the abort of the next one takes the very last epoch
    following = parts.begin()
    assert (following.id != first.id, following.epoch) == (True, 0)
    assert parts.seen() == NOTHING


def test_records_of_transactions_are_on_the_device_before_the_decision(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[tuple[str, str]] = []
    for name in ("sync", "append_run", "end_transaction"):
        work = getattr(Partition, name)

        def noted(partition: Partition, *given: Any, name: str = name, work: Any = work) -> Any:
            done.append((name, partition.fresh.name))
            return work(partition, *given)

        monkeypatch.setattr(Partition, name, noted)
    producer = opened(parts)
    done.clear()
    parts.coordinator.end(ID, producer, is_committed=True)
    state = "__transaction_state"
    assert sorted(done[:2]) == [("sync", "clicks"), ("sync", "views")]
    assert done[2:4] == [("append_run", state), ("sync", state)]
    markers = [(step, topic) for topic in ("clicks", "views") for step in ("end_transaction", "sync")]
    assert sorted(done[4:8]) == sorted(markers)
    assert done[8:] == [("append_run", state)]


def test_who_appends_keeps_the_transaction_from_its_end(parts: Parts) -> None:
    producer, ended = opened(parts), threading.Event()

    def end() -> None:
        parts.coordinator.end(ID, producer, is_committed=True)
        ended.set()

    ending = threading.Thread(target=end)
    with parts.coordinator.appending(ID, producer, ("clicks", 0)):
        ending.start()
        # long enough for an end that does not wait; one that waits is slower in any case
        assert not ended.wait(0.3)
        assert status(parts) is Status.ONGOING
    ending.join()
    assert status(parts) is Status.COMPLETE_COMMIT
