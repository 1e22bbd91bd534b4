"""A query copies a topic to another with Spark, while its processes are killed (kill -9) at random moments.

At the end each partition of the copy has the records of its original, once and in order.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import pyarrow as pa
from forked_programs import Program

import distlog
from soak import processes
from soak.pipeline import Job
from soak.records import record
from soak.tally import Tally, demand

PARTITIONS = 3
#: A slow batch is refused if its files are older than the delay and a vacuum has run.
CONFIG = {"internal.segment.bytes": 60_000, "file.delete.delay.ms": 30_000}
#: In turn: single processes; the machine, with all processes; the driver alone, whose tasks may continue for a while.
VICTIMS = ("source", "task", "machine", "sink", "task", "driver")
#: The most seconds without progress of the copy: a driver starts in ten, and on a busy machine in a hundred.
PATIENCE_S = 400.0
#: The most records of the original that were not compared with the copy yet.
MOST_AHEAD = 4000
#: The time between two polls for the commit that triggers a kill, in seconds.
POLL_S = 0.003
#: Errors of a query that follow from a kill.
EXPECTED = re.compile(
    r"terminated with exception:\s+SQLSTATE|"
    "EOFException|crashed|Connection reset|Broken pipe|SocketException|SocketTimeout|ClosedChannel|EOFError|"
    "AsynchronousClose|Python worker .*(exited|failed to connect)|BrokenPipeError|ConnectionResetError"
)


#: Errors that no kill explains.
OURS = "distlog.core.errors."


class Pipeline:
    """The two topics, the writer of the first one, and the driver."""

    #: The processes to kill, in turn.
    victims = VICTIMS

    def __init__(
        self,
        folder: Path,
        root: str,
        options: Mapping[str, Any],
        seed: int,
        pause_s: float = 0.1,
        conf: Mapping[str, str] | None = None,
    ) -> None:
        self._chance, self.tally = random.Random(seed), Tally()
        first = seed % len(self.victims)
        self._victims = cycle(self.victims[first:] + self.victims[:first])
        self._options = dict(options)
        create = partial(distlog.create, partitions=PARTITIONS, config=CONFIG, storage_options=self._options)
        self._source, self._target = create(f"{root}/original"), create(f"{root}/copy")
        settings = {f"storage.{name}": str(value) for name, value in self._options.items()}
        self.job = Job(f"{root}/original", f"{root}/copy", str(folder), settings, conf or {})
        self.job.failures.mkdir()
        self._path, self._log = self.job.write(), (folder / "driver.log").open("ab")
        self._checked, self._failures = dict.fromkeys(range(PARTITIONS), 0), set[Path]()
        self._is_over = threading.Event()
        self._filling = threading.Thread(target=self._fill, args=(pause_s,), daemon=True)
        self._filling.start()
        self._driver = self._start()

    def _start(self) -> Program:
        imports = ["distlog.spark"]
        return Program("soak.pipeline", self._path, module=True, imports=imports, stdout=self._log, stderr=self._log)

    def _fill(self, pause_s: float) -> None:
        number, topic = 0, distlog.open(self.job.source, storage_options=self._options)
        with topic.writer(linger_ms=50) as writer:
            while not self._is_over.wait(pause_s):
                for _ in range(20 if number < sum(self._checked.values()) + MOST_AHEAD else 0):
                    row = record("filler", number)
                    writer.append(row["value"], key=row["key"], timestamp=row["timestamp"])
                    number += 1
        self.tally["records"] += number

    def kill(self) -> None:
        """Kill something: first in batch 0, then right after a commit, or a random time later."""
        victim = next(self._victims)
        if not self.tally:
            self._wait((self.job.checkpoint / "offsets" / "0").exists, "no batch starts")
            time.sleep(self._chance.random())
            struck = self._strike(victim, self._pids_of(victim))
        elif self._chance.random() < 0.5:
            # finding processes takes longer than Spark's note of a commit of the sink
            pids = self._wait_for_progress(partial(self._pids_of, victim))
            struck = self._strike(victim, pids)
        else:
            self._wait_for_progress()
            time.sleep(self._chance.random() * 0.7)
            struck = self._strike(victim, self._pids_of(victim))
        if struck:
            self.tally[f"kills of a {victim}"] += 1
        if struck and victim in ("machine", "driver"):
            self.tally["kills before Spark noted a commit"] += self._is_ahead_of_spark()
        self._revive()
        self._check_copied()

    def _pids_of(self, victim: str) -> list[int]:
        """Return the processes of one of the VICTIMS, in the order of the kills."""
        driver = self._driver.pid
        if victim == "machine":
            return [driver, *processes.descendants(driver)]
        if victim == "driver":
            return [*processes.of_kind(driver, "jvm"), driver]
        pids = processes.of_kind(driver, victim)
        return pids and [self._chance.choice(pids)]

    def _strike(self, victim: str, pids: Sequence[int]) -> bool:
        for pid in pids:
            processes.kill(pid)
        return bool(pids)

    def _is_ahead_of_spark(self) -> bool:
        """Whether the copy has a batch that Spark's checkpoint lacks."""
        noted = (int(path.name) for path in (self.job.checkpoint / "commits").glob("[0-9]*"))
        query = json.loads((self.job.checkpoint / "metadata").read_text(encoding="utf-8"))["id"]
        self._target.refresh()
        newest = self._target.snapshot.transactions.newest(query)
        return newest is not None and newest > max(noted, default=-1)

    def _revive(self) -> None:
        if self._driver.poll() is not None:
            self._driver = self._start()
            self.tally["drivers restarted"] += 1

    def _wait_for_progress(self, find: Callable[[], list[int]] = list) -> list[int]:
        """Wait for progress of the copy; returns the processes that `find` returned shortly before."""
        # once everything is copied, nothing is added before the comparison
        self._check_copied()
        ends, pids = self._target.end_offsets(), list[int]()
        found_s = 0.0

        def has_progress() -> bool:
            nonlocal pids, found_s
            if time.monotonic() > found_s + 0.5:
                pids, found_s = find(), time.monotonic()
            return self._refreshed(self._target) != ends

        self._wait(has_progress, "nothing is copied", POLL_S)
        return pids

    def _refreshed(self, topic: distlog.Topic) -> dict[int, int]:
        topic.refresh()
        return topic.end_offsets()

    def _wait(self, condition: Callable[[], bool], complaint: str, pause_s: float = 0.1) -> None:
        end = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() >= end:
                self._dump_threads()
                demand(False, f"{complaint} for {PATIENCE_S:.0f} s")
            self._check_failures()
            self._revive()
            time.sleep(pause_s)

    def _dump_threads(self) -> None:
        """Write the stacks of the JVM's threads to the log."""
        for pid in processes.of_kind(self._driver.pid, "jvm"):
            os.kill(pid, signal.SIGQUIT)
        time.sleep(1)

    def maintain(self) -> None:
        """Merge small segments of both topics, and delete unused files."""
        for topic in (self._source, self._target):
            topic.refresh()
            topic.compact()
            topic.vacuum()
        self.tally["maintenance runs"] += 1

    def finish(self) -> Tally:
        """Let the query copy the remaining records; compare the topics."""
        self._is_over.set()
        self._filling.join()
        self.job.end.touch()
        self._wait(lambda: self._driver.poll() == 0, "the driver does not end")
        self._check_failures()
        self._check_copied()
        ends, copied = self._refreshed(self._source), self._refreshed(self._target)
        demand(ends == copied, f"the partitions have {ends} records, and their copies {copied}")
        self._checked = dict.fromkeys(range(PARTITIONS), 0)
        self._check_copied()
        self.tally["versions of the copy"] += self._target.version
        return self.tally

    def _check_copied(self) -> None:
        """Compare the records that were copied since the last call."""
        ends, available = self._refreshed(self._target), self._refreshed(self._source)
        for partition, start in self._checked.items():
            end = ends[partition]
            demand(end <= available[partition], f"the copy of partition {partition} has more records")
            expected, actual = (_rows(topic, partition, start, end) for topic in (self._source, self._target))
            message = f"from offset {start} on, the copy of partition {partition} has other records, or another order"
            demand(actual.equals(expected), message)
        self._checked = ends

    def _check_failures(self) -> None:
        for path in sorted(set(self.job.failures.iterdir()) - self._failures):
            text = path.read_text(encoding="utf-8")
            demand(EXPECTED.search(text) is not None and OURS not in text, f"a query failed: {text}")
            self._failures.add(path)
            self.tally["queries restarted"] += 1

    def close(self) -> None:
        self._is_over.set()
        self._filling.join()
        processes.kill_all(self._driver.pid)
        self._driver.wait()
        self._log.close()


def _rows(topic: distlog.Topic, partition: int, start: int, end: int) -> pa.Table:
    columns = ["offset", "key", "value", "timestamp"]
    scan = topic.scan([partition], start={partition: start}, end={partition: end}, columns=columns)
    return scan.to_table().combine_chunks()


def run(folder: Path, seed: int, kills: int) -> Tally:
    return killed(Pipeline(folder, str(folder), {}, seed), kills)


def killed(pipeline: Pipeline, kills: int, disturb: Callable[[], None] = lambda: None) -> Tally:
    """Disturb and kill `kills` times, run maintenance now and then, and check the copy."""
    try:
        for number in range(kills):
            disturb()
            pipeline.kill()
            if number % 5 == 4:
                pipeline.maintain()
        return pipeline.finish()
    finally:
        pipeline.close()
