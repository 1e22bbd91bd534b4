"""CreateTopics answers in every version, and it and CreatePartitions refuse what a broker refuses, in its words."""

from __future__ import annotations

import datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from gateways import METADATA, Wire, open_topic, serving
from gateways import gateway as gateway
from kio.schema.errors import ErrorCode

import distlog
from distlog.gateway.apis import APIS
from distlog.gateway.gateway_server import GatewayServer

CREATE_TOPICS, CREATE_PARTITIONS = APIS[19], APIS[37]


@pytest.mark.parametrize("version", range(CREATE_TOPICS.oldest, CREATE_TOPICS.newest + 1))
def test_each_version_creates_and_reports_a_topic(gateway: GatewayServer, version: int) -> None:
    schema = import_module(f"kio.schema.create_topics.v{version}.request")
    setting = schema.CreatableTopicConfig(name="retention.ms", value="1000")
    requested = schema.CreatableTopic(
        name="orders", num_partitions=3, replication_factor=-1, assignments=(), configs=(setting,)
    )
    with Wire(gateway) as wire:
        body = wire.ask(
            CREATE_TOPICS.key,
            version,
            topics=(requested,),
            timeout=datetime.timedelta(seconds=1),
            validate_only=False,
        )
    (reply,) = body.topics
    assert (reply.name, reply.error_code) == ("orders", ErrorCode.none)
    topic = open_topic(gateway, "orders")
    assert (topic.partitions, topic.config.overrides()) == (3, {"retention.ms": "1000"})
    if version >= 5:
        actual = {config.name: (config.value, config.config_source) for config in reply.configs}
        assert (reply.num_partitions, actual["retention.ms"], actual["flush.messages"]) == (3, ("1000", 1), ("1", 5))
    if version >= 7:
        assert str(reply.topic_id) == topic.snapshot.topic_id


def created(wire: Wire, *names: str, validate_only: bool = False, **fields: Any) -> list[tuple[str, str | None]]:
    topics = [{"name": name, "num_partitions": 1, "replication_factor": 1, **fields} for name in names]
    response = wire.plain(CREATE_TOPICS.key, 5, topics=topics, validate_only=validate_only)
    return [(topic.error_code.name, topic.error_message) for topic in response.topics]


def test_a_topic_whose_metrics_would_have_the_name_of_another_one_is_refused(gateway: GatewayServer) -> None:
    distlog.create(f"{gateway.root}/a.b")
    collides = [("invalid_topic_exception", "Topic 'a_b' collides with existing topic: a.b")]
    with Wire(gateway) as wire:
        assert created(wire, "a_b") == collides
        assert created(wire, "a_b", validate_only=True) == collides
        assert created(wire, "a.b") == [("topic_already_exists", "Topic 'a.b' already exists.")]
        assert created(wire, "a-b", "ab") == [("none", None)] * 2
        # also with one that the gateway has just created
        assert created(wire, "c_d.e") == [("none", None)]
        assert created(wire, "c.d_e")[0][0] == "invalid_topic_exception"
        # a library has no metrics: a topic that it creates next to another one exists for clients
        distlog.create(f"{gateway.root}/a_b")
        assert created(wire, "a_b") == [("topic_already_exists", "Topic 'a_b' already exists.")]


def test_a_topic_may_have_the_name_that_a_dropped_one_had_with_a_period(gateway: GatewayServer) -> None:
    distlog.create(f"{gateway.root}/a.b").drop()
    with Wire(gateway) as wire:
        assert created(wire, "a_b") == [("none", None)]


def test_automatic_creation_refuses_names_with_colliding_metrics(tmp_path: Path) -> None:
    distlog.create(str(tmp_path / "a.b"))
    with serving(tmp_path, auto_create_topics=True) as gateway, Wire(gateway) as wire:
        requested = [{"name": name} for name in ("a_b", "a-b")]
        response = wire.plain(METADATA, 9, topics=requested, allow_auto_topic_creation=True)
    assert [topic.error_code.name for topic in response.topics] == ["invalid_topic_exception", "none"]
    assert sorted(folder.name for folder in tmp_path.glob("a*")) == ["a-b", "a.b"]


