"""The processes of a history: each actor is a function that works on one topic until its time is over."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import TYPE_CHECKING

import pyarrow as pa

import distlog
from distlog import (
    CommitConflictError,
    CommitStateUnknownError,
    CorruptionError,
    OffsetOutOfRangeError,
    ProducerFencedError,
    SnapshotTooOldError,
    StorageError,
    TopicExistsError,
    TopicNotFoundError,
)
from distlog.core.arrays import column_of
from distlog.core.config import TopicConfig
from distlog.core.format.record_batch import HEADERS_TYPE
from distlog.core.log_manager.log_manager import LogManager
from distlog.core.opening import make_topic
from distlog.core.storage.storage import Storage
from simulation.gateways import Gateway, Register, registers
from simulation.input_files import through_files
from simulation.oracle import ID_HEADER, Batch, NewRecord, Oracle, Rows, rows_of
from simulation.world import Process

if TYPE_CHECKING:
    from simulation.kafka_directories import Broker
    from simulation.roots import Root

#: Errors that an actor may get without a broken promise.
PASSING = (StorageError, CommitStateUnknownError, CommitConflictError, TopicNotFoundError)


@dataclass
class Stage:
    """The setting of the actors of one history: they act until `end_s`, with pauses of `pause_s` on average."""

    oracle: Oracle
    url: str
    end_s: float
    pause_s: float
    keys: int
    partitions: int
    config: dict[str, object] = field(default_factory=dict)
    #: The jobs of maintenance in this history.
    jobs: frozenset[str] = frozenset()
    names: itertools.count = field(default_factory=itertools.count)
    #: The gateways by their names, and the committed offsets of their groups.
    gateways: dict[str, Gateway] = field(default_factory=dict)
    registers: Mapping[str, Register] = field(default_factory=registers)
    #: The directory to import from and to export to.
    kafka: Broker | None = None
    #: The other topics of the root.
    root: Root | None = None
    #: By topic id and partition: the end of the delivered records of the consumer group, and the committed offsets.
    delivered: dict[tuple[str, int], int] = field(default_factory=dict)
    committed: dict[tuple[str, int], int] = field(default_factory=dict)
    #: The age of listings, in s: they may lack the checkpoint that vacuum writes before it deletes.
    lag_s: float = 0.0
    #: Whether most pauses are short, and a few long.
    in_bursts: bool = False
    #: Draws times, headers, tombstones and rare actions. It is separate from the draws of the processes, so that
    #: these are the same with and without it.
    more: Random | None = None
    may_lack_keys: bool = False

    def offsets_may_go(self) -> bool:
        """Whether the log may lose delivered records: at its start by deletes, at its end by a restore."""
        return bool({"delete-records", "restore", "retention", "manage"} & self.jobs)

    @property
    def passing(self) -> tuple[type[Exception], ...]:
        """The errors that an actor may get. With old listings a checkpoint may be missing."""
        return (*PASSING, CorruptionError) if self.lag_s else PASSING

    def goes_on(self) -> bool:
        return self.oracle.world.now < self.end_s

    def pause(self, random: Random) -> None:
        pause_s = self.pause_s * random.choice((0.1, 0.1, 2.8)) if self.in_bursts else self.pause_s
        self.oracle.world.pause(random.expovariate(1 / pause_s))

    def open(self) -> distlog.Topic:
        while True:
            head = self.oracle.head
            with suppress(*self.passing):
                topic = distlog.open(self.url)
                self.oracle.observes(topic, head)
                return topic
            self.oracle.world.pause(5.0)

    def refreshed(self, topic: distlog.Topic) -> distlog.Topic:
        """Refresh and return the topic; raises as `Topic.refresh`."""
        head = self.oracle.head
        topic.refresh()
        self.oracle.observes(topic, head)
        return topic

    def records(self, random: Random, sender: str, *, atomic: bool = True) -> tuple[Batch, pa.Table]:
        """Return a few new records, each with a unique value or header."""
        count = random.choice((1, 1, 2, 5))
        keys = [b"k%d" % random.randrange(self.keys) if self.keys else None for _ in range(count)]
        if self.more is None:
            return self.records_of(keys, sender, atomic=atomic)
        return self.batch_of([self._drawn(key, self.more) for key in keys], sender, atomic=atomic)

    def input(self, random: Random, sender: str) -> tuple[Batch, pa.Table]:
        """Return a few new records as `records`, in a part of the batches as they are read from files."""
        batch, table = self.records(random, sender)
        files = Random(f"files/{self.oracle.world.seed}/{batch.values[0]!r}")
        return batch, through_files(table, files) if files.random() < 0.1 else table

    def chance(self, share: float) -> bool:
        """Draw from `more`; False if there is none."""
        return self.more is not None and self.more.random() < share

    def _drawn(self, key: bytes | None, random: Random) -> NewRecord:
        """Return a new record, perhaps with a time, with headers or without a value."""
        number = b"%d" % next(self.names)
        time_ms = int(time.time() * 1000) - random.choice((0, 0, 1000, 7_200_000)) if random.random() < 0.3 else None
        if key is not None and random.random() < 0.25:
            return NewRecord(time_ms, key, None, ((ID_HEADER, number),))
        headers = (("h", b"%d" % random.randrange(3)), ("h", None)) if random.random() < 0.2 else ()
        return NewRecord(time_ms, None if self.may_lack_keys and random.random() < 0.2 else key, number, headers)

    def records_of(self, keys: Sequence[bytes | None], sender: str, *, atomic: bool = True) -> tuple[Batch, pa.Table]:
        """Return new records with keys and values only."""
        number = next(self.names)
        records = [NewRecord(None, key, b"%d.%d" % (number, index), ()) for index, key in enumerate(keys)]
        return self.batch_of(records, sender, atomic=atomic)

    def batch_of(self, records: Sequence[NewRecord], sender: str, *, atomic: bool = True) -> tuple[Batch, pa.Table]:
        """Return the batch of the records, and the table to append."""
        batch = self.oracle.new_batch(records, atomic=atomic, sender=sender)
        times, keys, values, headers = zip(*records, strict=True)
        named = [[{"key": name, "value": value} for name, value in pairs] for pairs in headers]
        columns = {"key": column_of(keys, pa.binary()), "value": column_of(values, pa.binary())}
        if any(time_ms is not None for time_ms in times):
            columns["timestamp"] = column_of(times, pa.int64())
        if any(headers):
            columns["headers"] = column_of(named, HEADERS_TYPE)
        return batch, pa.table(columns)


Actor = Callable[[Stage, Process, "Memory"], None]


@dataclass
class Memory:
    """The state of an actor that survives the death of its process, as a job's checkpoint does."""

    name: str
    number: int = 0
    pending: tuple[Batch, pa.Table] | None = None
    #: The last batches with a number: the topic that acknowledged them, their offsets there, and when, in s.
    sent: list[tuple[int, pa.Table, str, Mapping[int, tuple[int, int]], float]] = field(default_factory=list)
    #: Whether another process took over, since this one was taken for dead.
    is_replaced: bool = False
    #: For a stream that reads: the ends of its micro-batches, their records by number, and its offsets.
    log: list[str] = field(default_factory=list)
    batches: dict[int, list[tuple[int, int, bytes]]] = field(default_factory=dict)
    positions: dict[int, int] = field(default_factory=dict)


