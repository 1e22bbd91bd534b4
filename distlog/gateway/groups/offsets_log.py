"""The records of `__consumer_offsets` as they count: those of a transaction where it ends, not where they lie."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from distlog.core.batches.record_batch import COMMIT, CONTROL, TRANSACTIONAL
from distlog.core.commits.snapshot import PartitionState, Snapshot
from distlog.core.reading.chunk import Chunk
from distlog.core.reading.whole_log import whole_log
from distlog.core.topics.topic import Topic
from distlog.core.transactions.isolation import READ_UNCOMMITTED
from distlog.core.transactions.open_transactions import control_type
from distlog.gateway.groups.waiting_changes import WaitingChanges
from distlog.gateway.partition_tail import PartitionTail

_COLUMNS = ("offset", "key", "value")


class OffsetsRecord(NamedTuple):
    """A record; `waits_for` is the id of its producer while that has not ended its transaction."""

    partition: int
    offset: int
    key: bytes
    value: bytes | None
    waits_for: int | None = None


def offsets_records(topic: Topic, snapshot: Snapshot, partitions: Iterable[int]) -> Iterator[OffsetsRecord]:
    """The records that count in `snapshot`, in each partition in the order in which they do.

    Those of open transactions come last.
    """
    for number in partitions:
        state = snapshot.partitions[number]
        if state.segments.array("has_transactions").any():
            yield from _with_transactions(topic, state, number)
        else:
            for batch in topic.scan(partitions=[number], end={number: state.log_end_offset}, columns=_COLUMNS):
                for row in batch.to_pylist():
                    yield OffsetsRecord(number, row["offset"], row["key"] or b"", row["value"])


def _with_transactions(topic: Topic, state: PartitionState, number: int) -> Iterator[OffsetsRecord]:
    waiting = WaitingChanges[bytes, OffsetsRecord]()
    for at in range(len(state.segments)):
        for chunk in whole_log(topic.reader, state.segments[at]):
            for run in _runs(chunk):
                yield from _counted(run, number, waiting)
    for producer_id, _, record in waiting:
        yield record._replace(waits_for=producer_id)


def _runs(chunk: Chunk) -> Iterator[Chunk]:
    """The chunk, cut where other producers' batches, or end markers, begin."""
    rows = chunk.batches
    kinds = rows["attributes"] & (TRANSACTIONAL | CONTROL)
    changes = (np.diff(rows["producer_id"]) != 0) | (np.diff(kinds) != 0)
    ends = [*(np.flatnonzero(changes) + 1).tolist(), len(rows)]
    for start, end in zip([0, *ends], ends, strict=False):
        if end > start:
            yield chunk.rows(start, end)


def _counted(run: Chunk, number: int, waiting: WaitingChanges[bytes, OffsetsRecord]) -> Iterator[OffsetsRecord]:
    first = run.batches[0]
    producer_id, attributes = int(first["producer_id"]), int(first["attributes"])
    if attributes & CONTROL:
        is_committed = control_type(run.data, first) == COMMIT
        yield from waiting.end(producer_id, is_committed=is_committed).values()
        return
    for batch in run.records(_COLUMNS, READ_UNCOMMITTED):
        for row in batch.to_pylist():
            record = OffsetsRecord(number, row["offset"], row["key"] or b"", row["value"])
            if attributes & TRANSACTIONAL:
                waiting.add(producer_id, record.key, record)
            else:
                waiting.supersede(record.key)
                yield record


class EndedTransaction(NamedTuple):
    """A transaction that has its end marker in a partition."""

    producer_id: int
    is_committed: bool


def ended_transactions(tail: PartitionTail) -> Iterator[EndedTransaction]:
    """The transactions that have ended in a partition since the last look. Raises DistlogError."""
    for found in tail.batches():
        for row in found.rows[found.rows["attributes"] & CONTROL != 0]:
            yield EndedTransaction(int(row["producer_id"]), control_type(found.data, row) == COMMIT)
