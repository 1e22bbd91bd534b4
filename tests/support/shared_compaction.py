"""Compacted topics, and compaction of their partitions by Spark tasks and by one process."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from adopted import describe, put
from commits import put_commit
from compacting import NOW
from golden import partitions as golden_partitions
from pyspark.sql import SparkSession

import distlog
from distlog.core.commits.actions import Add
from distlog.core.commits.snapshot import Snapshot
from distlog.core.format.indexes import AbortedTransaction, encode_transactions
from distlog.core.format.record_batch import read_headers
from distlog.core.maintain.compaction import Cleanable, CleaningPlan, CompactionReport
from distlog.core.maintain.compaction import compact as compact_here
from distlog.core.maintain.group_rewrite import RewriteFailure, RewrittenPartition
from distlog.core.segments.segment_reader import TopicHandle
from distlog.core.topic import Topic
from distlog.spark.executor import clean_shared

CONFIG = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0, "internal.segment.bytes": 8192}
#: Room for so few keys that a partition of some hundred records is divided into buckets.
FEW_KEYS = 4096


class Partition:
    """One partition of a topic, to which raw batches are added."""

    def __init__(self, topic: distlog.Topic, number: int, now: int = NOW) -> None:
        self.topic, self.number, self.clock = topic, number, lambda: now

    def add(self, data: bytes, *aborted: AbortedTransaction, base: int | None = None) -> None:
        """Adopt a log file at its own offsets as the next segment."""
        batches, topic = read_headers(data), self.topic.refresh()
        end = int(batches["base_offset"][-1] + batches["last_offset_delta"][-1]) + 1
        files = {".log": data, ".txnindex": encode_transactions(aborted) if aborted else b""}
        base = topic.end_offsets()[self.number] if base is None else base
        segment = describe(files, base, end, partition=self.number, created_ms=NOW)
        put(topic, segment, files)
        put_commit(topic.log, topic.snapshot, "import", lambda _: [Add(segment)])

    def adopt(self, name: str) -> None:
        for log in golden_partitions()[name].logs:
            index = log.with_suffix(".txnindex")
            topic = self.topic.refresh()
            files = {".log": log.read_bytes(), ".txnindex": index.read_bytes() if index.exists() else b""}
            batches = read_headers(files[".log"])
            end = int(batches["base_offset"][-1] + batches["last_offset_delta"][-1]) + 1
            segment = describe(files, int(log.stem), end, partition=self.number, created_ms=NOW)
            put(topic, segment, files)
            put_commit(topic.log, topic.snapshot, "import", lambda _, added=segment: [Add(added)])

    def append(self, *keys: int, value: bytes | None = b"value") -> None:
        rows = [{"key": b"%d" % key, "value": value, "timestamp": NOW} for key in keys]
        self.topic.append(rows, partition=self.number)


def with_fixed_clock(topic: distlog.Topic, now: int) -> Topic:
    """The newest version with a fixed clock, which tasks get too."""
    return Topic(with_clock(topic, lambda: now), topic.log.load())


def with_clock(topic: distlog.Topic, clock: Callable[[], int]) -> TopicHandle:
    return dataclasses.replace(topic.handle, clock=clock)


def shared(
    spark: SparkSession,
    topic: Topic,
    memory: int = FEW_KEYS,
    before_commit: Callable[[], object] = lambda: None,
) -> CompactionReport:
    """Compact all that is due by tasks that share each partition."""

    def clean(
        handle: TopicHandle, snapshot: Snapshot, due: Sequence[Cleanable], buffer_bytes: int
    ) -> list[RewrittenPartition | RewriteFailure]:
        report = clean_shared(
            spark, handle, [CleaningPlan.of(snapshot, partition) for partition in due], buffer_bytes
        )
        for partition in report:
            starts = (
                [group.base_offset for group in partition.groups] if isinstance(partition, RewrittenPartition) else []
            )
            assert starts == sorted(starts)
        before_commit()
        return report

    return compact_here(topic.handle, topic.snapshot, clean, dedupe_buffer_bytes=memory)[0]


def alone(topic: Topic) -> CompactionReport:
    return compact_here(topic.handle, topic.snapshot)[0]


def copy(topic: distlog.Topic, folder: Path) -> distlog.Topic:
    return distlog.open(str(shutil.copytree(topic.url.removeprefix("file://"), folder / topic.name)))


def contents(topic: distlog.Topic) -> list[Any]:
    """For each partition the first dirty offset, and the bytes and fields of its segments, except for their names."""
    topic = topic.refresh()
    return [
        (state.first_dirty_offset, [segment_contents(topic, segment) for segment in state.segments])
        for state in topic.snapshot.partitions
    ]


def segment_contents(topic: distlog.Topic, segment: Any) -> tuple[Any, ...]:
    names = ("base_offset", "next_offset", "record_count", "max_timestamp", "offset_of_max_timestamp", "compression")
    return (
        *(getattr(segment, name) for name in names),
        topic.storage.read(topic.reader.name(segment)),
        topic.reader.aborted_transactions(segment),
    )


def keyed_topic(url: str, partitions: int = 2) -> distlog.Topic:
    """Partitions of five segments of 40 records, of 100 keys; two segments make a group."""
    topic = distlog.create(url, partitions, {**CONFIG, "internal.segment.bytes": 1400})
    for number in range(partitions):
        partition = Partition(topic, number)
        for start in range(0, 100, 20):
            partition.append(*(key % 100 for key in range(start, start + 40)))
    return topic.refresh()


def offsets(topic: distlog.Topic, partition: int = 0) -> list[int]:
    return topic.refresh().scan([partition], columns=["offset"]).to_table()["offset"].to_pylist()  # type: ignore[no-any-return]
