"""Produce: appends record batches, each partition's by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from distlog.core.errors import InvalidRecordError, RecordValidationError
from distlog.core.log.appended import AppendInfo
from distlog.core.storage.parallel import in_parallel
from distlog.gateway.broker import Api, Broker
from distlog.gateway.partition import Partition
from distlog.gateway.protocol.error_codes import error_code
from distlog.gateway.protocol.response_frame import Fields
from distlog.gateway.server.request import Request

_NO_OFFSET = -1
_ACKS = (-1, 0, 1)


class _Outcome(NamedTuple):
    """What became of one partition's batch."""

    topic: str
    number: int
    partition: Partition | None = None
    info: AppendInfo | None = None
    error: BaseException | None = None
    code: ErrorCode = ErrorCode.none


def handle(request: Request, broker: Broker) -> Fields | None:
    """Append all batches, then flush them side by side; the response tells of each partition."""
    body = request.body
    if body.acks in _ACKS:
        outcomes = [
            _append(broker, topic.name, data.index, data.records)
            for topic in body.topic_data
            for data in topic.partition_data
        ]
        outcomes = _flushed(outcomes)
        for outcome in outcomes:
            if outcome.info is not None and outcome.partition is not None:
                broker.fetches.appended(outcome.partition)
    else:
        outcomes = [
            _Outcome(topic.name, data.index, code=ErrorCode.invalid_required_acks)
            for topic in body.topic_data
            for data in topic.partition_data
        ]
    if body.acks == 0:
        _end_without_response(request, outcomes)
        return None
    return {"responses": list(_by_topic(outcomes)), "throttle_time": 0}


def _append(broker: Broker, topic: str, index: int, records: bytes | None) -> _Outcome:
    try:
        partition = broker.metadata.fresh_topic(topic).partition(index)
        if not records:
            raise InvalidRecordError("a produce request has no records for a partition")
        return _Outcome(topic, index, partition, partition.append(records))
    except Exception as error:
        return _Outcome(topic, index, error=error, code=error_code(error))


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
