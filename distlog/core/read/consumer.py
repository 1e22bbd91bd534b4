"""A consumer: returns the records of a topic as they are appended, one Arrow batch after the other."""

from __future__ import annotations

import logging
import os
import platform
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from math import inf
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import numpy as np
import pyarrow as pa

from distlog.core.arrays import numbers_of, whole_number, whole_numbers
from distlog.core.commits.commit_log import CurrentSnapshot
from distlog.core.commits.snapshot import PartitionState, Snapshot, check_partition
from distlog.core.errors import (
    DistlogError,
    GroupNotFoundError,
    InvalidConfigError,
    OffsetOutOfRangeError,
    SnapshotTooOldError,
    TopicNotFoundError,
)
from distlog.core.log.live_snapshot import LiveSnapshot, TailWatch
from distlog.core.read.consumer_group import FREQUENT, LONGEST_LEASE_MS, RARE, GroupLog, Membership, reset_positions
from distlog.core.read.kafka_offsets import kafka_positions
from distlog.core.read.lookup import EARLIEST, LATEST, offsets_for_times
from distlog.core.read.scan import check_choice, check_columns, checked_workers, plan_slices
from distlog.core.segments import segment_reader
from distlog.core.segments.chunks import IsolationLevel, OutOfRange, bounded_start
from distlog.core.segments.producer_states import last_stable_offset
from distlog.core.segments.segment_reader import SegmentReader, TopicHandle
from distlog.core.times import Time, elapsed_s, to_ms

if TYPE_CHECKING:
    from typing_extensions import Self

#: Pauses between two refreshes: the first and the longest in seconds, and the factor by which a pause grows. A
#: refresh from a local disk costs microseconds, and from an object store a request.
LOCAL_PAUSES, REMOTE_PAUSES = (0.0005, 0.005, 17 / 16), (0.05, 1.0, 2.0)
_MAX_FAILURES = 3  # failed reads in a row, because vacuum has deleted files of their snapshot
LEASE_S = 60.0
#: About how many log bytes of a partition are read before other partitions and newer metadata are read.
WINDOW_BYTES = 64 << 20

Start = Time | Mapping[int, Time]
"""Where to begin, for all partitions or by partition: an offset, a time, or EARLIEST, LATEST or MAX_TIMESTAMP."""
#: Records, and the next offset after them in each of their partitions.
RecordsAndEnds = tuple[pa.RecordBatch, Mapping[int, int]]

_log = logging.getLogger(__name__)


