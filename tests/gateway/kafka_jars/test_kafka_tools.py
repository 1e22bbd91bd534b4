"""Kafka's own tools and consoles, which use its Java clients, against the gateway."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gateways import Wire, open_topic, serving
from kafka_broker import dump, needs_kafka, tool
from transacting import values_seen
from transactional_clients import RawProducer

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


def test_kafkas_tools_write_read_and_describe(gateway: GatewayServer) -> None:
    server = ("--bootstrap-server", gateway.address)
    props = ("--producer-props", f"bootstrap.servers={gateway.address}", "enable.idempotence=true")
    records = ("--topic", "clicks", "--num-records", "1000", "--record-size", "100", "--throughput", "-1")
    assert "1000 records sent" in tool("org.apache.kafka.tools.ProducerPerformance", *records, *props)
    assert sum(open_topic(gateway).end_offsets().values()) == 1000
    offsets = tool("org.apache.kafka.tools.GetOffsetShell", *server, "--topic", "clicks")
    assert sum(int(line.split(":")[2]) for line in offsets.splitlines() if line.startswith("clicks:")) == 1000
    topic = tool("org.apache.kafka.tools.TopicCommand", *server, "--describe", "--topic", "clicks")
    assert "PartitionCount: 2" in topic
    configs = tool("kafka.admin.ConfigCommand", *server, "--describe", "--all", "--broker", "0")
    assert f"advertised.listeners=PLAINTEXT://{gateway.address} sensitive=false synonyms=" in configs
    assert "max.connections=2000 sensitive=false" in configs


def test_a_topic_is_created_written_and_read_on_the_console(gateway: GatewayServer) -> None:
    position = ("--bootstrap-server", gateway.address)
    tool(
        f"{TOOLS}.TopicCommand",
        *position,
        "--create",
        "--topic",
        "words",
        "--partitions",
        "2",
        "--replication-factor",
        "1",
    )
    keyed = ("--property", "parse.key=true", "--property", "key.separator=:")
    tool(f"{TOOLS}.ConsoleProducer", *position, "--topic", "words", *keyed, text="one:eins\ntwo:zwei\nthree:drei\n")
    rows = open_topic(gateway, "words").scan().to_table().to_pylist()
    assert {row["key"]: row["value"] for row in rows} == {b"one": b"eins", b"two": b"zwei", b"three": b"drei"}
    group = ("--group", "readers", "--from-beginning", "--max-messages", "3", "--property", "print.key=true")
    read = tool(f"{TOOLS}.consumer.ConsoleConsumer", *position, "--topic", "words", *group, "--timeout-ms", "60000")
    assert {line for line in read.splitlines() if "\t" in line} == {"one\teins", "two\tzwei", "three\tdrei"}


def test_the_console_changes_topics_and_shows_the_settings_of_the_gateway(gateway: GatewayServer) -> None:
    position = ("--bootstrap-server", gateway.address)
    topics, settings = f"{TOOLS}.TopicCommand", "kafka.admin.ConfigCommand"
    tool(topics, *position, "--create", "--topic", "words", "--config", "retention.ms=1000")
    tool(topics, *position, "--alter", "--topic", "words", "--partitions", "3")
    of_topic = ("--entity-type", "topics", "--entity-name", "words")
    tool(settings, *position, "--alter", *of_topic, "--add-config", "cleanup.policy=compact")
    assert open_topic(gateway, "words").partitions == 3
    assert "cleanup.policy=compact" in tool(settings, *position, "--describe", *of_topic)
    broker = tool(settings, *position, "--describe", "--entity-type", "brokers", "--entity-name", "0", "--all")
    assert "max.connections.per.ip=1000" in broker
    tool(topics, *position, "--delete", "--topic", "words")
    assert "words" not in tool(topics, *position, "--list").splitlines()


def events(output: str) -> list[Any]:
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def test_verifiable_clients_and_the_console_agree(gateway: GatewayServer, tmp_path: Path) -> None:
    position = ("--bootstrap-server", gateway.address)
    sent = tool(f"{TOOLS}.VerifiableProducer", *position, "--topic", "clicks", "--max-messages", "1000")
    assert sum(event["name"] == "producer_send_success" for event in events(sent)) == 1000
    read = tool(
        f"{TOOLS}.VerifiableConsumer",
        *position,
        *("--topic", "clicks", "--group-id", "billing", "--max-messages", "1000", "--reset-policy", "earliest"),
    )
    assert sum(event["count"] for event in events(read) if event["name"] == "records_consumed") == 1000
    shown = tool(f"{TOOLS}.consumer.group.ConsumerGroupCommand", *position, "--describe", "--group", "billing")
    rows = [line.split() for line in shown.splitlines() if line.startswith("billing")]
    assert {row[1] for row in rows} == {"clicks"}
    assert {row[5] for row in rows} == {"0"}
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
    position = ("--bootstrap-server", gateway.address)
    distlog.open(f"{gateway.root}/clicks").append([{"value": b"x", "partition": n % 2} for n in range(20)])
    command = (f"{TOOLS}.consumer.group.ConsumerGroupCommand", *position, "--group", "billing")
    tool(*command, "--reset-offsets", "--to-offset", "4", "--topic", "clicks", "--execute")
    rows = [line.split() for line in tool(*command, "--describe").splitlines() if line.startswith("billing")]
    assert [(row[3], row[4], row[5]) for row in rows] == [("4", "10", "6")] * 2
    tool(*command, "--delete")
    assert "billing" not in tool(f"{TOOLS}.consumer.group.ConsumerGroupCommand", *position, "--list")


def test_a_producer_in_java_commits_and_the_tools_show_transactions(gateway: GatewayServer, tmp_path: Path) -> None:
    position = ("--bootstrap-server", gateway.address)
    records = ("--topic", "clicks", "--num-records", "1000", "--record-size", "100", "--throughput", "2000")
    props = ("--producer-props", f"bootstrap.servers={gateway.address}", "linger.ms=0")
    transactions = ("--transactional-id", "perf", "--transaction-duration-ms", "50")
    sent = tool(f"{TOOLS}.ProducerPerformance", *records, *transactions, *props)
    assert "1000 records sent" in sent
    assert sum(map(len, values_seen(open_topic(gateway)).values())) == 1000
    with Wire(gateway) as wire:
        producer = RawProducer(wire)
        producer.init()
        producer.add(("clicks", 1))
        producer.send(b"v", 1)
        listed = tool(f"{TOOLS}.TransactionsCommand", *position, "list")
        assert [line.split()[3] for line in listed.splitlines() if line.startswith("payments")] == ["Ongoing"]
        peers = tool(f"{TOOLS}.TransactionsCommand", *position, "list", "--transactional-id-pattern", "per.")
        assert ("perf" in peers, "payments" in peers) == (True, False)
        described = tool(f"{TOOLS}.TransactionsCommand", *position, "describe", "--transactional-id", "payments")
        assert "clicks-1" in described
        of_partition = ("--topic", "clicks", "--partition", "1")
        writing = tool(f"{TOOLS}.TransactionsCommand", *position, "describe-producers", *of_partition)
        (line,) = [line.split() for line in writing.splitlines() if line.startswith(str(producer.producer_id))]
        assert line[-1].isdigit()
        producer.end(committed=False)
    distlog.open(f"{gateway.root}/__transaction_state").export(str(tmp_path / "exported"))
    logs = sorted((tmp_path / "exported").glob("*/*.log"))
    decoded = dump([log for log in logs if log.stat().st_size], "--transaction-log-decoder")
    assert '"transactionalId":"payments"' in decoded
    assert '"transactionStatus":1' in decoded
    assert '"topic":"clicks","partitionIds":[1]' in decoded
