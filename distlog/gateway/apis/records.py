"""The APIs of records: Produce, Fetch, and the offsets and ids of clients."""

from __future__ import annotations

import logging
import struct
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from distlog.core.batches.record_batch import TRANSACTIONAL, attributes_of
from distlog.core.errors import (
    DistlogError,
    InvalidRecordError,
    LockHeldError,
    OffsetOutOfRangeError,
    RecordValidationError,
    TopicNotFoundError,
)
from distlog.core.log.flush import AppendInfo
from distlog.core.log.partition_log import WouldWaitError
from distlog.core.reading.chunks import StoredBatches
from distlog.core.reading.time_lookup import EARLIEST, LATEST, MAX_TIMESTAMP, offset_for_time
from distlog.core.storage.locks_and_pages import TIMEOUT_S
from distlog.core.storage.parallel import PARALLEL_REQUESTS, in_parallel
from distlog.core.times import NO_TIMESTAMP
from distlog.core.topics.time_warnings import is_early, warn_of_early
from distlog.core.transaction_state import ProducerId
from distlog.gateway.apis.cluster import attempted, by_topic, check_topic, grouped, topic_key
from distlog.gateway.apis.transactions import code_of, fenced_code
from distlog.gateway.broker import Api, Broker
from distlog.gateway.delayed_operations import DelayedAppend, DelayedFetch
from distlog.gateway.groups.registry import MAX_TEXT_BYTES
from distlog.gateway.protocol.frames import Fields, ResponsePiece, client_text, error_code
from distlog.gateway.protocol.messages import ErrorCode
from distlog.gateway.security.acls import Operation, ResourceType
from distlog.gateway.server.quotas import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE
from distlog.gateway.server.request import Request
from distlog.gateway.topics.metadata_cache import HostedTopic
from distlog.gateway.topics.partition import FailedBatches, FetchedData, LogOffsets, Partition
from distlog.gateway.transactions.transaction_coordinator import new_producer_id
from distlog.gateway.transactions.transaction_log import TransactionRefusedError

_log = logging.getLogger("distlog.gateway")
_NO_OFFSET = -1
#: A batch's producer id and epoch.
_PRODUCER_AT, _PRODUCER = 43, struct.Struct(">qh")
_ACKS = (-1, 0, 1)
#: A batch's first timestamp, and its largest one.
_TIMES_AT, _TIMES = 27, struct.Struct(">qq")
#: The most refused records in a response: it must not be many times as large as its request.
_MOST_RECORD_ERRORS = 10_000
#: The most topics and partitions of a request that the network's thread handles.
MOST_AT_ONCE = 9
#: An append may wait at least so long for a lock, however short a client's `timeout.ms` is.
_SHORTEST_WAIT_S = 1.0
#: The topics of a request as it names them, or why there is none: one look is enough for all partitions of a topic.
_Topics = dict[str | uuid.UUID, HostedTopic | DistlogError]


@dataclass(slots=True, eq=False)
class _ProducedBatch:
    """One partition's batch of a produce request, and its progress; its `topic` is a name or an id."""

    topic: str | uuid.UUID
    number: int
    records: bytes | None
    partition: Partition | None = None
    result: Future[AppendInfo] | None = None
    info: AppendInfo | None = None
    error: BaseException | None = None
    code: ErrorCode = ErrorCode.none
    is_flushed: bool = False
    is_noted: bool = False

    @property
    def is_open(self) -> bool:
        """True if it is to be appended yet."""
        return self.result is None and self.info is None and (self.error is None or self.is_locked)

    @property
    def is_locked(self) -> bool:
        """True if it only waits for a lock."""
        return isinstance(self.error, LockHeldError)


