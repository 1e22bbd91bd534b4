"""Where a follower, or a group, begins in each partition."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.reading.files.segment_reader import SegmentReader
from distlog.core.reading.slices.slices import OutOfRange, bounded_start
from distlog.core.reading.time_lookup import EARLIEST, offset_for_time
from distlog.core.times import Time, to_ms
from distlog.core.whole_number import whole_number

#: An offset from 0 on, by partition or for all; a datetime or ISO 8601 text; EARLIEST, LATEST or MAX_TIMESTAMP.
Start = Time | Mapping[int, Time]


def start_offset(
    reader: SegmentReader, snapshot: Snapshot, partition: int, start: Start | None, out_of_range: OutOfRange = "fail"
) -> int:
    """The offset in one partition that `start` means: the log start if it says nothing of the partition.

    A time means the first record at or after it; if there is none yet, the log end. Raises OffsetOutOfRangeError for
    an offset outside of the log, unless `out_of_range` names another; InvalidConfigError, ValueError.
    """
    own = start.get(partition) if isinstance(start, Mapping) else start
    state = snapshot.partitions[partition]
    if own is None:
        return state.log_start_offset
    if isinstance(own, str | datetime):
        return _at_time(reader, snapshot, partition, to_ms(own))
    offset = whole_number("start", own)
    if offset < 0:
        return _at_time(reader, snapshot, partition, offset)
    return bounded_start(partition, offset, state, out_of_range)


def _at_time(reader: SegmentReader, snapshot: Snapshot, partition: int, time: int) -> int:
    state = snapshot.partitions[partition]
    if time == EARLIEST:
        return state.log_start_offset
    found = offset_for_time(reader, state, time)
    return state.log_end_offset if found is None else found[0]
