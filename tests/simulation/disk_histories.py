"""Histories on a local disk: who acts on a topic there, what goes wrong, and what must be there afterwards."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from random import Random
from typing import Any
from unittest import mock

import pyarrow as pa

import distlog
from distlog import CorruptionError, OffsetOutOfRangeError, SnapshotTooOldError
from distlog.core.log import flush
from distlog.core.log.partition_lock import PageStatus, PartitionLock
from simulation import actors
from simulation.actors import PASSING, Actor, Memory, Stage
from simulation.history import Drawn, frequent_checkpoints
from simulation.local_disk import DiskFaults, LocalDisk
from simulation.oracle import Batch, Oracle, rows_of
from simulation.readers import wrong_answers
from simulation.world import Process, World

#: How often the power fails at most in one history.
_MOST_LOSSES = 3
#: No actor begins anything after so many calls.
_MOST_CALLS = 4000


# ---
# What was promised.


@dataclass(eq=False)
class Record(Batch):
    """One record that is appended in place: `place` is what was acknowledged, `durable` says for how long.

    `losses` counts the losses of power and of pages before it was made, `known_losses` those before it was
    acknowledged.
    """

    losses: int = 0
    place: tuple[int, int] | None = None
    is_durable: bool = False
    known_losses: int = 0
    is_lost: bool = False


@dataclass
class DiskOracle(Oracle):
    """What was promised, for one topic on a local disk; `store` is the disk."""

    flush_messages: int = 1
    #: By partition and offset: acknowledged records, and values that outlived a power loss.
    records: dict[tuple[int, int], Record] = field(default_factory=dict)
    solid: dict[tuple[int, int], bytes] = field(default_factory=dict)
    #: What readers saw, with the count of losses before.
    seen: dict[tuple[int, int], tuple[bytes, int]] = field(default_factory=dict)
    #: What lies behind the ends that pages told when a sync had failed, with the count of power losses then.
    cut: dict[tuple[int, int], tuple[bytes, int]] = field(default_factory=dict)
    #: The losses of power up to the last audit.
    audited: int = 0

    def __post_init__(self) -> None:
        """A disk tells nothing of changes."""

    @property
    def disk(self) -> LocalDisk:
        """The disk."""
        return self.store  # type: ignore[return-value]

    @property
    def losses(self) -> int:
        """How often something that was not synced may have been lost."""
        return self.disk.losses

    def new_record(self, random: Random, number: int, key: bytes | None, sender: str) -> Record:
        """A record that somebody is about to append in place."""
        padding = b"." * random.choice((0, 0, 10, 300, 1500))
        record = Record([b"%d" % number + padding], [key], atomic=False, sender=sender, losses=self.losses)
        self.batches.append(record)
        return record

    def acknowledges(self, record: Record, partition: int, offset: int) -> None:
        """A record was acknowledged with its offset."""
        before = self.records.get((partition, offset))
        if before is not None and not self._may_be_lost(before):
            self.says(f"offset {offset} of partition {partition} was given to {_named(before)} and {_named(record)}")
        record.acknowledged, record.place, record.known_losses = True, (partition, offset), self.losses
        record.is_durable = self.flush_messages == 1
        self.records[partition, offset] = record

    def _may_be_lost(self, record: Record) -> bool:
        return not record.is_durable and self.losses > record.losses

    def observes(self, topic: distlog.Topic, head: int) -> None:
        """A disk tells nothing of commits."""

    def read(self, topic_id: str, rows: pa.RecordBatch | pa.Table) -> None:
        """A reader got these records."""
        columns = (rows[name].to_pylist() for name in ("partition", "offset", "value"))
        for row in zip(*columns, strict=True):
            self.saw(topic_id, *row)

    def check_committed(self, topic_id: str, group: str, positions: Mapping[int, int]) -> None:
        """What the files of a group say is not looked at."""

    def is_live(self, topic_id: str) -> bool:
        """Nobody drops the topic."""
        return True

    def saw(self, topic_id: str, partition: int, offset: int, value: bytes) -> None:
        """A reader got a record: nobody gets another one at its offset, unless it was lost."""
        if self.disk.refusals:
            return
        before, losses = self.seen.setdefault((partition, offset), (value, self.losses))
        if before != value and losses == self.losses:
            self.says(f"offset {offset} of partition {partition} had {before[:8]!r} before, and has {value[:8]!r}")
        self.seen[partition, offset] = value, self.losses

    def hears_of_cut(self, partition: int, end: int) -> None:
        """A page says that a sync failed, and where the log ends therefore: readers see no more of the rest."""
        for (number, offset), record in self.records.items():
            if number == partition and offset >= end:
                self.cut[number, offset] = record.values[0], self.disk.power_losses

    def known_cut(self) -> Mapping[tuple[int, int], bytes]:
        """What no reader sees that begins now; after a power loss the page is gone, and the device may have it."""
        now = self.disk.power_losses
        return {place: value for place, (value, losses) in self.cut.items() if losses == now}

    def saw_cut(self, cut: Mapping[tuple[int, int], bytes], rows: Mapping[tuple[int, int], bytes]) -> None:
        """A reader for whom this was cut when it began got these rows."""
        for place, value in cut.items():
            if rows.get(place) == value:
                self.says(f"{value[:8]!r} at {place} was not synced, and is read after that was told")

    # --- what is there

    def audit(self, topic: distlog.Topic, *, after_loss: bool = False) -> None:
        """Compare the topic's records with what was promised; `after_loss` all that is there is on the device."""
        rows, keys = _rows(topic)
        starts, last = topic.start_offsets(), dict[int, int]()
        places, newest = dict[bytes, list[tuple[int, int]]](), dict[tuple[int, bytes | None], int]()
        for (partition, offset), value in rows.items():
            expected = last.get(partition, starts[partition] - 1) + 1
            if offset != expected and not self.is_compacted and self.has_no_markers:
                self.says(f"offsets {expected} to {offset} of partition {partition} are missing")
            last[partition] = offset
            places.setdefault(value, []).append((partition, offset))
            newest[partition, keys[partition, offset]] = offset
        for place, value in self.solid.items():
            if rows.get(place) != value and not self._is_gone(place, keys.get(place), newest, starts, None):
                self.says(
                    f"{value[:8]!r} was on the device at offset {place[1]} of partition {place[0]}, and is not now"
                )
        lost = defaultdict[int, list[Record]](list)
        for batch in self.batches:
            there = [places.get(value, []) for value in batch.values]
            self._audit_batch(batch, there)
            if isinstance(batch, Record):
                self._audit_record(batch, there[0], newest, starts, lost)
            elif batch.acknowledged:
                for value, key, each in zip(batch.values, batch.keys, there, strict=True):
                    if not each and not self._may_lack(batch, key, newest, starts):
                        self.says(f"record {value!r} was acknowledged, and is not there")
        self._audit_order(places, topic.snapshot.topic_id)
        self._audit_lost(lost, rows)
        if after_loss:
            self.solid.update(rows)
            for record in self.records.values():
                record.is_durable = record.is_durable or not record.is_lost
        self.audited = self.disk.power_losses

    #: Whether offsets have no holes; end markers of transactions would leave some.
    has_no_markers = True

    def _audit_batch(self, batch: Batch, there: Sequence[Sequence[tuple[int, int]]]) -> None:
        for value, each in zip(batch.values, there, strict=True):
            if len(each) > 1:
                self.says(f"record {value[:8]!r} is there {len(each)} times, at {list(each)}")
            if each and batch.refused:
                self.says(f"record {value[:8]!r} is there, although its append was refused")
        if batch.offsets is not None:
            self._audit_offsets(batch, there)
        if batch.atomic and any(there) and not all(there) and not (self.is_compacted or self.has_retention):
            self.says(f"only a part of the batch of {batch.values[0]!r} is there")

    def _audit_offsets(self, batch: Batch, there: Iterable[Sequence[tuple[int, int]]]) -> None:
        spans = batch.offsets or {}
        for partition, offset in chain.from_iterable(there):
            first, end = spans.get(partition, (0, 0))
            if not first <= offset < end:
                self.says(f"a record is at offset {offset} of partition {partition}, not where it was said to be")

    def _audit_record(
        self,
        record: Record,
        there: Sequence[tuple[int, int]],
        newest: Mapping[tuple[int, bytes | None], int],
        starts: Mapping[int, int],
        lost: dict[int, list[Record]],
    ) -> None:
        place = record.place
        if place is None:
            return
        if there and record.is_lost:
            self.says(f"{_named(record)} was lost, and is there again")
        if there and place not in there:
            self.says(f"{_named(record)} is at {there[0]}, not where it was said to be")
        if there or record.is_lost or self._is_gone(place, record.keys[0], newest, starts, record):
            return
        if not self._may_be_lost(record):
            self.says(f"{_named(record)} was acknowledged, and is not there")
        record.is_lost = True
        lost[place[0]].append(record)

    def _audit_lost(self, lost: Mapping[int, Sequence[Record]], rows: Mapping[tuple[int, int], bytes]) -> None:
        """What is lost was the end of a log, and no more than a policy allows."""
        for partition, records in lost.items():
            for record in self.records.values():
                if (
                    record.place is None
                    or record.place[0] != partition
                    or rows.get(record.place) not in record.values
                ):
                    continue
                for gone in records:
                    if gone.place < record.place and record.known_losses <= gone.losses:  # type: ignore[operator]
                        self.says(f"{_named(record)} is there, and {_named(gone)}, before it, is lost")
            most = (self.flush_messages - 1) * (self.disk.power_losses - self.audited)
            if not self.disk.refusals and len(records) > most:
                self.says(f"{len(records)} records of partition {partition} are lost, and {most} may be")

    def _may_lack(
        self,
        batch: Batch,
        key: bytes | None,
        newest: Mapping[tuple[int, bytes | None], int],
        starts: Mapping[int, int],
    ) -> bool:
        spans = batch.offsets or {}
        if self.is_compacted and any((partition, key) in newest for partition in starts):
            return True
        if not spans:
            return self.has_retention and any(starts.values())
        return self.has_retention and any(first < starts[partition] for partition, (first, _) in spans.items())

    def _is_gone(
        self,
        place: tuple[int, int],
        key: bytes | None,
        newest: Mapping[tuple[int, bytes | None], int],
        starts: Mapping[int, int],
        record: Record | None,
    ) -> bool:
        """Whether retention or compaction may have taken the record at a place."""
        partition, offset = place
        if self.has_retention and offset < starts[partition]:
            return True
        return self.is_compacted and (record is None or newest.get((partition, key), -1) > offset)