class Consumer:
    """Iterate over RecordBatches, in order in each partition; made by `Topic.consume`.

    For one thread of one process; only `close` may be called from other threads, and from signal handlers. After an
    error, and after the timeout, iterating again continues after the last batch that was returned. At the end of a
    `with` block the consumer leaves its group. If the block raised no error, and `commit` was never called, it first
    commits the records that were returned.
    """

    def __init__(self, log: ConsumedLog, assignment: ConsumerAssignment, options: ConsumeOptions) -> None:
        self._log, self._assignment, self._options, self._clock = log, assignment, options, options.clock
        first_s, longest_s, self._growth = LOCAL_PAUSES if log.handle.storage.is_local else REMOTE_PAUSES
        self._longest_pause_s = longest_s if options.poll_interval is None else options.poll_interval
        self._first_pause_s = min(first_s, self._longest_pause_s)
        self._window: Window | None = None
        #: By partition, the offset at which the log was cut off, as after a failed sync, if the position was past it.
        self._cuts: dict[int, int] = {}
        self._use_lock, self._is_closed = threading.Lock(), False
        self._is_entered, self._commits_at_end = False, True
        self._process = os.getpid()
        # `close` ends a pause by opening this gate: an Event could deadlock if a signal handler calls `close`
        self._gate = threading.Lock()
        self._gate.acquire()
        self._sleep = options.sleep or self._wait_at_gate

    @property
    def position(self) -> dict[int, int]:
        """The next offset to be returned, by partition; with a group, of this member's partitions."""
        return dict(self._assignment.position)

    def lag(self) -> dict[int, int]:
        """Return the number of offsets after the position, by partition, by the newest metadata.

        Examples:
            >>> topic.consume(timeout=0).lag()
            {0: 2, 1: 1}
        """
        with self._exclusively():
            self._refresh()
            positions = {number: offset for number, offset in self.position.items() if number < self._log.partitions}
            return {number: max(0, self._log.end(number) - offset) for number, offset in positions.items()}

    def commit(self, positions: Mapping[int, int] | None = None) -> None:
        """Commit the group's offsets, in the topic.

        Args:
            positions: Offsets to commit, by partition; default the ends of the records that were returned.

        Raises:
            FencedMemberError: This member has lost its partitions to other members.
            OffsetOutOfRangeError: An offset was not returned, or is below the committed one.
            InvalidConfigError: The consumer has no group.
            CommitStateUnknownError: The commit may have happened; another commit is harmless.

        Examples:
            >>> with topic.consume(group="billing", timeout=0) as consumer:
            ...     for batch in consumer:
            ...         consumer.commit()
            >>> topic.groups()["position"].to_pylist()
            [2, 1]
        """
        with self._exclusively():
            self._commits_at_end = False
            self._assignment.commit(positions)

    def close(self) -> None:
        """End the iteration, and leave the group without a commit.

        In a `with` block, the consumer leaves the group at the end of the block. Without a block, a thread that is
        iterating leaves the group at its next step.
        """
        if self._is_inherited:
            return
        self._is_closed = True
        with suppress(RuntimeError):  # another call has opened the gate
            self._gate.release()
        if not self._is_entered and self._use_lock.acquire(blocking=False):
            try:
                self._assignment.leave()
            finally:
                self._use_lock.release()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Consumer cannot be pickled: pickle its topic, and call consume() in the other process")

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> pa.RecordBatch:
        delivery: RecordsAndEnds | None = None
        former: dict[int, int] = {}
        try:
            with self._exclusively():
                delivery = self._wait_for_records()
                if delivery is None:
                    raise StopIteration
                records, ends = delivery
                position = self._assignment.position
                former = {number: position[number] for number in ends}
                position.update(ends)
            return records
        except BaseException:
            if delivery is not None:
                # an interrupt came before the caller had the batch, so it is delivered again
                self._window = None
                self._assignment.position.update(former)
            raise

    def _wait_for_records(self) -> RecordsAndEnds | None:
        """Return the next records; None after the timeout, or when the consumer was closed."""
        idle_since, pause_s, failures = self._clock(), self._first_pause_s, 0
        while not self._is_closed:
            try:
                delivery = self._next_delivery()
            except SnapshotTooOldError:
                failures += 1
                if failures == _MAX_FAILURES:
                    raise
                self._refresh(forced=True)
                continue
            if delivery is not None:
                return delivery
            # check the timeout here, too: if a renewal is due, the inner loop ends before its own check
            if self._assignment.due_s() <= 0 and self._remaining_s(idle_since) <= 0:
                return None
            while not self._is_closed:
                due_s = self._assignment.due_s()
                if due_s <= 0 or self._refresh():
                    break
                remaining_s = self._remaining_s(idle_since)
                if remaining_s <= 0:
                    return None
                self._sleep(min(pause_s, remaining_s, due_s))
                pause_s = min(self._growth * pause_s, self._longest_pause_s)
        if not self._is_entered:
            self._assignment.leave()
        return None

    def _next_delivery(self) -> RecordsAndEnds | None:
        try:
            if self._assignment.renew():
                self._window = None
            delivery = self._read_next()
            if delivery is not None:
                self._assignment.prolong()
            if delivery is None or not self._assignment.is_lapsed:
                return delivery
        except BaseException:
            self._window = None
            raise
        _log.warning("reading a batch took longer than the lease, so it was not delivered: choose a longer lease")
        self._window = None
        return None

    def _read_next(self) -> RecordsAndEnds | None:
        while True:
            if self._window is None:
                self._bound_positions()
                self._window = self._log.read(self._assignment.readable)
                if self._window is None:
                    return None
            delivery = next(self._window.deliveries, None)
            if delivery is not None:
                return delivery
            self._assignment.position.update(self._window.ends)
            self._window = None

    def _refresh(self, *, forced: bool = False) -> bool:
        is_new, position = self._log.refresh(forced=forced), self._assignment.position
        self._cuts |= {number: cut for number, cut in self._log.cuts.items() if position.get(number, 0) > cut}
        return is_new

    def _bound_positions(self) -> None:
        """Move the positions that retention has passed, or that were cut off; raise if `out_of_range` is "fail"."""
        ends = [state.log_end_offset for state in self._log.snapshot.partitions]
        if any(offset > ends[number] for number, offset in self._assignment.readable.items()):
            self._refresh(forced=True)  # another member of the group has a newer snapshot
        for number, offset in self._assignment.readable.items():
            # appends may have reached the position since the cut, so the log end does not show the cut
            start = self._offset_at_cut(number, offset, self._cuts[number]) if number in self._cuts else offset
            bounded = bounded_start(number, start, self._log.snapshot.partitions[number], self._options.out_of_range)
            if bounded != offset:
                self._assignment.move(number, bounded)
            self._cuts.pop(number, None)
        # forget the cuts of partitions that this member gave up: other members move these positions
        self._cuts = {number: cut for number, cut in self._cuts.items() if number in self._assignment.position}

    def _offset_at_cut(self, number: int, offset: int, cut: int) -> int:
        if offset > cut and self._options.out_of_range == "fail":
            raise OffsetOutOfRangeError(
                "delivered records are no longer in the log, which was cut off when a sync failed; undo their "
                "effects, then consume from cut_at: pass it as start, or in a group call reset_group",
                partition=number,
                offset=offset,
                cut_at=cut,
            )
        return min(offset, cut)

    def _remaining_s(self, since: float) -> float:
        timeout_s = self._options.timeout
        return self._longest_pause_s if timeout_s is None else since + timeout_s - self._clock()

    def _wait_at_gate(self, seconds: float) -> None:
        if self._gate.acquire(timeout=seconds):
            self._gate.release()

    def _exclusively(self) -> threading.Lock:
        """Return the lock for a `with` block. Raises RuntimeError if another thread holds it."""
        if self._is_inherited:
            raise RuntimeError("a forked child cannot use the consumer of its parent: make one in the child")
        if self._use_lock.locked():
            raise RuntimeError("another thread uses this consumer: make a consumer for each thread")
        return self._use_lock

    @property
    def _is_inherited(self) -> bool:
        return os.getpid() != self._process

    def __enter__(self) -> Self:
        self._is_entered = True
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._is_entered = False
        try:
            if kind is None and self._commits_at_end and not self._is_inherited:
                with self._exclusively():
                    self._assignment.finish()
        finally:
            self.close()