def appends(stage: Stage, process: Process, memory: Memory) -> None:
    """Append batches with an app id; send a batch again after a death or an unknown outcome."""
    topic = stage.open()
    while stage.goes_on():
        if memory.pending is None:
            memory.pending = stage.input(process.random, memory.name)
            memory.number += 1
        batch, table = memory.pending
        topic_id = topic.snapshot.topic_id
        batch.tried.add(topic_id)
        is_full = topic.snapshot.transactions.size > topic.snapshot.config.batch_ids_bytes
        try:
            result = topic.append(table, app_id=memory.name, batch_id=memory.number)
        except PASSING as error:
            _check_may_fail(stage, memory, error)
            stage.oracle.world.pause(process.random.uniform(0, 30))
            topic = stage.open() if isinstance(error, TopicNotFoundError) else topic
            continue
        batch.acknowledge(topic_id, result.offsets)
        if is_full and not result.replayed and topic.snapshot.topic_id == topic_id:
            stage.oracle.says(f"batch {memory.number} of {memory.name} was appended, above batch.ids.bytes")
        memory.pending = None
        if memory.is_replaced:
            return
        memory.sent.append((memory.number, table, topic_id, result.offsets, stage.oracle.world.now))
        if process.random.random() < 0.1:
            _replay(stage, topic, memory)
        stage.pause(process.random)


