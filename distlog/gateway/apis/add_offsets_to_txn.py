"""AddOffsetsToTxn: positions of a group are about to be a part of a producer's transaction."""

from __future__ import annotations

from distlog.core.consumer_offsets.positions_format import OFFSETS_TOPIC
from distlog.gateway.apis.transaction_attempts import fenced_code, tried
from distlog.gateway.broker import Api, Broker
from distlog.gateway.broker_parts import groups_of, transactions_of
from distlog.gateway.protocol.response_frame import Fields
from distlog.gateway.server.request import Request
from distlog.gateway.transactions.transaction_state import ProducerId

_FENCED_SINCE = 2


def handle(request: Request, broker: Broker) -> Fields:
    """Have the partition with the group's positions in the transaction."""
    body = request.body

    def add() -> None:
        coordinator = transactions_of(broker).coordinator
        place = OFFSETS_TOPIC, groups_of(broker).partition_of(body.group_id)
        coordinator.add_partitions(body.transactional_id, ProducerId(body.producer_id, body.producer_epoch), [place])

    return {"throttle_time": 0, "error_code": tried(add, fenced=fenced_code(request.api_version, _FENCED_SINCE))}


API = Api(25, "AddOffsetsToTxn", 0, 3, handle)
