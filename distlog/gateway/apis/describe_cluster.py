"""DescribeCluster: this gateway, which is all of the cluster."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from distlog.gateway.broker import Api, Broker
from distlog.gateway.protocol.response_frame import Fields
from distlog.gateway.server.request import Request


def handle(request: Request, broker: Broker) -> Fields:
    """The cluster's id and its one broker."""
    host, port = broker.address(request)
    return {
        "throttle_time": 0,
        "error_code": ErrorCode.none,
        "cluster_id": broker.cluster_id,
        "controller_id": broker.config.node_id,
        "brokers": [{"broker_id": broker.config.node_id, "host": host, "port": port}],
    }


API = Api(60, "DescribeCluster", 0, 1, handle)
