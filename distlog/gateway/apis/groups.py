"""The APIs of consumer groups: their members by both protocols, committed offsets, and administration."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from operator import attrgetter
from typing import Any
from uuid import UUID

from distlog.core.errors import DistlogError, StorageError
from distlog.core.kafka.transactions import TopicPartition
from distlog.core.read.kafka_offsets import Position
from distlog.gateway.event_log import FAILURES
from distlog.gateway.groups.classic_group import GroupPhase, Join, JoinReply, SyncReply, SyncRequest
from distlog.gateway.groups.consumer_group import ConsumerHeartbeat, HeartbeatReply, matches
from distlog.gateway.groups.coordinator import GroupDescription
from distlog.gateway.groups.offsets_format import TopicIdPartition
from distlog.gateway.kafka_apis import Api, Broker, Handlers
from distlog.gateway.protocol.error_codes import AccessDeniedError, CoordinatorError, error_code, fields_or_error
from distlog.gateway.protocol.messages import ErrorCode, Fields
from distlog.gateway.security.acls import CLUSTER_NAME, Operation, ResourceType
from distlog.gateway.server.request import NO_OPERATIONS, Request, by_topic, grouped
from distlog.gateway.topics.metadata_cache import HostedTopic

#: The first version of FindCoordinator with a list of keys.
_FIRST_WITH_KEY_LIST = 4
#: The first versions of JoinGroup in which a client must send its id (KIP-394), and may skip assignments (KIP-814).
_FIRST_WITH_ID_REQUIRED, _FIRST_WITH_SKIPPED_ASSIGNMENT = 4, 9
#: The first version of JoinGroup in whose response the protocol may be null.
_FIRST_WITH_NULL = 7
#: Codes of a whole group. They must be in the response itself, since admin clients do not retry for codes of members.
_GROUP_CODES = (ErrorCode.invalid_group_id, ErrorCode.not_coordinator, ErrorCode.coordinator_load_in_progress)
#: The key type of transactional ids in FindCoordinator.
_TRANSACTION = 1
#: The type of members of the newer protocol in ConsumerGroupDescribe.
_CONSUMER = 1
#: The leader epoch of an offset that a client commits without one.
_NO_EPOCH = -1
_NO_NODE: Fields = {"node_id": -1, "host": "", "port": -1}
_NO_COORDINATOR = {**_NO_NODE, "error_code": ErrorCode.coordinator_not_available, "error_message": None}


def find_coordinator(request: Request, broker: Broker) -> Fields:
    if request.api_version < _FIRST_WITH_KEY_LIST:
        return fields_or_error(_coordinator, request, broker, request.body.key, **_NO_NODE)
    coordinators = [
        fields_or_error(_coordinator, request, broker, key, **_NO_NODE, key=key)
        for key in dict.fromkeys(request.body.coordinator_keys)
    ]
    return {"coordinators": coordinators}


def _coordinator(request: Request, broker: Broker, key: str) -> Fields:
    is_transaction = request.get("key_type", 0) == _TRANSACTION
    kind = ResourceType.TRANSACTIONAL_ID if is_transaction else ResourceType.GROUP
    request.rights.check(Operation.DESCRIBE, kind, key)
    service = broker.transactions if is_transaction else broker.groups
    node = broker.cluster.holder(service.partition_of(key))
    if node is None:
        return _NO_COORDINATOR
    host, port = broker.address(request, node)
    return {"node_id": node.id, "host": host, "port": port}


def _read_denial(request: Request) -> ErrorCode:
    return request.rights.check_code(Operation.READ, ResourceType.GROUP, request.body.group_id)


def join_group(request: Request, broker: Broker) -> None:
    body = request.body
    if denied := _read_denial(request):
        _respond_to_join(request, JoinReply(error=denied, member_id=""))
        return
    join = Join(
        member_id=body.member_id,
        instance_id=request.get("group_instance_id"),
        client_id=request.client_id,
        client_host=f"/{request.session.address[0]}",
        # in version 0, the session timeout is also the rebalance timeout
        rebalance_timeout_ms=request.get("rebalance_timeout", body.session_timeout),
        session_timeout_ms=body.session_timeout,
        protocol_type=body.protocol_type,
        protocols=tuple({protocol.name: protocol.metadata for protocol in body.protocols}.items()),
        must_know_id=request.api_version >= _FIRST_WITH_ID_REQUIRED,
        may_skip_assignment=request.api_version >= _FIRST_WITH_SKIPPED_ASSIGNMENT,
    )
    broker.groups.members.join(body.group_id, join, lambda reply: _respond_to_join(request, reply))


def _respond_to_join(request: Request, reply: JoinReply) -> None:
    request.respond(
        {
            "error_code": reply.error,
            "generation_id": reply.generation,
            "protocol_type": reply.protocol_type,
            "protocol_name": reply.protocol if request.api_version >= _FIRST_WITH_NULL else (reply.protocol or ""),
            "leader": reply.leader,
            "skip_assignment": reply.skip_assignment,
            "member_id": reply.member_id,
            "members": [
                {"member_id": member.id, "group_instance_id": member.instance_id, "metadata": member.subscription}
                for member in reply.members
            ],
        }
    )


def sync_group(request: Request, broker: Broker) -> None:
    body = request.body
    if denied := _read_denial(request):
        _respond_to_sync(request, SyncReply(error=denied))
        return
    sync = SyncRequest(
        member_id=body.member_id,
        instance_id=request.get("group_instance_id"),
        generation=body.generation_id,
        protocol_type=request.get("protocol_type"),
        protocol=request.get("protocol_name"),
        assignments={assignment.member_id: assignment.assignment for assignment in body.assignments},
    )
    broker.groups.members.sync(body.group_id, sync, lambda reply: _respond_to_sync(request, reply))


def _respond_to_sync(request: Request, reply: SyncReply) -> None:
    # `poll` of the Java client fails after this code: let the member join again instead
    is_loading = reply.error is ErrorCode.coordinator_load_in_progress
    request.respond(
        {
            "error_code": ErrorCode.rebalance_in_progress if is_loading else reply.error,
            "protocol_type": reply.protocol_type,
            "protocol_name": reply.protocol,
            "assignment": reply.assignment,
        }
    )


def heartbeat(request: Request, broker: Broker) -> Fields:
    body, instance_id = request.body, request.get("group_instance_id")
    members = broker.groups.members
    code = _read_denial(request) or members.heartbeat(body.group_id, body.member_id, instance_id, body.generation_id)
    if code is ErrorCode.coordinator_load_in_progress:
        # as in Kafka, members stay in a group that is being loaded
        code = ErrorCode.none
    return {"error_code": code}


def leave_group(request: Request, broker: Broker) -> Fields:
    """Remove one member, or several from version 3 on. Static members may be named by their instance ids."""
    members, group = broker.groups.members, request.body.group_id
    if denied := _read_denial(request):
        return {"error_code": denied}
    if request.get("members") is None:
        return {"error_code": members.leave(group, request.body.member_id)}
    results = [
        {
            "member_id": member.member_id,
            "group_instance_id": member.group_instance_id,
            "error_code": members.leave(group, member.member_id, member.group_instance_id),
        }
        for member in {(item.member_id, item.group_instance_id): item for item in request.body.members}.values()
    ]
    group_code = next((result["error_code"] for result in results if result["error_code"] in _GROUP_CODES), None)
    if group_code is not None:
        return {"error_code": group_code}
    return {"members": results}


class RequestedOffsets:
    """The offsets (`positions`) that a client commits. A refused partition has a code: `denial`, or its own."""

    def __init__(self, request: Request, broker: Broker, denial: ErrorCode) -> None:
        now_ms, find = broker.clock(), broker.metadata.topic
        self._codes = dict[TopicPartition, ErrorCode]()
        self.positions = dict[TopicPartition, Position]()
        for topic in request.body.topics:
            # OffsetFetch ignores an offset from before `_replaced_ms`, so a slow clock must not make this one so old
            commit_ms = max(now_ms, _replaced_ms(broker, topic.name))
            for requested in topic.partitions:
                partition = topic.name, requested.partition_index
                self._codes[partition] = denial or partition_code(request, find, Operation.READ, *partition)
                if self._codes[partition] is ErrorCode.none:
                    epoch = getattr(requested, "committed_leader_epoch", _NO_EPOCH)
                    metadata = requested.committed_metadata or ""
                    self.positions[partition] = Position(requested.committed_offset, epoch, metadata, commit_ms)

    def topics(self, code: ErrorCode) -> list[Fields]:
        """Return the fields of the response. `code` is for partitions that were not refused."""
        return by_topic(
            (name, {"partition_index": number, "error_code": own_code or code})
            for (name, number), own_code in self._codes.items()
        )


def _replaced_ms(broker: Broker, topic: str) -> int:
    """Return when the topic replaced a dropped topic of its name; 0 if it did not, or cannot be read."""
    with suppress(DistlogError):
        return broker.metadata.topic(topic).snapshot.replaced_ms
    return 0


def partition_code(
    request: Request, find: Callable[[str], HostedTopic], operation: Operation, topic: str, number: int
) -> ErrorCode:
    """Return the code of a partition that is denied, missing or unreadable, or `ErrorCode.none`."""
    try:
        request.rights.check(operation, ResourceType.TOPIC, topic)
        find(topic).partition(number)
    except StorageError as error:
        # clients retry after this code, and Kafka has no code for the failed storage of a coordinator
        FAILURES.note("reading a topic", error)
        return ErrorCode.coordinator_not_available
    except DistlogError as error:
        return error_code(error)
    return ErrorCode.none


def offset_commit(request: Request, broker: Broker) -> None:
    body = request.body
    requested = RequestedOffsets(request, broker, _read_denial(request))
    if not requested.positions:
        request.respond({"topics": requested.topics(ErrorCode.none)})
        return
    broker.groups.offsets.commit(
        body.group_id,
        requested.positions,
        lambda code: request.respond({"topics": requested.topics(code)}),
        member_id=body.member_id,
        instance_id=request.get("group_instance_id"),
        generation=request.get("generation_id_or_member_epoch", -1),
    )


#: A committed offset, or an error code, or None for a partition without a committed offset.
PositionOrCode = Position | ErrorCode | None
#: The answer for a partition without a committed offset: the client applies `auto.offset.reset`.
_NO_POSITION = Position(-1)


def offset_fetch(request: Request, broker: Broker) -> Fields:
    groups, stable = request.get("groups"), request.get("require_stable", False)
    if groups is None:
        return _group_offsets(request, broker, request.body.group_id, [request.body.topics], stable)
    # if a request names a group several times, all its topics are returned, for the member of the last item
    answers = [
        {
            "group_id": name,
            **_group_offsets(request, broker, name, [item.topics for item in items], stable, member_item=items[-1]),
        }
        for name, items in grouped(groups, attrgetter("group_id")).items()
    ]
    return {"groups": answers}


def _group_offsets(
    request: Request, broker: Broker, group: str, topic_lists: Sequence[Any], stable: bool, member_item: Any = None
) -> Fields:
    """Return offsets in listed topics, or in all if a list is None. From version 9, `member_item` names a member."""
    requested = None
    if None not in topic_lists:
        requested = dict.fromkeys(
            (topic.name, n) for topics in topic_lists for topic in topics for n in topic.partition_indexes
        )
    member_id, epoch = getattr(member_item, "member_id", None), getattr(member_item, "member_epoch", -1)
    denials = {
        topic: request.rights.check_code(Operation.DESCRIBE, ResourceType.TOPIC, topic)
        for topic in dict.fromkeys(topic for topic, _ in requested or ())
    }
    try:
        if code := request.rights.check_code(Operation.DESCRIBE, ResourceType.GROUP, group):
            raise CoordinatorError(code)
        allowed = None if requested is None else [partition for partition in requested if not denials[partition[0]]]
        committed = broker.groups.offsets.fetch(group, allowed, stable=stable, member_id=member_id, epoch=epoch)
    except CoordinatorError as refused:
        # in version 1, only partitions have codes: without a code, the client would reset its offsets
        return {"error_code": refused.code, "topics": _offset_topics(dict.fromkeys(requested or (), refused.code))}
    positions = dict[TopicPartition, PositionOrCode]()
    for partition, position in committed.items():
        if requested is not None:
            # an offset of a dropped topic of this name does not apply to the new topic
            is_old = isinstance(position, Position) and position.commit_ms < _replaced_ms(broker, partition[0])
            positions[partition] = None if is_old else position
        elif request.rights.may_describe(partition[0]):
            positions[partition] = position
    positions |= {partition: denials[partition[0]] for partition in requested or () if denials[partition[0]]}
    return {"error_code": ErrorCode.none, "topics": _offset_topics(positions)}


def _offset_topics(positions: Mapping[TopicPartition, PositionOrCode]) -> list[Fields]:
    return by_topic((topic, _position_fields(number, position)) for (topic, number), position in positions.items())


def _position_fields(number: int, position_or_code: PositionOrCode) -> Fields:
    position = position_or_code if isinstance(position_or_code, Position) else _NO_POSITION
    return {
        "partition_index": number,
        "committed_offset": position.offset,
        "committed_leader_epoch": position.leader_epoch,
        "metadata": position.metadata,
        "error_code": position_or_code if isinstance(position_or_code, ErrorCode) else ErrorCode.none,
    }


def offset_delete(request: Request, broker: Broker) -> None:
    rights, group, allowed = request.rights, request.body.group_id, list[TopicPartition]()
    results = dict[TopicPartition, ErrorCode]()

    def respond(code: ErrorCode) -> None:
        topics = by_topic(
            (topic, {"partition_index": number, "error_code": result}) for (topic, number), result in results.items()
        )
        request.respond({"error_code": code, "topics": topics})

    if code := rights.check_code(Operation.DELETE, ResourceType.GROUP, group):
        respond(code)
        return
    for topic in request.body.topics:
        partitions = [(topic.name, partition.partition_index) for partition in topic.partitions]
        if denied := rights.check_code(Operation.READ, ResourceType.TOPIC, topic.name):
            results.update(dict.fromkeys(partitions, denied))
        else:
            allowed += partitions
    if results and not allowed:  # all denied
        respond(ErrorCode.none)
        return
    try:
        broker.groups.offsets.delete(group, allowed, results, respond)  # adds the codes of `allowed` to `results`
    except CoordinatorError as refused:
        results.clear()
        respond(refused.code)


def consumer_group_heartbeat(request: Request, broker: Broker) -> None:
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
        assigned = None if reply.assigned is None else {"topic_partitions": by_topic(sorted(reply.assigned))}
        request.respond(
            {
                "error_code": reply.error,
                "error_message": reply.message,
                "member_id": reply.member_id,
                "member_epoch": reply.epoch,
                "heartbeat_interval": interval_ms,
                "assignment": assigned,
            }
        )

    try:
        _check_heartbeat_rights(request, broker)
    except AccessDeniedError as error:
        respond(HeartbeatReply(error=error.code, message=error.message))
        return
    broker.groups.consumers.heartbeat(body.group_id, heartbeat, request.api_version, respond)


def _check_heartbeat_rights(request: Request, broker: Broker) -> None:
    rights, body, pattern = request.rights, request.body, request.get("subscribed_topic_regex")
    rights.check(Operation.READ, ResourceType.GROUP, body.group_id)
    if rights.lists is None:  # the gateway has no ACLs
        return
    names = set(body.subscribed_topic_names or ())
    if pattern:
        with suppress(ValueError):  # the coordinator will refuse an invalid pattern
            names |= matches(pattern, broker.metadata.client_topic_names())
    for name in names:
        rights.check(Operation.DESCRIBE, ResourceType.TOPIC, name)


def consumer_group_describe(request: Request, broker: Broker) -> Fields:
    names: dict[UUID, str] = {}  # the names of topics by id; filled when the first group needs them
    groups = [
        fields_or_error(_describe_consumer_group, request, broker, name, names, group_id=name)
        for name in dict.fromkeys(request.body.group_ids)
    ]
    return {"groups": groups}


def _describe_consumer_group(request: Request, broker: Broker, group: str, names: dict[UUID, str]) -> Fields:
    rights = request.rights
    rights.check(Operation.DESCRIBE, ResourceType.GROUP, group)
    try:
        description = broker.groups.consumers.describe(group)
    except CoordinatorError as refused:
        return {"error_code": refused.code, "group_state": "Dead"}
    if any(current.assigned or target for _, _, current, target in description.members) and not names:
        names.update(broker.metadata.names_by_id())
    members: list[Fields] = [
        {
            "member_id": member_id,
            "instance_id": metadata.instance_id,
            "rack_id": metadata.rack_id,
            "member_epoch": current.epoch,
            "client_id": metadata.client_id,
            "client_host": metadata.client_host,
            "subscribed_topic_names": metadata.topics,
            "subscribed_topic_regex": metadata.pattern,
            "assignment": {"topic_partitions": _named_topics(current.assigned, names)},
            "target_assignment": {"topic_partitions": _named_topics(target, names)},
            "member_type": _CONSUMER,
        }
        for member_id, metadata, current, target in description.members
    ]
    assignments = (member[key] for member in members for key in ("assignment", "target_assignment"))
    topics = {topic["topic_name"] for assignment in assignments for topic in assignment["topic_partitions"]}
    topics.update(name for member in members for name in member["subscribed_topic_names"])
    if not all(map(rights.may_describe, topics)):
        raise AccessDeniedError("Topic authorization failed.", code=ErrorCode.topic_authorization_failed)
    return {
        "group_state": description.phase.value,
        "group_epoch": description.epoch,
        "assignment_epoch": description.target_epoch,
        "assignor_name": description.assignor,
        "members": members,
    }


def _named_topics(partitions: Iterable[TopicIdPartition], names: Mapping[UUID, str]) -> list[Fields]:
    # dropped topics are left out, since they have no names any more
    return [
        {**topic, "topic_name": names[topic["topic_id"]]}
        for topic in by_topic(sorted(partitions))
        if topic["topic_id"] in names
    ]


def list_groups(request: Request, broker: Broker) -> Fields:
    services, rights = broker.groups, request.rights
    is_all = rights.allows(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
    code = ErrorCode.coordinator_load_in_progress if services.coordination.is_loading else ErrorCode.none
    states = {state.lower() for state in request.get("states_filter", ())}
    types = {group_type.lower() for group_type in request.get("types_filter", ())}
    groups = [
        {
            "group_id": group.group,
            "protocol_type": group.protocol_type,
            "group_state": group.phase.value,
            "group_type": group.type,
        }
        for group in services.members.descriptions()
        if (not states or group.phase.value.lower() in states) and (not types or group.type in types)
        if is_all or rights.allows(Operation.DESCRIBE, ResourceType.GROUP, group.group)
    ]
    return {"error_code": code, "groups": groups}


def describe_groups(request: Request, broker: Broker) -> Fields:
    return {"groups": [_describe_group(request, broker, name) for name in dict.fromkeys(request.body.groups)]}


def _describe_group(request: Request, broker: Broker, name: str) -> Fields:
    is_requested = request.get("include_authorized_operations", False)
    operations = request.rights.operations(ResourceType.GROUP, name) if is_requested else NO_OPERATIONS
    if code := request.rights.check_code(Operation.DESCRIBE, ResourceType.GROUP, name):
        fields = _group_fields(GroupDescription(name, GroupPhase.DEAD, "", "", (), code))
        return {**fields, "group_state": "", "authorized_operations": operations}
    return {**_group_fields(broker.groups.members.describe(name)), "authorized_operations": operations}


def _group_fields(group: GroupDescription) -> Fields:
    return {
        "error_code": group.error,
        "group_id": group.group,
        "group_state": group.phase.value,
        "protocol_type": group.protocol_type,
        "protocol_data": group.protocol,
        "members": [
            {
                "member_id": member.id,
                "group_instance_id": member.instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "member_metadata": member.subscription,
                "member_assignment": member.assignment,
            }
            for member in group.members
        ],
    }


def delete_groups(request: Request, broker: Broker) -> None:
    names, results, lock = list(dict.fromkeys(request.body.groups_names)), list[Fields](), threading.Lock()

    def add(name: str, code: ErrorCode) -> None:
        with lock:
            results.append({"group_id": name, "error_code": code})
            is_last = len(results) == len(names)
        if is_last:
            request.respond({"results": results})

    if not names:
        request.respond({"results": ()})
    for name in names:
        if code := request.rights.check_code(Operation.DELETE, ResourceType.GROUP, name):
            add(name, code)
        else:
            broker.groups.members.delete(name, partial(add, name))


_api = partial(Api, handlers=Handlers.MEMBERS)  # in the threads for members of groups
APIS = (
    _api(10, "FindCoordinator", 0, 4, find_coordinator, "DESCRIBE of the group or the transactional id"),
    _api(11, "JoinGroup", 0, 9, join_group, "READ of the group"),
    _api(14, "SyncGroup", 0, 5, sync_group, "READ of the group"),
    _api(12, "Heartbeat", 0, 4, heartbeat, "READ of the group"),
    _api(13, "LeaveGroup", 0, 5, leave_group, "READ of the group"),
    Api(8, "OffsetCommit", 2, 9, offset_commit, "READ of the group and of the topic"),
    Api(9, "OffsetFetch", 1, 9, offset_fetch, "DESCRIBE of the group and of the topic", Handlers.TRANSACTIONS),
    Api(47, "OffsetDelete", 0, 0, offset_delete, "DELETE of the group, READ of the topic"),
    _api(68, "ConsumerGroupHeartbeat", 0, 1, consumer_group_heartbeat, "READ of the group, DESCRIBE of the topics"),
    Api(69, "ConsumerGroupDescribe", 0, 1, consumer_group_describe, "DESCRIBE of the group and of its topics"),
    Api(16, "ListGroups", 0, 5, list_groups, "DESCRIBE of the cluster, else only groups with DESCRIBE are listed"),
    Api(15, "DescribeGroups", 0, 5, describe_groups, "DESCRIBE of the group"),
    Api(42, "DeleteGroups", 0, 2, delete_groups, "DELETE of the group"),
)
