"""SaslHandshake and SaslAuthenticate: the authentication of a client."""

from __future__ import annotations

import logging

from distlog.gateway.broker import Api, Broker
from distlog.gateway.protocol.frames import Fields
from distlog.gateway.protocol.messages import ErrorCode
from distlog.gateway.security.authentication import AuthenticationFailedError
from distlog.gateway.server.request import Request

# ---
# SaslHandshake: a client chooses its mechanism. After version 0 it sends bare tokens.


HANDSHAKE_KEY = 17


def sasl_handshake(request: Request, broker: Broker) -> Fields | None:
    """The mechanisms; a client that chooses another one gets an error, and is disconnected."""
    sasl = request.session.sasl
    if sasl is None or not sasl.expects_handshake:
        # as in Kafka: no SASL on this listener, or a second handshake where sessions have no end
        return {"error_code": ErrorCode.illegal_sasl_state, "mechanisms": ()}
    if not sasl.choose(request.body.mechanism, by_tokens=request.api_version == 0):
        refusal = {"error_code": ErrorCode.unsupported_sasl_mechanism, "mechanisms": sasl.mechanisms}
        request.refuse(refusal, broker.config.failed_authentication_delay_ms / 1000)
        return None
    return {"error_code": ErrorCode.none, "mechanisms": sasl.mechanisms}


SASL_HANDSHAKE = Api(HANDSHAKE_KEY, "SaslHandshake", 0, 1, sasl_handshake)


# ---
# SaslAuthenticate: a client authenticates, in one step or two.


_log = logging.getLogger("distlog.gateway")
AUTHENTICATE_KEY = 36


def sasl_authenticate(request: Request, broker: Broker) -> Fields | None:
    """The next token of the exchange. A client that fails gets the error after a delay, and is disconnected."""
    session = request.session
    if session.sasl is None or session.principal is not None or session.sasl.expects_handshake:
        reason = "SaslAuthenticate without SaslHandshake, or after authentication"
        return {"error_code": ErrorCode.illegal_sasl_state, "error_message": reason, "auth_bytes": b""}
    try:
        answer, session.principal = session.sasl.step(request.body.auth_bytes)
    except AuthenticationFailedError as error:
        _log.warning("a client at %s:%d failed to authenticate: %s", *session.address, error)
        request.refuse(_failure(session.sasl.mechanism), broker.config.failed_authentication_delay_ms / 1000)
        return None
    return {"error_code": ErrorCode.none, "error_message": None, "auth_bytes": answer, "session_lifetime": 0}


def _failure(mechanism: str) -> Fields:
    reason = f"Authentication failed: invalid credentials with SASL mechanism {mechanism}"
    return {"error_code": ErrorCode.sasl_authentication_failed, "error_message": reason, "auth_bytes": b""}


SASL_AUTHENTICATE = Api(AUTHENTICATE_KEY, "SaslAuthenticate", 0, 2, sasl_authenticate)

#: The APIs of this module.
APIS = (SASL_HANDSHAKE, SASL_AUTHENTICATE)
