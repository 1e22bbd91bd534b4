"""Helpers for tests of the commit log: segments without files, and commits that follow each other."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable
from typing import Any

from commits import put_commit
from crc32c import crc32c

from distlog.core import paths
from distlog.core.commits.actions import Action, Add, Commit, Create, Drop, SetConfig, SetPartitions, SetTransaction
from distlog.core.commits.commit_log import CommitLog
from distlog.core.commits.segment_table import SegmentInfo
from distlog.core.commits.snapshot import Snapshot, fold
from distlog.core.config import TopicConfig
from distlog.core.paths import new_stem
from distlog.core.storage.storage import Storage

CONFIG = TopicConfig.parse({"retention.ms": "5000"})


def segment(
    partition: int = 0, base_offset: int = 0, count: int = 10, read_version: int = 0, **changes: Any
) -> SegmentInfo:
    """A segment of `count` records from `base_offset` on, with a stem of its own."""
    fields: dict[str, Any] = {
        "partition": partition,
        "stem": new_stem(read_version, uuid.uuid4().hex),
        "base_offset": base_offset,
        "next_offset": base_offset + count,
        "stored_base_offset": 0,
        "record_count": count,
        "log_bytes": 100 * count,
        "offset_index_bytes": 8,
        "time_index_bytes": 12,
        "txn_index_bytes": 0,
        "first_timestamp": 1_000,
        "max_timestamp": 2_000,
        "offset_of_max_timestamp": base_offset,
        "compression": "zstd",
        "created_ms": 5_000,
        "crc32c": 0xFFFFFFFF,
    }
    return SegmentInfo(**{**fields, **changes})


class History:
    """Commits in the order they are made; `create` begins one."""

    def __init__(self, start_ms: int = 1_000) -> None:
        self.commits: list[Commit] = []
        self.topic_id = str(uuid.uuid4())
        self.now_ms = start_ms

    def commit(self, *actions: Action, **changes: Any) -> Commit:
        """The next commit, a millisecond after the last one, as a reader gets it."""
        last = self.commits[-1] if self.commits else None
        fields: dict[str, Any] = {
            "version": len(self.commits),
            "id": str(uuid.uuid4()),
            "prev": last.id if last else None,
            "topic_id": self.topic_id,
            "timestamp_ms": self.now_ms,
            "operation": "append",
            "writer": "a test",
            "actions": actions,
        }
        commit = Commit.decode(Commit(**{**fields, **changes}).encode(), "a file")
        self.commits.append(commit)
        self.now_ms = commit.timestamp_ms + 1
        return commit

    def create(self, partitions: int = 2, **settings: str) -> Commit:
        return self.commit(Create("clicks"), SetPartitions(partitions), SetConfig(settings), operation="create")

    def snapshot(self) -> Snapshot:
        """The state after all commits."""
        return fold(None, self.commits)


def topic_storage(folder: Any) -> Storage:
    """The storage of the topic `clicks` below a folder or URL."""
    return Storage(f"{folder}/clicks")


class Clock:
    """A clock that only tests move."""

    def __init__(self, now_ms: int = 1_000_000) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


def commit_log(storage: Any, clock: Callable[[], int] | None = None, **options: Any) -> CommitLog:
    """A commit log that never really sleeps."""
    options = {"sleep": lambda seconds: None, "writer": "a test", **options}
    return CommitLog(storage, clock=clock or Clock(), random=random.Random(1), **options)


def appending(
    partition: int = 0, count: int = 10, batch: tuple[str, int | str] | None = None
) -> Callable[[Snapshot], list[Action] | None]:
    """A plan that adds a segment at the end of a partition, once for each `batch`."""
    added = segment(partition, 0, count, read_version=0)

    def plan(snapshot: Snapshot) -> list[Action] | None:
        if batch and snapshot.transactions.get(*batch):
            return None
        placed = added.moved_to(snapshot.partitions[partition].log_end_offset)
        recorded = [SetTransaction(*batch, {partition: (placed.base_offset, placed.next_offset)})] if batch else []
        return [Add(placed), *recorded]

    return plan


def append(log: CommitLog, snapshot: Snapshot, times: int = 1, **options: Any) -> Snapshot:
    """The snapshot after `times` appends."""
    for _ in range(times):
        _, snapshot = put_commit(log, snapshot, "append", appending(**options))
    return snapshot


def requests(storage: Storage, call: Callable[[], object]) -> tuple[int, int, int]:
    """How many reads, writes and listings `call` needs."""
    old_counters = storage.counters.gets, storage.counters.puts, storage.counters.lists
    call()
    after = storage.counters.gets, storage.counters.puts, storage.counters.lists
    return tuple(end - start for start, end in zip(old_counters, after, strict=True))


def forged(storage: Storage, snapshot: Snapshot, **changes: Any) -> bytes:
    """A commit that follows `snapshot`, as only another library would write it."""
    body = {
        "format": 2,
        "version": snapshot.version + 1,
        "id": "12345678-1234-1234-1234-123456789abc",
        "prev": snapshot.commit_id,
        "topic_id": snapshot.topic_id,
        "timestamp_ms": snapshot.timestamp_ms + 1,
        "operation": "append",
        "writer": "another library",
        "actions": [],
        **changes,
    }
    text = json.dumps(body, separators=(",", ":"))[:-1].encode()
    data = text + b',"crc32c":%d}\n' % crc32c(text)
    storage.put(paths.commit_file(snapshot.version + 1), data)
    return data


def checkpoint_files(storage: Storage) -> list[str]:
    names = (file.name for file in storage.list(paths.COMMITS_DIR))
    return sorted(name for name in names if paths.parse_checkpoint_file(name) is not None)


def former_file(version: int) -> str:
    """The name of a checkpoint as older libraries wrote them."""
    return paths.checkpoint_file(version, "0" * 32).replace(".arrow.zst", ".parquet")


def checkpoints(storage: Storage) -> list[int | None]:
    return [paths.parse_checkpoint_file(name) for name in checkpoint_files(storage)]


def topic_with_checkpoints(storage: Storage) -> Snapshot:
    """The head of a topic with 25 commits and checkpoints at 10 and 20."""
    log = commit_log(storage, checkpoint_commits=10)
    snapshot = append(log, log.create(2, CONFIG), 25, batch=None)
    assert checkpoints(storage) == [10, 20]
    return snapshot


def drop(log: CommitLog, snapshot: Snapshot) -> Snapshot:
    """The snapshot after the topic was dropped."""
    return put_commit(log, snapshot, "drop", lambda current: [Drop()])[1]


class RunsFirst:
    """A storage where something else happens before the first call of one method."""

    def __init__(self, storage: Storage, method: str, event: Callable[[], object]) -> None:
        self._storage, self._method, self._event = storage, method, event

    def __getattr__(self, name: str) -> Any:
        if name == self._method and self._event:
            event, self._event = self._event, None
            event()
        return getattr(self._storage, name)


class MissesOnce:
    """A storage that does not have one file at the first look, as if it was written right after."""

    def __init__(self, storage: Storage, name: str) -> None:
        self._storage, self._name = storage, name
        self.missed = False

    def read(self, name: str, *extent: int) -> bytes:
        if name == self._name and not self.missed:
            self.missed = True
            raise FileNotFoundError(name)
        return self._storage.read(name, *extent)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)


def raise_(error: Exception) -> None:
    """Raise `error`, where an expression is wanted."""
    raise error
