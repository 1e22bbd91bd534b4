"""The topics of a root on an object store, as a list of all of them shows them: most are looked at by nobody else."""

from __future__ import annotations

import dataclasses
import json
import logging
import threading
import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, NamedTuple

from crc32c import crc32c

from distlog.core import paths
from distlog.core.commits.actions import MAX_PARTITIONS
from distlog.core.commits.snapshot import CLOCKS_DIFFER_MS, Snapshot
from distlog.core.commits.snapshot_loader import CommitFiles, SnapshotLoader
from distlog.core.errors import StorageError
from distlog.core.storage.parallel import in_parallel
from distlog.core.storage.storage import Storage
from distlog.gateway.topics.refreshing_topic import monotonic_ms

#: The age of what is known of a topic, for each topic of the list: 33 looks a second, however many there are.
LOOK_MS = 30
#: So many looks are worth the index on storage: the looks of other gateways are read first, and new ones kept.
MANY_LOOKS = 100
#: How long the commit of a known version is taken to be there; one from the index is looked for at the first look.
PROOF_MS = 3_600_000
#: No topic has so many versions, nor any time so many ms.
_MOST = 1 << 53
#: The bytes of an index are at most these: about 200 for each topic.
_MOST_BYTES = 256 << 20

_log = logging.getLogger("distlog.gateway")


class TopicSummary(NamedTuple):
    """The facts of a topic that clients are told; its id is that of `client_id`."""

    name: str
    topic_id: str
    partitions: int


def client_id(name: str, snapshot: Snapshot) -> str:
    """The id by which Kafka clients know the topic in the folder `name`: its own, unless the folder was renamed.

    A copy of a folder has the id of the original. Clients fetch by ids, and would get the records of the one for the
    other. So a topic in a folder of another name than it was created with has an id that is made of both.
    """
    own = snapshot.topic_id
    return own if name == snapshot.name else str(uuid.uuid5(uuid.UUID(own), name))


@dataclass(frozen=True, slots=True)
class _Known:
    """A topic at a version, behind which there was none at `seen_ms` of the store's clock; or that there is no topic.

    For `kept_ms` after that, the next version shows whether anything has changed: no vacuum deletes it before. The
    version's own commit was there at `proven_ms`. Without it the folder is another one, which was made by hand.
    """

    topic_id: str
    commit_id: str
    partitions: int
    version: int
    seen_ms: int
    kept_ms: int
    proven_ms: int = 0

    @classmethod
    def of(cls, name: str, snapshot: Snapshot | None) -> _Known:
        """The knowledge of a snapshot in the folder `name`; None for no topic, which no one request can tell."""
        if snapshot is None:
            return cls("", "", 0, -1, 0, 0)
        partitions = 0 if snapshot.dropped else len(snapshot.partitions)
        kept_ms = snapshot.config.look_retention_ms // 2
        seen_ms, ids = snapshot.seen_ms, (client_id(name, snapshot), snapshot.commit_id)
        return cls(*ids, partitions, snapshot.version, seen_ms, kept_ms, seen_ms)

    @classmethod
    def parse(cls, fields: Any) -> _Known:
        """A topic in the index. Raises ValueError, TypeError."""
        topic_id, commit_id, *numbers = fields
        partitions, version, seen_ms, kept_ms = numbers
        if not all(type(each) is int and 0 <= each < _MOST for each in numbers) or partitions > MAX_PARTITIONS:
            raise ValueError("a number is out of its range")
        return cls(str(uuid.UUID(topic_id)), str(uuid.UUID(commit_id)), partitions, version, seen_ms, kept_ms)

    def fields(self) -> list[object]:
        """Its place in the index."""
        return [self.topic_id, self.commit_id, self.partitions, self.version, self.seen_ms, self.kept_ms]

    def is_told_at(self, time_ms: int) -> bool:
        """True if the next version tells at this time of the store's clock whether anything has changed."""
        return self.seen_ms > 0 and -CLOCKS_DIFFER_MS <= time_ms - self.seen_ms < self.kept_ms

    def is_proven_at(self, time_ms: int) -> bool:
        """True if its commit was seen not long before this time of the store's clock."""
        return time_ms - self.proven_ms < PROOF_MS


