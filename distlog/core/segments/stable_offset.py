"""The last stable offset of a partition: every transaction that began below it is decided (KIP-98)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from distlog.core.commits.segment_info import NO_OFFSET, NOT_LOOKED, SegmentInfo
from distlog.core.commits.snapshot import PartitionState
from distlog.core.errors import CorruptIndexError
from distlog.core.format.transaction_index import AbortedTransaction, collect_aborted
from distlog.core.segments.open_transactions import OpenTransactions
from distlog.core.segments.pipeline import whole_log
from distlog.core.segments.segment_reader import SegmentReader


def last_stable_offset(reader: SegmentReader, state: PartitionState) -> int:
    """The first offset of the earliest open transaction, or the log end offset; reads logs if no metadata has it."""
    rows = np.flatnonzero(state.segments.array("has_transactions"))
    first = _known_unstable_offset(state.segments[int(rows[-1])], state) if len(rows) else NO_OFFSET
    if first == NOT_LOOKED:
        first = list(transactions_of(reader, state))[-1].first_unstable_offset
    return state.log_end_offset if first == NO_OFFSET else max(first, state.log_start_offset)


def _known_unstable_offset(segment: SegmentInfo, state: PartitionState) -> int:
    """The first unstable offset of the last segment with transactions; NOT_LOOKED if it is unknown."""
    first = segment.first_unstable_offset
    # a clean segment has no open transactions: compaction dropped the end marker with the last data
    return NOT_LOOKED if 0 <= first < state.first_dirty_offset else first


def transactional_segments(state: PartitionState, start: int = 0) -> list[SegmentInfo]:
    first = state.segments.find(start)
    rows = np.flatnonzero(state.segments.array("has_transactions")[first:]) + first
    return [state.segments[int(row)] for row in rows]


def aborted_transactions(reader: SegmentReader, state: PartitionState, start: int) -> list[AbortedTransaction]:
    return [
        transaction
        for segment in transactional_segments(state, start)
        for transaction in _aborted_in(reader, state, segment)
    ]


def aborted_between(
    reader: SegmentReader, state: PartitionState, start: int, end: int
) -> Iterator[AbortedTransaction]:
    """The aborted transactions that reach into [start, end), as Kafka's `collectAbortedTransactions`."""
    for segment in transactional_segments(state, start):
        transactions, is_complete = collect_aborted(_aborted_in(reader, state, segment), start, end)
        yield from transactions
        if is_complete:
            return


def _aborted_in(reader: SegmentReader, state: PartitionState, segment: SegmentInfo) -> list[AbortedTransaction]:
    try:
        return reader.aborted_transactions(segment)
    except CorruptIndexError:
        if not segment.is_active:
            raise
        # its end was found by a walk, and the index may have less: then the log is read
        transactions = (listed for listed in transactions_of(reader, state) if listed.segment.stem == segment.stem)
        return [transaction for listed in transactions for transaction in listed.aborted]


class SegmentTransactions(NamedTuple):
    """The aborted transactions that end in `segment`; the first offset that is open at its end, or NO_OFFSET."""

    segment: SegmentInfo
    aborted: list[AbortedTransaction]
    first_unstable_offset: int


def transactions_of(reader: SegmentReader, state: PartitionState) -> Iterator[SegmentTransactions]:
    transactions = OpenTransactions()
    for segment in transactional_segments(state):
        aborted = list[AbortedTransaction]()
        for chunk in whole_log(reader, segment):
            # a batch that compaction emptied hides nothing, and opens nothing
            rows = chunk.batches[chunk.batches["record_count"] > 0]
            aborted += transactions.observe(chunk.data, rows, segment.shift)
        yield SegmentTransactions(segment, aborted, transactions.first_offset)
