"""Committed offsets in a transaction: visible after its commit only."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from consumer_groups import Gateway
from gateways import Wire, until
from gateways import gateway as gateway
from kio.schema.errors import ErrorCode
from transaction_parts import GROUP, ID, Parts
from transactional_clients import RawProducer, position

import distlog
from distlog.core.errors import StorageError
from distlog.core.read.kafka_offsets import OFFSETS_TOPIC, Position
from distlog.gateway.gateway_server import GatewayServer
from distlog.gateway.groups.offsets_topic import OffsetsTopic
from distlog.gateway.protocol.error_codes import CoordinatorError

FINE, UNSTABLE = ErrorCode.none, ErrorCode.unstable_offset_commit


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    for name in ("clicks", "views", "__transaction_state", "__consumer_offsets"):
        distlog.create(str(tmp_path / name))
    created = [Parts(tmp_path)]
    yield created[0]
    created[0].close()


def commit(parts: Parts, offset: int) -> None:
    codes = []
    parts.groups.offsets.commit(GROUP, {("clicks", 0): Position(offset)}, codes.append)
    until(lambda: codes == [FINE])


def fetched(parts: Parts, *, stable: bool = False) -> int | ErrorCode | None:
    actual = parts.groups.offsets.fetch(GROUP, [("clicks", 0)], stable=stable)["clicks", 0]
    return actual.offset if isinstance(actual, Position) else actual


@pytest.mark.parametrize("committed", [True, False])
def test_an_offset_is_visible_after_the_commit_of_its_transaction(gateway: GatewayServer, committed: bool) -> None:
    with Wire(gateway) as wire:
        producer = RawProducer(wire)
        producer.init()
        assert producer.commit_offset(7) is ErrorCode.invalid_txn_state
        assert producer.add_offsets() is FINE
        assert producer.commit_offset(7) is FINE
        assert [position(wire), position(wire, stable=True), position(wire, 1, stable=True)] == [-1, UNSTABLE, -1]
        assert producer.end(committed=committed) is FINE
        expected = 7 if committed else -1
        assert [position(wire), position(wire, stable=True)] == [expected, expected]


def test_a_fenced_or_old_member_commits_no_offset(gateway: GatewayServer) -> None:
    with Wire(gateway) as wire, Wire(gateway) as other:
        first, second = RawProducer(wire), RawProducer(other)
        first.init()
        first.add_offsets()
        assert first.commit_offset(5, generation=3) is ErrorCode.illegal_generation
        assert first.commit_offset(7) is FINE
        assert first.commit_offset(8, 9) is ErrorCode.unknown_topic_or_partition
        assert first.commit_offset(8, group="another") is ErrorCode.invalid_txn_state
        second.init()
        assert first.commit_offset(9) is ErrorCode.invalid_producer_epoch
        assert [position(wire), position(wire, stable=True)] == [-1, -1]


def test_pending_positions_are_pending_after_a_kill_and_counted_positions_count(parts: Parts) -> None:
    commit(parts, 3)
    producer = parts.begin()
    parts.commit_offset(producer, 7)
    after = parts.killed()
    assert (fetched(after), fetched(after, stable=True)) == (3, UNSTABLE)
    after.coordinator.end(ID, producer, is_committed=True)
    assert fetched(after, stable=True) == 7
    last = after.killed()
    assert fetched(last, stable=True) == 7
    producer = last.begin()
    last.commit_offset(producer, 9)
    last.coordinator.end(ID, producer, is_committed=False)
    assert (fetched(last, stable=True), fetched(last.killed(), stable=True)) == (7, 7)


def test_an_offset_committed_after_a_transactions_offset_applies(parts: Parts) -> None:
    producer = parts.begin()
    parts.commit_offset(producer, 7)
    commit(parts, 4)
    assert fetched(parts, stable=True) == 4
    after = parts.killed()
    assert fetched(after, stable=True) == 4
    after.coordinator.end(ID, producer, is_committed=True)
    assert fetched(after) == 4
    assert fetched(after.killed()) == 4


def test_a_commit_that_is_on_its_way_makes_a_transaction_wait() -> None:
    gateway, codes, appended = Gateway(), list[ErrorCode](), list[object]()
    gateway.store.held = True
    gateway.offsets.commit(GROUP, {("clicks", 0): Position(3)}, codes.append)
    in_transaction = partial(gateway.offsets.commit_in_transaction, GROUP, {("clicks", 0): Position(7)}, 1)
    with pytest.raises(CoordinatorError, match="coordinator_load_in_progress"):
        in_transaction(appended.append)
    assert (codes, appended) == ([], [])
    gateway.store.release()
    in_transaction(appended.append)
    assert (codes, len(appended)) == ([FINE], 1)


def test_a_group_that_is_deleted_takes_what_transactions_brought_with_it(parts: Parts) -> None:
    producer = parts.begin()
    parts.commit_offset(producer, 7)
    codes: list[ErrorCode] = []
    parts.groups.members.delete(GROUP, codes.append)
    until(lambda: codes == [FINE])
    parts.coordinator.end(ID, producer, is_committed=True)
    assert fetched(parts) is None
    assert fetched(parts.killed()) is None


def test_a_fetch_of_an_unreadable_transactional_offset_is_retried(
    parts: Parts, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(store: OffsetsTopic, partition: int) -> None:
        raise StorageError(error)

    producer, error = parts.begin(), f"no answer, {uuid.uuid4().hex}"
    parts.commit_offset(producer, 7)
    parts.coordinator.end(ID, producer, is_committed=True)
    with monkeypatch.context() as patches:
        patches.setattr(OffsetsTopic, "ended", fail)
        with pytest.raises(CoordinatorError, match="coordinator_load_in_progress"):
            fetched(parts)
    assert fetched(parts) == 7
    assert f"reading ends of transactions failed: {error}" in caplog.messages


def test_pending_offsets_do_not_expire(tmp_path: Path) -> None:
    for name in ("clicks", "__transaction_state", "__consumer_offsets"):
        distlog.create(str(tmp_path / name))
    parts = Parts(tmp_path, retention_ms=0)
    commit(parts, 3)
    producer = parts.begin()
    parts.commit_offset(producer, 7)
    parts.groups.offsets.expire()
    assert fetched(parts, stable=True) is UNSTABLE
    parts.coordinator.end(ID, producer, is_committed=True)
    assert fetched(parts) == 7
    parts.close()


def test_a_gateway_that_lost_the_offsets_partition_appends_nothing(gateway: GatewayServer) -> None:
    with Wire(gateway) as wire:
        producer = RawProducer(wire)
        producer.init()
        producer.add_offsets()
        other = OffsetsTopic(gateway.root, linger_ms=0)
        other.begin([other.open() and other.partition_of(GROUP)])
        ends = distlog.open(f"{gateway.root}/{OFFSETS_TOPIC}").end_offsets()
        assert producer.commit_offset(7) is ErrorCode.not_coordinator
        assert distlog.open(f"{gateway.root}/{OFFSETS_TOPIC}").end_offsets() == ends
        other.close()
