"""`distlog serve --processes N`: real processes and clients, kills, and errors at the start."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from forked_programs import GATEWAY, Program, command, run
from waiting import until

import distlog
from distlog.gateway.config import GatewayConfig

confluent_kafka = pytest.importorskip("confluent_kafka")
pytest.importorskip("kio")

pytestmark = pytest.mark.long

PARTITIONS = 6


class Serving:
    """`distlog serve --json` with two processes."""

    def __init__(self, process: Program) -> None:
        self.process = process
        self.processes = sorted(self.events("started"), key=lambda entry: int(entry["process"]))
        self.pids = [entry["pid"] for entry in self.processes]
        self.addresses = ",".join(entry["listen"] for entry in self.processes)

    def events(self, name: str) -> list[dict[str, Any]]:
        assert self.process.stdout is not None
        events = [json.loads(self.process.stdout.readline()) for _ in range(2)]
        assert {event["event"] for event in events} == {name}
        return events

    def end(self, number: int = signal.SIGTERM) -> None:
        """Signal the command, and check that both processes end."""
        self.process.send_signal(number)
        assert all(event["finished"] for event in self.events("stopped"))
        assert self.process.wait(300) == 0
        assert not any(is_there(pid) for pid in self.pids)


def is_there(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


@contextmanager
def serving(root: Path, *options: object, stderr: int | None = None) -> Iterator[Serving]:
    # each process waits until the other one has checked, a tenth of that time
    quick = "--config", "broker.session.timeout.ms=3000"
    arguments = ("--root", root, "--listen", "127.0.0.1:0", "--processes", 2, "--json", *quick, *options)
    with ExitStack() as after:
        process = command("serve", *arguments, stdout=subprocess.PIPE, stderr=stderr)
        after.callback(process.kill)
        yield Serving(process)


def produced(addresses: str, values: range) -> int:
    """Return the number of acknowledged records in all partitions."""
    deliveries: list[Any] = []
    quick = {"reconnect.backoff.max.ms": 200, "log_level": 0}
    producer = confluent_kafka.Producer({"bootstrap.servers": addresses, "enable.idempotence": True, **quick})
    for number in values:
        producer.produce(
            "clicks",
            str(number).encode(),
            partition=number % PARTITIONS,
            on_delivery=lambda e, m: deliveries.append(e),
        )
    assert producer.flush(300) == 0
    return deliveries.count(None)


def test_clients_use_all_partitions_of_two_processes_and_sigterm_ends_both(tmp_path: Path) -> None:
    distlog.create(str(tmp_path / "clicks"), PARTITIONS)
    at_once = "--config", "group.initial.rebalance.delay.ms=0"
    with serving(tmp_path, "--metrics-port", 0, *at_once) as gateways:
        # the first response already names both processes: clients keep it for minutes
        for address in gateways.addresses.split(","):
            first = confluent_kafka.Producer({"bootstrap.servers": address}).list_topics(timeout=60)
            assert {process.leader for process in first.topics["clicks"].partitions.values()} == {0, 1}
        assert produced(gateways.addresses, range(600)) == 600
        settings = {"bootstrap.servers": gateways.addresses, "group.id": "g", "auto.offset.reset": "earliest"}
        consumer = confluent_kafka.Consumer(settings)
        consumer.subscribe(["clicks"])
        values = set[bytes]()
        until(lambda: values.update(process.value() for process in consumer.consume(600, 0.1)) or len(values) == 600)
        topic = consumer.list_topics("clicks").topics["clicks"]
        assert {process.leader for process in topic.partitions.values()} == {0, 1}
        brokers = {f"{process.host}:{process.port}" for process in consumer.list_topics().brokers.values()}
        assert brokers == set(gateways.addresses.split(","))
        consumer.close()
        ids = set()
        for process in gateways.processes:
            with urllib.request.urlopen(f"http://127.0.0.1:{process['metrics_port']}/") as response:
                text = response.read().decode()
            ids.update(re.findall(r"^distlog_gateway_node_id (\d+)", text, re.MULTILINE))
            assert "distlog_gateway_coordinated_partitions 25.0" in text
        assert ids == {"0", "1"}
        gateways.end()
    assert sum(distlog.open(str(tmp_path / "clicks")).end_offsets().values()) == 600


@pytest.mark.parametrize("number", [0, 1])
def test_a_killed_process_ends_the_command_without_loss(tmp_path: Path, number: int) -> None:
    topic = distlog.create(str(tmp_path / "clicks"), PARTITIONS)
    acknowledged = 0
    for _ in range(2):
        with serving(tmp_path, stderr=subprocess.PIPE) as gateways:
            acknowledged += produced(gateways.addresses, range(100))
            os.kill(gateways.pids[number], signal.SIGKILL)
            assert gateways.process.wait(300) == 1
            assert gateways.process.stderr is not None
            reason = f"process {number} (pid {gateways.pids[number]}) was killed by signal 9; all processes stop"
            assert reason in gateways.process.stderr.read()
            assert not any(is_there(pid) for pid in gateways.pids)
    assert acknowledged == 200
    values = [row["value"] for row in topic.refresh().scan().to_table().to_pylist()]
    assert sorted(values) == sorted(2 * [str(number).encode() for number in range(100)])


def test_a_stopped_process_does_not_end_the_command(tmp_path: Path) -> None:
    distlog.create(str(tmp_path / "clicks"), PARTITIONS)
    with serving(tmp_path) as gateways:
        os.kill(gateways.pids[1], signal.SIGSTOP)
        until(lambda: state(gateways.pids[1]) == "T")
        os.kill(gateways.pids[1], signal.SIGCONT)
        assert produced(gateways.addresses, range(10)) == 10
        gateways.end(signal.SIGINT)


def test_the_processes_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    with serving(tmp_path) as gateways:
        gateways.process.kill()
        # an orphan can stay a zombie until init reaps it
        until(lambda: not any(is_there(pid) and state(pid) != "Z" for pid in gateways.pids))


def state(pid: int) -> str:
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    return "Z"


def failed(root: object, *options: object) -> tuple[int, str]:
    arguments = ("serve", "--root", root, "--processes", 2, *options)
    process = run("distlog", *arguments, module=True, imports=[GATEWAY])
    return process.returncode, process.stderr


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--listen", "127.0.0.1:0", "--config", "max.connections=-5"), "max.connections must be between 0"),
        (("--listen", "127.0.0.1:0", "--ssl-certfile", "none"), "TLS needs --ssl-certfile and --ssl-keyfile"),
        (("--listen", "127.0.0.1:65535"), "need the ports from 65535 on, and 65535 is the last"),
    ],
)
def test_a_wrong_option_fails_before_the_processes_start(
    tmp_path: Path, options: tuple[str, ...], reason: str
) -> None:
    status, text = failed(tmp_path, *options)
    assert (status, reason in text, text.count("\n")) == (2, True, 1)


@pytest.mark.parametrize("number", [0, 1])
def test_a_port_in_use_ends_every_process(tmp_path: Path, number: int) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        status, text = failed(tmp_path, "--listen", f"127.0.0.1:{listener.getsockname()[1] - number}")
    assert (status, "cannot listen: Address already in use" in text) == (1, True)
    assert f"process {number} (pid " in text


ENDING = """
import signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
from distlog.cli.service_commands import fork_processes
sys.exit(fork_processes(3) or signal.pause())
"""


def test_the_exit_status_comes_from_the_first_ended_process() -> None:
    process = run(ENDING)
    assert process.returncode in (1, 2)
    assert f"ended with exit status {process.returncode}; all processes stop" in process.stderr


def test_processes_share_the_memory_limit_and_have_consecutive_ids() -> None:
    alone, second = GatewayConfig(node_id=7), GatewayConfig(node_id=7, process=1, processes=4)
    assert (alone.wanted_id, second.wanted_id, GatewayConfig(process=1, processes=4).wanted_id) == (7, 8, None)
    assert second.request_memory_limit == alone.request_memory_limit / 4 == alone.queued_max_request_bytes / 4
    assert second.fetch_memory_limit == alone.fetch_memory_limit / 4 == alone.fetch_memory_bytes / 4
