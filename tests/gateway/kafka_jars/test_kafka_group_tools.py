"""Kafka's own tools work with the gateway: groups by the console, verified producers and consumers, its dump."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gateways import serving
from kafka_broker import dump, needs_kafka, tool

import distlog
from distlog.gateway.config import GroupSettings
from distlog.gateway.gateway_server import GatewayServer

pytestmark = needs_kafka
TOOLS = "org.apache.kafka.tools"


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[GatewayServer]:
    distlog.create(str(tmp_path / "clicks"), partitions=2)
    with serving(tmp_path, groups=GroupSettings(initial_rebalance_delay_ms=0)) as served:
        yield served


def events(output: str) -> list[Any]:
    """What a verified client says it did."""
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def test_what_a_verified_producer_sent_a_verified_consumer_takes_and_the_console_describes_its_group(
    gateway: GatewayServer, tmp_path: Path
) -> None:
    at = ("--bootstrap-server", gateway.address)
    sent = tool(f"{TOOLS}.VerifiableProducer", *at, "--topic", "clicks", "--max-messages", "1000")
    assert sum(each["name"] == "producer_send_success" for each in events(sent)) == 1000
    read = tool(
        f"{TOOLS}.VerifiableConsumer",
        *at,
        *("--topic", "clicks", "--group-id", "billing", "--max-messages", "1000", "--reset-policy", "earliest"),
    )
    assert sum(each["count"] for each in events(read) if each["name"] == "records_consumed") == 1000
    shown = tool(f"{TOOLS}.consumer.group.ConsumerGroupCommand", *at, "--describe", "--group", "billing")
    rows = [line.split() for line in shown.splitlines() if line.startswith("billing")]
    assert {row[1] for row in rows} == {"clicks"}
    assert {row[5] for row in rows} == {"0"}  # the lag
    distlog.open(f"{gateway.root}/__consumer_offsets").export(str(tmp_path / "exported"))
    (log,) = (file for file in (tmp_path / "exported").glob("*/*.log") if file.stat().st_size)
    decoded = dump([log], "--offsets-decoder")
    assert '"group":"billing","topic":"clicks"' in decoded
    assert '"protocolType":"consumer"' in decoded


def test_kafka_configs_sets_and_describes_a_group(gateway: GatewayServer) -> None:
    command = ("kafka.admin.ConfigCommand", "--bootstrap-server", gateway.address, "--entity-type", "groups")
    setting = "consumer.session.timeout.ms"
    assert "Completed updating" in tool(*command, "--entity-name", "g", "--alter", "--add-config", f"{setting}=50000")
    assert f"{setting}=50000" in tool(*command, "--describe")
    wrong = tool(*command, "--entity-name", "g", "--alter", "--add-config", f"{setting}=1", check=False)
    assert "must be greater than or equal to group.consumer.min.session.timeout.ms" in wrong


def test_the_console_moves_a_group(gateway: GatewayServer) -> None:
    at = ("--bootstrap-server", gateway.address)
    distlog.open(f"{gateway.root}/clicks").append([{"value": b"x", "partition": n % 2} for n in range(20)])
    command = (f"{TOOLS}.consumer.group.ConsumerGroupCommand", *at, "--group", "billing")
    tool(*command, "--reset-offsets", "--to-offset", "4", "--topic", "clicks", "--execute")
    rows = [line.split() for line in tool(*command, "--describe").splitlines() if line.startswith("billing")]
    assert [(row[3], row[4], row[5]) for row in rows] == [("4", "10", "6")] * 2
    tool(*command, "--delete")
    assert "billing" not in tool(f"{TOOLS}.consumer.group.ConsumerGroupCommand", *at, "--list")