def _replay(stage: Stage, topic: distlog.Topic, memory: Memory) -> None:
    """Append one of the last batches again, as a job does after a restart from an older checkpoint."""
    number, table, topic_id, offsets, sent_s = stage.more.choice(memory.sent[-8:]) if stage.more else memory.sent[-1]
    # it takes some time until it is committed
    if topic_id not in stage.oracle.ids_of(topic.snapshot.topic_id) or stage.oracle.world.now - sent_s > 20 * 86_400:
        return
    again = _or_none(partial(topic.append, table, app_id=memory.name, batch_id=number))
    if again is not None and not again.replayed:
        stage.oracle.says(f"batch {number} of {memory.name} was appended again")
    if again is not None and again.replayed and again.offsets != offsets:
        stage.oracle.says(f"a replay of batch {number} of {memory.name} reports other offsets")


def _check_may_fail(stage: Stage, memory: Memory, error: Exception) -> None:
    """A batch that is sent again is a replay and not a conflict."""
    is_conflict = isinstance(error, CommitConflictError) and not isinstance(error, distlog.TransactionTooOldError)
    texts = ("until the deadline", "was dropped", "has become compacted")
    if is_conflict and not any(text in str(error) for text in texts):
        stage.oracle.says(f"batch {memory.number} of {memory.name} is refused: {error}")


def appends_plainly(stage: Stage, process: Process, memory: Memory) -> None:
    """Append without an app id, sometimes in transactions of several appends."""
    topic = stage.open()
    while stage.goes_on():
        batch, table = stage.input(process.random, memory.name)
        topic_id = topic.snapshot.topic_id
        batch.tried.add(topic_id)
        try:
            with topic.transaction() as transaction:
                for row in range(table.num_rows) if process.random.random() < 0.3 else (None,):
                    part = table if row is None else table.slice(row, 1)
                    transaction.append(part.to_pylist() if stage.chance(0.3) else part)
            batch.acknowledge(topic_id, transaction.result.offsets)
        except CommitStateUnknownError:
            pass
        except PASSING as error:
            batch.refused = True
            topic = stage.open() if isinstance(error, TopicNotFoundError) else topic
        stage.pause(process.random)


def writes(stage: Stage, process: Process, memory: Memory) -> None:
    topic = stage.open()
    while stage.goes_on():
        sent: list[Batch] = []
        try:
            with topic.writer(linger_ms=process.random.choice((5, 100, 1000))) as writer:
                for _ in range(process.random.randrange(1, 6)):
                    batch, _ = stage.records(process.random, memory.name, atomic=False)
                    batch.tried.add(topic.snapshot.topic_id)
                    sent.append(batch)
                    for time_ms, key, value, headers in batch.records:
                        writer.append(value, key=key, timestamp=time_ms, headers=headers or None)
                    stage.oracle.world.pause(process.random.expovariate(10))
            for batch in sent:
                batch.acknowledge(topic.snapshot.topic_id)
        except PASSING:
            topic = stage.open()
        stage.pause(process.random)


