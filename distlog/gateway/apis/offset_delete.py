"""OffsetDelete: forget positions in topics that a group does not read any more."""

from __future__ import annotations

from functools import partial

from kio.schema.errors import ErrorCode

from distlog.gateway.broker import Api, Broker
from distlog.gateway.broker_parts import groups_of
from distlog.gateway.groups.members.exchanges import GroupRefusedError
from distlog.gateway.groups.offsets.positions import TopicPartition
from distlog.gateway.protocol.response_frame import Fields
from distlog.gateway.server.request import Request


def handle(request: Request, broker: Broker) -> None:
    """Respond when the positions are gone for good."""
    places = [(topic.name, each.partition_index) for topic in request.body.topics for each in topic.partitions]
    told: dict[TopicPartition, ErrorCode] = {}
    try:
        groups_of(broker).offsets.delete(request.body.group_id, places, told, partial(_respond, request, told))
    except GroupRefusedError as refused:
        request.respond({"throttle_time": 0, "error_code": refused.code, "topics": []})


def _respond(request: Request, told: dict[TopicPartition, ErrorCode], code: ErrorCode) -> None:
    topics: dict[str, list[Fields]] = {}
    for (topic, partition), refused in told.items():
        topics.setdefault(topic, []).append({"partition_index": partition, "error_code": refused})
    fields = [{"name": name, "partitions": partitions} for name, partitions in topics.items()]
    request.respond({"throttle_time": 0, "error_code": code, "topics": fields})


API = Api(47, "OffsetDelete", 0, 0, handle)