def produce(request: Request, broker: Broker) -> None:
    """Append all batches; the response, when all are safe, has the result of each partition.

    A request that waits for a partition's lock is put off, and handled again when the lock is free: it goes on then.
    """
    if request.delayed is None:
        request.delayed = _new_delayed(request, broker)
    delayed: DelayedAppend = request.delayed
    parts: list[_ProducedBatch] = delayed.state
    topics: _Topics = {}
    for part in parts:
        if part.is_open and not (part.is_locked and delayed.is_dropped):
            _append(part, broker, topics, request.body.transactional_id)
    if _has_to_wait(delayed, broker, [part for part in parts if part.result is None and part.info is None]):
        return
    waiting = [part.result for part in parts if part.result is not None]
    if all(result.done() for result in waiting):
        _finish(request, broker, delayed)
        return
    for part in parts:
        _note_early(part, broker.metadata.failed)
    request.let_next()
    _when_all(request, waiting, partial(_finish, request, broker, delayed))


def is_at_hand(request: Request, broker: Broker) -> bool:
    """True if all topics of a Produce request are open, on a local disk, and need no sync of each batch."""
    topics = (broker.metadata.at_hand(topic_key(topic, "name")) for topic in request.body.topic_data)
    return all(
        hosted is not None and hosted.is_local and hosted.snapshot.config.flush_messages > 1 for hosted in topics
    )


def produce_at_once(request: Request, broker: Broker) -> bool:
    """Append what only has to be written; True if the request is answered, else `produce` goes on with it."""
    if request.body.transactional_id is not None:
        return False
    request.delayed = _new_delayed(request, broker)
    parts: list[_ProducedBatch] = request.delayed.state
    topics: _Topics = {}
    for part in parts:
        if part.error is None:
            _append(part, broker, topics, None, at_once=True)
        if isinstance(part.error, WouldWaitError):
            part.error = None
    if any(part.is_open or (part.info is not None and part.info.appended.flush_due) for part in parts):
        return False
    _finish(request, broker, request.delayed)
    return True


def _new_delayed(request: Request, broker: Broker) -> DelayedAppend:
    body = request.body
    parts = list(_produced(body))
    _check_rights(request, broker, parts)
    request.counts(PRODUCER_BYTE_RATE, sum(len(part.records or b"") for part in parts))
    for part in parts:
        if body.acks not in _ACKS:
            part.error, part.code = InvalidRecordError("acks must be 0, 1 or -1"), ErrorCode.invalid_required_acks
    wait_s = min(max(body.timeout / 1000, _SHORTEST_WAIT_S), TIMEOUT_S)
    # a client that wants no response may be gone before the append
    return DelayedAppend(request, time.monotonic() + wait_s, parts, is_needed=body.acks == 0)


def _check_rights(request: Request, broker: Broker, parts: Sequence[_ProducedBatch]) -> None:
    transactional_id = request.body.transactional_id
    for part in parts:
        try:
            if transactional_id is not None:
                request.rights.check(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)
            check_topic(request, broker, Operation.WRITE, part.topic)
        except DistlogError as error:  # noqa: PERF203 - the other parts are appended
            part.error, part.code = error, error_code(error)


def _produced(body: Any) -> Iterator[_ProducedBatch]:
    """The batch of each partition; one with several gets none of them, since a response could tell of one only."""
    batches = [(topic_key(topic, "name"), data) for topic in body.topic_data for data in topic.partition_data]
    for (topic, number), several in grouped(batches, lambda each: (each[0], each[1].index)).items():
        part = _ProducedBatch(topic, number, several[0][1].records)
        if len(several) > 1:
            part.error, part.code = InvalidRecordError("a request has a partition twice"), ErrorCode.invalid_request
        yield part


def _has_to_wait(delayed: DelayedAppend, broker: Broker, parts: Sequence[_ProducedBatch]) -> bool:
    """True if the request was put off, since a lock is not free; False also when it must not wait any longer."""
    locked = {part.partition: part.info is not None for part in parts if part.is_locked and part.partition}
    return bool(locked) and broker.appends.wait(delayed, locked)


def _when_all(request: Request, waiting: Sequence[Future[AppendInfo]], work: Callable[[], None]) -> None:
    """Do `work` when the last of them is over, in the thread that ends it."""
    left, lock = set(waiting), threading.Lock()

    def over(result: Future[AppendInfo]) -> None:
        with lock:
            left.discard(result)
            is_last = not left
        if is_last:
            try:
                work()
            except Exception as error:
                _log.error("a produce request failed", exc_info=error)
                request.hang_up("the request failed")

    for result in waiting:
        result.add_done_callback(over)


