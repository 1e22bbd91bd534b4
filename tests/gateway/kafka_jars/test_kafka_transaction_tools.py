"""Kafka's own clients and tools with transactions: a producer in Java, its admin client, and its dump."""

from __future__ import annotations

from pathlib import Path

from gateways import Wire, opened
from gateways import gateway as gateway
from kafka_broker import dump, needs_kafka, tool
from transacting import seen
from transactional_clients import RawProducer

import distlog
from distlog.gateway.gateway_server import GatewayServer

pytestmark = needs_kafka
TOOLS = "org.apache.kafka.tools"


def test_a_producer_in_java_commits_and_the_tools_show_transactions(gateway: GatewayServer, tmp_path: Path) -> None:
    at = ("--bootstrap-server", gateway.address)
    records = ("--topic", "clicks", "--num-records", "1000", "--record-size", "100", "--throughput", "2000")
    props = ("--producer-props", f"bootstrap.servers={gateway.address}", "linger.ms=0")
    transactions = ("--transactional-id", "perf", "--transaction-duration-ms", "50")
    sent = tool(f"{TOOLS}.ProducerPerformance", *records, *transactions, *props)
    assert "1000 records sent" in sent
    assert sum(map(len, seen(opened(gateway)).values())) == 1000
    with Wire(gateway) as wire:
        producer = RawProducer(wire)
        producer.init()
        producer.add(("clicks", 1))
        producer.send(b"v", 1)
        listed = tool(f"{TOOLS}.TransactionsCommand", *at, "list")
        assert [line.split()[3] for line in listed.splitlines() if line.startswith("payments")] == ["Ongoing"]
        others = tool(f"{TOOLS}.TransactionsCommand", *at, "list", "--transactional-id-pattern", "per.")
        assert ("perf" in others, "payments" in others) == (True, False)
        described = tool(f"{TOOLS}.TransactionsCommand", *at, "describe", "--transactional-id", "payments")
        assert "clicks-1" in described
        of_partition = ("--topic", "clicks", "--partition", "1")
        writing = tool(f"{TOOLS}.TransactionsCommand", *at, "describe-producers", *of_partition)
        (line,) = [line.split() for line in writing.splitlines() if line.startswith(str(producer.producer_id))]
        # where its open transaction begins
        assert line[-1].isdigit()
        producer.end(committed=False)
    distlog.open(f"{gateway.root}/__transaction_state").export(str(tmp_path / "exported"))
    logs = sorted((tmp_path / "exported").glob("*/*.log"))
    decoded = dump([each for each in logs if each.stat().st_size], "--transaction-log-decoder")
    assert '"transactionalId":"payments"' in decoded
    # by its number: Ongoing
    assert '"transactionStatus":1' in decoded
    assert '"topic":"clicks","partitionIds":[1]' in decoded
