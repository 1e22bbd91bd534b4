"""A partition against a list of values, with any order of what three processes do to it, and of how they end.

All processes are objects of one, each with what it knew last. A process may end before any of its steps, and the
machine before any action: then the page is lost, garbled or old, and the log ends anywhere behind what was flushed.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from active_segments import FailingCalls
from hypothesis import Phase
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from partition_logs import Killed, Killer, Process, append, commit_sealed, new_topic
from searches import examples

from distlog.core import paths
from distlog.core.errors import StorageError
from distlog.core.storage.locks_and_pages import PAGE_BYTES

WHO = st.integers(0, 2)
COUNTS = st.integers(1, 3)
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "lost": lambda page: b"",
    "garbled": lambda page: os.urandom(PAGE_BYTES),
    "old": lambda page: page,
}


class PartitionModel(RuleBasedStateMachine):
    """`self.values` are the records, of which the first `self.flushed` were promised to be durable."""

    @initialize(segment_bytes=st.sampled_from([200, 400, 1 << 20]))
    def begin(self, segment_bytes: int) -> None:
        self.patches = pytest.MonkeyPatch()
        self.boot = 0
        self.patches.setattr("distlog.core.log.partition_lock.boot_id", lambda: self.boot.to_bytes(16, "big"))
        self.calls = FailingCalls()
        self.killer = Killer(self.patches)
        self.root = tempfile.TemporaryDirectory()
        self.folder = new_topic(Path(self.root.name) / "events", internal_segment_bytes=segment_bytes)
        self.processes = [self.made() for _ in range(3)]
        self.values: list[bytes] = []
        self.flushed = self.made_values = 0

    def made(self) -> Process:
        return Process(self.folder, calls=self.calls)

    def new_values(self, count: int) -> list[bytes]:
        self.made_values += count
        return [b"%d" % number for number in range(self.made_values - count, self.made_values)]

    def seen(self) -> list[bytes | None]:
        process = self.made()
        try:
            return process.seen()[0]
        finally:
            process.close()

    @rule(who=WHO, count=COUNTS)
    def append(self, who: int, count: int) -> None:
        values = self.new_values(count)
        first = len(self.values)
        assert append(self.processes[who][0], *values) == (first, first + count)
        self.values += values

    @rule(who=WHO)
    def roll(self, who: int) -> None:
        self.processes[who][0].roll()

    @rule(who=WHO)
    def flush(self, who: int) -> None:
        self.processes[who][0].flush()
        self.flushed = len(self.values)
        assert self.processes[who][0].end() == (self.flushed, self.flushed)

    @rule(who=WHO)
    def seal(self, who: int) -> None:
        commit_sealed(self.processes[who])
        self.flushed = len(self.values)

    @rule(who=WHO, action=st.sampled_from(["append", "roll", "flush", "seal"]), step=st.integers(0, 40))
    def end_in(self, who: int, action: str, step: int) -> None:
        process, values = self.processes[who], self.new_values(1)
        actions = {
            "append": lambda: append(process[0], *values),
            "roll": lambda: process[0].roll(),
            "flush": lambda: process[0].flush(),
            "seal": lambda: commit_sealed(process),
        }
        try:
            with self.killer.killing(step):
                actions[action]()
        except Killed:
            process.close()
            self.processes[who] = self.made()
            # what was written whole is seen when somebody has recovered it
            self.processes[(who + 1) % 3][0].end()
        seen = self.seen()
        assert seen in (self.values, [*self.values, *values])
        self.values = [value for value in seen if value is not None]

    @rule(who=WHO)
    def fail_to_sync(self, who: int) -> None:
        self.calls.fail("fsync", code=errno.EIO)
        try:
            self.processes[who][0].flush()
            lost = False
        except StorageError:
            lost = True
        self.calls.fail("fsync", times=0)
        seen = self.seen()
        assert seen == self.values[: len(seen)]
        assert len(seen) >= self.flushed if lost else len(seen) == len(self.values)
        self.values = self.values[: len(seen)]

    @rule(damage=st.sampled_from(sorted(DAMAGES)), part=st.floats(0, 1))
    def lose_power(self, damage: str, part: float) -> None:
        reached = self.flushed_position()
        for process in self.processes:
            process.close()
        self.boot += 1
        folder = self.folder / "events-0"
        page = folder / paths.LOCK_FILE
        if page.exists():
            page.write_bytes(DAMAGES[damage](page.read_bytes()))
        if reached is not None:
            log, position = folder / f"{reached[0]}.log", reached[1]
            os.truncate(log, position + int(part * (log.stat().st_size - position)))
        self.processes = [self.made() for _ in range(3)]
        seen = self.seen()
        assert seen == self.values[: len(seen)]
        assert len(seen) >= self.flushed
        self.values = self.values[: len(seen)]

    def flushed_position(self) -> tuple[str, int] | None:
        """The active segment's stem, and up to where the device has it."""
        with self.processes[0].holding(0) as active:
            segment = active.recover()
            return None if segment is None else (segment.stem, segment.state.flushed_position)

    @invariant()
    def a_reader_sees_all(self) -> None:
        if hasattr(self, "processes"):
            assert self.seen() == self.values

    def teardown(self) -> None:
        if not hasattr(self, "processes"):
            return
        assert self.processes[0].anomalies() == ()
        for process in self.processes:
            process.close()
        self.patches.undo()
        self.root.cleanup()


TestPartitionModel = pytest.mark.long(PartitionModel.TestCase)
TestPartitionModel.settings = examples(
    12,
    stateful_step_count=20,
    # it runs for a second each: to shrink takes minutes
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)
