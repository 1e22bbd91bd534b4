"""Files of users for tests, and what a client of SASL sends, word for word."""

from __future__ import annotations

import hashlib
import hmac
import itertools
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

from gateways import Wire

from distlog.gateway.security.users_file import HASHES, MIN_ITERATIONS, secret_of, write_users

HANDSHAKE, AUTHENTICATE = 17, 36
PASSWORD = "open, sesame = päss"


def users_file(folder: Path, *names: str, password: str = PASSWORD) -> str:
    """A file with these users, who have the same password, and few iterations; others in it stay."""
    path = str(folder / "users.json")
    salt = itertools.count(1)
    for name in names:
        secrets = {
            mechanism: secret_of(mechanism, password, b"salt %d" % next(salt), MIN_ITERATIONS) for mechanism in HASHES
        }
        write_users(path, lambda users, name=name, secrets=secrets: users.with_user(name, secrets))  # type: ignore[misc]
    return path


class SaslWire(Wire):
    """A connection that can authenticate, by any words."""

    def choose(self, mechanism: str, version: int = 1) -> Any:
        """The response to SaslHandshake."""
        return self.ask(HANDSHAKE, version, mechanism=mechanism)

    def prove(self, token: bytes, version: int = 2) -> Any:
        """The response to SaslAuthenticate."""
        return self.ask(AUTHENTICATE, version, auth_bytes=token)

    def log_in(self, name: str = "alice", password: str = PASSWORD, mechanism: str = "PLAIN") -> Any:
        """The last response of a whole exchange."""
        self.choose(mechanism)
        if mechanism == "PLAIN":
            return self.prove(f"\0{name}\0{password}".encode())
        answer = self.prove(client_first(name))
        return self.prove(client_last(mechanism, name, password, answer.auth_bytes.decode()))


NONCE = "rOprNGfwEbeRWgbNEkqO"


def client_first(name: str, nonce: str = NONCE) -> bytes:
    escaped = name.replace("=", "=3D").replace(",", "=2C")
    return f"n,,n={escaped},r={nonce}".encode()


def client_last(
    mechanism: str, name: str, password: str, server_first: str, *, binding: str = "biws", suffix: str = ""
) -> bytes:
    """A client's last SCRAM message, by RFC 5802, independent of the server's code.

    The proof is right also for another `binding`, and for a nonce with a `suffix`.
    """
    algorithm = HASHES[mechanism]
    nonce, salt, iterations = (part[2:] for part in server_first.split(","))
    salted = hashlib.pbkdf2_hmac(algorithm, password.encode(), b64decode(salt), int(iterations))
    client_key = hmac.new(salted, b"Client Key", algorithm).digest()
    stored_key = hashlib.new(algorithm, client_key).digest()
    without = f"c={binding},r={nonce}{suffix}"
    message = ",".join((client_first(name)[3:].decode(), server_first, without))
    signature = hmac.new(stored_key, message.encode(), algorithm).digest()
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    return f"{without},p={b64encode(proof).decode()}".encode()
