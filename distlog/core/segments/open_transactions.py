"""Isolation, and the open transactions after the batches of a partition (KIP-98)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from distlog.core.commits.segment_info import NO_OFFSET
from distlog.core.format.record_batch import ABORT, COMMIT, CONTROL, HEADER_SIZE, TRANSACTIONAL
from distlog.core.format.transaction_index import AbortedTransaction


class OpenTransactions:
    """The first offset of each open transaction, by producer id, after the batches seen so far, in their order."""

    def __init__(self, first_offsets: Mapping[int, int] | None = None) -> None:
        self._first_offsets = dict(first_offsets or {})

    @property
    def first_offsets(self) -> dict[int, int]:
        return dict(self._first_offsets)

    @property
    def first_offset(self) -> int:
        """The first offset of the earliest open transaction: the first unstable offset; NO_OFFSET if none is open."""
        return min(self._first_offsets.values(), default=NO_OFFSET)

    def observe(self, data: Any, batches: npt.NDArray[Any], shift: int = 0) -> list[AbortedTransaction]:
        """Take the next batches (BATCH rows) of `data`; returns the transactions that their markers abort."""
        aborted = []
        for batch in batches[(batches["attributes"] & TRANSACTIONAL) != 0]:
            producer, offset = int(batch["producer_id"]), int(batch["base_offset"]) + shift
            if not batch["attributes"] & CONTROL:
                self._first_offsets.setdefault(producer, offset)
            elif (kind := control_type(data, batch)) in _MARKERS and producer in self._first_offsets:
                first = self._first_offsets.pop(producer)
                if kind == ABORT:
                    # the earliest of the other transactions, as if this one had never been
                    stable = min(self._first_offsets.values(), default=offset + 1)
                    aborted.append(AbortedTransaction(producer, first, offset, stable))
        return aborted


IsolationLevel = Literal["read_uncommitted", "read_committed"]
#: One value for all batches, or one value for each batch.
PerBatch = int | npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Isolation:
    """Hides the data of aborted transactions (KIP-98). The decoder always hides control batches, as a Kafka
    consumer does.

    `aborted` has, by partition, a row per transaction: producer id, first offset, last offset.
    """

    aborted: Mapping[int, npt.NDArray[np.int64]] = field(default_factory=dict)

    @classmethod
    def of(cls, aborted: Mapping[int, Iterable[AbortedTransaction]]) -> Isolation:
        """The isolation that hides the transactions in `aborted`, given by partition."""
        return cls({partition: _rows(transactions) for partition, transactions in aborted.items()})

    def visible(self, batches: npt.NDArray[Any], shift: PerBatch, partition: PerBatch) -> npt.NDArray[np.bool_]:
        """Flag the `batches` that a reader sees; their offsets are the stored ones + `shift`, in `partition`."""
        visible = np.ones(len(batches), bool)
        for number, transactions in self.aborted.items():
            rows = np.flatnonzero((partition == number) & ((batches["attributes"] & TRANSACTIONAL) != 0))
            base = (batches["base_offset"] + shift)[rows]
            if len(rows):
                reaching: list[list[int]] = transactions[
                    (transactions[:, 1] <= int(base.max())) & (transactions[:, 2] >= int(base.min()))
                ].tolist()
                for producer, first, last in reaching:
                    hidden = (batches["producer_id"][rows] == producer) & (base >= first) & (base <= last)
                    visible[rows[hidden]] = False
        return visible


READ_UNCOMMITTED = Isolation()


def _rows(transactions: Iterable[AbortedTransaction]) -> npt.NDArray[np.int64]:
    rows = [
        (transaction.producer_id, transaction.first_offset, transaction.last_offset) for transaction in transactions
    ]
    return np.array(rows, np.int64).reshape(-1, 3)


_MARKERS = (ABORT, COMMIT)


def control_type(data: Any, batch: Any) -> int:
    """The type of the control record in the batch, which is never compressed; -1 if there is none."""
    key, _ = _control_record(data, batch)
    return int.from_bytes(key[2:4], "big") if len(key) == 4 else -1


def coordinator_epoch(data: Any, batch: Any) -> int:
    """The epoch of the coordinator that wrote the end marker in the batch; -1 if there is none."""
    _, value = _control_record(data, batch)
    return int.from_bytes(value[2:6], "big", signed=True) if len(value) >= 6 else -1


def _control_record(data: Any, batch: Any) -> tuple[bytes, bytes]:
    """The key (version, type: int16 each), and the value, which for an end marker is version int16, epoch int32."""
    body = bytes(data[int(batch["position"]) + HEADER_SIZE : int(batch["position"] + batch["size"])])
    # length, attributes, timestamp delta, offset delta, key length: varints but for the attributes
    position = _after_varints(body, 0, 1) + 1
    position = _after_varints(body, position, 3)
    return body[position : position + 4], body[_after_varints(body, position + 4, 1) :][:6]


def _after_varints(body: bytes, position: int, count: int) -> int:
    for _ in range(count):
        while position < len(body) and body[position] & 0x80:
            position += 1
        position += 1
    return position
