"""Transactions of several gateways of one root: which gateway coordinates, accepts batches, or is fenced."""

from __future__ import annotations

from typing import Any

import pytest
from addresses import Address
from gateway_pairs import address as address
from gateway_pairs import begin as begin
from gateway_pairs import blind, coordinator, group_of, is_loading, pair, stop_syncing
from gateway_pairs import until_soon as until_soon
from gateways import Wire, until
from kio.schema.errors import ErrorCode
from transacting import values_seen
from transaction_parts import ID, Parts
from transactional_clients import RawProducer, position

import distlog
from distlog.core.errors import StorageError
from distlog.core.times import now_ms
from distlog.gateway.protocol.error_codes import CoordinatorError
from distlog.gateway.topics.metadata_cache import HostedTopic
from distlog.gateway.transactions.transaction_coordinator import TransactionEnds
from distlog.gateway.transactions.transaction_log import TransactionLog

FINE, UNSTABLE = ErrorCode.none, ErrorCode.unstable_offset_commit


class ProducerOfTwo(RawProducer):
    def __init__(self, at_coordinator: Wire, at_group: Wire, id: str, group: str) -> None:
        super().__init__(at_coordinator, id)
        self.elsewhere, self.group = RawProducer(at_group, id), group

    def commit(self, offset: int, *, committed: bool = True) -> list[ErrorCode]:
        """A transaction with a record, sent to the gateway of the group, and a position."""
        other = self.elsewhere
        other.producer_id, other.epoch = self.producer_id, self.epoch
        return [
            *self.add(("clicks", 0)),
            other.send(b"%d" % offset),
            self.add_offsets(self.group),
            other.commit_offset(offset, group=self.group),
            self.end(committed=committed),
        ]


def values(address: Address) -> list[bytes]:
    return values_seen(distlog.open(f"{address.url}/clicks", storage_options=address.options))[0]


def test_coordinators_of_an_id_and_of_a_group_at_two_gateways_end_a_transaction_as_one(
    begin: Any, address: Address
) -> None:
    first, two = pair(begin)
    id_, group = group_of(first), group_of(two)
    with Wire(first) as wire, Wire(two) as elsewhere:
        assert [coordinator(member, id_).port for member in (wire, elsewhere)] == [first.port] * 2
        assert RawProducer(elsewhere, id_).init() is ErrorCode.not_coordinator
        producer = ProducerOfTwo(wire, elsewhere, id_, group)
        assert producer.init() is FINE
        assert producer.commit(5) == [FINE] * 5
        assert position(elsewhere, group=group, stable=True) == 5
        # one that was aborted, and not looked at, is not taken for the next one
        assert producer.commit(6, committed=False) == [FINE] * 5
        assert producer.commit(7)[:4] == [FINE] * 4
        assert position(elsewhere, group=group, stable=True) == 7
        assert values(address) == [b"5", b"7"]


def test_another_gateway_finishes_a_decided_transaction(
    begin: Any, address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, two = pair(begin)
    id_, group = group_of(first), group_of(two)
    with Wire(first) as wire, Wire(two) as elsewhere:
        producer = ProducerOfTwo(wire, elsewhere, id_, group)
        producer.init()
        end = HostedTopic.end_transaction

        def failing(hosted: HostedTopic, *arguments: Any, **named: Any) -> Any:
            if hosted in first.broker.metadata.loaded.values():
                raise StorageError("no answer")
            return end(hosted, *arguments, **named)

        monkeypatch.setattr(HostedTopic, "end_transaction", failing)
        assert producer.commit(5) == [FINE] * 5
        assert (values(address), position(elsewhere, group=group, stable=True)) == ([], UNSTABLE)
        first.stop()
        until(lambda: coordinator(elsewhere, id_).port == two.port and not is_loading(two))
        # the topics of a transaction are ended side by side
        until(lambda: values(address) == [b"5"] and position(elsewhere, group=group, stable=True) == 5)
        producer.wire = elsewhere
        assert producer.commit(6) == [FINE] * 5
        assert values(address) == [b"5", b"6"]


def test_a_coordinator_that_lost_its_lease_and_does_not_know_decides_and_ends_nothing(
    begin: Any, until_soon: Any, address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, two = pair(begin)
    id_, lease = group_of(first), first.broker.cluster
    held, term = lease.held_partitions, lease.term
    with Wire(first) as zombie, Wire(two) as wire:
        stopped = RawProducer(zombie, id_)
        stopped.init()
        stopped.add(("clicks", 0))
        stopped.send(b"a")
        stop_syncing(monkeypatch, first)
        until_soon(lambda: not lease.held_partitions)
        until_soon(lambda: coordinator(wire, id_).port == two.port and not is_loading(two))
        blind(monkeypatch, first, held, term)
        following = RawProducer(wire, id_)
        until(lambda: following.init() is FINE)
        assert stopped.send(b"b") is ErrorCode.invalid_producer_epoch
        assert stopped.end() is ErrorCode.not_coordinator
        assert stopped.add(("clicks", 1)) == [ErrorCode.not_coordinator]
        following.add(("clicks", 0))
        following.send(b"c")
        (state,) = first.broker.transactions.coordinator.states([id_])
        log = TransactionLog(first.broker.metadata, now_ms, lambda: 50)
        ends = TransactionEnds(first.broker.metadata, first.broker.fetches, log, now_ms)
        ends.end(state.decided(0, is_committed=True))
        assert following.end(committed=False) is FINE
        assert values(address) == []


def test_a_batch_that_was_checked_before_the_decision_and_comes_after_it_is_refused(memory_url: Address) -> None:
    for name in ("clicks", "views", "__transaction_state", "__consumer_offsets"):
        distlog.create(f"{memory_url.url}/{name}")
    parts, other = Parts(memory_url), Parts(memory_url, port=9093)
    producer = parts.begin()
    parts.coordinator.add_partitions(ID, producer, [("clicks", 0)])
    make, remaining = other.services.fence, [1]

    def overtaken(*about: Any) -> Any:
        check = make(*about)

        def checked(snapshot: Any) -> None:
            check(snapshot)
            if remaining:
                remaining.pop()
                parts.coordinator.end(ID, producer, is_committed=True)

        return checked

    other.services.fence = overtaken  # type: ignore[method-assign]
    with pytest.raises(CoordinatorError, match="invalid_txn_state"):
        other.send(producer, b"late")
    parts.topic("clicks").append([{"value": b"plain"}])
    assert parts.values()[0] == [b"plain"]
    for gateway_parts in (parts, other):
        gateway_parts.close()


def test_transactions_are_listed_by_the_gateway_that_coordinates_them(begin: Any) -> None:
    first, two = pair(begin)
    id_ = group_of(first)
    with Wire(first) as wire, Wire(two) as elsewhere:
        RawProducer(wire, id_).init()
        listed = [member.ask(66, 0, state_filters=(), producer_id_filters=()) for member in (wire, elsewhere)]
        assert [[state.transactional_id for state in response.transaction_states] for response in listed] == [
            [id_],
            [],
        ]
        with pytest.raises(CoordinatorError, match="not_coordinator"):
            two.broker.transactions.coordinator.states([id_])
