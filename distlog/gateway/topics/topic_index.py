"""An index of the topics in a root folder on an object store, which saves requests when all topics are listed."""

from __future__ import annotations

import json
import logging
import threading
import uuid
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from crc32c import crc32c

from distlog.core import paths
from distlog.core.commits.actions import MAX_PARTITIONS
from distlog.core.commits.snapshot import MAX_CLOCK_DIFFERENCE_MS, Snapshot, least_retention_ms
from distlog.core.commits.snapshot_loader import CommitFiles, SnapshotLoader
from distlog.core.errors import StorageError
from distlog.core.storage.calls import in_parallel
from distlog.core.storage.storage import Storage
from distlog.core.times import monotonic_ms


class TopicIndex:
    """Summaries of topics that this gateway has not opened. The gateways of a root share them in a stored object."""

    def __init__(self, root: Storage, clock: Callable[[], int] = monotonic_ms) -> None:
        self._root, self._clock, self._lock = root, clock, threading.Lock()
        self._topics: dict[str, _IndexedTopic] = {}
        #: When each topic was checked last, by `clock`.
        self._checked_ms: dict[str, int] = {}
        self._checks_since_write = 0

    def summaries(self, names: Collection[str], max_age_ms: int) -> dict[str, TopicSummary | Exception]:
        """The topics in these folders, checked at most `max_age_ms` ago, or their errors; without missing topics."""
        with self._lock:
            self._forget(self._topics.keys() - set(names))
            due = self._due(names, max_age_ms)
            if len(due) >= CHECKS_PER_EXCHANGE:  # another gateway may have stored newer results
                self._read_index(names)
                due = self._due(names, max_age_ms)
            errors = dict(zip(due, in_parallel(self._read_topic, due), strict=True))
            self._checks_since_write += len(due)
            if self._checks_since_write >= CHECKS_PER_EXCHANGE:
                self._write_index()
            summaries_or_errors = dict[str, TopicSummary | Exception]()
            for name in names:
                if (error := errors.get(name)) is not None:
                    summaries_or_errors[name] = error
                elif (indexed := self._topics.get(name)) is not None and indexed.partitions:
                    summaries_or_errors[name] = TopicSummary(name, indexed.topic_id, indexed.partitions)
            return summaries_or_errors

    def forget(self, name: str) -> None:
        self._forget([name])

    def _forget(self, names: Collection[str]) -> None:
        for name in names:
            self._topics.pop(name, None)
            self._checked_ms.pop(name, None)

    def _due(self, names: Collection[str], max_age_ms: int) -> list[str]:
        oldest_ms = self._clock() - max_age_ms
        return [name for name in names if self._checked_ms.get(name, -1) <= oldest_ms or name not in self._topics]

    def _read_topic(self, name: str) -> Exception | None:
        """Read a topic again if it may have changed (see _IndexedTopic). Returns the error if this fails."""
        storage, checked_ms = self._root.child(name), self._clock()
        try:
            # the time of the store's newest reply, by the store's clock; 0 before the first reply
            indexed, store_ms = self._topics.get(name), storage.replied_ms()
            if indexed is not None and indexed.is_verifiable_at(store_ms) and _is_newest(storage, indexed, store_ms):
                # if the last proof (see _IndexedTopic) was too old, `_is_newest` has read the commit: a new proof
                proven_ms = indexed.proven_ms if indexed.is_proven_at(store_ms) else store_ms
                indexed = indexed._replace(seen_ms=store_ms, proven_ms=proven_ms)
            else:
                indexed = _IndexedTopic.of(name, SnapshotLoader(storage).load_by_listing())
        except Exception as error:
            self._forget([name])
            return error
        self._topics[name], self._checked_ms[name] = indexed, checked_ms
        return None

    def _read_index(self, names: Collection[str]) -> None:
        """Use newer results from the stored index, which any gateway may have written."""
        try:
            index = json.loads(self._root.read(paths.TOPIC_INDEX, 0, _MAX_INDEX_BYTES))
            fields = index["topics"]
            if index["crc32c"] != crc32c(_encoded(fields)):
                raise ValueError("the checksum is wrong")
            stored = {name: _IndexedTopic.parse(fields[name]) for name in names if name in fields}
        except FileNotFoundError:
            return
        except (StorageError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            _log.warning("the stored index of topics is unreadable, and will be replaced: %s", error)
            return
        store_ms, now_ms = self._root.replied_ms(), self._clock()
        for name, entry in stored.items():
            indexed = self._topics.get(name)
            if entry.is_verifiable_at(store_ms) and (indexed is None or indexed.seen_ms < entry.seen_ms):
                age_ms = max(0, store_ms - entry.seen_ms)  # the age is the same by both clocks
                self._topics[name], self._checked_ms[name] = entry, now_ms - age_ms

    def _write_index(self) -> None:
        # use a copy, since `forget` takes no lock: it must not wait for the reads of `summaries`
        entries = self._topics.copy().items()
        # leave out missing topics, and entries without a time, which no gateway can verify
        topics = {name: entry.fields() for name, entry in entries if entry.seen_ms and entry.topic_id}
        try:
            self._root.put(paths.TOPIC_INDEX, _encoded({"topics": topics, "crc32c": crc32c(_encoded(topics))}))
        except StorageError as error:
            _log.warning("the index of topics was not written: %s", error)
            return
        self._checks_since_write = 0


#: A listing of n topics accepts entries up to n times this age. So frequent listings check one of the n every 30 ms.
MAX_AGE_PER_TOPIC_MS = 30
#: The stored index is read if this many topics need a check, and written after this many checks.
CHECKS_PER_EXCHANGE = 100
#: How long a commit is assumed to exist after it was read.
PROOF_MS = 3_600_000
#: Versions, and times in ms, are below this number.
_LIMIT = 1 << 53
#: The largest index that is read. A topic takes about 200 bytes.
_MAX_INDEX_BYTES = 256 << 20
_log = logging.getLogger("distlog.gateway")


class TopicSummary(NamedTuple):
    name: str
    topic_id: str
    partitions: int


def client_id(name: str, snapshot: Snapshot) -> str:
    """The topic's id for clients. A copy has the original's id, so clients get an id from the copy's folder name."""
    topic_id = snapshot.topic_id
    return topic_id if name == snapshot.name else str(uuid.uuid5(uuid.UUID(topic_id), name))


class _IndexedTopic(NamedTuple):
    """A version that was the newest at `seen_ms` by the store's clock; or a missing topic.

    Two checks show that the topic is unchanged. `version + 1` has no commit: for `span_ms` after `seen_ms`, no vacuum
    deletes later commits. The commit of `version` has the id `commit_id`: if the folder was deleted or replaced, it
    is missing, or has another id. The last read of this commit, a proof for PROOF_MS, was at `proven_ms`.
    """

    topic_id: str
    commit_id: str
    #: 0 if the topic is missing or was dropped.
    partitions: int
    version: int
    seen_ms: int
    span_ms: int
    #: Not stored, so the first check of a stored entry reads its commit.
    proven_ms: int = 0

    @classmethod
    def of(cls, name: str, snapshot: Snapshot | None) -> _IndexedTopic:
        """The entry for a snapshot in the folder `name`; a missing topic (None) is never verifiable."""
        if snapshot is None:
            return cls("", "", 0, -1, 0, 0)
        partitions = 0 if snapshot.dropped else len(snapshot.partitions)
        # half of the retention, as a margin for slow requests
        span_ms = least_retention_ms(snapshot.config) // 2
        topic_id, seen_ms = client_id(name, snapshot), snapshot.seen_ms
        return cls(topic_id, snapshot.commit_id, partitions, snapshot.version, seen_ms, span_ms, proven_ms=seen_ms)

    @classmethod
    def parse(cls, fields: Any) -> _IndexedTopic:
        topic_id, commit_id, *numbers = fields
        partitions, version, seen_ms, span_ms = numbers
        if not all(type(number) is int and 0 <= number < _LIMIT for number in numbers) or partitions > MAX_PARTITIONS:
            raise ValueError("a number is out of its range")
        return cls(str(uuid.UUID(topic_id)), str(uuid.UUID(commit_id)), partitions, version, seen_ms, span_ms)

    def fields(self) -> list[object]:
        return list(self[:-1])

    def is_verifiable_at(self, time_ms: int) -> bool:
        """Whether vacuum cannot have deleted a later commit by `time_ms` of the store's clock."""
        return self.seen_ms > 0 and -MAX_CLOCK_DIFFERENCE_MS <= time_ms - self.seen_ms < self.span_ms

    def is_proven_at(self, time_ms: int) -> bool:
        return time_ms - self.proven_ms < PROOF_MS


def _encoded(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def _is_newest(storage: Storage, indexed: _IndexedTopic, store_ms: int) -> bool:
    """Whether no later version exists, and the commit of the indexed version is still the one that was read."""
    try:
        storage.size(paths.commit_file(indexed.version + 1))
        return False
    except FileNotFoundError:
        pass
    if indexed.is_proven_at(store_ms):
        return True
    commit = CommitFiles(storage).read(indexed.version)
    return commit is not None and commit.id == indexed.commit_id
