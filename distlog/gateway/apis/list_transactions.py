"""ListTransactions: the transactional ids, and how far their transactions are (KIP-664, KIP-994)."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from distlog.gateway.apis.transaction_attempts import tried
from distlog.gateway.broker import Api, Broker
from distlog.gateway.broker_parts import transactions_of
from distlog.gateway.protocol.response_frame import Fields
from distlog.gateway.server.request import Request
from distlog.gateway.transactions.transaction_state import Status, TransactionState

_ANY = -1


def handle(request: Request, broker: Broker) -> Fields:
    """All, or those of some states, of some producer ids, and open for longer than a duration in ms."""
    found = list[TransactionState]()
    code = tried(lambda: found.extend(transactions_of(broker).coordinator.states()), fenced=ErrorCode.producer_fenced)
    body, names = request.body, {each.kafka_name for each in Status}
    begun_before_ms = broker.clock() - request.get("duration_filter", _ANY)
    is_by_duration = request.get("duration_filter", _ANY) != _ANY
    return {
        "throttle_time": 0,
        "error_code": code,
        "unknown_state_filters": tuple(each for each in body.state_filters if each not in names),
        "transaction_states": [
            {
                "transactional_id": each.transactional_id,
                "producer_id": each.producer.id,
                "transaction_state": each.status.kafka_name,
            }
            for each in found
            if (not body.state_filters or each.status.kafka_name in body.state_filters)
            and (not body.producer_id_filters or each.producer.id in body.producer_id_filters)
            and (not is_by_duration or 0 <= each.started_ms < begun_before_ms)
        ],
    }


API = Api(66, "ListTransactions", 0, 1, handle)
