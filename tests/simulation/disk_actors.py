"""The actors of a topic on a local disk, which join the actors of `actors.py`."""

from __future__ import annotations

import os
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
from distlog.core.log.partition_files import PageStatus, PartitionLock
from distlog.core.log.partition_log import PartitionLog
from distlog.core.times import now_ms
from simulation.actors import PASSING, Memory, Stage
from simulation.disk_oracle import DiskOracle, Record, named
from simulation.oracle import id_of, rows_of
from simulation.readers import anomalies_of, wrong_answers
from simulation.world import Process

#: No actor starts anything after this number of calls.
_MOST_CALLS = 4000
#: The number of its last batches that a producer may send again.
_WINDOW = 5


@dataclass
class DiskStage(Stage):
    """The setting of the actors, with a limit of calls."""

    #: By actor, the batches that its next process sends again after its death.
    windows: dict[str, Window] = field(default_factory=dict)
    #: By actor, what the owner of a topic knows about it.
    owned: dict[str, Any] = field(default_factory=dict)

    def offsets_may_go(self) -> bool:
        """Whether the log may lose delivered records: unsynced ones, after a failed sync."""
        return True

    def goes_on(self) -> bool:
        return super().goes_on() and self.oracle.world.calls < _MOST_CALLS


def stage_of(stage: Stage) -> DiskStage:
    assert isinstance(stage, DiskStage)
    return stage


def oracle_of(stage: Stage) -> DiskOracle:
    assert isinstance(stage.oracle, DiskOracle)
    return stage.oracle


class _Sending:
    """The records that a writer sends, which wait for their deliveries by partition."""

    def __init__(self, stage: Stage, process: Process, sender: str) -> None:
        self.stage, self.random, self.sender = stage, process.random, sender
        self.waiting = defaultdict[int, deque[Record]](deque)

    def on_delivery(self, delivery: Any) -> None:
        for index in range(delivery.record_count):
            record = self.waiting[delivery.partition].popleft()
            if delivery.error is None:
                oracle_of(self.stage).acknowledges(record, delivery.partition, delivery.first_offset + index)

    def send(self, writer: distlog.Writer) -> list[Record]:
        """Append some records to a partition, and return them."""
        stage, random, sent = self.stage, self.random, list[Record]()
        partition = random.randrange(stage.partitions)
        for _ in range(random.choice((1, 1, 3, 20))):
            key = b"k%d" % random.randrange(stage.keys) if stage.keys else None
            record = oracle_of(stage).new_record(random, next(stage.names), key, self.sender, now_ms())
            self.waiting[partition].append(record)
            sent.append(record)
            (new,) = record.records
            writer.append(
                new.value, key=key, timestamp=new.timestamp, headers=new.headers or None, partition=partition
            )
        return sent


def writes_directly(stage: Stage, process: Process, memory: Memory) -> None:
    """Append directly to some partitions, and flush now and then."""
    random, oracle = process.random, oracle_of(stage)
    while stage.goes_on():
        topic, sending, sent = stage.open(), _Sending(stage, process, memory.name), list[Record]()
        try:
            with topic.writer(linger_ms=random.choice((0, 5, 100)), on_delivery=sending.on_delivery) as writer:
                for _ in range(random.randrange(1, 12)):
                    sent += sending.send(writer)
                    if random.random() < 0.3:
                        writer.flush()
                        are_durable(oracle, sent)
                    oracle.world.pause(random.expovariate(5 / stage.pause_s))
            are_durable(oracle, sent)
        except PASSING:
            pass
        stage.pause(random)


