"""OffsetCommit: keep how far a group has come; the response waits until that is durable."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from kio.schema.errors import ErrorCode

from distlog.core.errors import DistlogError, StorageError
from distlog.gateway.broker import Api, Broker
from distlog.gateway.groups.of_broker import groups_of
from distlog.gateway.groups.offsets_format import Position
from distlog.gateway.groups.positions import TopicPartition
from distlog.gateway.protocol.error_codes import error_code
from distlog.gateway.protocol.response_frame import Fields
from distlog.gateway.server.request import Request

_NO_EPOCH = -1


def handle(request: Request, broker: Broker) -> None:
    """Keep the positions in partitions that there are; the others are told that there are none."""
    body = request.body
    told = {place: _code(broker, place) for place in _positions(request, 0)}
    positions = {
        place: position
        for place, position in _positions(request, broker.clock()).items()
        if told[place] is ErrorCode.none
    }
    groups_of(broker).offsets.commit(
        body.group_id,
        positions,
        partial(_respond, request, told),
        member_id=body.member_id,
        instance_id=request.get("group_instance_id"),
        generation=request.get("generation_id_or_member_epoch", -1),
    )


def _positions(request: Request, now_ms: int) -> dict[TopicPartition, Position]:
    return {
        (topic.name, each.partition_index): Position(
            each.committed_offset,
            getattr(each, "committed_leader_epoch", _NO_EPOCH),
            each.committed_metadata or "",
            now_ms,
        )
        for topic in request.body.topics
        for each in topic.partitions
    }


def _code(broker: Broker, place: TopicPartition) -> ErrorCode:
    try:
        broker.metadata.topic(place[0]).partition(place[1])
    except StorageError:
        # no coordinator of Kafka's tells a storage's own code: this is the one to try again
        return ErrorCode.coordinator_not_available
    except DistlogError as error:
        return error_code(error)
    return ErrorCode.none


def _respond(request: Request, told: dict[TopicPartition, ErrorCode], code: ErrorCode) -> None:
    """`code` is that of all partitions which were not refused before."""
    request.respond({"throttle_time": 0, "topics": list(_topics(request, told, code))})


def _topics(request: Request, told: dict[TopicPartition, ErrorCode], code: ErrorCode) -> Iterator[Fields]:
    for topic in request.body.topics:
        partitions = []
        for each in topic.partitions:
            refused = told[topic.name, each.partition_index]
            error = code if refused is ErrorCode.none else refused
            partitions.append({"partition_index": each.partition_index, "error_code": error})
        yield {"name": topic.name, "partitions": partitions}


API = Api(8, "OffsetCommit", 2, 9, handle)
