"""What a reader may see of transactions: everything, or only what was committed (KIP-98).

distlog writes no open transactions; a partition adopted from Kafka may hold them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from distlog.core.record_batch import CONTROL, TRANSACTIONAL
from distlog.core.transaction_index import AbortedTransaction

IsolationLevel = Literal["read_uncommitted", "read_committed"]


@dataclass(frozen=True, slots=True)
class Isolation:
    """Hides the data of aborted transactions; `aborted` is empty for read_uncommitted. Control batches are hidden
    by the decoder always, as a Kafka consumer hides them."""

    aborted: Mapping[int, Sequence[AbortedTransaction]] = field(default_factory=dict)

    def visible(
        self, batches: npt.NDArray[Any], shift: npt.NDArray[np.int64], partition: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_]:
        """Which of `batches` (stored offsets + `shift`, in `partition`) a reader sees."""
        seen = np.ones(len(batches), bool)
        for number, transactions in self.aborted.items():
            inside = (partition == number) & ((batches["attributes"] & TRANSACTIONAL) != 0)
            for each in transactions:
                base = batches["base_offset"] + shift
                spanned = (base >= each.first_offset) & (base <= each.last_offset)
                seen &= ~(inside & spanned & (batches["producer_id"] == each.producer_id))
        return seen


READ_UNCOMMITTED = Isolation()


def first_open_offset(headers: Iterable[tuple[npt.NDArray[Any], int]]) -> int | None:
    """The first offset of the earliest transaction without an end marker: where the last stable offset stops.

    `headers` are the batches of a partition in order, each array with the shift of its offsets.
    """
    opened: dict[int, int] = {}
    for batches, shift in headers:
        transactional = batches[(batches["attributes"] & TRANSACTIONAL) != 0]
        for batch in transactional:
            if batch["attributes"] & CONTROL:
                opened.pop(int(batch["producer_id"]), None)
            else:
                opened.setdefault(int(batch["producer_id"]), int(batch["base_offset"]) + shift)
    return min(opened.values(), default=None)