def _append(
    part: _ProducedBatch, broker: Broker, topics: _Topics, transactional_id: str | None, *, at_once: bool = False
) -> None:
    """Append the batch in place, or have it gathered; `topics` are those that the request has found by now."""
    part.error = None
    try:
        hosted, records = _topic_of(part.topic, broker, topics), part.records
        part.partition = hosted.partition(part.number)
        if not records:
            raise InvalidRecordError("a produce request has no records for a partition")
        fence = None
        if attributes_of(records) & TRANSACTIONAL:
            if transactional_id is None:
                # no coordinator would ever end the transaction
                raise InvalidRecordError("a batch of a transaction needs the producer's transactional id")
            producer = ProducerId(*_PRODUCER.unpack_from(records, _PRODUCER_AT))
            fence = broker.transactions.fence(transactional_id, producer, (hosted.name, part.number))
        if hosted.is_local:
            wait_s = broker.appends.max_wait_s(part.partition)
            part.info = part.partition.append(records, fence, timeout_s=wait_s, at_once=at_once)
        else:
            part.result = hosted.append_later(part.number, records, fence)
    except Exception as error:
        part.error = error


def _topic_of(name: str | uuid.UUID, broker: Broker, topics: _Topics) -> HostedTopic:
    hosted = topics.get(name)
    if hosted is None:
        try:
            hosted = broker.metadata.clients_topic(name)
        except DistlogError as error:
            hosted = error
        topics[name] = hosted
    if isinstance(hosted, DistlogError):
        raise hosted.with_traceback(None)
    return hosted


def _finish(request: Request, broker: Broker, delayed: DelayedAppend) -> None:
    parts: list[_ProducedBatch] = delayed.state
    for part in parts:
        _settle(part)
    _flush_all(parts, broker)
    if _has_to_wait(delayed, broker, parts):
        return
    for part in parts:
        _note(part, broker.metadata.failed)
        # it holds the request, by what is done when it is over
        part.result = None
        if part.info is not None and part.partition is not None:
            broker.fetches.appended(part.partition)
            _warn_of_early_times(part, part.partition)
    if request.body.acks == 0:
        # there is no response; as in Kafka, an error ends the connection, so that the client reconnects
        if any(part.code is not ErrorCode.none for part in parts):
            request.hang_up("a produce request with acks=0 failed")
        else:
            request.respond_nothing()
    else:
        results, errors_left = list[tuple[str | uuid.UUID, Fields]](), _MOST_RECORD_ERRORS
        for part in parts:
            results.append((part.topic, _produced_fields(part, errors_left)))
            errors_left -= len(results[-1][1].get("record_errors", ()))
        request.respond({"responses": by_topic(results, "partition_responses"), "throttle_time": 0})


def _warn_of_early_times(part: _ProducedBatch, partition: Partition) -> None:
    """Warn of records of before 1990 that a client appends: its seconds count as milliseconds."""
    if part.info is None or not part.records or part.info.appended.append_time_ms != NO_TIMESTAMP:
        return
    early_ms = next(filter(is_early, _TIMES.unpack_from(part.records, _TIMES_AT)), None)
    if early_ms is not None:
        warn_of_early(partition.fresh.name, partition.fresh.snapshot.topic_id, early_ms)


def _settle(part: _ProducedBatch) -> None:
    """Take the result of an append that is over."""
    if part.result is not None and part.info is None and part.error is None:
        part.error = part.result.exception()
        part.info = None if part.error else part.result.result()


def _note_early(part: _ProducedBatch, failed: FailedBatches) -> None:
    """Have a part noted as soon as it is over, also while other parts of the request wait.

    The next batch of its producer may be gathered already. It is checked after this note: what fails before a
    gathering is noted before the next request is handled, and a commit ends before the next one is checked.
    """

    def over(_: object) -> None:
        _settle(part)
        _note(part, failed)

    if part.result is None:
        _note(part, failed)
    else:
        part.result.add_done_callback(over)


