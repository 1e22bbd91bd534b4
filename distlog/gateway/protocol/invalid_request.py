"""The error of bytes that are no request."""

from __future__ import annotations

from distlog.core.errors import CorruptionError


class InvalidRequestError(CorruptionError):
    """The bytes of a request are not what Kafka's protocol has there: the connection is of no use any more."""