def _named(record: Record) -> str:
    return f"{record.values[0][:8]!r} at {record.place}"


def _rows(topic: distlog.Topic) -> tuple[dict[tuple[int, int], bytes], dict[tuple[int, int], bytes | None]]:
    """The values and the keys of a topic, by partition and offset."""
    names = ("partition", "offset", "value", "key")
    table = topic.scan(columns=list(names)).to_table()
    partitions, offsets, values, keys = (table[name].to_pylist() for name in names)
    places = list(zip(partitions, offsets, strict=True))
    return dict(zip(places, values, strict=True)), dict(zip(places, keys, strict=True))


# ---
# The actors that there are on local disks alone.


class DiskStage(Stage):
    """Where they act, for so many calls at most."""

    def offsets_may_go(self) -> bool:
        """Whether the log may lose what followers have read: what was not synced yet, if a sync fails."""
        return True

    def goes_on(self) -> bool:
        """Whether there is time left."""
        return super().goes_on() and self.oracle.world.calls < _MOST_CALLS


def _oracle(stage: Stage) -> DiskOracle:
    assert isinstance(stage.oracle, DiskOracle)
    return stage.oracle


def writes_in_place(stage: Stage, process: Process, memory: Memory) -> None:
    """Append in place to some partitions, and flush now and then."""
    random, oracle = process.random, _oracle(stage)
    while stage.goes_on():
        topic = stage.open()
        waiting, sent = defaultdict[int, deque[Record]](deque), list[Record]()

        def hear(delivery: Any, waiting: Any = waiting) -> None:
            for at in range(delivery.record_count):
                record = waiting[delivery.partition].popleft()
                if delivery.error is None:
                    oracle.acknowledges(record, delivery.partition, delivery.first_offset + at)

        try:
            with topic.writer(linger_ms=random.choice((0, 5, 100)), on_delivery=hear) as writer:
                for _ in range(random.randrange(1, 12)):
                    partition = random.randrange(stage.partitions)
                    for _ in range(random.choice((1, 1, 3, 20))):
                        key = b"k%d" % random.randrange(stage.keys) if stage.keys else None
                        record = oracle.new_record(random, next(stage.names), key, memory.name)
                        waiting[partition].append(record)
                        sent.append(record)
                        writer.append(record.values[0], key=key, partition=partition)
                    if random.random() < 0.3:
                        writer.flush()
                        _are_durable(oracle, sent)
                    oracle.world.pause(random.expovariate(5 / stage.pause_s))
            _are_durable(oracle, sent)
        except PASSING:
            pass
        stage.rest(random)


