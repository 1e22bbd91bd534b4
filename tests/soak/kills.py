"""Writers, readers and maintenance in processes that are killed at random moments (kill -9).

Acknowledged records exist once, in order; offsets have no gaps; no record that a reader got vanishes or changes.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import distlog
from distlog.core.maintain.verify import verify
from soak import workers
from soak.appending import Appending
from soak.records import Acks, read_records, writer_of
from soak.tally import Tally, Violation, demand

#: One for each round, in turn.
CONFIGS = (
    {"cleanup.policy": "delete", "retention.bytes": 150_000},
    {"cleanup.policy": "delete", "segment.jitter.ms": 50, "segment.ms": 100},
    {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.01},
    {"cleanup.policy": "delete", "preallocate": True, "retention.bytes": 400_000},
    {"cleanup.policy": "delete", "internal.segment.bytes": 600_000, "key.index.enable": True},
)
FLUSHES = (0, 1, 50)
#: Kills come as fast as processes start; now and then there is time for rolls, compactions and reads.
PAUSE_S, CALM_S, CALM_SHARE = 0.03, 1.0, 0.02
#: How long the first append may take.
PATIENCE_S = 120.0
COMMON = {"internal.segment.bytes": 30_000, "index.interval.bytes": 500, "file.delete.delay.ms": 5000}


class Round:
    """One topic, and its processes, each with the function that restarts it."""

    def __init__(self, folder: Path, number: int) -> None:
        self.chance = random.Random(number)
        config = {**COMMON, **CONFIGS[number % len(CONFIGS)]}
        self.is_compacted = config["cleanup.policy"] == "compact"
        self.url, self.acks, self.complaints = (str(folder / name) for name in ("events", "acks", "complaints"))
        for name in (self.acks, self.complaints):
            os.mkdir(name)
        distlog.create(self.url, partitions=workers.PARTITIONS, config=config)
        self._context = multiprocessing.get_context("forkserver")
        # the fork server is another process, which needs the path of the campaigns
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        self._context.set_forkserver_preload(["soak.warm"])
        self._rounds = 0
        self.running: list[tuple[BaseProcess, Callable[[], BaseProcess]]] = []
        for begin in (self._writer, self._writer, self._writer, self._reader, self._reader, self._maintenance):
            self.running.append((begin(), begin))

    def _writer(self) -> BaseProcess:
        self._rounds += 1
        return self._begin(workers.write, self.acks, f"w{self._rounds}", self.chance.choice(FLUSHES))

    def _reader(self) -> BaseProcess:
        return self._begin(workers.read, self.acks, self.is_compacted)

    def _maintenance(self) -> BaseProcess:
        return self._begin(workers.maintain, self.acks)

    def _begin(self, work: Callable[..., None], *arguments: object) -> BaseProcess:
        process = self._context.Process(target=workers.guarded, args=(work, self.complaints, self.url, *arguments))
        process.start()
        return process

    def wait_for_an_append(self) -> None:
        """Wait for the first append: on a slow machine a process starts in seconds."""
        end = time.monotonic() + PATIENCE_S
        while not any(path.stat().st_size for path in Path(self.acks).glob("*.acks")):
            for process, _ in self.running:
                demand(process.exitcode is None, f"a process ended by itself, with {process.exitcode}")
            demand(time.monotonic() < end, "no writer has appended")
            time.sleep(0.1)

    def kill_until(self, end: float, tally: Tally) -> None:
        """Kill and restart one process after the other until `end` (monotonic seconds)."""
        while time.monotonic() < end:
            pause_s = self.chance.expovariate(1 / PAUSE_S)
            if self.chance.random() < CALM_SHARE:
                pause_s = CALM_S
            time.sleep(min(pause_s, max(end - time.monotonic(), 0)))
            action = self.chance.choice([0, 1, 2, 0, 1, 2, 0, 1, 2, 3, 5])
            process, begin = self.running[action]
            self._kill(process)
            tally["kills"] += 1
            self.running[action] = (begin(), begin)

    def stop(self) -> None:
        for process, _ in self.running:
            self._kill(process)

    def check(self, tally: Tally) -> None:
        acks = self._acks(tally)
        demand(tally["records acknowledged"] > 0, "no writer has appended")
        topic = distlog.open(self.url)
        for partition in range(workers.PARTITIONS):
            self._check_partition(topic, partition, acks[partition], tally)
        for partition in range(workers.PARTITIONS):
            Appending(self.url, partition).log.roll()
        for _ in range(2):
            topic.refresh()
            anomalies = verify(topic.handle, topic.snapshot).anomalies
            demand(not anomalies, f"verify finds {anomalies}")
            topic.retention(), topic.compact(), topic.vacuum()
        for name, suffix in (("reads", "read"), ("maintenance runs", "maintenance")):
            tally[name] += sum(path.stat().st_size for path in Path(self.acks).glob(f"*.{suffix}"))
        tally["versions"] += topic.version

    def _acks(self, tally: Tally) -> list[dict[int, tuple[str, int]]]:
        acks: list[dict[int, tuple[str, int]]] = [{} for _ in range(workers.PARTITIONS)]
        for name, ack in Acks(Path(self.acks)).new():
            for delta in range(ack.count):
                demand(
                    ack.offset + delta not in acks[ack.partition], f"offset {ack.offset + delta} is assigned twice"
                )
                acks[ack.partition][ack.offset + delta] = (name, ack.first + delta)
            tally["records acknowledged"] += ack.count
        return acks

    def _check_partition(
        self, topic: distlog.Topic, partition: int, acks: dict[int, tuple[str, int]], tally: Tally
    ) -> None:
        start = topic.start_offsets()[partition]
        rows = read_records(topic, partition, start)
        records = {offset: writer_of(value) for offset, _, value in rows}
        demand(len(set(records.values())) == len(records), "a record exists twice")
        newest = {key: offset for offset, key, _ in rows}
        demand(
            self.is_compacted or list(records) == list(range(start, start + len(records))), "offsets are not dense"
        )
        for offset, writer_and_number in acks.items():
            if offset in records:
                demand(
                    records[offset] == writer_and_number,
                    f"offset {offset} is {records[offset]}, and was acknowledged as {writer_and_number}",
                )
                tally["records verified"] += 1
            elif offset >= start:
                key = b"%d" % (writer_and_number[1] * 7919 % 40)
                demand(
                    self.is_compacted and newest[key] > offset, f"offset {offset} of partition {partition} is missing"
                )
                tally["records compacted"] += 1
            else:
                tally["records expired"] += 1
        self._check_order(records)

    def _check_order(self, records: dict[int, tuple[str, int]]) -> None:
        last: dict[str, int] = {}
        for _, (name, number) in sorted(records.items()):
            demand(number > last.get(name, -1), f"record {number} of {name} comes after {last.get(name)}")
            last[name] = number

    def _check_complaints(self) -> None:
        for path in Path(self.complaints).iterdir():
            raise Violation(path.read_text(encoding="utf-8"))

    def _kill(self, process: BaseProcess) -> None:
        if process.pid is not None and process.is_alive():
            os.kill(process.pid, signal.SIGKILL)
        process.join()
        self._check_complaints()
        demand(process.exitcode == -signal.SIGKILL, f"a process ended by itself, with {process.exitcode}")


def run(folder: Path, seed: int, seconds: float, rounds: int = 1) -> Tally:
    """Run `rounds` rounds of `seconds`: small topics, since the number of kills over a large one is lower."""
    tally = Tally()
    for number in range(seed * rounds, (seed + 1) * rounds):
        root = folder / f"round {number}"
        root.mkdir()
        current = Round(root, number)
        try:
            current.wait_for_an_append()
            current.kill_until(time.monotonic() + seconds, tally)
        finally:
            current.stop()
        current.check(tally)
        shutil.rmtree(root)
    return tally
