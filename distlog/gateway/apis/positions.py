"""The APIs of committed positions: OffsetCommit, OffsetFetch, OffsetDelete."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from operator import attrgetter
from typing import Any

from distlog.core.errors import DistlogError, StorageError
from distlog.core.read.consumer_offsets import Position
from distlog.gateway.apis.cluster import by_topic, grouped
from distlog.gateway.broker import Api, Broker
from distlog.gateway.groups.classic_group import GroupRefusedError
from distlog.gateway.groups.offsets_format import TopicPartition
from distlog.gateway.protocol.frames import FAILURES, Fields, error_code
from distlog.gateway.protocol.messages import ErrorCode
from distlog.gateway.security.acls import Operation, ResourceType
from distlog.gateway.server.request import Request
from distlog.gateway.topics.metadata_cache import HostedTopic

_NO_EPOCH = -1


class RequestedPositions:
    """The positions that a client commits: in partitions that exist; the others get their own error codes.

    All get the code `refused`, if there is one.
    """

    def __init__(self, request: Request, broker: Broker, refused: ErrorCode) -> None:
        now_ms = broker.clock()
        positions = {
            (topic.name, requested.partition_index): Position(
                requested.committed_offset,
                getattr(requested, "committed_leader_epoch", _NO_EPOCH),
                requested.committed_metadata or "",
                commit_ms,
            )
            for topic in request.body.topics
            # with a slow clock, the time would belong to the former topic of this name
            for commit_ms in [max(now_ms, _replaced_ms(broker, topic.name))]
            for requested in topic.partitions
        }
        find = broker.metadata.topic
        self._codes = {
            partition: refused or partition_code(request, find, Operation.READ, *partition) for partition in positions
        }
        self.positions = {
            partition: position
            for partition, position in positions.items()
            if self._codes[partition] is ErrorCode.none
        }

    def topics(self, code: ErrorCode) -> list[Fields]:
        """The fields of the response; `code` applies to all partitions that were not refused before."""
        return by_topic(
            (name, {"partition_index": number, "error_code": own_code or code})
            for (name, number), own_code in self._codes.items()
        )


def _replaced_ms(broker: Broker, topic: str) -> int:
    """The time at which the topic took the place of a dropped one; 0 if it did not, or cannot be found."""
    with suppress(DistlogError):
        return broker.metadata.topic(topic).snapshot.replaced_ms
    return 0


def partition_code(
    request: Request, find: Callable[[str], HostedTopic], operation: Operation, topic: str, number: int
) -> ErrorCode:
    """The code of a coordinator for a partition of a topic that `find` gives, if the client may do this with it."""
    try:
        request.rights.check(operation, ResourceType.TOPIC, topic)
        find(topic).partition(number)
    except StorageError as error:
        # Kafka's coordinators answer with no storage code: with this one clients retry
        FAILURES.note("reading a topic", error)
        return ErrorCode.coordinator_not_available
    except DistlogError as error:
        return error_code(error)
    return ErrorCode.none


def offset_commit(request: Request, broker: Broker) -> None:
    """Keep the positions."""
    body = request.body
    refused = request.rights.denied(Operation.READ, ResourceType.GROUP, body.group_id)
    requested = RequestedPositions(request, broker, refused)
    if not requested.positions:
        request.respond({"throttle_time": 0, "topics": requested.topics(ErrorCode.none)})
        return
    broker.groups.offsets.commit(
        body.group_id,
        requested.positions,
        lambda code: request.respond({"throttle_time": 0, "topics": requested.topics(code)}),
        member_id=body.member_id,
        instance_id=request.get("group_instance_id"),
        generation=request.get("generation_id_or_member_epoch", -1),
    )


#: A position; the code of its error; or None if there is none.
PositionOrCode = Position | ErrorCode | None

#: The answer for a group without a position: its client begins at `auto.offset.reset`.
_NONE = Position(-1)


def offset_fetch(request: Request, broker: Broker) -> Fields:
    """The positions of one group, or of several from version 8 on."""
    groups, stable = request.get("groups"), request.get("require_stable", False)
    if groups is None:
        return {"throttle_time": 0, **_group(request, broker, request.body.group_id, [request.body.topics], stable)}
    # each once: a group may have many positions
    answers = [
        {"group_id": name, **_group(request, broker, name, [group.topics for group in several], stable, several[-1])}
        for name, several in grouped(groups, attrgetter("group_id")).items()
    ]
    return {"throttle_time": 0, "groups": answers}


def _group(
    request: Request, broker: Broker, group: str, lists: Sequence[Any], stable: bool, asker: Any = None
) -> Fields:
    rights = request.rights
    # without a list of topics, all positions of the group are wanted
    requested = (
        None if None in lists else dict.fromkeys(partition for topics in lists for partition in _partitions(topics))
    )
    topics = dict.fromkeys(topic for topic, _ in requested or ())
    # from version 9 on
    member_id, epoch = getattr(asker, "member_id", None), getattr(asker, "member_epoch", -1)
    try:
        if code := rights.denied(Operation.DESCRIBE, ResourceType.GROUP, group):
            raise GroupRefusedError(code)
        codes = {topic: rights.denied(Operation.DESCRIBE, ResourceType.TOPIC, topic) for topic in topics}
        allowed = None if requested is None else [partition for partition in requested if not codes[partition[0]]]
        positions: Mapping[TopicPartition, PositionOrCode] = broker.groups.offsets.fetch(
            group, allowed, stable=stable, member_id=member_id, epoch=epoch
        )
    except GroupRefusedError as refused:
        # version 1 has the code only per partition; without it, a client would start again
        return {"error_code": refused.code, "topics": _topics(dict.fromkeys(requested or (), refused.code))}
    if requested is None:
        positions = {
            partition: position for partition, position in positions.items() if rights.describes(partition[0])
        }
    else:
        denied = {partition: codes[partition[0]] for partition in requested if codes[partition[0]]}
        positions = {
            partition: _of_this_topic(broker, partition[0], position) for partition, position in positions.items()
        } | denied
    return {"error_code": ErrorCode.none, "topics": _topics(positions)}


def _of_this_topic(broker: Broker, topic: str, position: PositionOrCode) -> PositionOrCode:
    """The position; None if it is one in a dropped topic, that is forgotten at the next look."""
    is_old = isinstance(position, Position) and position.commit_ms < _replaced_ms(broker, topic)
    return None if is_old else position


def _partitions(topics: Any) -> list[TopicPartition]:
    return [(topic.name, number) for topic in topics for number in topic.partition_indexes]


def _topics(positions: Mapping[TopicPartition, PositionOrCode]) -> list[Fields]:
    return by_topic((topic, _position_fields(number, position)) for (topic, number), position in positions.items())


def _position_fields(number: int, position_or_code: PositionOrCode) -> Fields:
    position = position_or_code if isinstance(position_or_code, Position) else _NONE
    return {
        "partition_index": number,
        "committed_offset": position.offset,
        "committed_leader_epoch": position.leader_epoch,
        "metadata": position.metadata,
        "error_code": position_or_code if isinstance(position_or_code, ErrorCode) else ErrorCode.none,
    }


OFFSET_FETCH = Api(9, "OffsetFetch", 1, 9, offset_fetch, "DESCRIBE of the group and of the topic")


def offset_delete(request: Request, broker: Broker) -> None:
    """Respond when the deletion of the positions is durable."""
    partitions = dict.fromkeys(
        (topic.name, partition.partition_index) for topic in request.body.topics for partition in topic.partitions
    )
    rights, group = request.rights, request.body.group_id
    topics = dict.fromkeys(topic for topic, _ in partitions)
    try:
        if code := rights.denied(Operation.DELETE, ResourceType.GROUP, group):
            raise GroupRefusedError(code)
        codes = {topic: rights.denied(Operation.READ, ResourceType.TOPIC, topic) for topic in topics}
        results: dict[TopicPartition, ErrorCode] = {
            partition: codes[partition[0]] for partition in partitions if codes[partition[0]]
        }
        allowed = [partition for partition in partitions if not codes[partition[0]]]
        if results and not allowed:
            _respond(request, results, ErrorCode.none)
        else:
            broker.groups.offsets.delete(group, allowed, results, partial(_respond, request, results))
    except GroupRefusedError as refused:
        _respond(request, {}, refused.code)


def _respond(request: Request, results: Mapping[TopicPartition, ErrorCode], code: ErrorCode) -> None:
    topics = by_topic(
        (topic, {"partition_index": number, "error_code": result}) for (topic, number), result in results.items()
    )
    request.respond({"throttle_time": 0, "error_code": code, "topics": topics})


APIS = (
    Api(8, "OffsetCommit", 2, 9, offset_commit, "READ of the group and of the topic"),
    OFFSET_FETCH,
    Api(47, "OffsetDelete", 0, 0, offset_delete, "DELETE of the group, READ of the topic"),
)