def _are_durable(oracle: DiskOracle, sent: Sequence[Record]) -> None:
    """A flush said that these are on the device."""
    for record in sent:
        if record.place is None:
            oracle.says(f"a flush returned before {record.values[0][:8]!r} was delivered")
        elif (other := oracle.records[record.place]) is not record:
            if other.is_durable:
                oracle.says(f"a flush promised {_named(record)}, whose offset is another's")
            # a record that a failed sync lost may be acknowledged after the next one of its offset
            oracle.records[record.place] = record
        record.is_durable = True


def reads(stage: Stage, process: Process, memory: Memory) -> None:
    """Look at the whole topic again and again."""
    while stage.goes_on():
        topic = stage.open()
        with suppress(*PASSING, SnapshotTooOldError, OffsetOutOfRangeError):
            for _ in range(5):
                cut = _oracle(stage).known_cut()
                rows, _ = _rows(topic.refresh())
                _oracle(stage).saw_cut(cut, rows)
                for (partition, offset), value in rows.items():
                    _oracle(stage).saw(topic.snapshot.topic_id, partition, offset, value)
                stage.rest(process.random)
        stage.rest(process.random)


def looks_up(stage: Stage, process: Process, memory: Memory) -> None:
    """Read a few records by offsets and times: they are those that a scan of the same snapshot has."""
    oracle = _oracle(stage)
    while stage.goes_on():
        topic = stage.open()
        with suppress(*PASSING, SnapshotTooOldError, OffsetOutOfRangeError):
            losses, rows = oracle.losses, rows_of(topic)
            wrong = list(wrong_answers(topic, rows, process.random))
            # what was not synced may be lost between two looks
            if wrong and oracle.losses == losses and not oracle.disk.refusals:
                oracle.says(f"version {topic.version}: {wrong[0]}")
        stage.rest(process.random)


