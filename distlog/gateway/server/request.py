"""One request of a client, from its connection to its response."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from distlog.gateway.protocol.request_frame import RequestHead
from distlog.gateway.protocol.response_frame import Fields, Piece, write_response

_log = logging.getLogger("distlog.gateway")


@dataclass(slots=True)
class ClientSession:
    """Who is at the other end of a connection. `address` is where it is, `local` where it connected to.

    `principal` is the user's name once it has authenticated; None while it must do that first.
    """

    address: tuple[str, int]
    local: tuple[str, int]
    principal: str | None = None
    sasl: Any = None


@dataclass(slots=True, eq=False)
class Request:
    """A request; a handler answers it once, at once or later, from any thread.

    `body` is kio's object. `send` takes the response's pieces, none for no response; `hang_up` ends the connection.
    """

    head: RequestHead
    client_id: str
    body: Any
    session: ClientSession
    received_ms: int
    send: Callable[[Sequence[Piece]], None]
    hang_up: Callable[[str], None]
    #: Called when the client has taken the response, or is gone.
    on_sent: list[Callable[[], None]] = field(default_factory=list)

    #: Whether the client is gone, so that nobody needs a response.
    is_gone: bool = False
    #: What the handler keeps of a request that it has put off.
    delayed: Any = None

    @property
    def api_version(self) -> int:
        """The version of the API that the client speaks."""
        return self.head.api_version

    def get(self, name: str, default: Any = None) -> Any:
        """The field of the body with this name, or `default` if this version of the API does not have it."""
        return getattr(self.body, name, default)

    def respond(self, fields: Fields) -> None:
        """Send the response with these fields; one that cannot be written ends the connection, and raises nothing."""
        # a version that is not known is answered in the first one
        version = self.head.api_version if self.body is not None else 0
        try:
            pieces = write_response(self.head.api_key, version, self.head.correlation_id, fields)
        except Exception:
            # whoever answers has others to answer, too
            _log.exception("a response cannot be written (api_key=%d version=%d)", self.head.api_key, version)
            self.hang_up("the response cannot be written")
            return
        self.send(pieces)

    def respond_nothing(self) -> None:
        """End the request without a response, as for acks=0."""
        self.send(())
