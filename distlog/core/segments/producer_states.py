"""The producers and transactions of a partition's log (Kafka's `ProducerStateManager`, KIP-98, KIP-360)."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from distlog.core.commits.deduplication import (
    ABORT_MARKER,
    COMMIT_MARKER,
    DATA,
    EXPIRATION_MS,
    KEPT_BATCHES,
    NONE,
    TRANSACTIONAL_DATA,
    KnownBatch,
    ProducerBatch,
    ProducerState,
)
from distlog.core.commits.segment_table import NO_OFFSET, UNDETERMINED_OFFSET, SegmentInfo, SegmentTable
from distlog.core.commits.snapshot import PartitionState
from distlog.core.errors import CorruptIndexError, InvalidRecordError, OutOfOrderSequenceError, ProducerFencedError
from distlog.core.format.indexes import AbortedTransaction, collect_aborted
from distlog.core.format.record_batch import (
    ABORT,
    COMMIT,
    CONTROL,
    HEADER_SIZE,
    TRANSACTIONAL,
    BatchFields,
    batch_fields,
    increment_sequence,
)
from distlog.core.segments.segment_reader import SegmentReader, whole_log
from distlog.core.times import NO_TIMESTAMP

#: A check of the first batch of a producer that the log does not have. It raises an error to refuse the batch.
FirstBatch = Callable[[BatchFields], None]


def any_first(batch: BatchFields) -> None:
    """Allow any first batch of a producer that is not in the log, as Kafka does."""


class ProducerStates:
    """The states of a partition's producers, by producer id, at one offset of its log.

    After compaction or retention, a log lacks the batches of some producers. So the states may come from a producer
    snapshot, and `observe` skips the batches below the snapshot's `offset`. States that begin empty within a log are
    not complete: `observe` skips the end markers of producers whose data it has not observed.
    """

    def __init__(
        self, states: Mapping[int, ProducerState] | None = None, offset: int = 0, *, is_complete: bool = True
    ) -> None:
        self._states, self.offset, self._is_complete = dict(states or {}), offset, is_complete
        self._first_offsets = {
            producer: state.transaction_first_offset
            for producer, state in self._states.items()
            if state.transaction_first_offset != NONE
        }

    @classmethod
    def of_snapshot(cls, entries: npt.NDArray[np.void], offset: int = 0) -> ProducerStates:
        return cls({int(entry["producer_id"]): state_of(entry) for entry in entries}, offset)

    def __len__(self) -> int:
        return len(self._states)

    def get(self, producer_id: int) -> ProducerState | None:
        return self._states.get(producer_id)

    def add_if_missing(self, producer_id: int, state: ProducerState | None) -> None:
        """Add a state only for `check`: `open_transactions` lacks its transaction until a batch is observed."""
        if state is not None:
            self._states.setdefault(producer_id, state)

    @property
    def open_transactions(self) -> Mapping[int, int]:
        """The first offset of each open transaction, by producer id."""
        return self._first_offsets

    def has_open(self, producer_id: int, epoch: int) -> bool:
        """True if the producer has an open transaction that a marker with `epoch` ends."""
        return producer_id in self._first_offsets and self._states[producer_id].epoch <= epoch

    def snapshot(self) -> bytes:
        return write_producer_snapshot(self.entries())

    def entries(self) -> npt.NDArray[np.void]:
        return np.array([_entry(producer, state) for producer, state in sorted(self._states.items())], ENTRY)

    def expire(self, now_ms: int, producers: Iterable[int] | None = None, *, after_ms: int = EXPIRATION_MS) -> None:
        """Forget `producers` (by default all) that have no batches for `after_ms` and no open transaction."""
        for producer in list(self._states if producers is None else producers):
            state = self._states.get(producer)
            if state is not None and state.has_expired(now_ms, after_ms):
                del self._states[producer]

    def observe(self, data: Any, rows: npt.NDArray[Any], shift: int = 0, *, heard_ms: int = NO_TIMESTAMP) -> None:
        """Add batches (BATCH rows) of `data`, with the SegmentInfo's `shift`; `heard_ms` is our time for new ones."""
        # a new single batch, as in most appends, needs no filter: `producer_batches` skips it if it has no producer
        if len(rows) != 1 or int(rows["base_offset"][0]) + shift < self.offset:
            rows = rows[(rows["producer_id"] >= 0) & (rows["base_offset"] + shift >= self.offset)]
        for batch in producer_batches(data, _sufficient_rows(rows), shift):
            producer = batch.producer_id
            if not self._is_complete and batch.is_marker and producer not in self._states:
                continue  # a marker has no sequence number, so it alone does not make a complete state
            state = self._states.get(producer, ProducerState()).after(batch, heard_ms)
            self._states[producer] = state
            if state.transaction_first_offset != NONE:
                self._first_offsets[producer] = state.transaction_first_offset
            else:
                self._first_offsets.pop(producer, None)

    def add_earlier_batches(self, earlier: ProducerStates) -> None:
        """Add batches of `earlier`, the states at an earlier offset, since a snapshot has only one per producer."""
        for producer, state in self._states.items():
            former = earlier.get(producer)
            if former is not None:
                self._states[producer] = state.with_earlier(former)

    def update_heard_times(self, earlier: ProducerStates) -> None:
        """Copy the times of appends that this process noted in `earlier`, since files have only times of records."""
        for producer, state in self._states.items():
            former = earlier.get(producer)
            if former is not None and former.heard_ms > state.heard_ms:
                self._states[producer] = replace(state, heard_ms=former.heard_ms)

    def check(self, batches: Sequence[BatchFields], check_first: FirstBatch = any_first) -> KnownBatch | None:
        """Check the next batches; returns the last one if they are a retry. `check_first` is for new producers.

        A retry has the same batches as the first try, so the last one shows whether the log has all.
        """
        last = batches[-1]
        state = self._states.get(last.producer_id)
        last_sequence = increment_sequence(last.base_sequence, last.last_offset_delta)
        if state and (duplicate := state.find_batch(last.producer_epoch, last.base_sequence, last_sequence)):
            return duplicate
        new_states: dict[int, ProducerState] = {}  # after the batches checked so far
        for batch in batches:
            producer = batch.producer_id
            if producer < 0:
                continue
            state = new_states.get(producer) or self._states.get(producer) or ProducerState()
            if batch.producer_epoch < state.epoch:
                raise ProducerFencedError(
                    "a newer producer with this id has fenced this one: close this one",
                    producer_id=producer,
                    producer_epoch=batch.producer_epoch,
                    current_epoch=state.epoch,
                )
            if not batch.attributes & CONTROL:
                _check_next(state, batch, check_first)
                if batch is not last:
                    kind, sequence = _kind_and_sequence(batch)
                    new_states[producer] = state.after(_producer_batch(batch, kind, sequence, coordinator=NONE))
        return None


