"""End markers of transactions, and ready-made batches as one bundle."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from distlog.core.arrays import column_of, integers
from distlog.core.commits.segment_table import BY_COMMIT, SegmentInfo
from distlog.core.commits.snapshot import Snapshot
from distlog.core.format.record_batch import ABORT, COMMIT
from distlog.core.format.record_encoder import encode
from distlog.core.format.transaction_index import AbortedTransaction
from distlog.core.log.log_validator import BatchRun, ValidBatch
from distlog.core.segments.segment_writer import Bundles, RollTime, SegmentFile, time_span, with_aborted
from distlog.core.segments.topic_handle import TopicHandle
from distlog.core.segments.transactions import OpenTransactions

#: Version and type of a control record; version of the value, and epoch of the coordinator that decided.
_KEY, _VALUE = struct.Struct(">hh"), struct.Struct(">hi")
_VERSION = 0
#: The decider holds a lock, or puts a commit first: so a coordinator that was replaced can write no marker.
_COORDINATOR_EPOCH = 0


def marker(
    producer_id: int,
    producer_epoch: int,
    now_ms: int,
    *,
    is_committed: bool,
    coordinator_epoch: int = _COORDINATOR_EPOCH,
) -> BatchRun:
    kind = COMMIT if is_committed else ABORT
    record = pa.record_batch(
        {
            "timestamp": integers([now_ms]),
            "key": column_of([_KEY.pack(_VERSION, kind)], pa.binary()),
            "value": column_of([_VALUE.pack(_VERSION, coordinator_epoch)], pa.binary()),
        }
    )
    encoded = encode(record, producer_id=producer_id, producer_epoch=producer_epoch, transactional=True, control=True)
    return BatchRun(
        np.frombuffer(encoded.data, np.uint8),
        encoded.batches,
        encoded.offsets_of_max_timestamp,
        encoded.min_timestamps,
        in_transaction=True,
    )


#: Batches by partition.
Parts = Mapping[int, Sequence[ValidBatch]]


class WrittenSegment(NamedTuple):
    """A segment that no commit names yet, and its batches. It holds only if it aborts these transactions."""

    info: SegmentInfo
    batches: Sequence[ValidBatch]
    aborted: Sequence[AbortedTransaction] = ()


def write_bundle(
    handle: TopicHandle, snapshot: Snapshot, batches: Parts, open_transactions: Mapping[int, Mapping[int, int]]
) -> list[WrittenSegment]:
    """Write durable segments of the batches, by partition, in their order.

    `open_transactions` are open at the ends of the partitions in `snapshot`. The base offsets in the
    batches are overwritten.
    """
    bundles = Bundles(handle.storage, lambda: handle.new_stem(snapshot.version))
    for partition in batches:
        bundles.join(partition)
    sealed = [
        segment
        for partition, parts in sorted(batches.items())
        for segment in _segments(handle, snapshot, partition, parts, bundles)
    ]
    bundles.close()
    placed = [segment._replace(info=bundles.placed(segment.info)) for segment in sealed]
    ends = {number: snapshot.partitions[number].log_end_offset for number in batches}
    return list(_with_aborted(handle, placed, ends, open_transactions))


def effect(
    written: WrittenSegment, base_offset: int, transactions: OpenTransactions
) -> tuple[list[AbortedTransaction], int]:
    """Return the `transactions` that a segment at `base_offset` aborts, and the first unstable offset after it."""
    aborted, offset = list[AbortedTransaction](), base_offset
    for batch in written.batches:
        aborted += transactions.observe(batch.data, batch.rows, offset - int(batch.rows[0]["base_offset"]))
        offset += batch.offset_count
    return aborted, transactions.first_offset


def _with_aborted(
    handle: TopicHandle,
    segments: Sequence[WrittenSegment],
    ends: dict[int, int],
    open_transactions: Mapping[int, Mapping[int, int]],
) -> Iterator[WrittenSegment]:
    """Yield the segments with transaction indexes for their final offsets."""
    open_now = {number: OpenTransactions(open_transactions.get(number)) for number in ends}
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
    time, now_ms = RollTime(time_span(snapshot.config)), handle.clock()
    for valid in batches:
        if segment is not None and not (
            segment.room(valid.rows, np.array([segment.next_offset])) and time.room(valid.rows, now_ms)
        ):
            yield WrittenSegment(_sealed(handle, snapshot, segment), held)
            segment, held = None, []
        if segment is None:
            stem = handle.new_stem(snapshot.version)
            segment = SegmentFile(handle.storage, handle.name, partition, stem, snapshot.config, bundles)
            time.open(valid.rows[0], valid.min_timestamp, now_ms)
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
