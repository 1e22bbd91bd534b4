"""The API that appends records: Produce."""

from __future__ import annotations

import logging
import struct
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from operator import attrgetter
from typing import Any

from distlog.core.errors import DistlogError, InvalidRecordError, LockHeldError, RecordValidationError
from distlog.core.format.record_batch import CODEC_MASK, TRANSACTIONAL, attributes_of
from distlog.core.kafka.transactions import ProducerId
from distlog.core.log.partition_log import AppendInfo, WouldWaitError
from distlog.core.storage.calls import PARALLEL_REQUESTS, in_parallel
from distlog.core.storage.locks_and_pages import TIMEOUT_S
from distlog.core.times import NO_TIMESTAMP
from distlog.core.write.append import EARLIEST_USUAL_MS, is_early, warn_of_early
from distlog.gateway.kafka_apis import Api, Broker
from distlog.gateway.protocol.error_codes import CoordinatorError, RefusedError, client_text, topic_error_code
from distlog.gateway.protocol.messages import PRODUCE_KEY, ErrorCode, Fields
from distlog.gateway.security.acls import Operation, ResourceType
from distlog.gateway.server.delayed_operations import DelayedAppend
from distlog.gateway.server.fairness import PRODUCER_BYTE_RATE
from distlog.gateway.server.request import Request, by_topic, grouped, topic_key
from distlog.gateway.topics.metadata_cache import HostedTopic
from distlog.gateway.topics.partition import Fence, Partition, producer_of


def produce(request: Request, broker: Broker) -> None:
    """Append batches and respond, now or later. Raises WouldWaitError if it must wait without `request.may_wait`."""
    if request.handler_state is None:
        if not request.may_wait and not _needs_only_writes(request, broker):
            raise WouldWaitError
        request.handler_state = ProduceRequest(request, broker)
    request.handler_state.step()


_log = logging.getLogger("distlog.gateway")
#: The base offset in the response for a batch that was not appended.
_NO_OFFSET = -1
_ACKS = (-1, 0, 1)
#: The position and the format of a batch's first timestamp and, after it, its largest timestamp.
_TIMESTAMPS_POSITION, _TIMESTAMPS_FORMAT = 27, struct.Struct(">qq")
#: The most record errors in a response, which must not become much larger than its request.
_MAX_RECORD_ERRORS = 10_000
#: An append may wait this long for a lock, even if the client's `timeout.ms` is shorter.
_MIN_WAIT_S = 1.0


class BatchState(Enum):
    WAITING = auto()
    #: Not appended, since another process holds the partition's append lock.
    LOCKED = auto()
    COMMITTING = auto()
    APPENDED = auto()
    #: Appended, but not flushed, since another process holds the partition's flush lock.
    FLUSH_LOCKED = auto()
    #: Appended, and flushed if the topic's flush policy requires it.
    DURABLE = auto()
    FAILED = auto()


_FINAL = (BatchState.DURABLE, BatchState.FAILED)
_TOPIC = attrgetter("topic")


@dataclass(slots=True, eq=False)
class ProducedBatch:
    """The batch for the partition `number` of `topic`, a name or an id."""

    topic: str | uuid.UUID
    number: int
    records: bytes | None
    state: BatchState = BatchState.WAITING
    partition: Partition | None = None
    info: AppendInfo | None = None
    error: BaseException | None = None
    code: ErrorCode = ErrorCode.none


