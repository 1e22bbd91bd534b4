"""The states of transactions in the topic `__transaction_state` of a root, which compaction keeps small."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from distlog.core.arrays import column_of, integers
from distlog.core.config import TopicConfig
from distlog.core.errors import CorruptRecordError, LeaderFencedError, TopicNotFoundError
from distlog.core.format.record_encoder import encode, write_headers
from distlog.core.kafka.transactions import (
    TRANSACTIONS_TOPIC,
    ProducerId,
    TopicPartition,
    TransactionState,
    TransactionStatus,
    apply_state,
    encode_key,
    encode_state,
)
from distlog.core.log.partition_log import AppendInfo, BatchRun
from distlog.core.read.kafka_offsets import offsets_partition
from distlog.core.segments.chunks import READ_UNCOMMITTED
from distlog.core.segments.segment_reader import whole_logs
from distlog.core.storage.calls import in_parallel
from distlog.gateway.cluster import InternalTopicCompaction, Leadership
from distlog.gateway.event_log import FAILURES
from distlog.gateway.protocol.error_codes import CoordinatorError
from distlog.gateway.protocol.messages import ErrorCode
from distlog.gateway.topics.metadata_cache import HostedTopic, MetadataCache
from distlog.gateway.topics.partition import RECORD_COLUMNS, Fence, PartitionTail


class TransactionLog:
    """The newest state of each transactional id. Thread-safe except for `begin` and `end`."""

    def __init__(self, metadata: MetadataCache, clock: Callable[[], int], default_count: Callable[[], int]) -> None:
        self._metadata, self._clock, self._default_count = metadata, clock, default_count
        # the number of partitions of the existing topic; a new topic would have `default_count()`
        self._partitions: int | None = None
        self._lock = threading.Lock()
        self._state_topic: _StateTopic | None = None
        # whether an append has failed because another gateway leads its partition, or the topic was dropped
        self._has_failed = False
        self._compaction = InternalTopicCompaction()
        self._in_flight = set[Future[AppendInfo]]()  # appends that no call waits for

    def read_partition_count(self) -> int:
        """Return the number of partitions of the existing topic, or of a new one. Raises DistlogError."""
        if self._partitions is None:
            with suppress(TopicNotFoundError):
                self._partitions = self._metadata.fresh_topic(TRANSACTIONS_TOPIC).topic.partitions
        return self.partitions

    @property
    def partitions(self) -> int:
        return self._default_count() if self._partitions is None else self._partitions

    def partition_of(self, transactional_id: str) -> int:
        return offsets_partition(transactional_id, self.partitions)

    def begin(self, partitions: Collection[int], check_may_lead: Callable[[], None] = lambda: None) -> None:
        """Lead partitions, and fence earlier leaders. Raises the errors of `Leadership.begin`."""
        self._open_topic().leadership.begin(partitions, check_may_lead)

    def end(self, partitions: Collection[int]) -> None:
        if (state_topic := self._state_topic) is not None:
            state_topic.leadership.end(partitions)

    def compact(self) -> None:
        """Compact led partitions that have many segments; one caller at a time. Raises nothing."""
        if (state_topic := self._state_topic) is not None:
            self._compaction.step(state_topic.hosted.topic, state_topic.leadership.partitions)

    def lost_partitions(self) -> Collection[int]:
        """After a failed append, the partitions that another gateway leads now, or all if the topic was dropped."""
        state_topic = self._state_topic
        if state_topic is None or not self._has_failed:
            return ()
        was_replaced = self._open_topic() is not state_topic
        leadership = state_topic.leadership
        partitions = list(leadership.partitions) if was_replaced else leadership.lost_partitions()
        self._has_failed = False
        return partitions

    def drain(self) -> None:
        with self._lock:
            in_flight = list(self._in_flight)
        wait(in_flight)

    def load(self, partitions: Collection[int]) -> Iterator[TransactionState]:
        """Sync partitions, and yield their newest states. A corrupt record is logged. Raises DistlogError."""
        if not partitions:
            return
        state_topic = self._open_topic()
        if state_topic.hosted.is_local:
            # the gateway that wrote the states may have been killed before its sync, so sync them here
            ends = state_topic.hosted.topic.refresh().end_offsets()
            used_partitions = [number for number in partitions if ends[number]]
            in_parallel(lambda number: state_topic.hosted.partition(number).sync(None), used_partitions)
        state_topic.hosted.refresh()
        for states in in_parallel(lambda number: state_topic.newest[number].all(), sorted(partitions)):
            yield from states

    def newest(self, transactional_id: str) -> TransactionState | None:
        return self._open_topic().newest[self.partition_of(transactional_id)].get(transactional_id)

    def of_producer(self, producer_id: int) -> list[TransactionState]:
        state_topic = self._open_topic()
        state_topic.hosted.refresh()
        return [state for newest in state_topic.newest for state in newest.all() if state.producer.id == producer_id]

    def write(self, state: TransactionState, *, is_durable: bool = True) -> None:
        """Store a state. Unless `is_durable`, it is not fsynced, and an object store gets it with the next commit."""
        state_topic, id_, value = self._open_topic(), state.transactional_id, encode_state(state)
        newest = state_topic.newest[self.partition_of(id_)]
        if is_durable or state_topic.hosted.is_local:
            newest.add(state, self._append(state_topic, id_, value, is_durable=is_durable))
        else:
            self._append_later(state_topic, id_, value).add_done_callback(partial(newest.add_written, state))

    def forget(self, transactional_id: str) -> None:
        """Delete the state of an id, not durably. Raises as `write`."""
        state_topic = self._open_topic()
        if state_topic.hosted.is_local:
            self._append(state_topic, transactional_id, None, is_durable=False)
        else:
            # ids that are forgotten together share a commit
            self._append_later(state_topic, transactional_id, None)

    def _append(self, state_topic: _StateTopic, id_: str, value: bytes | None, *, is_durable: bool) -> int:
        number, run, fence = self._record(state_topic, id_, value)
        try:
            return state_topic.hosted.append_run(number, run, fence, is_durable=is_durable).first_offset
        except (LeaderFencedError, TopicNotFoundError):
            self._has_failed = True
            raise

    def _append_later(self, state_topic: _StateTopic, id_: str, value: bytes | None) -> Future[AppendInfo]:
        result = state_topic.hosted.append_run_later(*self._record(state_topic, id_, value))
        with self._lock:
            self._in_flight.add(result)
        result.add_done_callback(self._on_appended)
        return result

    def _on_appended(self, result: Future[AppendInfo]) -> None:
        with self._lock:
            self._in_flight.discard(result)
        error = result.exception()
        if isinstance(error, (LeaderFencedError, TopicNotFoundError)):
            self._has_failed = True
        elif error is not None:
            FAILURES.note("storing states of transactions (the next coordinator ends the transactions again)", error)

    def _record(self, state_topic: _StateTopic, id_: str, value: bytes | None) -> tuple[int, BatchRun, Fence]:
        """Return the arguments of an append: the partition, the batch, and the fence, which checks the leader."""
        number = self.partition_of(id_)
        run = internal_batch([(encode_key(id_), value)], self._clock())
        return number, run, partial(state_topic.leadership.check, partitions=(number,))

    def _open_topic(self) -> _StateTopic:
        hosted = self._metadata.internal_topic(TRANSACTIONS_TOPIC, self.read_partition_count(), _CONFIG)
        self._partitions = hosted.topic.partitions
        with self._lock:
            if self._state_topic is None or self._state_topic.hosted is not hosted:
                self._state_topic = _StateTopic(hosted)
            return self._state_topic


def check_producer(state: TransactionState | None, producer: ProducerId) -> None:
    if state is None or state.producer.id != producer.id:
        raise CoordinatorError(ErrorCode.invalid_producer_id_mapping)
    if state.producer.epoch != producer.epoch:
        raise CoordinatorError(ErrorCode.producer_fenced)


def check_open(state: TransactionState | None, producer: ProducerId, partition: TopicPartition) -> None:
    """Raise CoordinatorError unless the producer's transaction is open, and has the partition."""
    check_producer(state, producer)
    if state is None or state.status is not TransactionStatus.ONGOING or partition not in state.partitions:
        raise CoordinatorError(ErrorCode.invalid_txn_state)


