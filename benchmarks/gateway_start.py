"""How long `distlog serve` takes on an object store from its start to its first acknowledgement, at 30 ms a request.

The topic has 1,000 partitions, and an hour of commits that nobody merged. moto's server plays S3: it waits 30 ms with
each request, and its own work comes on top. `tests/simulation/test_gateway_start.py` counts the same in simulated
time.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from confluent_kafka import KafkaException, Producer

import distlog
from benchmarks.kafka_peer import Peer
from benchmarks.s3_server import S3Server

PARTITIONS, COMMITS, WRITTEN, DELAY_S = 1000, 3600, 3, 0.03
ROUNDS = 3
_TOPIC, _PATIENCE_S = "events", 120


def run() -> Iterator[str]:
    """The seconds of each start: until the gateway listens, and until the first acknowledgement."""
    with S3Server() as server:
        root = f"{server.url}/{uuid.uuid4().hex}"
        topic = distlog.create(f"{root}/{_TOPIC}", PARTITIONS, storage_options=server.options)
        for number in range(COMMITS):
            topic.append([{"partition": (number + more) % PARTITIONS, "value": b"v"} for more in range(WRITTEN)])
        server.delay_s = DELAY_S
        with socket.create_server(("127.0.0.1", 0)) as free:
            # as a service that begins again has the same one
            address = f"127.0.0.1:{free.getsockname()[1]}"
        # the first gateway of a root makes the topics of groups and transactions
        for end in ("the first one", *("after one that was stopped", "after one that was killed") * ROUNDS):
            counts_before = Counter(server.by_method)
            with _gateway(root, address, server.options, is_killed=end.endswith("stopped")) as gateway:
                _acknowledged(address)
                told_s, cpu_s = time.monotonic() - gateway.began_s, gateway.peer.cpu_s()
                requests = (server.by_method - counts_before).total()
                times = f"listens after {gateway.listens_s:.2f} s, acknowledges after {told_s:.2f} s"
                yield f"{end}: {times}, {cpu_s:.2f} s of CPU, {requests} requests"


def _acknowledged(address: str) -> None:
    errors = list[object]()
    producer = Producer({"bootstrap.servers": address, "linger.ms": 0, "log_level": 0})
    with suppress(KafkaException):
        producer.produce(_TOPIC, b"v", partition=1, on_delivery=lambda error, _: errors.append(error))
    producer.flush(_PATIENCE_S)
    assert errors == [None], errors


class _Gateway(NamedTuple):
    """A gateway, when it was started, and after how many seconds it listens."""

    peer: Peer
    began_s: float
    listens_s: float


@contextmanager
def _gateway(root: str, address: str, options: dict[str, Any], *, is_killed: bool) -> Iterator[_Gateway]:
    command = [sys.executable, "-m", "distlog", "serve", "--root", root, "--listen", address, "--json"]
    command += [part for name, value in options.items() for part in ("--storage", f"{name}={value}")]
    began = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert json.loads(process.stdout.readline())["listen"] == address
        yield _Gateway(Peer(address, (process,)), began, time.monotonic() - began)
    finally:
        if is_killed:
            process.kill()
        else:
            process.terminate()
        process.wait()


if __name__ == "__main__":
    for line in run():
        print(line, flush=True)
