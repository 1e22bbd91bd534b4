"""Idempotent producers of librdkafka in processes that may be killed, and a check of their records."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import distlog
from soak.patience import Patience
from soak.tally import demand

PARTITIONS = 3
_PATIENCE_S = 120.0
_RECORDS_A_SECOND = 1000
#: The records that a producer queues while no gateway answers; librdkafka accepts at most 100,000.
_QUEUED_RECORDS = 50_000
#: The limit for a client that was killed, or gave up.
_ANY_NUMBER = 10**9


def send(address: str, name: str, folder: str) -> None:
    """Send the numbers from 0 on until a file NAME.stop is in `folder`, then wait until all are acknowledged.

    The file NAME.results gets lines for records (`ack NUMBER OFFSET`), for errors after which the client gives up
    (`error ...`), and for the total (`sent COUNT`).
    """
    from confluent_kafka import KafkaException

    parent, stop = os.getppid(), Path(folder, f"{name}.stop")
    client = _Client(address, name)
    with Path(folder, f"{name}.results").open("a", buffering=1) as file:
        try:
            while os.getppid() == parent and not (stop.exists() and client.is_done):
                if not stop.exists():
                    client.send_some()
                file.writelines(client.serve_callbacks())
            file.write(f"sent {client.sent}\n")
        except KafkaException as error:
            # an earlier error was fatal
            file.write(f"error {error}\n")


class _Client:
    """Sends numbers to the partitions in turn, and collects the results."""

    def __init__(self, address: str, name: str) -> None:
        from confluent_kafka import Producer

        self._name, self._lines, self.sent = name, list[str](), 0
        settings = {
            "enable.idempotence": True,
            "linger.ms": 2,
            "batch.size": 20_000,
            "reconnect.backoff.max.ms": 200,
            # a client that gives a record up leaves a gap in its numbers, which the gateway must refuse
            "delivery.timeout.ms": 3_600_000,
        }
        callbacks = {"error_cb": self._note_error}
        self._producer = Producer({"bootstrap.servers": address, "log_level": 0, **callbacks, **settings})

    def send_some(self) -> None:
        """Send the records of 10 ms, unless the queue is full; raises KafkaException."""
        for _ in range(_RECORDS_A_SECOND // 100):
            if len(self._producer) < _QUEUED_RECORDS:
                on_delivery = partial(self._note, self.sent)
                self._producer.produce(
                    "events", f"{self._name}:{self.sent}", partition=self.sent % PARTITIONS, on_delivery=on_delivery
                )
                self.sent += 1

    def serve_callbacks(self) -> list[str]:
        """Wait for 10 ms; returns the results."""
        self._lines = []
        self._producer.poll(0.01)
        return self._lines

    @property
    def is_done(self) -> bool:
        """Whether all results have come."""
        return len(self._producer) == 0

    def _note(self, number: int, error: Any, record: Any) -> None:
        self._lines.append(f"ack {number} {record.offset()}\n" if error is None else f"error {error}\n")

    def _note_error(self, error: Any) -> None:
        """Note fatal errors; the client recovers from others."""
        if error.fatal():
            self._lines.append(f"error {error}\n")


class Sender:
    """A producer in a process, whose results are in `folder`; `program` replaces librdkafka's."""

    def __init__(self, addresses: str, name: str, folder: Path, program: Sequence[str] = ()) -> None:
        self.name, self._folder, self._notes = name, folder, folder / f"{name}.results"
        self._notes.touch()
        call = f"from soak.senders import send; send({addresses!r}, {name!r}, {str(folder)!r})"
        command = [*program, addresses, name, str(folder)] if program else [sys.executable, "-c", call]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._process = subprocess.Popen(command, env=environment)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        (self._folder / f"{self.name}.stop").touch()

    def end(self) -> None:
        """Wait until everything is acknowledged."""
        patience = Patience(_PATIENCE_S)
        while self._process.poll() is None:
            demand(not patience.is_over(self.news), f"producer {self.name}: some records got no result")
            time.sleep(0.05)
        demand(self._process.returncode == 0, f"producer {self.name} ended with an error")

    @property
    def news(self) -> int:
        return self._notes.stat().st_size

    def notes(self, kind: str) -> list[str]:
        # the last line of a killed process may be cut
        lines = self._notes.read_text().rpartition("\n")[0].splitlines()
        return [remainder for line in lines for note_kind, _, remainder in [line.partition(" ")] if note_kind == kind]


def check(topic: distlog.Topic, senders: Sequence[Sender]) -> int:
    """Return the number of records; Violation unless each sent one exists once, in order, at its reported offset."""
    rows = topic.scan(columns=["partition", "offset", "value"]).to_table()
    values = defaultdict[tuple[str, int], list[tuple[int, int]]](list)
    for partition, offset, value in zip(*(rows.column(name).to_pylist() for name in rows.column_names), strict=True):
        name, _, number = value.decode().partition(":")
        values[name, partition].append((int(number), offset))
    for sender in senders:
        _check(sender, [values[sender.name, partition] for partition in range(PARTITIONS)])
    demand({name for name, _ in values} <= {sender.name for sender in senders}, "there are records that nobody sent")
    return len(rows)


def _check(sender: Sender, values: Sequence[Sequence[tuple[int, int]]]) -> None:
    errors = sender.notes("error")
    all_sent = sender.notes("sent") if not errors else []
    for partition, pairs in enumerate(values):
        numbers = [number for number, _ in pairs]
        expected = range(partition, int(all_sent[0]) if all_sent else _ANY_NUMBER, PARTITIONS)
        # after a kill or an error, the last records may be missing, and some results unknown
        holds = numbers == list(expected[: len(numbers)]) and (not all_sent or len(numbers) == len(expected))
        demand(holds, f"producer {sender.name}: records are lost, doubled or out of order {errors[:2]}")
    offsets = {number: offset for pairs in values for number, offset in pairs}
    acks = [line.split() for line in sender.notes("ack")]
    as_reported = all(offsets.get(int(number)) == int(offset) for number, offset in acks)
    demand(as_reported, f"producer {sender.name}: a record is not at its reported offset {errors[:2]}")
    demand(not errors, f"producer {sender.name} gave up, though nothing is lost or repeated: {errors[:2]}")
