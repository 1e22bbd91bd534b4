"""Many processes append to one topic and some are killed: acknowledged appends are stored once, in order."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from addresses import Address
from forked_programs import Program

import distlog

pytestmark = pytest.mark.long

PARTITIONS = 3
ROWS = 5

Offsets = dict[int, list[int]]


def rows_of(producer: str, number: int) -> list[dict[str, Any]]:
    return [{"value": f"{producer} {number} {row}", "partition": (number + row) % PARTITIONS} for row in range(ROWS)]


class Journal:
    """A producer's log of its appends, before and after each; it stays readable after a kill."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def note(self, number: int, offsets: Mapping[int, tuple[int, int]] | None = None) -> None:
        """Record that append `number` starts, or its offsets."""
        line = json.dumps([number, None if offsets is None else list(offsets.items())]) + "\n"
        with open(self.path, "ab", buffering=0) as file:
            file.write(line.encode())

    def read(self) -> dict[int, Offsets | None]:
        """Return the acknowledged offsets by append, or None without an acknowledgement."""
        if not self.path.exists():
            return {}
        lines = self.path.read_text().splitlines()
        noted = [json.loads(line) for line in lines if line.endswith("]")]
        return {number: None if offsets is None else dict(offsets) for number, offsets in noted}


def produce(
    url: str, options: Mapping[str, Any], kind: str, journal: Path, appends: int, dies_after: int | None
) -> None:
    """Append until there are `appends`, or die before one is recorded; a new process continues."""
    notes, producer = Journal(journal), journal.name
    topic = distlog.open(url, storage_options=options)
    for number in range(appends):
        if notes.read().get(number) is not None:
            continue
        notes.note(number)
        if kind == "writer":
            with topic.writer(linger_ms=10**7) as writer:
                for row in rows_of(producer, number):
                    writer.append(**row)
                result = writer.flush()
        elif kind == "batches":
            result = topic.append(rows_of(producer, number), app_id=producer, batch_id=number)
        else:
            result = topic.append(rows_of(producer, number))
        if number == dies_after:
            os.kill(os.getpid(), signal.SIGKILL)
        notes.note(number, result.offsets)


PRODUCING = """
import json, sys
from pathlib import Path
from test_topic_processes import produce

url, journal, rest = sys.argv[1:]
options, kind, appends, dies_after = json.loads(rest)
produce(url, options, kind, Path(journal), appends, dies_after)
"""


def start(address: Address, kind: str, journal: Path, appends: int, dies_after: int | None = None) -> Program:
    arguments = json.dumps([address.options, kind, appends, dies_after])
    return Program(PRODUCING, address.url, journal, arguments, imports=["s3fs", "test_topic_processes"])


def kill_after(process: Program, journal: Path, appends: int, source: random.Random) -> None:
    """Kill the process at a random moment of the append that follows the first `appends`."""
    while process.poll() is None and len(Journal(journal).read()) <= appends:
        time.sleep(0.001)
    time.sleep(source.uniform(0, 0.03))
    process.kill()
    process.wait(60)


def check(topic: distlog.Topic, journals: list[Path]) -> dict[str, list[int]]:
    """Check all promises; return the stored appends of each producer."""
    stored: dict[tuple[str, int], dict[tuple[int, int], int]] = {}
    order: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for row in topic.scan(columns=["partition", "offset", "value"]).to_table().to_pylist():
        producer, number, index = row["value"].decode().split()
        positions = stored.setdefault((producer, int(number)), {})
        position = row["partition"], row["offset"]
        assert int(index) not in positions.values(), "a record is there twice"
        positions[position] = int(index)
        order.setdefault((producer, row["partition"]), []).append((int(number), int(index)))
    for (producer, _), positions in stored.items():
        # a killed writer may have its records in some partitions only
        assert len(positions) == ROWS or producer.startswith("writer"), "an append is there in part"
    assert all(numbers == sorted(numbers) for numbers in order.values()), "a producer's order is lost"
    for journal in journals:
        for number, offsets in Journal(journal).read().items():
            if offsets is not None:
                acks = {
                    (partition, offset) for partition, (low, high) in offsets.items() for offset in range(low, high)
                }
                assert stored[journal.name, number].keys() == acks, "an append is not where its result says"
    started = {(journal.name, number) for journal in journals for number in Journal(journal).read()}
    assert stored.keys() <= started
    return {journal.name: sorted(number for name, number in stored if name == journal.name) for journal in journals}


def run(address: Address, folder: Path, kinds: list[str], appends: int, killed: int) -> None:
    """Run a producer of each kind; kill `killed`, half by their own hand; producers with batches continue."""
    topic = distlog.create(address.url, PARTITIONS, {"internal.segment.bytes": 300}, address.options)
    folder.mkdir()
    journals = [folder / f"{kind}-{number}" for number, kind in enumerate(kinds)]
    source = random.Random()
    deaths = [source.randrange(appends) if number < killed / 2 else None for number in range(len(kinds))]
    processes = [
        start(address, *options, appends, death) for *options, death in zip(kinds, journals, deaths, strict=True)
    ]
    victims = list(zip(processes, journals, kinds, strict=True))[:killed]
    for (process, journal, _), death in zip(victims, deaths, strict=False):
        if death is None:
            kill_after(process, journal, source.randrange(appends - 2), source)
        process.wait(120)
    going_on = [start(address, kind, journal, appends) for _, journal, kind in victims if kind == "batches"]
    for process in processes[killed:] + going_on:
        assert process.wait(120) == 0
    complete = check(topic.refresh(), journals)
    for journal, kind in zip(journals, kinds, strict=True):
        if kind == "batches" or journal in journals[killed:]:
            assert complete[journal.name] == list(range(appends))
    for journal, death in zip(journals, deaths, strict=True):
        if death is not None:
            assert death in complete[journal.name]


def test_eight_processes_on_a_local_disk_four_of_them_killed(tmp_path: Path) -> None:
    kinds = ["batches", "plain", "batches", "writer"] * 2
    run(Address(str(tmp_path / "topic"), {}), tmp_path / "journals", kinds, appends=12, killed=4)


@pytest.mark.s3
def test_three_processes_on_s3_two_of_them_killed(s3_url: Address, tmp_path: Path) -> None:
    run(s3_url, tmp_path / "journals", ["batches", "plain", "batches"], appends=4, killed=2)
