"""LogAppendTime in place: batches get the time of their append, under the partition's lock. It never goes back."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from distlog.core.batches.append_time import give_append_times, write_append_times
from distlog.core.commits.state.snapshot import PartitionState
from distlog.core.log.segment.log_segment import LogSegment
from distlog.core.segments.state_fold import Longs


def append_time(state: PartitionState, segment: LogSegment, now_ms: int) -> int:
    """The time in ms of an append to the active `segment`: now, but not before the largest timestamp ahead of it."""
    ahead = [sealed.max_timestamp for sealed in state.segments[-1:]]
    return max(now_ms, segment.max_timestamp, *ahead)


def stamped(
    data: npt.NDArray[np.uint8], rows: npt.NDArray[Any], time_ms: int
) -> tuple[npt.NDArray[Any], Longs, Longs]:
    """Write the time into the batches of `data`, whose headers are `rows` (BATCH rows); their checksums change.

    Returns the new rows and what is known of them then: the first offset with the largest timestamp of each batch,
    and its smallest timestamp.
    """
    times, rows = np.full(len(rows), time_ms, np.int64), rows.copy()
    give_append_times(rows, times)
    write_append_times(data, rows)
    return rows, rows["base_offset"].copy(), times