def _note(part: _ProducedBatch, failed: FailedBatches) -> None:
    """Note, once, a batch that its client will send again, or that was appended."""
    if part.is_noted:
        return
    part.is_noted = True
    if part.error is not None and part.code is ErrorCode.none:
        part.code = _code_of(part.error, part.topic)
        _let_go_of_frames(part.error)
    if part.code is ErrorCode.none and part.records:
        failed.appended(part.topic, part.number, part.records)
    elif part.code.retriable and part.records:
        # the topic may not have been found: a name and an id are two places, of which the log looks at both
        failed.failed(part.topic, part.number, part.records)


def _let_go_of_frames(error: BaseException) -> None:
    """Drop the tracebacks of an error and of those behind it, which the log has by now.

    Their frames hold the request, which holds the error: only the garbage collector would free it and its records.
    """
    left, seen = [error], set[int]()
    while left:
        each = left.pop()
        # a cause is a context too as a rule, and causes and contexts may form a circle
        if id(each) not in seen:
            seen.add(id(each))
            each.__traceback__ = None
            left += filter(None, (each.__cause__, each.__context__))


def _code_of(error: BaseException, topic: str | uuid.UUID) -> ErrorCode:
    """The code of a partition's error; of a topic that was given by its id, and ends meanwhile, the id is unknown."""
    if isinstance(error, TransactionRefusedError):
        return ErrorCode.invalid_producer_epoch if error.code is ErrorCode.producer_fenced else error.code
    if isinstance(error, TopicNotFoundError) and isinstance(topic, uuid.UUID) and "partition" not in error.details:
        return ErrorCode.unknown_topic_id
    return error_code(error)


def _flush_all(parts: Sequence[_ProducedBatch], broker: Broker) -> None:
    """Sync the appended batches, by the flush policies of their topics."""
    due = [part for part in parts if part.info is not None and part.info.appended.flush_due and not part.is_flushed]
    due = [part for part in due if part.error is None or part.is_locked]
    # a thread has several: to hand one over takes as long as what is done for it besides the sync
    threads = min(len(due), PARALLEL_REQUESTS)

    def flush(first: int) -> None:
        for part in due[first::threads]:
            _flush(broker, part)

    in_parallel(flush, range(threads))


def _flush(broker: Broker, part: _ProducedBatch) -> None:
    assert part.partition is not None
    assert part.info is not None
    part.error = None
    try:
        part.partition.sync(part.info.appended, timeout_s=broker.appends.max_wait_s(part.partition))
        part.is_flushed = True
    except Exception as error:
        part.error = error


def _produced_fields(part: _ProducedBatch, most_errors: int) -> Fields:
    fields: dict[str, Any] = {"index": part.number, "error_code": part.code}
    if part.info is None or part.code is not ErrorCode.none:
        errors = part.error.record_errors if isinstance(part.error, RecordValidationError) else ()
        # as at a broker: clients have texts of their own for the codes of transactions
        error = None if isinstance(part.error, TransactionRefusedError) else part.error
        return {
            **fields,
            "base_offset": _NO_OFFSET,
            "record_errors": [
                {"batch_index": number, "batch_index_error_message": reason}
                for number, reason in errors[:most_errors]
            ],
            "error_message": None if error is None else client_text(error),
        }
    appended = part.info.appended
    return {
        **fields,
        "base_offset": appended.first_offset,
        "log_append_time": appended.append_time_ms,
        "log_start_offset": part.info.log_start_offset,
    }


PRODUCE = Api(0, "Produce", 3, 13, produce, "WRITE of the topic, and of the transactional id")


#: A fetch of a session (KIP-227) has an epoch above this. A session is optional, and no gateway offers one.
_OPENING_EPOCH = 0
_READ_COMMITTED = 1
_LONGEST_WAIT_S = 60.0
_NO_OFFSETS = LogOffsets(-1, -1, -1)


class _FetchedPartition(NamedTuple):
    """The fetched records of one partition, or its error; its `topic` is a name or an id."""

    topic: str | uuid.UUID
    number: int
    partition: Partition | None
    data: FetchedData | None
    code: ErrorCode

    @property
    def size(self) -> int:
        """The bytes of its records."""
        return len(self.data.batches) if self.data is not None and self.data.batches is not None else 0


