"""Appends, a copy by foreachBatch and compaction on a cluster of Spark, while a process beside it changes all topics.

Executors, workers and the driver are killed, appends are cancelled, and slow tasks get a second attempt. The process
beside it compacts, merges, vacuums and restores the topics, and drops and makes one again. In the end each append is
there once and whole, and no file is left that no version has.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import re
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import distlog
from distlog.core.errors import CommitConflictError, TopicNotFoundError, TransactionTooOldError
from soak import cluster
from soak.busy_driver import ACKS, CANCELLED, CHANGED, FAILURES, KEYED, KEYS, ROWS, ROWS_TOPIC, check_changed, told
from soak.cluster import Cluster, ClusterPipeline
from soak.streams import EXPECTED, OURS
from soak.tally import Tally, demand
from soak.workers import guarded

PARTITIONS = 2
#: How long vacuum may take until only live files are there.
VACUUM_S = 60.0
#: A task passes on some rows before it is slow; a busy machine takes long to begin an executor.
CONF = {"spark.sql.execution.arrow.maxRecordsPerBatch": "40", "spark.dynamicAllocation.executorIdleTimeout": "45s"}
CONFIG = {"internal.segment.bytes": 60_000, "file.delete.delay.ms": 60_000}
#: What work may fail of, since it follows from a kill, or from a cancelled job.
_KILLED = re.compile(f"{EXPECTED.pattern}|cancel|lost|SparkContext was shut down|Py4JNetworkError", re.IGNORECASE)
#: What work on the topic may fail of that is dropped meanwhile.
_DROPPED = re.compile(r"distlog\.core\.errors\.(TopicNotFoundError|SnapshotTooOldError|CommitConflictError)\b")


def change(root: str, pause_s: float) -> None:
    """Change all topics in `root` at random, until the process is killed; nothing acknowledged is taken away."""
    chance = random.Random(os.getpid())
    names = ("original", "copy", ROWS_TOPIC, KEYED)
    for number in itertools.count():
        time.sleep(pause_s)
        name = chance.choice((*names, CHANGED, CHANGED))
        # Spark's driver may have done it first
        with suppress(CommitConflictError, TransactionTooOldError):
            if name == CHANGED and chance.random() < 0.5:
                make_again(Path(root, CHANGED), number)
            else:
                chance.choice(CHANGES)(distlog.open(str(Path(root, name))), chance)


def make_again(folder: Path, number: int) -> None:
    """Drop the topic, and make it again with some rows."""
    distlog.open(str(folder)).drop()
    topic = distlog.create(str(folder), partitions=PARTITIONS, config=CONFIG)
    topic.append([{"key": str(each), "value": f"made-{number} 20 {each}"} for each in range(20)])


def _restore(topic: distlog.Topic, chance: random.Random) -> None:
    # a version of the topic that was dropped here
    with suppress(TopicNotFoundError):
        topic.restore(chance.randint(topic.snapshot.log_floor, topic.version))


def _take_and_give(topic: distlog.Topic, chance: random.Random) -> None:
    """Delete records, and bring them back: of a topic that the others only append to."""
    if topic.name == ROWS_TOPIC:
        topic.refresh()
        before = topic.version
        topic.delete_records({chance.randrange(PARTITIONS): -1})
        topic.restore(before)


CHANGES: tuple[Callable[[distlog.Topic, random.Random], object], ...] = (
    lambda topic, chance: topic.compact(),
    lambda topic, chance: topic.vacuum(),
    _restore,
    _take_and_give,
)


class BusyPipeline(ClusterPipeline):
    """The pipeline of a cluster, with more work in its driver, and a process that changes its topics."""

    victims = ("driver", "Spark executor", "Spark worker", "Spark executor", "paused executor")
    driver, expected, is_foreach_batch = "soak.busy_driver", _KILLED, True

    def __init__(self, folder: Path, seed: int, on: Cluster) -> None:
        self._folder, self._read = folder, dict[str, int]()
        (folder / FAILURES).mkdir()
        (folder / "complaints").mkdir()
        compacted = {**CONFIG, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.01}
        for name, config in ((ROWS_TOPIC, CONFIG), (KEYED, compacted), (CHANGED, CONFIG)):
            distlog.create(str(folder / name), partitions=PARTITIONS, config=config)
        super().__init__(folder, seed, on, CONF)
        context = multiprocessing.get_context("forkserver")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        arguments = (change, str(folder / "complaints"), str(folder), 0.2)
        self._changing = context.Process(target=guarded, args=arguments)
        self._changing.start()

    def kill(self) -> None:
        """As of any pipeline, but of the appends too one was done since the last time."""
        before = self._appends() if self.tally else -1
        self._wait(lambda: self._appends() > before, "nothing is appended")
        super().kill()

    def _appends(self) -> int:
        return sum(1 for _ in told(self._folder / ACKS))

    def _check_failures(self) -> None:
        super()._check_failures()
        for path in (self._folder / "complaints").iterdir():
            demand(False, path.read_text(encoding="utf-8"))
        for path in sorted((self._folder / FAILURES).iterdir()):
            failures = list(told(path))
            for one in failures[self._read.get(path.name, 0) :]:
                self._check_failure(path.name, str(one["text"]))
            self._read[path.name] = len(failures)

    def _check_failure(self, name: str, text: str) -> None:
        is_dropped = name == "changed" and _DROPPED.search(text) is not None
        demand(is_dropped or (_KILLED.search(text) is not None and OURS not in text), f"{name} failed: {text}")
        kind = "of a dropped topic" if is_dropped else "cancelled" if "ancelled" in text else "that failed"
        self.tally[f"uses {kind}"] += 1

    def _check_copied(self) -> None:
        super()._check_copied()
        are_rows_whole(self._folder)

    def finish(self) -> Tally:
        """End all work, behind the append that is cancelled; check what is there, and what vacuum leaves."""
        self._wait(lambda: self._appends() > CANCELLED, "nothing is appended")
        self._changing.kill()
        self._changing.join()
        super().finish()
        give_back(self._folder)
        demand(are_rows_whole(self._folder), "rows that were deleted do not come back")
        acks = list(told(self._folder / ACKS))
        self.tally["appends"] += len(acks)
        self.tally["appends that were done before"] += sum(bool(one["replayed"]) for one in acks)
        self._check_keyed(self._appends())
        # the process may have been killed between the drop and the new topic
        changed = distlog.open_or_create(str(self._folder / CHANGED), PARTITIONS, config=CONFIG)
        check_changed(changed.scan(columns=["value"]).to_table()["value"].to_pylist())
        for name in ("original", "copy", ROWS_TOPIC, KEYED, CHANGED):
            self._check_vacuumed(distlog.open(str(self._folder / name)))
        return self.tally

    def _check_keyed(self, appends: int) -> None:
        topic = distlog.open(str(self._folder / KEYED))
        newest = dict[bytes, int]()
        for row in topic.scan(columns=["key", "value"]).to_table().to_pylist():
            demand(int(row["value"]) > newest.get(row["key"], -1), "values of a key are out of order, or not once")
            newest[row["key"]] = int(row["value"])
        demand(len(newest) == KEYS and min(newest.values()) >= appends - 1, f"keys have old values: {newest}")

    def _check_vacuumed(self, topic: distlog.Topic) -> None:
        """Merge, wait until what no version needs may go, and look which files are left."""
        topic.alter_config({"file.delete.delay.ms": 1000})
        topic.compact()
        end = time.monotonic() + VACUUM_S
        self.tally["files for vacuum"] += len(_left(topic))
        while left := _left(topic):
            demand(time.monotonic() < end, f"vacuum leaves {left[:5]}, {len(left)} files in all")
            topic.vacuum()
            time.sleep(0.3)
        self.tally["topics vacuumed"] += 1

    def close(self) -> None:
        """End all of it, however it went."""
        self._changing.kill()
        self._changing.join()
        super().close()


def are_rows_whole(folder: Path) -> bool:
    """Each append of the rows is there once and whole; those that were acknowledged are where that said.

    False while records are deleted, which come back: then nothing is checked.
    """
    acks = {int(str(one["batch"])): one for one in told(folder / ACKS)}
    topic, found = distlog.open(str(folder / ROWS_TOPIC)), dict[int, list[tuple[int, int]]]()
    if any(topic.start_offsets().values()):
        return False
    for row in topic.scan(columns=["partition", "offset", "value"]).to_table().to_pylist():
        number = int(row["value"].split(b" ", 2)[1])
        found.setdefault(number // ROWS, []).append((number, row["partition"], row["offset"]))
    for batch, rows in found.items():
        numbers = sorted(number for number, *_ in rows)
        demand(numbers == list(range(batch * ROWS, (batch + 1) * ROWS)), f"append {batch} is not there once")
    for batch, ack in acks.items():
        spans = {int(partition): range(*span) for partition, span in ack["offsets"].items()}
        places = [offset in spans.get(partition, ()) for _, partition, offset in found.get(batch, [])]
        demand(len(places) == ROWS and all(places), f"append {batch} was acknowledged, and is not there")
    demand(set(found) <= {*acks, len(acks)}, "there are rows of an append that nobody has begun")
    return True


def give_back(folder: Path) -> None:
    """Bring back the rows that were deleted last: the process may have been killed before it did."""
    url = str(folder / ROWS_TOPIC)
    topic = distlog.open(url)
    version = topic.version
    while any(distlog.open(url, version=version).start_offsets().values()):
        version -= 1
    if version < topic.version:
        topic.restore(version)


def _left(topic: distlog.Topic) -> list[str]:
    """The files in the topic's folder that are of no live segment, besides commits and locks."""
    live = {str(stem) for stem in topic.segments()["stem"].to_pylist()}
    files = (path for path in Path(topic.url).rglob("[!.]*") if path.is_file() and "_commits" not in path.parts)
    return [str(path) for path in files if not any(stem in path.name for stem in live)]


def run(folder: Path, seed: int, kills: int) -> Tally:
    """Kill that many times, on a cluster of this machine."""
    return cluster.run(folder, seed, kills, BusyPipeline)
