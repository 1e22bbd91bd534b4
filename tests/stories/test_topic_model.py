"""A topic against a list per partition: whatever is done to it, and by whom, it holds what the lists hold."""

from __future__ import annotations

import dataclasses
import pickle
import random
import tempfile
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule
from searches import examples
from topic_model import PARTITIONS, RECORDS, SETTINGS, Log, Stored, at, home, read, table
from topics import NOW, Clock, topic_on

import distlog
from distlog.core.commits.snapshot import Snapshot
from distlog.core.storage.storage import Storage
from distlog.core.topics.destinations import CommitDestination
from distlog.core.topics.topic import Topic

OBJECTS = st.sampled_from([0, 1])
BATCH_IDS = st.sampled_from([0, 1, 2, "0", "1"])


class TopicAndLists(RuleBasedStateMachine):
    """Two objects on one topic, with a list per partition and version beside them."""

    batches = Bundle("batches")

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.clock = Clock()
        self.topics: list[Topic] = []
        #: The model of each version, the number of the version that each object reads, and results by batch.
        self.versions: list[Log] = [[[] for _ in range(PARTITIONS)]]
        self.times: list[int] = []
        self.reads: list[int] = [0, 0]
        self.results: dict[tuple[str, int | str], distlog.AppendResult] = {}
        self.config: dict[str, Any] = {"internal.segment.bytes": 400, "batch.bytes": 100, "index.interval.bytes": 0}

    @property
    def storage(self) -> Storage:
        return Storage(str(Path(self.folder.name, "topic")))

    def open(self, snapshot: Snapshot | None = None) -> Topic:
        """The topic with a clock to set, and with the same choices in every run of an example."""
        opened = topic_on(self.storage, clock=self.clock, checkpoint_commits=5)
        handle = dataclasses.replace(opened.handle, random=random.Random(0))
        topic = Topic(handle, snapshot or opened.snapshot)
        # as on a store of objects: what is appended in place is in no version
        setattr(topic, "destination", partial(CommitDestination, topic.handle, topic.current))  # noqa: B010 - it is a method
        return topic

    @initialize()
    def create(self) -> None:
        topic_on(self.storage, PARTITIONS, self.config, self.clock)
        self.topics = [self.open(), self.open()]
        self.times = [self.topics[0].snapshot.timestamp_ms]

    def teardown(self) -> None:
        self.folder.cleanup()

    # --- what is appended

    def commit(
        self, which: int, records: list[dict[str, Any]], result: distlog.AppendResult, partition: int | None = None
    ) -> None:
        """Note that object `which` has committed `records`, and check what it was told."""
        before = self.versions[-1]
        counts = [end - first for first, end in (result.offsets.get(p, (0, 0)) for p in range(PARTITIONS))]
        added = self.placed(records, partition, counts)
        assert [len(rows) for rows in added] == counts
        assert result.offsets == {
            number: (len(old), len(old) + len(new))
            for number, (old, new) in enumerate(zip(before, added, strict=True))
            if new
        }
        assert not result.replayed
        if result.version is not None:
            assert result.version == len(self.versions)
            self.note(which, [old + new for old, new in zip(before, added, strict=True)])

    def placed(self, records: list[dict[str, Any]], partition: int | None, counts: list[int]) -> Log:
        """The records by partition; those without a key or partition are all in one, as `counts` tells."""
        homes = [home(record) if partition is None else partition for record in records]
        free = [number for number in range(PARTITIONS) if homes.count(number) < counts[number]]
        assert len(free) <= 1
        found: Log = [[] for _ in range(PARTITIONS)]
        for record, known in zip(records, homes, strict=True):
            found[free[0] if known is None else known].append(self.stored(record))
        return found

    def stored(self, record: dict[str, Any]) -> Stored:
        by_append = self.config.get("message.timestamp.type") == "LogAppendTime"
        given = record.get("timestamp")
        of_commit = max(self.clock(), self.times[-1] + 1)
        return Stored(
            of_commit if by_append else self.clock() if given is None else given,
            int(by_append),
            record.get("key"),
            record["value"],
            list(record.get("headers") or []),
        )

    def note(self, which: int, log: Log) -> None:
        self.versions.append(log)
        self.times.append(self.topics[which].snapshot.timestamp_ms)
        self.sees_the_head(which)

    def sees_the_head(self, which: int) -> None:
        self.reads[which] = len(self.versions) - 1

    @rule(
        which=OBJECTS, records=RECORDS, partition=st.none() | st.sampled_from(range(PARTITIONS)), arrow=st.booleans()
    )
    def append(self, which: int, records: list[dict[str, Any]], partition: int | None, arrow: bool) -> None:
        self.sees_the_head(which)
        result = self.topics[which].append(table(records) if arrow else records, partition)
        self.commit(which, records, result, partition)

    @rule(target=batches, which=OBJECTS, records=RECORDS, app=st.sampled_from("ab"), batch=BATCH_IDS)
    def append_a_batch(
        self, which: int, records: list[dict[str, Any]], app: str, batch: int | str
    ) -> tuple[str, int | str]:
        self.sees_the_head(which)
        result = self.topics[which].append(records, app_id=app, batch_id=batch)
        if (app, batch) in self.results:
            assert result == replace(self.results[app, batch], replayed=True)
        else:
            self.commit(which, records, result)
            self.results[app, batch] = result
        return app, batch

    @rule(which=OBJECTS, name=batches)
    def replay(self, which: int, name: tuple[str, int | str]) -> None:
        assert name in self.results
        self.append_a_batch(which, [{"value": b"a replay is not appended"}], *name)

    @rule(
        which=OBJECTS, parts=st.lists(RECORDS, max_size=3), end=st.sampled_from(["commit", "abort", "raise", "bad"])
    )
    def append_in_parts(self, which: int, parts: list[list[dict[str, Any]]], end: str) -> None:
        self.sees_the_head(which)
        with suppress(KeyError, distlog.InvalidRecordError), self.topics[which].transaction() as transaction:
            for part in parts:
                transaction.append(part)
            if end == "abort":
                transaction.abort()
            elif end == "raise":
                raise KeyError
            elif end == "bad":
                transaction.append([{"value": 3}])
        self.commit(
            which, [record for part in parts for record in part] if end == "commit" else [], transaction.result
        )

    @rule(which=OBJECTS, records=RECORDS, others=RECORDS)
    def append_and_be_overtaken(
        self, which: int, records: list[dict[str, Any]], others: list[dict[str, Any]]
    ) -> None:
        self.sees_the_head(which)
        with self.topics[which].transaction() as transaction:
            transaction.append(records)
            self.append(1 - which, others, None, arrow=False)
        self.commit(which, records, transaction.result)

    @rule(which=OBJECTS, records=RECORDS, flush_at=st.integers(0, 25))
    def write(self, which: int, records: list[dict[str, Any]], flush_at: int) -> None:
        begun = records[:flush_at]
        with self.topics[which].writer(linger_ms=10**7) as writer:
            for record in begun:
                writer.append(**record)
            if begun:
                self.sees_the_head(which)
                self.commit(which, begun, writer.flush())
            for record in records[flush_at:]:
                writer.append(**record)
        if records[flush_at:]:
            self.sees_the_head(which)
            self.commit(which, records[flush_at:], writer.result)

    # --- what else is done

    @rule(which=OBJECTS, changes=SETTINGS)
    def alter_config(self, which: int, changes: dict[str, Any]) -> None:
        topic = self.topics[which]
        topic.alter_config(changes)
        kept = {**self.config, **changes}
        self.config = {name: value for name, value in kept.items() if value is not None}
        assert topic.config == distlog.TopicConfig.parse(self.config)
        self.note(which, self.versions[-1])

    @rule(which=OBJECTS)
    def refresh(self, which: int) -> None:
        assert self.topics[which].refresh().version == len(self.versions) - 1
        self.sees_the_head(which)

    @rule(which=OBJECTS)
    def reopen(self, which: int) -> None:
        self.topics[which] = self.open()
        self.sees_the_head(which)

    @rule(which=OBJECTS)
    def send_to_another_process(self, which: int) -> None:
        copy: Topic = pickle.loads(pickle.dumps(self.topics[which]))
        self.topics[which] = self.open(copy.snapshot)

    @rule(step_ms=st.integers(-5, 50))
    def time_passes(self, step_ms: int) -> None:
        self.clock.now_ms += step_ms

    # --- what is read

    @rule(data=st.data(), which=OBJECTS)
    def scan_a_range(self, data: st.DataObject, which: int) -> None:
        log, topic = self.versions[self.reads[which]], self.topics[which]
        starts = {number: data.draw(st.integers(0, len(found))) for number, found in enumerate(log)}
        ends = {number: data.draw(st.integers(0, len(found) + 3)) for number, found in enumerate(log)}
        scan = topic.scan(start=starts, end=ends)
        expected = [found[starts[number] : ends[number]] for number, found in enumerate(log)]
        assert read(scan.to_table()) == expected
        assert scan.count() == sum(map(len, expected))

    @rule(data=st.data(), which=OBJECTS, partition=st.integers(0, PARTITIONS - 1))
    def read_records(self, data: st.DataObject, which: int, partition: int) -> None:
        found = self.versions[self.reads[which]][partition]
        start, limit = data.draw(st.integers(0, len(found))), data.draw(st.none() | st.integers(0, 30))
        rows = list(self.topics[which].records(partition, start, limit))
        assert [row.offset for row in rows] == list(range(start, len(found)))[:limit]
        assert [Stored(*row[2:]) for row in rows] == found[start:][:limit]

    @rule(which=OBJECTS, time=st.integers(NOW - 30, NOW + 300) | st.sampled_from([0, -1, -2, -3]))
    def find_a_time(self, which: int, time: int) -> None:
        found = self.topics[which].offsets_for_times(time)
        assert found == {number: at(records, time) for number, records in enumerate(self.versions[self.reads[which]])}

    @rule(data=st.data(), pick=st.sampled_from(["version", "timestamp"]))
    def travel_in_time(self, data: st.DataObject, pick: str) -> None:
        version = data.draw(st.integers(0, len(self.versions) - 1))
        at_time = {pick: version if pick == "version" else self.times[version]}
        old = distlog.open(self.storage.url, **at_time)
        assert old.version == version
        assert read(old.scan().to_table()) == self.versions[version]

    @precondition(lambda self: self.topics)
    @invariant()
    def each_object_reads_its_version(self) -> None:
        for topic, version in zip(self.topics, self.reads, strict=True):
            assert topic.version == version
            log = self.versions[version]
            assert topic.end_offsets() == {number: len(found) for number, found in enumerate(log)}
            assert topic.scan().count() == sum(map(len, log))


TestTopicAndLists = pytest.mark.long(TopicAndLists.TestCase)
TestTopicAndLists.settings = examples(8, stateful_step_count=25)
