"""The gateway next to a real Kafka broker, by Kafka's own tools: throughput, latency, idle connections.

Both have one log directory on this machine, no replicas, and the same flush policy: none (Kafka's default), or a sync
before each response (distlog's default). Before all else both have taken as many records as each case sends. Without
Kafka's jars there is nothing to measure with, and it says so.
"""

from __future__ import annotations

import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks import kafka_peer
from benchmarks.kafka_peer import Peer

BYTES = 150_000_000
#: Partitions of the topics.
SINGLE, SEVERAL = 1, 6
POLICIES = {"not synced": 1 << 62, "synced": 1}
#: The bytes that a producer collects for a request.
BATCHES = {"batches of 16 KB": (), "batches of 128 KB": ("batch.size=131072", "linger.ms=10")}
IDLE = 1000


def run(size: int = BYTES) -> list[dict[str, Any]]:
    """One dict per case; rates in MB/s of values, latencies in ms at 1,000 records a second."""
    if not kafka_peer.has_kafka():
        print("gateway_beside_kafka: left out, it needs Java and DISTLOG_KAFKA_JARS", file=sys.stderr)
        return []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        theirs = stack.enter_context(kafka_peer.broker(Path(folder)))
        with kafka_peer.gateways(f"{folder}/one") as ours:
            rows = list(_measured(ours, theirs, size, "1 process"))
        with kafka_peer.gateways(f"{folder}/two", 2) as ours:
            rows += _produce(ours, theirs, size, "2 processes", "not synced", 1000, "batches of 128 KB", producers=2)
    return rows


def _measured(ours: Peer, theirs: Peer, size: int, name: str) -> Iterator[dict[str, Any]]:
    # a broker's Java compiles what it does often
    list(_produce(ours, theirs, size, "warm-up", "not synced", 1000, "batches of 16 KB"))
    for partitions in (SINGLE, SEVERAL):
        for value_bytes in (100, 1000):
            for batches in BATCHES:
                yield from _produce(ours, theirs, size, name, "not synced", value_bytes, batches, partitions)
    yield from _produce(ours, theirs, size // 5, name, "synced", 1000, "batches of 128 KB")
    for policy in POLICIES:
        yield from _latency(ours, theirs, policy)
    for case, idempotent in (("a record a request", False), ("a record a request, idempotent", True)):
        topic = f"single-{idempotent}".lower()
        rows = []
        for peer in (ours, theirs):
            _create(peer, topic, "not synced")
            rows.append(kafka_peer.single_latencies_ms(peer, topic, records=4000, rate=1000, idempotent=idempotent))
        for number, name in enumerate(("median", "99th percentile")):
            yield _row(f"latency of librdkafka, {case}, {name}", rows[0][number], rows[1][number], "ms", digits=2)
    memory = [_kib_of_idle_connections(peer) for peer in (ours, theirs)]
    yield _row(f"memory of one of {IDLE} idle connections", *memory, "KiB")


def _produce(
    ours: Peer,
    theirs: Peer,
    size: int,
    name: str,
    policy: str,
    value_bytes: int,
    batches: str,
    partitions: int = SEVERAL,
    producers: int = 1,
) -> Iterator[dict[str, Any]]:
    """Measure producers of a new topic, and then its consumer."""
    rates, spent, read = list[float](), list[float](), list[float]()
    topic = f"{value_bytes}-{batches}-{policy}-{partitions}-{name}".replace(" ", "-")
    records = size // value_bytes
    for peer in (ours, theirs):
        _create(peer, topic, policy, partitions)
        # what is compiled at first use is not measured
        kafka_peer.produced(peer.address, topic, records=1000, size=value_bytes)
        cpu_before_s = peer.cpu_s()
        lines = kafka_peer.produced(
            peer.address, topic, records=records, size=value_bytes, producers=producers, config=BATCHES[batches]
        )
        spent.append((peer.cpu_s() - cpu_before_s) / size * 1e8)
        rates.append(kafka_peer.megabytes_a_second(lines))
        read.append(kafka_peer.consumed(peer, topic, records // producers * producers))
    case = f"{value_bytes} bytes, {batches}, partitions: {partitions}, {policy}, {name}"
    yield _row(f"produce, {case}", *rates, "MB/s")
    yield _row(f"CPU time of the server: produce, {case}", *spent, "s/100 MB")
    yield _row(f"consume, {case}", *read, "MB/s")


def _latency(ours: Peer, theirs: Peer, policy: str) -> Iterator[dict[str, Any]]:
    rows = []
    for peer in (ours, theirs):
        _create(peer, f"latency-{policy.replace(' ', '-')}", policy)
        topic = f"latency-{policy.replace(' ', '-')}"
        kafka_peer.produced(peer.address, topic, records=1000, size=1000, rate=1000)
        (line,) = kafka_peer.produced(peer.address, topic, records=4000, size=1000, rate=1000)
        rows.append(kafka_peer.latencies_ms(line))
    for number, name in enumerate(("median", "99th percentile")):
        yield _row(f"latency, {name}, {policy}", rows[0][number], rows[1][number], "ms")


def _create(peer: Peer, topic: str, policy: str, partitions: int = SEVERAL) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    config = {"flush.messages": str(POLICIES[policy])}
    admin = AdminClient({"bootstrap.servers": peer.address, "log_level": 0})
    (creation,) = admin.create_topics([NewTopic(topic, partitions, 1, config=config)]).values()
    creation.result(60)


def _kib_of_idle_connections(peer: Peer) -> float:
    host, port = peer.address.split(",")[0].split(":")
    memory_before = peer.memory_kib()
    # ApiVersions 0, which all clients send first
    request = bytes.fromhex("0000000a001200000000000100" + "00")
    with ExitStack() as stack:
        for _ in range(IDLE):
            client = stack.enter_context(socket.create_connection((host, int(port))))
            client.sendall(request)
            client.recv(1 << 16)
        time.sleep(1)
        return (peer.memory_kib() - memory_before) / IDLE


def _row(case: str, ours: float, theirs: float, unit: str, digits: int = 1) -> dict[str, Any]:
    more, less = (ours, theirs) if unit == "MB/s" else (theirs, ours)
    return {
        "benchmark": "gateway_beside_kafka",
        "case": case,
        "distlog": round(ours, digits),
        "peer": round(theirs, digits),
        "peer_name": "Kafka's broker",
        "unit": unit,
        "ratio": round(more / less, 2) if less else 0.0,
    }
