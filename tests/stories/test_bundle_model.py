"""Appends over many partitions, merges, retention, vacuum and time travel, in any order, against a plain model."""

from __future__ import annotations

import uuid
from typing import Any

import memory_files
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from searches import examples
from store_clock import TimedStorage
from topics import Clock, contents, files, named_files, topic_on

from distlog.core.commits.snapshot import Snapshot
from distlog.core.storage.storage import Storage
from distlog.core.topics.topic import Topic

PARTITIONS = 4
DELAY = 1000
SETTINGS = {
    "file.delete.delay.ms": DELAY,
    "segment.bytes": 1 << 20,
    "batch.bytes": "200",
    "index.interval.bytes": "150",
    "internal.segment.bytes": "900",
}

#: (partition, how many records) of one append
Chosen = dict[int, int]


class Bundles(RuleBasedStateMachine):
    """A topic, and what each version of it must hold: by partition, the log start and the values from offset 0 on."""

    @initialize()
    def create(self) -> None:
        self.clock = Clock()
        memory_files.hold()
        storage = Storage(f"memory://{uuid.uuid4().hex}").child("t")
        self.topic = topic_on(TimedStorage(storage, self.clock), PARTITIONS, SETTINGS, self.clock)
        self.logs: dict[int, list[bytes]] = {number: [] for number in range(PARTITIONS)}
        self.starts = dict.fromkeys(range(PARTITIONS), 0)
        self.versions: dict[int, tuple[int, dict[int, list[bytes]]]] = {}
        self.written = 0
        self.noted()

    def noted(self) -> None:
        """Remember what the head must hold; called after each commit."""
        held = {number: log[self.starts[number] :] for number, log in self.logs.items()}
        self.versions[self.topic.version] = self.clock.now_ms, held

    @rule(chosen=st.dictionaries(st.integers(0, PARTITIONS - 1), st.integers(1, 30), min_size=1))
    def append(self, chosen: Chosen) -> None:
        """One commit; several partitions make a bundle, and many records several segments."""
        self.clock.now_ms += 1
        self.topic.append(self.made(chosen))
        self.noted()

    @rule(several=st.lists(st.dictionaries(st.integers(0, 3), st.integers(1, 5), min_size=1), min_size=1, max_size=3))
    def transact(self, several: list[Chosen]) -> None:
        """Several appends in one commit."""
        self.clock.now_ms += 1
        with self.topic.transaction() as transaction:
            for chosen in several:
                transaction.append(self.made(chosen))
        self.noted()

    def made(self, chosen: Chosen) -> list[dict[str, Any]]:
        """Records with values of their own, which the model has from now on."""
        found = []
        for number, count in chosen.items():
            for _ in range(count):
                self.written += 1
                value = b"%d" % self.written
                self.logs[number].append(value)
                found.append({"partition": number, "value": value, "timestamp": self.clock.now_ms})
        return found

    @rule()
    def merge(self) -> None:
        """No record changes."""
        self.clock.now_ms += 1
        self.topic.compact()
        self.noted()

    @rule(force=st.booleans())
    def rebuild(self, *, force: bool) -> None:
        """No record changes, and no bundle."""
        self.clock.now_ms += 1
        self.topic.rebuild_indexes(force=force)
        self.noted()

    @rule(number=st.integers(0, PARTITIONS - 1), share=st.floats(0, 1))
    def delete_records(self, number: int, share: float) -> None:
        """Whole segments leave, and their part of a bundle with them."""
        self.clock.now_ms += 1
        start, end = self.starts[number], len(self.logs[number])
        self.starts[number] = start + int((end - start) * share)
        self.topic.delete_records({number: self.starts[number]})
        self.noted()

    @rule(ms=st.integers(1, 2 * DELAY))
    def wait(self, ms: int) -> None:
        """Time passes."""
        self.clock.now_ms += ms

    @rule()
    def vacuum(self) -> None:
        """Nothing goes that the versions within the delay, or the head, can read."""
        self.topic.vacuum()
        self.topic.refresh()
        self.noted()

    @precondition(lambda self: self.clock.now_ms)
    @rule(data=st.data())
    def travel(self, data: st.DataObject) -> None:
        """A version that was the head within the delay reads as it was."""
        ends = sorted(self.versions)
        kept = [
            version
            for version, after in zip(ends, [*ends[1:], None], strict=True)
            if after is None or self.versions[after][0] > self.clock.now_ms - DELAY
        ]
        version = data.draw(st.sampled_from(kept))
        assert contents(self.at(self.topic.log.load(version=version))) == self.versions[version][1]

    def at(self, snapshot: Snapshot) -> Topic:
        """The topic at a version."""
        return Topic(self.topic.handle, snapshot)

    @invariant()
    def holds_what_was_appended(self) -> None:
        """The head is what the model says, and all of its files are there."""
        if not hasattr(self, "topic"):
            return
        assert contents(self.topic) == self.versions[self.topic.version][1]
        assert named_files(self.topic) <= files(self.topic.storage)

    def teardown(self) -> None:
        """All is sound; and a vacuum after the delay leaves nothing but what the head names."""
        if not hasattr(self, "topic"):
            return
        assert self.topic.verify().ok
        self.topic.append(self.made({0: 1}))
        self.clock.now_ms += DELAY
        self.topic.append(self.made({1: 1}))
        self.clock.now_ms += DELAY
        self.topic.vacuum()
        assert files(self.topic.storage) == named_files(self.topic.refresh())


TestBundles = pytest.mark.long(Bundles.TestCase)
TestBundles.settings = examples(10, stateful_step_count=25)
