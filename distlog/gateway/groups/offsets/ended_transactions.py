"""The transactions that end in a partition of `__consumer_offsets`: they may have brought positions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from distlog.core.batches.record_batch import COMMIT, CONTROL
from distlog.core.transactions.open_transactions import control_type
from distlog.gateway.topics.partition_tail import PartitionTail


class EndedTransaction(NamedTuple):
    """A transaction that has its end marker in a partition."""

    producer_id: int
    is_committed: bool


def ended_transactions(tail: PartitionTail) -> Iterator[EndedTransaction]:
    """The transactions that have ended in a partition since the last look. Raises DistlogError."""
    for found in tail.batches():
        for row in found.rows[found.rows["attributes"] & CONTROL != 0]:
            yield EndedTransaction(int(row["producer_id"]), control_type(found.data, row) == COMMIT)