@dataclass(frozen=True, slots=True)
class ConsumeOptions:
    """The arguments of `topic.consume`; `clock` and `sleep` are in seconds."""

    partitions: int | Iterable[int] | None = None
    start: Start | None = None
    group: str | None = None
    timeout: float | None = None
    columns: str | Iterable[str] | None = None
    isolation: IsolationLevel = "read_uncommitted"
    out_of_range: OutOfRange = "fail"
    max_workers: int | None = None
    poll_interval: float | None = None
    lease: float = LEASE_S
    clock: Callable[[], float] = elapsed_s
    sleep: Callable[[float], object] | None = None

    def begin(self, handle: TopicHandle, snapshot: Snapshot) -> Consumer:
        """Return the consumer, with its first positions, as a member of its group."""
        check_choice("isolation", self.isolation, IsolationLevel)
        check_choice("out_of_range", self.out_of_range, OutOfRange)
        _check_seconds("timeout", self.timeout, 0)
        _check_seconds("lease", self.lease, 0.001, LONGEST_LEASE_MS / 1000)
        _check_seconds("poll_interval", self.poll_interval, 0.0001)
        workers = checked_workers(self.max_workers)
        log = ConsumedLog(handle, snapshot, check_columns(self.columns), self.isolation, workers)
        log.refresh()
        assignment = self._assignment(log)
        assignment.renew()
        return Consumer(log, assignment, self)

    def _assignment(self, log: ConsumedLog) -> ConsumerAssignment:
        selected = None if self.partitions is None else set(whole_numbers("partition", self.partitions))
        start_partitions = self.start if isinstance(self.start, Mapping) else ()
        for number in (*(selected or ()), *whole_numbers("partition", start_partitions)):
            check_partition(number, log.partitions)
        partitions = None if selected is None else tuple(sorted(selected))
        if self.group is None:
            return ConsumerAssignment(log, partitions, self)
        storage, sleep = log.handle.storage, self.sleep or time.sleep
        name = f"{platform.node()[:200]}:{os.getpid()}"
        member = Membership(
            GroupLog(storage, log.snapshot.topic_id, self.group, sleep=sleep, clock=self.clock),
            lambda members: name,
            partitions,
            self.lease,
            FREQUENT if storage.is_local else RARE,
            self.clock,
            log.handle.new_id,
        )
        return GroupAssignment(log, member, self)


