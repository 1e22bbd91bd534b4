"""Isolation: a reader sees all records of transactions, or only the committed ones (KIP-98).

distlog writes no open transactions; a partition adopted from Kafka may hold them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from distlog.core.batches.record_batch import TRANSACTIONAL
from distlog.core.indexes.transaction_index import AbortedTransaction

IsolationLevel = Literal["read_uncommitted", "read_committed"]
#: One value for all batches, or one value for each batch.
PerBatch = int | npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Isolation:
    """Hides the data of aborted transactions. The decoder always hides control batches, as a Kafka consumer does.

    `aborted` has, by partition, a row per transaction: producer id, first offset, last offset.
    """

    aborted: Mapping[int, npt.NDArray[np.int64]] = field(default_factory=dict)

    @classmethod
    def of(cls, aborted: Mapping[int, Iterable[AbortedTransaction]]) -> Isolation:
        """The isolation that hides the transactions in `aborted`, given by partition."""
        return cls({partition: _rows(transactions) for partition, transactions in aborted.items()})

    def visible(self, batches: npt.NDArray[Any], shift: PerBatch, partition: PerBatch) -> npt.NDArray[np.bool_]:
        """Which of `batches` a reader sees; their offsets are the stored ones + `shift`, in `partition`."""
        seen = np.ones(len(batches), bool)
        for number, transactions in self.aborted.items():
            rows = np.flatnonzero((partition == number) & ((batches["attributes"] & TRANSACTIONAL) != 0))
            base = (batches["base_offset"] + shift)[rows]
            if len(rows):
                for producer, first, last in _reaching_into(transactions, int(base.min()), int(base.max())):
                    hidden = (batches["producer_id"][rows] == producer) & (base >= first) & (base <= last)
                    seen[rows[hidden]] = False
        return seen


READ_UNCOMMITTED = Isolation()


def _rows(transactions: Iterable[AbortedTransaction]) -> npt.NDArray[np.int64]:
    rows = [(each.producer_id, each.first_offset, each.last_offset) for each in transactions]
    return np.array(rows, np.int64).reshape(-1, 3)


def _reaching_into(transactions: npt.NDArray[np.int64], first: int, last: int) -> list[list[int]]:
    found: list[list[int]] = transactions[(transactions[:, 1] <= last) & (transactions[:, 2] >= first)].tolist()
    return found