_MARKER_KINDS = {ABORT: ABORT_MARKER, COMMIT: COMMIT_MARKER}


def producer_batches(data: Any, rows: npt.NDArray[Any], shift: int = 0) -> Iterator[ProducerBatch]:
    """Yield the batches (BATCH rows) of `data` that have a producer; `shift` is added to their offsets."""
    if len(rows) > 1:
        rows = rows[rows["producer_id"] >= 0]
    for number, batch in enumerate(batch_fields(rows)):
        if batch.producer_id < 0:
            continue
        coordinator = NONE
        if batch.attributes & CONTROL:
            kind, sequence = _MARKER_KINDS.get(control_type(data, rows[number]), NONE), NONE
            if kind == NONE:
                continue
            coordinator = coordinator_epoch(data, rows[number])
        else:
            kind, sequence = _kind_and_sequence(batch)
        yield _producer_batch(batch, kind, sequence, coordinator, shift)


def _kind_and_sequence(batch: BatchFields) -> tuple[int, int]:
    # an empty batch begins no transaction: compaction emptied it after the end, and may have dropped the end marker
    kind = TRANSACTIONAL_DATA if batch.attributes & TRANSACTIONAL and batch.record_count else DATA
    if batch.base_sequence < 0:  # the group coordinator's records have no sequence numbers
        return kind, NONE
    return kind, increment_sequence(batch.base_sequence, batch.last_offset_delta)


