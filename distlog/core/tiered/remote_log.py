"""The log of a remote partition: which of its uploaded segments make it up, and what a snapshot says of them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from distlog.core.commits.format.segment_info import NO_OFFSET, SegmentInfo
from distlog.core.commits.state.segment_table import SegmentTable
from distlog.core.commits.state.snapshot import PartitionState
from distlog.core.config import MAX_LONG
from distlog.core.errors import CorruptMetadataError
from distlog.core.reading.files.segment_reader import SegmentReader
from distlog.core.reading.slices.slices import SegmentSlice
from distlog.core.tiered.manifest import SNAPSHOT, RemoteSegment
from distlog.core.tiered.tiered_storage import LOG, MANIFEST, RemoteTopic, TieredStorage
from distlog.core.transactions.producer_snapshot import read_producer_snapshot

#: Of what is not known of a segment.
UNKNOWN = -1

_log = logging.getLogger("distlog")


class LogPart(NamedTuple):
    """A segment as part of a log, which reads it only up to `end_offset`: there the next one begins."""

    segment: RemoteSegment
    end_offset: int


def log_parts(topic: RemoteTopic, uploaded: Iterable[RemoteSegment]) -> list[LogPart]:
    """The parts of a partition's log, in the order of their offsets, from all of its segments that were uploaded.

    A segment may have been uploaded more than once, since a broker that died begins anew: of two that hold the same
    offsets the one with more of them counts, then the one whose upload began last. After a change of the leader two
    may overlap, since each broker rolls its segments by itself: as in Kafka, the one that begins later is read from
    there on. Raises CorruptMetadataError for offsets that are in no segment.
    """
    parts: list[LogPart] = []
    for segment in sorted(uploaded, key=lambda each: (each.start_offset, -each.next_offset, -each.event_ms)):
        end = parts[-1].end_offset if parts else segment.start_offset
        if parts and segment.next_offset <= end:
            file = topic.file(segment.partition, segment.stem, LOG)
            _log.warning("a segment was uploaded twice; this one is not read (file=%s)", file)
            continue
        if segment.start_offset > end:
            raise CorruptMetadataError(
                "there are offsets that no uploaded segment holds: an upload was deleted or is not complete",
                file=topic.file(segment.partition, segment.stem, MANIFEST),
                partition=segment.partition,
                start_offset=segment.start_offset,
                expected=end,
            )
        if segment.start_offset < end:
            parts[-1] = LogPart(parts[-1].segment, segment.start_offset)
        parts.append(LogPart(segment, segment.next_offset))
    return parts


def partition_state(reader: SegmentReader, parts: Sequence[LogPart], unstable: int) -> PartitionState:
    """The state of a partition of these parts, at whose end the first open transaction begins at `unstable`.

    Of a segment that is not read to its end, the batches there are looked for.
    """
    infos = [segment_info(part.segment, NO_OFFSET) for part in parts[:-1]]
    infos = [_cut(reader, info, part.end_offset) for info, part in zip(infos, parts[:-1], strict=True)]
    infos.append(segment_info(parts[-1].segment, unstable))
    start, end = infos[0].base_offset, infos[-1].next_offset
    return PartitionState(log_start_offset=start, log_end_offset=end, segments=SegmentTable.of(infos))


def _cut(reader: SegmentReader, segment: SegmentInfo, end: int) -> SegmentInfo:
    """The segment up to the offset `end`; raises CorruptMetadataError if a batch goes on there."""
    if end == segment.next_offset:
        return segment
    for chunk in reader.chunks(SegmentSlice(segment, end - 1, segment.next_offset, 0, segment.log_bytes)):
        rows = np.flatnonzero(chunk.batches["base_offset"] + chunk.batches["last_offset_delta"] >= end)
        if len(rows) and chunk.batches["base_offset"][rows[0]] < end:
            break
        if len(rows):
            position = chunk.pieces[0].origin + int(chunk.batches["position"][rows[0]])
            # the entries of its indexes go on beyond that
            return replace(segment, next_offset=end, log_bytes=position, offset_index_bytes=0, time_index_bytes=0)
    raise CorruptMetadataError(
        "two uploaded segments overlap, and no batch ends where the second begins",
        file=reader.name(segment),
        partition=segment.partition,
        offset=end,
    )


def segment_info(segment: RemoteSegment, unstable: int) -> SegmentInfo:
    """What is known of a segment without its log.

    Its number of records is not, and it may hold transactions, so nothing that depends on them is taken from here.
    """
    return SegmentInfo(
        partition=segment.partition,
        stem=segment.stem,
        base_offset=segment.start_offset,
        next_offset=segment.next_offset,
        stored_base_offset=segment.start_offset,
        record_count=UNKNOWN,
        log_bytes=segment.chunks.log_bytes,
        offset_index_bytes=segment.index_bytes(".index"),
        time_index_bytes=segment.index_bytes(".timeindex"),
        txn_index_bytes=segment.index_bytes(".txnindex"),
        first_timestamp=UNKNOWN,
        max_timestamp=segment.max_timestamp,
        offset_of_max_timestamp=UNKNOWN,
        compression="unknown",
        leader_epoch=segment.leader_epoch,
        has_transactions=True,
        created_ms=segment.event_ms,
        crc32c=0,
        first_unstable_offset=unstable,
    )


def first_unstable_offsets(storage: TieredStorage, last: Sequence[RemoteSegment]) -> list[int]:
    """Where the first transaction begins that is open at the end of each of the `last` segments; NO_OFFSET for none.

    The state of the producers there was uploaded with the segment, so one request for each tells. Raises
    CorruptIndexError.
    """
    names = [f"{storage.topic.name}-{segment.partition}/{segment.stem}{SNAPSHOT}" for segment in last]
    sizes = [segment.index_bytes(SNAPSHOT) for segment in last]
    found = storage.read_ranges([(name, 0, size) for name, size in zip(names, sizes, strict=True) if size])
    snapshots = iter(found)
    return [
        _first_open(next(snapshots), name) if size else NO_OFFSET for name, size in zip(names, sizes, strict=True)
    ]


def _first_open(snapshot: memoryview, name: str) -> int:
    offsets = read_producer_snapshot(bytes(snapshot), file=name)["transaction_first_offset"]
    return int(offsets[offsets >= 0].min(initial=MAX_LONG)) if (offsets >= 0).any() else NO_OFFSET
