"""The open and the aborted transactions of a partition, by its batches."""

from __future__ import annotations

import struct

import pytest
from raw_batches import batch, record

from distlog.core.commits.segment_table import NO_OFFSET
from distlog.core.format.indexes import AbortedTransaction
from distlog.core.format.record_batch import ABORT, COMMIT, CONTROL, TRANSACTIONAL, read_headers
from distlog.core.segments.producer_states import OpenTransactions


def marker(producer: int, kind: int) -> bytes:
    rows = [record(0, 0, struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 0))]
    return batch(rows, attributes=CONTROL | TRANSACTIONAL, producer=(producer, 0, -1))


@pytest.mark.parametrize("kind", [ABORT, COMMIT])
def test_markers_of_a_transaction_without_records_abort_nothing(kind: int) -> None:
    """testSkipEmptyTransactions."""
    data, transactions = marker(1, kind), OpenTransactions({2: 3})
    assert transactions.observe(data, read_headers(data), 7) == []
    assert transactions.first_offsets == {2: 3}


def test_the_log_is_stable_up_to_the_first_open_transaction() -> None:
    """testLastStableOffsetCompletedTxn."""
    transactions = OpenTransactions({1: 3, 2: 5})
    open_ranges, firsts = [], []
    for producer, kind, offset in ((1, ABORT, 8), (2, ABORT, 9)):
        data = marker(producer, kind)
        open_ranges += transactions.observe(data, read_headers(data), offset)
        firsts.append(transactions.first_offset)
    assert open_ranges == [AbortedTransaction(1, 3, 8, 5), AbortedTransaction(2, 5, 9, 10)]
    assert firsts == [5, NO_OFFSET]
