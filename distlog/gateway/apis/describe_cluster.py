"""DescribeCluster: the gateways of the root, which are the cluster."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from distlog.gateway.broker import Api, Broker
from distlog.gateway.protocol.response_frame import Fields
from distlog.gateway.server.request import Request


def handle(request: Request, broker: Broker) -> Fields:
    """The cluster's id and its brokers: the gateways that live."""
    nodes = [(node.id, *broker.address(request, node)) for node in broker.cluster.nodes]
    return {
        "throttle_time": 0,
        "error_code": ErrorCode.none,
        "cluster_id": broker.cluster_id,
        "controller_id": broker.cluster.node.id,
        "brokers": [{"broker_id": number, "host": host, "port": port} for number, host, port in nodes],
    }


API = Api(60, "DescribeCluster", 0, 1, handle)
