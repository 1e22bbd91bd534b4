"""Produce: appends record batches, each partition's by itself."""

from __future__ import annotations

import logging
import struct
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from distlog.core.batches.record_batch import HEADER_SIZE, TRANSACTIONAL
from distlog.core.errors import InvalidRecordError, RecordValidationError
from distlog.core.log.partition.appended import AppendInfo
from distlog.core.storage.parallel import in_parallel
from distlog.gateway.broker import Api, Broker
from distlog.gateway.broker_parts import transactions_of
from distlog.gateway.protocol.error_codes import error_code
from distlog.gateway.protocol.response_frame import Fields
from distlog.gateway.server.request import Request
from distlog.gateway.topics.failed_batches import FailedBatches
from distlog.gateway.topics.hosted_topic import HostedTopic
from distlog.gateway.topics.partition import Partition
from distlog.gateway.transactions.transaction_state import ProducerId, TransactionRefusedError

_log = logging.getLogger("distlog.gateway")
_NO_OFFSET = -1
#: The low byte of a batch's attributes, and its producer's id and epoch.
_ATTRIBUTES_AT, _PRODUCER_AT, _PRODUCER = 22, 43, struct.Struct(">qh")
_ACKS = (-1, 0, 1)


class _Outcome(NamedTuple):
    """What became of one partition's batch."""

    topic: str
    number: int
    records: bytes | None = None
    partition: Partition | None = None
    info: AppendInfo | None = None
    error: BaseException | None = None
    code: ErrorCode = ErrorCode.none


class _Asked(NamedTuple):
    """A batch on its way into its partition; without a future it never got on it."""

    failed: _Outcome
    partition: Partition | None = None
    told: Future[AppendInfo] | None = None


def handle(request: Request, broker: Broker) -> None:
    """Append all batches; the response, when all are safe, tells of each partition."""
    body = request.body
    asked = [
        _append(broker, topic.name, data.index, data.records, body.transactional_id)
        if body.acks in _ACKS
        else _refused(topic.name, data.index)
        for topic in body.topic_data
        for data in topic.partition_data
    ]
    waiting = [one.told for one in asked if one.told is not None]
    if all(told.done() for told in waiting):
        _finish(request, broker, asked)
    else:
        _when_all(request, waiting, partial(_finish, request, broker, asked))


def _when_all(request: Request, waiting: Sequence[Future[AppendInfo]], work: Callable[[], None]) -> None:
    """Do `work` when the last of them is over, in the thread that ends it."""
    left, lock = set(waiting), threading.Lock()

    def over(told: Future[AppendInfo]) -> None:
        with lock:
            left.discard(told)
            is_last = not left
        if is_last:
            try:
                work()
            except Exception as error:
                _log.error("a produce request failed", exc_info=error)
                request.hang_up("the request failed")

    for told in waiting:
        told.add_done_callback(over)


def _append(broker: Broker, topic: str, number: int, records: bytes | None, transactional_id: str | None) -> _Asked:
    try:
        hosted = broker.metadata.clients_topic(topic)
        partition = hosted.partition(number)
        if not records:
            raise InvalidRecordError("a produce request has no records for a partition")
        if records[_ATTRIBUTES_AT : _ATTRIBUTES_AT + 1] and records[_ATTRIBUTES_AT] & TRANSACTIONAL:
            told = _in_transaction(broker, hosted, number, records, transactional_id)
        else:
            told = hosted.append(number, records)
        return _Asked(_Outcome(topic, number, records), partition, told)
    except Exception as error:
        return _Asked(_Outcome(topic, number, records, error=error, code=_code_of(error)))


def _in_transaction(
    broker: Broker, hosted: HostedTopic, number: int, records: bytes, transactional_id: str | None
) -> Future[AppendInfo]:
    """Append a batch of a transaction, which must be open, and have its partition."""
    if transactional_id is None or len(records) < HEADER_SIZE:
        # nobody would ever end the transaction
        raise InvalidRecordError("a batch of a transaction needs the producer's transactional id")
    producer = ProducerId(*_PRODUCER.unpack_from(records, _PRODUCER_AT))
    fence = transactions_of(broker).fence(transactional_id, producer, (hosted.name, number))
    return hosted.append(number, records, fence)


