"""Counts records by time: from the times of segments, or exactly, from the times of records."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from distlog.core.display.units import counted
from distlog.core.plots.facts import Longs, SegmentFacts

#: At the most so many bins, each of one of these widths: as people count time.
MOST_BINS = 100
_SECOND, _MINUTE, _HOUR, _DAY = 1000, 60_000, 3_600_000, 86_400_000
_WIDTHS = (
    *((number, f"{number} ms") for number in (1, 2, 5, 10, 20, 50, 100, 200, 500)),
    *((number * _SECOND, counted(number, "second")) for number in (1, 2, 5, 10, 15, 30)),
    *((number * _MINUTE, counted(number, "minute")) for number in (1, 2, 5, 10, 15, 30)),
    *((number * _HOUR, counted(number, "hour")) for number in (1, 2, 3, 6, 12)),
    *((number * _DAY, counted(number, "day")) for number in (1, 2, 7, 30, 90, 365, 3650, 36_500)),
)
#: Times that a calendar has, and so an axis: up to the year 9999.
_LATEST_MS = 253_402_300_799_999


@dataclass(frozen=True, slots=True)
class TimeBins:
    """Bins of one width from `start_ms` on; `label` names the width."""

    start_ms: int
    width_ms: int
    count: int
    label: str

    @classmethod
    def over(cls, first_ms: int, last_ms: int) -> TimeBins:
        """The bins that hold both times and all between; around one moment a minute."""
        room = _MINUTE // 2 if first_ms == last_ms else 0
        first, last = (min(max(each, 0), _LATEST_MS - _WIDTHS[-1][0]) for each in (first_ms - room, last_ms + room))
        width, label = next(each for each in _WIDTHS if last // each[0] - first // each[0] < MOST_BINS)
        return cls(first - first % width, width, last // width - first // width + 1, label)

    @property
    def edges_ms(self) -> Longs:
        """The bounds of the bins, one more than there are bins."""
        return self.start_ms + self.width_ms * np.arange(self.count + 1, dtype=np.int64)

    def spread(self, facts: SegmentFacts) -> npt.NDArray[np.float64]:
        """Records in each bin, if those of a segment are spread evenly between its times."""
        width = (facts.last_ms - facts.first_ms + 1).astype(np.float64)
        below = [
            float((facts.records * np.clip((edge - facts.first_ms) / width, 0.0, 1.0)).sum())
            for edge in self.edges_ms.tolist()
        ]
        return np.diff(below)

    def counted(self, batches: Iterable[pa.RecordBatch]) -> npt.NDArray[np.float64]:
        """Records in each bin by the column `timestamp` of the batches; those without a time do not count."""
        counts = np.zeros(self.count, np.int64)
        for batch in batches:
            times = batch.column("timestamp").cast(pa.int64()).drop_null().to_numpy(zero_copy_only=False)
            bins = (times - self.start_ms) // self.width_ms
            inside = bins[(times >= 0) & (bins >= 0) & (bins < self.count)]
            counts += np.bincount(inside, minlength=self.count)
        return counts.astype(np.float64)