def fetch(request: Request, broker: Broker) -> Fields | None:
    """Respond when `min_bytes` are there, or after `max_wait`; at once if a partition has an error."""
    body, delayed = request.body, request.delayed
    if delayed is None:
        wait_s = min(max(body.max_wait / 1000, 0), _LONGEST_WAIT_S)
        committed = body.isolation_level == _READ_COMMITTED
        if request.get("session_epoch", _OPENING_EPOCH) > _OPENING_EPOCH:
            return {"error_code": ErrorCode.fetch_session_id_not_found, "session_id": 0, "responses": []}
        # a partition that is named twice is read once
        partitions = {
            (topic_key(topic, "topic"), partition.partition): partition
            for topic in body.topics
            for partition in topic.partitions
        }
        delayed = request.delayed = DelayedFetch(request, time.monotonic() + wait_s, committed, partitions)
    while True:
        broker.fetches.forget(delayed)
        reads = _read_all(request, broker, delayed)
        missing = body.min_bytes - sum(each.size for each in reads)
        if missing <= 0 or request.is_gone or any(each.code is not ErrorCode.none for each in reads):
            break
        if delayed.is_over or broker.fetches.is_stopped:
            break
        delayed.missing = missing
        delayed.seen = {each.partition: each.data.visible_end for each in reads if each.partition and each.data}
        broker.fetch_memory.give_back(sum(each.size for each in reads))
        if broker.fetches.wait(delayed):
            return None
    return _response(request, broker, reads)


def _read_all(request: Request, broker: Broker, delayed: DelayedFetch) -> list[_FetchedPartition]:
    """Read the partitions in order; the memory of their records is taken."""
    partitions, committed = delayed.partitions, delayed.committed
    wanted = sum(max(partition.partition_max_bytes, 0) for partition in partitions.values())
    memory = broker.fetch_memory.take(min(wanted, max(request.body.max_bytes, 0), broker.config.fetch_max_bytes))
    room, reads = memory, list[_FetchedPartition]()
    for (topic, _), partition in partitions.items():
        reads.append(_read(request, broker, topic, partition, room, committed, is_first=room == memory))
        room -= reads[-1].size
    broker.fetch_memory.give_back(room)
    return reads


def _read(
    request: Request,
    broker: Broker,
    topic: str | uuid.UUID,
    wanted: Any,
    room: int,
    committed: bool,
    *,
    is_first: bool,
) -> _FetchedPartition:
    partition = None
    try:
        check_topic(request, broker, Operation.READ, topic)
        partition = broker.metadata.readable_topic(topic).partition(wanted.partition)
        max_bytes = max(min(wanted.partition_max_bytes, room), 0)
        data = partition.fetch(wanted.fetch_offset, max_bytes, committed=committed)
        if data.batches is not None and len(data.batches) > max_bytes and not is_first:
            # only the first batch of a response may be larger than the client asked for
            data = data._replace(batches=None, aborted=())
        return _FetchedPartition(topic, wanted.partition, partition, data, ErrorCode.none)
    except OffsetOutOfRangeError:
        return _FetchedPartition(topic, wanted.partition, partition, None, ErrorCode.offset_out_of_range)
    except TopicNotFoundError as error:
        return _FetchedPartition(topic, wanted.partition, None, None, _code_of(error, topic))
    except Exception as error:
        return _FetchedPartition(topic, wanted.partition, partition, None, error_code(error))


def _response(request: Request, broker: Broker, reads: Sequence[_FetchedPartition]) -> Fields:
    size = sum(each.size for each in reads)
    request.counts(CONSUMER_BYTE_RATE, size)
    if size:
        request.on_sent.append(partial(broker.fetch_memory.give_back, size))
    committed = request.body.isolation_level == _READ_COMMITTED
    topics = by_topic(((each.topic, _fetched_fields(each, committed)) for each in reads), name="topic")
    return {"throttle_time": 0, "error_code": ErrorCode.none, "session_id": 0, "responses": topics}


