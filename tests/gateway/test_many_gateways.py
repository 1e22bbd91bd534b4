"""Several gateways of one root on the wire: which gateway is named, which answers, and which refuses."""

from __future__ import annotations

import datetime
import time
from importlib import import_module
from typing import Any

import pytest
from addresses import Address
from gateway_pairs import address as address
from gateway_pairs import begin as begin
from gateway_pairs import blind, coordinator, group_of, is_loading, pair, stop_syncing
from gateway_pairs import until_soon as until_soon
from gateways import METADATA, Wire, removed, until
from kio.schema.errors import ErrorCode

from distlog.core.read.kafka_offsets import offsets_partition
from distlog.gateway import gateway_server
from distlog.gateway.config import GatewayConfig
from distlog.gateway.gateway_server import GatewayServer

pytestmark = pytest.mark.long

OFFSET_COMMIT, OFFSET_FETCH, JOIN_GROUP, HEARTBEAT = 8, 9, 11, 12
LIST_GROUPS, DESCRIBE_GROUPS, DESCRIBE_CLUSTER, DELETE_TOPICS = 16, 15, 60, 20


def commit(wire: Wire, group: str, offset: int) -> ErrorCode:
    schema = import_module("kio.schema.offset_commit.v8.request")
    requested = schema.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="")
    topic = schema.OffsetCommitRequestTopic(name="clicks", partitions=(requested,))
    response = wire.ask(
        OFFSET_COMMIT, 8, group_id=group, generation_id_or_member_epoch=-1, member_id="", topics=(topic,)
    )
    code: ErrorCode = response.topics[0].partitions[0].error_code
    return code


def fetched(wire: Wire, group: str) -> tuple[ErrorCode, dict[int, int]]:
    response = wire.ask(OFFSET_FETCH, 7, group_id=group, topics=None, require_stable=False)
    positions = {
        partition.partition_index: partition.committed_offset
        for topic in response.topics
        for partition in topic.partitions
    }
    return response.error_code, positions


def test_each_gateway_names_all_of_them_and_the_same_leaders_and_coordinators(begin: Any) -> None:
    left_gateway, right_gateway = pair(begin)
    with Wire(left_gateway) as at_one, Wire(right_gateway) as at_two:
        answers = [wire.ask(METADATA, 9, topics=None, **no_operations()) for wire in (at_one, at_two)]
        first, second = [
            {(broker.node_id, broker.host, broker.port) for broker in answer.brokers} for answer in answers
        ]
        assert first == second == {(0, "127.0.0.1", left_gateway.port), (1, "127.0.0.1", right_gateway.port)}
        leaders = [
            {(t.name, p.partition_index): p.leader_id for t in answer.topics for p in t.partitions}
            for answer in answers
        ]
        assert leaders[0] == leaders[1]
        assert set(leaders[0].values()) == {0, 1}
        described = at_two.ask(DESCRIBE_CLUSTER, 0, include_cluster_authorized_operations=False)
        assert {broker.broker_id for broker in described.brokers} == {0, 1}
        for number in range(20):
            actual = [coordinator(wire, f"group-{number}") for wire in (at_one, at_two)]
            assert len({(node.node_id, node.host, node.port) for node in actual}) == 1


def test_a_starting_gateway_answers_after_the_others_list_it(begin: Any) -> None:
    first, two = begin(5000), begin(5000)
    with Wire(two) as at_two, Wire(first) as at_one:
        answers = [wire.ask(METADATA, 9, topics=None, **no_operations()) for wire in (at_two, at_one)]
    assert [{broker.port for broker in answer.brokers} for answer in answers] == 2 * [{first.port, two.port}]


def test_an_interrupted_start_leaves_no_gateway(begin: Any, address: Address) -> None:
    config = GatewayConfig(broker_session_timeout_ms=60_000)
    first, two = begin(), GatewayServer(address.url, port=0, config=config, storage_options=address.options)

    def interrupted() -> bool:
        until(lambda: len(first.broker.cluster.nodes) == 2, 30)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        two.start(should_stop=interrupted)
    assert two.stop()
    until(lambda: [node.port for node in first.broker.cluster.nodes] == [first.port], 30)
    with pytest.raises(ConnectionRefusedError):
        Wire(two)


def no_operations() -> dict[str, bool]:
    return {
        "allow_auto_topic_creation": False,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }


