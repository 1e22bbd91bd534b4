"""The APIs that newer clients ask for topics, resources, and what a cluster of brokers has besides."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
from gateways import METADATA, Wire
from gateways import gateway as gateway
from kio.schema.errors import ErrorCode

import distlog
from distlog.gateway.gateway_server import GatewayServer

CONFIGS, ELECT, REASSIGNMENTS, QUORUM, RESOURCES, PARTITIONS = 32, 43, 46, 55, 74, 75
LIST = 7
ISR = "min.insync.replicas"
TOPIC, BROKER, METRICS = 2, 4, 16


@pytest.fixture
def wire(gateway: GatewayServer) -> Iterator[Wire]:
    distlog.create(f"{gateway.root}/views", partitions=5)
    with Wire(gateway) as connection:
        yield connection


def partitions(wire: Wire, names: tuple[str, ...], limit: int = 2000, cursor: tuple[str, int] | None = None) -> Any:
    schema = import_module("kio.schema.describe_topic_partitions.v0.request")
    topics = tuple(schema.TopicRequest(name=name) for name in names)
    start = cursor and schema.Cursor(topic_name=cursor[0], partition_index=cursor[1])
    return wire.ask(PARTITIONS, 0, topics=topics, response_partition_limit=limit, cursor=start)


def listed_partitions(response: Any) -> list[tuple[str, list[int]]]:
    return [(topic.name, [partition.partition_index for partition in topic.partitions]) for topic in response.topics]


def test_topics_are_described_by_name_and_all_of_them_without_names(wire: Wire, gateway: GatewayServer) -> None:
    reply = partitions(wire, ("views", "none", "views"))
    missing, views = reply.topics
    assert (missing.name, missing.error_code) == ("none", ErrorCode.unknown_topic_or_partition)
    assert (views.error_code, views.is_internal) == (ErrorCode.none, False)
    assert str(views.topic_id) == distlog.open(f"{gateway.root}/views").snapshot.topic_id
    assert {partition.leader_id for partition in views.partitions} == {gateway.broker.cluster.node.id}
    # not null, which ends the Java client's call with a NullPointerException
    assert {(partition.eligible_leader_replicas, partition.last_known_elr) for partition in views.partitions} == {
        ((), ())
    }
    assert reply.next_cursor is None
    names = [name for name, _ in listed_partitions(partitions(wire, ()))]
    assert names == ["__consumer_offsets", "__transaction_state", "clicks", "views"]


def test_only_the_topics_of_gateways_are_internal_which_readers_by_pattern_pass_over(
    wire: Wire, gateway: GatewayServer
) -> None:
    distlog.create(f"{gateway.root}/__heartbeats")
    response = wire.ask(
        METADATA, 12, topics=None, allow_auto_topic_creation=False, include_topic_authorized_operations=False
    )
    internal = {"__consumer_offsets": True, "__transaction_state": True, "__heartbeats": False}
    assert {topic.name: topic.is_internal for topic in response.topics} == {
        "clicks": False,
        "views": False,
        **internal,
    }
    described = partitions(wire, ("__heartbeats", "__consumer_offsets")).topics
    assert [topic.is_internal for topic in described] == [True, False]


def test_a_description_continues_at_its_cursor(wire: Wire) -> None:
    actual, cursor = list[tuple[str, list[int]]](), None
    while True:
        reply = partitions(wire, ("clicks", "views"), 3, cursor)
        actual += listed_partitions(reply)
        if reply.next_cursor is None:
            break
        cursor = (reply.next_cursor.topic_name, reply.next_cursor.partition_index)
    assert actual == [("clicks", [0, 1]), ("views", [0]), ("views", [1, 2, 3]), ("views", [4])]
    reply = partitions(wire, ("clicks", "views"), 2)
    assert listed_partitions(reply) == [("clicks", [0, 1])]
    assert (reply.next_cursor.topic_name, reply.next_cursor.partition_index) == ("views", 0)


def test_resources_are_topics_and_brokers(wire: Wire) -> None:
    def listed(version: int, **fields: Any) -> list[tuple[int, str]]:
        response = wire.ask(RESOURCES, version, **fields)
        return [(resource.resource_type, resource.resource_name) for resource in response.config_resources]

    topics = [(TOPIC, name) for name in ("__consumer_offsets", "__transaction_state", "clicks", "views")]
    assert listed(1, resource_types=()) == [*topics, (BROKER, "0")]
    assert listed(1, resource_types=(BROKER,)) == [(BROKER, "0")]
    assert listed(1, resource_types=(METRICS,)) == []
    assert wire.ask(RESOURCES, 0).config_resources == ()


def test_no_leader_needs_an_election_and_nothing_is_reassigned(wire: Wire) -> None:
    schema, no_time = import_module("kio.schema.elect_leaders.v2.request"), datetime.timedelta(0)
    requested = schema.TopicPartitions(topic="clicks", partitions=(0, 7))
    response = wire.ask(ELECT, 2, election_type=0, topic_partitions=(requested,), timeout=no_time)
    ((result),) = response.replica_election_results
    codes = [partition.error_code for partition in result.partition_result]
    assert codes == [ErrorCode.election_not_needed, ErrorCode.unknown_topic_or_partition]
    assert wire.ask(ELECT, 2, election_type=0, topic_partitions=None, timeout=no_time).replica_election_results == ()
    moved = wire.ask(REASSIGNMENTS, 0, timeout=no_time, topics=None)
    assert (moved.error_code, moved.topics) == (ErrorCode.none, ())


def test_there_is_no_quorum(wire: Wire) -> None:
    schema = import_module("kio.schema.describe_quorum.v2.request")
    requested = schema.TopicData(
        topic_name="__cluster_metadata", partitions=(schema.PartitionData(partition_index=0),)
    )
    response = wire.ask(QUORUM, 2, topics=(requested,))
    # one after which a client does not ask again
    assert (response.error_code, response.error_code.retriable) == (ErrorCode.invalid_request, False)
    assert response.error_message == "gateways have no quorum: the storage decides"


def test_an_id_with_an_empty_name_is_accepted(wire: Wire, gateway: GatewayServer) -> None:
    topic_id = uuid.UUID(distlog.open(f"{gateway.root}/views").snapshot.topic_id)
    schema = import_module("kio.schema.metadata.v12.request")
    for name in ("", None):
        requested = schema.MetadataRequestTopic(topic_id=topic_id, name=name)
        (response,) = wire.ask(METADATA, 12, topics=(requested,), include_topic_authorized_operations=False).topics
        assert (response.error_code, response.name, response.topic_id) == (ErrorCode.none, "views", topic_id)


def test_a_policy_is_a_list_and_the_id_of_a_gateway_is_the_one_that_it_has(wire: Wire) -> None:
    schema = import_module("kio.schema.describe_configs.v4.request")
    requested = [
        schema.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=(key,))
        for kind, name, key in ((TOPIC, "views", "cleanup.policy"), (BROKER, "0", "node.id"), (TOPIC, "clicks", ISR))
    ]
    response = wire.ask(CONFIGS, 4, resources=tuple(requested)).results
    ((policy,), (node,), (replicas,)) = [result.configs for result in response]
    assert (policy.value, policy.config_type) == ("delete", LIST)
    assert node.value == "0"
    # kafka-topics --describe --at-min-isr-partitions fails without it
    assert replicas.value == "1"
