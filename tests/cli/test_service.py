"""`distlog run`: a real process over real roots, ended by signals, and one run of each task."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from addresses import Address
from command_line import CommandLine
from forked_programs import Program, command
from managed import create
from partition_logs import Process, append, new_topic
from topics import values
from waiting import until

import distlog
from distlog.cli.input import is_readable
from distlog.cli.service_commands import ending_signals, metrics_server
from distlog.console.output import StatusLine
from distlog.core.errors import StorageError
from distlog.core.storage.locks_and_pages import FileLock

pytestmark = pytest.mark.long

AT_ONCE = ("--config", "log.initial.task.delay.ms=0", "--config", "log.dirs.scan.interval.ms=50")


class Running:
    """A `distlog run --json`, and the events that it has printed."""

    def __init__(self, process: Program) -> None:
        self.process, self.events = process, list[dict[str, Any]]()

    def until(self, predicate: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Read events until one matches."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.append(json.loads(line))
            if predicate(self.events[-1]):
                return self.events[-1]
        raise AssertionError(f"it ended before: {self.events}")

    def until_run(self, task: str, name: str | None = None) -> dict[str, Any]:
        """Read until a run of the task, and return its `name`."""
        return self.until(lambda event: event.get("task") == task and (name is None or event["done"].get(name)))

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """End it by a signal; return its exit status and its standard error."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=300)
        self.events += map(json.loads, out.splitlines())
        return self.process.returncode, err


#: Abandons a task after a second.
SOON = """
from functools import partialmethod
from distlog.cli import main
from distlog.core.log_manager.log_manager import LogManager
LogManager.stop = partialmethod(LogManager.stop, 1.0)
main()
"""


