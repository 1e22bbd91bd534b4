"""A history: its actors, its faults and their times, drawn from one seed."""

from __future__ import annotations

import importlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from random import Random
from types import ModuleType
from typing import TYPE_CHECKING, Any
from unittest import mock

from distlog.core import paths
from distlog.core.arrays import MAX_LONG
from distlog.core.commits import actions, checkpoint, group_commit
from distlog.core.commits.commit_log import CommitLog
from distlog.core.maintain import merge, merge_job, vacuum
from distlog.core.maintain.vacuum import LONGEST_PUT_MS
from distlog.core.read import consumer, consumer_group, keys, last_records, lookup, scan
from distlog.core.segments import chunks, segment_parts, segment_reader, segment_state, segment_writer
from distlog.core.storage.storage import Storage, check_store
from distlog.core.times import now_ms
from distlog.core.write import append as append_commit
from distlog.core.write import engine
from simulation import actors, gateways, inspector, kafka_directories, readers, roots, schema_values
from simulation.actors import Actor, Memory, Stage
from simulation.kafka_directories import Broker, OnImported
from simulation.object_store import Faults, Flaws, ObjectStore, connected, parts_of
from simulation.oracle import Oracle
from simulation.pure import computed_once
from simulation.roots import Root, indexed_soon
from simulation.world import Process, World

if TYPE_CHECKING:
    from simulation.local_disk import DiskFaults

