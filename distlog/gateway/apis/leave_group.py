"""LeaveGroup: members go, and the others share what they had."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from distlog.gateway.broker import Api, Broker
from distlog.gateway.broker_parts import groups_of
from distlog.gateway.protocol.response_frame import Fields
from distlog.gateway.server.request import Request


def handle(request: Request, broker: Broker) -> Fields:
    """Before version 3 one member goes, by its id; from then on several, static ones by their instances too."""
    members, group = groups_of(broker).members, request.body.group_id
    if request.get("members") is None:
        return {"throttle_time": 0, "error_code": members.leave(group, request.body.member_id)}
    told = [
        _told(each, members.leave(group, each.member_id, each.group_instance_id)) for each in request.body.members
    ]
    return {"throttle_time": 0, "error_code": ErrorCode.none, "members": told}


def _told(each: Any, code: ErrorCode) -> Fields:
    return {"member_id": each.member_id, "group_instance_id": each.group_instance_id, "error_code": code}


API = Api(13, "LeaveGroup", 0, 5, handle)
