"""Checks what clients prove: SASL's PLAIN (RFC 4616) and SCRAM (RFC 5802), as messages, without any network."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import NamedTuple

from distlog.core.errors import DistlogError
from distlog.gateway.security.scram_secret import HASHES, ScramSecret, secret_of
from distlog.gateway.security.users import MAX_NAME_BYTES, Users

PLAIN = "PLAIN"
MECHANISMS = (PLAIN, *HASHES)
#: Of the two secrets of a user, PLAIN is checked by the one that costs less.
_PLAIN_BY = "SCRAM-SHA-256"
_NONCE_BYTES = 24
_MAX_TOKEN_BYTES = 8 << 10
_FIRST = re.compile(
    r"(?P<gs2>[ny],(?:a=(?P<as>[^,]*))?,)(?P<bare>n=(?P<name>[^,]+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)(?:,.*)?)"
)
_LAST = re.compile(r"(?P<without>c=(?P<gs2>[^,]*),r=(?P<nonce>[^,]*)(?:,[^,]*)*),p=(?P<proof>[A-Za-z0-9+/=]+)")
_NAME = re.compile(r"(?:[^=]|=2C|=3D)+")


def new_nonce() -> str:
    """Random text, of characters that a SCRAM message may have."""
    return b64encode(os.urandom(_NONCE_BYTES)).decode()


class AuthenticationFailedError(DistlogError):
    """A client did not prove who it is. What is wrong is not told."""


class Proved(NamedTuple):
    """A user, and the secret by which it was proved."""

    name: str
    secret: ScramSecret


def check_plain(token: bytes, users: Users) -> Proved:
    """The user of a PLAIN message. Raises AuthenticationFailedError, as late for unknown users as for others."""
    parts = _text(token).split("\0")
    if len(parts) != 3:
        raise AuthenticationFailedError("a PLAIN message has another form")
    acts_as, name, password = parts
    secret, exists = users.secret(_known_name(name, acts_as), _PLAIN_BY)
    made = secret_of(_PLAIN_BY, password, secret.salt, secret.iterations)
    if not hmac.compare_digest(made.stored_key, secret.stored_key) or not exists or not password:
        raise AuthenticationFailedError("no such user, or another password")
    return Proved(name, secret)


class ScramExchange:
    """The server's side of one SCRAM exchange: `first`, then `last`. Kafka's clients have no channel binding."""

    def __init__(self, mechanism: str, users: Users, nonce: Callable[[], str]) -> None:
        self._mechanism, self._users, self._new_nonce = mechanism, users, nonce

    def first(self, token: bytes) -> bytes:
        """The answer to a client's first message. Raises AuthenticationFailedError."""
        found = _FIRST.fullmatch(_text(token))
        if found is None or not _NAME.fullmatch(found["name"]):
            raise AuthenticationFailedError("a SCRAM message has another form")
        self._name = _known_name(_unescaped(found["name"]), _unescaped(found["as"] or ""))
        self._secret, self._exists = self._users.secret(self._name, self._mechanism)
        self._gs2, self._nonce = found["gs2"], found["nonce"] + self._new_nonce()
        answer = f"r={self._nonce},s={b64encode(self._secret.salt).decode()},i={self._secret.iterations}"
        self._messages = f"{found['bare']},{answer}"
        return answer.encode()

    def last(self, token: bytes) -> tuple[bytes, Proved]:
        """The answer to a client's last message, which proves us too; the user. Raises AuthenticationFailedError."""
        found = _LAST.fullmatch(_text(token))
        if found is None or found["nonce"] != self._nonce or _decoded(found["gs2"]) != self._gs2.encode():
            raise AuthenticationFailedError("a SCRAM message has another form")
        algorithm, message = HASHES[self._mechanism], f"{self._messages},{found['without']}".encode()
        signature = hmac.digest(self._secret.stored_key, message, algorithm)
        proof = _decoded(found["proof"])
        if len(proof) != len(signature):
            raise AuthenticationFailedError("a SCRAM message has another form")
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        stored = hashlib.new(algorithm, client_key).digest()
        if not hmac.compare_digest(stored, self._secret.stored_key) or not self._exists:
            raise AuthenticationFailedError("no such user, or another password")
        verifier = b64encode(hmac.digest(self._secret.server_key, message, algorithm))
        return b"v=" + verifier, Proved(self._name, self._secret)


def _text(token: bytes) -> str:
    if len(token) > _MAX_TOKEN_BYTES:
        raise AuthenticationFailedError("a SASL message is too long")
    try:
        return bytes(token).decode()
    except UnicodeDecodeError:
        raise AuthenticationFailedError("a SASL message is no UTF-8") from None


def _known_name(name: str, acts_as: str) -> str:
    """The name, if it can be one, and nobody wants to act as somebody else."""
    if not name or len(name.encode()) > MAX_NAME_BYTES or acts_as not in ("", name):
        raise AuthenticationFailedError("no such user, or another password")
    return name


def _unescaped(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")


def _decoded(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise AuthenticationFailedError("a SCRAM message has another form") from None