@contextmanager
def running(*arguments: str, begin: Callable[..., Program] = command) -> Iterator[Running]:
    """Start the service, and wait until it handles signals."""
    process = begin("run", *arguments, "--json", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    service = Running(process)
    try:
        service.until(lambda event: event["event"] == "started")
        yield service
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(tmp_path: Path, number: int) -> None:
    topic = create(tmp_path, "clicks", retention_ms=1)
    topic.append(values(range(3)))
    with running("--root", str(tmp_path), *AT_ONCE) as service:
        assert service.until_run("log-retention", "deleted_records")["done"]["deleted_records"] == 3
        assert service.end(number) == (0, "")
    assert service.events[0]["roots"] == [str(tmp_path)]
    assert service.events[-1] == {"event": "stopped", "finished": True}
    assert topic.refresh().start_offsets() == {0: 3}
    assert (tmp_path / "recovery-point-offset-checkpoint").read_text() == "0\n1\nclicks 0 3\n"


def test_a_signal_ends_it_before_its_first_task(tmp_path: Path) -> None:
    create(tmp_path, "clicks")
    with running("--root", str(tmp_path)) as service:
        assert service.end()[0] == 0
    assert service.events[-1]["finished"]


def test_a_killed_service_leaves_whole_topics_for_the_next_one(tmp_path: Path) -> None:
    topic = create(tmp_path, "clicks", cleanup_policy="compact", min_cleanable_dirty_ratio=0)
    finished_topic = create(tmp_path, "kept", retention_ms=-1)
    finished_topic.append(values(range(5)))
    with running("--root", str(tmp_path), *AT_ONCE, "--config", "log.cleaner.backoff.ms=1") as service:
        for number in range(5):
            topic.append(
                [{"key": b"%d" % (n % 10), "value": b"v%d" % n} for n in range(50 * number, 50 * number + 50)]
            )
        service.until_run("log-cleaner", "cleaned_partitions")
        assert service.end(signal.SIGKILL)[0] == -signal.SIGKILL
    assert topic.refresh().verify().ok
    with running("--root", str(tmp_path), *AT_ONCE, "--config", "log.cleaner.backoff.ms=1") as service:
        topic.append([{"key": b"%d" % (n % 10), "value": b"w%d" % n} for n in range(10)])
        while topic.refresh().scan().count() > 10:
            service.until_run("log-cleaner", "cleaned_partitions")
        assert service.end()[0] == 0
    assert sorted(topic.refresh().scan().to_table()["value"].to_pylist()) == [b"w%d" % n for n in range(10)]
    assert topic.verify().ok
    assert finished_topic.refresh().scan().count() == 5


def test_a_bad_topic_a_bad_root_and_a_drop_do_not_stop_it(tmp_path: Path) -> None:
    root, bad_root = tmp_path / "root", tmp_path / "bad"
    bad_root.write_text("no folder")
    for name in ("bad", "dropped"):
        create(root, name)
    commit = root / "bad" / "_commits" / f"{0:020}.json"
    content = commit.read_bytes()
    commit.write_bytes(b"{")
    with running("--root", str(bad_root), "--root", str(root), *AT_ONCE) as service:
        service.until_run("load-logs", "loaded_topics")
        distlog.open(f"{root}/dropped").drop()
        create(root, "new", retention_ms=1)
        service.until_run("load-logs", "loaded_topics")
        commit.write_bytes(content)
        service.until_run("load-logs", "loaded_topics")
        bad_root.unlink()
        create(bad_root, "late")
        service.until(lambda event: event.get("root") == str(bad_root) and event["ok"])
        status, err = service.end()
    assert status == 0
    lines = err.splitlines()
    assert (
        len([line for line in lines if line.startswith(f"distlog: load-logs failed at {root}/bad: not a commit")])
        == 1
    )
    assert (
        len([line for line in lines if line.startswith(f"distlog: load-logs failed at {bad_root}: cannot list")]) == 1
    )


@pytest.mark.s3
def test_it_maintains_topics_on_s3(s3_url: Address) -> None:
    topic = distlog.create(f"{s3_url.url}/clicks", 1, {"retention.ms": 1}, s3_url.options)
    topic.append(values(range(3)))
    options = [part for name, value in s3_url.options.items() for part in ("--storage", f"{name}={value}")]
    with running("--root", s3_url.url, *options, *AT_ONCE) as service:
        assert service.until_run("log-retention", "deleted_records")["done"]["deleted_records"] == 3
        status, err = service.end()
    assert (status, err) == (0, "")
    assert topic.refresh().start_offsets() == {0: 3}
    assert not any(secret in json.dumps(service.events) for secret in s3_url.options.values())


def test_a_task_that_does_not_end_is_abandoned(tmp_path: Path) -> None:
    appender = Process(new_topic(tmp_path / "clicks"))
    append(appender[0], b"v")
    with (
        running("--root", str(tmp_path), begin=partial(Program, SOON)) as service,
        FileLock(str(tmp_path / "clicks" / "clicks-0" / ".lock")).held(),
    ):
        service.until_run("load-logs", "loaded_topics")
        # the last checkpoint waits for the lock, and may name its holder
        status, errors = service.end()
        assert status == 0
        assert all("has held the lock" in line for line in errors.splitlines())
    assert service.events[-1] == {"event": "stopped", "finished": False}
    assert not (tmp_path / "recovery-point-offset-checkpoint").exists()
    assert appender[0].end().end_offset == 1
    appender.close()


def test_it_continues_after_its_output_is_closed(tmp_path: Path) -> None:
    topic = create(tmp_path, "clicks", retention_ms=1)
    (tmp_path / "broken" / "_commits").mkdir(parents=True)
    (tmp_path / "broken" / "_commits" / f"{0:020}.json").write_text("{")
    often = "--config", "log.retention.check.interval.ms=20"
    with running("--root", str(tmp_path), *AT_ONCE, *often) as service:
        assert service.process.stdout is not None
        assert service.process.stderr is not None
        service.process.stdout.close()
        service.process.stderr.close()
        for _ in range(3):
            (end,) = topic.append(values(range(3))).offsets.values()
            until(lambda end=end: topic.refresh().start_offsets() == {0: end[1]})
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(300) == 0


def test_it_serves_metrics(tmp_path: Path) -> None:
    create(tmp_path, "clicks", 2).append(values(range(7)), partition=1)
    with running("--root", str(tmp_path), *AT_ONCE, "--metrics-port", "0") as service:
        service.until_run("load-logs", "loaded_topics")
        address = f"http://127.0.0.1:{service.events[0]['metrics_port']}/metrics"
        with urllib.request.urlopen(address, timeout=60) as reply:
            text = reply.read().decode()
        assert service.end()[0] == 0
    labels = f'partition="1",root="{tmp_path}",topic="clicks"'
    assert f"distlog_log_end_offset{{{labels}}} 7.0" in text.splitlines()
    assert "# TYPE distlog_task_runs_total counter" in text
    assert f'distlog_task_runs_total{{root="{tmp_path}",task="load-logs"}}' in text
    assert f'distlog_root_offline{{root="{tmp_path}"}} 0.0' in text.splitlines()


def test_a_signal_that_another_thread_gets_is_noticed_too() -> None:
    def end() -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    old_signal = signal.getsignal(signal.SIGTERM)
    with ending_signals() as signalled:
        assert not is_readable(signalled, 0)
        other = threading.Thread(target=end)
        other.start()
        assert is_readable(signalled, 60)
        other.join()
    assert signal.getsignal(signal.SIGTERM) is old_signal


def run(cli: CommandLine, *arguments: str) -> Any:
    return cli.bare("run", *arguments)


def test_each_task_runs_once_as_from_a_crontab(cli: CommandLine, tmp_path: Path) -> None:
    topic = create(tmp_path, "clicks", retention_ms=1)
    topic.append(values(range(3)))
    outcome = run(cli, "--root", str(tmp_path), "--once")
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out.splitlines()[0] == f"load-logs {tmp_path}: loaded_topics 1"
    assert "deleted_records 3" in outcome.out
    assert outcome.out.splitlines()[-1] == "1 topic, 1 partition, 0 B; all well"
    assert topic.refresh().start_offsets() == {0: 3}


def test_one_run_with_a_failed_task_has_exit_status_1(cli: CommandLine, tmp_path: Path) -> None:
    create(tmp_path, "good")
    create(tmp_path, "bad")
    (tmp_path / "bad" / "_commits" / f"{0:020}.json").write_text("{")
    outcome = run(cli, "--root", str(tmp_path), "--once", "--json")
    assert outcome.status == 1
    assert not outcome.json["ok"]
    assert list(outcome.json["runs"][0]["errors"]) == [f"{tmp_path}/bad"]
    assert outcome.err.startswith(f"distlog: load-logs failed at {tmp_path}/bad: ")
    assert len(outcome.err.splitlines()) == 1


def test_one_run_fails_for_a_missing_root_and_maintains_the_other_roots(cli: CommandLine, tmp_path: Path) -> None:
    topic = create(tmp_path / "logs", "clicks", retention_ms=1)
    topic.append(values(range(3)))
    outcome = run(cli, "--root", str(tmp_path / "lgos"), "--root", str(tmp_path / "logs"), "--once")
    nothing = "the root does not exist: check the address, or create a topic in it"
    assert (outcome.status, outcome.err) == (1, f"distlog: load-logs failed at {tmp_path}/lgos: {nothing}\n")
    assert outcome.out.splitlines()[-1] == f"1 topic, 1 partition, 0 B; failing: {tmp_path}/lgos"
    assert topic.refresh().start_offsets() == {0: 3}
    (tmp_path / "lgos").mkdir()
    assert run(cli, "--root", str(tmp_path / "lgos"), "--once").status == 0
    # an object store has no folders
    assert run(cli, "--root", "memory://lgos", "--once").status == 0


def test_the_last_argument_overrides_the_file(cli: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("broker.id=0\nlisteners=PLAINTEXT://:9092\nlog.retention.hours=1\nlog.cleaner.enable=false\n")
    topic = create(tmp_path / "logs", "clicks")
    topic.append(values([0]))
    arguments = ("--root", str(tmp_path / "logs"), "--once", "--json", "--config", str(file))
    outcome = run(cli, *arguments, "--config", "log.retention.ms=-1")
    assert "log-cleaner" not in [outcome_run["task"] for outcome_run in outcome.json["runs"]]
    assert topic.refresh().start_offsets() == {0: 0}
    run(cli, *arguments)
    assert topic.refresh().start_offsets() == {0: 1}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Missing option '--root'"),
        (("--root", "x", "--config", "no-such-file"), "is not a file or NAME=VALUE"),
        (("--root", "x", "--config", "log.retention.hour=1"), "did you mean log.retention.hours?"),
        (("--root", "x", "--config", "log.retention.ms=0"), "log.retention.ms must be -1"),
        (("--root", "s3://key:secret@bucket"), "credentials"),
    ],
)
def test_a_wrong_command_line_is_refused(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    outcome = run(cli, *arguments, "--once")
    assert outcome.status in (1, 2)
    assert message in outcome.err
    assert "key:secret" not in outcome.err


def test_a_port_in_use_is_one_line_of_error() -> None:
    with (
        metrics_server(("127.0.0.1", 0), list) as port,
        pytest.raises(StorageError, match="cannot serve metrics: Address already in use"),
        metrics_server(("127.0.0.1", port or 0), list),
    ):
        pass


def test_metrics_are_served_at_their_address_only() -> None:
    with metrics_server(("127.0.0.1", 0), list) as port:
        socket.create_connection(("127.0.0.1", port), timeout=30).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port), timeout=30)


