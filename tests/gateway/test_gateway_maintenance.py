"""Gateways that maintain their root: one gateway at a time runs the tasks."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest
from addresses import Address
from forked_programs import command
from gateways import until
from memory_files import refuse_writes
from topic_consumers import Time

import distlog
from distlog.core.log_manager.log_tasks import TaskRun
from distlog.core.storage.storage import Storage
from distlog.gateway.cluster import Maintenance, TaskLease

LEASE_S = 60.0
NOW = {"log.initial.task.delay.ms": 0, "log.retention.check.interval.ms": 50, "log.cleaner.backoff.ms": 50}


class Leases:
    def __init__(self, address: Address) -> None:
        self.root, self.time, self.ids = Storage(*address), Time(), itertools.count(1)

    def begin(self) -> TaskLease:
        lease = TaskLease(self.root, lease_s=LEASE_S, clock=self.time, new_id=lambda: f"{next(self.ids):032x}")
        lease.keep()
        return lease

    def go_on(self, *leases: TaskLease, seconds: float) -> None:
        end = self.time.now_s + seconds
        while self.time.now_s < end:
            self.time.now_s += LEASE_S / 20
            for lease in leases:
                lease.keep()


def test_one_process_holds_the_lease_of_the_tasks(memory_url: Address) -> None:
    leases = Leases(memory_url)
    first, two, three = leases.begin(), leases.begin(), leases.begin()
    leases.go_on(first, two, three, seconds=3 * LEASE_S)
    assert (first.is_held, two.is_held, three.is_held) == (True, False, False)
    first.leave()
    leases.go_on(two, three, seconds=LEASE_S / 10)
    assert (first.is_held, two.is_held, three.is_held) == (False, True, False)
    leases.go_on(three, seconds=LEASE_S)
    assert (two.is_held, three.is_held) == (False, False)
    leases.go_on(three, seconds=LEASE_S * 0.4)
    assert three.is_held


def test_a_storage_that_takes_nothing_ends_the_lease_and_not_the_process(
    memory_url: Address, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    leases = Leases(memory_url)
    first = leases.begin()
    refuse_writes(monkeypatch)
    leases.go_on(first, seconds=LEASE_S + 1)
    assert not first.is_held
    assert "could not be renewed" in caplog.text


@pytest.fixture
def maintained(memory_url: Address) -> Iterator[tuple[list[Maintenance], SimpleQueue[tuple[int, TaskRun]]]]:
    distlog.create(f"{memory_url.url}/clicks", storage_options=memory_url.options)
    runs: SimpleQueue[tuple[int, TaskRun]] = SimpleQueue()
    tasks = [
        Maintenance(memory_url.url, NOW, memory_url.options, lambda run, n=n: runs.put((n, run)), lease_s=0.5)  # type: ignore[misc]
        for n in range(2)
    ]
    yield tasks, runs
    for task in tasks:
        task.stop()


def test_one_of_two_gateways_runs_the_tasks(
    maintained: tuple[list[Maintenance], SimpleQueue[tuple[int, TaskRun]]],
) -> None:
    (first, two), runs = maintained
    first.start()
    until(lambda: first.lease.is_held)
    two.start()
    until(lambda: runs.qsize() > 12)
    actual = [runs.get() for _ in range(12)]
    assert {number for number, run in actual if run.task != "load-logs"} == {0}
    assert {number for number, run in actual if run.task == "load-logs"} == {0, 1}
    assert first.stop()
    until(lambda: two.lease.is_held)
    values = {metric.name: metric.values for metric in two.metrics()}
    assert values["distlog_gateway_maintains"] == [({}, 1.0)]
    while not runs.empty():
        runs.get()
    until(lambda: runs.qsize() > 3)
    assert {runs.get()[0] for _ in range(3)} == {1}


def test_serve_maintains_its_root_and_reports_like_run(tmp_path: Path) -> None:
    distlog.create(str(tmp_path / "clicks"), config={"segment.ms": 1, "retention.ms": 1}).append(
        [{"value": b"old", "timestamp": 1}]
    )
    expected = ["--root", tmp_path, "--listen", "127.0.0.1:0", "--maintain", "--metrics-port", 0, "--json"]
    expected += ["--config", "log.initial.task.delay.ms=0", "--config", "log.retention.check.interval.ms=200"]
    process = command("serve", *expected, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        started = json.loads(process.stdout.readline())
        run = json.loads(process.stdout.readline())
        while run["task"] != "log-retention":
            run = json.loads(process.stdout.readline())
        with urllib.request.urlopen(f"http://127.0.0.1:{started['metrics_port']}/") as page:
            text = page.read().decode()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    finally:
        process.kill()
    assert (run["event"], run["done"]["deleted_records"]) == ("run", 1)
    assert "distlog_gateway_maintains 1.0" in text
    assert 'distlog_task_runs_total{root="' in text
    assert process.returncode == 0
