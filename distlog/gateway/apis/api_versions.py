"""ApiVersions: what the gateway speaks (KIP-35, KIP-511)."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from distlog.gateway.broker import Api, Broker
from distlog.gateway.protocol.response_frame import Fields
from distlog.gateway.server.request import Request

KEY = 18


def handle(request: Request, broker: Broker) -> Fields:
    """All APIs with their versions; a client of a newer version than ours is told so in version 0."""
    error = ErrorCode.unsupported_version if request.body is None else ErrorCode.none
    keys = [
        {"api_key": api.key, "min_version": api.oldest, "max_version": api.newest} for api in broker.apis.values()
    ]
    return {"error_code": error, "api_keys": keys, "throttle_time": 0}


API = Api(KEY, "ApiVersions", 0, 4, handle)
