"""Topics to compact: with a clock, and made of appended records, of raw batches, or of the files of a broker."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adopted import describe, put
from commits import put_commit

from distlog.core.commits.actions import Add
from distlog.core.commits.commit_log import CommitLog
from distlog.core.commits.partition_table import PartitionTable
from distlog.core.commits.segment_table import SegmentInfo
from distlog.core.config import TopicConfig
from distlog.core.format.indexes import AbortedTransaction, encode_transactions
from distlog.core.format.record_batch import BATCH, read_headers
from distlog.core.maintain.compaction import (
    DEDUPE_BUFFER_BYTES,
    Cleanable,
    CleaningPlan,
    PartitionCompaction,
    clean_partition,
    compact,
)
from distlog.core.maintain.group_rewrite import commit_rewrite
from distlog.core.segments.producer_states import OpenTransactions
from distlog.core.segments.segment_reader import TopicHandle
from distlog.core.storage.storage import Storage
from distlog.core.topic import Topic

NOW = 1_700_000_000_000
SECRET = bytes(range(16))
DAY = 86_400_000


class FixedRandom(random.Random):
    def randbytes(self, n: int) -> bytes:
        assert n == len(SECRET)
        return SECRET


class Clock:
    def __init__(self, now: int = NOW) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


class CompactedTopic:
    """A topic of one partition with a clock, compacted whenever there is anything dirty."""

    def __init__(self, url: str, **config: Any) -> None:
        self.clock = Clock()
        self.storage = Storage(url)
        self.log = CommitLog(
            self.storage, clock=self.clock, random=random.Random(1), writer="test", sleep=lambda _: None
        )
        settings = {name.replace("_", "."): value for name, value in config.items()}
        always = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0}
        self._transactions = OpenTransactions()
        self.log.create(1, TopicConfig.parse({**always, **settings}))

    def topic(self) -> Topic:
        snapshot = self.log.load()
        return Topic(TopicHandle.of(self.storage, snapshot.name, self.log, self.clock), snapshot)

    def append(self, *records: tuple[bytes | None, bytes | None]) -> None:
        """Append (key, value) pairs as one segment."""
        rows = [{"key": key, "value": value, "timestamp": self.clock.now} for key, value in records]
        self.topic().append(rows)

    def add(self, data: bytes, *aborted: AbortedTransaction, next_offset: int | None = None) -> None:
        """Adopt a log file of raw batches, at their own offsets, as the partition's next segment."""
        base = self.topic().snapshot.partitions[0].log_end_offset
        self._adopt(data, base, encode_transactions(aborted) if aborted else b"", next_offset)

    def adopt(self, folder: Path) -> None:
        """Adopt a partition folder of Kafka: its log files and transaction indexes."""
        for log in sorted(folder.glob("*.log")):
            index = log.with_suffix(".txnindex")
            self._adopt(log.read_bytes(), int(log.stem), index.read_bytes() if index.exists() else b"")

    def _adopt(self, data: bytes, base: int, aborted: bytes, next_offset: int | None = None) -> None:
        batches = read_headers(data)
        end = int(batches["base_offset"][-1] + batches["last_offset_delta"][-1]) + 1
        files = {".log": data, ".txnindex": aborted}
        fields = {"created_ms": self.clock(), "leader_epoch": int(batches["leader_epoch"][-1])}
        segment = describe(files, base, end if next_offset is None else next_offset, self._transactions, **fields)
        topic = self.topic()
        put(topic, segment, files)
        put_commit(self.log, topic.snapshot, "import", lambda _: [Add(segment)])

    def compact(
        self,
        *,
        random: random.Random | None = None,
        dedupe_buffer_bytes: int = DEDUPE_BUFFER_BYTES,
        dry_run: bool = False,
    ) -> PartitionCompaction | None:
        """Compact; what was done, None where nothing was dirty."""
        topic = self.topic()
        handle = dataclasses.replace(topic.handle, random=random or topic.handle.random)
        report, _ = compact(handle, topic.snapshot, dedupe_buffer_bytes=dedupe_buffer_bytes, dry_run=dry_run)
        return report.partitions[0] if report.partitions else None

    def compact_range(self, start_offset: int, end_offset: int, memory: int = 1 << 20) -> int:
        """One round that takes [start_offset, end_offset) for dirty; up to where it came."""
        topic = self.topic()
        due = Cleanable(0, start_offset, end_offset, 0, 1, False)
        state = dataclasses.replace(topic.snapshot.partitions[0], first_dirty_offset=start_offset)
        snapshot = dataclasses.replace(topic.snapshot, partitions=PartitionTable.of([state]))
        rewritten = clean_partition(topic.handle, CleaningPlan.of(snapshot, due), memory)
        commit_rewrite(topic.handle, topic.snapshot, [rewritten])
        return rewritten.end_offset

    def segments(self) -> list[SegmentInfo]:
        return list(self.topic().snapshot.partitions[0].segments)

    def batches(self) -> np.ndarray:
        """The headers of all stored batches, at their absolute offsets."""
        headers = [np.zeros(0, BATCH)]
        for segment in self.segments():
            batches = read_headers(self.storage.read(f"{self.topic().name}-0/{segment.stem}.log"))
            batches["base_offset"] += segment.shift
            headers.append(batches)
        return np.concatenate(headers)

    def log_bytes(self) -> bytes:
        """All stored batches with their absolute base offsets, back to back."""
        topic = self.topic()
        return b"".join(bytes(topic.read(0, segment.base_offset, 1 << 30)) for segment in self.segments())

    def rows(self, isolation: Any = "read_uncommitted") -> list[dict[str, Any]]:
        return self.topic().scan(isolation=isolation).to_table().to_pylist()

    def offsets(self) -> list[int]:
        return [row["offset"] for row in self.rows()]

    def values(self) -> dict[bytes, bytes]:
        return {row["key"]: row["value"] for row in self.rows()}

    @property
    def first_dirty_offset(self) -> int:
        return self.topic().snapshot.partitions[0].first_dirty_offset


@pytest.fixture
def log(tmp_path: Path) -> CompactedTopic:
    """An empty one, on disk."""
    return CompactedTopic(f"{tmp_path}/log")
