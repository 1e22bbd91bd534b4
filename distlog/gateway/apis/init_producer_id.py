"""InitProducerId: an id for an idempotent producer; for a transactional one the next epoch, which fences the last."""

from __future__ import annotations

from datetime import timedelta

from kio.schema.errors import ErrorCode

from distlog.gateway.apis.transaction_attempts import fenced_code, tried
from distlog.gateway.broker import Api, Broker
from distlog.gateway.broker_parts import transactions_of
from distlog.gateway.groups.registry import MAX_TEXT_BYTES
from distlog.gateway.protocol.response_frame import Fields
from distlog.gateway.server.request import Request
from distlog.gateway.transactions.services import new_producer_id
from distlog.gateway.transactions.transaction_state import ProducerId

_NONE = ProducerId(-1, -1)
_FENCED_SINCE, _MS = 4, timedelta(milliseconds=1)


def handle(request: Request, broker: Broker) -> Fields:
    """A producer without a transactional id gets a new id, one with it the next epoch."""
    body, found = request.body, [_NONE]
    if body.transactional_id is None:
        return _told(ErrorCode.none, ProducerId(new_producer_id(), 0))
    code = _refused(body.transactional_id, request, broker)
    if code is ErrorCode.none:
        expected = ProducerId(request.get("producer_id", -1), request.get("producer_epoch", -1))
        code = tried(
            lambda: found.append(
                transactions_of(broker).coordinator.begin_producer(
                    body.transactional_id, _timeout_ms(request), None if expected == _NONE else expected
                )
            ),
            fenced=fenced_code(request.api_version, _FENCED_SINCE),
        )
    return _told(code, found[-1])


def _refused(transactional_id: str, request: Request, broker: Broker) -> ErrorCode:
    if not 0 < len(transactional_id.encode("utf-8", "surrogatepass")) <= MAX_TEXT_BYTES:
        return ErrorCode.invalid_request
    if not 0 < _timeout_ms(request) <= broker.config.transaction_max_timeout_ms:
        return ErrorCode.invalid_transaction_timeout
    return ErrorCode.none


def _timeout_ms(request: Request) -> int:
    return int(request.body.transaction_timeout / _MS)


def _told(code: ErrorCode, producer: ProducerId) -> Fields:
    return {
        "throttle_time": 0,
        "error_code": code,
        "producer_id": producer.id,
        "producer_epoch": producer.epoch,
    }


API = Api(22, "InitProducerId", 0, 4, handle)
