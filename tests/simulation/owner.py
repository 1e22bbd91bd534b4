"""An operator with a topic of its own on a disk: it drops, creates, restores, exports and imports the topic.

Nobody else writes to the topic, so its owner knows all records, also after its process died or the power failed.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

import pyarrow as pa

import distlog
from distlog import OffsetOutOfRangeError, SnapshotTooOldError, TopicNotFoundError
from distlog.core.times import now_ms
from simulation.actors import PASSING, Memory, Stage
from simulation.disk_actors import oracle_of, stage_of
from simulation.disk_oracle import DiskOracle, Location
from simulation.oracle import rows_of
from simulation.record_log import Row
from simulation.world import Process

_PARTITIONS = 2


@dataclass
class Owned:
    """The knowledge of an owner about its topic, which survives its processes."""

    name: str
    #: Whether the topic exists; None while a drop or a creation has no known outcome.
    exists: bool | None = False
    topic_id: str = ""
    #: The records that must exist, and those that may: of operations without a known outcome.
    rows: dict[Location, Row] = field(default_factory=dict)
    possible: set[bytes] = field(default_factory=set)
    #: All records that existed, and the records of versions, to restore.
    appended: dict[Location, Row] = field(default_factory=dict)
    versions: dict[int, dict[Location, Row]] = field(default_factory=dict)
    #: The folder of the last export, and its records.
    exported: tuple[str, dict[Location, Row]] | None = None
    count: int = 0

    def begin(self, topic_id: str, *, exists: bool | None) -> None:
        """Note that the topic is a new one."""
        self.exists, self.topic_id, self.exported = exists, topic_id, None
        self.rows, self.possible, self.appended, self.versions = {}, set(), {}, {}

    def new_name(self, kind: str) -> str:
        self.count += 1
        return f"{self.name}-{kind}-{self.count}"


class Owner:
    """One process of an owner."""

    def __init__(self, oracle: DiskOracle, owned: Owned, random: Random) -> None:
        self.oracle, self.owned, self.random = oracle, owned, random
        self.root = oracle.url.rpartition("/")[0]

    def says(self, text: str) -> None:
        # the device may have lost synced pages
        if not self.oracle.disk.refusals:
            self.oracle.says(f"{self.owned.name}: {text}")

    def open(self) -> distlog.Topic:
        """Open the topic, or create it if it was dropped."""
        owned, url = self.owned, f"{self.root}/{self.owned.name}"
        try:
            topic = distlog.open(url)
        except TopicNotFoundError:
            if owned.exists:
                self.says("the topic was created, and does not exist")
            owned.exists = None
            topic = distlog.create(url, partitions=_PARTITIONS, config={"file.delete.delay.ms": 20_000})
            owned.begin(topic.snapshot.topic_id, exists=True)
            return topic
        if owned.exists is False:
            self.says("the topic was dropped, and exists")
        if topic.snapshot.topic_id != owned.topic_id:
            if owned.exists:
                self.says("the topic has another id")
            owned.begin(topic.snapshot.topic_id, exists=None)
        return topic

    def check(self, topic: distlog.Topic) -> None:
        rows, owned = rows_of(topic), self.owned
        if wrong := owned.rows.items() - rows.items():
            self.says(f"version {topic.version} has {sorted(rows.items())}, and lacks {sorted(wrong)}")
        for location in rows.keys() - owned.rows.keys():
            if rows[location].value not in owned.possible:
                self.says(f"version {topic.version} has {rows[location]} at {location}, which was deleted or refused")

    def act(self, topic: distlog.Topic) -> None:
        kinds = ["append", "append", "append", "delete", "delete", "restore", "restore", "compact", "export", "drop"]
        kinds += ["adopt", "adopt"] if self.owned.exported else []
        getattr(self, self.random.choice(kinds))(topic)

    def append(self, topic: distlog.Topic) -> None:
        owned, partition = self.owned, self.random.randrange(_PARTITIONS)
        values = [owned.new_name("record").encode() for _ in range(self.random.choice((1, 3, 20)))]
        rows = [Row(now_ms(), self.random.choice((None, b"k")), value, ()) for value in values]
        owned.possible |= {*values}
        names = ("timestamp", "key", "value")
        types = (pa.int64(), pa.binary(), pa.binary())
        columns = {
            name: pa.array([getattr(row, name) for row in rows], kind)
            for name, kind in zip(names, types, strict=True)
        }
        result = topic.append(pa.table(columns), partition)
        # before, it may be that a creation was not synced
        owned.exists = True
        owned.possible -= {*values}
        ((partition, (first, _)),) = result.offsets.items()
        appended = {(partition, offset): row for offset, row in enumerate(rows, first)}
        owned.rows |= appended
        owned.appended |= appended
        owned.versions[topic.version] = dict(owned.rows)

    def delete(self, topic: distlog.Topic) -> None:
        owned, (partition, end) = self.owned, self.random.choice(sorted(topic.end_offsets().items()))
        start = self.random.randint(topic.start_offsets()[partition], end)
        deleted = {location: row for location, row in owned.appended.items() if location[0] == partition}
        deleted = {location: row for location, row in deleted.items() if location[1] < start}
        self._begin_change(deleted)
        topic.delete_records({partition: start})
        owned.possible -= values_of(deleted)

    def restore(self, topic: distlog.Topic) -> None:
        """Restore a version; that may bring back records that were appended and deleted later."""
        owned = self.owned
        if not owned.versions:
            return
        version = self.random.choice(sorted(owned.versions))
        rows = dict(owned.rows)
        self._begin_change(owned.appended)
        report = topic.restore(version)
        if not any(partition.lost_segments for partition in report.partitions):
            owned.rows = {**rows, **owned.versions[version]}

    def _begin_change(self, rows: dict[Location, Row]) -> None:
        """Note that records may exist or not, until the operation has succeeded."""
        self.owned.rows = {location: row for location, row in self.owned.rows.items() if location not in rows}
        self.owned.possible |= values_of(rows)

    def compact(self, topic: distlog.Topic) -> None:
        topic.compact()
        topic.vacuum()

    def export(self, topic: distlog.Topic) -> None:
        folder = f"{self.root}/{self.owned.new_name('export')}"
        topic.export(folder)
        self.owned.exported = folder, rows_of(topic)

    def adopt(self, topic: distlog.Topic) -> None:
        """Import the last export, perhaps after the power failed."""
        assert self.owned.exported is not None
        folder, expected = self.owned.exported
        folders = [os.path.join(folder, f"{topic.name}-{partition}") for partition in range(_PARTITIONS)]
        url = f"{self.root}/{self.owned.new_name('copy')}"
        match self.random.choice(("folders", "directory", "links")):
            case "folders":
                copy = distlog.adopt(folders, url).topic
            case "directory":
                copy = distlog.adopt(folder, url).topic
            case "links":
                # the folder then has a topic
                self.owned.exported = None
                copy = distlog.adopt(folder).topic
        if (rows := rows_of(copy)) != expected:
            self.says(f"an export of {expected} is imported as {rows}")
        copy.drop()

    def drop(self, topic: distlog.Topic) -> None:
        self.owned.exists = None
        topic.drop()
        self.owned.exists = False


def values_of(rows: dict[Location, Row]) -> set[bytes]:
    return {row.value or b"" for row in rows.values()}


def owns(stage: Stage, process: Process, memory: Memory) -> None:
    """Work on a topic of its own, and compare it with what must be there."""
    oracle = oracle_of(stage)
    owned = stage_of(stage).owned.setdefault(memory.name, Owned(memory.name.replace("-", "_")))
    owner = Owner(oracle, owned, process.random)
    while stage.goes_on():
        with suppress(*PASSING, SnapshotTooOldError, OffsetOutOfRangeError):
            topic = owner.open()
            owner.check(topic)
            while stage.goes_on() and owned.exists is not False:
                owner.act(topic)
                if owned.exists is not False:
                    owner.check(topic.refresh())
                if process.random.random() < 0.2:
                    stage.pause(process.random)
        stage.pause(process.random)