def produces(stage: Stage, process: Process, memory: Memory) -> None:
    """Send records through a transactional producer; several processes share an id, and fence each other."""
    id_ = f"id-{process.random.randrange(2)}"
    while stage.goes_on():
        topic = stage.open()
        try:
            with topic.producer(id_, linger_ms=50) as producer:
                generation = stage.oracle.generations.get(f"producer:{id_}", -1)
                for _ in range(process.random.randrange(1, 5)):
                    if not _one_transaction(stage, process, producer, memory.name, topic.snapshot.topic_id):
                        break
                    if process.random.random() < 0.2:
                        _nothing(stage, process, producer, id_, generation)
                    stage.pause(process.random)
        except (*PASSING, ProducerFencedError):
            stage.pause(process.random)


def _one_transaction(stage: Stage, process: Process, producer: distlog.Producer, sender: str, topic_id: str) -> bool:
    batches = [stage.records(process.random, sender)[0] for _ in range(process.random.randrange(1, 4))]
    for batch in batches:
        batch.tried.add(topic_id)
        # until its commit is requested
        batch.refused = True
    try:
        producer.begin()
        for batch in batches:
            for time_ms, key, value, headers in batch.records:
                producer.append(value, key=key, timestamp=time_ms, headers=headers or None)
        if process.random.random() < 0.2:
            _abort(producer, batches, topic_id)
            return True
        for batch in batches:
            batch.refused = False
        try:
            producer.commit()
        except CommitStateUnknownError:
            if process.random.random() < 0.7:
                _abort(producer, batches, topic_id)
            return False
        for batch in batches:
            batch.acknowledge(topic_id)
    except (*PASSING, ProducerFencedError, distlog.InvalidRecordError):
        return False
    return True


def _abort(producer: distlog.Producer, batches: Sequence[Batch], topic_id: str) -> None:
    """Abort; the producer raises if the transaction was committed."""
    try:
        producer.abort()
    except CommitConflictError as error:
        if "the transaction is committed" not in str(error):
            raise
        for batch in batches:
            batch.acknowledge(topic_id)
    else:
        for batch in batches:
            batch.refused = True


def _nothing(stage: Stage, process: Process, producer: distlog.Producer, id_: str, generation: int) -> None:
    """Commit a transaction without records: a fenced producer must raise."""
    producer.begin()
    stage.pause(process.random)
    is_ended = stage.oracle.generations.get(f"producer:{id_}", -1) > generation
    producer.commit()
    if is_ended:
        stage.oracle.says(f"a producer with the id {id_} committed nothing, after a newer one had started")


def follows(stage: Stage, process: Process, memory: Memory, *, slow_s: float = 20.0, goes_on: bool = False) -> None:
    """Consume the topic as a member of a group, and commit now and then.

    Some records take up to `slow_s`. A member that `goes_on` after a failed commit commits more the next time.
    """
    topic = stage.open()
    while stage.goes_on():
        try:
            with topic.consume(group="readers", start=distlog.EARLIEST, timeout=60.0, lease=10.0) as follower:
                topic_id = topic.snapshot.topic_id
                for rows in follower:
                    _check_delivered(stage, rows, topic_id)
                    if process.random.random() < 0.2:
                        # a slow application
                        stage.oracle.world.pause(process.random.uniform(0, slow_s))
                    if stage.chance(0.4):
                        # several batches before a commit
                        continue
                    positions = follower.position
                    try:
                        follower.commit()
                    except (StorageError, CommitStateUnknownError):
                        if goes_on:
                            continue
                        raise
                    stage.oracle.check_committed(topic_id, "readers", positions)
                    for partition, offset in positions.items():
                        key = topic_id, partition
                        stage.committed[key] = max(stage.committed.get(key, 0), offset)
                    if not stage.goes_on() or process.random.random() < 0.05:
                        break
        except (*PASSING, OffsetOutOfRangeError, SnapshotTooOldError) as error:
            if isinstance(error, OffsetOutOfRangeError) and not stage.offsets_may_go():
                stage.oracle.says(f"a consumer is outside of a log of which nothing was deleted: {error}")
            topic = stage.open()
        stage.pause(process.random)


