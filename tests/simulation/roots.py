"""The other topics of a root, which are created, changed and dropped, and the lists of gateways."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple
from unittest import mock

import distlog
from distlog import SnapshotTooOldError, TopicExistsError
from distlog.core import paths
from distlog.core.storage.storage import Storage
from distlog.gateway.topics import topic_index
from distlog.gateway.topics.topic_index import TopicIndex
from simulation.actors import PASSING, Memory, Stage, make
from simulation.commit_reader import read_commit
from simulation.object_store import ObjectStore
from simulation.world import Process, World

#: How long commits are kept, in s.
_KEPT_S = 60
_CONFIG = {"commit.retention.ms": _KEPT_S * 1000, "file.delete.delay.ms": 20_000}
#: The store's clock has a resolution of one second.
_RESOLUTION_S = 2.0


class TopicVersion(NamedTuple):
    """A topic from the time of one commit on; a dropped topic has no partitions."""

    since_s: float
    topic_id: str
    partitions: int


@dataclass
class Root:
    """The topics of a root and their commits; `names` are the possible topics."""

    world: World
    store: ObjectStore
    url: str
    names: Sequence[str] = ("side-0", "side-1", "side-2", "side-3")
    _versions_by_name: dict[str, list[TopicVersion]] = field(default_factory=dict)
    _versions: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._prefix = self.url.partition("://")[2] + "/"
        self.store.watchers.append(self._changes)

    def _changes(self, kind: str, key: str, data: bytes | None) -> None:
        name, _, file = key.removeprefix(self._prefix).partition(f"/{paths.COMMITS_DIR}/")
        version = paths.parse_commit_file(file) if name in self.names else None
        # a late put may store a version that was deleted
        if kind != "put" or data is None or version is None or version != self._versions.get(name, -1) + 1:
            return
        self._versions[name] = version
        versions = self._versions_by_name.setdefault(name, [])
        topic_id, partitions = versions[-1][1:] if versions else ("", 0)
        commit = read_commit(data)
        for kind, body in commit.actions:
            match kind:
                case "create":
                    topic_id, partitions = commit.topic_id, 0
                case "partitions":
                    partitions = body["count"]
                case "drop":
                    partitions = 0
        versions.append(TopicVersion(self.world.now, topic_id, partitions))

    def was(self, name: str, since_s: float) -> Iterator[tuple[str, int]]:
        """Yield each id and partition count that a topic has had since a time; ("", 0) without a topic."""
        versions = self._versions_by_name.get(name, [])
        for number, version in enumerate(versions, 1):
            if number == len(versions) or versions[number].since_s >= since_s:
                yield (version.topic_id, version.partitions) if version.partitions else ("", 0)
        if not versions or versions[0].since_s >= since_s:
            yield "", 0

    def damage(self, random: Random) -> None:
        stored = self.store.objects.get(self._prefix + paths.TOPIC_INDEX)
        if stored is not None:
            data = bytearray(stored.data)
            data[random.randrange(len(data))] ^= 1 << random.randrange(4)
            stored.data = bytes(data)
            self.world.note("a bit of the index of topics flips")


def founds(stage: Stage, process: Process, memory: Memory) -> None:
    """Create, change and drop topics, and vacuum them."""
    random, root = process.random, stage.root
    assert root is not None
    while stage.goes_on():
        url = f"{root.url}/{random.choice(root.names)}"
        try:
            if random.random() < 0.5:
                with suppress(TopicExistsError):
                    make(url, random.randrange(1, 4), _CONFIG)
            else:
                topic = distlog.open(url)
                match random.choice(("drop", "grow", "grow", "vacuum", "vacuum", "vacuum")):
                    case "drop":
                        topic.drop()
                    case "grow":
                        topic.create_partitions(topic.partitions + 1)
                    case "vacuum":
                        topic.vacuum()
        except (*PASSING, SnapshotTooOldError, distlog.InvalidPartitionsError):
            pass
        stage.pause(random)


def lists(stage: Stage, process: Process, memory: Memory) -> None:
    """List the topics of the root as a gateway does, and sometimes damage the index."""
    random, root = process.random, stage.root
    assert root is not None
    index, world = TopicIndex(Storage(root.url, {})), stage.oracle.world
    resolution_s = _RESOLUTION_S + stage.oracle.store.flaws.listing_lag_s
    while stage.goes_on():
        max_age_s, start_s = random.choice((0.0, 5.0, 60.0)), world.now
        summaries = index.summaries(root.names, int(max_age_s * 1000))
        for name in root.names:
            summary = summaries.get(name)
            if isinstance(summary, Exception):
                continue
            listed = ("", 0) if summary is None else (summary.topic_id, summary.partitions)
            if listed not in root.was(name, start_s - max_age_s - resolution_s):
                stage.oracle.says(f"a list has {name} as {listed}, as it was not within {max_age_s:.0f} s")
        if random.random() < 0.2:
            root.damage(random)
        if random.random() < 0.1:
            # like a new gateway
            index = TopicIndex(Storage(root.url, {}))
        elif random.random() < 0.1:
            # like an idle gateway, for longer than commits are kept
            world.pause(random.uniform(0, 5 * _KEPT_S))
        stage.pause(random)


@contextmanager
def indexed_soon() -> Iterator[None]:
    with mock.patch.object(topic_index, "CHECKS_PER_EXCHANGE", 2):
        yield