def _producer_batch(batch: BatchFields, kind: int, sequence: int, coordinator: int, shift: int = 0) -> ProducerBatch:
    return ProducerBatch(
        batch.producer_id,
        batch.producer_epoch,
        sequence,
        batch.base_offset + batch.last_offset_delta + shift,
        batch.last_offset_delta,
        batch.max_timestamp,
        kind,
        coordinator,
    )


def state_of(entry: Any) -> ProducerState:
    state = ProducerState(
        int(entry["producer_epoch"]),
        last_timestamp=int(entry["last_timestamp"]),
        coordinator_epoch=int(entry["coordinator_epoch"]),
        transaction_first_offset=int(entry["transaction_first_offset"]),
    )
    if entry["last_offset"] >= 0:
        batch = ("last_sequence", "last_offset", "offset_delta", "last_timestamp")
        state = replace(state, batches=(KnownBatch(*(int(entry[name]) for name in batch)),))
    return state


def batches_of(entry: Any) -> Iterator[ProducerBatch]:
    """Yield artificial batches that result in the state of a snapshot's entry."""
    producer, epoch, time = (int(entry[name]) for name in ("producer_id", "producer_epoch", "last_timestamp"))
    last, first = int(entry["last_offset"]), int(entry["transaction_first_offset"])
    begin = max(first, 0) if last < 0 else last - int(entry["offset_delta"])  # where the last batch begins
    # a marker sets the epoch of the coordinator, or of a producer without batches; first, since it ends transactions
    if last < 0 or entry["coordinator_epoch"] != NONE:
        yield ProducerBatch(producer, epoch, NONE, begin, 0, time, COMMIT_MARKER, int(entry["coordinator_epoch"]))
    if first != NONE and (last < 0 or first < begin):
        # the last batch is not the transaction's first batch, whose sequence number the entry lacks
        yield ProducerBatch(producer, epoch, NONE, first, 0, time, TRANSACTIONAL_DATA, NONE)
    if last >= 0:
        kind = DATA if first == NONE else TRANSACTIONAL_DATA
        delta = int(entry["offset_delta"])
        yield ProducerBatch(producer, epoch, int(entry["last_sequence"]), last, delta, time, kind, NONE)


def _entry(producer: int, state: ProducerState) -> tuple[int, ...]:
    last = state.batches[-1] if state.batches else KnownBatch(NONE, NONE, 0, NO_TIMESTAMP)
    return (
        producer,
        state.epoch,
        last.last_sequence,
        last.last_offset,
        last.offset_delta,
        state.last_timestamp,
        state.coordinator_epoch,
        state.transaction_first_offset,
    )


# The producer snapshot, `<offset>.snapshot`, has the state of each producer before that offset.
#
#     position | type | field
#     0        | i16  | version, 1
#     2        | u32  | CRC-32C of the bytes after it
#     6        | i32  | number of entries, 46 bytes each
#     entry 0  | i64  | producer id
#     entry 8  | i16  | epoch
#     entry 10 | i32  | sequence number of its last record, -1: none
#     entry 14 | i64  | offset of its last record, -1: none
#     entry 22 | i32  | offset delta of its last batch
#     entry 26 | i64  | timestamp of its last batch
#     entry 34 | i32  | epoch of the coordinator that ended its last transaction, -1: none
#     entry 38 | i64  | first offset of its open transaction, -1: none
#
# All numbers are big-endian (Kafka's `ProducerStateManager`). A state has up to five batches, a file only the last.

ENTRY = np.dtype(
    [
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("last_sequence", ">i4"),
        ("last_offset", ">i8"),
        ("offset_delta", ">i4"),
        ("last_timestamp", ">i8"),
        ("coordinator_epoch", ">i4"),
        ("transaction_first_offset", ">i8"),
    ]
)
_VERSION = 1
_HEADER = struct.Struct(">hIi")
_CRC_START = 6


