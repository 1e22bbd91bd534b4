"""Groups and committed offsets in the compacted topic `__consumer_offsets` of a root, a folder of topics."""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from distlog.core import errors
from distlog.core.commits.snapshot import Snapshot
from distlog.core.config import TopicConfig
from distlog.core.format.record_batch import COMMIT, CONTROL
from distlog.core.kafka.transactions import TopicPartition as TopicPartition
from distlog.core.opening import make_topic, open
from distlog.core.read import kafka_offsets
from distlog.core.read.fetch import FetchedBatches
from distlog.core.segments.producer_states import control_type
from distlog.core.storage.calls import in_parallel
from distlog.core.storage.storage import Storage
from distlog.core.topic import Topic
from distlog.core.write.writer import Delivery, RecordSender, Writer, engine_of
from distlog.gateway.cluster import InternalTopicCompaction, Leadership
from distlog.gateway.event_log import FAILURES
from distlog.gateway.groups import offsets_format
from distlog.gateway.groups.classic_group import GroupRecord, OnStored
from distlog.gateway.protocol.messages import ErrorCode
from distlog.gateway.topics.partition import READ_BYTES, PartitionTail

#: Kafka's default of `offsets.topic.num.partitions`: a Kafka broker with it looks for a group in the same partition.
PARTITIONS = 50


