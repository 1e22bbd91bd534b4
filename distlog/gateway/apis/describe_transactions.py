"""DescribeTransactions: how far the transactions of some ids are (KIP-664)."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from distlog.gateway.apis.transaction_attempts import tried
from distlog.gateway.broker import Api, Broker
from distlog.gateway.broker_parts import transactions_of
from distlog.gateway.protocol.response_frame import Fields
from distlog.gateway.server.request import Request
from distlog.gateway.transactions.transaction_state import TransactionState

_UNKNOWN: Fields = {"transaction_start_time": -1}


def handle(request: Request, broker: Broker) -> Fields:
    """The transactions that were asked for; an id that is not known is told so."""
    ids = list(dict.fromkeys(request.body.transactional_ids))
    known = dict[str, TransactionState]()

    def look() -> None:
        known.update({each.transactional_id: each for each in transactions_of(broker).coordinator.states(ids)})

    code = tried(look, fenced=ErrorCode.producer_fenced)
    missing = ErrorCode.transactional_id_not_found if code is ErrorCode.none else code
    states = [
        _told(known[each]) if each in known else {**_UNKNOWN, "transactional_id": each, "error_code": missing}
        for each in ids
    ]
    return {"throttle_time": 0, "transaction_states": states}


def _told(state: TransactionState) -> Fields:
    topics: dict[str, list[int]] = {}
    for topic, number in sorted(state.partitions):
        topics.setdefault(topic, []).append(number)
    return {
        "error_code": ErrorCode.none,
        "transactional_id": state.transactional_id,
        "transaction_state": state.status.kafka_name,
        "transaction_timeout": state.timeout_ms,
        "transaction_start_time": state.started_ms,
        "producer_id": state.producer.id,
        "producer_epoch": state.producer.epoch,
        "topics": [{"topic": name, "partitions": tuple(numbers)} for name, numbers in topics.items()],
    }


API = Api(65, "DescribeTransactions", 0, 0, handle)
