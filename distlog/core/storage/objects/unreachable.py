"""Says what to set when a server cannot be reached, or there are no credentials to ask it with."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

_NO_CREDENTIALS = {"NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "ProfileNotFound"}
_CREDENTIALS = (
    "no credentials were found: set the storage options key and secret, or AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY, or anon=true for a public bucket"
)
#: What a client's error comes from, in plain words, the first that fits.
_REASONS = (
    (socket.gaierror, "its name does not resolve"),
    (ConnectionRefusedError, "it refuses connections"),
    (ssl.SSLError, "TLS fails"),
    (TimeoutError, "no answer"),
)


def advice(error: Exception) -> str | None:
    """What is wrong and what to set, if the error is of a server that was not reached or of missing credentials."""
    if type(error).__name__ in _NO_CREDENTIALS:
        return _CREDENTIALS
    facts = getattr(error, "kwargs", None)
    address = facts.get("endpoint_url") if isinstance(facts, Mapping) else None
    if not isinstance(address, str):
        return None
    reason = _reason(error)
    return (
        f"{_host(address)} cannot be reached{reason and f', {reason}'}: check the storage option endpoint_url or "
        "AWS_ENDPOINT_URL, the region, and the network"
    )


def _host(address: str) -> str:
    """The server's name and port, without a user or a path."""
    return urlsplit(address).netloc.rpartition("@")[2]


def _reason(error: BaseException) -> str:
    causes = list(_causes(error, 8))
    return next((words for kind, words in _REASONS for cause in causes if isinstance(cause, kind)), "")


def _causes(error: BaseException | None, most: int) -> Iterator[BaseException]:
    """The error, and what it comes from, of botocore and of aiohttp, in `most` steps."""
    while error is not None and most > 0:
        yield error
        most -= 1
        facts: Any = getattr(error, "kwargs", None)
        inner = facts.get("error") if isinstance(facts, Mapping) else getattr(error, "os_error", None)
        error = inner if isinstance(inner, BaseException) else error.__cause__ or error.__context__
