"""CreateTopics answers in every version that the gateway speaks, the Java client's newest one too."""

from __future__ import annotations

import datetime
from importlib import import_module

import pytest
from gateways import Wire, opened
from gateways import gateway as gateway
from kio.schema.errors import ErrorCode

from distlog.gateway.apis.topics import CREATE_TOPICS
from distlog.gateway.gateway_server import GatewayServer


@pytest.mark.parametrize("version", range(CREATE_TOPICS.oldest, CREATE_TOPICS.newest + 1))
def test_a_topic_is_created_and_told_of_in_each_version(gateway: GatewayServer, version: int) -> None:
    schema = import_module(f"kio.schema.create_topics.v{version}.request")
    setting = schema.CreatableTopicConfig(name="retention.ms", value="1000")
    asked = schema.CreatableTopic(
        name="orders", num_partitions=3, replication_factor=-1, assignments=(), configs=(setting,)
    )
    with Wire(gateway) as wire:
        body = wire.ask(
            CREATE_TOPICS.key, version, topics=(asked,), timeout=datetime.timedelta(seconds=1), validate_only=False
        )
    (told,) = body.topics
    assert (told.name, told.error_code) == ("orders", ErrorCode.none)
    topic = opened(gateway, "orders")
    assert (topic.partitions, topic.config.overrides()) == (3, {"retention.ms": "1000"})
    if version >= 5:
        found = {each.name: (each.value, each.config_source) for each in told.configs}
        assert (told.num_partitions, found["retention.ms"], found["flush.messages"]) == (3, ("1000", 1), ("1", 5))
    if version >= 7:
        assert str(told.topic_id) == topic.snapshot.topic_id
