"""A query copies a topic to another by Spark, while its processes are killed (kill -9) at random moments.

In the end each partition of the copy has the records of its original: each once, in their order.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import pyarrow as pa

import distlog
from soak import processes
from soak.pipeline import Job
from soak.records import record
from soak.tally import Tally, demand

PARTITIONS = 3
CONFIG = {"internal.segment.bytes": 60_000, "file.delete.delay.ms": 1000}
#: In turn: single processes; the machine, with all of them; the driver alone, whose tasks may go on for a while.
VICTIMS = ("source", "task", "machine", "sink", "task", "driver")
#: How long the copy may stand still before that is an error, in seconds: a driver takes ten to begin, or on a busy
#: machine a hundred.
PATIENCE_S = 400.0
#: What a query may fail of, since it follows from a kill.
EXPECTED = re.compile(
    r"terminated with exception:\s+SQLSTATE|"
    "EOFException|crashed|Connection reset|Broken pipe|SocketException|SocketTimeout|ClosedChannel|EOFError|"
    "AsynchronousClose|Python worker .*(exited|failed to connect)|BrokenPipeError|ConnectionResetError"
)


class Pipeline:
    """The two topics, who fills the first one, and the driver."""

    def __init__(self, folder: Path, root: str, options: Mapping[str, Any], seed: int, pause_s: float = 0.1) -> None:
        self._chance, self._victims, self.tally = random.Random(seed), cycle(VICTIMS), Tally()
        self._options = dict(options)
        made = partial(distlog.create, partitions=PARTITIONS, config=CONFIG, storage_options=self._options)
        self._source, self._target = made(f"{root}/original"), made(f"{root}/copy")
        settings = {f"storage.{name}": str(value) for name, value in self._options.items()}
        self.job = Job(f"{root}/original", f"{root}/copy", str(folder), settings)
        self.job.failures.mkdir()
        self._path, self._log = self.job.write(), (folder / "driver.log").open("ab")
        self._is_over = threading.Event()
        self._filling = threading.Thread(target=self._fill, args=(pause_s,), daemon=True)
        self._filling.start()
        self._driver = self._begin()

    def _begin(self) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, "-m", "soak.pipeline", str(self._path)]
        return subprocess.Popen(command, env=environment, stdout=self._log, stderr=self._log)

    def _fill(self, pause_s: float) -> None:
        number, topic = 0, distlog.open(self.job.source, storage_options=self._options)
        with topic.writer(linger_ms=50) as writer:
            while not self._is_over.wait(pause_s):
                for _ in range(20):
                    row = record("filler", number)
                    writer.append(row["value"], key=row["key"], timestamp=row["timestamp"])
                    number += 1
        self.tally["records"] += number

    def kill(self) -> None:
        """Wait for the copy to go on, and a random while; then kill something."""
        self._wait_for_progress()
        time.sleep(self._chance.random() * 0.7)
        victim = next(self._victims)
        if self._strike(victim):
            self.tally[f"kills of a {victim}"] += 1
        self._revive()

    def _strike(self, victim: str) -> bool:
        """Kill one of the VICTIMS; False if there is no such process now."""
        driver = self._driver.pid
        if victim == "machine":
            processes.kill_all(driver)
        elif victim == "driver":
            for each in (driver, *processes.of_kind(driver, "jvm")):
                processes.kill(each)
        else:
            found = processes.of_kind(driver, victim)
            for each in found and [self._chance.choice(found)]:
                processes.kill(each)
            return bool(found)
        return True

    def _revive(self) -> None:
        if self._driver.poll() is not None:
            self._driver = self._begin()
            self.tally["drivers begun anew"] += 1

    def _wait_for_progress(self) -> None:
        self._target.refresh()
        ends = self._target.end_offsets()
        self._wait(lambda: self._refreshed(self._target) != ends, "nothing is copied")

    def _refreshed(self, topic: distlog.Topic) -> dict[int, int]:
        topic.refresh()
        return topic.end_offsets()

    def _wait(self, condition: Callable[[], bool], complaint: str) -> None:
        end = time.monotonic() + PATIENCE_S
        while not condition():
            demand(time.monotonic() < end, f"{complaint} for {PATIENCE_S:.0f} s: {self._last_failure()}")
            self._revive()
            time.sleep(0.1)

    def maintain(self) -> None:
        """Merge small segments of both topics, and delete what is left over."""
        for topic in (self._source, self._target):
            topic.refresh()
            topic.compact()
            topic.vacuum()
        self.tally["maintenance runs"] += 1

    def finish(self) -> Tally:
        """Let the query copy what is left; compare the topics."""
        self._is_over.set()
        self._filling.join()
        self.job.end.touch()
        self._wait(lambda: self._driver.poll() == 0, "the driver does not end")
        self._check_failures()
        original, copied = (
            distlog.open(url, storage_options=self._options) for url in (self.job.source, self.job.target)
        )
        for partition in range(PARTITIONS):
            self._compare(_rows(original, partition), _rows(copied, partition), partition)
        self.tally["versions of the copy"] += copied.version
        return self.tally

    def _compare(self, wanted: pa.Table, found: pa.Table, partition: int) -> None:
        what = f"partition {partition} has {wanted.num_rows} records, and its copy {found.num_rows}"
        demand(found.num_rows == wanted.num_rows, what)
        demand(found.equals(wanted), f"the copy of partition {partition} has other records, or another order")

    def _check_failures(self) -> None:
        for path in sorted(self.job.failures.iterdir()):
            text = path.read_text(encoding="utf-8")
            demand(EXPECTED.search(text) is not None, f"a query failed: {text}")
            self.tally["queries begun anew"] += 1

    def _last_failure(self) -> str:
        failures = sorted(self.job.failures.iterdir())
        return failures[-1].read_text(encoding="utf-8") if failures else "no query failed"

    def close(self) -> None:
        """End all of it, however it went."""
        self._is_over.set()
        self._filling.join()
        processes.kill_all(self._driver.pid)
        self._driver.wait()
        self._log.close()


def _rows(topic: distlog.Topic, partition: int) -> pa.Table:
    return topic.scan([partition], columns=["key", "value", "timestamp"]).to_table().combine_chunks()


def run(folder: Path, seed: int, kills: int) -> Tally:
    """Kill that many times, on this disk."""
    return killed(Pipeline(folder, str(folder), {}, seed), kills)


def killed(pipeline: Pipeline, kills: int, disturb: Callable[[], None] = lambda: None) -> Tally:
    """Disturb and kill that many times, maintain the topics now and then, and check what came of it."""
    try:
        for number in range(kills):
            disturb()
            pipeline.kill()
            if number % 5 == 4:
                pipeline.maintain()
        return pipeline.finish()
    finally:
        pipeline.close()