class OffsetsTopic:
    """The topic `__consumer_offsets`. Stores groups in the partitions that this gateway leads. Thread-safe."""

    def __init__(
        self,
        root: str,
        *,
        linger_ms: int,
        storage_options: Mapping[str, Any] | None = None,
        partitions: int = PARTITIONS,
    ) -> None:
        self._url, self._options = f"{root.rstrip('/')}/{kafka_offsets.OFFSETS_TOPIC}", storage_options
        self._linger_ms, self.partitions = linger_ms, partitions
        self._lock = threading.Lock()
        self._cached: _OpenTopic | None = None  # before the first use, and after the topic was dropped
        self._tails, self._compaction = dict[int, PartitionTail](), InternalTopicCompaction()
        # on a local disk one for each partition, so that a stopped process that holds a partition's lock delays only
        # this partition; on an object store one for all partitions, by None
        self._batchings = dict[int | None, OffsetsBatching]()
        self._finished_calls: queue.SimpleQueue[Sequence[Call] | None] = queue.SimpleQueue()
        self._callback_thread: threading.Thread | None = None

    def open(self) -> int:
        """Open or create the topic; returns its number of partitions. Raises DistlogError."""
        return self._open_topic().topic.partitions

    def partition_of(self, group: str) -> int:
        return kafka_offsets.offsets_partition(group, self.partitions)

    def begin(self, partitions: Collection[int], check_may_lead: Callable[[], None] = lambda: None) -> None:
        """Lead partitions, and fence earlier leaders. Raises the errors of `Leadership.begin`."""
        self._open_topic().leadership.begin(partitions, check_may_lead)

    def end(self, partitions: Collection[int]) -> None:
        """Stop leading partitions. Their files are closed, since open files keep the space of deleted segments."""
        self._open_topic().leadership.end(partitions)
        with self._lock:
            ended_batchings = [self._batchings.pop(number) for number in partitions if number in self._batchings]
        in_parallel(OffsetsBatching.close, ended_batchings)

    def compact(self) -> None:
        """Compact the partitions that this gateway leads; one caller at a time. Raises nothing."""
        if (cached := self._cached) is not None:
            self._compaction.step(cached.topic, cached.leadership.partitions)

    def lost_partitions(self) -> Collection[int]:
        """After a failed store, the partitions that another gateway leads now, or all if the topic was dropped."""
        with self._lock:
            cached, has_failed = self._cached, any(batching.has_failed for batching in self._batchings.values())
        if cached is None or not has_failed:
            return ()
        try:
            return cached.leadership.lost_partitions()
        except errors.TopicNotFoundError:
            with self._lock:
                self._cached = None
            return list(cached.leadership.partitions)

    def fence(self, partition: int) -> Callable[[Snapshot], None]:
        """Return a check that raises LeaderFencedError if another gateway leads the partition."""
        leadership = self._open_topic().leadership
        return lambda snapshot: leadership.check(snapshot, (partition,))

    def drain(self) -> None:
        with self._lock:
            batchings = list(self._batchings.values())
        in_parallel(OffsetsBatching.drain, batchings)

    def load(
        self, partitions: Collection[int]
    ) -> Iterator[offsets_format.GroupChange | offsets_format.PendingOffset]:
        """The changes in partitions, oldest first. A corrupt record is logged. Raises DistlogError."""
        if not partitions:
            return
        topic = self._open_topic().topic.refresh()
        snapshot = topic.live_snapshot
        for number in partitions:
            # `ended` reads the end markers after the load, from the log end of this snapshot on
            def read(offset: int, number: int = number) -> FetchedBatches:
                return topic.refresh().read(number, offset, READ_BYTES)

            self._tails[number] = PartitionTail(read, snapshot.partitions[number].log_end_offset)
        for record in kafka_offsets.offsets_records(topic.reader, snapshot, sorted(partitions)):
            try:
                change = _decoded(record.key, record.value)
            except errors.CorruptRecordError as error:
                _log.warning("%s (partition=%s offset=%s)", error, record.partition, record.offset)
                continue
            if change is None:
                continue
            key, value = change
            # if set, the record is in an open transaction of this producer, which has only records of offsets
            producer_id = record.waits_for
            if producer_id is None:
                yield change
            elif isinstance(key, kafka_offsets.OffsetKey) and isinstance(value, kafka_offsets.Position):
                yield offsets_format.PendingOffset(producer_id, key, value)

    def ended(self, partition: int) -> Iterator[EndedTransaction]:
        """The transactions that ended in a partition since the load or the last call; one caller at a time."""
        tail = self._tails.get(partition)
        for batches in tail.batches() if tail is not None else ():
            for row in batches.rows[batches.rows["attributes"] & CONTROL != 0]:  # end markers
                yield EndedTransaction(int(row["producer_id"]), control_type(batches.data, row) == COMMIT)

    def store(self, group: str, changes: Sequence[offsets_format.GroupChange], on_stored: OnStored) -> None:
        """Store changes, for each group in the order of the calls. Refuses them if too many bytes are in flight."""
        number = self.partition_of(group)
        try:
            batching = self._batching_of(number)
        except errors.DistlogError as error:
            FAILURES.note("storing groups", error)
            on_stored(ErrorCode.coordinator_not_available)
            return
        records = [(offsets_format.encode_key(key), _encoded(value)) for key, value in changes]
        # Kafka's codes for changes that are larger than a batch may be
        is_group = not all(isinstance(key, kafka_offsets.OffsetKey) for key, _ in changes)
        size_code = ErrorCode.unknown_server_error if is_group else ErrorCode.invalid_commit_offset_size
        batching.append(number, records, on_stored, size_code)

    def _open_topic(self) -> _OpenTopic:
        with self._lock:
            if self._cached is None:
                topic = _open_or_create(self._url, self.partitions, self._options)
                self.partitions = topic.partitions
                self._cached = _OpenTopic(topic, Leadership(topic.handle, topic.current))
            return self._cached

    def _batching_of(self, partition: int) -> OffsetsBatching:
        topic, leadership = self._open_topic()
        key = partition if topic.storage.is_local_disk else None
        with self._lock:
            batching = self._batchings.get(key)
            if batching is not None and batching.has_failed:
                # close it in a thread, since `close` may wait for the lock whose timeout made it fail
                threading.Thread(target=batching.close, name="groups-closed", daemon=True).start()
                batching = None
            if batching is None:
                engine = engine_of(topic.handle, topic.current, _LOCK_WAIT_S)
                sender = RecordSender(topic.handle, topic.current, engine, fence=leadership)
                batching = self._batchings[key] = OffsetsBatching(sender, self._linger_ms, self._finished_calls.put)
            if self._callback_thread is None:
                self._callback_thread = threading.Thread(target=self._answer_calls, name="groups-stored", daemon=True)
                self._callback_thread.start()
            return batching

    def _answer_calls(self) -> None:
        """Answer finished calls, in a separate thread since callbacks wait for the locks of their groups."""
        while (calls := self._finished_calls.get()) is not None:
            for call in calls:
                try:
                    call.on_stored(call.code)
                except Exception:  # noqa: PERF203 - answer the next call
                    _log.exception("the answer to a stored change of a group failed")

    def close(self) -> None:
        with self._lock:
            batchings = list(self._batchings.values())
            self._batchings.clear()
            callback_thread, self._callback_thread = self._callback_thread, None
        in_parallel(OffsetsBatching.close, batchings)
        if callback_thread is not None:
            self._finished_calls.put(None)
            callback_thread.join()


#: The bytes that a record counts in addition to its key and value.
_RECORD_OVERHEAD = 100
#: The most bytes in flight. The writer's buffer has room for them, so its `append` never waits.
_MAX_WAITING_BYTES = 8 << 20


@dataclass(slots=True, eq=False)
class Call:
    """Records of one group that are stored together; `remaining` counts the records that are not stored yet."""

    on_stored: OnStored
    remaining: int
    size: int
    code: ErrorCode = ErrorCode.none