def follows_often(stage: Stage, process: Process, memory: Memory) -> None:
    """Consume with records that take less time, and commits that may fail."""
    follows(stage, process, memory, slow_s=1.0, goes_on=True)


def _check_delivered(stage: Stage, rows: pa.RecordBatch, topic_id: str) -> None:
    """A member of the group skips no record, and gets none before the committed offset."""
    stage.oracle.read(topic_id, rows)
    for partition, offset in zip(*(rows[name].to_pylist() for name in ("partition", "offset")), strict=True):
        key = topic_id, partition
        # vacuum deletes the groups of a dropped topic, which its consumers may still read
        if offset < stage.committed.get(key, 0) and stage.oracle.is_live(topic_id):
            text = f"a consumer got offset {offset} of partition {partition} before the committed offset"
            stage.oracle.says(f"{text} {stage.committed[key]}")
        # the committed offsets stay when the topic gets another id
        key = stage.oracle.ids_of(topic_id)[0], partition
        expected = stage.delivered.get(key, 0)
        if offset > expected and (skipped := stage.oracle.live_between(topic_id, partition, expected, offset)):
            stage.oracle.says(f"consumers skipped offsets {skipped} of partition {partition}")
        stage.delivered[key] = max(stage.delivered.get(key, 0), offset + 1)


def holds_snapshots(stage: Stage, process: Process, memory: Memory) -> None:
    """Read a snapshot twice: the second read returns the same records, or the snapshot is too old."""
    while stage.goes_on():
        # a process may be paused after it has read the last commit
        asked_s = stage.oracle.world.now
        topic = stage.open()
        try:
            first = stage.oracle.check_rows(topic)
            stage.oracle.world.pause(process.random.uniform(0, 1.5 * stage.oracle.delay_s))
            if stage.oracle.check_rows(topic) != first:
                stage.oracle.says(f"version {topic.version} returned other records the second time")
        except SnapshotTooOldError:
            if stage.oracle.world.now - asked_s < stage.oracle.delay_s - 1:
                stage.oracle.says(f"version {topic.version} could not be read {stage.oracle.delay_s:.0f} s long")
        except CorruptionError as error:
            stage.oracle.says(f"a reader found damage: {error}")
        except PASSING:
            pass
        stage.pause(process.random)


def travels(stage: Stage, process: Process, memory: Memory) -> None:
    """Load the oldest version that is kept, again and again."""
    _load_again_and_again(stage, process, lambda floor, _: floor)


def opens(stage: Stage, process: Process, memory: Memory) -> None:
    _load_again_and_again(stage, process, lambda floor, head: process.random.randrange(floor, head + 1))


def _load_again_and_again(stage: Stage, process: Process, version_of: Callable[[int, int], int]) -> None:
    topic = stage.open()
    while stage.goes_on():
        try:
            head = stage.refreshed(topic).snapshot
            version = version_of(head.log_floor, head.version)
            try:
                _check_version(stage, topic, version)
            except (CorruptionError, OffsetOutOfRangeError) as error:
                if stage.refreshed(topic).snapshot.log_floor <= version:
                    stage.oracle.says(f"version {version}, not older than the log retention horizon, fails: {error}")
        except PASSING:
            topic = stage.open()
        stage.pause(process.random)


def _check_version(stage: Stage, topic: distlog.Topic, version: int) -> None:
    """Like `Oracle.check_version`; a listing may lack the newest checkpoint of vacuum."""
    try:
        stage.oracle.check_version(topic, version)
    except CorruptionError:
        if not stage.lag_s:
            raise
        stage.oracle.world.pause(stage.lag_s)
        stage.oracle.check_version(topic, version)