def read_producer_snapshot(data: bytes, *, file: str = "") -> npt.NDArray[np.void]:
    """Return the entries (ENTRY rows) of the snapshot `data`. Raises CorruptIndexError if it is bad."""
    if len(data) < _HEADER.size:
        text = "a producer snapshot is cut off: restore it, or delete its file if the log is complete"
        raise CorruptIndexError(text, file=file or None)
    version, crc, count = _HEADER.unpack_from(data)
    if version != _VERSION or crc != crc32c(data[_CRC_START:]) or count * ENTRY.itemsize != len(data) - _HEADER.size:
        text = "a producer snapshot is corrupt: restore it, or delete its file if the log is complete"
        raise CorruptIndexError(text, file=file or None, version=version)
    return np.frombuffer(data, ENTRY, offset=_HEADER.size)


def write_producer_snapshot(entries: npt.NDArray[np.void]) -> bytes:
    body = struct.pack(">i", len(entries)) + entries.astype(ENTRY).tobytes()
    return struct.pack(">hI", _VERSION, crc32c(body)) + body


#: The time between checks of all producers (Kafka's producer.id.expiration.check.interval.ms).
EXPIRATION_CHECK_MS = 600_000


def _check_next(state: ProducerState, batch: BatchFields, check_first: FirstBatch) -> None:
    epoch, sequence, producer = batch.producer_epoch, batch.base_sequence, batch.producer_id
    if state.transaction_first_offset != NONE and not batch.attributes & TRANSACTIONAL:
        raise InvalidRecordError("the producer's transaction is open: end it first", producer_id=producer)
    if sequence == NONE and batch.attributes & TRANSACTIONAL:
        return  # the group coordinator appended this batch for the producer, without a sequence number
    if state.epoch == NONE:
        check_first(batch)  # the producer is new or its state expired, so its sequence may begin with any number
        return
    expected = increment_sequence(state.last_sequence, 1) if epoch == state.epoch else 0
    if sequence != expected:
        raise OutOfOrderSequenceError(
            "the batch does not follow the producer's last batch, so batches are missing, or this is an old batch: "
            "start a new producer",
            producer_id=producer,
            producer_epoch=epoch,
            sequence=sequence,
            expected=expected,
        )


