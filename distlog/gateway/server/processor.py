"""What the connections of a gateway share, all in the thread of one event loop: Kafka's Processor."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

from distlog.gateway.config import GatewayConfig
from distlog.gateway.protocol.request_frame import RequestHead
from distlog.gateway.security.authentication import Authentication, SaslExchange
from distlog.gateway.server.request import ClientSession, Request
from distlog.gateway.server.request_memory import RequestMemory

#: Who a client is where nobody has to authenticate.
ANONYMOUS = "ANONYMOUS"
#: What is received in one step, unless it is a larger request.
_SHARED_BYTES = 64 << 10


class Processor:
    """The event loop `loop`, its connections, and where their requests go.

    `supports` tells whether a request's body can be read; False for a version that is answered without it, and an
    InvalidRequestError for what this client may not send now. With `authentication` clients must authenticate.
    """

    def __init__(
        self,
        config: GatewayConfig,
        loop: asyncio.AbstractEventLoop,
        offer: Callable[[Request], None],
        supports: Callable[[RequestHead, ClientSession], bool],
        clock: Callable[[], int],
        authentication: Authentication | None,
    ) -> None:
        self.config, self.loop, self.offer, self.supports, self.clock = config, loop, offer, supports, clock
        self.authentication = authentication
        self.memory = RequestMemory(config.queued_max_request_bytes)
        self.shared_buffer = memoryview(bytearray(_SHARED_BYTES))
        self.connections = set[Any]()
        self.is_open = False
        self._sessions, self._of = set[ClientSession](), Counter[str]()
        #: How many connections were made, were refused, failed in TLS, and were ended by the gateway, so far.
        self.accepted = self.refused = self.tls_failed = self.hung_up = 0

    def joined(self, address: tuple[str, int], local: tuple[str, int]) -> ClientSession | None:
        """Take a new connection, unless there are too many, in all or from its host: then None."""
        host, config = address[0], self.config
        if len(self._sessions) >= config.connection_limit or self._of[host] >= config.max_connections_per_ip:
            self.refused += 1
            return None
        self.accepted += 1
        sasl = SaslExchange(self.authentication) if self.authentication else None
        session = ClientSession(address, local, None if sasl else ANONYMOUS, sasl)
        self._sessions.add(session)
        self._of[host] += 1
        return session

    def left(self, session: ClientSession) -> None:
        """Forget a connection that has ended."""
        if session in self._sessions:
            self._sessions.remove(session)
            self._of[session.address[0]] -= 1
            if not self._of[session.address[0]]:
                del self._of[session.address[0]]
