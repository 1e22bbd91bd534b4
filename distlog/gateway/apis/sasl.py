"""SaslHandshake and SaslAuthenticate: the authentication of a client."""

from __future__ import annotations

from distlog.gateway.broker import Api, Broker
from distlog.gateway.protocol.frames import Fields
from distlog.gateway.protocol.messages import ErrorCode
from distlog.gateway.security.authentication import AuthenticationFailedError
from distlog.gateway.server.fairness import owner_of
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
        _refuse(request, broker, refusal, "", f"no mechanism {request.body.mechanism}")
        return None
    return {"error_code": ErrorCode.none, "mechanisms": sasl.mechanisms}


SASL_HANDSHAKE = Api(HANDSHAKE_KEY, "SaslHandshake", 0, 1, sasl_handshake)


# ---
# SaslAuthenticate: a client authenticates, in one step or two.


AUTHENTICATE_KEY = 36


def sasl_authenticate(request: Request, broker: Broker) -> Fields | None:
    """The next token of the exchange. A client that fails gets the error after a delay, and is disconnected.

    A password that must be checked waits in a line of its own, so that nothing else waits for it.
    """
    session = request.session
    if session.sasl is None or session.principal is not None or session.sasl.expects_handshake:
        reason = "SaslAuthenticate without SaslHandshake, or after authentication"
        return {"error_code": ErrorCode.illegal_sasl_state, "error_message": reason, "auth_bytes": b""}
    token, sasl = request.body.auth_bytes, session.sasl
    if broker.check_password is not None and request.delayed is None and sasl.takes_time(token):
        request.delayed = sasl.claimed(token)
        broker.check_password(request)
        return None
    try:
        answer, session.principal = sasl.step(token)
    except AuthenticationFailedError as error:
        text = f"Authentication failed: invalid credentials with SASL mechanism {sasl.mechanism}"
        _refuse(
            request,
            broker,
            {"error_code": ErrorCode.sasl_authentication_failed, "error_message": text, "auth_bytes": b""},
            sasl.claimed(token),
            error.message,
        )
        return None
    return {"error_code": ErrorCode.none, "error_message": None, "auth_bytes": answer, "session_lifetime": 0}


def _refuse(request: Request, broker: Broker, fields: Fields, user: str, why: str) -> None:
    session, shortest_s = request.session, broker.config.failed_authentication_delay_ms / 1000
    assert session.sasl is not None
    failures, host = session.sasl.failures, session.address[0]
    failures.log.note(f"{user or 'a client'} at {host}", why)
    request.refuse(fields, failures.delay_s(owner_of(None, host), shortest_s))


SASL_AUTHENTICATE = Api(AUTHENTICATE_KEY, "SaslAuthenticate", 0, 2, sasl_authenticate)

#: The APIs of this module.
APIS = (SASL_HANDSHAKE, SASL_AUTHENTICATE)
