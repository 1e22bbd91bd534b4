"""What processes do to a topic on a local disk, beside what they do anywhere: see `actors.py`."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import pyarrow as pa

import distlog
from distlog import CorruptionError, OffsetOutOfRangeError, SnapshotTooOldError
from distlog.core.commits.commit_log import CurrentSnapshot
from distlog.core.errors import OutOfOrderSequenceError, RecordTooLargeError
from distlog.core.format.record_batch import HEADERS_TYPE
from distlog.core.format.record_encoder import encode
from distlog.core.log.partition_lock import PageStatus, PartitionLock
from distlog.core.log.partition_log import PartitionLog
from distlog.core.times import now_ms
from simulation.actors import PASSING, Memory, Stage
from simulation.disk_oracle import DiskOracle, Record, named
from simulation.oracle import id_of, rows_of
from simulation.readers import wrong_answers
from simulation.world import Process

#: No actor begins anything after so many calls.
_MOST_CALLS = 4000
#: So many of its last batches a producer may send again.
_WINDOW = 5


@dataclass
class DiskStage(Stage):
    """Where they act, for so many calls at most."""

    #: By actor, what its process sends again when it has died.
    windows: dict[str, Window] = field(default_factory=dict)

    def offsets_may_go(self) -> bool:
        """Whether the log may lose what followers have read: what was not synced yet, if a sync fails."""
        return True

    def goes_on(self) -> bool:
        """Whether there is time left."""
        return super().goes_on() and self.oracle.world.calls < _MOST_CALLS


def stage_of(stage: Stage) -> DiskStage:
    """The stage, which is on a disk."""
    assert isinstance(stage, DiskStage)
    return stage


def oracle_of(stage: Stage) -> DiskOracle:
    assert isinstance(stage.oracle, DiskOracle)
    return stage.oracle


def writes_in_place(stage: Stage, process: Process, memory: Memory) -> None:
    """Append in place to some partitions, and flush now and then."""
    random, oracle = process.random, oracle_of(stage)
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
                        record = oracle.new_record(random, next(stage.names), key, memory.name, now_ms())
                        waiting[partition].append(record)
                        sent.append(record)
                        (given,) = record.records
                        writer.append(
                            given.value,
                            key=key,
                            timestamp=given.timestamp,
                            headers=given.headers or None,
                            partition=partition,
                        )
                    if random.random() < 0.3:
                        writer.flush()
                        are_durable(oracle, sent)
                    oracle.world.pause(random.expovariate(5 / stage.pause_s))
            are_durable(oracle, sent)
        except PASSING:
            pass
        stage.rest(random)


def are_durable(oracle: DiskOracle, sent: Sequence[Record]) -> None:
    """A flush said that these are on the device."""
    for record in sent:
        if record.place is None:
            oracle.says(f"a flush returned before {record.values[0][:8]!r} was delivered")
        elif (other := oracle.records[record.place]) is not record:
            if other.is_durable:
                oracle.says(f"a flush promised {named(record)}, whose offset is another's")
            # a record that a failed sync lost may be acknowledged after the next one of its offset
            oracle.records[record.place] = record
        record.is_durable = True


def reads(stage: Stage, process: Process, memory: Memory) -> None:
    """Look at the whole topic again and again."""
    while stage.goes_on():
        topic = stage.open()
        with suppress(*PASSING, SnapshotTooOldError, OffsetOutOfRangeError):
            for _ in range(5):
                cut = oracle_of(stage).known_cut()
                rows = rows_of(topic.refresh())
                oracle_of(stage).saw_cut(cut, {place: id_of(row.value, row.headers) for place, row in rows.items()})
                for place, row in rows.items():
                    oracle_of(stage).saw(place, row)
                stage.rest(process.random)
        stage.rest(process.random)


def looks_up(stage: Stage, process: Process, memory: Memory) -> None:
    """Read a few records by offsets and times: they are those that a scan of the same snapshot has."""
    oracle = oracle_of(stage)
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
            elif (repaired := topic.repair(dry_run=True)).partitions and not oracle_of(stage).disk.refusals:
                stage.oracle.says(f"repair would cut what is sound: {repaired.partitions[0]}")
        stage.rest(process.random)


def _check_sound(stage: Stage, topic: distlog.Topic) -> None:
    # a rebuild writes indexes before the commit that has their sizes
    unfinished = stage.oracle.unfinished_rebuilds > 0
    anomalies = [anomaly for anomaly in topic.verify().anomalies if not (unfinished and "index" in anomaly.word)]
    if anomalies and not oracle_of(stage).disk.refusals:
        stage.oracle.says(f"verify finds {anomalies[0]}")


@contextmanager
def lenient(oracle: DiskOracle) -> Iterator[None]:
    """Damage may be met if the device did not take pages, and batches may be too large for a segment made smaller."""
    try:
        yield
    except CorruptionError:
        if not oracle.disk.refusals:
            raise
    except RecordTooLargeError as error:
        if not oracle.shrinks_segments or error.details["size"] <= error.details["limit"]:
            raise


@contextmanager
def heard_by(oracle: DiskOracle) -> Iterator[None]:
    """The oracle hears when a page tells that a sync has failed."""
    real = PartitionLock.publish

    def publish(self: Any, status: PageStatus, state: Any) -> None:
        real(self, status, state)
        if status is PageStatus.FAILED:
            oracle.hears_of_cut(int(self.folder.rpartition("-")[2]), state.flushed_offset)

    with mock.patch.object(PartitionLock, "publish", publish):
        yield


# ---
# A producer that sends again what was not acknowledged, as a Kafka client does: it writes to one partition's log.


@dataclass(slots=True)
class Window:
    """The last batches of a producer, with their records; those from `sent` on are not acknowledged."""

    partition: int
    producer_id: int
    sequence: int = 0
    batches: deque[tuple[bytes, Sequence[Record]]] = field(default_factory=deque)
    sent: int = 0


def sends_in_windows(stage: Stage, process: Process, memory: Memory) -> None:
    """Append batches of an idempotent producer, several at once; after an error or a death they are sent again."""
    random, windows = process.random, stage_of(stage).windows
    while stage.goes_on():
        window = windows.get(memory.name)
        if window is None:
            window = windows[memory.name] = Window(random.randrange(stage.partitions), random.getrandbits(62))
        try:
            topic = stage.open()
            current = CurrentSnapshot(topic.log, topic.log.load())
            with closing(PartitionLog(topic.handle, window.partition, current)) as log:
                for _ in range(random.randrange(1, 6)):
                    while window.sent == len(window.batches) or (_has_room(window) and random.random() < 0.7):
                        window.batches.append(_new_batch(stage, process, memory.name, window))
                    _send(stage, log, window)
                    if random.random() < 0.3:
                        _send_again(stage, log, window, random.randrange(len(window.batches)))
                    while len(window.batches) > _WINDOW:
                        window.batches.popleft()
                        window.sent -= 1
                    stage.rest(random)
        except OutOfOrderSequenceError:
            # what came before was lost: a client begins anew
            if not oracle_of(stage).losses:
                stage.oracle.says(f"the next batch of {memory.name} is refused")
            windows.pop(memory.name)
        except RecordTooLargeError as error:
            # for a small or lowered internal.segment.bytes: the client begins anew with smaller batches
            if error.details["size"] <= error.details["limit"]:
                stage.oracle.says(f"a batch of {memory.name} that fits is refused: {error}")
            windows.pop(memory.name)
        except PASSING:
            pass
        stage.rest(random)


def _has_room(window: Window) -> bool:
    return len(window.batches) - window.sent < _WINDOW


def _new_batch(stage: Stage, process: Process, sender: str, window: Window) -> tuple[bytes, Sequence[Record]]:
    records = list[Record]()
    for _ in range(process.random.choice((1, 1, 3))):
        key = b"k%d" % process.random.randrange(stage.keys) if stage.keys else None
        records.append(oracle_of(stage).new_record(process.random, next(stage.names), key, sender, now_ms()))
    given = [record.records[0] for record in records]
    columns = {
        "timestamp": pa.array([each.timestamp for each in given], pa.int64()),
        "key": pa.array([each.key for each in given], pa.binary()),
        "value": pa.array([each.value for each in given], pa.binary()),
        "headers": pa.array(
            [[{"key": name, "value": value} for name, value in each.headers] for each in given], HEADERS_TYPE
        ),
    }
    data = encode(
        pa.RecordBatch.from_pydict(columns),
        producer_id=window.producer_id,
        producer_epoch=0,
        base_sequence=window.sequence,
    ).data
    window.sequence += len(records)
    return bytes(data), records


def _send(stage: Stage, log: PartitionLog, window: Window) -> None:
    """Append what was not acknowledged, each batch behind the one before it."""
    oracle = oracle_of(stage)
    for data, records in list(window.batches)[window.sent :]:
        losses = oracle.losses
        appended = log.append_batches(data).appended
        if appended.flush_due:
            log.flush(appended)
        for offset, record in enumerate(records, appended.first_offset):
            # what was lost meanwhile is appended again
            record.losses = losses
            oracle.acknowledges(record, window.partition, offset)
        window.sent += 1


def _send_again(stage: Stage, log: PartitionLog, window: Window, at: int) -> None:
    """Send one of the last batches again: it is known, and where it was."""
    oracle, (data, records) = oracle_of(stage), window.batches[at]
    if at < len(window.batches) - _WINDOW or any(record.losses < oracle.losses for record in records):
        return
    losses = oracle.losses
    try:
        appended = log.append_batches(data).appended
    except OutOfOrderSequenceError:
        # as in Kafka, only the last batch of a producer is known for longer than its records are there
        if (oracle.is_compacted or oracle.has_retention) and at < len(window.batches) - 1:
            return
        raise
    if (window.partition, appended.first_offset) != records[0].place and losses == oracle.losses:
        oracle.says(f"a batch that is sent again is at {appended.first_offset}, and was at {records[0].place}")


# ---
# Settings that change while others are paused, and versions and times that are opened again.


def changes_settings(stage: Stage, process: Process, memory: Memory) -> None:
    """Change a setting of active segments now and then."""
    random, oracle, topic = process.random, oracle_of(stage), stage.open()
    while stage.goes_on():
        messages = random.choice((1, 2, 5))
        setting: dict[str, object] = random.choice(
            (
                {"internal.segment.bytes": random.choice((2000, 20_000))},
                {"segment.index.bytes": random.choice((200, 4000))},
                {"index.interval.bytes": random.choice((0, 300))},
                {"segment.ms": random.choice((300, 60_000))},
                {"preallocate": random.random() < 0.5},
                {"flush.ms": random.choice((10, 5000))},
                {"flush.messages": messages},
            )
        )
        if "flush.messages" in setting:
            oracle.flush_messages = max(oracle.flush_messages, messages)
        with suppress(*PASSING, SnapshotTooOldError):
            topic.refresh().alter_config(setting)
        stage.rest(random)


def looks_back(stage: Stage, process: Process, memory: Memory) -> None:
    """Open versions, and times at which a version was seen; nothing is there that was not appended at its offset."""
    random, oracle = process.random, oracle_of(stage)
    seen = list[tuple[int, int]]()
    while stage.goes_on():
        with suppress(*PASSING, SnapshotTooOldError, OffsetOutOfRangeError):
            topic = stage.open()
            if topic.snapshot.timestamp_ms <= now_ms():
                # else the clock was set back after the commit
                seen.append((now_ms(), topic.version))
            time_ms, version = random.choice(seen) if seen else (0, 0)
            if not seen or random.random() < 0.5:
                version = random.randrange(topic.version + 1)
                before = distlog.open(stage.url, version=version)
            else:
                before = distlog.open(stage.url, timestamp=time_ms)
                if before.version < version:
                    oracle.says(f"version {before.version} is opened by a time when version {version} was there")
            oracle.check_known(rows_of(before))
            told = [row["version"] for row in topic.history().to_table().to_pylist()]
            if told != list(range(told[0], told[0] - len(told), -1)) or told[0] < topic.version:
                oracle.says(f"the history at version {topic.version} has the versions {told}")
        stage.rest(random)
