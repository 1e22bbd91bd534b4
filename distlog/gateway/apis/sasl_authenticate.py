"""SaslAuthenticate: a client proves who it is, in one step or two."""

from __future__ import annotations

import logging

from kio.schema.errors import ErrorCode

from distlog.gateway.broker import Api, Broker
from distlog.gateway.protocol.response_frame import Fields
from distlog.gateway.security.credentials import AuthenticationFailedError
from distlog.gateway.server.request import Request

_log = logging.getLogger("distlog.gateway")
KEY = 36


def handle(request: Request, broker: Broker) -> Fields | None:
    """The next token of the exchange. A client that fails is told so later, and is disconnected."""
    session = request.session
    if session.sasl is None or session.principal is not None or session.sasl.expects_handshake:
        wrong = "SaslAuthenticate without SaslHandshake, or when it was done"
        return {"error_code": ErrorCode.illegal_sasl_state, "error_message": wrong, "auth_bytes": b""}
    try:
        answer, session.principal = session.sasl.step(request.body.auth_bytes)
    except AuthenticationFailedError as error:
        _log.warning("a client at %s:%d failed to authenticate: %s", *session.address, error)
        request.refuse(_failed(session.sasl.mechanism), broker.config.failed_authentication_delay_ms / 1000)
        return None
    return {"error_code": ErrorCode.none, "error_message": None, "auth_bytes": answer, "session_lifetime": 0}


def _failed(mechanism: str) -> Fields:
    why = f"Authentication failed: invalid credentials with SASL mechanism {mechanism}"
    return {"error_code": ErrorCode.sasl_authentication_failed, "error_message": why, "auth_bytes": b""}


API = Api(KEY, "SaslAuthenticate", 0, 2, handle)
