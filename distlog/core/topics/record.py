"""Records as Python objects, for people and small programs; nothing in bulk goes through here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from distlog.core.batches.record_batch import COLUMNS
from distlog.core.commits.snapshot import Snapshot
from distlog.core.config import MAX_LONG, whole_number
from distlog.core.segments import scan_plan
from distlog.core.segments.scan import read
from distlog.core.segments.segment import SegmentReader

#: Offsets asked for at first when a limit does not say fewer.
_STEP = 10_000


class Record(NamedTuple):
    """One record; `timestamp` in ms, -1 for none; `timestamp_type` 0 CreateTime, 1 LogAppendTime, -1 none."""

    partition: int
    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def records_of(
    reader: SegmentReader, snapshot: Snapshot, partition: int, start: int | None, limit: int | None
) -> Iterator[Record]:
    """The records of one partition from `start` (default: the log start), `limit` of them at the most.

    Raises OffsetOutOfRangeError, when the first is asked for, unless `start` is in the log or at its end.
    """
    state = snapshot.partitions[partition]
    position = state.log_start_offset if start is None else whole_number("start", start)
    left = MAX_LONG if limit is None else whole_number("limit", limit)
    step = min(left, _STEP)
    while left > 0:
        end = position + step
        slices, isolation = scan_plan.plan(reader, snapshot, {partition: (position, end)})
        for batch in read(reader, slices, COLUMNS, isolation):
            timestamps = batch.column("timestamp").cast("int64")
            batch = batch.set_column(2, "timestamp", timestamps)
            for row in batch.slice(0, left).to_pylist():
                yield Record(**{**row, "headers": [(each["key"], each["value"]) for each in row["headers"]]})
            left -= batch.num_rows
            if left <= 0:
                return
        if end >= state.log_end_offset:
            return
        # few offsets may be records, after a compaction
        position, step = end, 2 * step
