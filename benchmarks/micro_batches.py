"""A stream of small micro-batches into one topic: the cost of a read, the bytes that merging copies, the cost of
planning.

    python -m benchmarks micro_batches

Each micro-batch is one commit, followed by the merge that the sink of Structured Streaming does; there is no Spark
here. The peer of a read is the same read of a topic into which the same rows went in one append. The peer of a plan
is the same plan when the topic was young. Time is CPU time.
"""

from __future__ import annotations

import dataclasses
import random
import tempfile
import uuid
from typing import Any

import pyarrow as pa

import distlog
from benchmarks.cpu_time import best
from benchmarks.segments_without_data import described
from benchmarks.topics import table
from distlog.core.commits.actions import Add, SetTransaction
from distlog.core.commits.checkpoint import CHECKPOINT_COMMITS
from distlog.core.commits.commit_log import CommitLog, CommitRace
from distlog.core.commits.deduplication import TransactionInfo
from distlog.core.commits.snapshot import Snapshot
from distlog.core.config import TopicConfig
from distlog.core.maintain.merge import merge_tails
from distlog.core.storage.storage import Storage
from distlog.core.topic import Topic
from distlog.core.write.append import commit_append

BATCHES = 10_000
ROWS = 100
COMMITS = 86_400
_EARLY = 100
_SECOND_MS = 1000
_NOW = 1_700_000_000_000


def run(batches: int = BATCHES, commits: int = COMMITS) -> list[dict[str, Any]]:
    """One dict per case: reads in ms, copies per byte, segments, plans in ms."""
    with tempfile.TemporaryDirectory() as folder:
        return [*_reads(folder, batches), *_plans(commits)]


def _reads(folder: str, batches: int) -> list[dict[str, Any]]:
    rows = table(batches * ROWS, 100)
    streamed, appended = (distlog.create(f"{folder}/{name}") for name in ("streamed", "whole"))
    appended.append(rows)
    copied, most = _stream(streamed, rows, batches)
    size = sum(streamed.segments()["log_bytes"].to_pylist())
    case = f"after {batches:,} micro-batches of {ROWS} rows"
    ours, theirs = (best(lambda topic=topic: topic.scan().to_table()) for topic in (streamed, appended))
    read = _row(f"read {case}", "ms", ours * 1e3, theirs * 1e3, "the same rows in one append")
    segments = _row(f"most segments {case}", "segments", most, batches, "without merging")
    return [read, segments, _row(f"bytes copied {case}", "times", copied / size, 1, "each byte once")]


def _stream(topic: Topic, rows: pa.Table, batches: int) -> tuple[int, int]:
    """Append the rows in `batches` commits; returns the bytes that merging copied, and the most live segments."""
    copied = most = 0
    for number in range(batches):
        appender = topic.appender()
        appender.append(rows.slice(number * ROWS, ROWS))
        segments = appender.close()
        _, after = commit_append(
            topic.handle,
            topic.snapshot,
            segments,
            read_version=topic.version,
            app_id="query",
            batch_id=number,
            in_order=True,
        )
        report, after = merge_tails(topic.handle, after, segments)
        topic.advance(after)
        copied += sum(group.log_bytes for group in report.groups) if report else 0
        most = max(most, len(after.partitions[0].segments))
    return copied, most


def _plans(commits: int) -> list[dict[str, Any]]:
    early, late = _Grown(_EARLY), _Grown(commits)
    peer = f"after {_EARLY} commits"
    planned = "plan a micro-batch, in a process that has planned one before"
    cold = "plan a micro-batch, in a new process"
    return [
        _row(f"{planned}, after {commits:,} commits", "ms", late.planned(), early.planned(), peer),
        _row(f"{cold}, after {commits:,} commits", "ms", late.cold(), early.cold(), peer),
    ]


class _Grown:
    """A topic after `commits` micro-batches, one a second, of which merging left one segment."""

    def __init__(self, commits: int) -> None:
        if commits % CHECKPOINT_COMMITS:
            raise ValueError("a checkpoint is written at a multiple of CHECKPOINT_COMMITS")
        self._log = CommitLog(
            Storage(f"memory://{uuid.uuid4().hex}/clicks"),
            clock=lambda: _NOW + commits * _SECOND_MS,
            random=random.Random(0),
            writer="benchmark",
        )
        snapshot_before = _with_batches(self._log.create(1, TopicConfig()), commits - 1)
        actions = [Add(described(0, 0, _NOW, _NOW)), SetTransaction("query", commits, {0: (0, 10)}, in_order=True)]
        with CommitRace(self._log, snapshot_before, "append") as race:
            for _ in race:
                race.put(actions)
        self._snapshot = self._log.load()
        if self._snapshot.version != commits:
            raise AssertionError("the topic is not as old as it should be")

    def planned(self) -> float:
        """Milliseconds to load the topic again, and to look for the next batch."""
        return best(lambda: self._plan(self._log.load(cached=self._snapshot))) * 1e3

    def cold(self) -> float:
        """Milliseconds to load the topic from its checkpoint, and to look for the next batch."""
        return best(lambda: self._plan(self._log.load())) * 1e3

    def _plan(self, snapshot: Snapshot) -> int | None:
        return snapshot.transactions.newest("query")


def _with_batches(created: Snapshot, batches: int) -> Snapshot:
    added = {
        ("query", n): TransactionInfo(n, _NOW + n * _SECOND_MS, {0: (10 * n, 10 * n + 10)}, in_order=True)
        for n in range(batches)
    }
    now_ms = _NOW + batches * _SECOND_MS
    return dataclasses.replace(
        created, version=batches, timestamp_ms=now_ms, transactions=created.transactions.updated(added, now_ms)
    )


def _row(case: str, unit: str, ours: float, theirs: float, peer: str) -> dict[str, Any]:
    return {
        "benchmark": "micro-batches",
        "case": case,
        "distlog": round(ours, 2),
        "peer": round(theirs, 2),
        "peer_name": peer,
        "unit": unit,
        "ratio": round(theirs / ours, 2),
    }
