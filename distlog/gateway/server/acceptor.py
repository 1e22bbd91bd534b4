"""Listens, and keeps the connections within their limits: Kafka's Acceptor."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from typing import Any

from distlog.gateway.server.connection import Connection
from distlog.gateway.server.listening import listening_sockets
from distlog.gateway.server.processor import Processor
from distlog.gateway.server.request import ClientSession

_log = logging.getLogger("distlog.gateway")
_LOOK_S = 1.0
#: How long nobody is accepted when the system has no more sockets for us.
_NO_SOCKETS_S = 0.5
_NO_SOCKETS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Acceptor:
    """One listener, with TLS if there is a context for it; its connections are the `processor`'s."""

    def __init__(self, processor: Processor, tls: ssl.SSLContext | None) -> None:
        self._processor, self._loop, self._tls = processor, processor.loop, tls
        self._sockets: list[socket.socket] = []
        self._tasks = set[asyncio.Task[None]]()
        self.port = 0

    async def listen(self, host: str, port: int) -> None:
        """Begin to accept connections; `port` 0 takes a free one. Raises StorageError if it is taken."""
        self._sockets = listening_sockets(host, port)
        self._processor.is_open = True
        self.port = self._sockets[0].getsockname()[1]
        for each in self._sockets:
            self._begin(self._accept(each))
        self._loop.call_later(_LOOK_S, self._look)

    async def stop(self, timeout_s: float) -> bool:
        """Accept no more, let each connection have the response it waits for, and close them; whether all ended."""
        self._processor.is_open = False
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for each in self._sockets:
            each.close()
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

    async def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                made, address = await self._loop.sock_accept(listening)
            except OSError as error:
                _log.warning("cannot accept a connection: %s", error.strerror or error)
                # a client that is gone already costs the others nothing
                await asyncio.sleep(_NO_SOCKETS_S if error.errno in _NO_SOCKETS else 0)
                continue
            self._take(made, address)
            # a flood of connections must not keep this thread from those that are there
            await asyncio.sleep(0)

    def _take(self, made: socket.socket, address: Any) -> None:
        try:
            session = self._processor.joined(_address(address), _address(made.getsockname()))
        except OSError:
            session = None
        if session is None:
            made.close()
        else:
            self._begin(self._connect(made, session))

    async def _connect(self, made: socket.socket, session: ClientSession) -> None:
        """Do TLS's handshake, if it is asked for; then the connection lives by itself."""
        timeout = {} if self._tls is None else {"ssl_handshake_timeout": self._handshake_s}
        connection = Connection(self._processor, session)
        try:
            await self._loop.connect_accepted_socket(lambda: connection, made, ssl=self._tls, **timeout)
        except OSError as error:
            self._processor.tls_failed += 1
            _log.info("no TLS with %s:%d: %s", *session.address, _reason(error))
        finally:
            if not connection.is_made:
                self._processor.left(session)
                made.close()

    @property
    def _handshake_s(self) -> float:
        return self._processor.config.authentication_timeout_ms / 1000

    def _begin(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _look(self) -> None:
        """Have all connections looked at, now and then."""
        if not self._processor.is_open:
            return
        self._loop.call_later(_LOOK_S, self._look)
        authentication = self._processor.authentication
        users = authentication.users.current() if authentication else None
        for connection in list(self._processor.connections):
            connection.look(users)


def _address(name: Any) -> tuple[str, int]:
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) else ("", 0)


def _reason(error: OSError) -> str:
    return getattr(error, "reason", None) or str(error) or type(error).__name__
