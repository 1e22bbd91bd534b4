"""The topics that this process has written to, as it saw them last.

Spark keeps its Python processes for a minute after their last use. One of them plans the writes, another commits
them. In a stream both come back with each micro-batch, so neither needs to load the topic from the beginning.
"""

from __future__ import annotations

import pickle

from distlog.core.commits.commit_log import CommitLog
from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.locks import ProcessLock
from distlog.core.storage.storage import Storage
from distlog.core.topic_handle import TopicHandle, topic_log
from distlog.spark.sink.topic_facts import TopicFacts

#: A snapshot of a hundred thousand segments takes some 30 MB.
KEPT = 8
#: What the plan of a micro-batch does not see of the last second, its commit finds.
RECENT_MS = 1000


class KnownTopics:
    """Up to KEPT topics, the ones that were used last; safe between threads."""

    def __init__(self) -> None:
        self._lock = ProcessLock()
        self._known: dict[bytes, tuple[CommitLog, Snapshot]] = {}

    def load(self, storage: Storage, *, recent_ms: int = 0) -> tuple[TopicHandle, Snapshot]:
        """The topic in `storage` and its newest snapshot; for a known topic with at most one new commit 2 requests.

        If a known topic's new commit is at most `recent_ms` old, it is 1 request, and later commits are not seen.
        Raises TopicNotFoundError.
        """
        log, known = self._known.get(_key(storage), (None, None))
        log = log or topic_log(storage, engine="spark")
        snapshot = log.load(known=known, recent_ms=recent_ms)
        handle = TopicHandle.of(storage, snapshot.name, log)
        self.keep(handle, snapshot)
        return handle, snapshot

    def load_planned(self, storage: Storage, planned: TopicFacts) -> tuple[TopicHandle, Snapshot]:
        """A snapshot to commit from that is no older than `planned`; no request if this process has committed last.

        The plan has just looked at the topic, and a commit notices the commits of others by itself. Raises
        TopicNotFoundError.
        """
        log, known = self._known.get(_key(storage), (None, None))
        if log is None or known is None or known.topic_id != planned.topic_id or known.version < planned.version:
            return self.load(storage)
        return TopicHandle.of(storage, known.name, log), known

    def keep(self, handle: TopicHandle, snapshot: Snapshot) -> None:
        """Remember the topic as it is in `snapshot`."""
        key = _key(handle.storage)
        with self._lock:
            self._known.pop(key, None)
            self._known[key] = handle.log, snapshot
            while len(self._known) > KEPT:
                del self._known[next(iter(self._known))]


def _key(storage: Storage) -> bytes:
    return pickle.dumps(storage)


#: Those of this process.
KNOWN_TOPICS = KnownTopics()
