"""Kafka's own tools, which use its Java clients, against the gateway."""

from __future__ import annotations

from gateways import gateway as gateway
from gateways import opened
from kafka_broker import needs_kafka, tool

from distlog.gateway.gateway_server import GatewayServer

pytestmark = needs_kafka


def test_kafkas_tools_write_read_and_describe(gateway: GatewayServer) -> None:
    server = ("--bootstrap-server", gateway.address)
    props = ("--producer-props", f"bootstrap.servers={gateway.address}", "enable.idempotence=true")
    records = ("--topic", "clicks", "--num-records", "1000", "--record-size", "100", "--throughput", "-1")
    assert "1000 records sent" in tool("org.apache.kafka.tools.ProducerPerformance", *records, *props)
    assert sum(opened(gateway).end_offsets().values()) == 1000
    offsets = tool("org.apache.kafka.tools.GetOffsetShell", *server, "--topic", "clicks")
    assert sum(int(line.split(":")[2]) for line in offsets.splitlines() if line.startswith("clicks:")) == 1000
    topic = tool("org.apache.kafka.tools.TopicCommand", *server, "--describe", "--topic", "clicks")
    assert "PartitionCount: 2" in topic
    configs = tool("kafka.admin.ConfigCommand", *server, "--describe", "--all", "--broker", "0")
    assert f"advertised.listeners=PLAINTEXT://{gateway.address} sensitive=false synonyms=" in configs
    assert "max.connections=2000 sensitive=false" in configs
