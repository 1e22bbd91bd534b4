"""What the connections of a gateway share, all in the thread of one event loop: Kafka's Processor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from distlog.gateway.config import GatewayConfig
from distlog.gateway.protocol.request_frame import RequestHead
from distlog.gateway.server.request import Request
from distlog.gateway.server.request_memory import RequestMemory

#: What is received in one step, unless it is a larger request.
_SHARED_BYTES = 64 << 10


class Processor:
    """The event loop `loop`, its connections, and where their requests go.

    `supports` gives the head by which a request's body is read, and None for a version that is answered without it.
    `first_principal` is who a client is before it has authenticated, None if it must.
    """

    def __init__(
        self,
        config: GatewayConfig,
        loop: asyncio.AbstractEventLoop,
        offer: Callable[[Request], None],
        supports: Callable[[RequestHead], RequestHead | None],
        clock: Callable[[], int],
        first_principal: str | None,
    ) -> None:
        self.config, self.loop, self.offer, self.supports, self.clock = config, loop, offer, supports, clock
        self.first_principal = first_principal
        self.memory = RequestMemory(config.queued_max_request_bytes)
        self.shared_buffer = memoryview(bytearray(_SHARED_BYTES))
        self.connections = set[Any]()
        self.is_open = False
        #: How many connections were made, and how many were refused, so far.
        self.accepted = self.refused = 0

    def joined(self, connection: Any) -> bool:
        """Take a new connection, unless there are `max_connections`; returns whether it was taken."""
        if len(self.connections) >= self.config.max_connections or not self.is_open:
            self.refused += 1
            return False
        self.accepted += 1
        self.connections.add(connection)
        return True

    def left(self, connection: Any) -> None:
        """Forget a connection that has ended."""
        self.connections.discard(connection)
