"""Writes ready-made batches of several partitions as one bundle, or as files if they are of one partition."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from distlog.core.commits.format.segment_info import BY_COMMIT, SegmentInfo
from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.indexes.transaction_index import AbortedTransaction
from distlog.core.log.partition.log_validator import ValidBatch
from distlog.core.segments.aborted_transactions import with_aborted
from distlog.core.segments.bundles import Bundles
from distlog.core.segments.segment_file import SegmentFile
from distlog.core.topic_handle import TopicHandle
from distlog.core.transactions.open_transactions import OpenTransactions

#: Batches by partition.
Parts = Mapping[int, Sequence[ValidBatch]]


class WrittenSegment(NamedTuple):
    """A segment that no commit names yet, and its batches. It holds only if it aborts these transactions."""

    info: SegmentInfo
    batches: Sequence[ValidBatch]
    aborted: Sequence[AbortedTransaction] = ()


def write_bundle(
    handle: TopicHandle, snapshot: Snapshot, batches: Parts, opened: Mapping[int, Mapping[int, int]]
) -> list[WrittenSegment]:
    """The segments of the batches, by partition, in their order; they are durable.

    `opened` has the transactions that are open at the ends of the partitions in `snapshot`. The base offsets in the
    batches are overwritten. Raises StorageError.
    """
    bundles = Bundles(handle.storage, lambda: handle.new_stem(snapshot.version))
    for partition in batches:
        bundles.join(partition)
    sealed = [
        segment
        for partition, each in sorted(batches.items())
        for segment in _segments(handle, snapshot, partition, each, bundles)
    ]
    bundles.close()
    placed = [each._replace(info=bundles.placed(each.info)) for each in sealed]
    ends = {number: snapshot.partitions[number].log_end_offset for number in batches}
    return list(_with_aborted(handle, placed, ends, opened))


def effect(
    written: WrittenSegment, base_offset: int, transactions: OpenTransactions
) -> tuple[list[AbortedTransaction], int]:
    """What a segment at `base_offset` aborts of the `transactions`, and the first unstable offset behind it."""
    aborted, offset = list[AbortedTransaction](), base_offset
    for batch in written.batches:
        row = batch.rows[0]
        aborted += transactions.see(batch.data, batch.rows, offset - int(row["base_offset"]))
        offset += int(row["last_offset_delta"]) + 1
    return aborted, transactions.first_offset


def _with_aborted(
    handle: TopicHandle,
    segments: Sequence[WrittenSegment],
    ends: dict[int, int],
    opened: Mapping[int, Mapping[int, int]],
) -> Iterator[WrittenSegment]:
    """The segments with their transaction indexes, which hold where they are now."""
    open_now = {number: OpenTransactions(opened.get(number)) for number in ends}
    for written in segments:
        info, base = written.info, ends[written.info.partition]
        ends[info.partition] += info.next_offset
        aborted, _ = effect(written, base, open_now[info.partition])
        if not aborted:
            yield written
            continue
        info = with_aborted(handle.storage, handle.name, info, aborted, base)
        yield WrittenSegment(info, written.batches, aborted)


def _segments(
    handle: TopicHandle, snapshot: Snapshot, partition: int, batches: Sequence[ValidBatch], bundles: Bundles
) -> Iterator[WrittenSegment]:
    segment: SegmentFile | None = None
    held: list[ValidBatch] = []
    for valid in batches:
        if segment is not None and not segment.room(valid.rows, np.array([segment.next_offset])):
            yield WrittenSegment(_sealed(handle, snapshot, segment), held)
            segment, held = None, []
        if segment is None:
            stem = handle.new_stem(snapshot.version)
            segment = SegmentFile(handle.storage, handle.name, partition, stem, snapshot.config, bundles)
        base = np.array([segment.next_offset])
        newest = base + valid.newest_offset if valid.newest_offset >= 0 else np.array([valid.newest_offset])
        segment.write(valid.data, valid.rows, base, newest, np.array([valid.min_timestamp]))
        held.append(valid)
    if segment is not None:
        yield WrittenSegment(_sealed(handle, snapshot, segment), held)


def _sealed(handle: TopicHandle, snapshot: Snapshot, segment: SegmentFile) -> SegmentInfo:
    sealed = segment.seal(handle.clock())
    waits = snapshot.config.message_timestamp_type == "LogAppendTime"
    return dataclasses.replace(sealed, append_time_ms=BY_COMMIT) if waits else sealed
