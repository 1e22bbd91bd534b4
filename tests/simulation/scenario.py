"""A scenario: two or three processes with a few steps each, and the promises that hold under every schedule."""

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

#: The time of each request, so that no order depends on chance.
REQUEST_S = 0.05
#: The delays between the starts of two actors, and between a death and the restart.
STAGGER_S, RESTART_S = 0.013, 1.0

#: A record: its partition, offset, key and value.
Row = tuple[int, int, bytes | None, bytes | None]


class Scenario:
    """The actors of one world; a subclass defines them, and the checks at the end."""

    name: ClassVar[str]
    medium: ClassVar[Literal["store", "disk"]] = "store"
    config: ClassVar[Mapping[str, object]] = {}
    partitions: ClassVar[int] = 1
    #: Whether compaction may remove superseded records.
    is_compacted: ClassVar[bool] = False
    #: The actors that restart in another process when theirs dies.
    restarted: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, world: World) -> None:
        self.world = world
        self.stage: Stage
        self.oracle: Oracle
        self._acting: dict[int, str] = {}

    def prepare(self) -> None:
        """Prepare the topic, which exists."""

    def settings(self) -> dict[str, object]:
        return {"retention.ms": -1, **self.config}

    def actors(self) -> Mapping[str, Callable[[], None]]:
        raise NotImplementedError

    def check(self) -> None:
        """Report broken promises after the end of all actors."""
        self.check_records(distlog.open(self.stage.url))

    # --- a run

    def run(self, schedule: Schedule) -> None:
        """Run the scenario; raises BrokenPromiseError if a promise was broken."""
        raise NotImplementedError

    def play(self, schedule: Schedule) -> None:
        world = self.world
        self.do("creator", partial(create, self.stage, self.settings()))
        self.do("setup", self.prepare)
        world.schedule = schedule
        for number, name in enumerate(self.actors()):
            world.call_at(world.now + STAGGER_S * number, partial(self.begin, name))
        world.run()
        world.schedule = None
        self._raise_errors()
        world.check_over()
        self.end_faults()
        self.do("auditor", self.check)

    def end_faults(self) -> None:
        """Stop all faults."""

    def begin(self, name: str) -> None:
        process = self.world.process(name)
        self._acting[process.pid] = name
        process.start(self.actors()[name])

    def do(self, name: str, work: Callable[[], None]) -> None:
        self.world.process(name).start(work)
        self.world.run()
        self._raise_errors()

    def _raise_errors(self) -> None:
        for process, error in self.world.errors:
            raise BrokenPromiseError(f"{process.name} ended with {type(error).__name__}: {error}") from error
        self.oracle.check()

    def die(self, process: Process) -> None:
        """End a process; another one restarts its work, if the scenario says so."""
        process.die()
        if (name := self._acting.get(process.pid)) in self.restarted:
            self.world.call_at(self.world.now + RESTART_S, partial(self.begin, str(name)))

    # --- what actors do

    def append(self, *keys: bytes | None, sender: str = "", topic: distlog.Topic | None = None) -> Batch | None:
        """Append a record for each key; returns None if it was refused or its outcome is unknown."""
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
        """A writer that loses a race retries: only old files, a dropped topic, or a deadline are conflicts."""
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
        """Do something repeatedly, until it succeeds."""
        while True:
            with suppress(*PASSING, *passing):
                work()
                return
            self.world.pause(2.0)

    # --- checks

    def says(self, text: str) -> None:
        self.oracle.says(text)

    def rows(self, topic: distlog.Topic, **options: object) -> list[Row]:
        """Return all records of the topic, in the order of their partitions and offsets."""
        names = ["partition", "offset", "key", "value"]
        table = topic.scan(columns=names, **options).to_table()  # type: ignore[arg-type]
        return sorted(zip(*(table[name].to_pylist() for name in names), strict=True))  # type: ignore[arg-type]

    def check_records(self, topic: distlog.Topic, rows: Sequence[Row] | None = None) -> None:
        """Check that each acknowledged record is at its offset, with its key, and that no unknown record exists."""
        rows, topic_id = self.rows(topic) if rows is None else rows, topic.snapshot.topic_id
        remaining = {(number, offset): (key, value) for number, offset, key, value in rows}
        if len(remaining) < len(rows):
            self.says(f"several records have one offset: {rows}")
        for number, start in topic.start_offsets().items():
            offsets = [offset for partition, offset, _, _ in rows if partition == number]
            if offsets != list(range(start, topic.end_offsets()[number])) and not self.is_compacted:
                end = topic.end_offsets()[number]
                self.says(f"partition {number} is from {start} to {end}, and has the offsets {offsets}")
        newest = {(number, key): offset for number, offset, key, _ in rows}
        for batch in self.oracle.batches:
            self._check_batch(batch, remaining, newest, topic_id)
        if remaining:
            self.says(f"nobody appended {remaining}")

    def _check_batch(
        self,
        batch: Batch,
        remaining: dict[tuple[int, int], tuple[bytes | None, bytes | None]],
        newest: Mapping[tuple[int, bytes | None], int],
        topic_id: str,
    ) -> None:
        """Take a batch out of the remaining records, and check it."""
        sent = list(zip(batch.keys, batch.values, strict=True))
        locations = [location for location, record in remaining.items() if record in sent]
        records = [remaining.pop(location) for location in locations]
        is_acknowledged = batch.acknowledged and batch.topic_id in ("", topic_id)
        if locations and topic_id not in {batch.topic_id or topic_id, *batch.tried}:
            self.says(f"{sent} is in a topic that it was not sent to")
        if not locations and not is_acknowledged:
            return
        if batch.refused:
            self.says(f"{sent} was refused, and is there at {locations}")
        spans = (batch.offsets or {}) if is_acknowledged else {}
        reported = [(number, offset) for number, (start, end) in spans.items() for offset in range(start, end)]
        expected = dict(zip(reported, sent, strict=True)) if reported else dict(zip(locations, sent, strict=False))
        if self.is_compacted:
            superseded = [
                location
                for location, (key, _) in expected.items()
                if newest.get((location[0], key), -1) > location[1]
            ]
            expected = {
                location: record
                for location, record in expected.items()
                if location not in superseded or location in locations
            }
        if dict(zip(locations, records, strict=True)) != expected or (
            not self.is_compacted and len(records) != len(sent)
        ):
            self.says(f"{sent} was appended, reported at {reported}, and {records} is there at {locations}")
        elif not self.is_compacted and [offset - locations[0][1] for _, offset in locations] != [
            *range(len(locations))
        ]:
            self.says(f"the records of {sent} do not follow each other: {locations}")

    def transact(self, producer: distlog.Producer, topic_id: str) -> None:
        """Append two records in a transaction, and note its outcome."""
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
    #: `file.delete.delay.ms` and `commit.retention.ms`, in s.
    delay_s: ClassVar[float] = 60.0
    kept_s: ClassVar[float] = 7 * 86_400.0

    def run(self, schedule: Schedule) -> None:
        world = self.world
        with world:
            self.store = store = ObjectStore(world, latency=lambda random, writes: REQUEST_S)
            url = "s3://bucket/clicks"
            self.oracle = Oracle(world, store, url, self.delay_s)
            self.stage = Stage(self.oracle, url, float("inf"), 1.0, 0, self.partitions, self.settings())
            store.replace = self.die
            # the network of gateways' clients has no faults
            with connected(store), frequent_checkpoints(), mock.patch.object(gateways, "FATE", -1.0):
                self.play(schedule)
            self.oracle.check()

    def settings(self) -> dict[str, object]:
        times = {"file.delete.delay.ms": int(self.delay_s * 1000), "commit.retention.ms": int(self.kept_s * 1000)}
        return {**super().settings(), **times}

    def end_faults(self) -> None:
        self.store.replace = None

    def check_versions(self, topic: distlog.Topic) -> None:
        """Check the newest and the oldest version against their commits."""
        self.oracle.observes(topic, self.oracle.head)
        self.oracle.check_oldest(topic)


