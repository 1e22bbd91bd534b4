"""The gateway and a real broker of Kafka as processes, and Kafka's own tools that measure them.

The broker and the tools need Java, and the jars in the folder that DISTLOG_KAFKA_JARS names (`make kafka-jars`).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

JARS = os.environ.get("DISTLOG_KAFKA_JARS", "")
_SETTINGS = Path(__file__).parents[1] / "tools" / "kafka" / "server.properties"


class Peer(NamedTuple):
    """A server under test: what clients take for bootstrap.servers, and its processes."""

    address: str
    processes: tuple[subprocess.Popen[str], ...]

    def cpu_s(self) -> float:
        """The CPU time that its processes have taken."""
        fields = [
            Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split() for process in self.processes
        ]
        return sum(int(process[11]) + int(process[12]) for process in fields) / os.sysconf("SC_CLK_TCK")

    def memory_kib(self) -> int:
        """The memory that its processes have, resident."""
        statuses = [Path(f"/proc/{process.pid}/status").read_text().split("VmRSS:")[1] for process in self.processes]
        return sum(int(process.split()[0]) for process in statuses)


def has_kafka() -> bool:
    """Whether the broker and the tools can run."""
    return bool(JARS and Path(JARS).is_dir() and shutil.which("java"))


@contextmanager
def gateways(root: str, count: int = 1) -> Iterator[Peer]:
    """`count` gateways over one root."""
    command = [sys.executable, "-m", "distlog", "serve", "--root", root, "--listen", "127.0.0.1:0", "--json"]
    command += ["--config", "max.connections.per.ip=5000", "--config", "max.connections=5000"]
    with ExitStack() as stack:
        processes = [stack.enter_context(_process(command, subprocess.PIPE)) for _ in range(count)]
        addresses = [json.loads(process.stdout.readline())["listen"] for process in processes if process.stdout]
        yield Peer(",".join(addresses), tuple(processes))


@contextmanager
def broker(folder: Path) -> Iterator[Peer]:
    """A broker with a log directory in `folder`."""
    port, controller = _free_port(), _free_port()
    settings = folder / "server.properties"
    settings.write_text(_SETTINGS.read_text().format(port=port, controller=controller, data=folder / "data"))
    tool("kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c", str(settings))
    with _process(_java("kafka.Kafka", "1g", str(settings)), subprocess.DEVNULL) as process:
        wait_for(port)
        yield Peer(f"127.0.0.1:{port}", (process,))


def tool(name: str, *arguments: str) -> str:
    """The output of one of Kafka's tools."""
    run = subprocess.run(_java(name, "512m", *arguments), capture_output=True, text=True, check=True)
    return run.stdout


def produced(
    peers: str, topic: str, *, records: int, size: int, rate: int = -1, producers: int = 1, config: Sequence[str] = ()
) -> list[str]:
    """The last lines of concurrent `kafka-producer-perf-test`."""
    sizes = ["--num-records", str(records // producers), "--record-size", str(size), "--throughput", str(rate)]
    props = ["--producer-props", f"bootstrap.servers={peers}", "acks=all", *config]
    command = _java("org.apache.kafka.tools.ProducerPerformance", "512m", "--topic", topic, *sizes, *props)
    pipe, none = subprocess.PIPE, subprocess.DEVNULL
    processes = [subprocess.Popen(command, stdout=pipe, stderr=none, text=True) for _ in range(producers)]
    return [process.communicate()[0].strip().splitlines()[-1] for process in processes]


def megabytes_a_second(lines: Sequence[str]) -> float:
    """The rate of all producers together: MB of 1,000,000 bytes."""
    return sum(float(match[1]) for line in lines if (match := re.search(r"\(([\d.]+) MB/sec\)", line))) * 1.048576


def latencies_ms(line: str) -> tuple[float, float]:
    """The median and the 99th percentile."""
    percentiles = {name: float(value) for value, name in re.findall(r"(\d+) ms (50|99)th", line)}
    return percentiles["50"], percentiles["99"]


def single_latencies_ms(peer: Peer, topic: str, *, records: int, rate: int, idempotent: bool) -> tuple[float, float]:
    """The median and the 99th percentile of librdkafka's, which sends each record by itself."""
    from confluent_kafka import Producer

    settings = {"bootstrap.servers": peer.address, "linger.ms": 0, "enable.idempotence": idempotent, "log_level": 0}
    producer, latencies, is_over = Producer(settings), list[float](), threading.Event()
    polls = threading.Thread(target=lambda: [producer.poll(0.01) for _ in iter(is_over.is_set, True)])
    polls.start()

    def noted(started_s: float, error: object, _: object) -> None:
        assert error is None
        latencies.append(time.perf_counter() - started_s)

    for count in (records // 2, records):
        # the first half warms both sides up
        latencies.clear()
        first_s = time.perf_counter()
        for number in range(count):
            time.sleep(max(first_s + number / rate - time.perf_counter(), 0))
            producer.produce(topic, b"v" * 1000, partition=0, on_delivery=partial(noted, time.perf_counter()))
        assert producer.flush(60) == 0
    is_over.set()
    polls.join()
    latencies.sort()
    return 1000 * latencies[len(latencies) // 2], 1000 * latencies[len(latencies) * 99 // 100]


def consumed(peer: Peer, topic: str, records: int) -> float:
    """MB/s of `kafka-consumer-perf-test`, without the time that it takes to join its group."""
    options = ("--bootstrap-server", peer.address, "--topic", topic, "--messages", str(records), "--timeout", "60000")
    printed = tool("org.apache.kafka.tools.ConsumerPerformance", *options).strip().splitlines()[-1].split(",")
    return float(printed[-2]) * 1.048576


def _java(name: str, memory: str, *arguments: str) -> list[str]:
    return ["java", f"-Xmx{memory}", "-cp", f"{JARS}/*", name, *arguments]


@contextmanager
def _process(command: Sequence[str], stdout: int) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(command, stdout=stdout, stderr=subprocess.DEVNULL, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(port: int) -> None:
    """Wait until a server of this machine listens at the port. Raises TimeoutError."""
    for _ in range(600):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise TimeoutError("a server did not begin")
