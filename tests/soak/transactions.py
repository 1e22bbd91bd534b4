"""Producers with transactional ids that are killed at random moments (kill -9): a transaction is complete or missing.

Two have the same id, so that they fence each other. A concurrent reader of committed records never gets a part of a
transaction in a partition, and no record that it got vanishes or changes.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from itertools import count
from multiprocessing.process import BaseProcess
from pathlib import Path

import distlog
from distlog.core.errors import DistlogError, ProducerFencedError
from soak.tally import Tally, demand

IDS = ("payments", "payments", "refunds", "audits")
PARTITIONS, RECORDS = 2, 3
PAUSE_S = 0.15
#: How long the first commit may take.
PATIENCE_S = 120.0


def produce(url: str, acks: str, transactional_id: str) -> None:
    """Commit three transactions, abort one, and so on; `acks` gets a line before and after each commit."""
    parent, acks_file = os.getppid(), os.open(acks, os.O_WRONLY | os.O_APPEND)
    try:
        producer = distlog.open(url).producer(transactional_id)
        for number in count():
            if os.getppid() != parent:
                return
            is_committed, tag = number % 4 != 3, f"{transactional_id}-{os.getpid()}-{number}"
            producer.begin()
            for partition in list(range(PARTITIONS)) * RECORDS:
                producer.append(tag.encode(), partition=partition)
            if is_committed:
                os.write(acks_file, f"start {tag}\n".encode())
                producer.commit()
                os.write(acks_file, f"done {tag}\n".encode())
            else:
                producer.flush()
                producer.abort()
    except ProducerFencedError:
        return
    except DistlogError as error:
        os.write(acks_file, f"error {error!r}\n".encode())


def run(folder: Path, seed: int, seconds: float = 15) -> Tally:
    """Kill one process after the other for `seconds`, then check the records."""
    chance, tally, root = random.Random(seed), Tally(), folder / f"transactions {seed}"
    root.mkdir()
    url, acks = str(root / "events"), root / "acks"
    acks.touch()
    distlog.create(url, PARTITIONS, {"internal.segment.bytes": 20_000, "index.interval.bytes": 500})
    context = multiprocessing.get_context("forkserver")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    context.set_forkserver_preload(["soak.warm"])

    def begin(number: int) -> BaseProcess:
        process = context.Process(target=produce, args=(url, str(acks), IDS[number]))
        process.start()
        return process

    running, reader = [begin(number) for number in range(len(IDS))], _Reader(url)
    try:
        patience = time.monotonic() + PATIENCE_S
        while "done" not in acks.read_text():
            demand(time.monotonic() < patience, "no producer has committed")
            time.sleep(0.1)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(chance.expovariate(1 / PAUSE_S))
            number = chance.randrange(len(IDS))
            _kill(running[number])
            tally["kills"] += 1
            running[number] = begin(number)
            reader.read(tally)
    finally:
        for process in running:
            _kill(process)
    _check(url, acks.read_text().splitlines(), reader, tally)
    shutil.rmtree(root)
    return tally


class _Reader:
    def __init__(self, url: str) -> None:
        self.topic = distlog.open(url)
        self.values: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}

    def read(self, tally: Tally) -> None:
        self.topic.refresh()
        for partition, values in self.values.items():
            scan = self.topic.scan(partition, columns=["value"], isolation="read_committed")
            now = scan.to_table()["value"].to_pylist()
            demand(now[: len(values)] == values, f"records of partition {partition} have changed")
            parts = {tag: number for tag, number in Counter(now).items() if number != RECORDS}
            demand(not parts, f"partition {partition} has incomplete or repeated transactions: {parts}")
            self.values[partition] = now
        tally["reads"] += 1


def _check(url: str, lines: list[str], reader: _Reader, tally: Tally) -> None:
    notes: dict[str, set[bytes]] = {"start": set(), "done": set(), "error": set()}
    for line in lines:
        word, _, tag = line.partition(" ")
        notes[word].add(tag.encode())
    demand(not notes["error"], f"a producer failed: {notes['error']}")
    for transactional_id in sorted(set(IDS)):
        distlog.open(url).producer(transactional_id).close()
    reader.read(tally)
    value_sets = [set(values) for values in reader.values.values()]
    demand(
        all(value_set == value_sets[0] for value_set in value_sets),
        "a transaction is in one partition and not in another",
    )
    demand(notes["done"] <= value_sets[0], f"committed, and missing: {notes['done'] - value_sets[0]}")
    demand(value_sets[0] <= notes["start"], f"present, and not committed: {value_sets[0] - notes['start']}")
    demand(not reader.topic.verify().anomalies, "verify finds anomalies")
    tally["transactions acknowledged"] += len(notes["done"])
    tally["transactions verified"] += len(notes["done"] & value_sets[0])
    tally["transactions without an answer"] += len(value_sets[0] - notes["done"])


def _kill(process: BaseProcess) -> None:
    if process.is_alive() and process.pid is not None:
        os.kill(process.pid, signal.SIGKILL)
    process.join()