def looks_after(stage: Stage, process: Process, memory: Memory) -> None:
    """Verify the topic, and repair it: there is nothing to find."""
    while stage.goes_on():
        topic = stage.open()
        with suppress(*PASSING, SnapshotTooOldError):
            if process.random.random() < 0.5:
                _check_sound(stage, topic)
            elif (repaired := topic.repair(dry_run=True)).partitions and not _oracle(stage).disk.refusals:
                stage.oracle.says(f"repair would cut what is sound: {repaired.partitions[0]}")
        stage.rest(process.random)


def _check_sound(stage: Stage, topic: distlog.Topic) -> None:
    report = topic.verify()
    if not report.ok and not _oracle(stage).disk.refusals:
        stage.oracle.says(f"verify finds {report.anomalies[0]}")


@contextmanager
def _lenient(oracle: DiskOracle) -> Iterator[None]:
    """Damage may be met if the device did not take pages."""
    try:
        yield
    except CorruptionError:
        if not oracle.disk.refusals:
            raise


@contextmanager
def _heard_by(oracle: DiskOracle) -> Iterator[None]:
    """The oracle hears when a page tells that a sync has failed."""
    real = PartitionLock.publish

    def publish(self: Any, status: PageStatus, state: Any) -> None:
        real(self, status, state)
        if status is PageStatus.FAILED:
            oracle.hears_of_cut(int(self.folder.rpartition("-")[2]), state.flushed_offset)

    with mock.patch.object(PartitionLock, "publish", publish):
        yield


# ---
# A history.


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskPlan(Drawn):
    """What a seed means on a local disk."""

    faults: DiskFaults
    jobs: Sequence[str]
    span_bytes: int


