"""What a gateway measures of its connections and of what goes on now."""

from __future__ import annotations

from typing import Literal

from distlog.core.log_manager.metrics import Metric
from distlog.gateway.broker import Broker
from distlog.gateway.server.processor import Processor


def server_metrics(processor: Processor, broker: Broker, waiting: int) -> list[Metric]:
    """The metrics, with how many requests wait for a handler; no storage is asked."""
    gauges = {
        "connections": ("open connections", len(processor.connections)),
        "request_queue_size": ("requests that wait for a handler", waiting),
        "request_memory_bytes": ("bytes of requests that are received or handled", processor.memory.used),
        "fetch_memory_bytes": (
            "bytes of records in responses that clients have not taken",
            broker.fetch_memory.used,
        ),
        "node_id": ("the id of this broker", broker.cluster.node.id),
        "brokers": ("gateways of the root that live, as far as this one knows", len(broker.cluster.nodes)),
        "coordinated_partitions": (
            "partitions of __consumer_offsets whose groups it coordinates",
            len(broker.cluster.held),
        ),
        "delayed_fetches": ("fetches that wait for records", len(broker.fetches)),
    }
    counters = {
        "connections_accepted": ("connections that were accepted", processor.accepted),
        "connections_refused": (
            "connections that were refused: there were too many, in all or from one address",
            processor.refused,
        ),
        "tls_handshakes_failed": ("connections that ended in TLS's handshake", processor.tls_failed),
        "connections_hung_up": (
            "connections that the gateway ended: no request, not allowed, too slow, or idle",
            processor.hung_up,
        ),
    }
    authentication = processor.authentication
    return [
        *(_metric(name, "gauge", *facts) for name, facts in gauges.items()),
        *(_metric(name, "counter", *facts) for name, facts in counters.items()),
        *(authentication.metrics() if authentication else ()),
    ]


def _metric(name: str, kind: Literal["gauge", "counter"], meaning: str, value: int) -> Metric:
    return Metric(f"distlog_gateway_{name}", kind, meaning, [({}, float(value))])
