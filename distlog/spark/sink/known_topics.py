"""The topics that this process has written to, as it saw them last.

Spark keeps its Python processes for a minute after their last use. One of them plans the writes, another commits
them. In a stream both come back with each micro-batch, so neither needs to load the topic from the beginning.
"""

from __future__ import annotations

import pickle

from distlog.core.commits.commit_log import CommitLog
from distlog.core.commits.snapshot import Snapshot
from distlog.core.locks import ProcessLock
from distlog.core.storage.storage import Storage
from distlog.core.topic_handle import TopicHandle, topic_log

#: A snapshot of a hundred thousand segments takes some 30 MB.
KEPT = 8


class KnownTopics:
    """Up to KEPT topics, the ones that were used last; safe between threads."""

    def __init__(self) -> None:
        self._lock = ProcessLock()
        self._known: dict[bytes, tuple[CommitLog, Snapshot]] = {}

    def load(self, storage: Storage) -> tuple[TopicHandle, Snapshot]:
        """The topic in `storage` and its newest snapshot; for a known topic with at most one new commit 2 requests.

        Raises TopicNotFoundError.
        """
        log, known = self._known.get(_key(storage), (None, None))
        log = log or topic_log(storage, engine="spark")
        snapshot = log.load(known=known)
        handle = TopicHandle.of(storage, snapshot.name, log)
        self.keep(handle, snapshot)
        return handle, snapshot

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