class ProduceRequest(DelayedAppend):
    """A Produce request (Kafka's DelayedProduce). After a wait for locks, another thread calls `step` again."""

    def __init__(self, request: Request, broker: Broker) -> None:
        body = request.body
        wait_s = min(max(body.timeout / 1000, _MIN_WAIT_S), TIMEOUT_S)
        # a client that wants no response (acks=0) may disconnect at once: append its records nevertheless
        super().__init__(request, time.monotonic() + wait_s, is_needed=body.acks == 0)
        self._broker, self._batches = broker, list(_produced_batches(body))
        self._pending_commits, self._lock = 0, threading.Lock()  # commits whose callbacks have not run yet
        request.note_use(PRODUCER_BYTE_RATE, sum(len(batch.records or b"") for batch in self._batches))
        self._fail([batch for batch in self._batches if batch.error is not None])
        self._fail_refused_batches()

    def step(self) -> None:
        """Advance all batches. Raises WouldWaitError as `produce` does."""
        if self.is_dropped:  # its client has disconnected: give up locked batches, but flush appended ones
            self._fail(self._in_states(BatchState.LOCKED))
        commits = self._append()
        # without `may_wait`, all topics are local (see `_needs_only_writes`), so there are no commits to wait for
        if not self.request.may_wait and any(batch.state not in _FINAL for batch in self._batches):
            raise WouldWaitError
        if not self._in_states(BatchState.LOCKED) and self._in_states(BatchState.APPENDED, BatchState.COMMITTING):
            # no batch waits for an append lock, and the client's next batches can share a sync or a commit with these
            self.request.allow_pipelining()
        self._flush()
        if commits:  # the callback of the last commit waits for locks, or responds
            for batch, result in commits:
                result.add_done_callback(partial(self._on_committed, batch))
        else:
            self._wait_or_respond()

    def _in_states(self, *states: BatchState) -> list[ProducedBatch]:
        return [batch for batch in self._batches if batch.state in states]

    def _fail_refused_batches(self) -> None:
        request, body, id_ = self.request, self.request.body, self.request.body.transactional_id
        for topic, batches in grouped(self._in_states(BatchState.WAITING), _TOPIC).items():
            try:
                if id_ is not None:
                    request.rights.check(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, id_)
                request.rights.check_topic(Operation.WRITE, topic, self._broker.metadata)
            except DistlogError as error:  # noqa: PERF203 - the other topics are appended to
                self._fail(batches, error)
        if body.acks not in _ACKS:
            code = ErrorCode.invalid_required_acks
            self._fail(self._batches, RefusedError("acks must be 0, 1 or -1 (all)", code=code, acks=body.acks))

    def _append(self) -> list[tuple[ProducedBatch, Future[AppendInfo]]]:
        commits = list[tuple[ProducedBatch, Future[AppendInfo]]]()
        for topic, batches in grouped(self._in_states(BatchState.WAITING, BatchState.LOCKED), _TOPIC).items():
            try:
                hosted = self._broker.metadata.client_topic(topic)
            except Exception as error:
                self._fail(batches, error)
                continue
            if hosted.is_local:
                for batch in batches:
                    self._append_locally(hosted, batch)
            else:
                commits += self._append_later(hosted, batches)
        self._pending_commits = len(commits)
        return commits

    def _append_locally(self, hosted: HostedTopic, batch: ProducedBatch) -> None:
        try:
            records, fence = self._records_and_fence(hosted, batch)
            batch.partition = hosted.partition(batch.number)
            wait_s = self._broker.appends.max_wait_s(batch.partition)
            batch.info = batch.partition.append(records, fence, timeout_s=wait_s, may_wait=self.request.may_wait)
        except WouldWaitError:
            batch.state = BatchState.WAITING  # `step` raises it again after it has tried the other batches
        except LockHeldError as error:
            batch.state, batch.error = BatchState.LOCKED, error
        except Exception as error:
            self._fail([batch], error)
        else:
            batch.state = BatchState.APPENDED
            if batch.info.appended.flush_due:
                # in case its sync fails: the producer's later batches are then refused until this one is sent again
                self._broker.metadata.failed_batches.add(batch.topic, batch.number, records)
            else:
                self._succeed(batch)

    def _append_later(
        self, hosted: HostedTopic, batches: Sequence[ProducedBatch]
    ) -> list[tuple[ProducedBatch, Future[AppendInfo]]]:
        requested = dict[int, tuple[bytes, Fence | None]]()
        for batch in batches:
            try:
                batch.partition = hosted.partition(batch.number)
                requested[batch.number] = self._records_and_fence(hosted, batch)
            except Exception as error:  # noqa: PERF203 - append the other batches
                self._fail([batch], error)
        committing = [batch for batch in batches if batch.number in requested]
        try:
            results = hosted.append_later(requested, self.request.client)
        except Exception as error:
            self._fail(committing, error)
            return []
        for batch in committing:
            batch.state = BatchState.COMMITTING
        return [(batch, results[batch.number]) for batch in committing]

    def _records_and_fence(self, hosted: HostedTopic, batch: ProducedBatch) -> tuple[bytes, Fence | None]:
        records, id_ = batch.records, self.request.body.transactional_id
        if not records:
            raise InvalidRecordError("the produce request has no records for this partition")
        if not attributes_of(records) & TRANSACTIONAL:
            return records, None
        if id_ is None:  # then no coordinator would end the transaction
            raise InvalidRecordError("a batch of a transaction needs the producer's transactional id")
        producer_id, epoch, _ = producer_of(records)
        producer = ProducerId(producer_id, epoch)
        return records, self._broker.transactions.fence(id_, producer, (hosted.name, batch.number))

    def _on_committed(self, batch: ProducedBatch, result: Future[AppendInfo]) -> None:
        """Set the outcome of a batch. After the last commit, wait for locks, or respond."""
        if (error := result.exception()) is not None:
            self._fail([batch], error)
        else:
            batch.info = result.result()
            self._succeed(batch)
        with self._lock:
            self._pending_commits -= 1
            is_last = not self._pending_commits
        if is_last:
            try:
                self._wait_or_respond()
            except Exception as unexpected:
                _log.error("a produce request failed", exc_info=unexpected)
                self.request.hang_up("the request failed")

    def _flush(self) -> None:
        batches = self._in_states(BatchState.APPENDED, BatchState.FLUSH_LOCKED)
        # not one thread for each of many batches, since starting one costs as much as a flush without the fsync
        threads = min(len(batches), PARALLEL_REQUESTS)
        if threads > 1:
            in_parallel(self._flush_batches, [batches[first::threads] for first in range(threads)])
        else:
            self._flush_batches(batches)

    def _flush_batches(self, batches: Sequence[ProducedBatch]) -> None:
        for batch in batches:
            assert batch.partition is not None
            assert batch.info is not None
            try:
                batch.partition.sync(batch.info.appended, timeout_s=self._broker.appends.max_wait_s(batch.partition))
            except LockHeldError as error:
                batch.state, batch.error = BatchState.FLUSH_LOCKED, error
            except Exception as error:
                self._fail([batch], error)
            else:
                self._succeed(batch)

    def _wait_or_respond(self) -> None:
        """Wait for locks that other processes hold. Respond if there are none, or if the time is over."""
        locked = self._in_states(BatchState.LOCKED, BatchState.FLUSH_LOCKED)
        # by partition: True for the flush lock, False for the append lock
        locks = {batch.partition: batch.state is BatchState.FLUSH_LOCKED for batch in locked if batch.partition}
        if locks and self._broker.appends.wait(self, locks):
            return
        self._fail(locked)
        self._respond()

    def _succeed(self, batch: ProducedBatch) -> None:
        batch.state, batch.error = BatchState.DURABLE, None
        assert batch.partition is not None
        if batch.records:
            self._broker.metadata.failed_batches.remove(batch.topic, batch.number, batch.records)
        self._broker.fetches.on_append(batch.partition)
        _warn_of_early_times(batch, batch.partition)

    def _fail(self, batches: Iterable[ProducedBatch], error: BaseException | None = None) -> None:
        """Fail the batches, each with `error` or its own error. Note in `failed_batches` those to send again."""
        for batch in batches:
            batch.state, batch.error = BatchState.FAILED, error or batch.error
            assert batch.error is not None
            batch.code = topic_error_code(batch.error, batch.topic)
            if batch.code is ErrorCode.producer_fenced:
                # in Produce, Kafka has an older code for a fenced producer
                batch.code = ErrorCode.invalid_producer_epoch
            _drop_tracebacks(batch.error)
            if batch.code.retriable and batch.records:
                # by the requested name or id, since the topic may be missing; HostedTopic checks its name and its id
                self._broker.metadata.failed_batches.add(batch.topic, batch.number, batch.records)

    def _respond(self) -> None:
        request, batches = self.request, self._batches
        if request.body.acks == 0:
            # as in Kafka, closing the connection reports an error to a client that wants no responses
            if any(batch.state is BatchState.FAILED for batch in batches):
                request.hang_up("a produce request with acks=0 failed")
            else:
                request.respond(None)
            return
        results, remaining_errors = list[tuple[str | uuid.UUID, Fields]](), _MAX_RECORD_ERRORS
        for batch in batches:
            fields = _batch_fields(batch, remaining_errors)
            results.append((batch.topic, fields))
            remaining_errors -= len(fields.get("record_errors", ()))
        request.respond({"responses": by_topic(results, "partition_responses")})