def _check_seconds(name: str, value: float | None, low: float, high: float = inf) -> None:
    if value is not None and not (isinstance(value, int | float) and low <= value <= high):
        raise InvalidConfigError(f"{name} must be a number of seconds from {low:g} to {high:g}", value=repr(value))


def reset_group(
    handle: TopicHandle, snapshot: Snapshot, group: str, to: Start | None, kafka: str | None
) -> dict[int, int]:
    """Set a group's committed offsets to `to`, or to the offsets of the Kafka group `kafka`. Returns all offsets."""
    if (to is None) == (kafka is None):
        text = "give either `to`, the new offsets, or `kafka`, a group of Kafka clients whose offsets are copied"
        raise InvalidConfigError(text, group=group)
    if kafka is not None:
        # where retention has passed an offset, the log start applies, as in Kafka
        log_starts = {number: state.log_start_offset for number, state in enumerate(snapshot.partitions)}
        committed = kafka_positions(handle, kafka, since_ms=snapshot.replaced_ms)
        to = {number: max(log_starts[number], offset) for number, offset in committed.items() if number in log_starts}
        if not to:
            text = "this group of Kafka clients has no committed offset in the topic: check its name"
            raise GroupNotFoundError(text, group=kafka)
    count = len(snapshot.partitions)
    starts = start_offsets(handle.reader, snapshot, range(count), to)
    positions = {number: starts[number] for number in starts if not isinstance(to, Mapping) or number in to}
    log = GroupLog(handle.storage, snapshot.topic_id, group)
    return dict(reset_positions(log, positions, starts, is_empty=kafka is not None).positions)


class ConsumedLog:
    """A topic as one consumer reads it, with the consumer's own snapshot, which `refresh` renews."""

    def __init__(
        self, handle: TopicHandle, snapshot: Snapshot, columns: Sequence[str], isolation: IsolationLevel, workers: int
    ) -> None:
        self.handle, self.snapshot = handle, snapshot
        self._columns, self._isolation, self._workers = tuple(columns), isolation, workers
        self._live = LiveSnapshot(handle, CurrentSnapshot(handle.log, snapshot))
        self._watch = TailWatch(handle) if handle.storage.is_local else None
        self._is_stale = True
        self._ends: dict[int, int] = {}
        #: By partition, where the last `refresh` found the active segment sealed, below the former log end: a cut.
        self.cuts: Mapping[int, int] = {}

    @property
    def partitions(self) -> int:
        return len(self.snapshot.partitions)

    def end(self, partition: int) -> int:
        """Return the offset before which records may be read: the log end, or the last stable offset."""
        if partition not in self._ends:
            state = self.snapshot.partitions[partition]
            is_committed = self._isolation == "read_committed"
            end = last_stable_offset(self.handle.reader, state) if is_committed else state.log_end_offset
            self._ends[partition] = end
        return self._ends[partition]

    def refresh(self, *, forced: bool = False) -> bool:
        """Load the newest snapshot if anything may be new, or if `forced`. Returns whether the snapshot changed."""
        self._is_stale, self.cuts = self._is_stale or forced, {}
        # even if forced, call `changed` before the snapshot is read: it notes the pages, which later appends change
        may_be_new = self._watch is None or self._watch.changed(self.snapshot) or self._is_stale
        if not may_be_new:
            return False
        self._is_stale = True  # stays True if the refresh fails
        former, self.snapshot = self.snapshot, self._live.refresh()
        self._is_stale = False
        if self.snapshot is former:
            return False
        self._ends.clear()
        ends = ((n, old, _sealed_end(old, self.snapshot.partitions[n])) for n, old in enumerate(former.partitions))
        self.cuts = {n: end for n, old, end in ends if end is not None and end < old.log_end_offset}
        return True

    def read(self, positions: Mapping[int, int]) -> Window | None:
        """Return records from `positions` on, about WINDOW_BYTES a partition; None if there are no more records."""
        bounds = {
            number: (start, _window_end(self.snapshot.partitions[number], start, self.end(number)))
            for number, start in positions.items()
            if start < self.end(number)
        }
        if not bounds:
            return None
        reader = self.handle.reader
        slices, visible = plan_slices(reader, self.snapshot, bounds, self._isolation)
        columns = (*self._columns, *(name for name in ("partition", "offset") if name not in self._columns))
        batches = segment_reader.read_slices(reader, slices, columns, visible, self._workers)
        ends = {number: end for number, (_, end) in bounds.items()}
        deliveries = ((batch.select(self._columns), ends_of(batch)) for batch in batches if batch.num_rows)
        return Window(deliveries, ends)


