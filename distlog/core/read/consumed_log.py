"""The records that a consumer reads, and its positions: by itself, or its part of a group's."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import date
from math import inf

import numpy as np
import pyarrow as pa

from distlog.core.arrays import numbers_of
from distlog.core.commits.commit_log import CurrentSnapshot
from distlog.core.commits.snapshot import PartitionState, Snapshot
from distlog.core.errors import DistlogError, InvalidConfigError, OffsetOutOfRangeError, TopicNotFoundError
from distlog.core.integers import whole_number
from distlog.core.log.live_snapshot import LiveSnapshot, TailWatch
from distlog.core.read import scan_plan
from distlog.core.read.membership import Membership
from distlog.core.read.time_lookup import EARLIEST, LATEST, offsets_for_times
from distlog.core.segments import segment_reader
from distlog.core.segments.chunks import IsolationLevel
from distlog.core.segments.segment_reader import SegmentReader
from distlog.core.segments.slices import OutOfRange, bounded_start
from distlog.core.segments.topic_handle import TopicHandle
from distlog.core.segments.transactions import last_stable_offset, transactional_segments
from distlog.core.times import Time, to_ms


class ConsumedLog:
    """A topic as one consumer reads it; `look` moves it on. It is not the snapshot of the topic object."""

    def __init__(
        self,
        handle: TopicHandle,
        snapshot: Snapshot,
        columns: Sequence[str],
        isolation: IsolationLevel,
        max_workers: int,
    ) -> None:
        self.handle, self.snapshot = handle, snapshot
        self._columns, self._isolation, self._max_workers = tuple(columns), isolation, max_workers
        self._live = LiveSnapshot(handle, CurrentSnapshot(handle.log, snapshot))
        self._watch = TailWatch(handle) if handle.storage.is_local else None
        self._is_stale = True
        self._ends: dict[int, int] = {}
        #: Where active segments that the last `look` found sealed were cut: at an offset that was visible before.
        self.cuts: Mapping[int, int] = {}

    @property
    def partitions(self) -> int:
        return len(self.snapshot.partitions)

    def end(self, partition: int) -> int:
        """The offset up to which records may be read now: the last stable offset for committed records only."""
        if partition not in self._ends:
            state = self.snapshot.partitions[partition]
            is_bounded = self._isolation == "read_committed" and transactional_segments(state)
            self._ends[partition] = (
                last_stable_offset(self.handle.reader, state) if is_bounded else state.log_end_offset
            )
        return self._ends[partition]

    def look(self, *, again: bool = False) -> bool:
        """Move on to the newest state, with `again` even if nothing seems new; whether anything may be new."""
        self._is_stale, self.cuts = self._is_stale or again, {}
        # the watch is asked each time: its notes must be older than the state that is read
        if not (self._watch is None or self._watch.changed(self.snapshot) or self._is_stale):
            return False
        self._is_stale = True
        before, self.snapshot = self.snapshot, self._live.refresh()
        self._is_stale = False
        if self.snapshot is before:
            return False
        self._ends.clear()
        # where partitions were cut since; unknown for a segment that was merged
        ends = ((n, old, _sealed_end(old, self.snapshot.partitions[n])) for n, old in enumerate(before.partitions))
        self.cuts = {n: end for n, old, end in ends if end is not None and end < old.log_end_offset}
        return True

    def read(self, positions: Mapping[int, int]) -> Window | None:
        """The records from `positions` on, or the first of them if there are many; None if there are none yet."""
        bounds = {
            number: (start, _window_end(self.snapshot.partitions[number], start, self.end(number)))
            for number, start in positions.items()
            if start < self.end(number)
        }
        if not bounds:
            return None
        reader = self.handle.reader
        slices, visible = scan_plan.plan(reader, self.snapshot, bounds, self._isolation)
        columns = (*self._columns, *(name for name in ("partition", "offset") if name not in self._columns))
        batches = segment_reader.read_slices(reader, slices, columns, visible, self._max_workers)
        return Window(batches, self._columns, {number: end for number, (_, end) in bounds.items()})


#: An offset from 0 on, by partition or for all; a datetime or ISO 8601 text; EARLIEST, LATEST or MAX_TIMESTAMP.
Start = Time | Mapping[int, Time]


def start_offsets(
    reader: SegmentReader,
    snapshot: Snapshot,
    partitions: Collection[int],
    start: Start | None,
    out_of_range: OutOfRange = "fail",
) -> dict[int, int]:
    """The offsets in some partitions that `start` means: the log start where it does not name the partition.

    A time means the first record at or after it; if there is none yet, the log end.
    """
    offsets: dict[int, int] = {}
    times: dict[int, int] = {}
    for number in partitions:
        own, state = start.get(number) if isinstance(start, Mapping) else start, snapshot.partitions[number]
        if isinstance(own, str | date):
            times[number] = to_ms(own, up=True)
            continue
        offset = EARLIEST if own is None else whole_number("start", own)
        if offset in (EARLIEST, LATEST):
            offsets[number] = state.log_start_offset if offset == EARLIEST else state.log_end_offset
        elif offset < 0:
            times[number] = offset
        else:
            offsets[number] = bounded_start(number, offset, state, out_of_range)
    for number, place in offsets_for_times(reader, snapshot.partitions, times).items():
        offsets[number] = snapshot.partitions[number].log_end_offset if place is None else place[0]
    return {number: offsets[number] for number in partitions}


#: About how much log of each partition is read before other partitions, and newer metadata, are read.
WINDOW_BYTES = 64 << 20

#: Records, and the next offset after them in each of their partitions.
Handed = tuple[pa.RecordBatch, Mapping[int, int]]


class Window:
    """The records of a range of offsets in each partition; `ends` is after them, and after offsets without any."""

    def __init__(self, batches: Iterator[pa.RecordBatch], columns: Sequence[str], ends: Mapping[int, int]) -> None:
        self._batches, self._columns, self.ends = batches, list(columns), ends

    def next(self) -> Handed | None:
        """The next batch that has records; None at the end."""
        for batch in self._batches:
            if batch.num_rows:
                chosen = batch if batch.schema.names == self._columns else batch.select(self._columns)
                return chosen, ends_of(batch)
        return None


def ends_of(batch: pa.RecordBatch) -> dict[int, int]:
    partitions, offsets = numbers_of(batch.column("partition")), numbers_of(batch.column("offset"))
    if partitions[0] == partitions[-1]:
        # so are most batches
        return {int(partitions[0]): int(offsets[-1]) + 1}
    last = [*np.flatnonzero(np.diff(partitions)).tolist(), batch.num_rows - 1]
    return {int(partitions[row]): int(offsets[row]) + 1 for row in last}


def _sealed_end(old: PartitionState, now: PartitionState) -> int | None:
    """The end of the segment that was active in `old`, if it is sealed; its begin if it was sealed empty."""
    active = old.active
    if active is None or now.active == active:
        return None
    row = now.segments.find(active.base_offset)
    if row == len(now.segments):
        return now.log_end_offset
    first = now.segments[row]
    if first.stem == active.stem:
        return first.next_offset
    is_empty = now.active is not None and first.stem == now.active.stem and first.base_offset == active.base_offset
    return active.base_offset if is_empty else None


def _window_end(state: PartitionState, start: int, end: int) -> int:
    """The end of the last segment that still fits into WINDOW_BYTES; a larger segment is cut by its offsets."""
    segments = state.segments
    row = segments.find(start)
    full = row + int(np.searchsorted(np.cumsum(segments.log_bytes[row:]), WINDOW_BYTES, side="right"))
    if full == len(segments):
        return end
    if full > row:
        return min(end, int(segments.next_offsets[full - 1]))
    segment = segments[row]
    step = (segment.next_offset - segment.base_offset) * WINDOW_BYTES // segment.log_bytes
    return min(end, max(start, segment.base_offset) + max(step, 1))


_log = logging.getLogger(__name__)


class ConsumerAssignment(ABC):
    """One consumer's part of `log`. `position` is the next offset to deliver, by partition."""

    def __init__(self, log: ConsumedLog, start: Start | None, out_of_range: OutOfRange) -> None:
        self.log, self._start, self._out_of_range = log, start, out_of_range
        self.position: dict[int, int] = {}

    @property
    def wanted(self) -> Mapping[int, int]:
        return self.position

    @property
    def is_lapsed(self) -> bool:
        return False

    def due_s(self) -> float:
        return inf

    @abstractmethod
    def renew(self) -> bool:
        """Take the partitions to read now; returns whether any came or went."""

    def prolong(self) -> None:  # noqa: B027 - without a group no member waits for it
        """Extend the lease for a batch that is about to be delivered."""

    @abstractmethod
    def commit(self, positions: Mapping[int, int] | None) -> None:
        """Keep positions in the topic: the given ones, or all."""

    def move(self, partition: int, offset: int) -> None:
        self.position[partition] = offset

    def finish(self) -> None:  # noqa: B027 - without a group there is nothing to do
        """Commit the records that were delivered, and are done."""

    def leave(self) -> None:  # noqa: B027
        """Give the partitions to the other members."""

    def begin(self, partitions: Collection[int], added: bool) -> dict[int, int]:
        """The first offsets to read in partitions; 0 in those that were `added` since, even if that is deleted."""
        if added:
            return dict.fromkeys(partitions, 0)
        return start_offsets(self.log.handle.reader, self.log.snapshot, partitions, self._start, self._out_of_range)


