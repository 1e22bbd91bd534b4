"""Processes that append in place and are killed, next to all kinds of maintenance, and the model of what is left.

A longer campaign than the one in tests/stories is the same class with more steps and another seed.
"""

from __future__ import annotations

import random
import signal
import subprocess
from pathlib import Path

from forked_programs import Program
from partition_logs import Process, new_topic
from topics import contents

from distlog.core.topics.topic import Topic

PARTITIONS = 2

#: Appends to two partitions in turn, until it is told to stop, and prints each number up to which all is durable.
#: That another process had a lock for a second is a warning, and no complaint, on a loaded machine.
APPENDING = """
import logging
import sys
from pathlib import Path
from partition_logs import Process, append

logging.disable(logging.WARNING)
name, process = sys.argv[2], Process(Path(sys.argv[1]))
print(-1, flush=True)
for number in range(int(sys.argv[3])):
    append(process[number % 2], f"{name} {number}".encode())
    if number % 10 == 9:
        process[0].flush()
        process[1].flush()
        print(number, flush=True)
"""


def begin(program: str, *arguments: object) -> Program:
    """Begin a program that may import what tests are written with, and wait for the first line that it prints."""
    process = Program(program, *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout
    if not process.stdout.readline().strip():
        raise AssertionError(process.communicate()[1])
    return process


class Campaign:
    """Writers that come and are killed, and maintenance by chance; deleted records are read before they go."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = new_topic(
            folder, PARTITIONS, internal_segment_bytes=3000, retention_bytes=4000, file_delete_delay_ms=0
        )
        self.random, self.process = random.Random(seed), Process(folder)
        self._living: dict[str, Program] = {}
        self._durable: dict[str, int] = {}
        self._deleted: dict[int, list[bytes | None]] = {number: [] for number in range(PARTITIONS)}
        self._bulk: dict[tuple[int, int], bytes] = {}

    def run(self, steps: int, writers: int = 2) -> None:
        """Begin the writers, take the steps, and check what is left."""
        try:
            for _ in range(writers):
                self.begin_writer()
            for _ in range(steps):
                self._step()
        finally:
            self.kill_writers()
        self.check()

    def begin_writer(self) -> None:
        """One more process that appends."""
        name = f"w{len(self._living) + len(self._durable)}"
        self._living[name] = begin(APPENDING, self.folder, name, 1_000_000)

    def kill_writers(self, count: int | None = None) -> None:
        """Kill some of them (kill -9), all by default, and note what they said is durable."""
        for name in list(self._living)[:count]:
            process = self._living.pop(name)
            process.send_signal(signal.SIGKILL)
            said, complaint = process.communicate()
            assert complaint == ""
            # a number that was half printed is no promise
            lines = said.splitlines() if said.endswith("\n") else said.splitlines()[:-1]
            self._durable[name] = max(map(int, lines), default=-1)

    def _step(self) -> None:
        steps = [
            *(self.append, self.append, self.retain, self.delete, self.compact, self.vacuum, self.vacuum),
            *(self.configure, self.verify, self.replace_writer),
        ]
        self.random.choice(steps)()

    def append(self) -> None:
        """A bulk append to all partitions; where it says that the records are, they must be."""
        rows = [
            {"partition": number, "value": b"bulk %d" % self.random.randrange(1 << 60)}
            for number in range(PARTITIONS)
        ]
        result = self._topic().append(rows)
        self._bulk |= {(number, result.offsets[number][0]): rows[number]["value"] for number in range(PARTITIONS)}  # type: ignore[misc]

    def retain(self) -> None:
        """Retention by size; what it removed is read from the version before."""
        report = self._topic().retention()
        for plan in report.partitions:
            before = self._at(report.version - 1)
            self._keep(before, plan.partition, plan.log_start_offset)

    def delete(self) -> None:
        """Delete-records up to anywhere, perhaps within the active segment."""
        topic = self._topic()
        starts, ends = topic.start_offsets(), topic.end_offsets()
        before = {number: self.random.randint(starts[number], ends[number]) for number in range(PARTITIONS)}
        for number, offset in before.items():
            self._keep(topic, number, offset)
        assert topic.delete_records(before).log_start_offsets == before

    def compact(self) -> None:
        """Merge small segments."""
        assert self._topic().compact().ok  # type: ignore[union-attr]

    def vacuum(self) -> None:
        """Delete all that can be deleted."""
        self._topic().vacuum()

    def configure(self) -> None:
        """Another setting of what appends make."""
        self._topic().alter_config({"index.interval.bytes": self.random.choice([0, 100, 4096])})

    def verify(self) -> None:
        """Nothing is wrong, whoever appends."""
        report = self._topic().verify()
        assert report.anomalies == (), report.anomalies

    def replace_writer(self) -> None:
        """Kill the oldest writer, and begin another."""
        self.kill_writers(1)
        self.begin_writer()

    def _topic(self) -> Topic:
        return self.process.topic()

    def _at(self, version: int) -> Topic:
        return Topic(self.process.handle, self.process.handle.log.load(version), pinned=True)

    def _keep(self, topic: Topic, partition: int, end: int) -> None:
        start = topic.start_offsets()[partition]
        assert start == len(self._deleted[partition])
        if end > start:
            found = topic.scan([partition], start, end, columns=["value"]).to_table()
            self._deleted[partition] += found["value"].to_pylist()
        assert len(self._deleted[partition]) == max(end, start)

    def check(self) -> None:
        """Each durable record is there once, in the order of its writer, and offsets have no gap."""
        left = contents(self._topic())
        starts = self._topic().start_offsets()
        for number, values in left.items():
            assert starts[number] == len(self._deleted[number])
            found = [str(value, "ascii") for value in [*self._deleted[number], *values] if value is not None]
            assert len(found) == starts[number] + len(values)
            self._check_partition(number, found)
        self.verify()

    def _check_partition(self, partition: int, values: list[str]) -> None:
        by_writer: dict[str, list[int]] = {name: [] for name in self._durable}
        for offset, value in enumerate(values):
            name, _, number = value.partition(" ")
            if name == "bulk":
                assert self._bulk.pop((partition, offset)) == value.encode()
            else:
                by_writer[name].append(int(number))
        assert not [place for place in self._bulk if place[0] == partition]
        for name, numbers in by_writer.items():
            assert numbers == list(range(partition, partition + 2 * len(numbers), 2))
            promised = len(range(partition, self._durable[name] + 1, 2))
            assert len(numbers) >= promised, (name, partition, len(numbers), promised)
