"""The settings of a gateway, by Kafka's names where Kafka has them."""

from __future__ import annotations

from dataclasses import dataclass, field

from distlog.gateway.groups.classic_group import GroupSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """Limits and habits of a gateway; times in ms, sizes in bytes.

    `advertised` is the host and port that clients are told; without it they are told where they connected to.
    `node_id` is the lowest one that no other gateway of the root has, by default. A gateway that has not shown for
    `broker_session_timeout_ms` that it lives is taken for dead by the others.
    `queued_max_request_bytes` bounds the requests that are received or handled, `fetch_memory_bytes` the records in
    responses that clients have not taken yet. `request_timeout_ms` is how long a request, once begun, may take to
    arrive, and a client to take its response: a second more for each MiB, but no longer without a byte.
    `authentication_timeout_ms` bounds TLS's handshake, and then SASL.
    """

    advertised: tuple[str, int] | None = None
    node_id: int | None = None
    broker_session_timeout_ms: int = 9000
    num_io_threads: int = 8
    queued_max_requests: int = 500
    queued_max_request_bytes: int = 512 << 20
    socket_request_max_bytes: int = 100 << 20
    max_connections: int = 2000
    max_connections_per_ip: int = 1000
    connections_max_idle_ms: int = 600_000
    authentication_timeout_ms: int = 10_000
    failed_authentication_delay_ms: int = 1000
    request_timeout_ms: int = 30_000
    fetch_max_bytes: int = 55 << 20
    fetch_memory_bytes: int = 256 << 20
    auto_create_topics: bool = False
    num_partitions: int = 1
    linger_ms: int = 250
    linger_bytes: int = 8 << 20
    metadata_max_age_ms: int = 1000
    offsets_retention_ms: int = 7 * 86_400_000
    transaction_max_timeout_ms: int = 900_000
    groups: GroupSettings = field(default_factory=GroupSettings)
