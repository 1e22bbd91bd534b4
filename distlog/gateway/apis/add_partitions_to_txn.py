"""AddPartitionsToTxn: the partitions that a producer is about to write to in its transaction; all of them or none."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from distlog.core.errors import DistlogError
from distlog.gateway.apis.transaction_attempts import fenced_code, tried
from distlog.gateway.broker import Api, Broker
from distlog.gateway.broker_parts import transactions_of
from distlog.gateway.groups.offsets.positions import TopicPartition
from distlog.gateway.protocol.error_codes import error_code
from distlog.gateway.protocol.response_frame import Fields
from distlog.gateway.server.request import Request
from distlog.gateway.transactions.transaction_state import ProducerId

_FENCED_SINCE = 2


def handle(request: Request, broker: Broker) -> Fields:
    """Have them in the transaction; if one of them is not there, the others are not attempted."""
    body = request.body
    asked = [(topic.name, number) for topic in body.v3_and_below_topics for number in topic.partitions]
    told = {place: _code(broker, *place) for place in asked}
    if any(code is not ErrorCode.none for code in told.values()):
        rest = ErrorCode.operation_not_attempted
    else:
        producer = ProducerId(body.v3_and_below_producer_id, body.v3_and_below_producer_epoch)
        rest = tried(
            lambda: transactions_of(broker).coordinator.add_partitions(
                body.v3_and_below_transactional_id, producer, told.keys()
            ),
            fenced=fenced_code(request.api_version, _FENCED_SINCE),
        )
    codes = {place: rest if code is ErrorCode.none else code for place, code in told.items()}
    return {"throttle_time": 0, "results_by_topic_v3_and_below": _by_topic(codes)}


def _code(broker: Broker, topic: str, number: int) -> ErrorCode:
    try:
        broker.metadata.clients_topic(topic).partition(number)
    except DistlogError as error:
        return error_code(error)
    return ErrorCode.none


def _by_topic(codes: dict[TopicPartition, ErrorCode]) -> list[Fields]:
    topics: dict[str, list[Fields]] = {}
    for (topic, number), code in codes.items():
        told = {"partition_index": number, "partition_error_code": code}
        topics.setdefault(topic, []).append(told)
    return [{"name": name, "results_by_partition": partitions} for name, partitions in topics.items()]


API = Api(24, "AddPartitionsToTxn", 0, 3, handle)