def plan(seed: int) -> DiskPlan:
    """Draw a history."""
    random = Random(f"disk plan/{seed}")
    is_compacted = random.random() < 0.2
    has_retention = not is_compacted and random.random() < 0.3
    config: dict[str, object] = {
        "retention.ms": -1,
        "file.delete.delay.ms": random.choice((1000, 20_000)),
        "internal.segment.bytes": random.choice((2000, 4000, 20_000, 1 << 20)),
        "segment.index.bytes": random.choice((200, 4000)),
        "index.interval.bytes": random.choice((0, 200, 4096)),
        "preallocate": random.random() < 0.2,
        "flush.messages": random.choice((1, 1, 3, 10, (1 << 63) - 1)),
    }
    if random.random() < 0.3:
        config["flush.ms"] = random.choice((10, 500, 5000))
    if is_compacted:
        config |= {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.01}
    if has_retention:
        config |= {"retention.bytes": 10_000}
    if random.random() < 0.2:
        config |= {"message.timestamp.type": "LogAppendTime"}
    cast: list[tuple[str, Actor]] = [("writer", writes_in_place)] * random.randrange(1, 4)
    others: list[tuple[str, Actor]] = [
        ("appender", actors.appends),
        ("plain", actors.appends_plainly),
        ("producer", actors.produces),
        ("reader", reads),
        ("follower", actors.follows),
        ("verifier", looks_after),
    ]
    cast += [random.choice(others) for _ in range(random.randrange(0, 4))]
    cast += [("searcher", looks_up)] * (Random(f"looking/{seed}").random() < 0.25)
    jobs = ["compact", "vacuum", "config", "rebuild"]
    jobs += ["delete-records", "retention"] if has_retention else []
    cast += [("maintainer", actors.maintains(jobs))] * random.randrange(0, 2)
    rate = random.choice((0.001, 0.003, 0.01))
    return DiskPlan(
        seed=seed,
        cast=cast,
        partitions=random.choice((1, 1, 2, 3)),
        keys=random.choice((2, 8)) if is_compacted else random.choice((0, 8)),
        config=config,
        faults=DiskFaults(
            death=random.choice((0.0, rate, 2 * rate)),
            still=random.choice((0.0, rate / 2)),
            still_s=random.choice((1.0, 90.0, 3600.0)),
            power=random.choice((0.0, rate, rate, 2 * rate)),
            full=random.choice((0.0, 0.0, rate)),
            failing=random.choice((0.0, 0.0, rate, 3 * rate)),
            unreadable=random.choice((0.0, 0.0, 0.0, 1e-4)),
            writeback=random.choice((0.0, 0.2, 0.5)),
        ),
        length_s=random.choice((1.0, 3.0, 8.0)),
        pause_s=random.choice((0.3, 1.0, 3.0)),
        jobs=jobs,
        span_bytes=random.choice((1, 300, 5000, 1 << 24)),
    )