def _fetched_fields(each: _FetchedPartition, committed: bool) -> Fields:
    offsets = each.data.offsets if each.data else _NO_OFFSETS
    aborted = each.data.aborted if each.data else ()
    return {
        "partition_index": each.number,
        "error_code": each.code,
        "high_watermark": offsets.high_watermark,
        "last_stable_offset": offsets.last_stable_offset,
        "log_start_offset": offsets.log_start_offset,
        "aborted_transactions": [
            {"producer_id": one.producer_id, "first_offset": one.first_offset} for one in aborted
        ]
        if committed
        else None,
        "records": _records(each),
    }


def _records(each: _FetchedPartition) -> ResponsePiece:
    batches = each.data.batches if each.data else None
    if batches is None or isinstance(batches, StoredBatches):
        return batches or b""
    # offsets that a commit gives are written into a copy
    return bytes(batches) if batches.moved else batches.data


#: KIP-405: the earliest offset on the broker's own disk, and the latest in tiered storage. A gateway has no tiers.
_EARLIEST_LOCAL = -4
_LATEST_TIERED = -5
_NONE = -1


class _ListedOffset(NamedTuple):
    """The answer for a partition; the epoch is that of the batch at the offset."""

    offset: int
    timestamp: int
    leader_epoch: int


_NO_LISTED_OFFSET = _ListedOffset(_NONE, _NONE, _NONE)


def _by_place(request: Request) -> dict[tuple[str, int], Any]:
    """The partitions of a request by topic and number; as in Kafka, the last of those that are named twice."""
    return {(topic.name, one.partition_index): one for topic in request.body.topics for one in topic.partitions}


def list_offsets(request: Request, broker: Broker) -> Fields:
    """The offset for each partition's time."""
    committed = request.get("isolation_level", 0) == _READ_COMMITTED
    topics = [
        {"name": name, "partitions": _listed(request, broker, name, [one for _, one in places], committed)}
        for name, places in grouped(_by_place(request).items(), lambda item: item[0][0]).items()
    ]
    return {"throttle_time": 0, "topics": topics}


def _listed(request: Request, broker: Broker, topic: str, wanted: Sequence[Any], committed: bool) -> list[Fields]:
    """The answers for partitions: on an object store after one look at the topic, and then into logs at once."""
    try:
        request.rights.check(Operation.DESCRIBE, ResourceType.TOPIC, topic)
        hosted = broker.metadata.fresh_topic(topic)
        if not hosted.is_local:
            hosted.refresh()
    except Exception as error:
        code = error_code(error)
        return [_answer(one, code, _NO_LISTED_OFFSET) for one in wanted]

    def answer(one: Any) -> Fields:
        try:
            return _answer(one, ErrorCode.none, _listed_offset(hosted, one, committed))
        except Exception as error:
            return _answer(one, error_code(error), _NO_LISTED_OFFSET)

    return [answer(one) for one in wanted] if hosted.is_local else in_parallel(answer, wanted)


def _answer(wanted: Any, code: ErrorCode, listed: _ListedOffset) -> Fields:
    return {"partition_index": wanted.partition_index, "error_code": code, **listed._asdict()}


def _listed_offset(hosted: HostedTopic, wanted: Any, committed: bool) -> _ListedOffset:
    partition = hosted.partition(wanted.partition_index)
    state, time = partition.state(), wanted.timestamp
    end = partition.offsets(state).last_stable_offset if committed else state.log_end_offset
    if time == LATEST:
        return _ListedOffset(end, _NONE, partition.leader_epochs(state).latest)
    if time in (EARLIEST, _EARLIEST_LOCAL):
        start = state.log_start_offset
        return _ListedOffset(start, _NONE, partition.leader_epochs(state).at(state, start))
    if time == _LATEST_TIERED or (time < 0 and time != MAX_TIMESTAMP):
        return _NO_LISTED_OFFSET
    offset_and_time = offset_for_time(hosted.topic.reader, state, time)
    # a reader of committed records gets no offset that is not stable yet
    if offset_and_time is None or offset_and_time[0] >= end:
        return _NO_LISTED_OFFSET
    return _ListedOffset(*offset_and_time, partition.leader_epochs(state).at(state, offset_and_time[0]))


# There is one leader for ever, and acknowledged records are never cut. Epochs are those of an adopted log: one ends
# where the next one begins, and the latest one where the log ends.