#: `max.message.bytes` of the gateways' own topics: requests are smaller.
MAX_BATCH_BYTES = 16 << 20


def internal_batch(
    records: Sequence[tuple[bytes, bytes | None]], now_ms: int, in_transaction_of: ProducerId | None = None
) -> BatchRun:
    """Encode one batch with the time `now_ms`. Raises InvalidRecordError if it is too large."""
    keys, values = zip(*records, strict=True)
    columns = {
        "timestamp": integers([now_ms] * len(records)),
        "key": column_of(keys, pa.binary()),
        "value": column_of(values, pa.binary()),
    }
    producer: dict[str, Any] = {}
    if in_transaction_of is not None:
        ids = in_transaction_of
        producer = {"producer_id": ids.id, "producer_epoch": ids.epoch, "base_sequence": 0, "transactional": True}
    encoded = encode(
        pa.record_batch(columns), batch_bytes=MAX_BATCH_BYTES, max_batch_bytes=MAX_BATCH_BYTES, **producer
    )
    # as in Kafka, batches of coordinators have no sequence numbers, but `encode` requires one with a producer id
    encoded.batches["base_sequence"] = -1
    write_headers(encoded.data, encoded.batches)
    return BatchRun(
        np.frombuffer(encoded.data, np.uint8),
        encoded.batches,
        encoded.offsets_of_max_timestamp,
        encoded.min_timestamps,
        in_transaction=in_transaction_of is not None,
    )


