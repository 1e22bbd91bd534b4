"""The number of commits of a transaction on an object store, and the commits that its producer waits for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from addresses import Address
from transaction_parts import ID, NOW, TIMEOUT_MS, Parts

import distlog
from distlog.core.kafka.transactions import ProducerId, TransactionState, TransactionStatus
from distlog.gateway.transactions.transaction_log import TransactionLog

PARTITIONS = [(topic, number) for topic in ("clicks", "views") for number in range(3)]
STATES = "__transaction_state"


@pytest.fixture
def parts(memory_url: Address) -> Iterator[Parts]:
    """A gateway whose topic of states has no commit that nobody waits for, unless another one comes."""
    for name, partitions in (("clicks", 3), ("views", 3), (STATES, 1), ("__consumer_offsets", 1)):
        distlog.create(f"{memory_url.url}/{name}", partitions)
    created = Parts(memory_url, linger_ms=3_600_000)
    for name in ("clicks", "views"):
        created.broker.metadata.fresh_topic(name).commit_now()
    yield created
    created.close()


def versions(parts: Parts) -> list[int]:
    return [parts.topic(name).version for name in ("clicks", "views", STATES)]


def test_an_end_is_a_commit_for_the_decision_and_one_for_the_markers_of_each_topic(parts: Parts) -> None:
    producer = parts.begin()
    parts.coordinator.add_partitions(ID, producer, PARTITIONS)
    for topic, number in PARTITIONS:
        parts.send(producer, b"a", topic, number)
    previous = versions(parts)
    parts.coordinator.end(ID, producer, is_committed=True)
    assert [after - earlier for earlier, after in zip(previous, versions(parts), strict=True)] == [1, 1, 1]
    assert parts.values()[:2] == ([b"a"], [b"a"])
    parts.coordinator.add_partitions(ID, producer, PARTITIONS[:1])
    assert versions(parts)[2] - previous[2] == 2
    assert parts.topic(STATES).end_offsets() == {0: 5}
    parts.send(producer, b"b")
    parts.coordinator.end(ID, producer, is_committed=False)
    assert parts.values()[:2] == ([b"a"], [b"a"])


def test_the_next_coordinator_repeats_an_incomplete_end(parts: Parts) -> None:
    producer = parts.begin()
    parts.coordinator.add_partitions(ID, producer, PARTITIONS)
    parts.send(producer, b"a")
    parts.coordinator.end(ID, producer, is_committed=True)
    after = parts.killed()
    (state,) = after.coordinator.states()
    assert state.status is TransactionStatus.PREPARE_COMMIT
    after.coordinator.run_timers()
    (state,) = after.coordinator.states()
    assert state.status is TransactionStatus.COMPLETE_COMMIT
    assert parts.values()[:2] == ([b"a"], [])
    after.coordinator.add_partitions(ID, producer, PARTITIONS[:1])
    after.send(producer, b"b", number=0, topic="clicks")


def test_partitions_are_released_after_pending_states_are_stored(parts: Parts) -> None:
    log = TransactionLog(parts.broker.metadata, lambda: NOW, lambda: 1)
    log.begin([0])
    started = TransactionState(transactional_id=ID, producer=ProducerId(7, 0), timeout_ms=TIMEOUT_MS, updated_ms=NOW)
    decided = started.with_partitions(frozenset(PARTITIONS), NOW).decided(NOW, is_committed=True)
    log.write(decided)
    log.write(decided.completed(NOW), is_durable=False)
    assert [state.status for state in log.load([0])] == [TransactionStatus.PREPARE_COMMIT]
    parts.broker.metadata.fresh_topic(STATES).commit_now()
    log.drain()
    assert [state.status for state in log.load([0])] == [TransactionStatus.COMPLETE_COMMIT]
