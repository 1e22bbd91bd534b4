"""One request of a client, from its connection to its response."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from distlog.gateway.protocol.request_frame import RequestHead, read_request
from distlog.gateway.protocol.response_frame import Fields, Piece, write_response
from distlog.gateway.security.authentication import SaslExchange

_log = logging.getLogger("distlog.gateway")


@dataclass(slots=True, eq=False)
class ClientSession:
    """Who is at the other end of a connection. `address` is where it is, `local` where it connected to.

    `principal` is the user's name once it has authenticated; None while it must do that first, by `sasl`.
    """

    address: tuple[str, int]
    local: tuple[str, int]
    principal: str | None
    sasl: SaslExchange | None


@dataclass(slots=True, eq=False)
class Request:
    """A request; a handler answers it once, at once or later, from any thread.

    `frame` is what came, None for a version that is answered without it. `body` is kio's object, when it was `read`.
    `send` takes the response's pieces, none for no response. `send_last` does that after some seconds, and then ends
    the connection; `hang_up` ends it at once.
    """

    head: RequestHead
    frame: memoryview | None
    session: ClientSession
    received_ms: int
    send: Callable[[Sequence[Piece]], None]
    send_last: Callable[[Sequence[Piece], float], None]
    hang_up: Callable[[str], None]
    client_id: str = ""
    body: Any = None
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

    def read(self) -> None:
        """Read the frame, if that was not done yet. Raises InvalidRequestError.

        That is for a handler to do: the thread of all connections must not wait for a large request.
        """
        if self.frame is not None:
            (self.client_id, self.body), self.frame = read_request(self.frame, self.head), None

    def respond(self, fields: Fields) -> None:
        """Send the response with these fields; one that cannot be written ends the connection, and raises nothing."""
        pieces = self._written(fields)
        if pieces is not None:
            self.send(pieces)

    def refuse(self, fields: Fields, after_s: float) -> None:
        """Send the response with these fields after some seconds, then end the connection."""
        pieces = self._written(fields)
        if pieces is not None:
            self.send_last(pieces, after_s)

    def _written(self, fields: Fields) -> Sequence[Piece] | None:
        # a version that is not known is answered in the first one
        version = self.head.api_version if self.body is not None else 0
        try:
            return write_response(self.head.api_key, version, self.head.correlation_id, fields)
        except Exception:
            # whoever answers has others to answer, too
            _log.exception("a response cannot be written (api_key=%d version=%d)", self.head.api_key, version)
            self.hang_up("the response cannot be written")
            return None

    def respond_nothing(self) -> None:
        """End the request without a response, as for acks=0."""
        self.send(())


class SaslToken(NamedTuple):
    """A client's part of a SASL exchange, as the body of SaslAuthenticate has it."""

    auth_bytes: bytes


#: Who sends a bare token has no correlation id.
TOKEN_HEAD = RequestHead(api_key=36, api_version=0, correlation_id=0)


class TokenRequest(Request):
    """A SASL token that came without Kafka's head, as after SaslHandshake 0; its response is a token, too."""

    def _written(self, fields: Fields) -> Sequence[Piece] | None:
        token: bytes = fields["auth_bytes"]
        # there is no place for an error: the connection just ends
        return () if fields["error_code"] else (len(token).to_bytes(4, "big") + token,)