_log = logging.getLogger("distlog.gateway")


# Any gateway may append batches of a transaction. For each, it reads the newest state that the coordinator wrote.
# `docs/design/gateway.md` explains why no batch can follow the end marker of its transaction.
class NewestStates:
    """The states in one partition of `__transaction_state`, by id. Thread-safe."""

    def __init__(self, hosted: HostedTopic, number: int) -> None:
        self._partition, self._lock = hosted.partition(number), threading.Lock()
        self._tail = PartitionTail.of(self._partition)
        self._states = dict[str, TransactionState]()

    def get(self, transactional_id: str) -> TransactionState | None:
        with self._lock:
            self._partition.hosted.refresh()
            self._catch_up()
            return self._states.get(transactional_id)

    def all(self) -> list[TransactionState]:
        with self._lock:
            self._catch_up()
            return list(self._states.values())

    def add(self, state: TransactionState, offset: int) -> None:
        """Add a state that this process has written at `offset`, which saves reading the state."""
        with self._lock:
            # at any other offset, earlier states are unread, and `_catch_up` reads this one with them
            if offset == self._tail.offset:
                self._states[state.transactional_id] = state
                self._tail.offset = offset + 1

    def add_written(self, state: TransactionState, result: Future[AppendInfo]) -> None:
        if result.exception() is None:
            self.add(state, result.result().appended.first_offset)

    def _catch_up(self) -> None:
        if self._tail.restart_if_compacted(self._partition.hosted.snapshot.partitions[self._partition.number]):
            self._states.clear()
        if not self._partition.hosted.is_local:
            self._read_segments()
        for records in self._tail.records():
            self._add_records(records)

    def _read_segments(self) -> None:
        """Read new segments in parallel if there are several. Most are small, since each was a commit."""
        hosted = self._partition.hosted
        state = hosted.snapshot.partitions[self._partition.number]
        first_row = state.segments.find(self._tail.offset)
        segments = [state.segments[row] for row in range(first_row, len(state.segments))]
        if len(segments) < 2:
            return
        for chunk in whole_logs(hosted.topic.reader, segments):
            for records in chunk.records(RECORD_COLUMNS, READ_UNCOMMITTED):
                self._add_records(records)
        self._tail.offset = state.log_end_offset

    def _add_records(self, records: pa.RecordBatch) -> None:
        for row in records.to_pylist():
            try:
                apply_state(self._states, row["key"], row["value"])
            except CorruptRecordError as error:  # noqa: PERF203 - read the other records
                _log.error("%s (partition=%s offset=%s)", error, self._partition.number, row["offset"])


#: `segment.bytes` is Kafka's `transaction.state.log.segment.bytes`.
_CONFIG = TopicConfig.parse(
    {"cleanup.policy": "compact", "segment.bytes": 104_857_600, "max.message.bytes": MAX_BATCH_BYTES}
)


class _StateTopic:
    """The open topic, with the partitions that this gateway leads, and the newest states by partition."""

    def __init__(self, hosted: HostedTopic) -> None:
        self.hosted = hosted
        self.leadership = Leadership(hosted.topic.handle, hosted.topic.current)
        self.newest = [NewestStates(hosted, number) for number in range(hosted.topic.partitions)]