def _sufficient_rows(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Leave out non-transactional data batches that have KEPT_BATCHES later ones, which replace them in a state."""
    if len(rows) <= KEPT_BATCHES:
        return rows
    data = np.flatnonzero((rows["attributes"] & CONTROL) == 0)
    order = data[np.argsort(rows["producer_id"][data], kind="stable")]
    producers = rows["producer_id"][order]
    # the number of later batches of the same producer: `searchsorted` finds the end of its rows in `order`
    later_batches = np.searchsorted(producers, producers, side="right") - np.arange(len(producers)) - 1
    is_needed = (rows["attributes"] & (CONTROL | TRANSACTIONAL)) != 0
    is_needed[order[later_batches < KEPT_BATCHES]] = True
    sufficient: npt.NDArray[Any] = rows[is_needed]
    return sufficient


def last_stable_offset(reader: SegmentReader, state: PartitionState) -> int:
    """Return the first readable offset of the earliest open transaction, or the log end offset. May read logs."""
    first = first_unstable_offset(reader, state)
    return state.log_end_offset if first == NO_OFFSET else max(first, state.log_start_offset)


def first_unstable_offset(reader: SegmentReader, state: PartitionState) -> int:
    """Return the first offset of the earliest open transaction, maybe before the log start; NO_OFFSET without one."""
    first = state.first_unstable_offset
    # the metadata may name an ended transaction that compaction (below the first dirty offset) dropped: read the logs
    if first == UNDETERMINED_OFFSET or 0 <= first < state.first_dirty_offset:
        first = list(transactions_of(reader, state))[-1].first_unstable_offset
    return first


def transactional_segments(segments: SegmentTable, start: int = 0) -> list[SegmentInfo]:
    """Return the segments that have transactions and end after `start`; makes no objects for other segments."""
    first = segments.find(start)
    return [segments[int(row)] for row in np.flatnonzero(segments.array("has_transactions")[first:]) + first]


def aborted_transactions(reader: SegmentReader, state: PartitionState, start: int) -> list[AbortedTransaction]:
    return [
        transaction
        for segment in transactional_segments(state.segments, start)
        for transaction in _aborted_in(reader, state, segment)
    ]


def aborted_between(
    reader: SegmentReader, state: PartitionState, start: int, end: int
) -> Iterator[AbortedTransaction]:
    """Yield the aborted transactions that overlap [start, end), like Kafka's `collectAbortedTransactions`."""
    for segment in transactional_segments(state.segments, start):
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
        # if the active segment's metadata is from a walk of its log, the index may still lack the last transactions
        transactions = (listed for listed in transactions_of(reader, state) if listed.segment.stem == segment.stem)
        return [transaction for listed in transactions for transaction in listed.aborted]


class SegmentTransactions(NamedTuple):
    """The aborted transactions that end in `segment`; the first unstable offset at its end, or NO_OFFSET."""

    segment: SegmentInfo
    aborted: list[AbortedTransaction]
    first_unstable_offset: int


def transactions_of(reader: SegmentReader, state: PartitionState) -> Iterator[SegmentTransactions]:
    """Yield the transactions of each segment that has any, from its log."""
    transactions = OpenTransactions()
    for segment in transactional_segments(state.segments):
        aborted = list[AbortedTransaction]()
        for chunk in whole_log(reader, segment):
            rows = chunk.batches[chunk.batches["record_count"] > 0]  # emptied batches open no transaction
            aborted += transactions.observe(chunk.data, rows, segment.shift)
        yield SegmentTransactions(segment, aborted, transactions.first_offset)


class OpenTransactions:
    """The first offset of each open transaction, by producer id, after the observed batches."""

    def __init__(self, first_offsets: Mapping[int, int] | None = None) -> None:
        self._first_offsets = dict(first_offsets or {})

    @property
    def first_offsets(self) -> dict[int, int]:
        return dict(self._first_offsets)

    @first_offsets.setter
    def first_offsets(self, first_offsets: Mapping[int, int]) -> None:
        self._first_offsets = dict(first_offsets)

    @property
    def first_offset(self) -> int:
        """The first offset of the earliest open transaction (the first unstable offset), or NO_OFFSET."""
        return min(self._first_offsets.values(), default=NO_OFFSET)

    def observe(self, data: Any, batches: npt.NDArray[Any], shift: int = 0) -> list[AbortedTransaction]:
        """Add the next batches (BATCH rows) of `data`; returns the transactions that their markers abort."""
        aborted = []
        for batch in batches[(batches["attributes"] & TRANSACTIONAL) != 0]:
            producer, offset = int(batch["producer_id"]), int(batch["base_offset"]) + shift
            if not batch["attributes"] & CONTROL:
                self._first_offsets.setdefault(producer, offset)
                continue
            kind = control_type(data, batch)
            if kind in _MARKER_KINDS and producer in self._first_offsets:
                first = self._first_offsets.pop(producer)
                if kind == ABORT:
                    last_stable = min(self._first_offsets.values(), default=offset + 1)
                    aborted.append(AbortedTransaction(producer, first, offset, last_stable))
        return aborted


def control_type(data: Any, batch: Any) -> int:
    """Return the type of the control record in the batch, which is never compressed, or -1."""
    key, _ = _control_record(data, batch)
    return int.from_bytes(key[2:4], "big") if len(key) == 4 else -1


def coordinator_epoch(data: Any, batch: Any) -> int:
    """Return the epoch of the coordinator that wrote the end marker in the batch, or -1."""
    _, value = _control_record(data, batch)
    return int.from_bytes(value[2:6], "big", signed=True) if len(value) >= 6 else -1


def _control_record(data: Any, batch: Any) -> tuple[bytes, bytes]:
    """Return the key (version and type, int16 each) and the start of the value (an end marker's: version, epoch)."""
    body = bytes(data[int(batch["position"]) + HEADER_SIZE : int(batch["position"] + batch["size"])])
    # the varint length, 1 byte of attributes, and the varints timestamp delta, offset delta and key length
    key_at = _after_varints(body, _after_varints(body, 0, 1) + 1, 3)
    value_at = _after_varints(body, key_at + 4, 1)
    return body[key_at : key_at + 4], body[value_at : value_at + 6]


def _after_varints(body: bytes, position: int, count: int) -> int:
    for _ in range(count):
        while position < len(body) and body[position] & 0x80:
            position += 1
        position += 1
    return position
