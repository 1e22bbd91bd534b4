"""Transactions of Kafka producers: their states in `__transaction_state`, and hanging transactions."""

from __future__ import annotations

import logging
import struct
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from distlog.core import paths
from distlog.core.arrays import column_of, integers, table_of_numbers, table_of_rows
from distlog.core.commits.commit_log import CurrentSnapshot
from distlog.core.commits.snapshot import Snapshot
from distlog.core.display import Displayable, counted
from distlog.core.errors import CommitConflictError, CorruptRecordError, TopicNotFoundError
from distlog.core.format.record_batch import ABORT, COMMIT
from distlog.core.format.record_encoder import ValidBatch, encode
from distlog.core.log.live_snapshot import LiveSnapshot
from distlog.core.log.partition_log import BatchRun, PartitionLog
from distlog.core.read.fetch import MAX_TIMEOUT_MS, OpenTransaction, open_transactions
from distlog.core.read.kafka_offsets import FieldReader, newest_topic, text_field
from distlog.core.segments.chunks import READ_UNCOMMITTED
from distlog.core.segments.segment_reader import TopicHandle, whole_logs
from distlog.core.times import iso
from distlog.core.write.engine import ConcurrentAppendError, ProducerCheck, commit_batches, producer_entries

#: Stands for a missing epoch or time.
NONE = -1
TRANSACTIONS_TOPIC = "__transaction_state"
TopicPartition = tuple[str, int]
#: The largest epoch of a producer, which then gets a new id. Kafka's largest epoch is one above: it is reserved for
#: the end marker that aborts the producer's transaction and fences the producer (`decided(fences=True)`).
LAST_EPOCH = (1 << 15) - 2
# Kafka's TransactionLogKey and TransactionLogValue. A key is its version (int16: 0) and the transactional id. A value
# of version 0 is: version int16, producer id int64, producer epoch int16, timeout in ms int32, status int8, an array
# of (topic, array of partitions int32), and the times in ms of the last change and of the start (int64). Texts have
# an int16 length, arrays an int32 one (-1: null). Version 1 (Kafka 4) has the same fields, encoded by KIP-482.
_VERSION, _FLEXIBLE_VERSION = 0, 1
_HEAD, _TIMES, _COUNT = struct.Struct(">hqhib"), struct.Struct(">qq"), struct.Struct(">i")
_log = logging.getLogger("distlog")
#: A live coordinator aborts a transaction at most this long after its timeout.
_COORDINATOR_MS = 300_000
_COLUMNS = {
    "partition": pa.int64(),
    "start_offset": pa.int64(),
    "producer_id": pa.int64(),
    "producer_epoch": pa.int64(),
    "coordinator_epoch": pa.int64(),
    "last_timestamp": pa.int64(),
    "transactional_id": pa.string(),
    "state": pa.string(),
    "hanging": pa.bool_(),
}
_PRODUCER_COLUMNS = (
    "producer_id",
    "producer_epoch",
    "last_sequence",
    "last_timestamp",
    "coordinator_epoch",
    "transaction_first_offset",
)


