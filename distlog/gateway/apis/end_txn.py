"""EndTxn: commit or abort a producer's transaction."""

from __future__ import annotations

from distlog.gateway.apis.transaction_attempts import fenced_code, tried
from distlog.gateway.broker import Api, Broker
from distlog.gateway.broker_parts import transactions_of
from distlog.gateway.protocol.response_frame import Fields
from distlog.gateway.server.request import Request
from distlog.gateway.transactions.transaction_state import ProducerId

_FENCED_SINCE = 2


def handle(request: Request, broker: Broker) -> Fields:
    """Respond when the decision is on the device; by then readers see it, unless a partition's storage fails."""
    body = request.body
    producer = ProducerId(body.producer_id, body.producer_epoch)
    code = tried(
        lambda: transactions_of(broker).coordinator.end(body.transactional_id, producer, is_committed=body.committed),
        fenced=fenced_code(request.api_version, _FENCED_SINCE),
    )
    return {"throttle_time": 0, "error_code": code}


API = Api(26, "EndTxn", 0, 3, handle)
