"""Records as Python objects, for people and small programs; nothing in bulk goes through here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from distlog.core.batches.record_batch import COLUMNS
from distlog.core.commits.state.snapshot import PartitionState, Snapshot
from distlog.core.config import MAX_LONG
from distlog.core.reading import scan_plan
from distlog.core.reading.files.segment_reader import SegmentReader
from distlog.core.reading.first_and_last import first
from distlog.core.reading.point_read import PointRecord, first_records
from distlog.core.reading.slices.slices import bounded_start
from distlog.core.transactions.isolation import READ_UNCOMMITTED, IsolationLevel
from distlog.core.whole_number import count_of, whole_number


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
    reader: SegmentReader,
    snapshot: Snapshot,
    partition: int,
    start: int | None,
    limit: int | None,
    isolation: IsolationLevel = "read_uncommitted",
) -> Iterator[Record]:
    """The records of one partition from `start` (default: the log start), at most `limit` of them.

    Raises OffsetOutOfRangeError, when the first record is read, unless `start` is in the log or at its end.
    """
    low = None if start is None else whole_number("start", start)
    most = MAX_LONG if limit is None else count_of("limit", limit)
    if most == 0:
        return
    if isolation == "read_uncommitted":
        for few in _few(reader, snapshot.partitions[partition], partition, low, most):
            yield Record(partition, *few)
            low, most = few.offset + 1, most - 1
        slices, visible = scan_plan.slices_of(reader, snapshot, partition, low), READ_UNCOMMITTED
    else:
        found, visible = scan_plan.plan(reader, snapshot, {partition: (low, None)}, isolation)
        slices = iter(found)
    for batch in first(reader, slices, COLUMNS, most, visible):
        batch = batch.set_column(2, "timestamp", batch.column("timestamp").cast("int64"))
        for row in batch.to_pylist():
            yield Record(**{**row, "headers": [(each["key"], each["value"]) for each in row["headers"]]})


def _few(
    reader: SegmentReader, state: PartitionState, partition: int, start: int | None, limit: int
) -> list[PointRecord]:
    offset = bounded_start(partition, state.log_start_offset if start is None else start, state, "fail")
    row = state.segments.find(offset)
    return first_records(reader, state.segments[row], offset, limit) if row < len(state.segments) else []
