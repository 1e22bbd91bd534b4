"""A range of record times. It is a filter, since records may be in any order, for example after a backfill."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from distlog.core.commits.format.segment_info import SegmentInfo
from distlog.core.commits.state.segment_table import SegmentTable
from distlog.core.config import MAX_LONG, MIN_LONG
from distlog.core.times import Time, to_ms


@dataclass(frozen=True, slots=True)
class TimeRange:
    """Records with oldest <= timestamp <= newest, in ms; a record without a timestamp has -1."""

    oldest: int = MIN_LONG
    newest: int = MAX_LONG

    @classmethod
    def between(cls, start: Time | None, end: Time | None) -> TimeRange:
        """The range from `start` (in) to `end` (out); None is no bound.

        With a bound, records without a timestamp are not in it. Raises ValueError for a value that is no time, or a
        time before 1970.
        """
        if start is None and end is None:
            return ALWAYS
        oldest = 0 if start is None else _ms(start)
        newest = MAX_LONG if end is None else min(_ms(end) - 1, MAX_LONG)
        return cls(oldest, newest) if oldest <= MAX_LONG else NEVER

    def within(self, other: TimeRange) -> TimeRange:
        """The range of the times that lie in both."""
        return TimeRange(max(self.oldest, other.oldest), min(self.newest, other.newest))

    def may_hold(self, segments: SegmentTable) -> npt.NDArray[np.bool_]:
        """Which of `segments` may have a record of this range."""
        # -1: not known, or a record has no timestamp
        oldest = np.where(segments.min_timestamps < 0, MIN_LONG, segments.min_timestamps)
        return (segments.max_timestamps >= self.oldest) & (oldest <= self.newest) & (self.oldest <= self.newest)

    def left_of(self, segment: SegmentInfo) -> TimeRange:
        """The range to check records of `segment` by, which overlaps this range; ALWAYS if all lie in it."""
        oldest = MIN_LONG if segment.min_timestamp >= max(self.oldest, 0) else self.oldest
        newest = MAX_LONG if segment.max_timestamp <= self.newest else self.newest
        return ALWAYS if (oldest, newest) == (MIN_LONG, MAX_LONG) else TimeRange(oldest, newest)


#: No bound: also has the records without a timestamp.
ALWAYS = TimeRange()
NEVER = TimeRange(MAX_LONG, MIN_LONG)


def _ms(time: Time) -> int:
    value = to_ms(time)
    if value < 0:
        raise ValueError(f"a time to read from or to must not be before 1970: {time!r}")
    return value