class DiskHistory:
    """The history of a plan; `run` raises BrokenPromiseError if a promise was broken in it."""

    def __init__(self, world: World, drawn: DiskPlan) -> None:
        self.world, self.drawn, self.disk = world, drawn, LocalDisk(world)
        self.random = Random(f"disk fate/{world.seed}")
        self.memories: dict[str, Memory] = {}
        self.played: dict[int, Actor] = {}
        self.skew_ms = 0

    def run(self) -> None:
        """Let it happen."""
        world, drawn, disk = self.world, self.drawn, self.disk
        world.most_calls = 200_000
        with disk, world, ExitStack() as patches:
            patches.enter_context(frequent_checkpoints())
            # so that these short logs have recovery points behind which there is something
            patches.enter_context(mock.patch.object(flush, "_SPAN_BYTES", drawn.span_bytes))
            delay_s = int(str(drawn.config["file.delete.delay.ms"])) / 1000
            self.oracle = oracle = DiskOracle(world, disk, f"{disk.root}/clicks", delay_s)  # type: ignore[arg-type]
            oracle.flush_messages = int(str(drawn.config["flush.messages"]))
            oracle.is_compacted = "cleanup.policy" in drawn.config
            oracle.has_retention = "retention" in drawn.jobs
            patches.enter_context(_heard_by(oracle))
            self.stage = DiskStage(oracle, oracle.url, 0.0, drawn.pause_s, drawn.keys, drawn.partitions)
            world.process("creator").start(lambda: actors.create(self.stage, drawn.config))
            world.run()
            self.stage.end_s = world.now + drawn.length_s
            disk.faults, disk.replace, disk.after_loss = drawn.faults, self._replace, self._lose_power
            for name, actor in self._actors():
                self._start(Memory(name), actor)
            world.run()
            world.check_over()
            disk.faults = DiskFaults(writeback=drawn.faults.writeback)
            disk.recover_faults()
            world.process("auditor").start(self._end)
            world.run()
            for process, error in world.errors:
                oracle.says(f"{process.name} ended with {type(error).__name__}: {error}")
            oracle.check()

    def _actors(self) -> Iterator[tuple[str, Actor]]:
        """Each actor that acts, with a name of its own."""
        for number, (name, actor) in enumerate(self.drawn.cast):
            if self.drawn.acts(number):
                yield f"{name}-{number}", actor

    def _start(self, memory: Memory, actor: Actor) -> None:
        process = self.world.process(memory.name, skew_ms=self.skew_ms)
        self.memories[memory.name] = memory
        self.played[process.pid] = actor

        def act() -> None:
            while self.stage.goes_on():
                with _lenient(self.oracle):
                    actor(self.stage, process, memory)
                self.stage.rest(process.random)

        process.start(act)

    def _replace(self, process: Process) -> None:
        """Kill the process; another one goes on, at once or later."""
        process.die()
        actor, boot = self.played.get(process.pid), self.disk.boot
        if actor is not None:
            memory = self.memories[process.name]
            later_s = self.world.now + self.random.choice((0.0, 0.0, 5.0))
            self.world.at(later_s, lambda: self._start(memory, actor) if self.disk.boot == boot else None)

    def _lose_power(self) -> None:
        """The machine starts again after a while, perhaps with another time."""
        if self.disk.power_losses >= _MOST_LOSSES:
            self.disk.faults = replace(self.disk.faults, power=0.0)
        self.skew_ms = self.random.choice((0, 0, 3_600_000, -3_600_000))
        faults, is_audited = self.disk.faults, self.random.random() < 0.6

        def start_all() -> None:
            self.disk.faults = faults
            for name, actor in self._actors():
                self._start(self.memories[name], actor)

        def audit() -> None:
            self.oracle.audit(distlog.open(self.oracle.url), after_loss=True)
            start_all()

        def boot() -> None:
            if is_audited:
                self.disk.faults = DiskFaults()
                self.world.process("auditor", skew_ms=self.skew_ms).start(audit)
            else:
                start_all()

        self.world.at(self.world.now + self.random.uniform(1, 30), boot)

    def _end(self) -> None:
        """Look at all that is there; then the log goes on."""
        topic = distlog.open(self.oracle.url)
        for _ in range(topic.partitions + 1):
            try:
                self._append_in_the_end(topic)
                break
            except PASSING:
                # the error of a sync is told once, even if that was long ago
                if not self.disk.refusals:
                    raise
        topic = topic.refresh()
        self.oracle.audit(topic)
        report = topic.verify()
        if not report.ok:
            self.oracle.says(f"in the end verify finds {report.anomalies[0]}")

    def _append_in_the_end(self, topic: distlog.Topic) -> None:
        with _lenient(self.oracle):
            # who was to cut off what the device did not take may have died before
            self.oracle.audit(topic.refresh())
        heard: list[Any] = []
        with topic.writer(on_delivery=heard.append) as writer:
            for partition in range(topic.partitions):
                writer.append(b"the end", key=b"end", partition=partition)
        ends = {delivery.partition: delivery.first_offset for delivery in heard}
        rows, _ = _rows(topic.refresh())
        if any(rows.get(place) != b"the end" for place in ends.items()) or len(ends) < topic.partitions:
            self.oracle.says("a record that was appended in the end is not there")


def run(world: World, drawn: DiskPlan) -> None:
    """Let a history on a local disk happen."""
    DiskHistory(world, drawn).run()
