"""The handle of one topic: its storage, its reader, its commit log, a clock, sources of ids and random numbers."""

from __future__ import annotations

import platform
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random, SystemRandom
from typing import Any

from distlog.core import VERSION, paths
from distlog.core.commits.commit_log import CommitLog
from distlog.core.commits.snapshot_loader import NO_DEFAULTS
from distlog.core.commits.store_time import trusted_ms
from distlog.core.indexes.index_cache import IndexCache
from distlog.core.reading.files.segment_reader import SegmentReader
from distlog.core.storage.storage import Storage
from distlog.core.times import now_ms


def topic_log(
    storage: Storage,
    clock: Callable[[], int] = now_ms,
    *,
    engine: str | None = None,
    defaults: Mapping[str, object] = NO_DEFAULTS,
) -> CommitLog:
    """The commit log of the topic in `storage`; works for a dropped topic too.

    Its commits name this library, the `engine` that runs it, if any, and this machine. `defaults` are settings for
    what the topic does not set itself.
    """
    names = ("distlog", VERSION, engine, platform.node())
    writer = " ".join(filter(None, names))
    return CommitLog(storage, clock=clock, random=SystemRandom(), writer=writer, defaults=defaults)


def new_id() -> str:
    """A new id, unique everywhere."""
    return uuid.uuid4().hex


@dataclass(frozen=True, slots=True, eq=False)
class TopicHandle:
    """The topic called `name` in `storage`, with all that work on it needs.

    `clock` gives ms since 1970. `new_id` gives the ids that make file names unique. `random` must be unpredictable,
    because compaction draws from it the secret under which keys are hashed. The handle pickles, into Spark tasks too:
    storage, name, `clock`, `new_id` and the commit log's `defaults` go along; the rest is made anew.
    """

    storage: Storage
    name: str
    reader: SegmentReader
    log: CommitLog
    clock: Callable[[], int] = now_ms
    new_id: Callable[[], str] = new_id
    random: Random = field(default_factory=SystemRandom)

    @classmethod
    def of(
        cls,
        storage: Storage,
        name: str,
        log: CommitLog | None = None,
        clock: Callable[[], int] = now_ms,
        new_id: Callable[[], str] = new_id,
    ) -> TopicHandle:
        """The handle of a topic, with a reader of its own, and a commit log of its own unless `log` is given."""
        reader = SegmentReader(storage, name, IndexCache())
        return cls(storage, name, reader, log or topic_log(storage, clock), clock, new_id)

    def trusted_ms(self) -> int:
        """The time in ms: this process's clock, or the store's if this one is far ahead of it. Asks the store."""
        return trusted_ms(self.clock(), self.storage)

    def new_stem(self, read_version: int) -> str:
        """A new stem for a segment of a transaction that read the topic at `read_version`."""
        return paths.new_stem(read_version, self.new_id())

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self.storage, self.name, self.clock, self.new_id, dict(self.log.defaults))


def _again(
    storage: Storage,
    name: str,
    clock: Callable[[], int],
    new_id: Callable[[], str],
    defaults: Mapping[str, object],
) -> TopicHandle:
    return TopicHandle.of(storage, name, topic_log(storage, clock, defaults=defaults), clock, new_id)