def start_offsets(
    reader: SegmentReader,
    snapshot: Snapshot,
    partitions: Collection[int],
    start: Start | None,
    out_of_range: OutOfRange = "fail",
) -> dict[int, int]:
    """Return the offset of `start` in each of the `partitions`; the log start where `start` has none."""
    offsets: dict[int, int] = {}
    times: dict[int, int] = {}
    for number in partitions:
        state = snapshot.partitions[number]
        value = start.get(number) if isinstance(start, Mapping) else start
        if isinstance(value, str | date):
            times[number] = to_ms(value, round_up=True)
            continue
        offset = EARLIEST if value is None else whole_number("start", value)
        if offset in (EARLIEST, LATEST):
            offsets[number] = state.log_start_offset if offset == EARLIEST else state.log_end_offset
        elif offset < 0:  # MAX_TIMESTAMP; a lookup refuses other negative numbers
            times[number] = offset
        else:
            offsets[number] = bounded_start(number, offset, state, out_of_range)
    for number, record in offsets_for_times(reader, snapshot.partitions, times).items():
        offsets[number] = snapshot.partitions[number].log_end_offset if record is None else record[0]
    return {number: offsets[number] for number in partitions}


class Window(NamedTuple):
    """The records of a range of offsets in each partition, and the ends of the ranges, which may lie after them."""

    deliveries: Iterator[RecordsAndEnds]
    ends: Mapping[int, int]


def ends_of(batch: pa.RecordBatch) -> dict[int, int]:
    """Return the offset after the batch's last record, by partition."""
    partitions, offsets = numbers_of(batch.column("partition")), numbers_of(batch.column("offset"))
    if partitions[0] == partitions[-1]:
        return {int(partitions[0]): int(offsets[-1]) + 1}
    last = [*np.flatnonzero(np.diff(partitions)).tolist(), batch.num_rows - 1]
    return {int(partitions[row]): int(offsets[row]) + 1 for row in last}


def _sealed_end(old: PartitionState, now: PartitionState) -> int | None:
    """Return the end of the segment that was active in `old`; None if it is still active, or was merged."""
    active = old.active
    if active is None or now.active == active:
        return None
    row = now.segments.find(active.base_offset)
    if row == len(now.segments):  # it was sealed without a record, or was removed
        return now.log_end_offset
    first = now.segments[row]
    if first.stem == active.stem:
        return first.next_offset
    # if the next active segment has its base offset, it was sealed without a record
    is_empty = now.active is not None and first.stem == now.active.stem and first.base_offset == active.base_offset
    return active.base_offset if is_empty else None


def _window_end(state: PartitionState, start: int, end: int) -> int:
    """Return the end of the last segment that fits into WINDOW_BYTES; a larger segment is cut by its offsets."""
    segments = state.segments
    row = segments.find(start)
    end_row = row + int(np.searchsorted(np.cumsum(segments.log_bytes[row:]), WINDOW_BYTES, side="right"))
    if end_row == len(segments):
        return end
    if end_row > row:
        return min(end, int(segments.next_offsets[end_row - 1]))
    segment = segments[row]
    step = (segment.next_offset - segment.base_offset) * WINDOW_BYTES // segment.log_bytes  # offsets in WINDOW_BYTES
    return min(end, max(start, segment.base_offset) + max(step, 1))


