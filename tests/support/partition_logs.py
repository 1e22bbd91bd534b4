"""Partitions that several processes append to, as objects of one process, which may be killed before any step."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commits import put_sealed
from raw_batches import batch, record
from topics import NOW, Clock, contents

from distlog.core import paths
from distlog.core.commits.actions import Action
from distlog.core.commits.commit_log import CommitLog, CurrentSnapshot
from distlog.core.commits.snapshot import Snapshot
from distlog.core.config import TopicConfig
from distlog.core.format.record_batch import read_headers
from distlog.core.log import partition_files
from distlog.core.log.active_partition import ActivePartition
from distlog.core.log.partition_files import PartitionLock, StateRecord
from distlog.core.log.partition_log import Appended, BatchRun, PartitionLog
from distlog.core.maintain.verify import verify
from distlog.core.segments.segment_reader import TopicHandle
from distlog.core.storage import locks_and_pages
from distlog.core.storage.locks_and_pages import SharedPage
from distlog.core.storage.storage import Storage
from distlog.core.topic import Topic

#: Calls that change a file system: a process may end before each.
STEPS = ("pwrite", "ftruncate", "fsync", "write", "link", "unlink", "mkdir")


class Killed(BaseException):
    """The process is no more."""


class Killer:
    """Ends the process before one of its steps; what runs after that, as an error is handled, does nothing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[str] = []
        self._steps_left: int | None = None
        self._is_dead = False
        for name in STEPS:
            monkeypatch.setattr(os, name, self._watched(name, getattr(os, name)))
        monkeypatch.setattr(SharedPage, "write", self._watched("page", SharedPage.write))
        self._open = os.open
        monkeypatch.setattr(os, "open", self._opening)

    @contextmanager
    def killing(self, steps_left: int | None) -> Iterator[None]:
        """In this block the process ends before its step of that number, if there is one."""
        self.steps, self._steps_left, self._is_dead = [], steps_left, False
        try:
            yield
        finally:
            self._steps_left, self._is_dead = None, False

    def _step(self, name: str) -> None:
        self.steps.append(name)
        if self._is_dead or self._steps_left == 0:
            self._is_dead = True
            raise Killed
        if self._steps_left is not None:
            self._steps_left -= 1

    def _watched(self, name: str, real: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            self._step(name)
            return real(*arguments, **options)

        return call

    def _opening(self, path: Any, flags: int, *arguments: Any, **options: Any) -> int:
        if flags & os.O_CREAT and not os.path.exists(path):
            self._step("create")
        return self._open(path, flags, *arguments, **options)


#: The logs of all processes of the test, among them those that died without a word: see `let_go_of_the_dead`.
_logs: list[PartitionLog] = []


def release_dead() -> None:
    """Close the files that processes of the test left open, as the system does when a real process ends."""
    while _logs:
        _logs.pop().close()


class Process:
    """The objects of one process for a topic: a handle, the newest snapshot, and a log per partition."""

    def __init__(self, folder: Path, *, clock: Clock | None = None, calls: Any = os, timeout_s: float = 60.0) -> None:
        storage, clock = Storage(str(folder)), clock or Clock()
        log = CommitLog(storage, clock=clock, random=random.Random(0), writer="a test", sleep=lambda _: None)
        self.handle = TopicHandle.of(storage, folder.name, log, clock)
        self.snapshots = CurrentSnapshot(log, log.load())
        self.calls, self._timeout_s = calls, timeout_s
        self._logs: dict[int, PartitionLog] = {}

    def __getitem__(self, partition: int) -> PartitionLog:
        if partition not in self._logs:
            self._logs[partition] = PartitionLog(
                self.handle, partition, self.snapshots, calls=self.calls, timeout_s=self._timeout_s
            )
            _logs.append(self._logs[partition])
        return self._logs[partition]

    def folder(self, partition: int) -> Path:
        return Path(self.handle.storage.local_path(paths.partition_dir(self.handle.name, partition)))

    @contextmanager
    def holding(self, partition: int) -> Iterator[ActivePartition]:
        """Hold the partition's lock; what the log below `PartitionLog` does under it can be done then."""
        active = ActivePartition(self.handle, partition, self.snapshots, calls=self.calls, timeout_s=self._timeout_s)
        try:
            with active.held():
                yield active
        finally:
            active.close()

    def record(self, partition: int) -> StateRecord | None:
        return PartitionLock(str(self.folder(partition)), self.snapshots.snapshot.topic_id, 0).stored_record()

    def values(self) -> dict[int, list[bytes | None]]:
        """The values that a reader gets from each partition, with the tails."""
        return contents(self.topic())

    def head(self) -> Snapshot:
        return self.handle.log.load()

    def topic(self) -> Topic:
        return Topic(self.handle, self.head())

    def anomalies(self) -> tuple[object, ...]:
        return verify(self.handle, self.head()).anomalies

    def close(self) -> None:
        """Let go of everything, as the end of a process does."""
        for log in self._logs.values():
            log.close()
        self._logs = {}


def new_topic(folder: Path, partitions: int = 1, **settings: Any) -> Path:
    log = CommitLog(Storage(str(folder)), clock=Clock(), random=random.Random(0), writer="a test")
    log.create(partitions, TopicConfig(**{"index_interval_bytes": 0, **settings}))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A topic of one partition, of which vacuum deletes at once what no version needs."""
    return new_topic(tmp_path / "events", file_delete_delay_ms=0)


def log(folder: Path) -> Path:
    """The active segment's log in partition 0 of the topic `events`."""
    (path,) = (folder / "events-0").glob("*.log")
    return path


@pytest.fixture
def rebooted(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    boots = iter(range(1, 1 << 30))

    def reboot() -> None:
        boot = next(boots).to_bytes(16, "big")
        for module in (locks_and_pages, partition_files):
            monkeypatch.setattr(module, "boot_id", lambda: boot)

    return reboot


def encoded(*values: bytes, time: int = NOW) -> tuple[Any, Any]:
    """One batch of values at offset 0, as writable bytes, and its headers."""
    rows = [record(delta, 0, None, value) for delta, value in enumerate(values)]
    data = np.frombuffer(batch(rows, base_timestamp=time, max_timestamp=time), np.uint8).copy()
    return data, read_headers(data.data)


def append_rows(log: PartitionLog, data: Any, rows: Any) -> Appended:
    (appended,) = log.append_runs([BatchRun(data, rows)])
    return appended


def append(log: PartitionLog, *values: bytes, time: int = NOW) -> tuple[int, int]:
    """Append the values as one batch: its first and end offset."""
    appended = append_rows(log, *encoded(*values, time=time))
    return appended.first_offset, appended.end_offset


def commit_sealed(process: Process, *actions: Action, partitions: Sequence[int] = (0,), calls: Any = os) -> Snapshot:
    """Commit the actions with those partitions sealed, as a bulk append does."""
    return put_sealed(process.handle, process.head(), lambda _: actions, partitions, calls=calls)


def sealed(snapshot: Snapshot, partition: int = 0) -> Sequence[tuple[int, int]]:
    """The offsets of the partition's sealed segments."""
    return [(segment.base_offset, segment.next_offset) for segment in snapshot.partitions[partition].segments]


#: The producer of `produced` and `send`.
PID = 4711


def produced(sequence: int, count: int = 1, *, producer: int = PID, epoch: int = 0, time: int = NOW) -> bytes:
    """A batch as a producer makes it; its values are its numbers."""
    rows = [record(delta, 0, b"k", b"%d" % (sequence + delta)) for delta in range(count)]
    return batch(rows, base_timestamp=time, max_timestamp=time, producer=(producer, epoch, sequence))


def send(log: PartitionLog, sequence: int, count: int = 1, **options: Any) -> tuple[int, int]:
    appended = log.append_batches(produced(sequence, count, **options)).appended
    log.flush(appended)
    return appended.first_offset, appended.end_offset
