"""FindCoordinator: this gateway coordinates every group and, on a local disk, every transactional producer."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from distlog.gateway.broker import Api, Broker
from distlog.gateway.protocol.response_frame import Fields
from distlog.gateway.server.request import Request
from distlog.gateway.transactions.services import NOT_LOCAL, transactions_of

#: Kafka's CoordinatorType.
_GROUP, _TRANSACTION = 0, 1
_NO_NODE = {"node_id": -1, "host": "", "port": -1}


def handle(request: Request, broker: Broker) -> Fields:
    """Where the gateway is; a list for each key from version 4 on."""
    host, port = broker.address(request)
    node = {"node_id": broker.config.node_id, "host": host, "port": port, "error_code": ErrorCode.none}
    if request.get("key_type", _GROUP) == _TRANSACTION and not transactions_of(broker).is_local:
        node = {**_NO_NODE, "error_code": ErrorCode.transactional_id_authorization_failed, "error_message": NOT_LOCAL}
    keys = request.get("coordinator_keys", ())
    return {"throttle_time": 0, "error_message": None, **node, "coordinators": [{**node, "key": key} for key in keys]}


API = Api(10, "FindCoordinator", 0, 4, handle)