class WholeAssignment(ConsumerAssignment):
    def __init__(
        self, log: ConsumedLog, partitions: Collection[int] | None, start: Start | None, out_of_range: OutOfRange
    ) -> None:
        super().__init__(log, start, out_of_range)
        chosen = range(log.partitions) if partitions is None else partitions
        self.position = self.begin(chosen, False)
        self._grows = partitions is None

    def renew(self) -> bool:
        if not self._grows or len(self.position) == self.log.partitions:
            return False
        self.position |= self.begin(range(len(self.position), self.log.partitions), True)
        return True

    def commit(self, positions: Mapping[int, int] | None) -> None:
        raise InvalidConfigError("the consumer has no group: consume with group=NAME to commit offsets")


class GroupAssignment(ConsumerAssignment):
    def __init__(self, log: ConsumedLog, member: Membership, start: Start | None, out_of_range: OutOfRange) -> None:
        super().__init__(log, start, out_of_range)
        self._member, self._joins = member, 0
        self._committed: dict[int, int] = {}

    @property
    def wanted(self) -> Mapping[int, int]:
        """Without partitions that other members wait for, or that are not in the known metadata."""
        hidden = self._member.leaving
        return {n: at for n, at in self.position.items() if n not in hidden and n < self.log.partitions}

    @property
    def is_lapsed(self) -> bool:
        return self._member.is_lapsed

    def due_s(self) -> float:
        return self._member.due_s(self._pending())

    def renew(self) -> bool:
        """Join, send heartbeats, and take and give up partitions, when it is time for it."""
        if self.due_s() > 0:
            return False
        before = self.wanted.keys()
        self._member.sync(lambda: self.log.partitions, self.begin, self._pending())
        is_moved = self._take()
        return is_moved or self.wanted.keys() != before

    def prolong(self) -> None:
        self._member.prolong()

    def commit(self, positions: Mapping[int, int] | None) -> None:
        """Raises FencedMemberError, and OffsetOutOfRangeError for records that were not delivered."""
        chosen = None if positions is None else {n: whole_number("offset", at) for n, at in positions.items()}
        for number, offset in (chosen or {}).items():
            if number not in self.position:
                raise TopicNotFoundError("this member does not have the partition", partition=number)
            low, high = self._committed[number], self.position[number]
            if not low <= offset <= high:
                raise OffsetOutOfRangeError(
                    "a position must lie between the last committed one and the end of the records handed out",
                    partition=number,
                    offset=offset,
                    committed=low,
                    handed_out=high,
                )
        self._member.commit(self.position if chosen is None else chosen)
        self._take()

    def move(self, partition: int, offset: int) -> None:
        """If the log lost its end, the group's position goes back with it."""
        super().move(partition, offset)
        if offset < self._committed[partition]:
            self._member.commit({partition: offset}, back=True)
            self._take()

    def finish(self) -> None:
        if self._pending():
            self.commit(None)

    def leave(self) -> None:
        self.position, self._committed = {}, {}
        try:
            self._member.leave()
        except DistlogError as error:
            # an error that ended the iteration matters more
            _log.warning("could not leave the group: the other members wait for the lease to end (%s)", error)

    def _pending(self) -> Collection[int]:
        return {number for number, offset in self.position.items() if offset > self._committed[number]}

    def _take(self) -> bool:
        """Learn the owned partitions; whether a new membership or another member moved this one's positions.

        A new membership begins at the group's positions. So does a partition that was given up and came back at once,
        as another member had it in between, and read on.
        """
        rejoined, self._joins = self._joins != self._member.joins, self._member.joins
        current = {} if rejoined else self.position
        self._committed = self._member.owned
        self.position = {n: max(current.get(n, offset), offset) for n, offset in self._committed.items()}
        return rejoined or any(current.get(n, offset) < offset for n, offset in self._committed.items())