@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        ({"replication_factor": 0}, "invalid_replication_factor", "Replication factor must be larger than 0"),
        ({"replication_factor": -2}, "invalid_replication_factor", "Replication factor must be larger than 0"),
        ({"configs": [{"name": "retention.ms", "value": None}]}, "invalid_config", "Null value not supported"),
        ({"assignments": [{"partition_index": 0, "broker_ids": [0]}]}, "invalid_request", "numPartitions was not"),
    ],
)
def test_a_topic_that_a_broker_refuses_is_refused(
    gateway: GatewayServer, fields: dict[str, Any], code: str, text: str
) -> None:
    with Wire(gateway) as wire:
        ((actual, reason),) = created(wire, "orders", **fields)
    assert (actual, text in (reason or "")) == (code, True)


#: The brokers of partitions: Kafka's error message for them, or None.
ASSIGNMENTS = [
    ([(0, [0]), (1, [1, 2])], None),
    ([(0, [])], "The manual partition assignment includes an empty replica list."),
    ([(0, [1, 1])], "The manual partition assignment includes a broker more than once."),
    ([(0, [0]), (2, [0])], "partitions should be a consecutive 0-based integer sequence"),
    ([(0, [0]), (0, [0])], "partitions should be a consecutive 0-based integer sequence"),
]


@pytest.mark.parametrize(("assigned", "text"), ASSIGNMENTS)
def test_brokers_that_are_assigned_by_hand_are_checked(
    gateway: GatewayServer, assigned: list[tuple[int, list[int]]], text: str | None
) -> None:
    assignments = [{"partition_index": number, "broker_ids": brokers} for number, brokers in assigned]
    with Wire(gateway) as wire:
        reply = created(wire, "orders", num_partitions=-1, replication_factor=-1, assignments=assignments)
    assert reply == [("none" if text is None else "invalid_replica_assignment", text)]
    if text is None:
        assert open_topic(gateway, "orders").partitions == len(assigned)


@pytest.mark.parametrize(
    ("brokers", "text"),
    [
        ([], "Attempted to add 1 additional partition(s), but only 0 assignment(s) were specified."),
        ([[0], [0]], "Attempted to add 1 additional partition(s), but only 2 assignment(s) were specified."),
        ([[]], "The manual partition assignment includes an empty replica list."),
        ([[3, 3]], "The manual partition assignment includes a broker more than once."),
        ([[3]], None),
        (None, None),
    ],
)
def test_partitions_are_added_only_with_as_many_assignments(
    gateway: GatewayServer, brokers: list[list[int]] | None, text: str | None
) -> None:
    assignments = None if brokers is None else [{"broker_ids": broker} for broker in brokers]
    topics = [{"name": "clicks", "count": 3, "assignments": assignments}]
    with Wire(gateway) as wire:
        (response,) = wire.plain(CREATE_PARTITIONS.key, 3, topics=topics).results
    code = ErrorCode.none if text is None else ErrorCode.invalid_replica_assignment
    assert (response.error_code, response.error_message) == (code, text)
    assert open_topic(gateway).partitions == (3 if text is None else 2)


def test_a_missing_topic_has_the_error_message_of_a_broker(gateway: GatewayServer) -> None:
    topics = [{"name": "nosuch", "count": 3, "assignments": None}]
    with Wire(gateway) as wire:
        (response,) = wire.plain(CREATE_PARTITIONS.key, 3, topics=topics).results
    # the library's own message has an address, which clients must not get
    text = "This server does not host this topic-partition."
    assert (response.error_code, response.error_message) == (ErrorCode.unknown_topic_or_partition, text)
