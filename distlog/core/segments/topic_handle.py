"""The handle of one topic: its storage, reader, commit log, clock, and sources of ids and random numbers."""

from __future__ import annotations

import platform
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random, SystemRandom
from typing import Any

from distlog.core import VERSION, paths
from distlog.core.commits.commit_log import CommitLog, trusted_ms
from distlog.core.commits.producer_table import EXPIRATION_MS
from distlog.core.commits.snapshot_loader import NO_DEFAULTS
from distlog.core.format.indexes import IndexCache
from distlog.core.segments.segment_reader import SegmentReader
from distlog.core.storage.storage import Storage
from distlog.core.times import now_ms


def new_id() -> str:
    return uuid.uuid4().hex


@dataclass(frozen=True, slots=True, eq=False)
class TopicHandle:
    """The topic called `name` in `storage`, with the tools for all work on it.

    `random` must be unpredictable, as it gives the secret of compaction's hashes. The handle pickles, into Spark
    tasks too, without its caches and `random`.
    """

    storage: Storage
    name: str
    reader: SegmentReader
    log: CommitLog
    clock: Callable[[], int] = now_ms
    new_id: Callable[[], str] = new_id
    random: Random = field(default_factory=SystemRandom)
    #: How long a silent producer is remembered: Kafka's `producer.id.expiration.ms`.
    producer_expiration_ms: int = EXPIRATION_MS

    @classmethod
    def of(
        cls,
        storage: Storage,
        name: str,
        log: CommitLog | None = None,
        clock: Callable[[], int] = now_ms,
        new_id: Callable[[], str] = new_id,
        producer_expiration_ms: int = EXPIRATION_MS,
        defaults: Mapping[str, object] = NO_DEFAULTS,
    ) -> TopicHandle:
        """The handle of a topic, with a reader of its own, and a commit log of its own unless `log` is given."""
        reader = SegmentReader(storage, name, IndexCache())
        commit_log = log or topic_log(storage, clock, defaults=defaults)
        return cls(storage, name, reader, commit_log, clock, new_id, producer_expiration_ms=producer_expiration_ms)

    def trusted_ms(self) -> int:
        """Return the time in ms: this process's, or the store's if this process is far ahead. It takes a request."""
        return trusted_ms(self.clock(), self.storage)

    def new_stem(self, read_version: int) -> str:
        return paths.new_stem(read_version, self.new_id())

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = self.storage, self.name, None, self.clock, self.new_id, self.producer_expiration_ms
        return TopicHandle.of, (*arguments, dict(self.log.defaults))


def topic_log(
    storage: Storage,
    clock: Callable[[], int] = now_ms,
    *,
    engine: str | None = None,
    defaults: Mapping[str, object] = NO_DEFAULTS,
) -> CommitLog:
    """The commit log of the topic in `storage`, which may be dropped; `defaults` are for settings that it lacks."""
    names = ("distlog", VERSION, engine, platform.node())
    writer = " ".join(filter(None, names))
    return CommitLog(storage, clock=clock, random=SystemRandom(), writer=writer, defaults=defaults)
