"""SyncGroup: learn one's part of a generation; the response waits for the leader, which brings all parts."""

from __future__ import annotations

from distlog.gateway.broker import Api, Broker
from distlog.gateway.broker_parts import groups_of
from distlog.gateway.groups.members.exchanges import Sync, SyncReply
from distlog.gateway.server.request import Request


def handle(request: Request, broker: Broker) -> None:
    """Respond when the leader has assigned, and that is stored."""
    body = request.body
    sync = Sync(
        member_id=body.member_id,
        instance_id=request.get("group_instance_id"),
        generation=body.generation_id,
        protocol_type=request.get("protocol_type"),
        protocol=request.get("protocol_name"),
        assignments={each.member_id: each.assignment for each in body.assignments},
    )
    groups_of(broker).members.sync(body.group_id, sync, lambda reply: _respond(request, reply))


def _respond(request: Request, reply: SyncReply) -> None:
    request.respond(
        {
            "throttle_time": 0,
            "error_code": reply.error,
            "protocol_type": reply.protocol_type,
            "protocol_name": reply.protocol,
            "assignment": reply.assignment,
        }
    )


API = Api(14, "SyncGroup", 0, 5, handle)
