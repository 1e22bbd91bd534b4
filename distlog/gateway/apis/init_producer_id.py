"""InitProducerId: an id for an idempotent producer, which nobody else has."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from distlog.core.config import MAX_LONG
from distlog.core.topic_handle import new_id
from distlog.gateway.broker import Api, Broker
from distlog.gateway.protocol.response_frame import Fields
from distlog.gateway.server.request import Request

_NONE = -1


def handle(request: Request, broker: Broker) -> Fields:
    """A random id of 63 bits: no two gateways, and no writers of distlog, need to agree on who gets which."""
    if request.body.transactional_id is not None:
        return {
            "throttle_time": 0,
            "error_code": ErrorCode.transactional_id_authorization_failed,
            "producer_id": _NONE,
            "producer_epoch": _NONE,
        }
    producer_id = int(new_id()[:16], 16) & MAX_LONG
    return {"throttle_time": 0, "error_code": ErrorCode.none, "producer_id": producer_id, "producer_epoch": 0}


API = Api(22, "InitProducerId", 0, 4, handle)
