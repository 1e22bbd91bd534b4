"""A scenario: two or three processes that do a few things each, and what must hold whatever the schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal
from unittest import mock

import distlog
from distlog import CommitConflictError, CommitStateUnknownError, ProducerFencedError, TransactionTooOldError
from distlog.core.errors import LeaderFencedError
from distlog.core.log import partition_log
from simulation import gateways
from simulation.actors import PASSING, Stage, create
from simulation.disk_actors import DiskStage
from simulation.disk_oracle import DiskOracle
from simulation.history import frequent_checkpoints
from simulation.local_disk import DiskFaults, LocalDisk
from simulation.object_store import ObjectStore, connected
from simulation.oracle import Batch, BrokenPromiseError, Oracle
from simulation.world import Process, World

if TYPE_CHECKING:
    from simulation.explorer import Schedule

#: How long each request takes, so that no order depends on chance.
REQUEST_S = 0.05
#: When an actor begins after the one before it, and after the death of its process.
STAGGER_S, RESTART_S = 0.013, 1.0

#: A record: its partition, offset, key and value.
Row = tuple[int, int, bytes | None, bytes | None]


class Scenario:
    """What its processes do in one world; a subclass says that, and what must hold in the end."""

    name: ClassVar[str]
    place: ClassVar[Literal["store", "disk"]] = "store"
    config: ClassVar[Mapping[str, object]] = {}
    partitions: ClassVar[int] = 1
    #: Whether compaction may remove a record of which a later one has the key.
    is_compacted: ClassVar[bool] = False
    #: The actors that another process takes the place of when theirs dies.
    restarted: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, world: World) -> None:
        self.world = world
        self.stage: Stage
        self.oracle: Oracle
        self._acting: dict[int, str] = {}

    def prepare(self) -> None:
        """Do what comes before the actors act; the topic is created."""

    def settings(self) -> dict[str, object]:
        """The topic's settings."""
        return {"retention.ms": -1, **self.config}

    def actors(self) -> Mapping[str, Callable[[], None]]:
        """What each actor does, by its name."""
        raise NotImplementedError

    def check(self) -> None:
        """Say what is broken, when all actors have ended."""
        self.check_records(distlog.open(self.stage.url))

    # --- a run

    def run(self, schedule: Schedule) -> None:
        """Let it happen; raises BrokenPromiseError if a promise was broken."""
        raise NotImplementedError

    def play(self, schedule: Schedule) -> None:
        """Prepare, let the actors act by the schedule, and check."""
        world = self.world
        self.do("creator", partial(create, self.stage, self.settings()))
        self.do("setup", self.prepare)
        world.schedule = schedule
        for number, name in enumerate(self.actors()):
            world.at(world.now + STAGGER_S * number, partial(self.begin, name))
        world.run()
        world.schedule = None
        self._raise_errors()
        world.check_over()
        self.end_faults()
        self.do("auditor", self.check)

    def end_faults(self) -> None:
        """Let nothing go wrong from now on."""

    def begin(self, name: str) -> None:
        """Begin an actor, in a process of its own."""
        process = self.world.process(name)
        self._acting[process.pid] = name
        process.start(self.actors()[name])

    def do(self, name: str, work: Callable[[], None]) -> None:
        """Do something in a process of its own, to its end."""
        self.world.process(name).start(work)
        self.world.run()
        self._raise_errors()

    def _raise_errors(self) -> None:
        for process, error in self.world.errors:
            raise BrokenPromiseError(f"{process.name} ended with {type(error).__name__}: {error}") from error
        self.oracle.check()

    def die(self, process: Process) -> None:
        """End a process; another one begins anew what it did, if the scenario says so."""
        process.die()
        if (name := self._acting.get(process.pid)) in self.restarted:
            self.world.at(self.world.now + RESTART_S, partial(self.begin, str(name)))

    # --- what actors do

    def append(self, *keys: bytes | None, sender: str = "", topic: distlog.Topic | None = None) -> Batch | None:
        """Append a record for each key; returns the batch, unless it was refused or its outcome is unknown."""
        batch, table = self.stage.records_of(keys, sender)
        try:
            topic = topic or distlog.open(self.stage.url)
            batch.tried.add(topic.snapshot.topic_id)
            with self.no_conflict(sender):
                batch.acknowledge(topic.snapshot.topic_id, topic.append(table, partition=0).offsets)
        except CommitStateUnknownError:
            return None
        except PASSING:
            batch.refused = True
            return None
        return batch

    @contextmanager
    def no_conflict(self, name: str) -> Iterator[None]:
        """Whoever loses a race tries again: a conflict is told only of old files, a dropped topic, or a deadline."""
        try:
            yield
        except (LeaderFencedError, ProducerFencedError, TransactionTooOldError):
            raise
        except CommitConflictError as error:
            texts = ("until the deadline", "was dropped")
            if not any(text in str(error) for text in texts):
                self.says(f"{name} is refused: {error}")
            raise

    def until_done(self, work: Callable[[], object], *passing: type[Exception]) -> None:
        """Do something again and again, until no error comes that may come."""
        while True:
            with suppress(*PASSING, *passing):
                work()
                return
            self.world.pause(2.0)

    # --- what must hold

    def says(self, text: str) -> None:
        """Note a broken promise."""
        self.oracle.says(text)

    def rows(self, topic: distlog.Topic, **options: object) -> list[Row]:
        """All records of the topic, in the order of their partitions and offsets."""
        names = ["partition", "offset", "key", "value"]
        table = topic.scan(columns=names, **options).to_table()  # type: ignore[arg-type]
        return sorted(zip(*(table[name].to_pylist() for name in names), strict=True))  # type: ignore[arg-type]

    def check_records(self, topic: distlog.Topic, rows: Sequence[Row] | None = None) -> None:
        """Each acknowledged record is at its offset, with its key; no other record is there, unless it may be."""
        rows, topic_id = self.rows(topic) if rows is None else rows, topic.snapshot.topic_id
        there = {(number, offset): (key, value) for number, offset, key, value in rows}
        if len(there) < len(rows):
            self.says(f"several records have one offset: {rows}")
        for number, start in topic.start_offsets().items():
            offsets = [offset for partition, offset, _, _ in rows if partition == number]
            if offsets != list(range(start, topic.end_offsets()[number])) and not self.is_compacted:
                end = topic.end_offsets()[number]
                self.says(f"partition {number} is from {start} to {end}, and has the offsets {offsets}")
        newest = {(number, key): offset for number, offset, key, _ in rows}
        for batch in self.oracle.batches:
            self._check_batch(batch, there, newest, topic_id)
        if there:
            self.says(f"nobody appended {there}")

    def _check_batch(
        self,
        batch: Batch,
        there: dict[tuple[int, int], tuple[bytes | None, bytes | None]],
        newest: Mapping[tuple[int, bytes | None], int],
        topic_id: str,
    ) -> None:
        """Take a batch out of what is there; says what is wrong with it."""
        sent = list(zip(batch.keys, batch.values, strict=True))
        places = [place for place, record in there.items() if record in sent]
        found = [there.pop(place) for place in places]
        is_acknowledged = batch.acknowledged and batch.topic_id in ("", topic_id)
        if places and topic_id not in {batch.topic_id or topic_id, *batch.tried}:
            self.says(f"{sent} is in a topic that it was not sent to")
        if not places and not is_acknowledged:
            return
        if batch.refused:
            self.says(f"{sent} was refused, and is there at {places}")
        spans = (batch.offsets or {}) if is_acknowledged else {}
        told = [(number, at) for number, (start, end) in spans.items() for at in range(start, end)]
        expected = dict(zip(told, sent, strict=True)) if told else dict(zip(places, sent, strict=False))
        if self.is_compacted:
            # a later record of its key is there
            gone = [place for place, (key, _) in expected.items() if newest.get((place[0], key), -1) > place[1]]
            expected = {place: record for place, record in expected.items() if place not in gone or place in places}
        if dict(zip(places, found, strict=True)) != expected or (not self.is_compacted and len(found) != len(sent)):
            self.says(f"{sent} was appended, and told to be at {told}; {found} is there at {places}")
        elif not self.is_compacted and [offset - places[0][1] for _, offset in places] != [*range(len(places))]:
            self.says(f"the records of {sent} do not follow each other: {places}")

    def transact(self, producer: distlog.Producer, topic_id: str) -> None:
        """Append two records in a transaction, and note whether it was committed or refused."""
        batch, table = self.stage.records_of([b"t", None], "producer")
        batch.refused = True
        producer.begin()
        for key, value in zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True):
            producer.append(value, key=key, partition=0)
        batch.refused = False
        try:
            producer.commit()
        except CommitStateUnknownError:
            raise
        except (*PASSING, ProducerFencedError):
            batch.refused = True
            raise
        batch.acknowledge(topic_id)