class OffsetsBatching:
    """A writer and its calls in flight. `answer` gets finished calls, and must not wait."""

    def __init__(self, sender: RecordSender, linger_ms: int, answer: Callable[[Sequence[Call]], None]) -> None:
        # `_order` keeps calls and records in the same order; the writer's thread takes only `_lock`
        self._order, self._lock = threading.RLock(), threading.Lock()
        self._calls, self._answer = dict[int, deque[Call]](), answer
        self._waiting_bytes = 0
        self.has_failed = False
        self._writer = Writer(sender, linger_ms=linger_ms, on_delivery=self._on_delivery)

    def append(
        self, partition: int, records: Sequence[tuple[bytes, bytes | None]], on_stored: OnStored, size_code: ErrorCode
    ) -> None:
        """Append records; never waits. `size_code` is the code for records that are too large."""
        size = sum(_RECORD_OVERHEAD + len(key) + len(value or b"") for key, value in records)
        call = Call(on_stored, len(records), size)
        with self._order:
            with self._lock:
                if size > _MAX_WAITING_BYTES:
                    call.code = size_code
                elif self.has_failed or self._waiting_bytes + size > _MAX_WAITING_BYTES:
                    call.code = ErrorCode.coordinator_load_in_progress
                else:
                    # add the call before `append`, which may call `_on_delivery`
                    self._calls.setdefault(partition, deque()).append(call)
                    self._waiting_bytes += size
            if call.code is not ErrorCode.none:
                self._answer([call])
                return
            try:
                for key, value in records:
                    self._writer.append(value, key=key, partition=partition)
            except errors.DistlogError as error:
                self._refuse(partition, call, error, size_code)

    def _refuse(self, partition: int, call: Call, error: errors.DistlogError, size_code: ErrorCode) -> None:
        """Refuse a call if its only record is too large; any other error fails all calls."""
        with self._lock:
            fails_alone = isinstance(error, errors.InvalidRecordError) and call.remaining == 1 and not self.has_failed
            if fails_alone:
                self._calls[partition].remove(call)
                self._waiting_bytes -= call.size
                call.code = size_code
        if fails_alone:
            self._answer([call])
        else:
            self._fail(error)

    def _on_delivery(self, delivery: Delivery) -> None:
        if delivery.error is not None:
            self._fail(delivery.error)
            return
        with self._lock:
            calls = self._calls.get(delivery.partition or 0, deque())
            remaining = delivery.record_count  # these are the records of the oldest calls
            finished = []
            while remaining and calls:
                count = min(remaining, calls[0].remaining)
                calls[0].remaining -= count
                remaining -= count
                if calls[0].remaining == 0:
                    self._waiting_bytes -= calls[0].size
                    finished.append(calls.popleft())
        self._answer(finished)

    def _fail(self, error: BaseException) -> None:
        """Fail all calls, since a failed writer stores nothing more. Some of their records may be durable."""
        with self._lock:
            if not self.has_failed:
                FAILURES.note("storing groups", error)
            self.has_failed = True
            finished = [call for calls in self._calls.values() for call in calls]
            self._calls.clear()
            is_fenced = isinstance(error, errors.LeaderFencedError)
            for call in finished:
                call.code = ErrorCode.not_coordinator if is_fenced else ErrorCode.coordinator_not_available
        self._answer(finished)

    def drain(self) -> None:
        with suppress(errors.DistlogError):
            self._writer.flush()

    def close(self) -> None:
        with suppress(errors.DistlogError):
            self._writer.close()


_log = logging.getLogger(__name__)

#: `segment.bytes` is Kafka's `offsets.topic.segment.bytes`. `max.message.bytes` has room for all records of a call.
_CONFIG = {"cleanup.policy": "compact", "segment.bytes": 104_857_600, "max.message.bytes": 16 << 20}
#: How long a change waits for a lock; then its client retries. Kafka's `offsets.commit.timeout.ms`.
_LOCK_WAIT_S = 5.0


def _open_or_create(url: str, partitions: int, options: Mapping[str, Any] | None) -> Topic:
    try:
        return open(url, storage_options=options)
    except errors.TopicNotFoundError:
        with suppress(errors.TopicExistsError):
            make_topic(Storage(url, options), partitions, TopicConfig.parse(_CONFIG))
    return open(url, storage_options=options)


def _encoded(value: kafka_offsets.Position | GroupRecord | offsets_format.ConsumerValue | None) -> bytes | None:
    if isinstance(value, GroupRecord):
        return offsets_format.encode_group(value)
    if isinstance(value, kafka_offsets.Position):
        return kafka_offsets.encode_position(value)
    return None if value is None else offsets_format.encode_consumer_value(value)


def _decoded(key: bytes | None, value: bytes | None) -> offsets_format.GroupChange | None:
    """The change of a record; None for a record of an unknown kind or version. Raises CorruptRecordError."""
    subject = offsets_format.decode_key(key or b"")
    decoded: Any = None
    if subject is not None and value is not None:
        if isinstance(subject, kafka_offsets.OffsetKey):
            decoded = kafka_offsets.decode_position(value)
        elif isinstance(subject, offsets_format.ClassicGroupKey):
            decoded = offsets_format.decode_group(subject.group, value)
        else:
            decoded = offsets_format.decode_consumer_value(subject.kind, value)
    is_unknown = subject is None or (decoded is None and value is not None)
    return None if is_unknown else (subject, decoded)  # type: ignore[return-value]


class _OpenTopic(NamedTuple):
    topic: Topic
    leadership: Leadership


class EndedTransaction(NamedTuple):
    producer_id: int
    is_committed: bool
