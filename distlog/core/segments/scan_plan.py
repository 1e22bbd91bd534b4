"""From what a reader asks for, offsets, times and isolation, to slices of segments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, get_args

from distlog.core.commits.snapshot import PartitionState, Snapshot
from distlog.core.config import whole_number
from distlog.core.errors import TopicNotFoundError
from distlog.core.segments import slices
from distlog.core.segments.isolation import Isolation, IsolationLevel
from distlog.core.segments.segment import SegmentReader
from distlog.core.segments.slices import OutOfRange, SegmentSlice
from distlog.core.segments.stable_offset import last_stable_offset, transactional_segments
from distlog.core.segments.time_lookup import offset_for_time
from distlog.core.times import Time, to_ms

#: By partition (start offset, end offset); None is the log's own bound.
Bounds = Mapping[int, tuple[int | None, int | None]]


def bounds(
    reader: SegmentReader,
    snapshot: Snapshot,
    partitions: Iterable[int] | None,
    start: int | Mapping[int, int] | None,
    end: int | Mapping[int, int] | None,
    start_time: Time | None,
    end_time: Time | None,
) -> Bounds:
    """The offsets that a range of offsets or times means; both given for one side is a ValueError.

    Raises InvalidConfigError for what is no number.
    """
    if (start is not None and start_time is not None) or (end is not None and end_time is not None):
        raise ValueError("give an offset or a time for a bound, not both")
    chosen = range(len(snapshot.partitions)) if partitions is None else sorted({*_numbers(partitions)})
    for number in (*chosen, *_numbers(_given(start)), *_numbers(_given(end))):
        if not 0 <= number < len(snapshot.partitions):
            raise TopicNotFoundError(
                f"the topic has partitions 0 to {len(snapshot.partitions) - 1}", partition=number
            )
    return {
        number: (
            _bound(reader, snapshot.partitions[number], number, start, start_time),
            _bound(reader, snapshot.partitions[number], number, end, end_time),
        )
        for number in chosen
    }


def _given(offsets: int | Mapping[int, int] | None) -> Iterable[int]:
    return offsets if isinstance(offsets, Mapping) else ()


def _numbers(partitions: Iterable[int]) -> list[int]:
    return [whole_number("partition", number) for number in partitions]


def _bound(
    reader: SegmentReader,
    state: PartitionState,
    partition: int,
    offset: int | Mapping[int, int] | None,
    time: Time | None,
) -> int | None:
    if time is not None:
        found = offset_for_time(reader, state, to_ms(time))
        return found[0] if found else state.log_end_offset
    own = offset.get(partition) if isinstance(offset, Mapping) else offset
    return None if own is None else whole_number("offset", own)


def plan(
    reader: SegmentReader,
    snapshot: Snapshot,
    asked: Bounds,
    isolation: IsolationLevel = "read_uncommitted",
    out_of_range: OutOfRange = "fail",
) -> tuple[list[SegmentSlice], Isolation]:
    """The slices of what is asked, and what of them may be seen.

    Reads no data; but for read_committed the transaction indexes, and the segments with transactions where nobody has
    looked how far they are stable. A word that is no isolation or policy is a ValueError.
    """
    _check_choice("isolation", isolation, IsolationLevel)
    _check_choice("out_of_range", out_of_range, OutOfRange)
    start, end = {}, {}
    aborted = {}
    for number, (low, high) in asked.items():
        state = snapshot.partitions[number]
        start[number] = state.log_start_offset if low is None else low
        end[number] = state.log_end_offset if high is None else high
        segments = transactional_segments(state) if isolation == "read_committed" else []
        if segments:
            end[number] = min(end[number], last_stable_offset(reader, state))
            aborted[number] = [each for segment in segments for each in reader.aborted_transactions(segment)]
    return slices.plan(snapshot, start, end, out_of_range), Isolation.of(aborted)


def _check_choice(name: str, value: str, choices: Any) -> None:
    if value not in get_args(choices):
        raise ValueError(f"{name} is one of {', '.join(get_args(choices))}, not {value}")
