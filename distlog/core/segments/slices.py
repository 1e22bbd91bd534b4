"""Finds the bytes that a read needs: turns a snapshot and ranges of offsets and times into slices of segments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from distlog.core.commits.segment_table import SegmentInfo, SegmentTable
from distlog.core.commits.snapshot import PartitionState, Snapshot
from distlog.core.errors import OffsetOutOfRangeError
from distlog.core.format.indexes import GrowingOffsetIndex, OffsetIndex
from distlog.core.integers import MAX_LONG, MIN_LONG
from distlog.core.times import Time, to_ms


@dataclass(frozen=True, slots=True)
class TimeRange:
    """A filter of records with oldest <= timestamp <= newest, in ms; a record without a timestamp has -1."""

    oldest: int = MIN_LONG
    newest: int = MAX_LONG

    @classmethod
    def between(cls, start: Time | None, end: Time | None) -> TimeRange:
        """Return the range from `start` to before `end`; None: no bound. With a bound, records need a timestamp."""
        if start is None and end is None:
            return ALWAYS
        oldest = 0 if start is None else _ms(start)
        newest = MAX_LONG if end is None else min(_ms(end) - 1, MAX_LONG)
        return cls(oldest, newest) if oldest <= MAX_LONG else NEVER

    def within(self, other: TimeRange) -> TimeRange:
        return TimeRange(max(self.oldest, other.oldest), min(self.newest, other.newest))

    def may_hold(self, segments: SegmentTable) -> npt.NDArray[np.bool_]:
        # -1: unknown, or a record has no timestamp
        oldest = np.where(segments.min_timestamps < 0, MIN_LONG, segments.min_timestamps)
        held: npt.NDArray[np.bool_] = (segments.max_timestamps >= self.oldest) & (oldest <= self.newest)
        return held & (self.oldest <= self.newest)

    def left_of(self, segment: SegmentInfo) -> TimeRange:
        """The range to check records of `segment` by, which overlaps this range; ALWAYS if all lie in it."""
        oldest = MIN_LONG if segment.min_timestamp >= max(self.oldest, 0) else self.oldest
        newest = MAX_LONG if segment.max_timestamp <= self.newest else self.newest
        return ALWAYS if (oldest, newest) == (MIN_LONG, MAX_LONG) else TimeRange(oldest, newest)


#: No bound: also has the records without a timestamp.
ALWAYS = TimeRange()
NEVER = TimeRange(MAX_LONG, MIN_LONG)


def _ms(time: Time) -> int:
    value = to_ms(time, up=True)
    if value < 0:
        raise ValueError(f"a time to read from or to must not be before 1970: {time!r}")
    return value


OutOfRange = Literal["fail", "earliest", "latest"]
"""The action for an offset outside of the log (Kafka's `auto.offset.reset`): raise, or use the start or the end."""


class SegmentSlice(NamedTuple):
    """The records of one segment with start_offset <= offset < end_offset, in batches that begin in a byte range.

    A batch belongs to the slice that has its first byte. `times` filters the records.
    """

    segment: SegmentInfo
    start_offset: int
    end_offset: int
    start_position: int
    end_position: int
    times: TimeRange = ALWAYS

    @property
    def covers_segment(self) -> bool:
        return (
            self.start_offset <= self.segment.base_offset
            and self.end_offset >= self.segment.next_offset
            and (self.start_position, self.end_position) == (0, self.segment.log_bytes)
        )

    @property
    def span(self) -> tuple[int, int]:
        """The offsets (first, end) of the segment that are read; none if first is not below end."""
        return max(self.start_offset, self.segment.base_offset), min(self.end_offset, self.segment.next_offset)

    @property
    def estimated_bytes(self) -> int:
        start, end = self.span
        offsets = self.segment.next_offset - self.segment.base_offset
        return (self.end_position - self.start_position) * (end - start) // max(offsets, 1)

    @property
    def estimated_records(self) -> int:
        return self.segment.record_count * self.estimated_bytes // max(self.segment.log_bytes, 1)


def plan(
    snapshot: Snapshot,
    start: Mapping[int, int],
    end: Mapping[int, int],
    out_of_range: OutOfRange = "fail",
    times: TimeRange = ALWAYS,
) -> list[SegmentSlice]:
    """The slices of offsets [start[p], end[p]) of each partition p, in order, of segments with records of `times`."""
    slices: list[SegmentSlice] = []
    for partition in sorted(start):
        state = snapshot.partitions[partition]
        first = bounded_start(partition, start[partition], state, out_of_range)
        slices.extend(_partition_slices(state, first, min(end[partition], state.log_end_offset), times))
    return slices


def bounded_start(partition: int, offset: int, state: PartitionState, out_of_range: OutOfRange) -> int:
    """`offset` if it is in the log or at its end, else the bound that `out_of_range` names, or the error."""
    if state.log_start_offset <= offset <= state.log_end_offset:
        return offset
    if out_of_range == "fail":
        raise OffsetOutOfRangeError(
            "the offset is not in the log; read from the log start, or ask for earliest or latest instead",
            partition=partition,
            offset=offset,
            log_start_offset=state.log_start_offset,
            log_end_offset=state.log_end_offset,
        )
    return state.log_start_offset if out_of_range == "earliest" else state.log_end_offset


def _partition_slices(state: PartitionState, start: int, end: int, times: TimeRange) -> Iterator[SegmentSlice]:
    if start >= end:
        return
    segments = state.segments
    first, last = segments.find(start), int(np.searchsorted(segments.base_offsets, end))
    if times == ALWAYS:
        yield from (SegmentSlice(segment, start, end, 0, segment.log_bytes) for segment in segments[first:last])
        return
    rows = np.flatnonzero(times.may_hold(segments)[first:last]) + first
    # one run that holds all rows: picking each row costs more than building some segments too many
    run = segments[int(rows[0]) : int(rows[-1]) + 1] if len(rows) else []
    for segment in (run[row] for row in (rows - rows[:1]).tolist()):
        yield SegmentSlice(segment, start, end, 0, segment.log_bytes, times.left_of(segment))


def windows(slices: Iterable[SegmentSlice], step: int) -> Iterator[list[SegmentSlice]]:
    """Cut `slices` into runs: the first of `step` offsets (positive), each next one twice as many."""
    run: list[SegmentSlice] = []
    room = step
    for part in slices:
        start, end = part.span
        while end - start >= room:
            yield [*run, part._replace(start_offset=start, end_offset=start + room)]
            start, step, run = start + room, 2 * step, []
            room = step
        if start < end:
            run.append(part._replace(start_offset=start))
            room -= end - start
    if run:
        yield run


def first_offsets(slices: Iterable[SegmentSlice], limit: int) -> tuple[list[SegmentSlice], bool]:
    """The slices that hold the first `limit` records, and whether they hold just these.

    Slices with `times`, or with offsets that have no record, are taken whole: their contents are unknown.
    """
    parts: list[SegmentSlice] = []
    exact = True
    for part in slices:
        if limit <= 0:
            break
        if not part.segment.dense or part.times != ALWAYS:
            parts.append(part)
            exact = False
            continue
        start, end = part.span
        parts.append(part._replace(end_offset=min(end, start + limit)))
        limit -= end - start
    return parts, exact


def windows_from_end(slices: Sequence[SegmentSlice], step: int) -> Iterator[list[SegmentSlice]]:
    """As `windows`, from the end."""
    run: list[SegmentSlice] = []
    room = step
    for part in reversed(slices):
        start, end = part.span
        while end - start >= room:
            yield [part._replace(start_offset=end - room, end_offset=end), *run]
            end, step, run = end - room, 2 * step, []
            room = step
        if start < end:
            run.insert(0, part._replace(end_offset=end))
            room -= end - start
    if run:
        yield run


def split_by_bytes(slices: Iterable[SegmentSlice], target_bytes: int) -> list[list[SegmentSlice]]:
    """Groups of `slices`, in order, of nearly `target_bytes` each; a segment is cut when a group is full."""
    groups: list[list[SegmentSlice]] = [[]]
    room, tolerance = target_bytes, target_bytes // 8
    for part in slices:
        remainder = part
        while remainder.estimated_bytes > room + tolerance:
            if room > tolerance:
                # the first of the estimated bytes, and the remainder, which is not empty
                span = remainder.end_position - remainder.start_position
                position = remainder.start_position + span * room // remainder.estimated_bytes
                head, remainder = (
                    remainder._replace(end_position=position),
                    remainder._replace(start_position=position),
                )
                groups[-1].append(head)
                room = 0
            groups.append([])
            # the next group gets the bytes that this one lacks, so that there is not one group more
            room += target_bytes
        groups[-1].append(remainder)
        room -= remainder.estimated_bytes
    return [group for group in groups if group]


def bounds_by(index: OffsetIndex | GrowingOffsetIndex, part: SegmentSlice) -> tuple[int, int]:
    """Positions by the offset index: of a batch at or before the first owned one, and after the last owned one."""
    segment = part.segment
    start = index.lookup(part.start_offset - segment.shift).position
    if part.start_position > 0:
        start = max(start, index.position_floor(part.start_position).position)
    if start >= part.end_position:
        # by the index there is nothing to read; the log's last part is read to confirm it
        start = index.position_floor(part.end_position - 1).position
    if part.end_offset >= segment.next_offset:
        return start, part.end_position
    entry = index.ceiling(part.end_offset - 1 - segment.shift)
    after = index.ceiling(entry.offset + 1) if entry else None
    stop = after.position if after else None
    return start, part.end_position if stop is None else min(stop, part.end_position)
