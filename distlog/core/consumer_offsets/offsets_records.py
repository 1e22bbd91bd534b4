"""The records of `__consumer_offsets` as they count: those of a transaction where it ends, not where they lie."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distlog.core.batches.record_batch import COMMIT, CONTROL, TRANSACTIONAL
from distlog.core.commits.state.snapshot import PartitionState, Snapshot
from distlog.core.consumer_offsets.waiting_changes import WaitingChanges
from distlog.core.reading import pipeline, scan_plan
from distlog.core.reading.chunks.chunk import Chunk
from distlog.core.reading.files.segment_reader import SegmentReader
from distlog.core.reading.pipeline import GROUP_BYTES
from distlog.core.reading.whole_log import whole_groups, whole_logs
from distlog.core.storage.parallel import cores
from distlog.core.transactions.isolation import READ_UNCOMMITTED
from distlog.core.transactions.open_transactions import control_type

_COLUMNS = ("partition", "offset", "key", "value")


class OffsetsRecord(NamedTuple):
    """A record; `waits_for` is the id of its producer while that has not ended its transaction."""

    partition: int
    offset: int
    key: bytes
    value: bytes | None
    waits_for: int | None = None


def offsets_records(
    reader: SegmentReader, snapshot: Snapshot, partitions: Iterable[int], prefixes: Sequence[bytes] = (b"",)
) -> Iterator[OffsetsRecord]:
    """The records that count in `snapshot`, in each partition in the order in which they do.

    Of those with one key, the last one comes, and some of the others. Those of open transactions come last in their
    partition, and those whose keys begin with none of `prefixes` are left out. Each object is read once for all
    partitions that it holds small segments of, and many objects at the same time.
    """
    states = {number: snapshot.partitions[number] for number in partitions}
    mixed = {number: state for number, state in states.items() if state.segments.array("has_transactions").any()}
    ends = {number: (None, state.log_end_offset) for number, state in states.items() if number not in mixed}
    slices, visible = scan_plan.plan(reader, snapshot, ends, "read_uncommitted")
    for batch in pipeline.read(reader, slices, _COLUMNS, visible, cores()):
        yield from _records(batch, prefixes)
    for group in _read_together(mixed):
        yield from _with_transactions(reader, group, prefixes)


def _records(batch: pa.RecordBatch, prefixes: Sequence[bytes]) -> Iterator[OffsetsRecord]:
    """The last record of each key."""
    keys = pc.fill_null(batch.column("key"), b"")
    wanted = reduce(pc.or_, (pc.starts_with(keys, pattern=prefix) for prefix in prefixes))
    chosen = batch.filter(wanted)
    # a group commits the same few positions for ever, and each may become a Python object only once
    codes = chosen.column("key").dictionary_encode(null_encoding="encode").indices.to_numpy()
    _, from_end = np.unique(codes[::-1], return_index=True)
    for row in chosen.take(np.sort(len(codes) - 1 - from_end)).to_pylist():
        yield OffsetsRecord(row["partition"], row["offset"], row["key"] or b"", row["value"])


def _read_together(states: Mapping[int, PartitionState]) -> Iterator[dict[int, PartitionState]]:
    """Partitions whose logs fit into memory together; a large one is alone."""
    group, size = dict[int, PartitionState](), 0
    for number, state in states.items():
        own = int(state.segments.log_bytes.sum())
        if group and size + own > GROUP_BYTES:
            yield group
            group, size = {}, 0
        group[number], size = state, size + own
    if group:
        yield group


def _with_transactions(
    reader: SegmentReader, states: Mapping[int, PartitionState], prefixes: Sequence[bytes]
) -> Iterator[OffsetsRecord]:
    logs = [list(state.segments) for state in states.values()]
    chunks = [whole_logs(reader, logs[0])] if len(logs) == 1 else [[one] for one in whole_groups(reader, logs)]
    for found in chunks:
        waiting = WaitingChanges[bytes, OffsetsRecord]()
        for chunk in found:
            for run in _runs(chunk):
                yield from _counted(run, waiting, prefixes)
        for producer_id, _, record in waiting:
            yield record._replace(waits_for=producer_id)


def _runs(chunk: Chunk) -> Iterator[Chunk]:
    """The chunk, cut where other segments, other producers' batches, or end markers, begin."""
    for at in range(len(chunk.pieces)):
        yield from _runs_of_segment(chunk.part(at, at + 1))


def _runs_of_segment(chunk: Chunk) -> Iterator[Chunk]:
    rows = chunk.batches
    kinds = rows["attributes"] & (TRANSACTIONAL | CONTROL)
    changes = (np.diff(rows["producer_id"]) != 0) | (np.diff(kinds) != 0)
    ends = [*(np.flatnonzero(changes) + 1).tolist(), len(rows)]
    for start, end in zip([0, *ends], ends, strict=False):
        if end > start:
            yield chunk.rows(start, end)


def _counted(
    run: Chunk, waiting: WaitingChanges[bytes, OffsetsRecord], prefixes: Sequence[bytes]
) -> Iterator[OffsetsRecord]:
    first = run.batches[0]
    producer_id, attributes = int(first["producer_id"]), int(first["attributes"])
    if attributes & CONTROL:
        is_committed = control_type(run.data, first) == COMMIT
        yield from waiting.end(producer_id, is_committed=is_committed).values()
        return
    for batch in run.records(_COLUMNS, READ_UNCOMMITTED):
        for record in _records(batch, prefixes):
            if attributes & TRANSACTIONAL:
                waiting.add(producer_id, record.key, record)
            else:
                waiting.supersede(record.key)
                yield record
