"""Opens the sockets at which a gateway listens."""

from __future__ import annotations

import socket
from contextlib import suppress

from distlog.core.errors import StorageError

_BACKLOG = 512


def listening_sockets(host: str, port: int) -> list[socket.socket]:
    """A socket for each address of `host`, all at one port; 0 takes a free one. Raises StorageError."""
    sockets: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, *_, address in dict.fromkeys(found):
            number = sockets[0].getsockname()[1] if sockets else port
            sockets.append(_listening(family, (address[0], number, *address[2:])))
    except OSError as error:
        for each in sockets:
            each.close()
        raise StorageError(f"cannot listen: {error.strerror or error}", host=host, port=port) from None
    return sockets


def _listening(family: int, address: tuple[object, ...]) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setblocking(False)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            with suppress(OSError):
                made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(address)
        made.listen(_BACKLOG)
    except BaseException:
        made.close()
        raise
    return made
