"""FindCoordinator: this gateway coordinates every group, and every transactional producer."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from distlog.gateway.broker import Api, Broker
from distlog.gateway.protocol.response_frame import Fields
from distlog.gateway.server.request import Request


def handle(request: Request, broker: Broker) -> Fields:
    """Where the gateway is; a list for each key from version 4 on."""
    host, port = broker.address(request)
    node = {"node_id": broker.config.node_id, "host": host, "port": port, "error_code": ErrorCode.none}
    keys = request.get("coordinator_keys", ())
    return {"throttle_time": 0, "error_message": None, **node, "coordinators": [{**node, "key": key} for key in keys]}


API = Api(10, "FindCoordinator", 0, 4, handle)