def test_a_warning_is_a_line_and_a_bug_has_a_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    line, log = StatusLine("distlog", lambda: "well"), logging.getLogger("distlog.a-test")
    log.addHandler(line)
    try:
        log.warning("two\nlines")
        try:
            _ = {}["a\x1bkey"]
        except KeyError:
            log.exception("a request failed")
    finally:
        log.removeHandler(line)
    first, second, *trace = capsys.readouterr().err.splitlines()
    assert (first, second) == ("distlog: two lines", "distlog: a request failed")
    assert trace[0] == "Traceback (most recent call last):"
    assert trace[-1].startswith("KeyError: ")
    assert "\x1b" not in "".join(trace)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EPIPE, errno.EIO])
def test_failed_output_does_not_stop_the_service(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.StringIO):
        def flush(self) -> None:
            raise OSError(number, os.strerror(number))

    output, errors = Full(), Full()
    monkeypatch.setattr(sys, "stdout", output)
    monkeypatch.setattr(sys, "stderr", errors)
    line, json_line = (StatusLine("distlog", lambda: "well", as_json=as_json) for as_json in (False, True))
    line.is_visible = True
    line.event("run", "a line")
    json_line.event("run", "a line")
    line.handle(logging.LogRecord("distlog", logging.WARNING, "", 0, "a warning", (), None))
    line.draw()
    line.clear()
    assert output.getvalue() == 'a line\n{"event": "run"}\n'
    assert "a warning" in errors.getvalue()


def test_without_prometheus_client_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with (
        pytest.raises(ModuleNotFoundError, match=r"pip install 'pydistlog\[metrics\]'"),
        metrics_server(("", 0), list),
    ):
        pass


def test_on_a_terminal_the_last_line_is_the_status(tmp_path: Path) -> None:
    create(tmp_path, "clicks", 3)
    reader, terminal = os.openpty()
    with command("run", "--root", tmp_path, stdout=subprocess.PIPE, stderr=terminal) as process:
        os.close(terminal)
        shown = ""
        while "1 topic, 3 partitions, 0 B; all well" not in shown:
            shown += os.read(reader, 1000).decode()
        process.terminate()
        assert process.wait(300) == 0
        assert process.stdout is not None
        assert process.stdout.read().splitlines()[0] == f"running: {tmp_path}"
    os.close(reader)