def maintains(work: Sequence[str]) -> Actor:
    """Return an actor that does these jobs of maintenance in random order."""

    def maintain(stage: Stage, process: Process, memory: Memory) -> None:
        topic = stage.open()
        while stage.goes_on():
            try:
                _job(stage, process, stage.refreshed(topic), process.random.choice(work))
            except (*stage.passing, SnapshotTooOldError, OffsetOutOfRangeError):
                topic = stage.open()
            stage.pause(process.random)

    return maintain


def _job(stage: Stage, process: Process, topic: distlog.Topic, job: str) -> None:
    random = process.random
    match job:
        case "retention":
            if random.random() < 0.3:
                topic.alter_config(
                    {
                        "retention.ms": random.choice((-1, 20_000, 120_000)),
                        "retention.bytes": random.choice((-1, 500)),
                    }
                )
            _retain(stage, topic, process)
        case "retention by age":  # the settings of the topic stay, so that the oracle can compute what must remain
            _retain(stage, topic, process)
        case "manage" if stage.kafka is None:  # an imported log that was merged takes no more imports
            LogManager(stage.url.rpartition("/")[0]).run_once()
        case "seal":
            topic.seal()
        case "new-id":
            _assign_new_id(stage, topic)
        case "managers":
            # with threads
            with LogManager(stage.url.rpartition("/")[0], config=_OFTEN):
                stage.pause(random)
        case "compact":
            topic.compact()
        case "vacuum":
            topic.vacuum()
        case "restore":
            oldest = random.choice((0, max(topic.version - 10, 0)))
            _restore(stage, topic, random.randrange(oldest, topic.version + 1))
        case "delete-records":
            ends = topic.end_offsets()
            partition = random.choice(sorted(ends))
            offset = random.randrange(ends[partition] + 1)
            limits = stage.oracle.may_begin_at
            limits[partition] = max(limits.get(partition, 0), offset)
            topic.delete_records({partition: offset})
            if topic.start_offsets()[partition] < offset and "restore" not in stage.jobs:
                stage.oracle.says(f"offsets below {offset} of partition {partition} exist after their deletion")
        case "config":
            size = {"segment.bytes": random.choice((1 << 20, 1 << 24, None))}
            topic.alter_config(_other_settings(stage, stage.more) if stage.more and stage.chance(0.7) else size)
        case "policy":
            topic.alter_config({"cleanup.policy": random.choice(("compact", "delete"))})
        case "partitions":
            if topic.partitions < stage.partitions + 3:
                with suppress(distlog.InvalidPartitionsError):  # another process was faster
                    topic.create_partitions(topic.partitions + 1)
        case "rebuild":
            stage.oracle.unfinished_rebuilds += 1
            topic.rebuild_indexes(force=True)
            stage.oracle.unfinished_rebuilds -= 1


#: The settings of a manager whose tasks run often.
_OFTEN = {
    "log.retention.check.interval.ms": "2000",
    "log.flush.scheduler.interval.ms": "500",
    "log.flush.offset.checkpoint.interval.ms": "1000",
}


def _other_settings(stage: Stage, random: Random) -> dict[str, object]:
    """Draw a setting of how records are written and compacted, and how long commits are kept."""
    # a lag of a topic from its creation on stays, so that the oracle knows that no compaction had a lower one
    lag_ms = int(str(stage.config.get("min.compaction.lag.ms", 0))) or None
    changed: list[dict[str, object]] = [
        {"compression.type": random.choice(("gzip", "lz4", "snappy", "zstd", None))},
        {"index.interval.bytes": random.choice((0, 100, None))},
        {"delete.retention.ms": random.choice((0, 30_000, None))},
        {"min.compaction.lag.ms": random.choice((lag_ms or 0, 2 * lag_ms if lag_ms else 20_000, lag_ms))},
        {"max.compaction.lag.ms": random.choice((10 * lag_ms if lag_ms else 30_000, None))},
    ]
    if kept_ms := stage.config.get("commit.retention.ms"):
        changed.append({"commit.retention.ms": random.choice((kept_ms, 200_000, None))})
    return random.choice(changed)


