"""Kafka's console against the gateway: topics, settings, producer and consumer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from gateways import opened, serving
from kafka_broker import needs_kafka, tool

from distlog.gateway.config import GroupSettings
from distlog.gateway.gateway_server import GatewayServer

pytestmark = needs_kafka
TOOLS = "org.apache.kafka.tools"


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[GatewayServer]:
    with serving(tmp_path, groups=GroupSettings(initial_rebalance_delay_ms=0)) as served:
        yield served


def test_a_topic_is_created_written_and_read_on_the_console(gateway: GatewayServer) -> None:
    at = ("--bootstrap-server", gateway.address)
    tool(
        f"{TOOLS}.TopicCommand", *at, "--create", "--topic", "words", "--partitions", "2", "--replication-factor", "1"
    )
    keyed = ("--property", "parse.key=true", "--property", "key.separator=:")
    tool(f"{TOOLS}.ConsoleProducer", *at, "--topic", "words", *keyed, text="one:eins\ntwo:zwei\nthree:drei\n")
    rows = opened(gateway, "words").scan().to_table().to_pylist()
    assert {row["key"]: row["value"] for row in rows} == {b"one": b"eins", b"two": b"zwei", b"three": b"drei"}
    group = ("--group", "readers", "--from-beginning", "--max-messages", "3", "--property", "print.key=true")
    read = tool(f"{TOOLS}.consumer.ConsoleConsumer", *at, "--topic", "words", *group, "--timeout-ms", "60000")
    assert {line for line in read.splitlines() if "\t" in line} == {"one\teins", "two\tzwei", "three\tdrei"}


def test_the_console_changes_topics_and_shows_the_settings_of_the_gateway(gateway: GatewayServer) -> None:
    at = ("--bootstrap-server", gateway.address)
    topics, settings = f"{TOOLS}.TopicCommand", "kafka.admin.ConfigCommand"
    tool(topics, *at, "--create", "--topic", "words", "--config", "retention.ms=1000")
    tool(topics, *at, "--alter", "--topic", "words", "--partitions", "3")
    of_topic = ("--entity-type", "topics", "--entity-name", "words")
    tool(settings, *at, "--alter", *of_topic, "--add-config", "cleanup.policy=compact")
    assert opened(gateway, "words").partitions == 3
    assert "cleanup.policy=compact" in tool(settings, *at, "--describe", *of_topic)
    broker = tool(settings, *at, "--describe", "--entity-type", "brokers", "--entity-name", "0", "--all")
    assert "max.connections.per.ip=1000" in broker
    tool(topics, *at, "--delete", "--topic", "words")
    assert "words" not in tool(topics, *at, "--list").splitlines()
