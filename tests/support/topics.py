"""Helpers for tests of whole topics: topics that roll early, a clock to set, contents as plain values."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pyarrow as pa

from distlog.core.commits.commit_log import CommitLog
from distlog.core.config import TopicConfig
from distlog.core.paths import BUNDLES_DIR
from distlog.core.segments.segment_reader import TopicHandle
from distlog.core.storage.storage import Storage
from distlog.core.topic import Topic

NOW = 1_700_000_000_000
#: So that a handful of records fills batches, index entries and segments.
TINY = {"internal.segment.bytes": "600", "batch.bytes": "150", "index.interval.bytes": "100"}


class Clock:
    """A clock that a test sets; `now_ms` is what it shows."""

    def __init__(self, now_ms: int = NOW) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


def topic_on(
    storage: Storage,
    partitions: int | None = None,
    config: Mapping[str, object] | None = None,
    clock: Callable[[], int] | None = None,
    **log_options: Any,
) -> Topic:
    """The topic in `storage`, created if `partitions` are given, with its own clock."""
    clock = clock or Clock()
    log = CommitLog(storage, clock=clock, random=random.Random(0), writer="a test", **log_options)
    new_topic = log.load() if partitions is None else log.create(partitions, TopicConfig.parse(config or {}))
    return Topic(TopicHandle.of(storage, new_topic.name, log, clock), new_topic)


def values(numbers: Iterable[int], **fields: Any) -> list[dict[str, Any]]:
    """A record for each number, its value `v<number>`, its timestamp NOW + number."""
    return [{"value": b"v%d" % number, "timestamp": NOW + number, **fields} for number in numbers]


def contents(topic: Topic) -> dict[int, list[bytes | None]]:
    """The values of each partition, in order; checks that the offsets have no gap and the snapshot agrees."""
    table = topic.scan(columns=["partition", "offset", "value"]).to_table()
    values_by_partition: dict[int, list[bytes | None]] = {number: [] for number in range(topic.partitions)}
    starts = topic.start_offsets()
    for partition, offset, value in zip(*(column.to_pylist() for column in table.columns), strict=True):
        assert offset == starts[partition] + len(values_by_partition[partition])
        values_by_partition[partition].append(value)
    assert topic.end_offsets() == {number: starts[number] + len(rows) for number, rows in values_by_partition.items()}
    return values_by_partition


def stored(table: pa.Table) -> list[dict[str, Any]]:
    """The rows of a scan as Python values, timestamps in ms."""
    index = table.schema.get_field_index("timestamp")
    return table.set_column(index, "timestamp", table["timestamp"].cast("int64")).to_pylist()


def files(storage: Storage) -> set[str]:
    """The names of all segment files and bundles in a topic's storage, named by a snapshot or not."""
    folders = [folder for folder in storage.list_folders() if folder == BUNDLES_DIR or not folder.startswith("_")]
    return {file.name for folder in folders for file in storage.list(folder)}


def named_files(topic: Topic) -> set[str]:
    return {
        topic.reader.name(segment, suffix)
        for state in topic.snapshot.partitions
        for segment in state.segments
        for suffix, size in (
            (".log", segment.log_bytes),
            (".index", segment.offset_index_bytes),
            (".timeindex", segment.time_index_bytes),
        )
        if size
    }
