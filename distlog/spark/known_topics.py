"""The topics that a process of Spark has read or written, as it saw them last."""

from __future__ import annotations

from typing import Any

from pyspark import cloudpickle

from distlog.core.commits.commit_log import CommitLog
from distlog.core.commits.snapshot import Snapshot
from distlog.core.errors import TopicNotFoundError
from distlog.core.locks import process_lock
from distlog.core.segments.topic_handle import TopicHandle, topic_log
from distlog.core.storage.storage import Storage

# Spark keeps its Python processes for a minute after their last use. One process plans the writes, another commits
# them. In a stream both are reused by each micro-batch, so neither loads the topic from the beginning. A driver that
# repeatedly appends to a topic or reads it reuses the loaded topic too.


#: A snapshot of a hundred thousand segments takes some 30 MB.
MAX_TOPICS = 8
#: A plan of a micro-batch may miss commits of the last second; the commit of the batch finds these.
RECENT_MS = 1000


class KnownTopics:
    """Up to MAX_TOPICS topics, the ones that were used last; safe between threads."""

    def __init__(self) -> None:
        self._lock = process_lock()
        self._loaded: dict[bytes, tuple[CommitLog, Snapshot]] = {}

    def load(self, storage: Storage, *, recent_ms: int = 0) -> tuple[TopicHandle, Snapshot]:
        """The topic in `storage` and its newest snapshot; a known topic with at most one new commit costs 2 requests.

        If a known topic's new commit is at most `recent_ms` old, it costs 1 request, and later commits are missing.
        Raises TopicNotFoundError.
        """
        log, newest = self._loaded.get(_key(storage), (None, None))
        log = log or topic_log(storage, engine="spark")
        try:
            snapshot = loaded(log, storage, cached=newest, recent_ms=recent_ms)
        except TopicNotFoundError:
            # the next one there is another topic
            with self._lock:
                self._loaded.pop(_key(storage), None)
            raise
        handle = TopicHandle.of(storage, snapshot.name, log)
        self.keep(handle, snapshot)
        return handle, snapshot

    def load_planned(self, storage: Storage, topic_id: str, version: int) -> tuple[TopicHandle, Snapshot]:
        """A snapshot to commit from, not older than `version`; no request if this process has committed last.

        The plan has just looked at that version, and a commit notices the commits of others by itself. Raises
        TopicNotFoundError.
        """
        log, newest = self._loaded.get(_key(storage), (None, None))
        if log is None or newest is None or newest.topic_id != topic_id or newest.version < version:
            return self.load(storage)
        return TopicHandle.of(storage, newest.name, log), newest

    def keep(self, handle: TopicHandle, snapshot: Snapshot) -> None:
        key = _key(handle.storage)
        with self._lock:
            self._loaded.pop(key, None)
            self._loaded[key] = handle.log, snapshot
            while len(self._loaded) > MAX_TOPICS:
                del self._loaded[next(iter(self._loaded))]


def loaded(log: CommitLog, storage: Storage, **version_options: Any) -> Snapshot:
    """The snapshot that `CommitLog.load` returns; a TopicNotFoundError names the topics under the address."""
    try:
        return log.load(**version_options)
    except TopicNotFoundError:
        # each query of a stream waits for what its process imports
        from distlog.core.opening import naming_topics

        with naming_topics(storage):
            raise


def _key(storage: Storage) -> bytes:
    # as Spark sends it to tasks: options may have functions of a notebook
    key: bytes = cloudpickle.dumps(storage)  # type: ignore[no-untyped-call]
    return key


#: The topics of this process.
KNOWN_TOPICS = KnownTopics()