def waits_for_flushes(stage: Stage, process: Process, memory: Memory) -> None:
    """Keep a writer open: its records are durable after a flush, and `flush.ms` after their delivery."""
    random, oracle, world = process.random, oracle_of(stage), process.world
    while stage.goes_on():
        topic, sending = stage.open(), _Sending(stage, process, memory.name)
        with suppress(*PASSING), topic.writer(linger_ms=0, on_delivery=sending.on_delivery) as writer:
            while stage.goes_on():
                faults, sent = oracle.disk.faults_so_far, sending.send(writer)
                if random.random() < 0.3:
                    writer.flush()
                    are_durable(oracle, sent)
                else:
                    # an append long after the last sync syncs by itself, the next ones wait for the timer
                    world.pause(random.uniform(0, 0.05))
                    sent += sending.send(writer)
                    _wait_for_timer(stage, topic.config.flush_ms / 1000, sent, faults)
                if oracle.disk.power_losses < 3 and random.random() < 0.6:
                    # a loss by chance comes at a call, most of which sync first
                    oracle.disk.power_loss(random.choice(("", "nothing")))
                stage.pause(random)


def _wait_for_timer(stage: Stage, flush_s: float, sent: Sequence[Record], faults: tuple[int, ...]) -> None:
    """Wait for `flush.ms`, and a second for the sync; nothing is promised after a fault or a pause of a process."""
    oracle = oracle_of(stage)
    world, disk = oracle.world, oracle.disk
    for _ in range(20):
        if all(record.location is not None for record in sent):
            break
        world.pause(0.1)
    else:
        return
    begin_s = world.now
    world.pause(flush_s + 1.0)
    was_paused = any(process.is_alive and process.still_until > begin_s for process in world.processes)
    if not was_paused and not faults[-1] and faults == disk.faults_so_far:
        are_durable(oracle, sent)


def are_durable(oracle: DiskOracle, sent: Sequence[Record]) -> None:
    for record in sent:
        if record.location is None:
            oracle.says(f"a flush returned before {record.values[0][:8]!r} was delivered")
        elif (other := oracle.records[record.location]) is not record:
            if other.is_durable:
                oracle.says(f"a flush promised {named(record)}, whose offset is another's")
            # the next record may be acknowledged at its offset before a record that a failed sync lost
            oracle.records[record.location] = record
        record.is_durable = True


def reads(stage: Stage, process: Process, memory: Memory) -> None:
    while stage.goes_on():
        topic = stage.open()
        with suppress(*PASSING, SnapshotTooOldError, OffsetOutOfRangeError):
            for _ in range(5):
                cut = oracle_of(stage).current_cut()
                rows = rows_of(topic.refresh())
                ids = {location: id_of(row.value, row.headers) for location, row in rows.items()}
                oracle_of(stage).check_cut(cut, ids)
                for location, row in rows.items():
                    oracle_of(stage).note_read(location, row)
                stage.pause(process.random)
        stage.pause(process.random)


def reads_records(stage: Stage, process: Process, memory: Memory) -> None:
    """Read a few records by offsets and times, and compare them with a scan of the same snapshot."""
    oracle = oracle_of(stage)
    while stage.goes_on():
        topic = stage.open()
        with suppress(*PASSING, SnapshotTooOldError, OffsetOutOfRangeError):
            losses, rows = oracle.losses, rows_of(topic)
            wrong = list(wrong_answers(topic, rows, process.random))
            # unsynced records may be lost between two reads
            if wrong and oracle.losses == losses and not oracle.disk.refusals:
                oracle.says(f"version {topic.version}: {wrong[0]}")
        stage.pause(process.random)


def verifies(stage: Stage, process: Process, memory: Memory) -> None:
    """Verify the topic, and repair it, both without findings."""
    while stage.goes_on():
        topic = stage.open()
        with suppress(*PASSING, SnapshotTooOldError):
            if process.random.random() < 0.5:
                anomalies = anomalies_of(stage.oracle, topic)
                if anomalies and not oracle_of(stage).disk.refusals:
                    stage.oracle.says(f"verify finds {anomalies[0]}")
            elif (repaired := topic.repair(dry_run=True)).partitions and not oracle_of(stage).disk.refusals:
                stage.oracle.says(f"repair would cut sound records: {repaired.partitions[0]}")
        stage.pause(process.random)


@contextmanager
def lenient(oracle: DiskOracle) -> Iterator[None]:
    """Ignore damage if the device refused pages, and too large batches if a segment was made smaller."""
    try:
        yield
    except CorruptionError:
        if not oracle.disk.refusals:
            raise
    except RecordTooLargeError as error:
        if not oracle.shrinks_segments or error.details["size"] <= error.details["limit"]:
            raise


