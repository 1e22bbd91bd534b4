"""Listens, and keeps the connections within their limits: Kafka's Acceptor."""

from __future__ import annotations

import asyncio
import ssl

from distlog.core.errors import StorageError
from distlog.gateway.server.connection import Connection
from distlog.gateway.server.processor import Processor

_LOOK_S = 1.0


class Acceptor:
    """One listener; its connections are the `processor`'s."""

    def __init__(self, processor: Processor) -> None:
        self._processor, self._loop = processor, processor.loop
        self._server: asyncio.Server | None = None
        self.port = 0

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        """Begin to accept connections; `port` 0 takes a free one. Raises StorageError if it is taken."""
        try:
            self._server = await self._loop.create_server(
                lambda: Connection(self._processor), host, port, ssl=tls, backlog=512, reuse_address=True
            )
        except OSError as error:
            raise StorageError(f"cannot listen: {error.strerror or error}", host=host, port=port) from None
        self._processor.is_open = True
        self.port = self._server.sockets[0].getsockname()[1]
        self._loop.call_later(_LOOK_S, self._close_silent)

    async def stop(self, timeout_s: float) -> bool:
        """Accept no more, let each connection have the response it waits for, and close them; whether all ended."""
        self._processor.is_open = False
        if self._server is not None:
            self._server.close()
        connections = self._processor.connections
        for connection in list(connections):
            connection.stop()
        end = self._loop.time() + timeout_s
        while connections and self._loop.time() < end:
            await asyncio.sleep(0.01)
        finished = not connections
        for connection in list(connections):
            connection.hang_up("the gateway ends")
        return finished

    def _close_silent(self) -> None:
        """Close the connections that were idle for long, and those whose client stopped in the middle."""
        if not self._processor.is_open:
            return
        now_s, config = self._loop.time(), self._processor.config
        for connection in list(self._processor.connections):
            silent_ms = 1000 * (now_s - connection.touched_s)
            if connection.waits_for_client and silent_ms > config.request_timeout_ms:
                connection.hang_up("the client stopped in the middle of a request or a response")
            elif connection.is_idle and silent_ms > config.connections_max_idle_ms:
                connection.hang_up("the client was idle for connections.max.idle.ms")
        self._loop.call_later(_LOOK_S, self._close_silent)
