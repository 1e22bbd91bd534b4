"""The records that `distlog read` was asked for, partition by partition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from distlog.core.topics.topic import Topic


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """From an offset or from the time `since`, up to the time `until`; times in ms, None is the log's own bound."""

    offset: int | None = None
    since: int | None = None
    until: int | None = None


def batches(
    topic: Topic, partitions: Sequence[int], bounds: Bounds, limit: int | None, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Batches of the records within `bounds`, at most `limit` records in all.

    Raises OffsetOutOfRangeError for an offset outside of a partition.
    """
    for partition in partitions:
        topic.check_partition(partition)
    starts = _offsets(topic, bounds.since, topic.start_offsets())
    ends = _offsets(topic, bounds.until, topic.end_offsets())
    for partition in partitions:
        start = starts[partition] if bounds.offset is None else bounds.offset
        for batch in _from_partition(topic, partition, start, ends[partition], limit, columns):
            yield batch
            limit = None if limit is None else limit - batch.num_rows


def _offsets(topic: Topic, time: int | None, otherwise: dict[int, int]) -> dict[int, int]:
    if time is None:
        return otherwise
    ends = topic.end_offsets()
    return {number: found[0] if found else ends[number] for number, found in topic.offsets_for_times(time).items()}


def _from_partition(
    topic: Topic, partition: int, start: int, end: int, limit: int | None, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    if limit is None:
        yield from topic.scan([partition], {partition: start}, {partition: end}, columns=columns)
        return
    step = limit  # offsets to look at; more and more of them where compaction left gaps
    while limit > 0:
        stop = min(end, start + step)
        for batch in topic.scan([partition], {partition: start}, {partition: stop}, columns=columns):
            taken = batch.slice(0, limit)
            yield taken
            limit -= taken.num_rows
        if stop >= end:
            return
        start, step = stop, 2 * step