@contextmanager
def watch_failed_syncs(oracle: DiskOracle) -> Iterator[None]:
    """Report to the oracle when a page says that a sync has failed."""
    real = PartitionLock.publish

    def publish(self: Any, status: PageStatus, state: Any) -> None:
        real(self, status, state)
        if status is PageStatus.FAILED:
            oracle.note_cut(int(os.path.dirname(self.path).rpartition("-")[2]), state.flushed_offset)

    with mock.patch.object(PartitionLock, "publish", publish):
        yield


# ---
# A producer that sends unacknowledged batches again, as a Kafka client does, to one partition's log.


@dataclass(slots=True)
class Window:
    """The last batches of a producer, with their records; those from `sent` on are not acknowledged."""

    partition: int
    producer_id: int
    sequence: int = 0
    batches: deque[tuple[bytes, Sequence[Record]]] = field(default_factory=deque)
    sent: int = 0


def sends_in_windows(stage: Stage, process: Process, memory: Memory) -> None:
    """Append batches of an idempotent producer, several at once, and send them again after an error or a death."""
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
                    while window.sent == len(window.batches) or (
                        len(window.batches) - window.sent < _WINDOW and random.random() < 0.7
                    ):
                        window.batches.append(_new_batch(stage, process, memory.name, window))
                    _send(stage, log, window)
                    if random.random() < 0.3:
                        _send_again(stage, log, window, random.randrange(len(window.batches)))
                    while len(window.batches) > _WINDOW:
                        window.batches.popleft()
                        window.sent -= 1
                    stage.pause(random)
        except OutOfOrderSequenceError:
            # an earlier batch was lost: a client starts again
            if not oracle_of(stage).losses:
                stage.oracle.says(f"the next batch of {memory.name} is refused")
            windows.pop(memory.name)
        except RecordTooLargeError as error:
            # a smaller internal.segment.bytes: the client starts again with smaller batches
            if error.details["size"] <= error.details["limit"]:
                stage.oracle.says(f"a batch of {memory.name} that fits is refused: {error}")
            windows.pop(memory.name)
        except PASSING:
            pass
        stage.pause(random)


def _new_batch(
    stage: Stage, process: Process, sender: str, window: Window, *, transactional: bool = False
) -> tuple[bytes, Sequence[Record]]:
    records = list[Record]()
    for _ in range(process.random.choice((1, 1, 3))):
        key = b"k%d" % process.random.randrange(stage.keys) if stage.keys else None
        records.append(oracle_of(stage).new_record(process.random, next(stage.names), key, sender, now_ms()))
    rows = [record.records[0] for record in records]
    columns = {
        "timestamp": pa.array([row.timestamp for row in rows], pa.int64()),
        "key": pa.array([row.key for row in rows], pa.binary()),
        "value": pa.array([row.value for row in rows], pa.binary()),
        "headers": pa.array(
            [[{"key": name, "value": value} for name, value in row.headers] for row in rows], HEADERS_TYPE
        ),
    }
    data = encode(
        pa.RecordBatch.from_pydict(columns),
        producer_id=window.producer_id,
        producer_epoch=0,
        base_sequence=window.sequence,
        transactional=transactional,
    ).data
    window.sequence += len(records)
    return bytes(data), records


def _send(stage: Stage, log: PartitionLog, window: Window) -> None:
    oracle = oracle_of(stage)
    for data, records in list(window.batches)[window.sent :]:
        losses = oracle.losses
        appended = log.append_batches(data).appended
        if appended.flush_due:
            log.flush(appended)
        for offset, record in enumerate(records, appended.first_offset):
            # a record that was lost since then is appended again
            record.losses = losses
            oracle.acknowledges(record, window.partition, offset)
        window.sent += 1


