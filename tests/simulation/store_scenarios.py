"""The scenarios of the explorer on an object store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import ClassVar

import distlog
from distlog import (
    OffsetOutOfRangeError,
    ProducerFencedError,
    SnapshotTooOldError,
    TopicExistsError,
)
from distlog.core import paths
from distlog.core.commits.actions import LEADER_APP, Add, Commit, SetTransaction, each_action
from distlog.core.errors import FencedMemberError, LeaderFencedError
from distlog.core.maintain.vacuum import LONGEST_PUT_MS
from distlog.core.write.writer import RecordSender, Writer
from distlog.gateway.cluster import Leadership
from simulation.actors import PASSING, make
from simulation.oracle import Batch
from simulation.scenario import Scenario, StoreScenario


class TwoAppends(StoreScenario):
    name = "two appends"

    def actors(self) -> Mapping[str, Callable[[], None]]:
        return {"first": lambda: self.keep_order("first", 2), "second": lambda: self.keep_order("second", 1)}

    def keep_order(self, sender: str, count: int) -> None:
        topic = distlog.open(self.stage.url)
        last_end = -1
        for _ in range(count):
            batch = self.append(b"k", None, sender=sender, topic=topic)
            if batch is not None and batch.offsets is not None:
                start, end = batch.offsets[0]
                if start < last_end:
                    self.says(f"{sender} appended at {start}, after it had appended up to {last_end}")
                last_end = end

    def check(self) -> None:
        topic = distlog.open(self.stage.url)
        self.check_records(topic)
        self.check_versions(topic)


class CommitQueue(TwoAppends):
    """Three writers meet in the commit queue, with a second wave of commits after the first one."""

    name = "three writers in the commit queue"

    def actors(self) -> Mapping[str, Callable[[], None]]:
        return {name: lambda name=name: self.keep_order(name, 2) for name in ("first", "second", "third")}  # type: ignore[misc]


class ReplayedBatch(StoreScenario):
    """A job sends a batch, perhaps dies, and sends it again, while other writers commit queued appends."""

    name = "a replayed batch in the queue"
    restarted = frozenset({"job", "twin"})

    def prepare(self) -> None:
        """Make the batch, which two processes send, as if one was taken for dead."""
        self.batch, self.table = self.stage.records_of([b"a", b"b"], "job")
        self.offsets = set[tuple[int, int]]()

    def actors(self) -> Mapping[str, Callable[[], None]]:
        return {"job": self.send, "twin": self.send, "other": lambda: self.append_some(2)}

    def append_some(self, count: int) -> None:
        topic = distlog.open(self.stage.url)
        for _ in range(count):
            self.append(None, sender="other", topic=topic)

    def send(self) -> None:
        """Send the batch until it is acknowledged, and once more."""
        self.until_done(self._send_once)
        self.until_done(self._send_once)

    def _send_once(self) -> None:
        topic = distlog.open(self.stage.url)
        result = topic.append(self.table, partition=0, app_id="job", batch_id=7)
        self.batch.acknowledge(topic.snapshot.topic_id, result.offsets)
        self.offsets.add(result.offsets[0])
        if len(self.offsets) > 1:
            self.says(f"one batch was reported at {sorted(self.offsets)}")

    def check(self) -> None:
        topic = distlog.open(self.stage.url)
        self.check_records(topic)
        self.check_versions(topic)
        if not self.batch.acknowledged:
            self.says("a batch that was sent until it was acknowledged is not")


class Vacuumed(StoreScenario):
    """Append and group commit during a vacuum, which deletes files, old commits and checkpoints."""

    name = "append, group commit and vacuum"
    delay_s, kept_s = 20.0, 60.0
    config: ClassVar[Mapping[str, object]] = {"segment.bytes": 1 << 20}

    def prepare(self) -> None:
        """Create old commits, and files that compaction has replaced."""
        topic = distlog.open(self.stage.url)
        for _ in range(5):
            self.append(b"old", topic=topic)
            self.world.pause(10.0)
        topic.compact()
        self.world.pause(10.0)
        for _ in range(4):
            self.append(b"new", topic=topic)
        self.world.pause(100.0)
        self.append(b"newest", topic=topic)

    def actors(self) -> Mapping[str, Callable[[], None]]:
        return {"first": lambda: self.append(b"k"), "second": lambda: self.append(b"k"), "vacuum": self.vacuum}

    def vacuum(self) -> None:
        with suppress(*PASSING, SnapshotTooOldError, OffsetOutOfRangeError):
            distlog.open(self.stage.url).vacuum()

    def check(self) -> None:
        """Report broken promises; afterwards vacuum deletes all unused files."""
        topic = distlog.open(self.stage.url)
        self.check_records(topic)
        self.check_versions(topic)
        for _ in range(2):
            self.world.pause(self.delay_s + LONGEST_PUT_MS / 1000 + 60)
            topic.refresh().vacuum()
        topic.log.checkpoints.wait()
        self.oracle.check_vacuumed()
        self.oracle.check_checkpoints()
        topic = distlog.open(self.stage.url)
        self.check_versions(topic)
        self.check_records(topic)


class DroppedAndCreated(StoreScenario):
    """A topic is dropped and created again during an append."""

    name = "create, drop and create"
    restarted = frozenset({"recreator"})

    def actors(self) -> Mapping[str, Callable[[], None]]:
        return {"recreator": self.recreate, "appender": self.append_some, "creator": self.create}

    def recreate(self) -> None:
        with suppress(PASSING):
            distlog.open(self.stage.url).drop()
        self.create()
        self.append(b"r", sender="recreator")

    def create(self) -> None:
        with suppress(TopicExistsError):
            self.until_done(lambda: make(self.stage.url, self.partitions, self.settings()))

    def append_some(self) -> None:
        for _ in range(2):
            self.append(b"k", sender="appender")

    def check(self) -> None:
        topic = distlog.open(self.stage.url)
        self.check_records(topic)
        self.check_versions(topic)


class Restored(StoreScenario):
    name = "restore and append"
    partitions = 2

    def prepare(self) -> None:
        """Append, and delete records that the restore brings back."""
        topic = distlog.open(self.stage.url)
        for _ in range(3):
            self.append(b"old", topic=topic)
        self.version, self.old = topic.version, self.rows(topic)
        self.oracle.may_begin_at[0] = 3
        topic.delete_records({0: 2})
        self.append(b"new", topic=topic)
        self.is_restored = False

    def actors(self) -> Mapping[str, Callable[[], None]]:
        return {"restorer": self.restore, "appender": lambda: self.append(b"k"), "deleter": self.delete}

    def restore(self) -> None:
        """Restore the version before the deletion."""
        with suppress(*PASSING):
            distlog.open(self.stage.url).restore(self.version)
            self.is_restored = True

    def delete(self) -> None:
        with suppress(*PASSING, OffsetOutOfRangeError):
            topic = distlog.open(self.stage.url)
            topic.delete_records({0: 3})
            topic.compact()

    def check(self) -> None:
        topic = distlog.open(self.stage.url)
        start = topic.start_offsets()[0]
        if start not in (0, 2, 3):
            self.says(f"partition 0 begins at {start}")
        # earlier records, which were deleted, may be missing
        missing = [row for row in self.old if row[1] < start]
        self.check_records(topic, [*missing, *self.rows(topic)] if start else None)
        self.check_versions(topic)

    def check_records(self, topic: distlog.Topic, rows: object = None) -> None:
        """Check only records that are not deleted."""
        start = topic.start_offsets()[0]
        for batch in list(self.oracle.batches):
            if batch.offsets is not None and batch.offsets[0][1] <= start:
                self.oracle.batches.remove(batch)
        super().check_records(topic)


class ConsumerGroup(StoreScenario):
    name = "a consumer group with a late heartbeat"
    partitions = 2
    lease_s = 10.0
    restarted = frozenset({"first"})

    def prepare(self) -> None:
        topic = distlog.open(self.stage.url)
        for partition in range(self.partitions):
            batch, table = self.stage.records_of([None, None], "setup")
            batch.acknowledge(topic.snapshot.topic_id, topic.append(table, partition=partition).offsets)
        self.committed: dict[int, int] = {}
        self.delivered: dict[int, int] = {}

    def actors(self) -> Mapping[str, Callable[[], None]]:
        return {name: lambda name=name: self.consume(name) for name in ("first", "second")}  # type: ignore[misc]

    def consume(self, name: str) -> None:
        """Consume as a member until nothing comes, and commit each batch."""
        self.until_done(lambda: self._consume(name), FencedMemberError)

    def _consume(self, name: str) -> None:
        topic = distlog.open(self.stage.url)
        consume = topic.consume(group="readers", start=distlog.EARLIEST, timeout=15.0, lease=self.lease_s)
        with consume as consumer:
            for rows in consumer:
                for number, offset in zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True):
                    if offset < self.committed.get(number, 0):
                        self.says(f"{name} got offset {offset} of partition {number}, which was committed")
                    if offset > self.delivered.get(number, 0):
                        self.says(f"{name} skipped offset {self.delivered.get(number, 0)} of partition {number}")
                    self.delivered[number] = max(self.delivered.get(number, 0), offset + 1)
                positions = consumer.position
                consumer.commit()
                self.oracle.check_committed(topic.snapshot.topic_id, "readers", positions)
                for number, offset in positions.items():
                    self.committed[number] = max(self.committed.get(number, 0), offset)

    def check(self) -> None:
        topic = distlog.open(self.stage.url)
        self.check_records(topic)
        # a member may have died after its commit, and before the response
        for number, offset in self._positions(topic).items():
            self.committed[number] = max(self.committed.get(number, 0), offset)
        # paused members may have got nothing: members that join now get only the remaining records
        for _ in range(2):
            self._consume("auditor")
            if not self.delivered == self.committed == self._positions(topic) == topic.end_offsets():
                text = f"members got the records up to {self.delivered}, and committed {self.committed}"
                self.says(f"{text}, not up to {topic.end_offsets()}: {self._positions(topic)}")

    def _positions(self, topic: distlog.Topic) -> dict[int, int]:
        rows = topic.groups().to_table().to_pylist()
        return {row["partition"]: row["position"] for row in rows if row["position"] is not None}


class Transactions(StoreScenario):
    """A transaction of a producer that a second one with its id fences."""

    name = "a transaction and a second producer"

    def prepare(self) -> None:
        self.generations: list[list[Batch]] = []

    def actors(self) -> Mapping[str, Callable[[], None]]:
        return {"first": self.produce, "second": self.produce, "other": lambda: self.append(None)}

    def produce(self) -> None:
        with suppress(*PASSING, ProducerFencedError):
            topic = distlog.open(self.stage.url)
            with topic.producer("id", linger_ms=10) as producer:
                for _ in range(2):
                    self.transact(producer, topic.snapshot.topic_id)

    def check(self) -> None:
        topic = distlog.open(self.stage.url)
        self.check_records(topic)
        self.check_versions(topic)
        if (committed := self.rows(topic, isolation="read_committed")) != self.rows(topic):
            self.says(f"readers of committed records get {committed}")


class Leaders(StoreScenario):
    """Two gateways start to lead one partition, and append to it."""

    name = "two leaders of one partition"

    def prepare(self) -> None:
        topic = distlog.open(self.stage.url)
        Leadership(topic.handle, topic.current).begin([0])
        self.epoch, self.leader = 0, ""
        self.store.watchers.append(self._watch)

    def _watch(self, kind: str, key: str, data: bytes | None) -> None:
        """Only the process that began the newest epoch appends, and epochs increase."""
        if kind != "put" or data is None or paths.parse_commit_file(key.rpartition("/")[2]) is None:
            return
        author = self.store.author.name if self.store.author else ""
        for action in each_action(Commit.decode(data, key).actions):
            if isinstance(action, SetTransaction) and action.app_id.startswith(LEADER_APP):
                if int(action.batch_id) <= self.epoch:
                    self.says(f"{author} begins epoch {action.batch_id} after epoch {self.epoch} of {self.leader}")
                self.epoch, self.leader = int(action.batch_id), author
            elif isinstance(action, Add) and self.leader != author:
                self.says(f"{author} appends, although {self.leader or 'nobody'} leads the partition")

    def actors(self) -> Mapping[str, Callable[[], None]]:
        return {name: lambda name=name: self.lead(name) for name in ("first", "second")}  # type: ignore[misc]

    def lead(self, name: str) -> None:
        """Lead the partition, and append to it until another leads it."""
        with suppress(*PASSING, LeaderFencedError), self.no_conflict(name):
            topic = distlog.open(self.stage.url)
            leadership = Leadership(topic.handle, topic.current)
            leadership.begin([0])
            leadership.begin([0])
            sender = RecordSender(topic.handle, topic.current, topic.engine(), fence=leadership)
            for _ in range(2):
                batch, table = self.stage.records_of([None], name)
                with Writer(sender, linger_ms=0) as writer:
                    writer.append(table["value"][0].as_py(), partition=0)
                batch.acknowledge(topic.snapshot.topic_id)

    def check(self) -> None:
        topic = distlog.open(self.stage.url)
        self.check_records(topic)
        self.check_versions(topic)


STORE_SCENARIOS: tuple[type[Scenario], ...] = (
    TwoAppends,
    Vacuumed,
    CommitQueue,
    ReplayedBatch,
    DroppedAndCreated,
    Restored,
    ConsumerGroup,
    Transactions,
    Leaders,
)
