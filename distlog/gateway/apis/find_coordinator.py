"""FindCoordinator: the gateway whose lease holds the partition of a group, or of a transactional id."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from distlog.gateway.broker import Api, Broker
from distlog.gateway.broker_parts import groups_of
from distlog.gateway.protocol.response_frame import Fields
from distlog.gateway.server.request import Request

#: From here on there is a list of keys.
_LIST = 4
_NO_NODE = {"node_id": -1, "host": "", "port": -1}
_NOBODY = {**_NO_NODE, "error_code": ErrorCode.coordinator_not_available, "error_message": None}


def handle(request: Request, broker: Broker) -> Fields:
    """Where the coordinator is; a list for each key from version 4 on."""
    if request.api_version < _LIST:
        return {"throttle_time": 0, **_coordinator(request, broker, request.body.key)}
    found = [{**_coordinator(request, broker, key), "key": key} for key in request.body.coordinator_keys]
    return {"throttle_time": 0, "coordinators": found}


def _coordinator(request: Request, broker: Broker, key: str) -> Fields:
    # an id has the same partition in `__transaction_state` as a group of that name in `__consumer_offsets`
    node = broker.cluster.holder(groups_of(broker).partition_of(key))
    if node is None:
        return _NOBODY
    host, port = broker.address(request, node)
    return {"node_id": node.id, "host": host, "port": port, "error_code": ErrorCode.none, "error_message": None}


API = Api(10, "FindCoordinator", 0, 4, handle)