def _send_again(stage: Stage, log: PartitionLog, window: Window, index: int) -> None:
    """Send one of the last batches again: the log must report its offsets."""
    oracle, (data, records) = oracle_of(stage), window.batches[index]
    if index < len(window.batches) - _WINDOW or any(record.losses < oracle.losses for record in records):
        return
    losses = oracle.losses
    try:
        appended = log.append_batches(data).appended
    except OutOfOrderSequenceError:
        # as in Kafka, only the last batch of a producer is remembered after its records were deleted
        if (oracle.is_compacted or oracle.has_retention) and index < len(window.batches) - 1:
            return
        raise
    if (window.partition, appended.first_offset) != records[0].location and losses == oracle.losses:
        oracle.says(f"a batch that is sent again is at {appended.first_offset}, and was at {records[0].location}")


def leaves_transactions(stage: Stage, process: Process, memory: Memory) -> None:
    """Append transactions without a coordinator, and abort them: committed reads leave their records out."""
    random, oracle = process.random, oracle_of(stage)
    while stage.goes_on():
        topic = stage.open()
        losses = oracle.losses
        window = Window(random.randrange(stage.partitions), random.getrandbits(62))
        with suppress(*PASSING, SnapshotTooOldError, OffsetOutOfRangeError, RecordTooLargeError):
            data, records = _new_batch(stage, process, memory.name, window, transactional=True)
            current = CurrentSnapshot(topic.log, topic.log.load())
            with closing(PartitionLog(topic.handle, window.partition, current)) as log:
                appended = log.append_batches(data, lambda _: None).appended
                log.flush(appended)
            for offset, record in enumerate(records, appended.first_offset):
                oracle.acknowledges(record, window.partition, offset)
            begin = window.partition, appended.first_offset
            wrong = list(_wrong_transaction(topic, begin, is_open=True))
            stage.pause(random)
            topic.abort_transaction(*begin)
            wrong += _wrong_transaction(topic, begin, is_open=False)
            if wrong and oracle.losses == losses and not oracle.disk.refusals:
                oracle.says(f"a transaction of partition {begin[0]} from offset {begin[1]} on: {wrong[0]}")
        stage.pause(random)


def _wrong_transaction(topic: distlog.Topic, begin: tuple[int, int], *, is_open: bool) -> Iterator[str]:
    """Yield what is wrong with the list of open transactions, and with committed reads after it."""
    partition, offset = begin
    # nothing may be committed later than a transaction that another process has left open
    listed = {
        (entry.transaction.partition, entry.transaction.start_offset)
        for entry in topic.open_transactions().transactions
    }
    if (begin in listed) != is_open:
        yield f"the open ones are {sorted(listed)}"
    rows = rows_of(topic.refresh(), isolation="read_committed")
    if begin in rows or (is_open and any(number == partition and other > offset for number, other in rows)):
        yield f"committed readers get {sorted(rows)}"


# ---
# Changes of settings, and reads of old versions.


def changes_settings(stage: Stage, process: Process, memory: Memory) -> None:
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
        stage.pause(random)


def reads_old_versions(stage: Stage, process: Process, memory: Memory) -> None:
    """Open versions by number and by time; each record must be as it was appended."""
    random, oracle = process.random, oracle_of(stage)
    versions = list[tuple[int, int]]()
    while stage.goes_on():
        with suppress(*PASSING, SnapshotTooOldError, OffsetOutOfRangeError):
            topic = stage.open()
            if topic.snapshot.timestamp_ms <= now_ms():
                # else the clock was set back after the commit
                versions.append((now_ms(), topic.version))
            time_ms, version = random.choice(versions) if versions else (0, 0)
            if not versions or random.random() < 0.5:
                version = random.randrange(topic.version + 1)
                old = distlog.open(stage.url, version=version)
            else:
                old = distlog.open(stage.url, timestamp=time_ms)
                if old.version < version:
                    oracle.says(f"version {old.version} is opened by a time when version {version} existed")
            oracle.check_rows_read(rows_of(old))
            listed = [row["version"] for row in topic.history().to_table().to_pylist()]
            if listed != list(range(listed[0], listed[0] - len(listed), -1)) or listed[0] < topic.version:
                oracle.says(f"the history at version {topic.version} has the versions {listed}")
        stage.pause(random)
