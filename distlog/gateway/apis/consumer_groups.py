"""The APIs of groups of the newer protocol (KIP-848): ConsumerGroupHeartbeat, ConsumerGroupDescribe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any
from uuid import UUID

from distlog.gateway.broker import Api, Broker
from distlog.gateway.groups.assignors import TopicIdPartition
from distlog.gateway.groups.classic_group import GroupRefusedError
from distlog.gateway.groups.consumer_group import ConsumerHeartbeat, HeartbeatReply
from distlog.gateway.groups.consumer_records import by_topic
from distlog.gateway.groups.subscribed_topics import matches
from distlog.gateway.protocol.frames import AccessDeniedError, Fields, error_code
from distlog.gateway.protocol.messages import ErrorCode
from distlog.gateway.security.acls import Operation, ResourceType
from distlog.gateway.security.rights import NO_OPERATIONS
from distlog.gateway.server.request import Request
from distlog.gateway.topics.topic_index import TopicSummary


def consumer_group_heartbeat(request: Request, broker: Broker) -> None:
    """Respond when what the heartbeat changes is durable."""
    body = request.body
    names, owned = body.subscribed_topic_names, body.topic_partitions
    heartbeat = ConsumerHeartbeat(
        member_id=body.member_id,
        epoch=body.member_epoch,
        instance_id=body.instance_id,
        rack_id=body.rack_id,
        client_id=request.client_id,
        client_host=f"/{request.session.address[0]}",
        rebalance_timeout_ms=body.rebalance_timeout,
        topics=None if names is None else tuple(names),
        pattern=request.get("subscribed_topic_regex"),
        assignor=body.server_assignor,
        owned=None if owned is None else frozenset((topic.topic_id, n) for topic in owned for n in topic.partitions),
    )
    interval_ms = broker.groups.configs.of(body.group_id).consumer_heartbeat_interval_ms

    def respond(reply: HeartbeatReply) -> None:
        assigned = None if reply.assigned is None else {"topic_partitions": _topics(reply.assigned)}
        request.respond(
            {
                "throttle_time": 0,
                "error_code": reply.error,
                "error_message": reply.message,
                "member_id": reply.member_id,
                "member_epoch": reply.epoch,
                "heartbeat_interval": interval_ms,
                "assignment": assigned,
            }
        )

    try:
        _check_rights(request, broker)
    except AccessDeniedError as error:
        respond(HeartbeatReply(error=error_code(error), message=error.message))
        return
    broker.groups.consumers.heartbeat(body.group_id, heartbeat, request.api_version, respond)


def _check_rights(request: Request, broker: Broker) -> None:
    rights, body, pattern = request.rights, request.body, request.get("subscribed_topic_regex")
    rights.check(Operation.READ, ResourceType.GROUP, body.group_id)
    if rights.lists is None:
        return
    names = set(body.subscribed_topic_names or ())
    if pattern:
        # the coordinator refuses a wrong pattern
        with suppress(ValueError):
            names |= matches(pattern, broker.metadata.clients_topics())
    for name in names:
        rights.check(Operation.DESCRIBE, ResourceType.TOPIC, name)


def _topics(partitions: Iterable[TopicIdPartition]) -> list[Fields]:
    return [{"topic_id": topic, "partitions": numbers} for topic, numbers in by_topic(partitions).items()]


CONSUMER_GROUP_HEARTBEAT = Api(
    68, "ConsumerGroupHeartbeat", 0, 1, consumer_group_heartbeat, "READ of the group, DESCRIBE of the topics"
)


#: A member that speaks the newer protocol.
_CONSUMER = 1


def consumer_group_describe(request: Request, broker: Broker) -> Fields:
    """The requested groups, each once."""
    names: dict[UUID, str] = {}
    groups = [_described(request, broker, name, names) for name in dict.fromkeys(request.body.group_ids)]
    return {"throttle_time": 0, "groups": groups}


def _described(request: Request, broker: Broker, group: str, names: dict[UUID, str]) -> Fields:
    fields: dict[str, Any] = {
        "error_code": ErrorCode.none,
        "error_message": None,
        "group_id": group,
        "group_state": "",
        "group_epoch": 0,
        "assignment_epoch": 0,
        "assignor_name": "",
        "members": [],
        "authorized_operations": NO_OPERATIONS,
    }
    rights = request.rights
    try:
        rights.check(Operation.DESCRIBE, ResourceType.GROUP, group)
        group_state = broker.groups.consumers.describe(group)
    except AccessDeniedError as error:
        return {**fields, "error_code": error_code(error), "error_message": error.message}
    except GroupRefusedError as refused:
        return {**fields, "error_code": refused.code, "group_state": "Dead"}
    if any(current.assigned or target for _, _, current, target in group_state.members) and not names:
        summaries = broker.metadata.summaries_or_errors().values()
        names.update(
            {UUID(summary.topic_id): summary.name for summary in summaries if isinstance(summary, TopicSummary)}
        )
    members: list[Fields] = [
        {
            "member_id": id,
            "instance_id": metadata.instance_id,
            "rack_id": metadata.rack_id,
            "member_epoch": current.epoch,
            "client_id": metadata.client_id,
            "client_host": metadata.client_host,
            "subscribed_topic_names": metadata.topics,
            "subscribed_topic_regex": metadata.pattern,
            "assignment": {"topic_partitions": _named(current.assigned, names)},
            "target_assignment": {"topic_partitions": _named(target, names)},
            "member_type": _CONSUMER,
        }
        for id, metadata, current, target in group_state.members
    ]
    assignments = (member[key] for member in members for key in ("assignment", "target_assignment"))
    topics = {topic["topic_name"] for assignment in assignments for topic in assignment["topic_partitions"]}
    topics.update(name for member in members for name in member["subscribed_topic_names"])
    if not all(map(rights.describes, topics)):
        denial = AccessDeniedError("Topic authorization failed.")
        return {**fields, "error_code": error_code(denial), "error_message": denial.message}
    return {
        **fields,
        "group_state": group_state.phase.value,
        "group_epoch": group_state.epoch,
        "assignment_epoch": group_state.target_epoch,
        "assignor_name": group_state.assignor,
        "members": members,
    }


def _named(partitions: Iterable[TopicIdPartition], names: Mapping[UUID, str]) -> list[Fields]:
    # a topic that was dropped a moment ago has no name any more
    return [
        {**topic, "topic_name": names[topic["topic_id"]]}
        for topic in _topics(partitions)
        if topic["topic_id"] in names
    ]


APIS = (
    CONSUMER_GROUP_HEARTBEAT,
    Api(69, "ConsumerGroupDescribe", 0, 1, consumer_group_describe, "DESCRIBE of the group and of its topics"),
)