URL = "s3://bucket/clicks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """The plan that a seed means: the actors by name, the topic, and the faults."""

    seed: int
    cast: Sequence[tuple[str, Actor]]
    partitions: int
    keys: int
    config: dict[str, object]
    faults: Faults | DiskFaults
    length_s: float
    pause_s: float
    #: The numbers of the actors that act; None for all.
    acting: Sequence[int] | None = None
    #: The number of the history among all histories of this plan.
    fate: int = 0

    def acts(self, number: int) -> bool:
        return self.acting is None or number in self.acting

    @property
    def words(self) -> frozenset[str]:
        """Words for its actors, those that occur several times, jobs of maintenance, faults and the store."""
        cast = [(name, actor) for number, (name, actor) in enumerate(self.cast) if self.acts(number)]
        counts = Counter(name for name, _ in cast)
        return frozenset(
            {
                *counts,
                *(f"several {name}s" for name, count in counts.items() if count > 1),
                *(job for _, actor in cast for job in _jobs(actor)),
                *(fault.name for fault in fields(self.faults) if getattr(self.faults, fault.name)),
                *self._surroundings(),
            }
        )

    def _surroundings(self) -> Iterable[str]:
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Drawn):
    faults: Faults
    #: The store's rules, and the size from which on objects are uploaded in parts.
    protocol: str = "s3"
    part_bytes: int = 8 << 20
    #: `commit.retention.ms`, in s; 0 for the default, which no history is long enough for.
    commits_s: float = 0.0
    #: Whether checkpoints are incremental, and written in the background, as for large topics.
    incremental: bool = False
    #: The number of incremental checkpoints on one base.
    on_one_base: int = MAX_LONG
    #: When a bit of a full checkpoint flips, in s since the actors started; 0 for never.
    damage_s: float = 0.0
    #: Whether the topic begins with batches of which compaction has removed some.
    has_holes: bool = False
    #: Whether actors do several things at once, and then pause for longer, so that others get far ahead.
    in_bursts: bool = False
    #: Whether commits have their actions in tables, as for many partitions.
    in_tables: bool = False
    #: Whether the audit includes vacuum and old versions, which takes a fifth of the time of a short history.
    is_vacuumed: bool = True

    @property
    def url(self) -> str:
        return f"{self.protocol}://bucket/clicks"

    def _surroundings(self) -> Iterator[str]:
        yield self.protocol
        if self.part_bytes < 1024:
            yield "parts"
        if self.length_s > 100:
            yield "long"
        if self.config["file.delete.delay.ms"] == 20_000:
            yield "deletes soon"
        if self.incremental:
            yield "incremental"
        if self.incremental and self.on_one_base < MAX_LONG:
            yield "many bases"
        if self.damage_s:
            yield "damage"
        if "batch.ids.bytes" in self.config:
            yield "few batch ids"
        if "min.compaction.lag.ms" in self.config:
            yield "compaction lag"
        if self.has_holes:
            yield "holes"


def plan(seed: int) -> Plan:
    random = Random(f"plan/{seed}")
    is_compacted = random.random() < 0.3
    delay_s = random.choice((20, 60, 300))
    config: dict[str, object] = {"retention.ms": -1, "file.delete.delay.ms": delay_s * 1000}
    if is_compacted:
        config |= {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.01}
        config |= {"delete.retention.ms": Random(f"tombstones/{seed}").choice((0, 20_000, 20_000, 86_400_000))}
        config |= rules_of_compacted(seed, (5_000, 20_000, 60_000))
    # clocks may be wrong
    config |= {"message.timestamp.after.max.ms": MAX_LONG}
    if random.random() < 0.2:
        config |= {"message.timestamp.type": "LogAppendTime"}
    config |= key_index(seed)
    if seed % 19 == 11:
        config |= {"batch.ids.bytes": Random(f"batch ids/{seed}").choice((0, 300, 1000))}
    writers: list[tuple[str, Actor]] = [
        ("appender", actors.appends),
        ("plain", actors.appends_plainly),
        ("writer", actors.writes),
        ("producer", actors.produces),
    ]
    cast = [random.choice(writers) for _ in range(random.randrange(1, 5))]
    jobs = ["compact", "vacuum", "vacuum", "config", "rebuild"]
    jobs += ["delete-records"] if random.random() < 0.3 and not is_compacted else []
    looking = Random(f"looking/{seed}")
    jobs += ["retention", "manage"] if looking.random() < 0.3 and not is_compacted else []
    jobs += ["partitions"] if random.random() < 0.3 and not is_compacted else []
    jobs += ["restore", "restore", "delete-records"] if random.random() < 0.3 and not is_compacted else []
    cast += [("maintainer", actors.maintains(jobs)) for _ in range(random.randrange(0, 3))]
    cast += [("reader", actors.holds_snapshots)] * random.randrange(0, 2)
    cast += [("follower", actors.follows)] * random.choice((0, 0, 1, 2))
    cast += [("historian", readers.reads_old_versions)] * looking.choice((0, 0, 1))
    cast += [("searcher", readers.reads_records)] * looking.choice((0, 0, 1))
    cast += [("steward", readers.manages_groups)] * (seed % 5 == 4)
    kind = random.choice(("plain", "plain", "plain", "recreated", "spark", "gateways", "gateways", "gateways"))
    if kind == "recreated":
        cast.append(("recreator", actors.recreates))
    elif kind == "spark":
        cast = [member for member in cast if random.random() < 0.5]
        cast += [("query", actors.streams)] * random.randrange(1, 3)
        cast += [("stream", actors.reads_stream)] * Random(f"stream/{seed}").randrange(2)
    elif kind == "gateways":
        clients: list[tuple[str, Actor]] = [
            ("client", gateways.sends),
            ("client", gateways.sends),
            ("transacting", gateways.transacts),
            ("transacting", gateways.transacts),
            ("committing", gateways.commits_positions),
            ("consumer", gateways.consumes),
        ]
        cast = [member for member in cast if random.random() < 0.3]
        cast += [("gateway", gateways.serves)] * random.choice((1, 2, 2))
        cast += [random.choice(clients) for _ in range(random.randrange(1, 4))]
    old = Random(f"old commits/{seed}")
    commits_s = max(60.0, 2.0 * delay_s) if delay_s < 100 and old.random() < 0.5 else 0.0
    if commits_s:
        config |= {"commit.retention.ms": int(commits_s * 1000)}
        cast += [("vacuumer", actors.maintains(["vacuum", "vacuum", "pin"]))]
        cast += [("traveller", actors.travels)] * (seed % 19 == 11)
    bases = Random(f"bases/{seed}")
    has_bases = seed % 28 in (2, 9)
    if has_bases:
        # alone they write most checkpoints, of states with as many rows
        cast = [] if seed % 28 == 2 else cast
        cast += [("appender", actors.appends)] * (2 if seed % 28 == 2 else 1)
        cast += [("maintainer", actors.maintains(["compact", "compact", "vacuum"]))]
        cast += [("opener", actors.opens)] * bases.randrange(1, 3)
    of_kafka = _of_kafka(Random(f"kafka/{seed}"))
    if kind == "plain" and not of_kafka and seed % 23 != 19:
        cast += [("renamer", actors.maintains(["new-id"]))] * (Random(f"new id/{seed}").random() < 0.3)
    cast += of_kafka
    cast += [("encoder", schema_values.appends_values)] * schema_values.has_values(seed)
    cast += [("inspector", inspector.inspects)] * inspector.has_inspector(seed)
    crowd = Random(f"crowd/{seed}")
    is_crowd = crowd.random() < 0.1
    if is_crowd:
        cast += [
            ("crowd", crowd.choice((actors.appends, actors.appends_plainly))) for _ in range(crowd.randrange(3, 8))
        ]
    calm = random.random() < 0.2
    level = 0.0 if calm else random.choice((0.003, 0.01, 0.03))
    drawn = Plan(
        seed=seed,
        cast=cast,
        partitions=random.choice((1, 1, 2, 4)),
        keys=random.choice((2, 8)) if is_compacted else random.choice((0, 8)),
        config=config,
        faults=Faults(
            level,
            level,
            level / 4,
            level,
            level / 4,
            level,
            still=random.choice((0.0, 0.003, 0.01)),
            still_s=random.choice((60.0, 3600.0, 7 * 86400.0)),
            death=0.0 if calm else random.choice((0.0, 0.002, 0.01)),
            silence=0.0 if calm else random.choice((0.0, 0.0, 0.02)),
        ),
        length_s=random.choice((30.0, 60.0, 200.0)),
        pause_s=random.choice((2.0, 10.0, 30.0)),
        protocol=random.choice(("s3", "s3", "gs", "abfs")),
        part_bytes=random.choice((256, 8 << 20)),
        incremental=seed % 7 == 2,
        on_one_base=bases.choice((1, 1, 2, 3)) if has_bases else MAX_LONG,
        in_tables=looking.random() < 0.3,
    )
    if drawn.incremental and crowd.random() < 0.5:
        drawn = replace(drawn, damage_s=crowd.uniform(0, drawn.length_s))
    if has_bases:
        # for many checkpoints
        drawn = replace(drawn, pause_s=min(drawn.pause_s, 1.0), partitions=1, faults=_mild(drawn.faults))
    if seed % 23 == 19:
        cast = [*drawn.cast, ("founder", roots.founds), *[("lister", roots.lists)] * 2]
        drawn = replace(drawn, cast=cast, length_s=max(drawn.length_s, 400.0), pause_s=max(drawn.pause_s, 5.0))
    if seed % 23 == 8:
        drawn = _with_a_large_group(drawn, Random(f"group/{seed}"))
    if is_crowd:
        # with hardly any pauses, they wait for each other
        drawn = replace(drawn, pause_s=4.0 if commits_s else 0.3, length_s=30.0)
    if not commits_s:
        return drawn
    # longer than commits are kept, with processes that are paused for longer than that
    faults = replace(drawn.faults, still=old.choice((0.003, 0.02)), still_s=old.choice((2.0, 6.0)) * commits_s)
    return replace(drawn, faults=faults, length_s=6 * commits_s, pause_s=min(drawn.pause_s, 5.0), commits_s=commits_s)


def _with_a_large_group(drawn: Plan, random: Random) -> Plan:
    """Change the plan to one with a large group, whose late members queue their changes."""
    members = random.randrange(9, 13)
    cast = [*[("plain", actors.appends_plainly)] * 3, *[("member", actors.follows_often)] * members]
    config = {name: value for name, value in drawn.config.items() if name != "cleanup.policy"}
    # a few paused members are enough for others to take over their partitions
    faults = replace(_mild(drawn.faults), silence=random.choice((0.0, 0.01)))
    often = {"pause_s": 0.02, "length_s": 30.0, "commits_s": 0.0}
    return replace(drawn, cast=cast, config=config, faults=faults, partitions=members + random.randrange(3), **often)


def _mild(faults: Faults) -> Faults:
    """Lower the faults, so that most processes live and run."""
    return replace(
        faults, death=min(faults.death, 0.0005), still=min(faults.still, 0.0005), still_s=60.0, silence=0.0
    )


def _of_kafka(random: Random) -> list[tuple[str, Actor]]:
    cast = list[tuple[str, Actor]]()
    if random.random() < 0.2:
        jobs = random.choice((["vacuum", "rebuild"], ["vacuum", "vacuum", "pin"]))
        extras: list[tuple[str, Actor]] = [
            ("maintainer of adopted", OnImported(actors.maintains(jobs))),
            ("reader of adopted", OnImported(actors.holds_snapshots)),
            ("follower of adopted", OnImported(actors.follows)),
        ]
        cast += [("broker", kafka_directories.grows), ("adopter", kafka_directories.adopts)]
        cast += [("adopter", kafka_directories.adopts)] * random.randrange(2)
        cast += random.sample(extras, random.randrange(3))
    if random.random() < 0.15:
        cast += [("exporter", kafka_directories.exports)]
    return cast


def run(world: World, flaws: Flaws, drawn: Plan) -> None:
    """Run a history; raises BrokenPromiseError if a promise was broken."""
    if {"query", "stream"} & drawn.words:
        # an import takes seconds, and none inside of a world
        importlib.import_module("simulation.spark_driver")
    with world:
        store = ObjectStore(world, faults=Faults(), flaws=flaws, protocol=drawn.protocol)
        delay_s = int(str(drawn.config["file.delete.delay.ms"])) / 1000
        oracle = Oracle(world, store, drawn.url, delay_s)
        oracle.is_compacted = "cleanup.policy" in drawn.config
        cast = [actor for number, (_, actor) in enumerate(drawn.cast) if drawn.acts(number)]
        jobs = frozenset(job for actor in cast for job in _jobs(actor))
        oracle.has_retention = bool({"delete-records", "retention", "manage"} & jobs)
        oracle.has_markers = any(actor is gateways.transacts for actor in cast)
        stage = Stage(oracle, drawn.url, 0.0, drawn.pause_s, drawn.keys, drawn.partitions, drawn.config, jobs)
        stage.lag_s, stage.in_bursts, stage.more = flaws.listing_lag_s, drawn.in_bursts, Random(f"more/{world.seed}")
        stage.may_lack_keys = not oracle.is_compacted and "policy" not in jobs
        if {"adopter", "exporter"} & drawn.words:
            stage.kafka = Broker(world.folder, _stage_of_adopted(stage, drawn))
        if "lister" in drawn.words:
            stage.root = Root(world, store, drawn.url.rpartition("/")[0])
        checkpoints = frequent_checkpoints(
            large=drawn.incremental, on_one_base=drawn.on_one_base, in_tables=drawn.in_tables
        )
        large = small_limits(drawn.seed)
        with connected(store), checkpoints, large, parts_of(drawn.part_bytes), computed_once(), indexed_soon():
            create = actors.create_with_holes if drawn.has_holes else actors.create
            world.process("creator").start(partial(create, stage, drawn.config))
            world.run()
            stage.end_s, store.faults = world.now + drawn.length_s, drawn.faults
            if stage.kafka is not None:
                stage.kafka.stage.end_s = stage.end_s
            memories = _start(world, stage, drawn)
            if drawn.damage_s:
                world.call_at(world.now + drawn.damage_s, oracle.damage)
            world.run()
            for process, error in world.errors:
                oracle.says(f"{process.name} ended with {type(error).__name__}: {error}")
            oracle.check()
            world.check_over()
            store.faults, store.silent_until, store.replace = Faults(), 0.0, None
            auditor = world.process("auditor")
            auditor.start(partial(_audit, stage, auditor, memories, drawn.is_vacuumed))
            world.run()
        for process, error in world.errors:
            oracle.says(f"{process.name} ended with {type(error).__name__}: {error}")
        oracle.check()


def _stage_of_adopted(stage: Stage, drawn: Plan) -> Stage:
    url = f"{drawn.protocol}://bucket/adopted/events"
    oracle = Oracle(stage.oracle.world, stage.oracle.store, url, stage.oracle.delay_s, broken=stage.oracle.broken)
    # a compacted topic takes no more imports
    config = {name: value for name, value in drawn.config.items() if "clean" not in name}
    return Stage(oracle, url, 0.0, drawn.pause_s, drawn.keys, drawn.partitions, config, lag_s=stage.lag_s)


def _audit(stage: Stage, auditor: Process, memories: Sequence[Memory], is_vacuumed: bool) -> None:
    if stage.oracle.has_markers:
        gateways.finish(stage, auditor)
    _check_linger(stage)
    _audit_topic(stage, is_vacuumed)
    if stage.kafka is not None:
        for memory in memories:
            if memory.name.startswith("exporter"):
                kafka_directories.export(stage, memory, is_adopted=True)
        kafka_directories.adopt(stage, auditor)
        if stage.kafka.batches:
            _audit_topic(stage.kafka.stage, is_vacuumed)
            oracle, random = stage.kafka.stage.oracle, Random(f"adopted/{stage.oracle.world.seed}")
            topic = stage.kafka.stage.open()
            for text in readers.wrong_answers(topic, oracle.rows_at(topic.version), random):
                oracle.says(f"version {topic.version}: {text}")


def _check_linger(stage: Stage) -> None:
    """Append a record to a writer, which sends it although nobody flushes it."""
    topic, deliveries = stage.open(), list[Any]()
    batch, _ = stage.records_of([b"k0"], "auditor")
    batch.tried.add(topic.snapshot.topic_id)
    with topic.writer(linger_ms=100, on_delivery=deliveries.append) as writer:
        writer.append(batch.values[0], key=b"k0")
        stage.oracle.world.pause(60.0)
        if not deliveries:
            stage.oracle.says("a writer has not sent a record that waited for longer than linger.ms")
    batch.acknowledge(topic.snapshot.topic_id)


def _audit_topic(stage: Stage, is_vacuumed: bool) -> None:
    topic = stage.open()
    stage.oracle.audit(topic)
    stage.oracle.check_new_checkpoint(topic)
    if is_vacuumed:
        version, pause_s = topic.version, stage.oracle.delay_s + LONGEST_PUT_MS / 1000 + 60
        # the first run raises the horizon past what dead writers left, and the second one deletes it
        for _ in range(2):
            stage.oracle.world.pause(pause_s)
            topic.vacuum()
        topic.log.checkpoints.wait()
        stage.oracle.check_vacuumed()
        stage.oracle.check_horizon(version, pause_s)
        stage.oracle.check_checkpoints()
    if stage.lag_s:
        # a load of an old version needs the new checkpoint in a listing
        stage.oracle.world.pause(stage.lag_s)
    stage.oracle.check_oldest(topic)
    if is_vacuumed and not stage.lag_s:
        report = check_store(Storage(stage.url.rpartition("/")[0]), now_ms, time.monotonic, is_measured=False)
        if not report.ok:
            stage.oracle.says(f"the store is refused: {report}")
    if is_vacuumed:
        stage.oracle.audit(stage.open())
        if anomalies := readers.anomalies_of(stage.oracle, topic):
            stage.oracle.says(f"verify finds {anomalies[0]}")
        readers.check_damage(stage.oracle, topic, Random(f"damage/{stage.oracle.world.seed}"))


#: By module, limits above which data is read, written or merged in several parts, so that a few records reach them.
_SMALL_LIMITS: Mapping[ModuleType, Mapping[str, object]] = {
    append_commit: {"MIN_GATHER_BYTES": 200, "_SHARED_BYTES": 1},
    chunks: {"OUTPUT_BYTES": 300},
    consumer: {"WINDOW_BYTES": 500},
    engine: {"_SHARED_BYTES": 1},
    keys: {"LEAST_LOG_BYTES": 0},
    last_records: {"_FIRST_SEGMENTS": 1},
    lookup: {"MAX_RECORDS": 2, "INDEX_WORTH_BYTES": 100},
    merge: {"LARGEST_PART": 400},
    merge_job: {"LARGEST_PART": 400},
    scan: {"FIRST_OFFSETS": 2, "INDEX_WORTH_BYTES": 100},
    segment_parts: {"OPEN_INDEXES": 1, "OPEN_LOGS": 1, "REMEMBERED": 2, "_READ_BYTES": (64, 256, 1024)},
    segment_reader: {
        **{"FIRST_BYTES": 200, "GROUP_BYTES": 500, "INDEX_WORTH_BYTES": 100, "SMALL_BYTES": 300},
        "_SPARE_BYTES": 100,
    },
    segment_state: {"LEAST_LOG_BYTES": 0},
    segment_writer: {
        **{"HELD_BYTES": 300, "KEPT_BYTES": 100, "LARGEST_PART": 400, "LEAST_LOG_BYTES": 0},
        "_PUT_BYTES": 500,
    },
}


def has_small_limits(seed: int) -> bool:
    return seed % 3 == 2


def key_index(seed: int) -> Mapping[str, object]:
    """Return the setting of key indexes for a half of the histories in which short segments have them."""
    has_index = has_small_limits(seed) and Random(f"key index/{seed}").random() < 0.5
    return {"key.index.enable": True} if has_index else {}


def rules_of_compacted(seed: int, lags_ms: Sequence[int]) -> Mapping[str, object]:
    """Return settings of a quarter of the compacted topics: young records stay, and retention deletes no old one."""
    if seed % 4 != 3:
        return {}
    return {"min.compaction.lag.ms": Random(f"lag/{seed}").choice(lags_ms), "retention.ms": 10_000}


@contextmanager
def small_limits(seed: int) -> Iterator[None]:
    """Read and write a few records as many ones, in a third of the histories."""
    with ExitStack() as patches:
        for module, limits in _SMALL_LIMITS.items() if has_small_limits(seed) else ():
            patches.enter_context(mock.patch.multiple(module, **limits))
        yield


@contextmanager
def frequent_checkpoints(
    *, large: bool = False, on_one_base: int = MAX_LONG, in_tables: bool = False
) -> Iterator[None]:
    """Write a checkpoint after every seventh commit (every third with bases), and use small limits.

    `large` checkpoints are incremental and written in the background. A full one is hardly larger than an incremental
    one here, so `on_one_base` limits the number of incremental ones.
    """
    defaults = CommitLog.__init__.__kwdefaults__
    original = defaults["checkpoint_commits"], consumer_group.RETAINED_VERSIONS
    defaults["checkpoint_commits"], consumer_group.RETAINED_VERSIONS = 7 if on_one_base == MAX_LONG else 3, 6
    try:
        rows = 1 if large else checkpoint.LARGE_ROWS
        written = checkpoint.write_incremental
        incremental = partial(_write_incremental, written, on_one_base) if large else written
        with (
            mock.patch.multiple(vacuum, KEPT_EVERY=14 if large else 7, MIN_STEP=2, NAMES_AT_ONCE=3),
            mock.patch.multiple(checkpoint, LARGE_ROWS=rows, write_incremental=incremental),
            # writers queue after the first lost race
            mock.patch.object(group_commit, "CONTENDED_COMMITS", 1),
            mock.patch.object(consumer_group, "_FEW_MEMBERS", 2),
            mock.patch.object(actions, "TABLE_ROWS", 2 if in_tables else actions.TABLE_ROWS),
            mock.patch.object(append_commit, "TABLE_ROWS", 2 if in_tables else append_commit.TABLE_ROWS),
        ):
            yield
    finally:
        defaults["checkpoint_commits"], consumer_group.RETAINED_VERSIONS = original


def _write_incremental(
    write: Callable[..., str | None], most: int, storage: Any, snapshot: Any, base: str, commits: int
) -> str | None:
    if snapshot.version - (paths.parse_checkpoint_file(base) or 0) > most * commits:
        return None
    # as if it were the first one on its base
    return write(storage, snapshot, base, 1 << 40)


def _jobs(actor: Actor) -> Sequence[str]:
    if actor is actors.recreates:
        return ["recreate"]
    cells = getattr(actor, "__closure__", None) or ()
    return [job for cell in cells for job in cell.cell_contents]


def _start(world: World, stage: Stage, drawn: Plan) -> list[Memory]:
    """Start the actors; returns their memories."""
    random, memories = Random(f"fate/{drawn.seed}"), dict[int, tuple[Memory, Actor, int]]()

    def start(memory: Memory, actor: Actor, skew_ms: int) -> None:
        process = world.process(memory.name, skew_ms=skew_ms, drift=random.choice((0.0, 0.0, 1e-4, -1e-4)))
        memories[process.pid] = memory, actor, skew_ms
        process.start(lambda: actor(stage, process, memory))

    def replace_process(process: Process) -> None:
        """Kill the process, or pause it as if it were dead; a new process takes over."""
        if process.pid not in memories or not process.is_alive:
            return
        memory, actor, skew_ms = memories.pop(process.pid)
        if random.random() < 0.5 or memory.pending is None:
            process.die()
            start(memory, actor, skew_ms)
            return
        # both send the same batch
        process.stand_still(random.uniform(1, 300))
        after = replace(memory)
        memory.is_replaced = True
        start(after, actor, skew_ms)

    stage.oracle.store.replace = replace_process
    for number, (name, actor) in enumerate(drawn.cast):
        skew_ms = random.choice((0, 0, 0, -3_600_000, 3_600_000, -7 * 86_400_000, 86_400_000))
        if drawn.acts(number):
            start(Memory(f"{name}-{number}"), actor, skew_ms)
    return [memory for memory, _, _ in memories.values()]
