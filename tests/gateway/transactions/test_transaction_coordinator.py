"""The coordinator of transactions by a clock that tests move: timeouts, failures of the storage, another gateway."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from addresses import Address
from gateways import lingers as lingers
from transaction_parts import ID, TIMEOUT_MS, Parts

import distlog
from distlog.core.errors import StorageError
from distlog.core.kafka.transactions import LAST_EPOCH, ProducerId, TransactionStatus
from distlog.gateway.protocol.error_codes import CoordinatorError
from distlog.gateway.topics.metadata_cache import HostedTopic
from distlog.gateway.topics.partition import Partition
from distlog.gateway.transactions.transaction_coordinator import EXPIRATION_MS

NOTHING = ([], [], None)


def new_parts(address: Address) -> Parts:
    for name in ("clicks", "views", "__transaction_state", "__consumer_offsets"):
        distlog.create(f"{address.url}/{name}")
    return Parts(address)


@pytest.fixture(params=["local", "memory"])
def parts(request: pytest.FixtureRequest, tmp_path: Path, memory_url: Address) -> Iterator[Parts]:
    actual = new_parts(Address(str(tmp_path), {}) if request.param == "local" else memory_url)
    yield actual
    actual.close()


@pytest.fixture
def local_parts(tmp_path: Path) -> Iterator[Parts]:
    actual = new_parts(Address(str(tmp_path), {}))
    yield actual
    actual.close()


def begin_and_append(parts: Parts) -> ProducerId:
    producer = parts.begin()
    parts.coordinator.add_partitions(ID, producer, [("clicks", 0), ("views", 0)])
    parts.send(producer, b"a")
    parts.send(producer, b"b", "views")
    return producer


def status(parts: Parts) -> TransactionStatus:
    (state,) = parts.coordinator.states([ID])
    return state.status


def failing(name: str, monkeypatch: pytest.MonkeyPatch, topic: str, error: str = "the storage failed") -> None:
    work = getattr(HostedTopic, name)

    def failed(hosted: HostedTopic, *arguments: Any, **named: Any) -> Any:
        if hosted.name == topic:
            raise StorageError(error)
        return work(hosted, *arguments, **named)

    monkeypatch.setattr(HostedTopic, name, failed)


def test_a_transaction_that_is_open_for_too_long_is_aborted_and_its_producer_fenced(parts: Parts) -> None:
    producer = begin_and_append(parts)
    parts.now_ms += TIMEOUT_MS - 1
    parts.coordinator.run_timers()
    assert status(parts) is TransactionStatus.ONGOING
    parts.now_ms += 1
    parts.coordinator.run_timers()
    assert status(parts) is TransactionStatus.COMPLETE_ABORT
    with pytest.raises(CoordinatorError, match="producer_fenced"):
        parts.coordinator.end(ID, producer, is_committed=True)
    assert parts.values() == NOTHING
    parts.topic("clicks").append([{"value": b"c"}])
    assert parts.values()[0] == [b"c"]


def test_a_producer_whose_transaction_has_timed_out_may_ask_for_the_next_epoch_and_go_on(parts: Parts) -> None:
    # as at a broker (KIP-588): it cannot end that transaction, which was aborted, and no other producer has started
    producer = begin_and_append(parts)
    parts.now_ms += TIMEOUT_MS
    parts.coordinator.run_timers()
    with pytest.raises(CoordinatorError, match="producer_fenced"):
        parts.coordinator.end(ID, producer, is_committed=False)
    for _ in range(2):
        after = parts.coordinator.begin_producer(ID, TIMEOUT_MS, producer)
        assert after == ProducerId(producer.id, producer.epoch + 1)
    parts.coordinator.add_partitions(ID, after, [("clicks", 0)])
    parts.send(after, b"c")
    parts.coordinator.end(ID, after, is_committed=True)
    assert parts.values() == ([b"c"], [], None)


def test_a_producer_whose_transaction_has_timed_out_stays_fenced_when_another_one_has_started(parts: Parts) -> None:
    producer = begin_and_append(parts)
    parts.now_ms += TIMEOUT_MS
    parts.coordinator.run_timers()
    other = parts.begin()
    with pytest.raises(CoordinatorError, match="producer_fenced"):
        parts.coordinator.begin_producer(ID, TIMEOUT_MS, producer)
    parts.coordinator.add_partitions(ID, other, [("clicks", 0)])


def test_a_transaction_that_a_gateway_with_a_clock_ahead_began_times_out_at_the_next_gateway(parts: Parts) -> None:
    parts.now_ms += 7 * 86_400_000
    begin_and_append(parts)
    after = parts.killed()
    after.now_ms -= 7 * 86_400_000
    after.coordinator.run_timers()
    assert status(after) is TransactionStatus.ONGOING
    after.now_ms += TIMEOUT_MS
    after.coordinator.run_timers()
    assert status(after) is TransactionStatus.COMPLETE_ABORT
    assert after.values() == NOTHING


def test_a_decision_of_a_gateway_with_a_clock_ahead_gets_its_markers_at_the_next_gateway(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts.now_ms += 7 * 86_400_000
    producer = begin_and_append(parts)
    with monkeypatch.context() as patches:
        failing("end_transaction", patches, "views")
        parts.coordinator.end(ID, producer, is_committed=True)
    after = parts.killed()
    after.now_ms -= 7 * 86_400_000
    after.coordinator.run_timers()
    assert status(after) is TransactionStatus.COMPLETE_COMMIT
    assert after.values() == ([b"a"], [b"b"], None)


def test_a_transaction_that_cannot_be_ended_for_long_is_logged_once_a_minute(
    local_parts: Parts, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    producer, error = begin_and_append(local_parts), f"the storage failed, {uuid.uuid4().hex}"
    with monkeypatch.context() as patches:
        failing("end_transaction", patches, "views", error)
        local_parts.coordinator.end(ID, producer, is_committed=True)
        for _ in range(5):
            local_parts.coordinator.run_timers()
    text = f"ending the transaction of '{ID}' (retried) failed: {error}"
    assert [message for message in caplog.messages if "retried" in message] == [text]


def test_an_id_whose_first_record_cannot_be_kept_is_forgotten(
    local_parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patches:
        failing("append_run", patches, "__transaction_state")
        with pytest.raises(StorageError):
            local_parts.begin()
        local_parts.coordinator.run_timers()
    assert local_parts.coordinator.states() == []
    assert local_parts.begin().epoch == 0


def test_a_live_producer_continues_at_the_next_gateway(parts: Parts) -> None:
    producer = begin_and_append(parts)
    after = parts.killed()
    after.sequences = parts.sequences
    after.send(producer, b"c")
    after.coordinator.end(ID, producer, is_committed=True)
    assert after.values() == ([b"a", b"c"], [b"b"], None)


def test_a_marker_that_cannot_be_written_is_written_later_and_the_id_waits(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = begin_and_append(parts)
    with monkeypatch.context() as patches:
        failing("end_transaction", patches, "views")
        parts.coordinator.end(ID, producer, is_committed=True)
        for again in (
            lambda: parts.coordinator.add_partitions(ID, producer, [("clicks", 0)]),
            lambda: parts.coordinator.end(ID, producer, is_committed=True),
            parts.begin,
        ):
            with pytest.raises(CoordinatorError, match="concurrent_transactions"):
                again()
        assert status(parts) is TransactionStatus.PREPARE_COMMIT
        parts.coordinator.run_timers()
    assert parts.values()[1] == []
    parts.coordinator.run_timers()
    assert status(parts) is TransactionStatus.COMPLETE_COMMIT
    assert parts.values() == ([b"a"], [b"b"], None)


def test_a_failed_decision_can_be_requested_again(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = begin_and_append(parts)
    with monkeypatch.context() as patches:
        failing("append_run", patches, "__transaction_state")
        with pytest.raises(StorageError):
            parts.coordinator.end(ID, producer, is_committed=True)
    assert (status(parts), parts.values()) == (TransactionStatus.ONGOING, NOTHING)
    parts.coordinator.end(ID, producer, is_committed=True)
    assert parts.values() == ([b"a"], [b"b"], None)


@pytest.mark.parametrize("is_created_again_before", [True, False])
def test_a_dropped_topic_leaves_no_open_transaction(parts: Parts, is_created_again_before: bool) -> None:
    producer, url = begin_and_append(parts), f"{parts.address.url}/views"
    distlog.open(url).drop()
    if is_created_again_before:
        distlog.create(url)
    parts.coordinator.end(ID, producer, is_committed=True)
    assert status(parts) is TransactionStatus.COMPLETE_COMMIT
    topic = distlog.open(url) if is_created_again_before else distlog.create(url)
    topic.append([{"value": b"new"}])
    assert parts.values() == ([b"a"], [b"new"], None)


def test_an_unused_id_is_forgotten(parts: Parts) -> None:
    producer = begin_and_append(parts)
    parts.coordinator.end(ID, producer, is_committed=True)
    parts.now_ms += EXPIRATION_MS - 1
    parts.coordinator.run_timers()
    assert status(parts) is TransactionStatus.COMPLETE_COMMIT
    parts.now_ms += 1
    parts.coordinator.run_timers()
    assert parts.coordinator.states() == []
    after = parts.killed()
    assert after.coordinator.states() == []
    fresh = after.begin()
    assert (fresh.id != producer.id, fresh.epoch) == (True, 0)


def test_when_its_epochs_are_used_up_a_producer_gets_another_id(parts: Parts) -> None:
    first = parts.begin()
    (state,) = parts.coordinator.states([ID])
    last = ProducerId(first.id, LAST_EPOCH)
    parts.coordinator.load([state.restarted(last, TIMEOUT_MS, parts.now_ms, -1)])
    parts.coordinator.add_partitions(ID, last, [("clicks", 0)])
    parts.send(last, b"a")
    following = parts.begin()
    assert (following.id != first.id, following.epoch) == (True, 0)
    assert parts.values() == NOTHING


def test_records_of_transactions_are_durable_before_the_decision(
    local_parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    results: list[tuple[str, str]] = []
    for name in ("append", "sync", "append_run", "end_transaction"):
        note(name, results, monkeypatch)
    producer, state = begin_and_append(local_parts), "__transaction_state"
    sent = [(step, topic) for topic in ("clicks", "views") for step in ("append", "sync")]
    assert results == [("append_run", state), ("sync", state)] * 2 + sent
    results.clear()
    local_parts.coordinator.end(ID, producer, is_committed=True)
    assert results[:2] == [("append_run", state), ("sync", state)]
    markers = [(step, topic) for topic in ("clicks", "views") for step in ("end_transaction", "sync")]
    assert sorted(results[2:6]) == sorted(markers)
    assert results[6:] == [("append_run", state)]


def test_unsynced_states_of_a_killed_gateway_are_synced_before_use(
    local_parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = begin_and_append(local_parts)
    with monkeypatch.context() as patches:
        patches.setattr(Partition, "sync", unsynced)
        with pytest.raises(StorageError):
            local_parts.coordinator.end(ID, producer, is_committed=True)
    results: list[tuple[str, str]] = []
    note("sync", results, monkeypatch)
    note("end_transaction", results, monkeypatch)
    after = local_parts.killed()
    after.coordinator.run_timers()
    assert results[0] == ("sync", "__transaction_state")
    assert after.values() == ([b"a"], [b"b"], None)
    after.close()


def unsynced(partition: Partition, appended: object) -> None:
    raise StorageError("the disk failed")


def note(name: str, calls: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    work = getattr(Partition, name)

    def noted(partition: Partition, *arguments: Any, **options: Any) -> Any:
        calls.append((name, partition.hosted.name))
        return work(partition, *arguments, **options)

    monkeypatch.setattr(Partition, name, noted)
