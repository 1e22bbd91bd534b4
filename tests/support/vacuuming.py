"""Helpers for tests of vacuum: a topic with a short delay, its clock, and slow writers."""

from __future__ import annotations

import random

from store_clock import WRITTEN, TimedStorage

from distlog.core import paths
from distlog.core.commits.commit_log import CommitLog
from distlog.core.commits.snapshot import Snapshot, apply
from distlog.core.config import TopicConfig
from distlog.core.maintain.retention import retention
from distlog.core.maintain.vacuum import VacuumReport, vacuum
from distlog.core.segments.segment_reader import TopicHandle
from distlog.core.storage.storage import Storage
from distlog.core.topic import Topic
from distlog.core.write.append import Appender, commit_append

DELAY = 1000


class Clock:
    def __init__(self) -> None:
        self.now = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now


class World:
    """A topic, its clock, and any number of slow writers."""

    def __init__(self, url: str | Storage, seed: int = 0, *, past: World | None = None) -> None:
        """A new topic, or a copy of what another world came to."""
        self.clock = Clock()
        self.random = random.Random(seed)
        self.storage = TimedStorage(url if isinstance(url, Storage) else Storage(url), self.clock)
        self.log = self.log_on(self.storage)
        if past is None:
            self.log.create(2, TopicConfig.parse({"file.delete.delay.ms": DELAY, "retention.ms": 0}))
        else:
            self._copy(past)

    def _copy(self, past: World) -> None:
        self.clock.now = past.clock.now
        self.random.setstate(past.random.getstate())
        for folder in past.storage.list_folders():
            for file in past.storage.list(folder):
                self.storage.put(file.name, past.storage.read(file.name))
                WRITTEN[self.storage.url, file.name] = file.modified_ms

    def log_on(self, storage: Storage, checkpoint_commits: int = 2) -> CommitLog:
        """The commit log as another process has it, which reaches it by `storage`."""
        return CommitLog(
            storage,
            clock=self.clock,
            random=self.random,
            writer="test",
            sleep=lambda _: None,
            checkpoint_commits=checkpoint_commits,
        )

    def topic(self) -> Topic:
        return self.topic_at(self.log.load())

    def topic_at(self, snapshot: Snapshot) -> Topic:
        return Topic(TopicHandle.of(self.storage, snapshot.name, self.log, self.clock), snapshot)

    def append(self, value: str = "v") -> None:
        self.topic().append([{"value": value, "timestamp": self.clock()}])

    def slow_writer(self) -> tuple[Appender, int]:
        topic = self.topic()
        return topic.appender(), topic.version

    def finish(self, appender: Appender, read_version: int) -> None:
        segments = appender.close()
        topic = self.topic()
        commit_append(topic.handle, topic.snapshot, segments, read_version=read_version)

    def expire(self) -> None:
        self.clock.now += 1
        topic = self.topic()
        retention(topic.handle, topic.snapshot)

    def wait(self, after_head_ms: int = DELAY) -> None:
        self.clock.now = (
            WRITTEN[self.storage.url, paths.commit_file(self.log.load(include_dropped=True).version)] + after_head_ms
        )

    def vacuum(self, *, dry_run: bool = False) -> VacuumReport:
        return vacuum(self.storage, self.log, dry_run=dry_run)

    def files(self) -> set[str]:
        return {
            file.name
            for folder in self.storage.list_folders()
            if folder != "_commits"
            for file in self.storage.list(folder)
        }

    def checkpoints(self) -> list[int]:
        names = (file.name for file in self.storage.list("_commits"))
        return sorted(version for name in names if (version := paths.parse_checkpoint_file(name)) is not None)

    def check_supported_versions(self) -> None:
        """Each version since the vacuum horizon opens as its commits say, and reads."""
        head = self.log.load(include_dropped=True)
        state = None
        for commit in self.log.history()[::-1]:
            state = apply(state, commit)
            if head.gc_floor <= state.version:
                assert self.log.load(version=state.version, include_dropped=True) == state
                self.read(state)

    def read(self, state: Snapshot) -> None:
        self.topic_at(state).scan().to_table()

    def values(self) -> list[bytes]:
        return self.topic().scan(columns=["value"]).to_table().column(0).to_pylist()
