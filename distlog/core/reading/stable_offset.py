"""The last stable offset of a partition: every transaction that began below it is decided (KIP-98)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from distlog.core.commits.segment_info import NO_OFFSET, NOT_LOOKED, SegmentInfo
from distlog.core.commits.snapshot import PartitionState
from distlog.core.reading.segment_reader import SegmentReader
from distlog.core.reading.whole_log import whole_log
from distlog.core.transactions.open_transactions import OpenTransactions


def last_stable_offset(reader: SegmentReader, state: PartitionState) -> int:
    """The first offset of the earliest open transaction, or the log end offset if none is open.

    If the metadata does not have it, the segments with transactions are read. Raises CorruptRecordError.
    """
    rows = np.flatnonzero(state.segments.array("has_transactions"))
    first = _known(state.segments[int(rows[-1])], state) if len(rows) else NO_OFFSET
    if first == NOT_LOOKED:
        first = list(first_unstable_offsets(reader, state))[-1][1]
    return state.log_end_offset if first == NO_OFFSET else max(first, state.log_start_offset)


def _known(segment: SegmentInfo, state: PartitionState) -> int:
    """The first unstable offset of the last segment with transactions; NOT_LOOKED if it is not known."""
    first = segment.first_unstable_offset
    # a clean segment's transactions are decided: compaction has dropped the end marker with its last such data
    return NOT_LOOKED if 0 <= first < state.first_dirty_offset else first


def transactional_segments(state: PartitionState, start: int = 0) -> list[SegmentInfo]:
    """The segments that may hold transactional data or markers, from the one of offset `start` on."""
    first = state.segments.find(start)
    rows = np.flatnonzero(state.segments.array("has_transactions")[first:]) + first
    return [state.segments[int(row)] for row in rows]


def first_unstable_offsets(reader: SegmentReader, state: PartitionState) -> Iterator[tuple[SegmentInfo, int]]:
    """Yield each segment with transactions, and the first offset of the oldest one that is open at the segment's end.

    That is NO_OFFSET if none is open. Reads all of these segments. Raises CorruptRecordError.
    """
    transactions = OpenTransactions()
    for segment in transactional_segments(state):
        for chunk in whole_log(reader, segment):
            transactions.see(chunk.data, chunk.batches, segment.shift)
        yield segment, transactions.first_offset
