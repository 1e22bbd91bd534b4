"""librdkafka through the gateway on a local root, against librdkafka alone: its built-in mock, which stores nothing.

So the peer shows what the client itself can do. The gateway is a process of its own, as `distlog serve` runs it, with
one partition, and Kafka's habit of not syncing (`flush.messages`), and again with a sync before each response.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import distlog

BYTES = 100_000_000
ROUNDS = 3
SIZES = (100, 1000)
_UNSYNCED = 1 << 40


def run(size: int = BYTES) -> list[dict[str, Any]]:
    """Medians of some rounds in MB/s of values, one dict per case."""
    return [row for value_bytes in SIZES for row in _measured(value_bytes, size // value_bytes)]


def _measured(value_bytes: int, records: int) -> Iterator[dict[str, Any]]:
    rates: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        rates.setdefault("mock", []).append(_produced({"test.mock.num.brokers": 1}, value_bytes, records))
        for flushes, name in ((_UNSYNCED, "not synced"), (1, "synced")):
            with tempfile.TemporaryDirectory() as root, _gateway(root, flushes) as address:
                settings = {"bootstrap.servers": address}
                rates.setdefault(f"produce, {name}", []).append(_produced(settings, value_bytes, records))
                rates.setdefault("consume", []).append(_consumed(settings, value_bytes, records))
    theirs = statistics.median(rates.pop("mock"))
    for case, rate in rates.items():
        ours = statistics.median(rate)
        yield {
            "benchmark": "gateway",
            "case": f"{case}, {value_bytes} bytes a value",
            "distlog": round(ours, 1),
            "peer": round(theirs, 1),
            "peer_name": "librdkafka's mock, produce",
            "unit": "MB/s",
            "ratio": round(ours / theirs, 2),
        }


@contextmanager
def _gateway(root: str, flush_messages: int) -> Iterator[str]:
    distlog.create(f"{root}/events", config={"flush.messages": flush_messages})
    command = [sys.executable, "-m", "distlog", "serve", "--root", root, "--listen", "127.0.0.1:0", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())["listen"]
    finally:
        process.terminate()
        process.wait()


def _produced(settings: dict[str, Any], value_bytes: int, records: int) -> float:
    from confluent_kafka import Producer

    batching = {"linger.ms": 5, "batch.size": 1_000_000, "queue.buffering.max.kbytes": 1 << 20}
    producer = Producer({**settings, **batching, "queue.buffering.max.messages": records, "enable.idempotence": True})
    value = b"v" * value_bytes
    started = time.perf_counter()
    for _ in range(records):
        producer.produce("events", value, partition=0)
    assert producer.flush(300) == 0
    return records * value_bytes / (time.perf_counter() - started) / 1e6


def _consumed(settings: dict[str, Any], value_bytes: int, records: int) -> float:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({**settings, "group.id": "benchmark", "enable.auto.commit": False})
    consumer.assign([TopicPartition("events", 0, 0)])
    assert consumer.poll(60) is not None
    started, remaining = time.perf_counter(), records - 1
    while remaining:
        remaining -= len(consumer.consume(min(remaining, 10_000), 10))
    seconds = time.perf_counter() - started
    consumer.close()
    return records * value_bytes / seconds / 1e6
