"""Appends every second over many partitions, with merges on a schedule, for real, in memory: what do they cost?

Only the time is not real, so minutes take as long as their appends do. Everything else is: bundles, commits,
checkpoints, merges, vacuum, and a scan at the end. `merge_plans` does a week of the plans alone.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
from store_clock import TimedStorage
from topics import Clock, topic_on

from distlog.core.maintenance.merge import merge
from distlog.core.maintenance.merge_plan import plan_merge
from distlog.core.storage.storage import Storage, StorageCounters
from distlog.core.topics.topic import Topic
from soak.tally import Tally, demand

#: Records and bytes of a value that an append puts into a partition; how often `maintain` runs.
RECORDS, VALUE_BYTES, EVERY_S = 10, 100, 60
#: Live segments that a partition may have: those since the last run, and a few of each size.
MOST_SEGMENTS = EVERY_S + 40


def run(folder: Path, seed: int, *, seconds: int = 600, every_s: int = EVERY_S, partitions: int = 200) -> Tally:
    """Append every second, merge and vacuum every `every_s`; raises Violation if merges do not keep up."""
    week = _Week(partitions)
    for second in range(1, seconds + 1):
        week.append()
        if second % every_s == 0:
            week.maintain(every_s + MOST_SEGMENTS - EVERY_S)
    return week.end(seconds)


@dataclass
class _Week:
    """A topic, and what its appends and merges have cost so far."""

    partitions: int
    tally: Tally = field(default_factory=Tally)

    def __post_init__(self) -> None:
        self.clock = Clock()
        storage = TimedStorage(Storage(f"memory://{uuid.uuid4().hex}/t"), self.clock)
        self.topic = topic_on(storage, self.partitions, {"file.delete.delay.ms": 1000}, self.clock)
        numbers = np.repeat(np.arange(self.partitions, dtype=np.int32), RECORDS)
        values = np.random.default_rng(0).bytes(len(numbers) * VALUE_BYTES)
        value = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(VALUE_BYTES), len(numbers), [None, pa.py_buffer(values)]
        )
        self.columns = {"partition": pa.array(numbers), "value": value.cast(pa.binary())}

    def append(self) -> None:
        """A second passes, and an append comes."""
        self.clock.now_ms += 1000
        times = pa.array(np.full(self.partitions * RECORDS, self.clock.now_ms))
        with self._counted("appends"):
            self.topic.append(pa.table({**self.columns, "timestamp": times}))
        self.tally["bytes appended"] += sum(int(one.segments.log_bytes[-1]) for one in self.topic.snapshot.partitions)

    def maintain(self, most: int) -> None:
        """Merge and vacuum; merging must leave nothing that is worth it, and a partition `most` segments before."""
        self.topic.refresh()
        live = max(len(state.segments) for state in self.topic.snapshot.partitions)
        demand(live <= most, f"{live} segments after {self.tally['appends']} appends")
        self.tally["segments at most"] = max(self.tally["segments at most"], live)
        begin = time.thread_time()
        demand(bool(plan_merge(self.topic.snapshot)), "nothing to merge")
        self.tally.take(Tally({"milliseconds to plan at most": int((time.thread_time() - begin) * 1000)}))
        with self._counted("merges"):
            report, after = merge(self.topic.handle, self.topic.snapshot)
        self.topic.advance(after)
        demand(report.ok and not report.backlog, f"{report.backlog} segments left to merge")
        self.tally["segments read"] += sum(len(group.segments) for group in report.groups)
        self.tally["bytes copied"] += sum(group.log_bytes for group in report.groups)
        self.topic.vacuum()

    def end(self, seconds: int) -> Tally:
        """Check that all records are there; returns what was counted."""
        count = self.topic.scan(columns=["offset"]).count()
        demand(count == seconds * self.partitions * RECORDS, f"{count} records are left")
        demand(self.topic.verify().ok, "verify finds errors")
        return self.tally

    @contextmanager
    def _counted(self, what: str) -> Iterator[None]:
        before, begin = _counts(self.topic), time.process_time()
        yield
        self.tally[what] += 1
        for name, count in _counts(self.topic).items():
            self.tally[f"{name} of {what}"] += count - before[name]
        self.tally[f"milliseconds of {what}"] += int((time.process_time() - begin) * 1000)


def _counts(topic: Topic) -> dict[str, int]:
    counters: StorageCounters = topic.storage.counters
    return {"gets": counters.gets, "puts": counters.puts, "bytes written": counters.bytes_written}
