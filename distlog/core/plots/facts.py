"""What pictures are drawn from: a few numbers of each segment."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from distlog.core.times import NO_TIMESTAMP

Longs = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class SegmentFacts:
    """For each segment its partition, records, bytes, and the times of its oldest and newest record in ms.

    The times are -1 where the segment's records have none. `partitions` are the numbers of all partitions that are
    shown, ascending, with segments or without.
    """

    partitions: Longs
    partition: Longs
    records: Longs
    bytes: Longs
    first_ms: Longs
    last_ms: Longs

    def by_partition(self, amounts: Longs) -> Longs:
        """The sum of `amounts`, one for each segment, for each partition."""
        sums = np.zeros(len(self.partitions), np.int64)
        np.add.at(sums, np.searchsorted(self.partitions, self.partition), amounts)
        return sums

    def with_times(self) -> SegmentFacts:
        """The segments whose records have times."""
        known = self.last_ms != NO_TIMESTAMP
        first = np.minimum(self.first_ms[known], self.last_ms[known])
        columns = self.partition[known], self.records[known], self.bytes[known], first, self.last_ms[known]
        return SegmentFacts(self.partitions, *columns)
