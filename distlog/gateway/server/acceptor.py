"""Listens, and keeps the connections within their limits (Kafka's Acceptor)."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from typing import Any

from distlog.core.errors import StorageError
from distlog.gateway.security.tls import TlsContext
from distlog.gateway.server.connection import Connection, Processor
from distlog.gateway.server.request import ClientSession


class Acceptor:
    def __init__(self, processor: Processor, tls: TlsContext | None) -> None:
        self._processor, self._loop, self._tls = processor, processor.loop, tls
        self._sockets: list[socket.socket] = []
        self._tasks = set[asyncio.Task[None]]()
        self.port = 0

    async def listen(self, host: str, port: int) -> None:
        """Begin to accept connections; `port` 0 takes a free one. Raises StorageError if it is taken."""
        self._sockets = listening_sockets(host, port)
        self._processor.open()
        self.port = self._sockets[0].getsockname()[1]
        for listening in self._sockets:
            self._resume(listening)
        self._loop.call_later(_CHECK_S, self._check_clients)

    async def stop(self, timeout_s: float) -> bool:
        """Accept no more, answer the requests in flight, and close all connections; returns whether all ended."""
        self._processor.is_open = False
        while self._sockets:
            listening = self._sockets.pop()
            self._loop.remove_reader(listening)
            listening.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        connections = self._processor.connections
        for connection in list(connections):
            connection.stop()
        end = self._loop.time() + timeout_s
        while connections and self._loop.time() < end:
            await asyncio.sleep(0.01)
        finished = not connections
        for connection in list(connections):
            connection.hang_up("the gateway is stopping", is_routine=True)
        return finished

    def _accept(self, listening: socket.socket) -> None:
        try:
            client, address = listening.accept()
        except BlockingIOError:
            return
        except OSError as error:
            _log.warning("cannot accept a connection: %s", error.strerror or error)
            # a client that has disconnected must not delay the next one
            if error.errno in _NO_SOCKETS:
                self._loop.remove_reader(listening)
                self._loop.call_later(_NO_SOCKETS_S, self._resume, listening)
            return
        try:
            client.setblocking(False)
            # else the system delays a response until the client has acknowledged the one before, for up to 40 ms
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            session = self._processor.joined(_address(address), _address(client.getsockname()))
        except OSError:
            session = None
        if session is None:
            client.close()
        else:
            self._begin(self._connect(client, session))

    def _resume(self, listening: socket.socket) -> None:
        if self._processor.is_open:
            self._loop.add_reader(listening, self._accept, listening)

    async def _connect(self, client: socket.socket, session: ClientSession) -> None:
        """Do the TLS handshake, if there is a context; then asyncio serves the connection."""
        handshake_s = self._processor.config.authentication_timeout_ms / 1000
        timeout = {} if self._tls is None else {"ssl_handshake_timeout": handshake_s}
        connection = Connection(self._processor, session)
        try:
            tls = None if self._tls is None else self._tls.current
            await self._loop.connect_accepted_socket(lambda: connection, client, ssl=tls, **timeout)
        except OSError as error:
            # a probe of a load balancer connects, and says nothing
            if not isinstance(error, ConnectionResetError):
                words = (getattr(error, name, None) for name in ("verify_message", "reason"))
                reason = next(filter(None, words), str(error) or type(error).__name__)
                self._processor.failures.note(f"a client at {session.address[0]}", f"TLS: {reason}")
            self._processor.tls_failed += 1
        finally:
            if not connection.is_made:
                self._processor.disconnected(session)
                client.close()

    def _begin(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _check_clients(self) -> None:
        if not self._processor.is_open:
            return
        self._loop.call_later(_CHECK_S, self._check_clients)
        if self._tls is not None:
            self._tls.refresh()
        authentication = self._processor.authentication
        users = authentication.current() if authentication else None
        for connection in list(self._processor.connections):
            connection.check_client(users)


_log = logging.getLogger("distlog.gateway")

_BACKLOG = 512
_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


def listening_sockets(host: str, port: int) -> list[socket.socket]:
    """Open a socket for each address of `host`, all at one port; 0 takes a free one. Raises StorageError.

    Addresses that this machine does not have are skipped if it has another one: without IPv6, `localhost` may still
    be ::1, too.
    """
    sockets: list[socket.socket] = []
    not_here: OSError | None = None
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, *_, address in dict.fromkeys(addresses):
            number = sockets[0].getsockname()[1] if sockets else port
            try:
                bind_address = address[0], number, *address[2:]
                # an IPv6 socket of create_server takes no IPv4 by default
                sockets.append(socket.create_server(bind_address, family=family, backlog=_BACKLOG))
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise
                not_here = error
        if not_here is not None and not sockets:
            raise not_here
        for listening in sockets:
            listening.setblocking(False)
    except OSError as error:
        for listening in sockets:
            listening.close()
        raise StorageError(f"cannot listen: {error.strerror or error}", host=host, port=port) from None
    return sockets


_CHECK_S = 1.0
#: The pause in accepting when the system has no more sockets.
_NO_SOCKETS_S = 0.5
_NO_SOCKETS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def _address(name: Any) -> tuple[str, int]:
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) else ("", 0)
