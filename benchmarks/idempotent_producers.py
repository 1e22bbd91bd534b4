"""librdkafka's idempotent producer through the gateway and its plain one, on a local root and on moto's S3 server.

The records have 1 KB, in batches of up to 128 KB or 1 MB (librdkafka's default), for four partitions. The gateway and
the server are processes of their own. An idempotent producer has five requests in flight, as the second plain one, so
it sends five batches to a server in the time of a commit. A mock cluster of librdkafka, which stores nothing and
responds after 2 ms, shows what idempotence takes in the client.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import distlog
from benchmarks.s3_server import server_process

TOPIC, PARTITIONS, VALUE, ROUNDS = "events", 4, b"v" * 1000, 3
#: The bytes of values for each root, and the largest batch.
CASES = {
    "local root": (200_000_000, 128 << 10),
    "local root, not synced": (200_000_000, 128 << 10),
    "S3 server, 128 KB": (50_000_000, 128 << 10),
    "S3 server, 1 MB": (200_000_000, 1_000_000),
    "mock cluster": (200_000_000, 128 << 10),
}
_MOCK_CLUSTER = {"test.mock.num.brokers": 1, "test.mock.broker.rtt": 2}
_UNSYNCED = 1 << 40
PRODUCERS: dict[str, dict[str, Any]] = {
    "idempotent": {"enable.idempotence": True},
    "plain": {},
    "plain, 5 requests in flight": {"max.in.flight": 5},
}


def run(scale: float = 1.0) -> list[dict[str, Any]]:
    """Medians of some rounds in MB/s of values, one dict per root and kind of plain producer."""
    return [row for name, (size, batch) in CASES.items() for row in _measure(name, int(scale * size), batch)]


def _measure(root_name: str, size: int, batch_bytes: int) -> Iterator[dict[str, Any]]:
    rates: dict[str, list[float]] = {name: [] for name in PRODUCERS}
    for _ in range(ROUNDS):
        for name, settings in PRODUCERS.items():
            with _cluster(root_name) as cluster:
                rates[name].append(_produce({**cluster, "batch.size": batch_bytes, **settings}, size // len(VALUE)))
    idempotent, *plain = ((name, statistics.median(rounds)) for name, rounds in rates.items())
    for name, rate in plain:
        yield {
            "benchmark": "idempotent producers",
            "case": f"{root_name}, {PARTITIONS} partitions",
            "distlog": round(idempotent[1], 1),
            "peer": round(rate, 1),
            "peer_name": name,
            "unit": "MB/s",
            "ratio": round(idempotent[1] / rate, 2),
        }


@contextmanager
def _cluster(name: str) -> Iterator[Mapping[str, Any]]:
    """The settings of a client for a new gateway, or a mock cluster."""
    if name == "mock cluster":
        yield _MOCK_CLUSTER
    elif name.startswith("S3"):
        with server_process() as server, _served(f"{server.url}/{uuid.uuid4().hex}", server.options, {}) as address:
            yield {"bootstrap.servers": address}
    else:
        config = {"flush.messages": _UNSYNCED} if "not synced" in name else {}
        with tempfile.TemporaryDirectory() as root, _served(root, {}, config) as address:
            yield {"bootstrap.servers": address}


@contextmanager
def _served(root: str, options: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[str]:
    distlog.create(f"{root}/{TOPIC}", PARTITIONS, config=config, storage_options=options)
    command = [sys.executable, "-m", "distlog", "serve", "--root", root, "--listen", "127.0.0.1:0", "--json"]
    command += [part for name, value in options.items() for part in ("--storage", f"{name}={value}")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())["listen"]
    finally:
        process.terminate()
        process.wait()


def _produce(settings: Mapping[str, Any], records: int) -> float:
    """The MB/s of values that a producer delivers, after some that it delivers first."""
    from confluent_kafka import Producer

    errors: list[Any] = []
    producer = Producer(
        {
            "linger.ms": 5,
            "queue.buffering.max.messages": records,
            "queue.buffering.max.kbytes": 1 << 20,
            **settings,
        }
    )

    def on_delivery(error: Any, _: Any) -> None:
        if error is not None:
            errors.append(error)

    def deliver(count: int) -> float:
        start_s = time.perf_counter()
        for number in range(count):
            producer.produce(TOPIC, VALUE, partition=number % PARTITIONS, on_delivery=on_delivery)
        assert producer.flush(300) == 0
        assert not errors, errors[0]
        return count * len(VALUE) / (time.perf_counter() - start_s) / 1e6

    deliver(PARTITIONS * 200)
    return deliver(records)