class ConsumerAssignment:
    """The partitions that a consumer without a group reads: `partitions` of `log`, or all if None."""

    def __init__(self, log: ConsumedLog, partitions: Collection[int] | None, options: ConsumeOptions) -> None:
        self.log, self._partitions, self._options = log, partitions, options
        #: By partition, the next offset to deliver.
        self.position: dict[int, int] = {}

    @property
    def readable(self) -> Mapping[int, int]:
        return self.position

    @property
    def is_lapsed(self) -> bool:
        return False

    def due_s(self) -> float:
        return inf

    def renew(self) -> bool:
        """Update the partitions to read. Returns whether any was added or removed."""
        selected = range(self.log.partitions) if self._partitions is None else self._partitions
        if len(self.position) == len(selected):
            return False
        self.position |= self.begin([n for n in selected if n not in self.position], bool(self.position))
        return True

    def prolong(self) -> None:
        """Extend the lease, if there is one, for a batch that is about to be delivered."""

    def commit(self, positions: Mapping[int, int] | None) -> None:
        raise InvalidConfigError("the consumer has no group: consume with group=NAME to commit offsets")

    def move(self, partition: int, offset: int) -> None:
        self.position[partition] = offset

    def finish(self) -> None:
        """Commit the delivered records, if there is a group."""

    def leave(self) -> None:
        """Give up the partitions, if there is a group."""

    def begin(self, partitions: Collection[int], added: bool) -> dict[int, int]:
        """Return the first offsets to read: by `start`, or 0 in partitions that were `added` later."""
        if added:
            return dict.fromkeys(partitions, 0)
        start, out_of_range = self._options.start, self._options.out_of_range
        return start_offsets(self.log.handle.reader, self.log.snapshot, partitions, start, out_of_range)


class GroupAssignment(ConsumerAssignment):
    def __init__(self, log: ConsumedLog, member: Membership, options: ConsumeOptions) -> None:
        super().__init__(log, None, options)
        self._member, self._joins = member, 0
        self._committed: dict[int, int] = {}

    @property
    def readable(self) -> Mapping[int, int]:
        """The position without partitions that other members wait for, or that the snapshot lacks."""
        leaving = self._member.leaving
        return {n: offset for n, offset in self.position.items() if n not in leaving and n < self.log.partitions}

    @property
    def is_lapsed(self) -> bool:
        return self._member.is_lapsed

    def due_s(self) -> float:
        return self._member.due_s(self._pending())

    def renew(self) -> bool:
        """Join, send heartbeats, acquire and give up partitions, when these are due."""
        if self.due_s() > 0:
            return False
        former = self.readable.keys()
        self._member.sync(lambda: self.log.partitions, self.begin, self._pending())
        is_moved = self._update_positions()
        return is_moved or self.readable.keys() != former

    def prolong(self) -> None:
        self._member.prolong()

    def commit(self, positions: Mapping[int, int] | None) -> None:
        """Commit `positions`, or all if None. Raises FencedMemberError, and OffsetOutOfRangeError."""
        checked = {number: whole_number("offset", offset) for number, offset in (positions or {}).items()}
        for number, offset in checked.items():
            if number not in self.position:
                text = "this member does not own the partition: commit only those in `position`"
                raise TopicNotFoundError(text, partition=number)
            low, high = self._committed[number], self.position[number]
            if not low <= offset <= high:
                raise OffsetOutOfRangeError(
                    "an offset to commit must lie between the committed offset and the end of the delivered records",
                    partition=number,
                    offset=offset,
                    committed=low,
                    delivered=high,
                )
        self._member.commit(self.position if positions is None else checked)
        self._update_positions()

    def move(self, partition: int, offset: int) -> None:
        """Move a position, and also the committed offset if this is higher, as after a cut of the log."""
        super().move(partition, offset)
        if offset < self._committed[partition]:
            self._member.commit({partition: offset}, back=True)
            self._update_positions()

    def finish(self) -> None:
        if self._pending():
            self.commit(None)

    def leave(self) -> None:
        self.position, self._committed = {}, {}
        try:
            self._member.leave()
        except DistlogError as error:
            # do not raise, since an error that ended the iteration matters more
            _log.warning("could not leave the group: the other members wait for the lease to end (%s)", error)

    def _pending(self) -> Collection[int]:
        """Return the partitions with delivered records whose offsets are not committed yet."""
        return {number for number, offset in self.position.items() if offset > self._committed[number]}

    def _update_positions(self) -> bool:
        """Move new and regained partitions to their committed offsets. Returns whether any position moved."""
        rejoined, self._joins = self._joins != self._member.joins, self._member.joins
        current = {} if rejoined else self.position
        self._committed = self._member.owned
        self.position = {n: max(current.get(n, offset), offset) for n, offset in self._committed.items()}
        return rejoined or any(current.get(n, offset) < offset for n, offset in self._committed.items())
