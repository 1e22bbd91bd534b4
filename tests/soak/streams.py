"""A query copies a topic to another by Spark, while its processes are killed (kill -9) at random moments.

In the end each partition of the copy has the records of its original: each once, in their order.
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
#: A batch whose files are older than the delay is refused, once a vacuum was there: on a busy machine it takes long.
CONFIG = {"internal.segment.bytes": 60_000, "file.delete.delay.ms": 30_000}
#: In turn: single processes; the machine, with all of them; the driver alone, whose tasks may go on for a while.
VICTIMS = ("source", "task", "machine", "sink", "task", "driver")
#: How long the copy may stand still before that is an error, in seconds: a driver takes ten to begin, or on a busy
#: machine a hundred.
PATIENCE_S = 400.0
#: The original has at most about so many records that nobody has compared with the copy.
MOST_AHEAD = 4000
#: How often to look for a commit right behind which something is killed, in seconds.
LOOK_S = 0.003
#: What a query may fail of, since it follows from a kill.
EXPECTED = re.compile(
    r"terminated with exception:\s+SQLSTATE|"
    "EOFException|crashed|Connection reset|Broken pipe|SocketException|SocketTimeout|ClosedChannel|EOFError|"
    "AsynchronousClose|Python worker .*(exited|failed to connect)|BrokenPipeError|ConnectionResetError"
)


#: What no kill explains, whatever else the text of a failure says.
OURS = "distlog.core.errors."


class Pipeline:
    """The two topics, who fills the first one, and the driver."""

    #: What is killed, in turn.
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
        self._driver = self._begin()

    def _begin(self) -> Program:
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
        """Kill something: first in batch 0, then as soon as a commit is seen, or a random while later."""
        victim = next(self._victims)
        if not self.tally:
            self._wait((self.job.checkpoint / "offsets" / "0").exists, "no batch begins")
            time.sleep(self._chance.random())
            struck = self._strike(victim, self._pids_of(victim))
        elif self._chance.random() < 0.5:
            # looking for processes takes longer than Spark takes to note that the sink has committed
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
        """The processes of one of the VICTIMS now, to be killed in this order."""
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
        """Whether the copy has a batch that Spark has not noted as done."""
        noted = (int(path.name) for path in (self.job.checkpoint / "commits").glob("[0-9]*"))
        query = json.loads((self.job.checkpoint / "metadata").read_text(encoding="utf-8"))["id"]
        self._target.refresh()
        newest = self._target.snapshot.transactions.newest(query)
        return newest is not None and newest > max(noted, default=-1)

    def _revive(self) -> None:
        if self._driver.poll() is not None:
            self._driver = self._begin()
            self.tally["drivers restarted"] += 1

    def _wait_for_progress(self, look: Callable[[], list[int]] = list) -> list[int]:
        """Wait until the copy goes on; returns what `look` gave shortly before."""
        # if all was copied meanwhile, nothing is added before it was compared
        self._check_copied()
        ends, pids = self._target.end_offsets(), list[int]()
        looked_at = 0.0

        def goes_on() -> bool:
            nonlocal pids, looked_at
            if time.monotonic() > looked_at + 0.5:
                pids, looked_at = look(), time.monotonic()
            return self._refreshed(self._target) != ends

        self._wait(goes_on, "nothing is copied", LOOK_S)
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
        """Let the driver's JVM write the stacks of its threads into the log."""
        for pid in processes.of_kind(self._driver.pid, "jvm"):
            os.kill(pid, signal.SIGQUIT)
        time.sleep(1)

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
        self._check_copied()
        ends, copied = self._refreshed(self._source), self._refreshed(self._target)
        demand(ends == copied, f"the partitions have {ends} records, and their copies {copied}")
        self._checked = dict.fromkeys(range(PARTITIONS), 0)
        self._check_copied()
        self.tally["versions of the copy"] += self._target.version
        return self.tally

    def _check_copied(self) -> None:
        """Compare what was copied since the last time."""
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
        """End all of it, however it went."""
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
