"""A broker's log directory that grows, its adoption again and again, and exports of a topic, on one machine's disk.

The broker is stopped while somebody adopts, and was killed before: what it wrote last may be half there.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from random import Random

import distlog
from distlog import OffsetOutOfRangeError, SnapshotTooOldError, StorageError, TopicExistsError
from distlog.core.format.record_encoder import encode
from distlog.core.kafka.partition_folder import PARTITION_METADATA, file_name, write_topic_id
from simulation.actors import PASSING, Actor, Memory, Stage
from simulation.gateways import timed
from simulation.oracle import Batch, rows_of
from simulation.world import BEGIN_MS, Process

#: The largest log of the broker, in bytes.
_SEGMENT_BYTES = 600


@dataclass
class Broker:
    """A broker's log directory `folder`, and all that it has of its topic; `stage` is where that is adopted to."""

    folder: str
    stage: Stage
    #: The partition, the offsets, and the records of each batch.
    batches: list[tuple[int, int, int, Batch]] = field(default_factory=list)
    #: The processes that adopt, while which the broker is stopped.
    adopting: list[Process] = field(default_factory=list)
    _topic_id: bytes = b""
    #: Of each partition: the base offset of its last segment, the size of its log, and the log end offset.
    _ends: dict[int, tuple[int, int, int]] = field(default_factory=dict)

    @property
    def partitions(self) -> list[str]:
        """The folders of the partitions that it has records of."""
        return [self._path(number) for number in sorted(self._ends)]

    def _path(self, partition: int) -> str:
        return os.path.join(self.folder, f"events-{partition}")

    @property
    def is_stopped(self) -> bool:
        """Whether somebody adopts."""
        return bool(self.adopting)

    @contextmanager
    def stopped_for(self, process: Process) -> Iterator[None]:
        """A process adopts."""
        self.adopting.append(process)
        try:
            yield
        finally:
            self.adopting.remove(process)

    def write(self, random: Random) -> None:
        """Append a batch to a partition, and perhaps a part of another one."""
        partition = random.randrange(self.stage.partitions)
        path, world = self._path(partition), self.stage.oracle.world
        if partition not in self._ends:
            os.makedirs(path)
            self._topic_id = self._topic_id or write_topic_id(uuid.UUID(int=random.getrandbits(128), version=4))
            with open(os.path.join(path, PARTITION_METADATA), "wb") as file:
                file.write(self._topic_id)
        base, size, end = self._ends.get(partition, (0, 0, 0))
        if size > _SEGMENT_BYTES:
            # what is half there is cut when it starts again
            os.truncate(os.path.join(path, file_name(base, ".log")), size)
            base, size = end, 0
        batch, table = self.stage.records(random, "broker")
        data = bytes(encode(timed(table, int(BEGIN_MS + world.now * 1000)), end).data)
        torn = data[: random.randrange(len(data))] if random.random() < 0.3 else b""
        name = os.path.join(path, file_name(base, ".log"))
        with open(name, "r+b" if size else "wb") as file:
            file.truncate(size)
            file.seek(size)
            file.write(data + torn)
        os.utime(name, (world.now, world.now))
        self.batches.append((partition, end, end + table.num_rows, batch))
        self._ends[partition] = base, size + len(data), end + table.num_rows


@dataclass(frozen=True)
class Beside:
    """Lets an actor act on the adopted topic, once it is there."""

    actor: Actor

    def __call__(self, stage: Stage, process: Process, memory: Memory) -> None:
        """Act as the actor."""
        adopted = stage.kafka.stage
        while stage.goes_on():
            if adopted.oracle.head >= 0:
                self.actor(adopted, process, memory)
            stage.rest(process.random)


def grows(stage: Stage, process: Process, memory: Memory) -> None:
    """Write to the broker's log directory, unless somebody adopts it."""
    while stage.goes_on():
        if not stage.kafka.is_stopped:
            for _ in range(process.random.randrange(1, 4)):
                stage.kafka.write(process.random)
        stage.rest(process.random)


def adopts(stage: Stage, process: Process, memory: Memory) -> None:
    """Adopt the broker's log directory again and again."""
    while stage.goes_on():
        stage.rest(process.random)
        with suppress(PASSING):
            adopt(stage, process)


def adopt(stage: Stage, process: Process) -> None:
    """Adopt all that the broker has; raises as `distlog.adopt`."""
    broker = stage.kafka
    oracle, known = broker.stage.oracle, list(broker.batches)
    if not known:
        return
    with broker.stopped_for(process):
        try:
            topic = distlog.adopt(broker.partitions, broker.stage.url, config=broker.stage.config).topic
        except TopicExistsError as error:
            oracle.says(f"what a broker has written since is not adopted: {error}")
            raise
    for partition, first, end, batch in known:
        batch.acknowledge(topic.snapshot.topic_id, {partition: (first, end)})


def exports(stage: Stage, process: Process, memory: Memory) -> None:
    """Export the topic into the same log directory again and again, and adopt it from there now and then."""
    while stage.goes_on():
        with suppress(*PASSING, SnapshotTooOldError, OffsetOutOfRangeError):
            export(stage, memory, is_adopted=process.random.random() < 0.3)
        stage.rest(process.random)


def export(stage: Stage, memory: Memory, *, is_adopted: bool) -> None:
    """Export the topic, and perhaps compare what another topic has that is made of it."""
    topic = stage.open()
    folder = os.path.join(stage.kafka.folder, f"{memory.name} of {topic.snapshot.topic_id}")
    try:
        topic.export(folder)
    except StorageError as error:
        if "a broker has written" in str(error) or "that no export wrote" in str(error):
            stage.oracle.says(f"an export takes its own files for a broker's: {error}")
        raise
    if not is_adopted:
        return
    memory.number += 1
    folders = [os.path.join(folder, f"clicks-{number}") for number in range(topic.partitions)]
    copy = distlog.adopt(folders, f"{stage.url}-of-{memory.name}-{memory.number}").topic
    expected, found = rows_of(topic), rows_of(copy)
    if found != expected:
        other = sorted({*found.items()} ^ {*expected.items()})[:3]
        stage.oracle.says(f"version {topic.version} was exported and adopted with other records: {other}")
