"""The transactions of a partition (KIP-98): open ones, aborted ones, and the last stable offset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from distlog.core.commits.segment_table import NO_OFFSET, NOT_LOOKED, SegmentInfo
from distlog.core.commits.snapshot import PartitionState
from distlog.core.errors import CorruptIndexError
from distlog.core.format.indexes import AbortedTransaction, collect_aborted
from distlog.core.format.record_batch import ABORT, COMMIT, CONTROL, HEADER_SIZE, TRANSACTIONAL
from distlog.core.segments.segment_reader import SegmentReader, whole_log


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
    # an offset in the clean part is out of date: compaction has dropped the end marker with the transaction's last
    # data, so only the logs show what is open
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
        # the end of an active segment was found in its log, and its index may lack entries: the log is read instead
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


class OpenTransactions:
    """The first offset of each open transaction, by producer id, after the observed batches."""

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
        """Add the next batches (BATCH rows) of `data`; returns the transactions that their markers abort."""
        aborted = []
        for batch in batches[(batches["attributes"] & TRANSACTIONAL) != 0]:
            producer, offset = int(batch["producer_id"]), int(batch["base_offset"]) + shift
            if not batch["attributes"] & CONTROL:
                self._first_offsets.setdefault(producer, offset)
            elif (kind := control_type(data, batch)) in _MARKERS and producer in self._first_offsets:
                first = self._first_offsets.pop(producer)
                if kind == ABORT:
                    # the earliest of the other transactions
                    stable = min(self._first_offsets.values(), default=offset + 1)
                    aborted.append(AbortedTransaction(producer, first, offset, stable))
        return aborted


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
