"""The settings of a gateway, by Kafka's names where Kafka has them."""

from __future__ import annotations

from dataclasses import dataclass, field

from distlog.core.broker_setting import broker_setting
from distlog.core.config import MAX_INT
from distlog.gateway.group_settings import GroupSettings

_MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """Limits and habits of a gateway; times in ms, sizes in bytes. Fields with a name of Kafka's are its settings.

    `advertised` is the host and port that clients are told; without it they are told where they connected to.
    A gateway that has not shown for `broker_session_timeout_ms` that it lives is taken for dead by the others.
    `queued_max_request_bytes` bounds the requests that are received or handled, `fetch_memory_bytes` the records in
    responses that clients have not taken yet. `request_timeout_ms` is how long a request, once begun, may take to
    arrive, and a client to take its response: a second more for each MiB, but no longer without a byte.
    `authentication_timeout_ms` bounds TLS's handshake, and then SASL. Of `open_files` half may be connections.
    """

    advertised: tuple[str, int] | None = None
    node_id: int | None = broker_setting(
        "node.id broker.id", None, "the id of this gateway; -1: the lowest that no other has", most=999_999_999
    )
    broker_session_timeout_ms: int = broker_setting(
        "broker.session.timeout.ms",
        9000,
        "who shows no life for so long is taken for dead",
        least=500,
        most=3_600_000,
    )
    num_io_threads: int = broker_setting("num.io.threads", 8, "threads that handle requests", least=1, most=1000)
    queued_max_requests: int = broker_setting(
        "queued.max.requests", 500, "requests that wait for a handler", least=1, most=MAX_INT
    )
    queued_max_request_bytes: int = broker_setting(
        "queued.max.request.bytes", 512 << 20, "bytes of all requests that are received or handled", least=1 << 20
    )
    socket_request_max_bytes: int = broker_setting(
        "socket.request.max.bytes", 100 << 20, "largest request", least=1, most=MAX_INT
    )
    max_connections: int = broker_setting(
        "max.connections", 2000, "connections, with those in TLS's handshake", most=MAX_INT
    )
    max_connections_per_ip: int = broker_setting(
        "max.connections.per.ip", 1000, "connections from one address", most=MAX_INT
    )
    open_files: int | None = None
    connections_max_idle_ms: int = broker_setting(
        "connections.max.idle.ms", 600_000, "an idle connection is closed after this", least=1
    )
    authentication_timeout_ms: int = 10_000
    failed_authentication_delay_ms: int = broker_setting(
        "connection.failed.authentication.delay.ms",
        1000,
        "who fails to authenticate is told after this",
        most=MAX_INT,
    )
    sasl_server_max_receive_size: int = broker_setting(
        "sasl.server.max.receive.size", 512 << 10, "a request of a client that has not authenticated", most=MAX_INT
    )
    request_timeout_ms: int = 30_000
    fetch_max_bytes: int = broker_setting(
        "fetch.max.bytes", 55 << 20, "records in a response", least=1024, most=MAX_INT
    )
    fetch_memory_bytes: int = 256 << 20
    auto_create_topics: bool = broker_setting(
        "auto.create.topics.enable", False, "create a topic when a client asks for it; as `--auto-create-topics`"
    )
    num_partitions: int = broker_setting(
        "num.partitions", 1, "partitions of a topic that is created without a number", least=1, most=MAX_INT
    )
    linger_ms: int = 250
    linger_bytes: int = 8 << 20
    metadata_max_age_ms: int = 1000
    offsets_retention_ms: int = broker_setting(
        "offsets.retention.minutes",
        7 * 86_400_000,
        "how long the positions of a group without members are kept",
        least=1,
        most=MAX_INT,
        unit=_MINUTE_MS,
    )
    transaction_max_timeout_ms: int = broker_setting(
        "transaction.max.timeout.ms",
        900_000,
        "the most that a client's transaction.timeout.ms may be",
        least=1,
        most=MAX_INT,
    )
    groups: GroupSettings = field(default_factory=GroupSettings)

    @property
    def connection_limit(self) -> int:
        """How many connections there may be, so that as many files are left for logs."""
        return self.max_connections if self.open_files is None else min(self.max_connections, self.open_files // 2)