def _needs_only_writes(request: Request, broker: Broker) -> bool:
    """Return whether the topics are open on a local disk, and no batch needs a sync, a codec or a transaction."""
    if request.body.transactional_id is not None:
        return False
    for topic in request.body.topic_data:
        hosted = broker.metadata.cached_topic(topic_key(topic, "name"))
        if hosted is None or not hosted.is_local or hosted.snapshot.config.flush_messages <= 1:
            return False
        if any(batch.records and attributes_of(batch.records) & CODEC_MASK for batch in topic.partition_data):
            return False
    return True


def _produced_batches(body: Any) -> Iterator[ProducedBatch]:
    batches = [(topic_key(topic, "name"), data) for topic in body.topic_data for data in topic.partition_data]
    for (topic, number), repeats in grouped(batches, lambda item: (item[0], item[1].index)).items():
        text = "the request names a partition more than once: send one batch"
        error = RefusedError(text, partition=number) if len(repeats) > 1 else None
        _, data = repeats[0]
        yield ProducedBatch(topic, number, data.records, error=error)


def _warn_of_early_times(batch: ProducedBatch, partition: Partition) -> None:
    """Warn of appended records with times before 1990: most often, these are seconds instead of milliseconds."""
    if batch.info is None or not batch.records or batch.info.appended.append_time_ms != NO_TIMESTAMP:
        return
    times_ms = _TIMESTAMPS_FORMAT.unpack_from(batch.records, _TIMESTAMPS_POSITION)
    # the test of `min` is a shortcut; `is_early` implies it, and is false for a missing time (-1)
    if min(times_ms) < EARLIEST_USUAL_MS and (early_ms := next(filter(is_early, times_ms), None)) is not None:
        warn_of_early(partition.hosted.name, partition.hosted.snapshot.topic_id, early_ms)


