"""DescribeGroups: members of groups, and what they were assigned."""

from __future__ import annotations

from dataclasses import replace

from kio.schema.errors import ErrorCode

from distlog.core.errors import DistlogError
from distlog.gateway.broker import Api, Broker
from distlog.gateway.broker_parts import follow_groups_of, groups_of
from distlog.gateway.groups.group_admin import GroupDescription
from distlog.gateway.groups.members.classic_group import GroupPhase
from distlog.gateway.protocol.response_frame import Fields
from distlog.gateway.server.request import Request

#: Kafka's value for "not asked for": there are no authorizations here.
_NO_OPERATIONS = -(2**31)


def handle(request: Request, broker: Broker) -> Fields:
    """The groups that were asked for; one that is not there is dead, as Kafka says it."""
    admin = groups_of(broker).admin
    described = [admin.describe(group) for group in request.body.groups]
    return {"throttle_time": 0, "groups": [_told(_with_followers(broker, each)) for each in described]}


def _with_followers(broker: Broker, group: GroupDescription) -> GroupDescription:
    """A group that only followers know has no members of ours."""
    if group.phase is not GroupPhase.DEAD or group.error is not ErrorCode.none:
        return group
    try:
        is_known = any(state.exists for state in follow_groups_of(broker).states(group.group, None).values())
    except DistlogError:
        return replace(group, error=ErrorCode.coordinator_not_available)
    return replace(group, phase=GroupPhase.EMPTY, protocol_type="consumer") if is_known else group


def _told(group: GroupDescription) -> Fields:
    return {
        "error_code": group.error,
        "group_id": group.group,
        "group_state": group.phase.value,
        "protocol_type": group.protocol_type,
        "protocol_data": group.protocol,
        "authorized_operations": _NO_OPERATIONS,
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


API = Api(15, "DescribeGroups", 0, 5, handle)
