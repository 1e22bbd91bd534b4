"""The APIs of members of groups."""

from __future__ import annotations

from distlog.gateway.apis.cluster import attempted
from distlog.gateway.broker import Api, Broker
from distlog.gateway.groups.classic_group import Join, JoinReply, SyncReply, SyncRequest
from distlog.gateway.protocol.frames import Fields
from distlog.gateway.protocol.messages import ErrorCode
from distlog.gateway.security.acls import Operation, ResourceType
from distlog.gateway.server.request import Request

#: From here on there is a list of keys.
_LIST = 4
#: The type of a key that is a transactional id.
_TRANSACTION = 1
_NO_NODE: Fields = {"node_id": -1, "host": "", "port": -1}
_NO_COORDINATOR = {**_NO_NODE, "error_code": ErrorCode.coordinator_not_available, "error_message": None}


def find_coordinator(request: Request, broker: Broker) -> Fields:
    """The coordinator of a key; from version 4 on of a list of keys."""
    if request.api_version < _LIST:
        return {"throttle_time": 0, **_coordinator(request, broker, request.body.key)}
    coordinators = [
        {**_coordinator(request, broker, key), "key": key} for key in dict.fromkeys(request.body.coordinator_keys)
    ]
    return {"throttle_time": 0, "coordinators": coordinators}


def _coordinator(request: Request, broker: Broker, key: str) -> Fields:
    def find() -> Fields:
        is_transaction = request.get("key_type", 0) == _TRANSACTION
        kind = ResourceType.TRANSACTIONAL_ID if is_transaction else ResourceType.GROUP
        request.rights.check(Operation.DESCRIBE, kind, key)
        service = broker.transactions if is_transaction else broker.groups
        node = broker.cluster.holder(service.partition_of(key))
        if node is None:
            return _NO_COORDINATOR
        host, port = broker.address(request, node)
        return {"node_id": node.id, "host": host, "port": port}

    return attempted(find, **_NO_NODE)


def _denied(request: Request) -> ErrorCode:
    """The code for a client that may not be a member of the group; none if it may."""
    return request.rights.denied(Operation.READ, ResourceType.GROUP, request.body.group_id)


#: From here on a client learns its id before it is a member (KIP-394), or that it need not assign (KIP-814).
_KNOWS_ITS_ID, _MAY_SKIP = 4, 9
_NULL_PROTOCOL = 7


def join_group(request: Request, broker: Broker) -> None:
    """Respond when the generation begins."""
    body = request.body
    if denied := _denied(request):
        _respond_to_join(request, JoinReply(error=denied, member_id=""))
        return
    join = Join(
        member_id=body.member_id,
        instance_id=request.get("group_instance_id"),
        client_id=request.client_id,
        client_host=f"/{request.session.address[0]}",
        # version 0 has one time for both
        rebalance_timeout_ms=request.get("rebalance_timeout", body.session_timeout),
        session_timeout_ms=body.session_timeout,
        protocol_type=body.protocol_type,
        protocols=tuple({protocol.name: protocol.metadata for protocol in body.protocols}.items()),
        must_know_id=request.api_version >= _KNOWS_ITS_ID,
        may_skip_assignment=request.api_version >= _MAY_SKIP,
    )
    broker.groups.members.join(body.group_id, join, lambda reply: _respond_to_join(request, reply))


def _respond_to_join(request: Request, reply: JoinReply) -> None:
    request.respond(
        {
            "throttle_time": 0,
            "error_code": reply.error,
            "generation_id": reply.generation,
            "protocol_type": reply.protocol_type,
            # null only from version 7 on
            "protocol_name": reply.protocol if request.api_version >= _NULL_PROTOCOL else reply.protocol or "",
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
    """Respond when the leader's assignments are stored."""
    body = request.body
    if denied := _denied(request):
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
    # at the code for a group that is loaded, or cannot be stored now, Java's `poll` fails: members join again instead
    is_later = reply.error is ErrorCode.coordinator_load_in_progress
    request.respond(
        {
            "throttle_time": 0,
            "error_code": ErrorCode.rebalance_in_progress if is_later else reply.error,
            "protocol_type": reply.protocol_type,
            "protocol_name": reply.protocol,
            "assignment": reply.assignment,
        }
    )


def heartbeat(request: Request, broker: Broker) -> Fields:
    """The code for a member of a generation: none if it is one."""
    body, instance_id = request.body, request.get("group_instance_id")
    members = broker.groups.members
    code = _denied(request) or members.heartbeat(body.group_id, body.member_id, instance_id, body.generation_id)
    if code is ErrorCode.coordinator_load_in_progress:
        # as in Kafka: members stay while their group is loaded
        code = ErrorCode.none
    return {"throttle_time": 0, "error_code": code}


#: The codes that are of a group, and not of a member: where the whole answer has one, admin clients ask again.
_OF_GROUP = (ErrorCode.invalid_group_id, ErrorCode.not_coordinator, ErrorCode.coordinator_load_in_progress)


def leave_group(request: Request, broker: Broker) -> Fields:
    """Remove members: one by its id before version 3, later several, static ones by their instances too."""
    members, group = broker.groups.members, request.body.group_id
    if denied := _denied(request):
        return {"throttle_time": 0, "error_code": denied, "members": ()}
    if request.get("members") is None:
        return {"throttle_time": 0, "error_code": members.leave(group, request.body.member_id)}
    results = [
        {
            "member_id": member.member_id,
            "group_instance_id": member.group_instance_id,
            "error_code": members.leave(group, member.member_id, member.group_instance_id),
        }
        for member in {
            (member.member_id, member.group_instance_id): member for member in request.body.members
        }.values()
    ]
    refused = next((result["error_code"] for result in results if result["error_code"] in _OF_GROUP), None)
    if refused is not None:
        return {"throttle_time": 0, "error_code": refused, "members": ()}
    return {"throttle_time": 0, "error_code": ErrorCode.none, "members": results}


APIS = (
    Api(10, "FindCoordinator", 0, 4, find_coordinator, "DESCRIBE of the group or the transactional id"),
    Api(11, "JoinGroup", 0, 9, join_group, "READ of the group"),
    Api(14, "SyncGroup", 0, 5, sync_group, "READ of the group"),
    Api(12, "Heartbeat", 0, 4, heartbeat, "READ of the group"),
    Api(13, "LeaveGroup", 0, 5, leave_group, "READ of the group"),
)
