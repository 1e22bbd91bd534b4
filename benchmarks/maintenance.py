"""Maintenance: plans over a topic of many segments, and how fast indexes are built from a log and a log is verified.

    python -m benchmarks.maintenance

The peers of the plans: the same rule in Python, segment after segment; the listing that vacuum needs; for a merge,
the load of the metadata alone. The peer of the operations that read a log from the page cache: reading it and
comparing the checksum of each batch. Time is CPU time of one core, which other processes disturb less. A row's
`ratio` is how many times faster distlog is.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

import distlog
from benchmarks.cpu_time import best
from benchmarks.segments_without_data import described
from benchmarks.topics import table
from distlog.core import paths
from distlog.core.commits.actions import Add
from distlog.core.commits.commit_log import CommitRace
from distlog.core.commits.segment_table import SegmentInfo
from distlog.core.format.record_batch import check_crcs, read_headers
from distlog.core.maintain.merge import plan_merge
from distlog.core.maintain.retention import plan_retention
from distlog.core.topic import Topic

SEGMENTS = 100_000
RECORDS = 4_000_000
PARTITIONS = 10
_SEGMENTS_PER_COMMIT = 5000
_NOW = 1_700_000_000_000


def run(segments: int = SEGMENTS, records: int = RECORDS) -> list[dict[str, Any]]:
    """Returns one dict per plan, in ms, and one per operation that reads logs, in GB/s."""
    with tempfile.TemporaryDirectory() as folder:
        return [*_plans(folder, segments), *_logs(folder, records)]


def _plans(folder: str, segments: int) -> list[dict[str, Any]]:
    topic = _topic_without_data(f"{folder}/plans", segments)
    ours = best(lambda: plan_retention(topic.snapshot, _NOW))
    theirs = best(lambda: [_too_old(state.segments, _NOW - 1000) for state in topic.snapshot.partitions])
    removed = sum(len(partition_removals.segments) for partition_removals in plan_retention(topic.snapshot, _NOW))
    shown = f"{segments:,} segments"
    retention = _row(f"plan retention of {removed:,} of {shown}", "ms", 1e3, ours, theirs, "a loop in Python")
    ours = best(lambda: topic.vacuum(dry_run=True))
    theirs = best(lambda: [os.stat(entry) for folder in os.scandir(topic.url) for entry in os.scandir(folder)])
    vacuum = _row(f"plan vacuum of {shown}", "ms", 1e3, ours, theirs, "listing the folder")
    ours, theirs = best(lambda: plan_merge(topic.log.load())), best(topic.log.load)
    merge = _row(f"load, and plan a merge of {shown}", "ms", 1e3, ours, theirs, "loading alone")
    return [retention, vacuum, merge]


def _topic_without_data(url: str, segments: int) -> Topic:
    """A topic of `segments` with empty log files; half of the segments are older than its retention."""
    config = {"retention.ms": 1000, "file.delete.delay.ms": 0}
    topic = distlog.create(url, PARTITIONS, config)
    per_partition = segments // PARTITIONS
    first_ms = _NOW - 1000 - per_partition // 2
    slots = (divmod(number, PARTITIONS) for number in range(segments))
    segments_ = [described(partition, number, first_ms + number, _NOW) for number, partition in slots]
    for partition in range(PARTITIONS):
        Path(url, f"{topic.name}-{partition}").mkdir()
    for segment_ in segments_:
        Path(url, paths.segment_file(topic.name, segment_.partition, segment_.stem, ".log")).touch()
    for start in range(0, segments, _SEGMENTS_PER_COMMIT):
        actions = [Add(segment_) for segment_ in segments_[start : start + _SEGMENTS_PER_COMMIT]]
        with CommitRace(topic.log, topic.snapshot, "append") as race:
            for _ in race:
                race.put(actions)
        topic.advance(race.snapshot)
    return topic


def _too_old(segments: Iterable[SegmentInfo], before_ms: int) -> list[SegmentInfo]:
    removed = []
    for segment in segments:
        if segment.max_timestamp >= before_ms:
            break
        removed.append(segment)
    return removed


def _logs(folder: str, records: int) -> list[dict[str, Any]]:
    values = pa.Table.select(table(records, 100), ["value", "timestamp"])
    rows = []
    for codec in ("uncompressed", "lz4"):
        topic = distlog.create(f"{folder}/{codec}", config={"compression.type": codec})
        topic.append(values)
        size = sum(topic.segments()["log_bytes"].to_pylist())
        theirs = best(lambda topic=topic: _check_crcs(topic))
        for name, work in (
            ("rebuild indexes", lambda topic=topic: topic.rebuild_indexes(force=True, dry_run=True)),
            ("verify", lambda topic=topic: topic.verify()),
        ):
            ours = best(work)
            case = f"{name}, {codec}, 100-byte values"
            rows.append(_row(case, "GB/s of log", 1e9 / size, ours, theirs, "read and compare CRCs", speed=True))
    return rows


def _check_crcs(topic: Topic) -> None:
    for state in topic.snapshot.partitions:
        for segment in state.segments:
            data = topic.storage.read(topic.reader.name(segment))
            check_crcs(memoryview(data), read_headers(data), file="", file_position=0)


def _row(
    case: str, unit: str, factor: float, ours: float, theirs: float, peer: str, *, speed: bool = False
) -> dict[str, Any]:
    return {
        "benchmark": "maintenance",
        "case": case,
        "distlog": round(1 / (ours * factor) if speed else ours * factor, 2),
        "peer": round(1 / (theirs * factor) if speed else theirs * factor, 2),
        "peer_name": peer,
        "unit": unit,
        "ratio": round(theirs / ours, 2),
    }


if __name__ == "__main__":
    for row in run():
        print(json.dumps(row))
