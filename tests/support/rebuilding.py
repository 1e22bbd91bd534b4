"""Topics whose indexes are damaged and rebuilt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from golden import partitions

import distlog
from distlog import Topic
from distlog.core.commits.segment_table import SegmentInfo
from distlog.core.maintain.verify import RebuildReport, rebuild_indexes

NOW = 1_700_000_000_000
SUFFIXES = (".index", ".timeindex")
#: index.interval.bytes of the broker that wrote the golden files
BROKER_INTERVAL = 512
GOLDEN = partitions()


def topic_at(address: str | Path, appends: int = 2, **storage_options: Any) -> Topic:
    """A topic of one partition, a segment per append, each with about ten entries in each index."""
    config = {"batch.bytes": 100, "index.interval.bytes": 300, "retention.ms": -1}
    topic = distlog.create(f"{address}/log", config=config, storage_options=storage_options)
    for number in range(appends):
        topic.append([{"value": bytes(40 + number), "timestamp": NOW + 100 * number + row} for row in range(40)])
    return topic


def segments_of(topic: Topic) -> list[SegmentInfo]:
    return [segment for state in topic.snapshot.partitions for segment in state.segments]


def name_of(topic: Topic, suffix: str, number: int = 0) -> str:
    return topic.reader.name(segments_of(topic)[number], suffix)


def contents(topic: Topic) -> dict[str, bytes]:
    """The bytes of all index files that should be there, by name."""
    names = [topic.reader.name(segment, suffix) for segment in segments_of(topic) for suffix in SUFFIXES]
    return {name: topic.storage.read(name) for name in names}


def written_files(folder: Path) -> dict[Path, tuple[int, int]]:
    files = {path: path.stat() for path in folder.rglob("*") if path.is_file()}
    return {path: (status.st_ino, status.st_mtime_ns) for path, status in files.items()}


def rebuilt(topic: Topic, **options: bool) -> RebuildReport:
    report, snapshot = rebuild_indexes(topic.handle, topic.snapshot, **options)
    topic.advance(snapshot)
    return report


def index_states(report: RebuildReport) -> list[str]:
    """The states of each segment's offset index and time index."""
    return [f"{segment.states['.index']} {segment.states['.timeindex']}" for segment in report.segments]


def damage(topic: Topic, suffix: str, kind: str) -> str:
    """Damage an index file of the first segment; its name."""
    name = name_of(topic, suffix)
    data = topic.storage.read(name)
    if kind == "missing":
        topic.storage.delete([name])
    elif kind == "truncated":
        topic.storage.put(name, data[:-5])
    elif kind == "corrupted":
        topic.storage.put(name, data[-12:] + data[12:])
    elif kind == "too long":
        topic.storage.put(name, data + bytes(24))
    else:
        topic.storage.put(name, topic.storage.read(name_of(topic, suffix, 1)))
    return name


def with_index(topic: Topic) -> list[SegmentInfo]:
    return [segment for segment in segments_of(topic) if segment.txn_index_bytes]
