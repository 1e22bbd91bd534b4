"""Decides whether the next batches need a new segment: Kafka's `LogSegment.shouldRoll`.

The span of time is that of `segments.roll`. An empty segment takes everything that fits its offsets, so that one roll
does not lead to another.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from distlog.core.config import MAX_INT, TopicConfig
from distlog.core.indexes.offset_index import ENTRY as OFFSET_ENTRY
from distlog.core.indexes.time_index import ENTRY as TIME_ENTRY
from distlog.core.kernels.segment_fold import BASE_OFFSET, POSITION, ROLL_TIMESTAMP
from distlog.core.segments.roll import jittered, time_span
from distlog.core.segments.segment_state import Numbers, places
from distlog.core.segments.state_fold import OFFSET_INDEX, TIME_INDEX

(_CREATED,) = places(("created_ms",))


def time_span_of(stem: str, config: TopicConfig) -> int:
    """The time in ms that the records of the segment `stem` may span; the same in all processes."""
    return jittered(time_span(config), config, Random(stem))


def must_roll(
    numbers: Numbers,
    config: TopicConfig,
    span_ms: int,
    clock: Callable[[], int],
    size: int,
    max_timestamp: int,
    max_offset: int,
) -> bool:
    """Whether batches of `size` bytes, with this largest timestamp (ms) and last offset, need a new segment.

    They do if they would pass `segment.bytes`, are more than `span_ms` later than the first batch (by the clock if
    that has no time), find an index full, or have an offset that an index cannot hold.
    """
    if not 0 <= max_offset - int(numbers[BASE_OFFSET]) <= MAX_INT:
        return True
    position = int(numbers[POSITION])
    if position == 0:
        return False
    if position + size > config.segment_size or _index_is_full(numbers, config.segment_index_bytes):
        return True
    begin = int(numbers[ROLL_TIMESTAMP])
    waited_ms = max_timestamp - begin if begin >= 0 else clock() - int(numbers[_CREATED])
    return waited_ms > span_ms


def _index_is_full(numbers: Numbers, room: int) -> bool:
    # one slot of the time index is for the last entry
    offsets, times = int(numbers[OFFSET_INDEX]), int(numbers[TIME_INDEX])
    return offsets + OFFSET_ENTRY.itemsize > room or times + 2 * TIME_ENTRY.itemsize > room
