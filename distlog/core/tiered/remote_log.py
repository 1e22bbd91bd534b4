"""The log of a remote partition: which of its uploaded segments make it up, and what a snapshot says of them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from distlog.core.commits.segment_info import NO_OFFSET, SegmentInfo
from distlog.core.commits.segment_table import SegmentTable
from distlog.core.commits.snapshot import PartitionState
from distlog.core.config import MAX_LONG
from distlog.core.errors import CorruptMetadataError
from distlog.core.tiered.manifest import SNAPSHOT, RemoteSegment
from distlog.core.tiered.tiered_storage import LOG, MANIFEST, RemoteTopic, TieredStorage
from distlog.core.transactions.producer_snapshot import read_producer_snapshot

#: Of what is not known of a segment.
UNKNOWN = -1

_log = logging.getLogger("distlog")


def chosen_segments(topic: RemoteTopic, uploaded: Iterable[RemoteSegment]) -> list[RemoteSegment]:
    """Those of one partition's segments that make up its log, in the order of their offsets.

    A segment may have been uploaded more than once, since a broker that died begins anew: of two that hold the same
    offsets the one with more of them counts, then the one whose upload began last. Raises CorruptMetadataError for
    offsets that are in no segment, or partly in another one.
    """
    chosen: list[RemoteSegment] = []
    for segment in sorted(uploaded, key=lambda each: (each.start_offset, -each.next_offset, -each.event_ms)):
        if chosen and segment.next_offset <= chosen[-1].next_offset:
            file = topic.file(segment.partition, segment.stem, LOG)
            _log.warning("a segment was uploaded twice; this one is not read (file=%s)", file)
            continue
        if chosen and segment.start_offset != chosen[-1].next_offset:
            is_gap = segment.start_offset > chosen[-1].next_offset
            raise CorruptMetadataError(
                "there are offsets that no uploaded segment holds: an upload was deleted or is not complete"
                if is_gap
                else "two uploaded segments overlap in part: which one holds those offsets only the brokers know",
                file=topic.file(segment.partition, segment.stem, MANIFEST),
                partition=segment.partition,
                start_offset=segment.start_offset,
                expected=chosen[-1].next_offset,
            )
        chosen.append(segment)
    return chosen


def partition_state(segments: Sequence[RemoteSegment], unstable: int) -> PartitionState:
    """The state of a partition of these segments, at whose end the first open transaction begins at `unstable`."""
    if not segments:
        return PartitionState()
    infos = [segment_info(segment, NO_OFFSET) for segment in segments[:-1]]
    infos.append(segment_info(segments[-1], unstable))
    start, end = segments[0].start_offset, segments[-1].next_offset
    return PartitionState(log_start_offset=start, log_end_offset=end, segments=SegmentTable.of(infos))


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