def _retain(stage: Stage, topic: distlog.Topic, process: Process) -> None:
    """Run retention: no segment remains that the settings delete."""
    start_ms = process.now_ns() / 1e6
    topic.retention()
    if stage.more and stage.oracle.topic_id == topic.snapshot.topic_id and process.skew_ms <= 0:
        for text in stage.oracle.kept_too_long(topic.version, start_ms):
            stage.oracle.says(f"after retention, version {topic.version}: {text}")


def _assign_new_id(stage: Stage, topic: distlog.Topic) -> None:
    """Give the topic another id: the group has its committed offsets under it."""
    former_id = topic.snapshot.topic_id
    positions = {number: offset for (of, number), offset in stage.committed.items() if of == former_id}
    topic_id = topic.assign_new_id()
    if positions and stage.oracle.topic_id == topic_id:
        stage.oracle.check_committed(topic_id, "readers", positions)


def _restore(stage: Stage, topic: distlog.Topic, version: int) -> None:
    """Restore a version: all of its records are at their offsets again, unless segments were lost."""
    rows: Rows = {}
    with suppress(SnapshotTooOldError):
        rows = rows_of(distlog.open(stage.url, version=version))
    planned = topic.restore(version, dry_run=True)
    report = topic.restore(version)
    if report.version - planned.version in (0, 1) and planned.partitions != report.partitions:
        stage.oracle.says(f"the restore of version {version} was planned as {planned}, and did {report}")
    is_whole = not any(partition.lost_segments for partition in report.partitions)
    # another process may have deleted records since then
    is_alone = topic.version == report.version
    if is_whole and is_alone and (missing := {*rows} - {*rows_of(topic)}):
        stage.oracle.says(f"version {version} was restored without {sorted(missing)[:3]}")


def streams(stage: Stage, process: Process, memory: Memory) -> None:
    """Write micro-batches as Spark's driver does; `history.run` has imported pyspark."""
    from simulation.spark_driver import drive

    drive(stage, process, memory, stage.passing)


def reads_stream(stage: Stage, process: Process, memory: Memory) -> None:
    """Read micro-batches as Spark's driver and tasks do."""
    from simulation.spark_driver import read

    read(stage, process, memory, stage.passing)


def recreates(stage: Stage, process: Process, memory: Memory) -> None:
    """Drop the topic now and then, and create it again."""
    while stage.goes_on():
        process.world.pause(process.random.uniform(5, 40))
        with suppress(PASSING):
            distlog.open(stage.url).drop()
        process.world.pause(process.random.choice((0.0, 3.0, 60.0)))
        create(stage, stage.config)
    create(stage, stage.config)


def make(url: str, partitions: int, config: Mapping[str, object] | None) -> None:
    """Create a topic as a gateway does: without the checks of the folders around it."""
    make_topic(Storage(url), partitions, TopicConfig.parse(config or {}))


def create(stage: Stage, config: dict[str, object] | None = None) -> None:
    """Create the topic, unless another process did."""
    while True:
        with suppress(PASSING):
            with suppress(TopicExistsError):
                make(stage.url, stage.partitions, config)
            return
        stage.oracle.world.pause(5.0)


def create_with_holes(stage: Stage, config: dict[str, object]) -> None:
    """Create a topic whose single-record batches have holes made by compaction, followed by other batches.

    Its policy is `delete` from then on, so a merge meets batches with holes between them.
    """
    create(stage, {**config, "cleanup.policy": "compact"})
    topic = stage.open()

    def append(keys: str) -> None:
        for key in keys:
            batch, table = stage.records_of([key.encode()], "creator")
            batch.acknowledge(topic.snapshot.topic_id, topic.append(table).offsets)

    append("abcbdbe")
    topic.compact()
    topic.alter_config({"cleanup.policy": "delete"})
    append("fghijkl")


def _or_none(work: Callable[[], distlog.AppendResult]) -> distlog.AppendResult | None:
    try:
        return work()
    except PASSING:
        return None
