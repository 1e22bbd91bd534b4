"""ListGroups: all groups that this gateway coordinates, or those in some states."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from distlog.gateway.broker import Api, Broker
from distlog.gateway.groups.of_broker import groups_of
from distlog.gateway.protocol.response_frame import Fields
from distlog.gateway.server.request import Request


def handle(request: Request, broker: Broker) -> Fields:
    """The groups by name; states are compared without regard to case, as Kafka does."""
    services = groups_of(broker)
    code = ErrorCode.coordinator_load_in_progress if services.coordination.is_loading else ErrorCode.none
    states = {state.lower() for state in request.get("states_filter", ())}
    groups = [
        {"group_id": each.group, "protocol_type": each.protocol_type, "group_state": each.phase.value}
        for each in services.admin.list()
        if not states or each.phase.value.lower() in states
    ]
    return {"throttle_time": 0, "error_code": code, "groups": groups}


API = Api(16, "ListGroups", 0, 4, handle)
