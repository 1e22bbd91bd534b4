"""Tracks transactions and leader epochs in a walk over a log, since folding headers alone does not tell them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from distlog.core.batches.record_batch import ABORT, COMMIT, CONTROL, HEADER_SIZE, TRANSACTIONAL
from distlog.core.commits.segment_info import NO_OFFSET
from distlog.core.indexes.transaction_index import AbortedTransaction
from distlog.core.log.batch_walk import Batches

_MARKERS = (ABORT, COMMIT)
#: No producer has this id.
_NOBODY = -2


class WalkedTransactions:
    """The first offset of each open transaction, by producer id, after the batches seen so far, in their order."""

    def __init__(self, opened: Mapping[int, int] | None = None) -> None:
        self._opened = dict(opened or {})

    @property
    def opened(self) -> dict[int, int]:
        """The first offsets of the transactions that are open now, by producer id."""
        return dict(self._opened)

    @property
    def first_unstable_offset(self) -> int:
        """The first offset of the earliest open transaction; NO_OFFSET if there is none."""
        return min(self._opened.values(), default=NO_OFFSET)

    def see(self, batches: Batches) -> list[AbortedTransaction]:
        """Take the next batches; returns the transactions whose abort markers are among them."""
        aborted = []
        for row in batches.rows[(batches.rows["attributes"] & TRANSACTIONAL) != 0]:
            producer, offset = int(row["producer_id"]), int(row["base_offset"])
            if not row["attributes"] & CONTROL:
                self._opened.setdefault(producer, offset)
            elif (kind := control_type(batches.data, row)) in _MARKERS and producer in self._opened:
                first = self._opened.pop(producer)
                if kind == ABORT:
                    # the earliest of the other transactions, as if this one had never been
                    stable = min(self._opened.values(), default=offset + 1)
                    aborted.append(AbortedTransaction(producer, first, offset, stable))
        return aborted


def opened_before(first_unstable_offset: int) -> WalkedTransactions:
    """The start of a walk when only the first offset of the open transactions is known.

    They stay open, since only the segments before tell which producers they belong to.
    """
    is_open = first_unstable_offset != NO_OFFSET
    return WalkedTransactions({_NOBODY: first_unstable_offset} if is_open else {})


def control_type(data: memoryview, row: Any) -> int:
    """The type of the control record in the batch, which is never compressed; -1 if there is none."""
    body = bytes(data[int(row["position"]) + HEADER_SIZE : int(row["position"] + row["size"])])
    # length, attributes, timestamp delta, offset delta, key length: varints but for the attributes
    at = _after_varints(body, 0, 1) + 1
    at = _after_varints(body, at, 3)
    key = body[at : at + 4]
    return int.from_bytes(key[2:], "big") if len(key) == 4 else -1


def _after_varints(body: bytes, at: int, count: int) -> int:
    for _ in range(count):
        while at < len(body) and body[at] & 0x80:
            at += 1
        at += 1
    return at


def new_epochs(rows: npt.NDArray[Any], latest: int) -> list[tuple[int, int]]:
    """(leader epoch, start offset) of each epoch above `latest` that begins in these batches."""
    known = np.maximum.accumulate(np.concatenate([[latest], rows["leader_epoch"]]))
    rises = np.flatnonzero(known[1:] > known[:-1])
    epochs: list[int] = rows["leader_epoch"][rises].tolist()
    return list(zip(epochs, rows["base_offset"][rises].tolist(), strict=True))
