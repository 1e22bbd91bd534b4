"""Finds, before the rewrite, what transactions and idempotent producers mean for each batch.

The rules are those of Kafka's `CleanedTransactionMetadata` and of its producer state. They need everything before a
batch, and the last batch of each producer. With these verdicts, each group of segments can be rewritten by itself.
Segments that Kafka did not write and that hold no transaction have no producers, so they are not read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from distlog.core.batches.record_batch import ABORT, COMMIT, CONTROL, TRANSACTIONAL
from distlog.core.commits.format.segment_info import SegmentInfo
from distlog.core.indexes.transaction_index import AbortedTransaction
from distlog.core.maintenance.compaction.scanned_records import ScannedRecords, checked_chunks, scan_records
from distlog.core.reading.files.segment_reader import SegmentReader
from distlog.core.transactions.producer_state import EXPIRATION_MS

_NO_OFFSETS: npt.NDArray[np.int64] = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Verdicts:
    """The batches that need special treatment, by their absolute base offsets in ascending order.

    A batch is `discardable` if it holds data of an aborted transaction, or a marker of a transaction that has no data
    left. A batch is `last` if it is the last one of a producer; it stays even if empty, for its sequence number.
    `aborted` are the transactions whose abort marker still has data to abort, in the order of their markers.
    """

    discardable_offsets: npt.NDArray[np.int64] = field(default_factory=lambda: _NO_OFFSETS)
    last_offsets: npt.NDArray[np.int64] = field(default_factory=lambda: _NO_OFFSETS)
    aborted: tuple[AbortedTransaction, ...] = ()

    def discardable(self, base_offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which of the batches are discardable."""
        return _contains(self.discardable_offsets, base_offsets)

    def last(self, base_offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which of the batches are the last of their producer."""
        return _contains(self.last_offsets, base_offsets)

    def within(self, start_offset: int, end_offset: int) -> Verdicts:
        """The verdicts on the batches in [start_offset, end_offset), and on the transactions that end there."""
        return Verdicts(
            _within(self.discardable_offsets, start_offset, end_offset),
            _within(self.last_offsets, start_offset, end_offset),
            tuple(each for each in self.aborted if start_offset <= each.last_offset < end_offset),
        )


def _contains(known: npt.NDArray[np.int64], asked: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    if len(known) == 0:
        return np.zeros(len(asked), bool)
    found: npt.NDArray[np.bool_] = known[np.searchsorted(known, asked).clip(max=len(known) - 1)] == asked
    return found


def _within(offsets: npt.NDArray[np.int64], start_offset: int, end_offset: int) -> npt.NDArray[np.int64]:
    start, end = np.searchsorted(offsets, [start_offset, end_offset])
    return offsets[start:end]


def judge(reader: SegmentReader, segments: Sequence[SegmentInfo], now_ms: int) -> Verdicts:
    """The verdicts on the batches of `segments`, which are all of the partition's segments, to its end."""
    read = [segment for segment in segments if segment.may_have_producers]
    if not read:
        return Verdicts()
    found = sorted(
        (transaction for segment in read for transaction in reader.aborted_transactions(segment)),
        key=lambda transaction: transaction.first_offset,
    )
    transactions, producers = _Transactions(found), dict[int, _Producer]()
    for batch in _batches(reader, read):
        transactions.see(batch)
        producers.setdefault(batch.producer_id, _Producer()).see(batch)
    last = [offset for one in producers.values() if one.is_active(now_ms) for offset in one.last_batches]
    return Verdicts(
        np.array(transactions.discardable, np.int64), np.array(sorted(last), np.int64), tuple(transactions.retained)
    )


@dataclass(frozen=True, slots=True)
class _Batch:
    """The fields of a batch that matter here; `kind` is its control record's type or one of the constants below."""

    base_offset: int
    last_offset: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    transactional: bool
    kind: int


_DATA, _EMPTY_CONTROL, _UNKNOWN = -1, -2, -3
_CONTROL_KEY_SIZE = 4


class _Transactions:
    """Walks the batches in their order; `aborted` are the aborted transactions, sorted by first offset."""

    def __init__(self, aborted: Sequence[AbortedTransaction]) -> None:
        self._waiting = deque(aborted)
        self._aborting: dict[int, AbortedTransaction] = {}
        self._committing: set[int] = set()
        self._seen: set[int] = set()
        self.discardable: list[int] = []
        self.retained: list[AbortedTransaction] = []

    def see(self, batch: _Batch) -> None:
        while self._waiting and self._waiting[0].first_offset <= batch.last_offset:
            transaction = self._waiting.popleft()
            self._aborting.setdefault(transaction.producer_id, transaction)
        if self._is_aborted(batch) if batch.kind == _DATA else self._is_obsolete(batch):
            self.discardable.append(batch.base_offset)

    def _is_aborted(self, batch: _Batch) -> bool:
        producer = batch.producer_id
        if batch.transactional and producer in self._aborting:
            self._seen.add(producer)
            return True
        if batch.transactional:
            self._committing.add(producer)
        return False

    def _is_obsolete(self, batch: _Batch) -> bool:
        """Whether the marker has nothing left to mark, so it may be dropped when its delete horizon has passed."""
        producer = batch.producer_id
        if batch.kind == ABORT:
            transaction, seen = self._aborting.pop(producer, None), producer in self._seen
            self._seen.discard(producer)
            if transaction and seen:
                self.retained.append(transaction)
            return not (transaction and seen)
        if batch.kind == COMMIT:
            committed = producer in self._committing
            self._committing.discard(producer)
            return not committed
        return batch.kind == _EMPTY_CONTROL


class _Producer:
    """What the log says of a producer: its last data batch or, if it has no data, its markers of the same epoch."""

    def __init__(self) -> None:
        self._epoch, self._last_timestamp = -1, -1
        self._has_data = False
        self.last_batches: list[int] = []

    def see(self, batch: _Batch) -> None:
        if batch.producer_epoch != self._epoch:
            self._epoch, self._has_data, self.last_batches = batch.producer_epoch, False, []
        if batch.kind == _DATA:
            self._has_data, self.last_batches = True, [batch.base_offset]
        elif not self._has_data:
            self.last_batches.append(batch.base_offset)
        self._last_timestamp = batch.max_timestamp

    def is_active(self, now_ms: int) -> bool:
        # with an open transaction a producer is active in any case, but then its last batch is not cleanable
        return now_ms - self._last_timestamp < EXPIRATION_MS


def _batches(reader: SegmentReader, segments: Sequence[SegmentInfo]) -> Iterator[_Batch]:
    """The batches of producers, and control batches."""
    for segment in segments:
        for chunk in checked_chunks(reader, segment):
            batches = chunk.batches
            control = batches["attributes"] & CONTROL != 0
            kinds = np.where(control, _EMPTY_CONTROL, _DATA)
            marked = np.flatnonzero(control & (batches["record_count"] > 0))
            if len(marked):
                kinds[marked] = _control_types(scan_records(chunk, marked, ("key",)))
            for row in np.flatnonzero(control | (batches["producer_id"] >= 0)).tolist():
                yield _describe(batches[row], segment.shift, int(kinds[row]))


def _control_types(records: ScannedRecords) -> npt.NDArray[np.int64]:
    """The type of each control record: the second int16 of its key, or _UNKNOWN if the key is too short."""
    key = records.fields.key
    whole = np.diff(key.offsets[: records.count + 1]) >= _CONTROL_KEY_SIZE
    at = np.where(whole, key.positions[: records.count] + 2, 0)
    types = records.data[at].astype(np.int64) << 8 | records.data[at + 1]
    return np.where(whole, types, _UNKNOWN)


def _describe(row: Any, shift: int, kind: int) -> _Batch:
    base_offset = int(row["base_offset"]) + shift
    return _Batch(
        base_offset,
        base_offset + int(row["last_offset_delta"]),
        int(row["max_timestamp"]),
        int(row["producer_id"]),
        int(row["producer_epoch"]),
        bool(row["attributes"] & TRANSACTIONAL),
        kind,
    )
