"""What handlers work with: the topics, the fetches that wait, the settings, and the APIs that there are."""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from distlog.gateway.cluster.gateway_lease import GatewayLease
from distlog.gateway.cluster.node import Node
from distlog.gateway.config import GatewayConfig
from distlog.gateway.fetches.delayed_fetches import DelayedFetches
from distlog.gateway.fetches.fetch_memory import FetchMemory
from distlog.gateway.protocol.response_frame import Fields
from distlog.gateway.server.request import Request
from distlog.gateway.topics.metadata_cache import MetadataCache


class Api(NamedTuple):
    """One of Kafka's APIs, in the versions from `oldest` to `newest`.

    `handle` returns the fields of the response, or None if it responds itself, now or later.
    """

    key: int
    name: str
    oldest: int
    newest: int
    handle: Callable[[Request, Broker], Fields | None]


@dataclass(frozen=True, slots=True)
class Broker:
    """The gateway as its handlers see it. `apis` are by their keys."""

    config: GatewayConfig
    metadata: MetadataCache
    fetches: DelayedFetches
    clock: Callable[[], int]
    apis: Mapping[int, Api]
    fetch_memory: FetchMemory
    cluster: GatewayLease
    #: What APIs of other packages keep between requests, by the package's name.
    parts: dict[str, Any] = field(default_factory=dict)

    @property
    def cluster_id(self) -> str:
        """An id of the root, the same for each gateway in front of it: 16 bytes in URL-safe base 64."""
        digest = hashlib.sha256(self.metadata.root.url.encode()).digest()
        return urlsafe_b64encode(digest[:16]).decode().rstrip("=")

    def address(self, request: Request, node: Node) -> tuple[str, int]:
        """The host and port where this client finds one of the root's gateways."""
        if node.id == self.cluster.node.id:
            return self.config.advertised or request.session.local
        return node.host, node.port