def _drop_tracebacks(error: BaseException) -> None:
    """Drop the tracebacks of an error, since their frames keep the request and its records in memory."""
    causes, ids = [error], set[int]()
    while causes:
        cause = causes.pop()
        # an error may be both cause and context, and errors may form a circle
        if id(cause) not in ids:
            ids.add(id(cause))
            cause.__traceback__ = None
            causes += filter(None, (cause.__cause__, cause.__context__))


def _batch_fields(batch: ProducedBatch, max_record_errors: int) -> Fields:
    fields: dict[str, Any] = {"index": batch.number, "error_code": batch.code}
    if batch.state is BatchState.FAILED:
        errors = batch.error.record_errors if isinstance(batch.error, RecordValidationError) else ()
        # as in Kafka, a CoordinatorError gets no text: clients have their own texts for the codes of transactions
        error = None if isinstance(batch.error, CoordinatorError) else batch.error
        return {
            **fields,
            "base_offset": _NO_OFFSET,
            "record_errors": [
                {"batch_index": number, "batch_index_error_message": reason}
                for number, reason in errors[:max_record_errors]
            ],
            "error_message": None if error is None else client_text(error),
        }
    assert batch.info is not None
    return {
        **fields,
        "base_offset": batch.info.appended.first_offset,
        "log_append_time": batch.info.appended.append_time_ms,
        "log_start_offset": batch.info.log_start_offset,
    }


APIS = (Api(PRODUCE_KEY, "Produce", 3, 13, produce, "WRITE of the topic, and of the transactional id"),)
