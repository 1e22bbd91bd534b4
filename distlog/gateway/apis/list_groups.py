"""ListGroups: all groups that this gateway coordinates, or those in some states."""

from __future__ import annotations

import logging

from kio.schema.errors import ErrorCode

from distlog.core.errors import DistlogError
from distlog.gateway.broker import Api, Broker
from distlog.gateway.broker_parts import follow_groups_of, groups_of
from distlog.gateway.groups.members.classic_group import GroupPhase
from distlog.gateway.protocol.response_frame import Fields
from distlog.gateway.server.request import Request

_log = logging.getLogger("distlog.gateway")


def handle(request: Request, broker: Broker) -> Fields:
    """The groups by name, with those of followers; states are compared without regard to case, as Kafka does."""
    services = groups_of(broker)
    code = ErrorCode.coordinator_load_in_progress if services.coordination.is_loading else ErrorCode.none
    states = {state.lower() for state in request.get("states_filter", ())}
    known = list(services.admin.list())
    names, others = {each.group for each in known}, list[str]()
    try:
        followed = follow_groups_of(broker).names()
        others = [name for name in followed if name not in names and services.coordinates(name)]
    except DistlogError as error:
        _log.error("the groups of followers are not known: %s", error)
        code = ErrorCode.coordinator_not_available
    found = [(each.group, each.protocol_type, each.phase) for each in known]
    found += [(name, "consumer", GroupPhase.EMPTY) for name in others]
    groups = [
        {"group_id": group, "protocol_type": kind, "group_state": phase.value}
        for group, kind, phase in sorted(found, key=lambda each: each[0])
        if not states or phase.value.lower() in states
    ]
    return {"throttle_time": 0, "error_code": code, "groups": groups}


API = Api(16, "ListGroups", 0, 4, handle)