def _refused(topic: str, number: int) -> _Asked:
    return _Asked(_Outcome(topic, number, code=ErrorCode.invalid_required_acks))


def _finish(request: Request, broker: Broker, asked: Sequence[_Asked]) -> None:
    outcomes = _flushed([_outcome(one) for one in asked])
    for outcome in outcomes:
        if outcome.info is not None and outcome.partition is not None:
            broker.fetches.appended(outcome.partition)
        _note(outcome, broker.metadata.failed)
    if request.body.acks == 0:
        _end_without_response(request, outcomes)
    else:
        request.respond({"responses": _by_topic(outcomes), "throttle_time": 0})


def _note(outcome: _Outcome, failed: FailedBatches) -> None:
    """Keep in mind what its client will send again, before it handles what came behind it on this connection."""
    if outcome.code is ErrorCode.none and outcome.records:
        failed.appended(outcome.topic, outcome.number, outcome.records)
    elif outcome.code.retriable and outcome.records:
        failed.failed(outcome.topic, outcome.number, outcome.records)


def _outcome(asked: _Asked) -> _Outcome:
    if asked.told is None:
        return asked.failed
    error = asked.told.exception()
    if error is not None:
        return asked.failed._replace(error=error, code=_code_of(error))
    return asked.failed._replace(partition=asked.partition, info=asked.told.result())


def _code_of(error: BaseException) -> ErrorCode:
    if isinstance(error, TransactionRefusedError):
        return ErrorCode.invalid_producer_epoch if error.code is ErrorCode.producer_fenced else error.code
    return error_code(error)


def _flushed(outcomes: Sequence[_Outcome]) -> list[_Outcome]:
    """The outcomes when what was appended is on the device, as far as the topics want that."""
    due = [each for each in outcomes if each.info is not None and each.info.appended.flush_due]
    if len(due) < 2:
        return [_flush(each) for each in outcomes]
    return in_parallel(_flush, outcomes)


def _flush(outcome: _Outcome) -> _Outcome:
    if outcome.partition is None or outcome.info is None:
        return outcome
    try:
        outcome.partition.flush(outcome.info.appended)
    except Exception as error:
        return outcome._replace(error=error, code=error_code(error))
    return outcome


def _by_topic(outcomes: Sequence[_Outcome]) -> list[Fields]:
    topics: dict[str, list[Fields]] = {}
    for outcome in outcomes:
        topics.setdefault(outcome.topic, []).append(_told(outcome))
    return [{"name": name, "partition_responses": partitions} for name, partitions in topics.items()]


def _told(outcome: _Outcome) -> Fields:
    told: dict[str, Any] = {"index": outcome.number, "error_code": outcome.code}
    if outcome.info is None or outcome.code is not ErrorCode.none:
        errors = outcome.error.record_errors if isinstance(outcome.error, RecordValidationError) else ()
        return {
            **told,
            "base_offset": _NO_OFFSET,
            "record_errors": [{"batch_index": number, "batch_index_error_message": why} for number, why in errors],
            "error_message": None if outcome.error is None else str(outcome.error),
        }
    appended = outcome.info.appended
    return {
        **told,
        "base_offset": appended.first_offset,
        "log_append_time": appended.append_time_ms,
        "log_start_offset": outcome.info.log_start_offset,
    }


def _end_without_response(request: Request, outcomes: Sequence[_Outcome]) -> None:
    """With acks=0 nobody is told; as in Kafka, an error ends the connection, so that the client looks again."""
    if any(outcome.code is not ErrorCode.none for outcome in outcomes):
        request.hang_up("a produce request with acks=0 failed")
    else:
        request.respond_nothing()


API = Api(0, "Produce", 3, 12, handle)
