"""A process that is stopped (SIGSTOP) at any system call: other processes wait, and lose nothing.

Readers continue. The errors of waiting processes name the stopped one. After SIGCONT it finishes its work.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from forked_programs import Program

import distlog
from distlog.core.errors import StorageError
from soak.appending import Appending
from soak.records import read_records, record, writer_of
from soak.tally import Tally, demand

#: It stops itself before a call, and prints the offsets of its records.
VICTIM = "from soak.stops import be_stopped; be_stopped()"


class StoppingCalls:
    """The functions of `os`; before one call the process stops itself."""

    def __init__(self, steps: int) -> None:
        self._steps_left = steps

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            self._steps_left -= 1
            if self._steps_left == 0:
                os.kill(os.getpid(), signal.SIGSTOP)
            return getattr(os, name)(*arguments)

        return call


def be_stopped() -> None:
    """Run as the victim: the arguments are the topic's url and the number of the call."""
    log = Appending(sys.argv[1], 0, calls=StoppingCalls(int(sys.argv[2])))
    for number in range(20):
        print(log.append([record("victim", number)]), flush=True)
        if number % 3 == 2:
            log.flush()
        if number % 7 == 6:
            log.log.roll()


def run(folder: Path, seed: int, stops: int = 5) -> Tally:
    chance, tally, root = random.Random(seed), Tally(), folder / f"stops {seed}"
    root.mkdir()
    url = str(root / "events")
    distlog.create(url, config={"internal.segment.bytes": 3000, "index.interval.bytes": 100})
    log, values = Appending(url, 0), [record("other", 0)["value"]]
    log.append([record("other", 0)])
    for _ in range(stops):
        _stop_once(url, chance.randint(1, 60), values, tally)
    shutil.rmtree(root)
    return tally


def _stop_once(url: str, call: int, values: list[bytes], tally: Tally) -> None:
    victim = Program(VICTIM, url, call, stdout=subprocess.PIPE, imports=["soak.stops"])
    try:
        while (is_running := victim.poll() is None) and not _is_stopped(victim.pid):
            time.sleep(0.002)
        if is_running:
            _use_concurrently(url, victim.pid, values, tally)
            victim.send_signal(signal.SIGCONT)
            tally["stops"] += 1
        said = victim.communicate()[0].split()
    finally:
        victim.kill()
    demand(victim.returncode == 0, f"the stopped process ends with {victim.returncode}")
    _recover(url, values, [int(line) for line in said])
    tally["records verified"] += len(values)


def _is_stopped(pid: int) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] == "T"
    return False


def _use_concurrently(url: str, pid: int, values: list[bytes], tally: Tally) -> None:
    """Do everything that another process may do while the victim is stopped."""
    topic = distlog.open(url)
    values_read = [value for _, _, value in read_records(topic, 0, 0)]
    demand(values_read[: len(values)] == values, "a reader misses records")
    other = Appending(url, 0, timeout_s=0.05)
    acts: list[Callable[[], object]] = [
        lambda: other.append([record("other", len(values))]),
        other.flush,
        other.log.roll,
    ]
    for act in acts:
        _wait(act, pid, tally)
    again = [value for _, _, value in read_records(distlog.open(url), 0, 0)]
    demand(again[: len(values_read)] == values_read, "records that a reader got are missing")


def _wait(act: Callable[[], object], pid: int, tally: Tally) -> None:
    """Do it; an error about the lock must name the stopped process."""
    try:
        act()
    except StorageError as error:
        named = re.search(r"process (\d+) has held the lock", str(error))
        demand(named is not None and int(named[1]) == pid, f"the error does not name process {pid}: {error}")
        tally["errors that name the process"] += 1


def _recover(url: str, values: list[bytes], offsets: list[int]) -> None:
    values_read = [value for _, _, value in read_records(distlog.open(url), 0, 0)]
    demand(values_read[: len(values)] == values, "records are missing")
    writers = [writer_of(value) for value in values_read[len(values) :]]
    numbers = [number for name, number in writers if name == "victim"]
    demand(numbers == list(range(20)), f"the stopped process has the records {numbers}")
    demand(
        [writer_of(values_read[offset])[1] for offset in offsets] == numbers,
        "the stopped process got wrong offsets",
    )
    demand(sum(name == "other" for name, _ in writers) <= 1, "a record of another process exists twice")
    values[:] = values_read