class StoreScenario(Scenario):
    """A scenario on an object store."""

    #: `file.delete.delay.ms` and `commit.retention.ms`, in s.
    delay_s: ClassVar[float] = 60.0
    kept_s: ClassVar[float] = 7 * 86_400.0

    def run(self, schedule: Schedule) -> None:
        """Let it happen; raises BrokenPromiseError if a promise was broken."""
        world = self.world
        with world:
            self.store = store = ObjectStore(world, latency=lambda random, writes: REQUEST_S)
            url = "s3://bucket/clicks"
            self.oracle = Oracle(world, store, url, self.delay_s)
            self.stage = Stage(self.oracle, url, float("inf"), 1.0, 0, self.partitions, self.settings())
            store.replace = self.die
            # the network of gateways' clients has no faults of its own
            with connected(store), frequent_checkpoints(), mock.patch.object(gateways, "FATE", -1.0):
                self.play(schedule)
            self.oracle.check()

    def settings(self) -> dict[str, object]:
        """The topic's settings."""
        times = {"file.delete.delay.ms": int(self.delay_s * 1000), "commit.retention.ms": int(self.kept_s * 1000)}
        return {**super().settings(), **times}

    def end_faults(self) -> None:
        """Let nothing go wrong from now on."""
        self.store.replace = None

    def check_versions(self, topic: distlog.Topic) -> None:
        """The topic is as its commits say, at the newest and at the oldest version."""
        self.oracle.observes(topic, self.oracle.head)
        self.oracle.check_oldest(topic)


