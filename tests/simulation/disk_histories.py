"""Histories on a local disk: their actors, their faults, and the audit at the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from random import Random
from typing import Any
from unittest import mock

import distlog
from distlog import CorruptionError
from distlog.core.arrays import MAX_LONG
from distlog.core.log import partition_log
from distlog.core.segments.segment_parts import Part, part_of
from simulation import actors, disk_actors, owner, readers
from simulation.actors import PASSING, Actor, Memory
from simulation.disk_actors import DiskStage, lenient, watch_failed_syncs
from simulation.disk_oracle import THE_END, DiskOracle
from simulation.history import Drawn, frequent_checkpoints, key_index, small_limits
from simulation.local_disk import DiskFaults, LocalDisk
from simulation.oracle import Rows, rows_of
from simulation.world import Process, World

#: The most power losses in one history.
_MOST_LOSSES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskPlan(Drawn):
    faults: DiskFaults
    jobs: Sequence[str]
    span_bytes: int
    #: Whether it has more kinds of actors, settings and records.
    is_mixed: bool = False


def plan(seed: int) -> DiskPlan:
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
        "flush.messages": random.choice((1, 1, 3, 10, MAX_LONG)),
    }
    config |= key_index(seed)
    if random.random() < 0.3:
        config["flush.ms"] = random.choice((10, 500, 5000))
    if is_compacted:
        config |= {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.01}
    if has_retention:
        config |= {"retention.bytes": 10_000}
    if random.random() < 0.2:
        config |= {"message.timestamp.type": "LogAppendTime"}
    cast: list[tuple[str, Actor]] = [("writer", disk_actors.writes_directly)] * random.randrange(1, 4)
    extras: list[tuple[str, Actor]] = [
        ("appender", actors.appends),
        ("plain", actors.appends_plainly),
        ("producer", actors.produces),
        ("reader", disk_actors.reads),
        ("follower", actors.follows),
        ("verifier", disk_actors.verifies),
    ]
    cast += [random.choice(extras) for _ in range(random.randrange(0, 4))]
    cast += [("searcher", disk_actors.reads_records)] * (Random(f"looking/{seed}").random() < 0.25)
    jobs = ["compact", "vacuum", "config", "rebuild"]
    jobs += ["delete-records", "retention"] if has_retention else []
    cast += [("maintainer", actors.maintains(jobs))] * random.randrange(0, 2)
    more = Random(f"more on a disk/{seed}")
    is_mixed = 4 <= seed % 11 < 10
    if is_mixed:
        kinds: list[tuple[str, Actor]] = [
            ("window", disk_actors.sends_in_windows),
            ("window", disk_actors.sends_in_windows),
            ("settings", disk_actors.changes_settings),
            ("traveller", disk_actors.reads_old_versions),
        ]
        cast += [more.choice(kinds) for _ in range(more.randrange(1, 4))]
        if is_compacted:
            config |= {"delete.retention.ms": more.choice((100, 2000, 86_400_000))}
        if has_retention and more.random() < 0.7:
            config |= {"retention.bytes": -1, "retention.ms": more.choice((500, 3000, 60_000))}
            jobs[-2:] = ["retention by age"] * 2
    has_flusher = seed % 11 in (3, 10)
    if has_flusher:
        config |= {"flush.messages": MAX_LONG, "flush.ms": more.choice((100, 300, 1500))}
        cast += [("flusher", disk_actors.waits_for_flushes)] * more.randrange(1, 3)
        # they sync, too
        helpers: list[tuple[str, Actor]] = [
            ("keeper", actors.maintains(["manage", "managers", "seal", "partitions"])),
            ("steward", readers.manages_groups),
            ("leaver", disk_actors.leaves_transactions),
        ]
        count = 0 if more.random() < 0.5 else 2
        cast += [member for member in more.sample(helpers, count) if member[0] != "leaver" or not is_compacted]
    is_owned = Random(f"owner/{seed}").random() < 0.1
    if is_owned:
        cast = [("owner", owner.owns)] * 2
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
        length_s=random.choice((1.0, 3.0, 8.0)) + (6.0 if has_flusher or is_owned else 0.0),
        pause_s=random.choice((0.3, 1.0, 3.0)) / (5.0 if is_owned else 1.0),
        jobs=jobs,
        span_bytes=random.choice((1, 300, 5000, 1 << 24)),
        is_mixed=is_mixed,
    )


class DiskHistory:
    """A run of a plan; `run` raises BrokenPromiseError if a promise was broken."""

    def __init__(self, world: World, drawn: DiskPlan) -> None:
        self.world, self.drawn, self.disk = world, drawn, LocalDisk(world)
        self.random = Random(f"disk fate/{world.seed}")
        self.memories: dict[str, Memory] = {}
        self.played: dict[int, Actor] = {}
        self.skew_ms = 0

    def run(self) -> None:
        world, drawn, disk = self.world, self.drawn, self.disk
        world.most_calls = 200_000
        with disk, world, ExitStack() as patches:
            patches.enter_context(frequent_checkpoints())
            patches.enter_context(small_limits(drawn.seed))
            # these short logs need recovery points with records after them
            patches.enter_context(mock.patch.object(partition_log, "_RECOVERY_BYTES", drawn.span_bytes))
            delay_s = int(str(drawn.config["file.delete.delay.ms"])) / 1000
            self.oracle = oracle = DiskOracle(world, disk, f"{disk.root}/clicks", delay_s)  # type: ignore[arg-type]
            oracle.flush_messages = int(str(drawn.config["flush.messages"]))
            oracle.is_compacted = "cleanup.policy" in drawn.config
            oracle.has_retention = any(job.startswith("retention") for job in drawn.jobs)
            oracle.keeps_times = "message.timestamp.type" not in drawn.config
            oracle.shrinks_segments = "settings" in drawn.words
            oracle.has_no_markers = "leaver" not in drawn.words
            if "maintainer" not in drawn.words:
                # an actor that changes settings may let tombstones expire at once
                oracle.tombstones_s = int(str(drawn.config.get("delete.retention.ms", 86_400_000))) / 1000
            if "retention by age" in drawn.jobs:
                oracle.retention_s = int(str(drawn.config["retention.ms"])) / 1000
            patches.enter_context(watch_failed_syncs(oracle))
            self.stage = DiskStage(oracle, oracle.url, 0.0, drawn.pause_s, drawn.keys, drawn.partitions)
            self.stage.more = oracle.more = Random(f"more/{world.seed}") if drawn.is_mixed else None
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
        for number, (name, actor) in enumerate(self.drawn.cast):
            if self.drawn.acts(number):
                yield f"{name}-{number}", actor

    def _start(self, memory: Memory, actor: Actor) -> None:
        process = self.world.process(memory.name, skew_ms=self.skew_ms)
        self.memories[memory.name] = memory
        self.played[process.pid] = actor

        def act() -> None:
            while self.stage.goes_on():
                with lenient(self.oracle):
                    actor(self.stage, process, memory)
                self.stage.pause(process.random)

        process.start(act)

    def _replace(self, process: Process) -> None:
        """Kill the process; another one starts, at once or later."""
        process.die()
        actor, boot = self.played.get(process.pid), self.disk.boot
        if actor is not None:
            memory = self.memories[process.name]
            later_s = self.world.now + self.random.choice((0.0, 0.0, 5.0))
            self.world.call_at(later_s, lambda: self._start(memory, actor) if self.disk.boot == boot else None)

    def _lose_power(self) -> None:
        """Start the machine again after a while, perhaps with another clock."""
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

        self.world.call_at(self.world.now + self.random.uniform(1, 30), boot)

    def _end(self) -> None:
        """Audit the topic; then the log must take records."""
        topic = distlog.open(self.oracle.url)
        for _ in range(topic.partitions + 1):
            try:
                self._append_in_the_end(topic)
                break
            except PASSING:
                # a sync may report an old error once
                if not self.disk.refusals:
                    raise
        topic = topic.refresh()
        self.oracle.audit(topic)
        if self.oracle.unfinished_rebuilds:
            topic.rebuild_indexes()
        report = topic.verify()
        if not report.ok:
            self.oracle.says(f"in the end verify finds {report.anomalies[0]}")
        if self.drawn.is_mixed:
            self._damage(topic)

    def _damage(self, topic: distlog.Topic) -> None:
        """Flip a bit of a batch: a reader gets an error, and no other record."""
        logs = [
            part_of(topic.name, segment)
            for number in range(topic.partitions)
            for segment in topic.live_snapshot.partitions[number].segments
            # no reader needs a batch before the log's start
            if segment.log_bytes and segment.base_offset >= topic.start_offsets()[number]
        ]
        if not logs:
            return
        log, rows_before = self.random.choice(logs), rows_of(topic)
        self.disk.flip(f"{self.disk.root}/clicks/{log.name}", log.begin, self.random)
        try:
            if (rows := rows_of(distlog.open(self.oracle.url))) != rows_before:
                self.oracle.says(f"a damaged batch reads as {rows.items() - rows_before.items()}")
        except CorruptionError:
            pass
        else:
            self.oracle.says(f"a reader finds no damage in {log.name}")
        if distlog.open(self.oracle.url).verify().ok:
            self.oracle.says(f"verify finds no damage in {log.name}")
        self._repair(log, rows_before)

    def _repair(self, log: Part, rows_before: Rows) -> None:
        """Repair the damage: an active segment ends before it, and no other record is missing."""
        topic = distlog.open(self.oracle.url)
        planned, repaired = topic.repair(dry_run=True), topic.repair()
        # as texts: errors, which are the reasons, are equal only to themselves
        if [*map(str, planned.partitions)] != [*map(str, repaired.partitions)]:
            self.oracle.says(f"a repair was planned as {planned.partitions}, and did {repaired.partitions}")
        if not repaired.partitions:
            return
        topic = distlog.open(self.oracle.url)
        cut, rows = repaired.partitions[0], rows_of(topic)
        first_lost = min((location for location in rows_before if location not in rows), default=(0, 0))
        expected = {
            location: row
            for location, row in rows_before.items()
            if location[0] != cut.partition or location < first_lost
        }
        if rows != expected or not topic.verify().ok:
            self.oracle.says(f"after the repair of {log.name} by {cut} the log has {sorted(rows)}")

    def _append_in_the_end(self, topic: distlog.Topic) -> None:
        with lenient(self.oracle):
            # the process that was to cut off refused pages may have died
            self.oracle.audit(topic.refresh())
        deliveries: list[Any] = []
        with topic.writer(on_delivery=deliveries.append) as writer:
            for partition in range(topic.partitions):
                writer.append(THE_END, key=b"end", partition=partition)
            self.world.pause(5.0)
            if not deliveries:
                self.oracle.says("a writer has not sent records that waited for longer than linger.ms")
        ends = {delivery.partition: delivery.first_offset for delivery in deliveries}
        rows = rows_of(topic.refresh())
        if (
            any(location not in rows or rows[location].value != THE_END for location in ends.items())
            or len(ends) < topic.partitions
        ):
            self.oracle.says("a record that was appended in the end is not there")


def run(world: World, drawn: DiskPlan) -> None:
    DiskHistory(world, drawn).run()
