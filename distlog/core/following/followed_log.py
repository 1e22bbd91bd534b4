"""What a follower reads: its own view of a topic, which moves on, and windows of records up to its end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from distlog.core.arrow_arrays import numbers_of
from distlog.core.commits.current_snapshot import CurrentSnapshot
from distlog.core.commits.state.snapshot import PartitionState, Snapshot
from distlog.core.log.live_snapshot import LiveSnapshot
from distlog.core.log.tail_watch import TailWatch
from distlog.core.reading import pipeline, scan_plan
from distlog.core.reading.stable_offset import last_stable_offset, transactional_segments
from distlog.core.topic_handle import TopicHandle
from distlog.core.transactions.isolation import IsolationLevel

#: About how much log of each partition is read before the others get their turn, and newer metadata is looked for.
WINDOW_BYTES = 64 << 20

#: Records, and the next offset behind them in each of their partitions.
Handed = tuple[pa.RecordBatch, Mapping[int, int]]


class FollowedLog:
    """A topic as one follower sees it; `look` moves it on. It is not the snapshot of the topic object."""

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
        """How many partitions the topic has."""
        return len(self.snapshot.partitions)

    def end(self, partition: int) -> int:
        """The offset up to which records may be read now: the last stable offset, if it reads what is committed."""
        if partition not in self._ends:
            state = self.snapshot.partitions[partition]
            is_bounded = self._isolation == "read_committed" and transactional_segments(state)
            self._ends[partition] = (
                last_stable_offset(self.handle.reader, state) if is_bounded else state.log_end_offset
            )
        return self._ends[partition]

    def is_behind(self, positions: Mapping[int, int]) -> bool:
        """Whether a position is above the log end that is known: a member of the group has seen more of the topic."""
        partitions = self.snapshot.partitions
        return any(offset > partitions[number].log_end_offset for number, offset in positions.items())

    def look(self, *, again: bool = False) -> bool:
        """Move on to what there is now; whether anything may be new. One GET, or less on a local disk.

        With `again` it does so even if nothing seems to be new.

        Raises TopicNotFoundError when the topic was dropped.
        """
        self._is_stale, self.cuts = self._is_stale or again, {}
        # the watch is asked each time: what it has noted must be older than what is read
        if not (self._watch is None or self._watch.changed(self.snapshot) or self._is_stale):
            return False
        self._is_stale = True
        before, self.snapshot = self.snapshot, self._live.refresh()
        self._is_stale = False
        if self.snapshot is before:
            return False
        self._ends.clear()
        self.cuts = _cuts(before, self.snapshot)
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
        batches = pipeline.read(reader, slices, columns, visible, self._max_workers)
        return Window(batches, self._columns, {number: end for number, (_, end) in bounds.items()})


class Window:
    """The records of a range of offsets in each partition, in (partition, offset) order; `ends` is behind them.

    Behind the last record there may be offsets without any: markers, or what compaction dropped.
    """

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
    """The next offset behind the records of each partition in `batch`, which are in (partition, offset) order."""
    partitions, offsets = numbers_of(batch.column("partition")), numbers_of(batch.column("offset"))
    if partitions[0] == partitions[-1]:
        # so are most batches
        return {int(partitions[0]): int(offsets[-1]) + 1}
    last = [*np.flatnonzero(np.diff(partitions)).tolist(), batch.num_rows - 1]
    return {int(partitions[row]): int(offsets[row]) + 1 for row in last}


def _cuts(before: Snapshot, now: Snapshot) -> dict[int, int]:
    """Where partitions were cut between two snapshots. If the segment was merged since, nothing tells."""
    ends = ((n, old, _sealed_end(old, now.partitions[n])) for n, old in enumerate(before.partitions))
    return {n: end for n, old, end in ends if end is not None and end < old.log_end_offset}


def _sealed_end(old: PartitionState, now: PartitionState) -> int | None:
    """The end of the segment that was active in `old`, if it is sealed by now; its begin if it was sealed empty."""
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