class TopicIndex:
    """The known facts of topics in the folders of `root` that this gateway does not host; for many threads.

    A topic that is known takes one small request now and then, a new one several. Gateways share what they saw in an
    object of the root, which is only a cache: without it, topics are read again. It names no topic, since the folders
    do, and what it says of one has an age as all else, and is proven at the next look. `clock` gives ms that never go
    back.
    """

    def __init__(self, root: Storage, clock: Callable[[], int] = monotonic_ms) -> None:
        self._root, self._clock, self._lock = root, clock, threading.Lock()
        self._known: dict[str, _Known] = {}
        self._looked_ms: dict[str, int] = {}
        self._looks = 0

    def facts(self, names: Collection[str], max_age_ms: int) -> dict[str, TopicSummary | Exception]:
        """The topics in these folders as they were at most `max_age_ms` ago, or the error of each one."""
        with self._lock:
            self._forget(self._known.keys() - set(names))
            due = self._due(names, max_age_ms)
            if len(due) >= MANY_LOOKS:
                self._read(names)
                due = self._due(names, max_age_ms)
            errors = dict(zip(due, in_parallel(self._look, due), strict=True))
            self._looks += len(due)
            if self._looks >= MANY_LOOKS:
                self._write()
            facts_or_errors = dict[str, TopicSummary | Exception]()
            for name in names:
                if (error := errors.get(name)) is not None:
                    facts_or_errors[name] = error
                elif (known := self._known.get(name)) is not None and known.partitions:
                    facts_or_errors[name] = TopicSummary(name, known.topic_id, known.partitions)
            return facts_or_errors

    def forget(self, name: str) -> None:
        """Look at a topic anew: it was dropped, or is another one by now. It does not wait for looks under way."""
        self._forget([name])

    def _forget(self, names: Collection[str]) -> None:
        for name in names:
            self._known.pop(name, None)
            self._looked_ms.pop(name, None)

    def _due(self, names: Collection[str], max_age_ms: int) -> list[str]:
        oldest_ms = self._clock() - max_age_ms
        return [name for name in names if self._looked_ms.get(name, -1) <= oldest_ms or name not in self._known]

    def _look(self, name: str) -> Exception | None:
        """Look whether a topic has changed, and read it if it has, or may have."""
        storage, looked_ms = self._root.child(name), self._clock()
        try:
            known, asked_ms = self._known.get(name), storage.replied_ms()
            if known is not None and known.is_told_at(asked_ms) and _is_newest(storage, known, asked_ms):
                proven_ms = known.proven_ms if known.is_proven_at(asked_ms) else asked_ms
                known = dataclasses.replace(known, seen_ms=asked_ms, proven_ms=proven_ms)
            else:
                known = _Known.of(name, SnapshotLoader(storage).load_few())
        except Exception as error:
            self._forget([name])
            return error
        self._known[name], self._looked_ms[name] = known, looked_ms
        return None

    def _read(self, names: Collection[str]) -> None:
        """Take the later looks of other gateways, or of this one before, at these topics."""
        try:
            index = json.loads(self._root.read(paths.TOPIC_INDEX, 0, _MOST_BYTES))
            fields = index["topics"]
            if index["crc32c"] != crc32c(_encoded(fields)):
                raise ValueError("its checksum is wrong")
            stored = {name: _Known.parse(fields[name]) for name in names if name in fields}
        except FileNotFoundError:
            return
        except (StorageError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            _log.warning("the index of topics is ignored, and will be written anew: %s", error)
            return
        now_ms, looked_ms = self._root.replied_ms(), self._clock()
        for name, each in stored.items():
            known = self._known.get(name)
            if each.is_told_at(now_ms) and (known is None or known.seen_ms < each.seen_ms):
                self._known[name], self._looked_ms[name] = each, looked_ms - max(0, now_ms - each.seen_ms)

    def _write(self) -> None:
        topics = {name: each.fields() for name, each in self._known.items() if each.seen_ms and each.topic_id}
        try:
            self._root.put(paths.TOPIC_INDEX, _encoded({"topics": topics, "crc32c": crc32c(_encoded(topics))}))
        except StorageError as error:
            _log.warning("the index of topics was not written: %s", error)
            return
        self._looks = 0


def _encoded(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def _is_newest(storage: Storage, known: _Known, asked_ms: int) -> bool:
    """True if there is no later version, and that of `known` is the one that was seen."""
    if not _is_missing(storage, known.version + 1):
        return False
    if known.is_proven_at(asked_ms):
        return True
    commit = CommitFiles(storage).read(known.version)
    return commit is not None and commit.id == known.commit_id


def _is_missing(storage: Storage, version: int) -> bool:
    try:
        storage.size(paths.commit_file(version))
    except FileNotFoundError:
        return True
    return False