class DiskScenario(Scenario):
    """A scenario on a local disk, where a power failure loses unsynced data."""

    medium = "disk"
    #: The most bytes that a flush syncs at once.
    span_bytes: ClassVar[int] = 300

    def run(self, schedule: Schedule) -> None:
        world, self.disk = self.world, LocalDisk(self.world)
        disk = self.disk
        with disk, world, ExitStack() as patches:
            patches.enter_context(frequent_checkpoints())
            patches.enter_context(mock.patch.object(partition_log, "_RECOVERY_BYTES", self.span_bytes))
            disk.faults, disk.replace, disk.after_loss = DiskFaults(writeback=0.0), self.die, self._boot
            url = f"{disk.root}/clicks"
            self.oracle = DiskOracle(world, disk, url, 60.0)  # type: ignore[arg-type]
            self.stage = DiskStage(self.oracle, url, float("inf"), 1.0, 0, self.partitions, self.settings())
            self.play(schedule)

    def _boot(self) -> None:
        acting, self._acting = {*self._acting.values()}, {}
        for name in self.actors():
            if name in acting & self.restarted:
                self.world.call_at(self.world.now + RESTART_S, partial(self.begin, name))

    def end_faults(self) -> None:
        self.disk.after_loss = lambda: None
        self.disk.replace = Process.die
