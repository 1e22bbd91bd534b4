"""Real processes that append to one partition in place, and are killed or stopped in the middle of it."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from forked_programs import Program
from partition_logs import Process, append, new_topic

from distlog.core.errors import StorageError

pytestmark = pytest.mark.long

#: Appends until it is told to stop, and prints each record that is durable.
APPENDING = """
import sys
from pathlib import Path
from partition_logs import Process, append

name, process = sys.argv[2], Process(Path(sys.argv[1]))
for number in range(int(sys.argv[3])):
    append(process[0], f"{name} {number}".encode())
    if number % 5 == 4:
        process[0].flush()
        print(number, flush=True)
"""

HOLDING = """
import sys, time
from pathlib import Path
from partition_logs import Process

process = Process(Path(sys.argv[1]))
with process[0]._active.held():
    print("held", flush=True)
    time.sleep(600)
"""


def begin(program: str, *arguments: object) -> Program:
    return Program(program, *arguments, stdout=subprocess.PIPE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    # a few dozen batches a segment, so that some are killed in a roll
    return new_topic(tmp_path / "events", internal_segment_bytes=3000)


def acknowledged(process: Program) -> int:
    """How many records it says are durable; waits for its end."""
    said = process.communicate()[0].split()
    return int(said[-1]) + 1 if said else 0


def test_processes_append_while_one_after_the_other_is_killed(folder: Path) -> None:
    chance, counts = random.Random(1), {}
    victims = [begin(APPENDING, folder, f"victim{number}", 100_000) for number in range(3)]
    living = {f"living{number}": begin(APPENDING, folder, f"living{number}", 100) for number in range(2)}
    for number, victim in enumerate(victims):
        assert victim.stdout
        said = [victim.stdout.readline()]
        time.sleep(chance.random() / 10)
        victim.send_signal(signal.SIGKILL)
        said += victim.communicate()[0].splitlines()
        # a number that was half printed is no promise
        counts[f"victim{number}"] = max(int(line) for line in said if line.strip()) + 1
    for name, process in living.items():
        counts[name] = acknowledged(process)
        assert (process.returncode, counts[name]) == (0, 100)
    reader = Process(folder)
    values = [str(value, "ascii").split() for value in reader.seen()[0] if value is not None]
    for name, count in counts.items():
        numbers = [int(number) for who, number in values if who == name]
        assert numbers == list(range(len(numbers)))
        assert len(numbers) >= count
    reader[0].roll()
    assert reader.anomalies() == ()
    assert len(reader.head().partitions[0].segments) > 3


@pytest.fixture
def stopped(folder: Path) -> Iterator[Program]:
    """A process that has held the lock, and does not run."""
    append(Process(folder)[0], b"a")
    process = begin(HOLDING, folder)
    assert process.stdout
    assert process.stdout.readline() == "held\n"
    process.send_signal(signal.SIGSTOP)
    yield process
    process.kill()
    process.communicate()


def test_who_waits_for_a_stopped_process_gets_an_error_that_names_it(folder: Path, stopped: Program) -> None:
    process = Process(folder, timeout_s=0.05)
    for change in (lambda: append(process[0], b"b"), process[0].flush, process[0].roll):
        with pytest.raises(StorageError, match=f"process {stopped.pid} has held the lock"):
            change()
    # readers need no lock
    assert process.seen() == {0: [b"a"]}
    stopped.kill()
    stopped.wait()
    assert append(Process(folder)[0], b"b") == (1, 2)
