"""Idempotent producers of librdkafka, and a gateway that is killed (kill -9) and started again beneath them.

What was acknowledged is there once, at the offset that was told; what each producer sent is there in its order. That
is looked at also if a client gave up: then the log, and not the client, says whether anything was lost.
"""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import distlog
from soak.patience import Patience
from soak.tally import Tally, demand, skipped

PARTITIONS = 3
#: So that a gateway that begins anew finds segments that were sealed, and some that were begun.
CONFIG = {"internal.segment.bytes": 50_000, "index.interval.bytes": 500}
_PATIENCE_S = 120.0
_RECORDS_A_SECOND = 3000
#: What a producer may send on ahead while no gateway answers; librdkafka takes no more than 100,000.
_QUEUED_RECORDS = 50_000


class KilledGateway:
    """A gateway over `root` in a process, always at the same port."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = "127.0.0.1:{1}".format(*free.getsockname())
        self._process = self._begin()

    def _begin(self) -> subprocess.Popen[str]:
        command = [
            sys.executable,
            "-m",
            "distlog.cli",
            "serve",
            "--root",
            self._root,
            "--listen",
            self.address,
            "--json",
        ]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        demand(json.loads(process.stdout.readline())["event"] == "started", "the gateway did not begin")
        return process

    def kill(self) -> None:
        """Kill it, and start it again."""
        self._process.kill()
        self._process.wait()
        self._process = self._begin()

    def end(self) -> None:
        """End it by SIGTERM, as a service is ended."""
        self._process.terminate()
        demand(self._process.wait(60) == 0, "the gateway did not end")


class Sender:
    """A producer in a thread: it sends numbers from 0 on to one partition, and notes what it is told."""

    def __init__(self, address: str, name: int) -> None:
        from confluent_kafka import Producer

        self.name, self.partition = name, name % PARTITIONS
        self.sent, self.told, self.errors = 0, dict[int, int](), list[str]()
        self._began, self._left = time.monotonic(), 0
        settings = {
            "enable.idempotence": True,
            "linger.ms": 2,
            "batch.size": 20_000,
            # a client that gives a record up leaves a gap in its numbers, which the gateway must refuse
            "delivery.timeout.ms": 3_600_000,
        }
        self._producer = Producer({"bootstrap.servers": address, "log_level": 0, "error_cb": self._hear, **settings})
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self._thread.start()

    def _send(self) -> None:
        while not self._is_ending.is_set():
            for _ in range(_RECORDS_A_SECOND // 100):
                if len(self._producer) < _QUEUED_RECORDS:
                    self._produce(self.sent)
                    self.sent += 1
            self._producer.poll(0.01)

    def _produce(self, number: int) -> None:
        self._producer.produce(
            "events",
            b"%d:%d" % (self.name, number),
            partition=self.partition,
            on_delivery=lambda error, record: self._note(number, error, record),
        )

    def _note(self, number: int, error: Any, record: Any) -> None:
        if error is None:
            self.told[number] = record.offset()
        else:
            self.errors.append(str(error))

    def _hear(self, error: Any) -> None:
        """Note what makes a client give up; other errors pass, and it tries again."""
        if error.fatal():
            self.errors.append(f"after {time.monotonic() - self._began:.0f} s: {error}")

    def end(self) -> None:
        """Send no more, and wait until all is acknowledged."""
        self._is_ending.set()
        self._thread.join()
        patience = Patience(_PATIENCE_S)
        while (left := self._producer.flush(1)) and not patience.is_over(left):
            pass
        self._left = left

    def demand_all_told(self) -> None:
        """Violation if the client gave up, or was never told of a record."""
        demand(not self.errors, f"producer {self.name} gave up, though nothing is lost or doubled: {self.errors[:2]}")
        demand(self._left == 0, f"producer {self.name}: some records were never told of")


def run(folder: Path, seed: int, *, kills: int = 8, senders: int = 4) -> Tally:
    """One topic, and so many kills; Violation if a promise is broken."""
    try:
        import confluent_kafka  # noqa: F401
        import kio  # noqa: F401
    except ModuleNotFoundError as error:
        return skipped("gateway-kills", f"it needs {error.name}")
    chance = random.Random(seed)
    topic = distlog.create(str(folder / "events"), PARTITIONS, CONFIG)
    gateway = KilledGateway(folder)
    sending = [Sender(gateway.address, name) for name in range(senders)]
    for number in range(kills):
        _wait_for_news(sending)
        time.sleep(chance.uniform(0, 0.5))
        if number % 2:
            _wait_for_append(folder / "events")
        gateway.kill()
    for each in sending:
        each.end()
    gateway.end()
    records = sum(_check(topic.refresh(), each) for each in sending)
    for each in sending:
        each.demand_all_told()
    return Tally(kills=kills, records=records)


def _wait_for_news(sending: list[Sender]) -> None:
    """Wait until a producer is told of a record again: a client looks for its broker only now and then."""
    before, patience = sum(len(each.told) for each in sending), Patience(_PATIENCE_S)
    while sum(len(each.told) for each in sending) == before:
        demand(not patience.is_over(None), "nothing is acknowledged any more")
        time.sleep(0.01)


def _wait_for_append(topic: Path) -> None:
    """Wait until a log grows: its records are written, and before they are acknowledged comes a sync."""
    before, patience = _log_bytes(topic), Patience(_PATIENCE_S)
    while _log_bytes(topic) <= before:
        demand(not patience.is_over(None), "nothing is appended any more")


def _log_bytes(topic: Path) -> int:
    return sum(file.stat().st_size for file in topic.glob("*/*.log"))


def _check(topic: distlog.Topic, sender: Sender) -> int:
    rows = topic.scan(partitions=[sender.partition], columns=["offset", "value"]).to_table()
    pairs = zip(rows.column("offset").to_pylist(), rows.column("value").to_pylist(), strict=True)
    mine = [(offset, value) for offset, value in pairs if value.startswith(b"%d:" % sender.name)]
    numbers = [int(value.partition(b":")[2]) for _, value in mine]
    # of a client that gave up, the last may not be there, and it may not know of some that are
    all_there = numbers == list(range(len(numbers) if sender.errors else sender.sent))
    demand(all_there, f"producer {sender.name}: records are lost, doubled or out of order {sender.errors[:2]}")
    there = dict(zip(numbers, (offset for offset, _ in mine), strict=True))
    as_told = sender.told.items() <= there.items()
    demand(as_told, f"producer {sender.name}: a record is not at the offset that was told {sender.errors[:2]}")
    return len(numbers)
