"""`distlog serve --processes N`: real processes and clients, kills, and the errors of a start."""

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
        assert process.stdout is not None
        self.process, self._lines = process, process.stdout
        self.started = self.event("started")
        self.addresses = self.started["listen"]
        self.pids = [each["pid"] for each in self.started["processes"]]

    def event(self, name: str) -> dict[str, Any]:
        """The next event, which is of that name."""
        found: dict[str, Any] = json.loads(self._lines.readline())
        assert found["event"] == name, found
        return found

    def end(self, number: int = signal.SIGTERM) -> None:
        """End the command, which is what its parent is told, and see that all of it is gone."""
        self.process.send_signal(number)
        assert self.event("stopped") == {"event": "stopped", "finished": True}
        assert self.process.wait(300) == 0
        assert not any(is_there(pid) for pid in self.pids)


def is_there(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


@contextmanager
def serving(root: Path, *options: object) -> Iterator[Serving]:
    # each waits until the other one has looked, a tenth of that
    quick = "--config", "broker.session.timeout.ms=3000"
    given = ("--root", root, "--listen", "127.0.0.1:0", "--processes", 2, "--json", *quick, *options)
    with ExitStack() as after:
        process = command("serve", *given, stdout=subprocess.PIPE)
        after.callback(process.kill)
        yield Serving(process)


def produced(addresses: str, values: range) -> int:
    """How many records of all partitions are acknowledged."""
    told: list[Any] = []
    quick = {"reconnect.backoff.max.ms": 200, "log_level": 0}
    producer = confluent_kafka.Producer({"bootstrap.servers": addresses, "enable.idempotence": True, **quick})
    for number in values:
        producer.produce(
            "clicks", str(number).encode(), partition=number % PARTITIONS, on_delivery=lambda e, m: told.append(e)
        )
    assert producer.flush(300) == 0
    return told.count(None)


def test_clients_use_all_partitions_of_two_processes_and_sigterm_ends_both(tmp_path: Path) -> None:
    distlog.create(str(tmp_path / "clicks"), PARTITIONS)
    at_once = "--config", "group.initial.rebalance.delay.ms=0"
    with serving(tmp_path, "--metrics-port", 0, *at_once) as gateways:
        # who asks first is told of both: clients keep that for minutes
        for address in gateways.addresses.split(","):
            first = confluent_kafka.Producer({"bootstrap.servers": address}).list_topics(timeout=60)
            assert {each.leader for each in first.topics["clicks"].partitions.values()} == {0, 1}
        assert produced(gateways.addresses, range(600)) == 600
        settings = {"bootstrap.servers": gateways.addresses, "group.id": "g", "auto.offset.reset": "earliest"}
        consumer = confluent_kafka.Consumer(settings)
        consumer.subscribe(["clicks"])
        values = set[bytes]()
        until(lambda: values.update(each.value() for each in consumer.consume(600, 0.1)) or len(values) == 600)
        topic = consumer.list_topics("clicks").topics["clicks"]
        assert {each.leader for each in topic.partitions.values()} == {0, 1}
        brokers = {f"{each.host}:{each.port}" for each in consumer.list_topics().brokers.values()}
        assert brokers == set(gateways.addresses.split(","))
        consumer.close()
        for each in gateways.started["processes"]:
            with urllib.request.urlopen(f"http://127.0.0.1:{each['metrics_port']}/") as response:
                text = response.read().decode()
            assert f"distlog_gateway_node_id {each['process']}.0" in text
            assert "distlog_gateway_coordinated_partitions 25.0" in text
        gateways.end()
    assert sum(distlog.open(str(tmp_path / "clicks")).end_offsets().values()) == 600


def test_a_killed_process_begins_again_at_its_address_and_nothing_is_lost(tmp_path: Path) -> None:
    topic = distlog.create(str(tmp_path / "clicks"), PARTITIONS)
    with serving(tmp_path) as gateways:
        acknowledged = produced(gateways.addresses, range(100))
        for number in (1, 0):
            os.kill(gateways.pids[number], signal.SIGKILL)
            ended = gateways.event("process-ended")
            assert (ended["process"], ended["pid"], ended["status"]) == (number, gateways.pids[number], -9)
            again = gateways.event("process-started")
            assert again["listen"] == gateways.started["processes"][number]["listen"]
            gateways.pids[number] = again["pid"]
            acknowledged += produced(again["listen"], range(100))
        gateways.end(signal.SIGINT)
    assert acknowledged == 300
    found = [row["value"] for row in topic.refresh().scan().to_table().to_pylist()]
    assert sorted(found) == sorted(3 * [str(number).encode() for number in range(100)])


def test_the_processes_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    with serving(tmp_path) as gateways:
        gateways.process.kill()
        # an orphan that has ended may wait for init as a zombie
        until(lambda: not any(is_there(pid) and state(pid) != "Z" for pid in gateways.pids))


def state(pid: int) -> str:
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    return "Z"


def failed(root: object, *options: object) -> tuple[int, str]:
    """The exit status and the error of a command that ends by itself, on one line."""
    given = ("serve", "--root", root, "--processes", 2, *options)
    done = run("distlog", *given, module=True, imports=[GATEWAY])
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    return done.returncode, done.stderr


def test_an_error_of_the_start_is_told_once_and_is_the_exit_status(tmp_path: Path) -> None:
    status, text = failed(tmp_path, "--listen", "127.0.0.1:0", "--config", "max.connections=-5")
    assert (status, "max.connections must be between 0 and 2147483647" in text) == (2, True)
    status, text = failed(tmp_path, "--listen", "127.0.0.1:0", "--ssl-certfile", "none")
    assert (status, "TLS needs --ssl-certfile and --ssl-keyfile" in text) == (2, True)
    status, text = failed(tmp_path, "--listen", "127.0.0.1:65535")
    assert (status, "there are not so many ports from 65535 on" in text) == (2, True)
    (tmp_path / "file").touch()
    status, text = failed(tmp_path / "file", "--listen", "127.0.0.1:0")
    assert (status, "Not a directory" in text) == (1, True)


@pytest.mark.parametrize("number", [0, 1])
def test_a_port_that_is_taken_ends_all(tmp_path: Path, number: int) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        status, text = failed(tmp_path, "--listen", f"127.0.0.1:{taken.getsockname()[1] - number}")
    assert (status, "cannot listen: Address already in use" in text) == (1, True)


@pytest.mark.s3
def test_a_bucket_that_is_not_there_is_an_error(s3_server: Any) -> None:
    options = [word for name, value in s3_server.options.items() for word in ("--storage", f"{name}={value}")]
    status, text = failed("s3://no-such-bucket/logs", "--listen", "127.0.0.1:0", *options)
    assert (status, "NoSuchBucket (HTTP 404)" in text) == (1, True)


PATCHED = """
import os, signal
from distlog.cli import main
from distlog.gateway import gateway_server
{}
main()
"""


def test_sigterm_during_the_start_does_not_wait_for_processes_that_do_not_begin(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    given = ("--root", tmp_path, "--listen", f"127.0.0.1:{port}", "--processes", 2, "--json")
    text = PATCHED.format("gateway_server._OTHERS_S = 1000")
    with ExitStack() as after:
        process = Program(text, "serve", *given, stdout=subprocess.PIPE, imports=[GATEWAY])
        after.callback(process.kill)
        until(lambda: Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())
        # so it does not begin the second one
        process.send_signal(signal.SIGSTOP)
        until(lambda: is_open(port))
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGCONT)
        assert process.stdout is not None
        assert json.loads(process.stdout.readline()) == {"event": "stopped", "finished": True}
        assert process.wait(300) == 0


def is_open(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


def test_sigterm_before_the_first_process_is_told_as_any_end(tmp_path: Path) -> None:
    text = PATCHED.format("gateway_server.warm_up = lambda: os.kill(os.getpid(), signal.SIGTERM)")
    given = ("serve", "--root", tmp_path, "--listen", "127.0.0.1:0", "--processes", 2, "--json")
    done = run(text, *given, imports=[GATEWAY])
    assert (done.returncode, done.stdout, done.stderr) == (0, '{"event": "stopped", "finished": true}\n', "")


ENDING = """
import os, signal, sys, time
from distlog.cli import processes
processes._PAUSES_S = (0.0, 0.01, 0.02)
all_of_them, ended = [], []
def tell(event, text, facts):
    print(event, text, flush=True)
    ended.extend([facts["process"]] if event == "process-ended" else [])
    if ended == [1] * 8:
        os.kill(all_of_them[0]["pid"], signal.SIGKILL)
def began(facts):
    all_of_them.extend(facts)
    return "all", {}
found = processes.run_processes(2, tell, began)
if isinstance(found, int):
    sys.exit(found)
found.tell("started", {"begun": found.number})
time.sleep(0.01)
if found.number or found.before:
    sys.exit(int(sys.argv[1])) if int(sys.argv[1]) >= 0 else os.kill(os.getpid(), -int(sys.argv[1]))
signal.pause()
"""


@pytest.mark.parametrize(("status", "told", "end"), [(-9, "killed by signal 9", 1), (3, "exit status 3", 3)])
def test_one_that_ends_again_and_again_begins_again_until_no_other_serves(status: int, told: str, end: int) -> None:
    done = run(ENDING, status)
    assert (done.returncode, done.stderr) == (end, "")
    *lines, last = [line for line in done.stdout.splitlines() if line.startswith("process-ended")]
    # as long as the other one serves
    assert all("process 1 " in line and f"{told}: it begins again in 0.0" in line for line in lines[:8])
    assert ["0.01 s" in line for line in lines[:8]] == [True, *[False] * 7]
    # and until that has ended as often
    assert sum("process 0 " in line for line in [*lines, last]) >= 5
    assert all("it begins again" in line for line in lines)
    assert re.search(rf"{told}, \d+ times soon after its beginning: all processes end$", last)


FULL = """
import errno, os, signal, sys
from distlog.cli import processes
processes._NO_FORK_PAUSE_S = 0.01
fork, asked, pids = os.fork, [], []
def full_for_a_while():
    asked.append(1)
    if 2 < len(asked) < 6:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return fork()
os.fork = full_for_a_while
def tell(event, text, facts):
    print(event, text, len(os.listdir("/proc/self/fd")), flush=True)
    if event == "started":
        os.kill(pids[1], signal.SIGKILL)
    if event == "process-started":
        os.kill(os.getpid(), signal.SIGTERM)
def began(facts):
    pids.extend(each["pid"] for each in facts)
    return "all", {}
found = processes.run_processes(2, tell, began)
if isinstance(found, int):
    sys.exit(found)
found.tell("started", {"begun": found.number})
signal.sigwait([signal.SIGTERM])
"""


def test_one_for_which_the_system_has_no_process_begins_again_when_it_has() -> None:
    done = run(FULL)
    assert (done.returncode, done.stderr) == (0, "")
    events = [line.split(" ", 1)[0] for line in done.stdout.splitlines()]
    assert events == ["started", "process-ended", *["process-waits"] * 3, "process-started", "stopped"]
    waits = [line for line in done.stdout.splitlines() if line.startswith("process-waits")]
    assert "process 1 cannot begin again: [Errno 11]" in waits[0]
    assert "it is tried again in 0.01 s" in waits[0]
    # and leaves no pipe open
    assert len({line.rpartition(" ")[2] for line in waits}) == 1


def test_a_process_begins_again_where_the_output_of_its_parent_cannot_be_written() -> None:
    unread = "import os, sys; reader, writer = os.pipe(); os.close(reader); sys.stdout = open(writer, 'w')\n"
    done = run(f"{unread}sys.stdout.write('not read')\n" + FULL.replace("flush=True", "file=sys.stderr"))
    assert done.returncode == 0
    assert [line.split(" ", 1)[0] for line in done.stderr.splitlines()][-2:] == ["process-started", "stopped"]


def test_processes_begin_again_and_end_where_the_starter_had_sigchld_ignored() -> None:
    done = run("import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n" + FULL)
    assert (done.returncode, done.stderr) == (0, "")
    assert "process 1 (pid " in done.stdout
    assert " was killed by signal 9: it begins again" in done.stdout


def test_processes_share_the_memory_and_have_ids_one_after_the_other() -> None:
    alone, second = GatewayConfig(node_id=7), GatewayConfig(node_id=7, process=1, processes=4)
    assert (alone.wanted_id, second.wanted_id, GatewayConfig(process=1, processes=4).wanted_id) == (7, 8, None)
    assert second.request_memory_limit == alone.request_memory_limit / 4 == alone.queued_max_request_bytes / 4
    assert second.fetch_memory_limit == alone.fetch_memory_limit / 4 == alone.fetch_memory_bytes / 4
