"""A random history of one partition, compared with a list of its values, on a disk that fails now and then.

Three processes (objects in one process) append, flush, roll, seal, trim, merge and vacuum.
"""

from __future__ import annotations

import random
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from partition_logs import Process, append_rows, commit_sealed, encoded, new_topic
from topics import NOW

from distlog.core import paths
from distlog.core.errors import DistlogError, StorageError
from distlog.core.log.partition_log import Appended
from distlog.core.topic import Topic
from soak.tally import Tally, demand

ACTIONS = ("append",) * 8 + ("flush",) * 3 + ("checkpoint", "roll", "seal", "trim", "merge", "vacuum")


class Faults(Protocol):
    """Makes a disk fail. With `loses` it may lose unflushed data, as after a failed sync."""

    loses: bool

    def begin(self) -> None: ...
    def end(self) -> None: ...


class Pending(NamedTuple):
    process: Process
    appended: Appended
    values: list[bytes]


class History:
    """`values` are the visible records by offset; the first `flushed` must survive a power loss."""

    def __init__(self, folder: Path, chance: random.Random, tally: Tally) -> None:
        self.chance, self.tally = chance, tally
        self.policy = chance.choice([1, 1, 3, None])
        self.values: list[bytes] = []
        self.unsure: list[bytes] = []
        self.flushed = self.start = self.next_start = self._next_number = 0
        self.pending: list[Pending] = []
        self._may_lose = False
        self.topic = new_topic(
            folder / "events",
            internal_segment_bytes=chance.choice([300, 2000, 1 << 16]),
            segment_index_bytes=chance.choice([200, 4000]),
            index_interval_bytes=chance.choice([0, 200]),
            preallocate=chance.random() < 0.3,
            file_delete_delay_ms=0,
        )
        self.processes: list[Process] = []

    def begin(self) -> None:
        self.processes = [Process(self.topic) for _ in range(3)]
        self.check()

    def end(self) -> None:
        for process in self.processes:
            process.close()

    def act(self, faults: Faults | None) -> None:
        """Do one action, perhaps on a failing disk."""
        action, self._may_lose = self.chance.choice(ACTIONS), bool(faults and faults.loses)
        if faults:
            faults.begin()
        try:
            self.do(action)
        except DistlogError as error:
            demand(faults is not None, f"{action} fails on a sound disk: {error}")
            self.tally["actions that failed"] += 1
        finally:
            if faults:
                faults.end()
        if faults:
            # the next process repairs the log
            self._process()[0].end()
        self._apply_values(self.check(), action)

    def killed(self, killing: AbstractContextManager[None], *, may_lose: bool) -> None:
        """Do one action, and perhaps kill its process, so that its records may be in the log or not."""
        action, self._may_lose = self.chance.choice(ACTIONS), may_lose
        with suppress(DistlogError), killing:
            self.do(action)
        self.end()
        self.processes = [Process(self.topic) for _ in range(3)]
        # a dead process may not have synced its commit, and the next commit makes it durable
        self._process().handle.storage.sync(paths.COMMITS_DIR)
        if may_lose:
            with suppress(StorageError):
                self._process()[0].flush()
        self._process()[0].end()
        self._apply_values(self.check(), action)

    def do(self, action: str) -> None:
        getattr(self, f"_{action}")()

    def _process(self) -> Process:
        return self.chance.choice(self.processes)

    def _apply_values(self, values: list[bytes], action: str) -> None:
        """Check the values that readers get, and continue with them."""
        self.values += self.unsure[: max(len(values) + self.start - len(self.values), 0)]
        self.unsure = []
        expected = self.values[self.start :]
        if self._may_lose:
            expected = expected[: max(len(values), self.flushed - self.start)]
            self.values = self.values[: self.start + len(values)]
        demand(values == expected, f"after {action} readers see {len(values)} records, not {len(expected)}")

    def _append(self) -> None:
        numbers = range(self._next_number, self._next_number + self.chance.randint(1, 3))
        values = [b"%d " % number * self.chance.choice([1, 9]) for number in numbers]
        self._next_number, self.unsure = numbers.stop, values
        process = self._process()
        appended = append_rows(process[0], *encoded(*values, time=NOW + self._next_number))
        self.unsure = []
        first, end = appended.first_offset, len(self.values)
        demand(first <= end and (self._may_lose or first == end), f"an append begins at {first}, not at {end}")
        self.values[first:] = values
        self.tally["records appended"] += len(values)
        self.pending.append(Pending(process, appended, values))
        if self.policy and len(self.pending) >= self.policy:
            self._apply(self.pending[-1])

    def _flush(self) -> None:
        if self.pending and self.chance.random() < 0.7:
            self._apply(self.chance.choice(self.pending))
            return
        self._process()[0].flush()
        self.flushed = len(self.values)

    def _checkpoint(self) -> None:
        self._process()[0].checkpoint()
        self.flushed = len(self.values)

    def _apply(self, pending: Pending) -> None:
        """Flush pending records: they become durable, or an error reports their loss."""
        self.pending.remove(pending)
        first, end = pending.appended.first_offset, pending.appended.end_offset
        is_in_log = self.values[first:end] == pending.values
        try:
            pending.process[0].flush(pending.appended)
        except StorageError:
            if is_in_log:
                raise
            self.tally["records lost with an error"] += end - first
            return
        demand(is_in_log, "a flush confirms lost records")
        self.flushed = max(self.flushed, end)
        self.tally["records flushed"] += end - first

    def _roll(self) -> None:
        self._process()[0].roll()

    def _seal(self) -> None:
        commit_sealed(self._process())
        self.flushed = len(self.values)

    def _trim(self) -> None:
        topic = self._topic()
        head = topic.snapshot.partitions[0].log_end_offset
        self.next_start = max(self.start, self.chance.randint(0, head))
        topic.delete_records({0: self.next_start})
        self.start = self.next_start
        topic.retention()

    def _merge(self) -> None:
        self._topic().compact()

    def _vacuum(self) -> None:
        self._topic().vacuum()

    def _topic(self) -> Topic:
        process = self._process()
        return Topic(process.handle, process.head())

    def check(self) -> list[bytes]:
        """Return the values that a new reader gets from the log start on."""
        process = Process(self.topic)
        topic = Topic(process.handle, process.head())
        table = topic.scan(columns=["offset", "value"]).to_table()
        start = topic.start_offsets()[0]
        demand(start in (self.start, self.next_start), f"the log starts at {start}, not at {self.start}")
        self.start = self.next_start = start
        offsets = table.column(0).to_pylist()
        demand(offsets == list(range(start, start + len(offsets))), f"offsets have gaps: {offsets}")
        demand(topic.end_offsets()[0] == start + len(offsets), "the log end is not right after the last record")
        process.close()
        return list(table.column(1).to_pylist())
