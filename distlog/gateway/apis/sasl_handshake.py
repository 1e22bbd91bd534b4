"""SaslHandshake: a client chooses how it authenticates. After version 0 it sends bare tokens."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from distlog.gateway.broker import Api, Broker
from distlog.gateway.protocol.response_frame import Fields
from distlog.gateway.server.request import Request

KEY = 17


def handle(request: Request, broker: Broker) -> Fields | None:
    """The mechanisms; a client that chooses another is told so, and is disconnected."""
    sasl = request.session.sasl
    if sasl is None or not sasl.expects_handshake:
        # as in Kafka: no SASL on this listener, or again, where sessions have no end
        return {"error_code": ErrorCode.illegal_sasl_state, "mechanisms": ()}
    if not sasl.choose(request.body.mechanism, by_tokens=request.api_version == 0):
        wrong = {"error_code": ErrorCode.unsupported_sasl_mechanism, "mechanisms": sasl.mechanisms}
        request.refuse(wrong, broker.config.failed_authentication_delay_ms / 1000)
        return None
    return {"error_code": ErrorCode.none, "mechanisms": sasl.mechanisms}


API = Api(KEY, "SaslHandshake", 0, 1, handle)
