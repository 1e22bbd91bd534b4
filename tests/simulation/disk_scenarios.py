"""The scenarios of the explorer on a local disk: active segments, their lock, their page, and their syncs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, ClassVar

import distlog
from distlog import OffsetOutOfRangeError, ProducerFencedError, SnapshotTooOldError
from simulation.actors import PASSING
from simulation.oracle import Batch
from simulation.scenario import DiskScenario, Scenario

#: Small segments.
_SEGMENT = {"internal.segment.bytes": 400, "segment.index.bytes": 200, "index.interval.bytes": 0}


class ActiveSegment(DiskScenario):
    """Two writers append to the active segment, which rolls; an append by commit seals it."""

    name = "append to the active segment, flush, roll and seal"
    config: ClassVar[Mapping[str, object]] = {**_SEGMENT, "flush.messages": 1}
    restarted = frozenset({"first", "second"})

    def prepare(self) -> None:
        self.durable: list[Batch] = []

    def actors(self) -> Mapping[str, Callable[[], None]]:
        return {
            "first": lambda: self.write("first"),
            "sealer": lambda: self.append(b"s", None, sender="sealer"),
            "second": lambda: self.write("second"),
        }

    def write(self, sender: str) -> None:
        """Append a few records, each in its own batch, and have them synced."""
        with suppress(*PASSING):
            topic = distlog.open(self.stage.url)
            waiting, delivered = list[Batch](), list[Batch]()

            def on_delivery(delivery: Any) -> None:
                batch = waiting.pop(0)
                if delivery.error is None:
                    offsets = {delivery.partition: (delivery.first_offset, delivery.first_offset + 1)}
                    batch.acknowledge(topic.snapshot.topic_id, offsets)
                    delivered.append(batch)

            with topic.writer(linger_ms=0, on_delivery=on_delivery) as writer:
                for _ in range(3):
                    batch, table = self.stage.records_of([sender.encode()], sender)
                    batch.tried.add(topic.snapshot.topic_id)
                    waiting.append(batch)
                    writer.append(table["value"][0].as_py(), key=sender.encode(), partition=0)
                    self.durable += delivered if self.sync(writer) else ()

    def sync(self, writer: distlog.Writer) -> bool:
        """Sync the records; False if the outcome is unknown."""
        writer.flush()
        return True

    def check(self) -> None:
        """Report broken promises; afterwards the log takes a record."""
        if self.disk.power_losses and self.config["flush.messages"] != 1:
            for batch in self.oracle.batches:
                batch.acknowledged = batch.acknowledged and (batch in self.durable or batch.sender == "sealer")
        self.check_records(distlog.open(self.stage.url))
        self.write("auditor")
        topic = distlog.open(self.stage.url)
        self.check_records(topic)
        if not (report := topic.verify()).ok:
            self.says(f"verify finds {report.anomalies[0]}")
        if self.oracle.batches[-1] not in self.durable:
            self.says("the log takes no record any more")


class Flushes(ActiveSegment):
    """The same where only a flush syncs."""

    name = "appends that are synced by flushes"
    config: ClassVar[Mapping[str, object]] = {**_SEGMENT, "flush.messages": 1000}


class FlushesInTime(Flushes):
    name = "appends that are synced after flush.ms"
    config: ClassVar[Mapping[str, object]] = {**Flushes.config, "flush.ms": 500}

    def actors(self) -> Mapping[str, Callable[[], None]]:
        return {"first": lambda: self.write("first")}

    def sync(self, writer: distlog.Writer) -> bool:
        """Wait for longer than `flush.ms`; False if the process was paused in that time."""
        due_s = self.world.now + 4.0
        self.world.pause(4.0)
        return self.world.now <= due_s + 0.1


class CleanedSegments(ActiveSegment):
    name = "append to the active segment during compaction"
    config: ClassVar[Mapping[str, object]] = {
        **_SEGMENT,
        "flush.messages": 1,
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": 0.01,
        "file.delete.delay.ms": 1000,
    }
    is_compacted = True

    def actors(self) -> Mapping[str, Callable[[], None]]:
        return {"first": lambda: self.write("first"), "cleaner": self.clean, "second": lambda: self.write("first")}

    def prepare(self) -> None:
        super().prepare()
        for _ in range(2):
            self.write("first")
            self.append(b"first", b"other", sender="sealer")

    def clean(self) -> None:
        with suppress(*PASSING, SnapshotTooOldError, OffsetOutOfRangeError):
            topic = distlog.open(self.stage.url)
            topic.compact()
            self.world.pause(1.0)
            topic.vacuum()

    def check(self) -> None:
        """Report broken promises; afterwards compaction leaves one record of each key."""
        super().check()
        self.append(b"first", sender="sealer")
        topic = distlog.open(self.stage.url)
        topic.compact()
        self.check_records(topic)
        keys = [key for _, _, key, _ in self.rows(topic)]
        if len(keys) > len({*keys}):
            self.says(f"compaction left the keys {keys}")


class DirectTransactions(DiskScenario):
    """A transaction in the active segment, and a second producer with its id, which aborts it."""

    name = "a transaction in an active segment and a second producer"
    config: ClassVar[Mapping[str, object]] = {**_SEGMENT, "flush.messages": 1}
    restarted = frozenset({"second"})

    def actors(self) -> Mapping[str, Callable[[], None]]:
        return {"first": self.produce, "second": self.produce}

    def produce(self) -> None:
        """Commit two transactions, unless another producer has fenced this one."""
        with suppress(*PASSING, ProducerFencedError):
            topic = distlog.open(self.stage.url)
            with topic.producer("id", linger_ms=0) as producer:
                for _ in range(2):
                    self.transact(producer, topic.snapshot.topic_id)

    def check(self) -> None:
        """Report broken promises; afterwards a third producer aborts open transactions."""
        self.produce()
        topic = distlog.open(self.stage.url)
        committed = self.rows(topic, isolation="read_committed")
        remaining = [(key, value) for _, _, key, value in committed]
        for batch in self.oracle.batches:
            sent = list(zip(batch.keys, batch.values, strict=True))
            records = [record for record in remaining if record in sent]
            if records not in ([], sent) or (records and batch.refused) or (batch.acknowledged and not records):
                self.says(f"a transaction of {sent} has {records} ({batch.acknowledged=}, {batch.refused=})")
            remaining = [record for record in remaining if record not in sent]
        if remaining:
            self.says(f"nobody appended {remaining}")
        if not self.oracle.batches[-1].acknowledged:
            self.says("a new producer could not commit")
        if not (report := topic.verify()).ok:
            self.says(f"verify finds {report.anomalies[0]}")


DISK_SCENARIOS: tuple[type[Scenario], ...] = (
    ActiveSegment,
    Flushes,
    FlushesInTime,
    CleanedSegments,
    DirectTransactions,
)