def offset_for_leader_epoch(request: Request, broker: Broker) -> Fields:
    """The end of the epoch of each partition."""
    wanted = {(topic.topic, one.partition): one for topic in request.body.topics for one in topic.partitions}
    ends = (
        (name, attempted(partial(_end, request, broker, name, one), partition=number))
        for (name, number), one in wanted.items()
    )
    return {"throttle_time": 0, "topics": by_topic(ends, name="topic")}


def _end(request: Request, broker: Broker, topic: str, wanted: Any) -> Fields:
    request.rights.check(Operation.DESCRIBE, ResourceType.TOPIC, topic)
    partition = broker.metadata.fresh_topic(topic).partition(wanted.partition)
    state = partition.state()
    end = partition.leader_epochs(state).end_of(wanted.leader_epoch, state.log_end_offset)
    return {"leader_epoch": end.epoch, "end_offset": end.end_offset}


def delete_records(request: Request, broker: Broker) -> Fields:
    """Delete the records below an offset, -1 for all; each partition in a commit of its own."""

    def delete(name: str, number: int, offset: int) -> Fields:
        request.rights.check(Operation.DELETE, ResourceType.TOPIC, name)
        report = broker.metadata.clients_topic(name).topic.delete_records({number: offset})
        return {"low_watermark": report.log_start_offsets[number]}

    topics = by_topic(
        (name, attempted(partial(delete, name, number, one.offset), partition_index=number, low_watermark=_NONE))
        for (name, number), one in _by_place(request).items()
    )
    return {"throttle_time": 0, "topics": topics}


DELETE_RECORDS = Api(21, "DeleteRecords", 0, 2, delete_records, "DELETE of the topic")


_NO_PRODUCER = ProducerId(-1, -1)
_FENCED_SINCE = 4


def init_producer_id(request: Request, broker: Broker) -> Fields:
    """A producer without a transactional id gets a new id, one with it the next epoch."""
    body, producers, rights = request.body, [_NO_PRODUCER], request.rights
    if body.transactional_id is None:
        code = ErrorCode.none
        # the right to write to any topic is enough (KIP-679)
        if not rights.might_with_any(Operation.WRITE, ResourceType.TOPIC):
            code = rights.denied(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER)
        return _producer_id_fields(code, _NO_PRODUCER if code else ProducerId(new_producer_id(), 0))
    code = rights.denied(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, body.transactional_id) or _refused_id(
        body.transactional_id, request, broker
    )
    if code is ErrorCode.none:
        expected = ProducerId(request.get("producer_id", -1), request.get("producer_epoch", -1))
        code = code_of(
            lambda: producers.append(
                broker.transactions.coordinator.begin_producer(
                    body.transactional_id, body.transaction_timeout, None if expected == _NO_PRODUCER else expected
                )
            ),
            fenced=fenced_code(request.api_version, _FENCED_SINCE),
        )
    return _producer_id_fields(code, producers[-1])


def _refused_id(transactional_id: str, request: Request, broker: Broker) -> ErrorCode:
    if not 0 < len(transactional_id.encode("utf-8", "surrogatepass")) <= MAX_TEXT_BYTES:
        return ErrorCode.invalid_request
    if not 0 < request.body.transaction_timeout <= broker.config.transaction_max_timeout_ms:
        return ErrorCode.invalid_transaction_timeout
    return ErrorCode.none


def _producer_id_fields(code: ErrorCode, producer: ProducerId) -> Fields:
    return {"throttle_time": 0, "error_code": code, "producer_id": producer.id, "producer_epoch": producer.epoch}


INIT_PRODUCER_ID = Api(
    22,
    "InitProducerId",
    0,
    4,
    init_producer_id,
    "WRITE of the transactional id; without one, IDEMPOTENT_WRITE of the cluster or WRITE of any topic",
)

APIS = (
    PRODUCE,
    Api(1, "Fetch", 4, 17, fetch, "READ of the topic"),
    Api(2, "ListOffsets", 1, 9, list_offsets, "DESCRIBE of the topic"),
    Api(23, "OffsetForLeaderEpoch", 2, 4, offset_for_leader_epoch, "DESCRIBE of the topic"),
    DELETE_RECORDS,
    INIT_PRODUCER_ID,
)