class DiskScenario(Scenario):
    """A scenario on a local disk, where what was not synced is lost when the power fails."""

    place = "disk"
    #: The most bytes that a flush syncs at once.
    span_bytes: ClassVar[int] = 300

    def run(self, schedule: Schedule) -> None:
        """Let it happen; raises BrokenPromiseError if a promise was broken."""
        world, self.disk = self.world, LocalDisk(self.world)
        disk = self.disk
        with disk, world, ExitStack() as patches:
            patches.enter_context(frequent_checkpoints())
            patches.enter_context(mock.patch.object(partition_log, "_SPAN_BYTES", self.span_bytes))
            disk.faults, disk.replace, disk.after_loss = DiskFaults(writeback=0.0), self.die, self._boot
            url = f"{disk.root}/clicks"
            self.oracle = DiskOracle(world, disk, url, 60.0)  # type: ignore[arg-type]
            self.stage = DiskStage(self.oracle, url, float("inf"), 1.0, 0, self.partitions, self.settings())
            self.play(schedule)

    def _boot(self) -> None:
        """Start the machine again, and all actors with it."""
        acting, self._acting = {*self._acting.values()}, {}
        for name in self.actors():
            if name in acting & self.restarted:
                self.world.at(self.world.now + RESTART_S, partial(self.begin, name))

    def end_faults(self) -> None:
        """Let nothing go wrong from now on."""
        self.disk.after_loss = lambda: None
        self.disk.replace = Process.die
