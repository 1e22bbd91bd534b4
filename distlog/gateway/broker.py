"""The gateway as its handlers see it: topics, waiting requests, settings, groups, transactions and APIs."""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from distlog.gateway.cluster import GatewayLease, Node
from distlog.gateway.config import GatewayConfig
from distlog.gateway.groups.coordinator import GroupServices
from distlog.gateway.protocol.frames import Fields
from distlog.gateway.root_records import DynamicConfigs, RootAcls, RootUsers
from distlog.gateway.server.delayed_operations import DelayedAppends, DelayedFetches, FetchMemory
from distlog.gateway.server.request import Request
from distlog.gateway.topics.metadata_cache import MetadataCache
from distlog.gateway.transactions.transaction_coordinator import TransactionServices


@dataclass(frozen=True, slots=True)
class Broker:
    """The gateway as its handlers see it.

    Without `acls` every client may do everything. With `acls` clients may also change the `users` of the root.
    `check_password` queues a request for the thread of passwords.
    """

    config: GatewayConfig
    metadata: MetadataCache
    fetches: DelayedFetches
    appends: DelayedAppends
    clock: Callable[[], int]
    apis: Mapping[int, Api]
    fetch_memory: FetchMemory
    cluster: GatewayLease
    groups: GroupServices
    transactions: TransactionServices
    configs: DynamicConfigs
    security_protocol: str = "PLAINTEXT"
    acls: RootAcls | None = None
    users: RootUsers | None = None
    check_password: Callable[[Request], None] | None = None

    @property
    def cluster_id(self) -> str:
        """An id of the root, the same for all its gateways: 16 bytes in URL-safe base 64."""
        digest = hashlib.sha256(self.metadata.root.url.encode()).digest()
        return urlsafe_b64encode(digest[:16]).decode().rstrip("=")

    def address(self, request: Request, node: Node) -> tuple[str, int]:
        if node.id == self.cluster.node.id:
            return self.config.advertised or request.session.local
        return node.host, node.port


class Handlers(Enum):
    """The threads that handle an API, by their name: no kind of work waits for another kind."""

    RECORDS = "request"
    #: For members of groups: they use the storage of groups alone.
    MEMBERS = "group"
    #: For steps of transactions, each of which waits for the storage.
    TRANSACTIONS = "transaction"
    #: For deletions and changes of topics: they wait for locks, which a stopped process may hold.
    TOPICS = "topics"
    SASL = "sasl"
    #: For checks of passwords, which take time on purpose.
    PASSWORDS = "password"


class Api(NamedTuple):
    key: int
    name: str
    oldest: int
    newest: int
    handle: Callable[[Request, Broker], Fields | None]
    #: The rights that its handler checks, as the documentation has them.
    rights: str
    handlers: Handlers = Handlers.RECORDS