class TransactionStatus(Enum):
    """The state of a transaction, by Kafka's numbers. PREPARE means decided, but some end markers may be missing."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5

    @property
    def kafka_name(self) -> str:
        return self.name.title().replace("_", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionState:
    """A transactional producer: its current id and epoch, and its newest transaction (KIP-98); times in ms."""

    transactional_id: str
    producer: ProducerId
    timeout_ms: int
    status: TransactionStatus = TransactionStatus.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    updated_ms: int
    started_ms: int = NONE
    #: The previous epoch if its producer may ask for the current one (KIP-360, KIP-588), else NONE; not stored.
    last_epoch: int = NONE

    @property
    def is_decided(self) -> bool:
        """Whether the transaction is committed or aborted, but does not have all of its end markers."""
        return self.status in _STATUS_AFTER_MARKERS

    @property
    def is_over(self) -> bool:
        return self.status in _ENDED_STATUSES

    def has_timed_out(self, now_ms: int) -> bool:
        return self.status is TransactionStatus.ONGOING and now_ms - self.started_ms >= self.timeout_ms

    def without_future_start(self, now_ms: int) -> TransactionState:
        """Return the state, with a future start of an open transaction moved to `now_ms`, so that it can time out."""
        # a decided transaction keeps its start, by which the gateway's coordinator recognizes it (`_check_current`)
        has_future_start = self.status is TransactionStatus.ONGOING and self.started_ms > now_ms
        return replace(self, started_ms=now_ms) if has_future_start else self

    def restarted(self, producer: ProducerId, timeout_ms: int, now_ms: int, last_epoch: int) -> TransactionState:
        return TransactionState(
            transactional_id=self.transactional_id,
            producer=producer,
            timeout_ms=timeout_ms,
            updated_ms=now_ms,
            last_epoch=last_epoch,
        )

    def with_partitions(self, partitions: frozenset[TopicPartition], now_ms: int) -> TransactionState:
        if self.status is TransactionStatus.ONGOING:
            return replace(self, partitions=self.partitions | partitions, updated_ms=now_ms)
        ongoing = TransactionStatus.ONGOING
        return replace(self, status=ongoing, partitions=partitions, started_ms=now_ms, updated_ms=now_ms)

    def decided(self, now_ms: int, *, is_committed: bool, fences: bool = False) -> TransactionState:
        """Return the decided transaction; with `fences` it has the next epoch, which no producer has."""
        status = TransactionStatus.PREPARE_COMMIT if is_committed else TransactionStatus.PREPARE_ABORT
        producer = ProducerId(self.producer.id, self.producer.epoch + int(fences))
        last_epoch = NONE if fences else self.last_epoch
        return replace(self, status=status, producer=producer, last_epoch=last_epoch, updated_ms=now_ms)

    def timed_out(self, now_ms: int) -> TransactionState:
        """Return the transaction aborted after its timeout; its producer may ask for the next epoch (KIP-588)."""
        return replace(self.decided(now_ms, is_committed=False, fences=True), last_epoch=self.producer.epoch)

    def completed(self, now_ms: int) -> TransactionState:
        return replace(self, status=_STATUS_AFTER_MARKERS[self.status], partitions=frozenset(), updated_ms=now_ms)


_STATUS_AFTER_MARKERS = {
    TransactionStatus.PREPARE_COMMIT: TransactionStatus.COMPLETE_COMMIT,
    TransactionStatus.PREPARE_ABORT: TransactionStatus.COMPLETE_ABORT,
}
_ENDED_STATUSES = (TransactionStatus.EMPTY, *_STATUS_AFTER_MARKERS.values())


@dataclass(frozen=True, slots=True)
class ProducerId:
    id: int
    epoch: int


def encode_key(transactional_id: str) -> bytes:
    return struct.pack(">h", _VERSION) + text_field(transactional_id)


def decode_key(data: bytes) -> str | None:
    reader = FieldReader(data, "a key", TRANSACTIONS_TOPIC)
    return reader.text() if reader.number(">h") == _VERSION else None


def encode_state(state: TransactionState) -> bytes:
    producer = state.producer
    head = _HEAD.pack(_VERSION, producer.id, producer.epoch, state.timeout_ms, state.status.value)
    return head + _partitions(state.partitions) + _TIMES.pack(state.updated_ms, state.started_ms)


def _partitions(partitions: Iterable[TopicPartition]) -> bytes:
    topics = dict[str, list[int]]()
    for topic, number in sorted(partitions):
        topics.setdefault(topic, []).append(number)
    if not topics:
        return _COUNT.pack(-1)
    fields = [_COUNT.pack(len(topics))]
    for topic, numbers in topics.items():
        fields.append(text_field(topic) + struct.pack(f">i{len(numbers)}i", len(numbers), *numbers))
    return b"".join(fields)


def decode_state(transactional_id: str, data: bytes) -> TransactionState:
    reader = FieldReader(data, "a value", TRANSACTIONS_TOPIC)
    if (version := reader.number(">h")) not in (_VERSION, _FLEXIBLE_VERSION):
        raise CorruptRecordError(f"a value of {TRANSACTIONS_TOPIC} has an unknown version: upgrade", version=version)
    reader.is_flexible = version == _FLEXIBLE_VERSION
    producer = ProducerId(reader.number(">q"), reader.number(">h"))
    timeout_ms, status = reader.number(">i"), reader.number(">b")
    if status not in {member.value for member in TransactionStatus}:
        raise CorruptRecordError(f"a value of {TRANSACTIONS_TOPIC} has an unknown status: upgrade", status=status)
    return TransactionState(
        transactional_id=transactional_id,
        producer=producer,
        timeout_ms=timeout_ms,
        status=TransactionStatus(status),
        partitions=frozenset(_topic_partitions(reader)),
        updated_ms=reader.number(">q"),
        started_ms=reader.number(">q"),
    )


def _topic_partitions(reader: FieldReader) -> Iterator[TopicPartition]:
    for _ in range(reader.count()):
        topic = reader.text()
        for _ in range(reader.count()):
            yield topic, reader.number(">i")
        reader.skip_tags()


def apply_records(newest: dict[str, TransactionState], records: pa.RecordBatch, url: str) -> None:
    """Apply records in order. A bad record is logged, since it must not hide the next."""
    for row in records.to_pylist():
        try:
            apply_state(newest, row["key"], row["value"])
        except CorruptRecordError as error:  # noqa: PERF203
            _log.warning("%s (url=%s)", error, url)


def apply_state(newest: dict[str, TransactionState], key: bytes | None, value: bytes | None) -> None:
    transactional_id = decode_key(key or b"")
    if transactional_id is None:
        return
    if value is None:
        newest.pop(transactional_id, None)
    else:
        newest[transactional_id] = decode_state(transactional_id, value)


@dataclass(frozen=True, slots=True)
class ListedTransaction:
    """An open transaction, with its id and state at its coordinator, or None if no coordinator has it."""

    transaction: OpenTransaction
    transactional_id: str | None
    state: str | None
    #: Whether no coordinator will end it: its coordinator has moved on, or none has it and it is open for too long.
    is_hanging: bool

    def __str__(self) -> str:
        time_ms, is_known = self.transaction.last_timestamp, self.state is not None
        owner = f" ({self.transactional_id!r}, {self.state})" if is_known else ", which no coordinator knows,"
        since = iso(time_ms) if time_ms >= 0 else "an unknown time"
        return f"producer {self.transaction.producer_id}{owner} since {since}"

    def to_dict(self) -> dict[str, Any]:
        coordinator = {"transactional_id": self.transactional_id, "state": self.state, "hanging": self.is_hanging}
        return {**self.transaction._asdict(), **coordinator}


@dataclass(frozen=True, slots=True, repr=False)
class TransactionsReport(Displayable):
    """The open transactions of a topic, by partition and start offset."""

    transactions: tuple[ListedTransaction, ...]

    @property
    def hanging(self) -> TransactionsReport:
        return replace(self, transactions=tuple(entry for entry in self.transactions if entry.is_hanging))

    def __str__(self) -> str:
        hanging = len(self.hanging.transactions)
        return f"{counted(len(self.transactions), 'open transaction')}, of which {hanging} hang"

    def to_table(self) -> pa.Table:
        return table_of_rows([transaction.to_dict() for transaction in self.transactions], pa.schema(_COLUMNS))

    def to_dict(self) -> dict[str, Any]:
        return {"transactions": self.to_table().to_pylist()}


class _CoordinatorState(NamedTuple):
    """The id and state of a transaction, None if no coordinator has it; and whether its coordinator will end it."""

    transactional_id: str | None
    state: str | None
    will_end: bool


def list_transactions(
    handle: TopicHandle, snapshot: Snapshot, max_timeout_ms: int = MAX_TIMEOUT_MS
) -> TransactionsReport:
    """List the open transactions in a live `snapshot` (with the active segments); reads no log without open ones."""
    transactions = [
        entry
        for number, state in enumerate(snapshot.partitions)
        for entry in open_transactions(handle.reader, number, state)
    ]
    if not transactions:
        return TransactionsReport(())
    states, now_ms = _states_of_root(handle), handle.trusted_ms()
    listed = list[ListedTransaction]()
    for entry in transactions:
        transactional_id, state, will_end = _coordinator_state(states, handle, entry, now_ms)
        is_hanging = not will_end and (state is not None or entry.is_late(now_ms, max_timeout_ms))
        listed.append(ListedTransaction(entry, transactional_id, state, is_hanging))
    return TransactionsReport(tuple(listed))


def list_producers(handle: TopicHandle, current: CurrentSnapshot) -> pa.Table:
    """Return a row for each producer of a partition, as `kafka-transactions describe-producers` lists them."""
    snapshot = current.refresh()
    rows = []
    for number, state in enumerate(snapshot.partitions):
        if handle.storage.is_local_disk:
            with closing(PartitionLog(handle, number, current)) as log:
                entries = log.producers()
        else:
            entries = producer_entries(handle, state)
        rows += [{"partition": number, **{name: int(entry[name]) for name in _PRODUCER_COLUMNS}} for entry in entries]
    return table_of_numbers(rows, ("partition", *_PRODUCER_COLUMNS))


def abort_transaction(
    handle: TopicHandle, current: CurrentSnapshot, partition: int, start_offset: int
) -> ListedTransaction:
    """Abort the transaction that is open from `start_offset` on; its end is durable on return."""
    while True:  # again if another append came first
        live = LiveSnapshot(handle, current).refresh()
        transactions = open_transactions(handle.reader, partition, live.partitions[partition])
        transaction = next((entry for entry in transactions if entry.start_offset == start_offset), None)
        where = {"partition": partition, "start_offset": start_offset}
        if transaction is None:
            open_offsets = ",".join(str(entry.start_offset) for entry in transactions) or "none"
            text = "no transaction is open from start_offset on: choose one of open_offsets"
            raise CommitConflictError(text, **where, open_offsets=open_offsets)
        state = _coordinator_state(_states_of_root(handle), handle, transaction, handle.trusted_ms())
        if state.will_end:
            text = "the transaction has a coordinator, which will end it: wait, or end its producer"
            raise CommitConflictError(text, **where, transactional_id=state.transactional_id, state=state.state)
        run = marker(
            transaction.producer_id,
            transaction.producer_epoch,
            handle.clock(),
            is_committed=False,
            coordinator_epoch=max(0, transaction.coordinator_epoch),
        )
        write_marker = _append_end if handle.storage.is_local_disk else _commit_end
        if write_marker(handle, current, transaction, run):
            return ListedTransaction(transaction, state.transactional_id, state.state, is_hanging=True)


def _append_end(handle: TopicHandle, current: CurrentSnapshot, transaction: OpenTransaction, run: BatchRun) -> bool:
    """Append the end marker; return False if the transaction has already ended."""
    log, is_flushed = PartitionLog(handle, transaction.partition, current), False
    try:
        # without a fence, since the transaction has no live coordinator
        appended = log.end_transaction(run, lambda _: None, transaction.start_offset)
        # if no marker was appended (None), flush all records, also the end marker that another process wrote
        log.flush(appended)
        is_flushed = True
    finally:
        log.close(flushed=is_flushed)
    return appended is not None


def _commit_end(handle: TopicHandle, current: CurrentSnapshot, transaction: OpenTransaction, run: BatchRun) -> bool:
    """Commit the end marker after the records of the snapshot; return False after a concurrent append."""
    number, snapshot = transaction.partition, current.refresh()
    producer_check = ProducerCheck(handle, snapshot)
    start_offsets = producer_check.producers_of(number).table.open_transactions
    if start_offsets.get(transaction.producer_id) != transaction.start_offset:
        # the transaction has ended since it was listed, or the log has it open, and the commits do not
        if transaction in open_transactions(handle.reader, number, snapshot.partitions[number]):
            text = "the log has an open transaction that no commit names: rebuild the topic from a copy"
            raise CorruptRecordError(text, partition=number, start_offset=transaction.start_offset)
        return False
    batch = ValidBatch(run.data, run.rows, int(run.offsets_of_max_timestamp[0]), int(run.min_timestamps[0]))

    def check_unchanged(head: Snapshot) -> None:
        if head.partitions[number].log_end_offset != snapshot.partitions[number].log_end_offset:
            raise ConcurrentAppendError

    with suppress(ConcurrentAppendError):
        _, after = commit_batches(producer_check, {number: [batch]}, snapshot.config, check_unchanged)
        current.advance(after)
        return True
    return False


def _coordinator_state(
    states: Iterable[TransactionState], handle: TopicHandle, transaction: OpenTransaction, now_ms: int
) -> _CoordinatorState:
    topic_partition = paths.last_part(handle.storage.url.rstrip("/")), transaction.partition
    for state in states:
        if state.producer.id == transaction.producer_id and state.producer.epoch >= transaction.producer_epoch:
            is_live = state.status is TransactionStatus.ONGOING and not state.has_timed_out(now_ms - _COORDINATOR_MS)
            will_end = topic_partition in state.partitions and (state.is_decided or is_live)
            return _CoordinatorState(state.transactional_id, state.status.kafka_name, will_end)
    return _CoordinatorState(None, None, will_end=False)


def _states_of_root(handle: TopicHandle) -> Collection[TransactionState]:
    """Return the states in the `__transaction_state` of the topic's root; without that topic, this costs one LIST."""
    states, storage = dict[str, TransactionState](), handle.storage.sibling(TRANSACTIONS_TOPIC)
    if storage is None or not storage.list(paths.COMMITS_DIR):
        return ()
    try:
        topic, live = newest_topic(storage, handle.clock)
    except TopicNotFoundError:
        return ()
    for partition in live.partitions:
        for chunk in whole_logs(topic.reader, partition.segments):
            for records in chunk.records(("key", "value"), READ_UNCOMMITTED):
                apply_records(states, records, storage.url)
    return states.values()


#: A control record's key is its version and type, its value the version and the coordinator's epoch.
_MARKER_KEY, _MARKER_VALUE, _MARKER_VERSION = struct.Struct(">hh"), struct.Struct(">hi"), 0


def marker(
    producer_id: int, producer_epoch: int, now_ms: int, *, is_committed: bool, coordinator_epoch: int = 0
) -> BatchRun:
    """Return the end marker of a transaction. Kafka fences coordinators by their epoch; a gateway always uses 0."""
    record = pa.record_batch(
        {
            "timestamp": integers([now_ms]),
            "key": column_of([_MARKER_KEY.pack(_MARKER_VERSION, COMMIT if is_committed else ABORT)], pa.binary()),
            "value": column_of([_MARKER_VALUE.pack(_MARKER_VERSION, coordinator_epoch)], pa.binary()),
        }
    )
    encoded = encode(record, producer_id=producer_id, producer_epoch=producer_epoch, transactional=True, control=True)
    return BatchRun(
        np.frombuffer(encoded.data, np.uint8),
        encoded.batches,
        encoded.offsets_of_max_timestamp,
        encoded.min_timestamps,
        in_transaction=True,
    )
