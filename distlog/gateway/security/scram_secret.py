"""What a server keeps of a password for SCRAM (RFC 5802 and 7677): enough to check it, and not to log in with it.

As in Kafka and its clients, a name and a password are their UTF-8 bytes, without SASLprep.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass, field

#: The hash function of each mechanism.
HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
#: How often a new secret is hashed: the most that Kafka lets its own be. What clients take has a lower bound.
ITERATIONS = 16_384
MIN_ITERATIONS, MAX_ITERATIONS = 4096, 1 << 20
SALT_BYTES = 32


@dataclass(frozen=True, slots=True)
class ScramSecret:
    """One user's secret for one mechanism. It never shows its keys."""

    salt: bytes
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)


def secret_of(mechanism: str, password: str, salt: bytes, iterations: int) -> ScramSecret:
    """The secret of a password; it takes some ms, on purpose."""
    name = HASHES[mechanism]
    salted = hashlib.pbkdf2_hmac(name, password.encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", name)
    return ScramSecret(
        salt, iterations, hashlib.new(name, client_key).digest(), hmac.digest(salted, b"Server Key", name)
    )


def new_secrets(password: str, random: Callable[[int], bytes]) -> dict[str, ScramSecret]:
    """Secrets of a password for all mechanisms, with salts from `random`."""
    return {mechanism: secret_of(mechanism, password, random(SALT_BYTES), ITERATIONS) for mechanism in HASHES}
