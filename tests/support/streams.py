"""A stream as Spark runs it, without Spark: offsets are texts in a log, tasks get pickles, and it may be killed."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from commits import put_commit
from pyspark.sql.datasource import CaseInsensitiveDict, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable
from topics import values

import distlog
from distlog import Topic
from distlog.core.commits.actions import SetPartitions
from distlog.spark.batch_source import schema_of
from distlog.spark.data_source import DistlogDataSource
from distlog.spark.stream_plan import DistlogStreamReader, StreamOptions

SCHEMA = schema_of(["partition", "offset", "value"], False)
#: By partition, the offsets that were read, in the order in which they came.
Read = dict[int, list[int]]


class Seconds:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Stream:
    """A query: `log` is its checkpoint, `run` one trigger. `restart` is what a killed driver leads to."""

    def __init__(self, url: str, clock: Callable[[], float] | None = None, **options: Any) -> None:
        self.options = {"path": url, **{name: str(value) for name, value in options.items()}}
        self.clock = clock or Seconds()
        self.log: list[str] = []
        self.committed = 0
        self.splits = 0
        self.restart()

    def restart(self, **options: Any) -> None:
        """Continue from the log, in a new process, perhaps with other options."""
        self.options |= {name: str(value) for name, value in options.items()}
        self.reader = DistlogStreamReader(StreamOptions.parse(self.options), SCHEMA, self.clock)

    def available_now(self) -> None:
        """Be a query with Trigger.AvailableNow."""
        self.reader.prepareForTriggerAvailableNow()

    def run(self, *, everything: bool = False) -> Read | None:
        """Run one micro-batch, first an unfinished one; None without new records."""
        if self.committed == len(self.log) and not self.plan(everything=everything):
            return None
        rows = self.read()
        self.committed = len(self.log)
        return rows

    def plan(self, *, everything: bool = False) -> bool:
        """Log the end of the next batch; False if there is nothing new."""
        start = self.log[-1] if self.log else json.dumps(self.reader.initialOffset())
        limit = ReadAllAvailable() if everything else self.reader.getDefaultReadLimit()
        end = json.dumps(self.reader.latestOffset(json.loads(start), limit))
        json.dumps(self.reader.reportLatestOffset())
        if end == start:
            return False
        self.log.append(end)
        return True

    def read(self) -> Read:
        """The records of the newest logged batch."""
        rows: Read = {}
        for row in self.rows(self.partitions()):
            rows.setdefault(row["partition"], []).append(row["offset"])
        return rows

    def partitions(self) -> list[InputPartition]:
        """The tasks of the batch that was logged last."""
        start = self.log[-2] if len(self.log) > 1 else json.dumps(self.reader.initialOffset())
        return self.reader.partitions(json.loads(start), json.loads(self.log[-1]))

    def rows(self, partitions: list[InputPartition]) -> list[Mapping[str, Any]]:
        self.splits = len(partitions)
        source = DistlogDataSource(options=CaseInsensitiveDict(self.options))
        in_task = pickle.loads(pickle.dumps((source.streamReader(SCHEMA), source)))[0]
        parts = [pickle.loads(pickle.dumps(part)) for part in partitions]
        return [row for part in parts for batch in in_task.read(part) for row in batch.to_pylist()]

    def drain(self) -> list[Read]:
        """All batches until there is nothing new."""
        batches = []
        while (batch := self.run()) is not None:
            batches.append(batch)
        return batches


def two_partitions(folder: Path) -> Topic:
    """A topic of two partitions with five records each, their times NOW to NOW + 4."""
    new_topic = distlog.create(str(folder / "clicks"), 2)
    append(new_topic, 0, 5)
    append(new_topic, 1, 5)
    return new_topic


@pytest.fixture
def topic(tmp_path: Path) -> Topic:
    return two_partitions(tmp_path)


def append(topic: Topic, partition: int, count: int) -> None:
    topic.refresh()
    topic.append(values(range(count)), partition=partition)


def span(start: int, end: int) -> list[int]:
    return list(range(start, end))


def delete_before(topic: Topic, partition: int, offset: int) -> None:
    topic.refresh().delete_records({partition: offset})


def add_partition(topic: Topic) -> None:
    """One partition more; only programs of other kinds do that so far."""
    head = topic.refresh().snapshot
    put_commit(topic.log, head, "config", lambda snapshot: [SetPartitions(len(snapshot.partitions) + 1)])
