"""Idempotent producers of librdkafka in processes that can be killed; a check of what became of their records."""

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
#: What a producer may send on ahead while no gateway answers; librdkafka takes no more than 100,000.
_QUEUED_RECORDS = 50_000
#: A client that was killed, or gave up, may have sent that many at most.
_ANY_NUMBER = 10**9


def send(address: str, name: str, folder: str) -> None:
    """Send the numbers from 0 on until there is a file NAME.stop in `folder`, then wait until all are acknowledged.

    The file NAME.told has a line for what came of each record (`ack NUMBER OFFSET`), for what made the client give up
    (`error ...`), and in the end for how many were sent (`sent COUNT`).
    """
    from confluent_kafka import KafkaException

    parent, stop = os.getppid(), Path(folder, f"{name}.stop")
    client = _Client(address, name)
    with Path(folder, f"{name}.told").open("a", buffering=1) as file:
        try:
            while os.getppid() == parent and not (stop.exists() and client.has_been_told):
                if not stop.exists():
                    client.send_some()
                file.writelines(client.serve_callbacks())
            file.write(f"sent {client.sent}\n")
        except KafkaException as error:
            # it gave up before
            file.write(f"error {error}\n")


class _Client:
    """Sends numbers to one partition after the other, and hears what comes of them."""

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
        given_up = {"error_cb": self._note_error}
        self._producer = Producer({"bootstrap.servers": address, "log_level": 0, **given_up, **settings})

    def send_some(self) -> None:
        """Send what is due in 10 ms, unless too much waits already. Raises KafkaException."""
        for _ in range(_RECORDS_A_SECOND // 100):
            if len(self._producer) < _QUEUED_RECORDS:
                on_delivery = partial(self._note, self.sent)
                self._producer.produce(
                    "events", f"{self._name}:{self.sent}", partition=self.sent % PARTITIONS, on_delivery=on_delivery
                )
                self.sent += 1

    def serve_callbacks(self) -> list[str]:
        """Wait for 10 ms; returns what it was told."""
        self._lines = []
        self._producer.poll(0.01)
        return self._lines

    @property
    def has_been_told(self) -> bool:
        """Whether it was told of all that it sent."""
        return len(self._producer) == 0

    def _note(self, number: int, error: Any, record: Any) -> None:
        self._lines.append(f"ack {number} {record.offset()}\n" if error is None else f"error {error}\n")

    def _note_error(self, error: Any) -> None:
        """Note what makes a client give up; other errors pass, and it tries again."""
        if error.fatal():
            self._lines.append(f"error {error}\n")


class Sender:
    """A producer in a process, whose notes are in `folder`. `program` is another one than that of librdkafka."""

    def __init__(self, addresses: str, name: str, folder: Path, program: Sequence[str] = ()) -> None:
        self.name, self._folder, self._notes = name, folder, folder / f"{name}.told"
        self._notes.touch()
        call = f"from soak.senders import send; send({addresses!r}, {name!r}, {str(folder)!r})"
        command = [*program, addresses, name, str(folder)] if program else [sys.executable, "-c", call]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._process = subprocess.Popen(command, env=environment)

    def kill(self) -> None:
        """By kill -9."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Send no more."""
        (self._folder / f"{self.name}.stop").touch()

    def end(self) -> None:
        """Wait until all is acknowledged."""
        patience = Patience(_PATIENCE_S)
        while self._process.poll() is None:
            demand(not patience.is_over(self.news), f"producer {self.name}: some records were never told of")
            time.sleep(0.05)
        demand(self._process.returncode == 0, f"producer {self.name} ended by an error")

    @property
    def news(self) -> int:
        """Grows with what it is told."""
        return self._notes.stat().st_size

    def notes(self, kind: str) -> list[str]:
        """What it noted of one kind."""
        # of a process that was killed, the last line may be cut
        lines = self._notes.read_text().rpartition("\n")[0].splitlines()
        return [remainder for line in lines for note_kind, _, remainder in [line.partition(" ")] if note_kind == kind]


def check(topic: distlog.Topic, senders: Sequence[Sender]) -> int:
    """How many records there are; Violation unless they are those that were sent, once, in order, and where told."""
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
        # of a client that was killed or gave up, the last may not be there, and it may not know of some that are
        holds = numbers == list(expected[: len(numbers)]) and (not all_sent or len(numbers) == len(expected))
        demand(holds, f"producer {sender.name}: records are lost, doubled or out of order {errors[:2]}")
    offsets = {number: offset for pairs in values for number, offset in pairs}
    acks = [line.split() for line in sender.notes("ack")]
    as_told = all(offsets.get(int(number)) == int(offset) for number, offset in acks)
    demand(as_told, f"producer {sender.name}: a record is not at the offset that was told {errors[:2]}")
    demand(not errors, f"producer {sender.name} gave up, though nothing is lost or doubled: {errors[:2]}")
