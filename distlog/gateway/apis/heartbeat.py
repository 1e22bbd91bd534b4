"""Heartbeat: a member lives, and learns whether it should join again."""

from __future__ import annotations

from distlog.gateway.broker import Api, Broker
from distlog.gateway.broker_parts import groups_of
from distlog.gateway.protocol.response_frame import Fields
from distlog.gateway.server.request import Request


def handle(request: Request, broker: Broker) -> Fields:
    """Whether the member is one, and of which generation."""
    body, instance_id = request.body, request.get("group_instance_id")
    members = groups_of(broker).members
    code = members.heartbeat(body.group_id, body.member_id, instance_id, body.generation_id)
    return {"throttle_time": 0, "error_code": code}


API = Api(12, "Heartbeat", 0, 4, handle)
