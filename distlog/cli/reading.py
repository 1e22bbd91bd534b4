"""Reads the records for `distlog read`, partition by partition."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from distlog.core.reading import scan_plan
from distlog.core.reading.first_and_last import first
from distlog.core.reading.slices.time_range import TimeRange
from distlog.core.reading.time_lookup import EARLIEST
from distlog.core.topics.topic import Topic
from distlog.core.transactions.isolation import IsolationLevel


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Records from `offset` on, or with times from `since` (in) to `until` (out), in ms. None means no bound.

    Or the records of the last `tail` offsets of each partition.
    """

    offset: int | None = None
    tail: int | None = None
    since: int | None = None
    until: int | None = None
    isolation: IsolationLevel = "read_uncommitted"

    def start(self, topic: Topic, partition: int) -> int | None:
        """The offset at which to start in a partition."""
        if self.tail is None:
            return None if self.offset == EARLIEST else self.offset
        state = topic.live_snapshot.partitions[partition]
        return max(state.log_start_offset, state.log_end_offset - self.tail)


def batches(
    topic: Topic, partitions: Sequence[int], bounds: Bounds, limit: int | None, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Batches of the records within `bounds`, at most `limit` records in all.

    Raises OffsetOutOfRangeError for an offset outside a partition, and ValueError for a time before 1970.
    """
    for partition in partitions:
        topic.check_partition(partition)
    for partition in partitions:
        for batch in _from_partition(topic, partition, bounds, limit, columns):
            yield batch
            limit = None if limit is None else limit - batch.num_rows


def _from_partition(
    topic: Topic, partition: int, bounds: Bounds, limit: int | None, columns: Sequence[str]
) -> Iterable[pa.RecordBatch]:
    start = bounds.start(topic, partition)
    if limit is None or bounds.isolation == "read_committed":
        scan = topic.scan(
            [partition],
            start,
            start_time=bounds.since,
            end_time=bounds.until,
            columns=columns,
            isolation=bounds.isolation,
        )
        return scan if limit is None else first(topic.reader, scan.slices, columns, limit, scan.isolation)
    times = TimeRange.between(bounds.since, bounds.until)
    slices = scan_plan.slices_of(topic.reader, topic.live_snapshot, partition, start, times)
    return first(topic.reader, slices, columns, limit)