def test_a_gateway_sends_members_of_other_gateways_groups_away(begin: Any) -> None:
    first, two = pair(begin)
    group = group_of(first)
    with Wire(first) as right, Wire(two) as wrong:
        assert coordinator(wrong, group).port == first.port
        assert commit(wrong, group, 5) is ErrorCode.not_coordinator
        assert commit(right, group, 7) is ErrorCode.none
        assert fetched(right, group) == (ErrorCode.none, {0: 7})
        assert fetched(wrong, group)[0] is ErrorCode.not_coordinator
        beat = {"group_id": group, "generation_id": 1, "member_id": "a", "group_instance_id": None}
        assert wrong.ask(HEARTBEAT, 4, **beat).error_code is ErrorCode.not_coordinator
        assert right.ask(HEARTBEAT, 4, **beat).error_code is ErrorCode.unknown_member_id
        # Java's admin client asks again then; an error of a member it gives to its user
        response = removed(wrong, group)
        assert (response.error_code, response.members) == (ErrorCode.not_coordinator, ())
        described = [
            wire.ask(DESCRIBE_GROUPS, 4, groups=(group,), include_authorized_operations=False).groups[0]
            for wire in (right, wrong)
        ]
        assert [group.error_code for group in described] == [ErrorCode.none, ErrorCode.not_coordinator]
        listed = [[group.group_id for group in wire.ask(LIST_GROUPS, 2).groups] for wire in (right, wrong)]
        assert listed == [[group], []]


def test_positions_and_members_are_there_when_another_gateway_takes_over(begin: Any) -> None:
    first, two = pair(begin)
    group = group_of(first)
    with Wire(first) as wire:
        assert commit(wire, group, 7) is ErrorCode.none
    first.stop()
    with Wire(two) as wire:
        until(lambda: coordinator(wire, group).port == two.port and not is_loading(two))
        assert fetched(wire, group) == (ErrorCode.none, {0: 7})
        assert commit(wire, group, 8) is ErrorCode.none


def test_a_gateway_that_lost_its_lease_and_does_not_know_commits_nothing(
    begin: Any, until_soon: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like a pause between reading the lease and the storage: the epoch of the partition decides."""
    first, two = pair(begin)
    group = group_of(first)
    lease = first.broker.cluster
    held, term = lease.held_partitions, lease.term
    with Wire(first) as zombie, Wire(two) as wire:
        assert commit(zombie, group, 7) is ErrorCode.none
        stop_syncing(monkeypatch, first)
        until_soon(lambda: not lease.held_partitions)
        until_soon(lambda: two.broker.cluster.held_partitions == set(range(50)) and not is_loading(two))
        assert fetched(wire, group) == (ErrorCode.none, {0: 7})
        # its clock stalled: it regards itself as the coordinator
        blind(monkeypatch, first, held, term)
        assert commit(wire, group, 9) is ErrorCode.none
        assert commit(zombie, group, 8) in (ErrorCode.not_coordinator, ErrorCode.coordinator_load_in_progress)
        assert fetched(wire, group) == (ErrorCode.none, {0: 9})


def test_a_waiting_member_is_sent_to_the_new_coordinator(begin: Any) -> None:
    gateway = begin()
    group = next(name for name in map("group-{}".format, range(100)) if offsets_partition(name, 50) >= 25)
    schema = import_module("kio.schema.join_group.v3.request")
    protocol = schema.JoinGroupRequestProtocol(name="range", metadata=b"")
    timeouts = {name: datetime.timedelta(seconds=30) for name in ("session_timeout", "rebalance_timeout")}
    join = {"group_id": group, "protocol_type": "consumer", "protocols": (protocol,), **timeouts}
    with Wire(gateway) as first, Wire(gateway) as second:
        assert first.ask(JOIN_GROUP, 3, member_id="", **join).error_code is ErrorCode.none
        waiting = second.send(JOIN_GROUP, 3, member_id="", **join)
        two = begin()
        assert second.answer(JOIN_GROUP, 3, waiting).error_code is ErrorCode.not_coordinator
        until(lambda: coordinator(first, group).port == two.port)


def test_a_gateway_without_storage_has_no_coordinator_until_it_returns(
    begin: Any, until_soon: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from distlog.core.errors import StorageError

    first = begin()
    lease, sync = first.broker.cluster, first.broker.cluster.sync

    def fails(*_: Any) -> bool:
        raise StorageError("no answer")

    with Wire(first) as wire:
        assert commit(wire, "billing", 7) is ErrorCode.none
        monkeypatch.setattr(lease, "sync", fails)
        until_soon(lambda: not lease.held_partitions)
        assert coordinator(wire, "billing").error_code is ErrorCode.coordinator_not_available
        assert commit(wire, "billing", 8) is ErrorCode.not_coordinator
        monkeypatch.setattr(lease, "sync", sync)
        until(lambda: commit(wire, "billing", 9) is ErrorCode.none)
        assert fetched(wire, "billing") == (ErrorCode.none, {0: 9})


def test_a_topic_dropped_at_one_gateway_loses_its_offsets_at_all(begin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_server, "_REFRESH_MS", {True: 50, False: 50})
    first, two = pair(begin)
    group = group_of(first)
    with Wire(first) as wire, Wire(two) as elsewhere:
        assert commit(wire, group, 7) is ErrorCode.none
        until(lambda: "clicks" in first.broker.metadata.loaded)
        time.sleep(0.3)
        response = elsewhere.ask(DELETE_TOPICS, 4, topic_names=("clicks",), timeout=datetime.timedelta(seconds=9))
        assert response.responses[0].error_code is ErrorCode.none
        until(lambda: fetched(wire, group) == (ErrorCode.none, {}))
