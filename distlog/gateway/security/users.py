"""The users of a gateway, and the file that they are kept in: JSON, in which no password is.

{"format": 1,
 "decoy": "<base64>",
 "users": {"alice": {"SCRAM-SHA-256": {"salt": "<base64>", "iterations": 16384,
                                       "stored_key": "<base64>", "server_key": "<base64>"},
                     "SCRAM-SHA-512": ...}}}
"""

from __future__ import annotations

import hashlib
import hmac
import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from distlog.core.errors import InvalidConfigError
from distlog.gateway.security.scram_secret import HASHES, ITERATIONS, MAX_ITERATIONS, MIN_ITERATIONS, ScramSecret

_FORMAT = 1
_DECOY_BYTES = 32
MAX_NAME_BYTES = 255


@dataclass(frozen=True, slots=True)
class Users:
    """All users by name, each with a secret for every mechanism.

    `decoy` is a key from which those who do not exist get salts of their own, always the same, so that nobody can
    tell them from users.
    """

    decoy: bytes = field(repr=False)
    secrets: Mapping[str, Mapping[str, ScramSecret]] = field(repr=False)

    def secret(self, name: str, mechanism: str) -> tuple[ScramSecret, bool]:
        """The secret of a user, and True; for anybody else one that no password fits, and False."""
        found = self.secrets.get(name)
        if found is not None:
            return found[mechanism], True
        algorithm = HASHES[mechanism]
        salt = hmac.digest(self.decoy, f"{mechanism} {name}".encode(errors="surrogateescape"), "sha256")
        key = bytes(hashlib.new(algorithm).digest_size)
        return ScramSecret(salt, ITERATIONS, key, key), False

    def with_user(self, name: str, secrets: Mapping[str, ScramSecret]) -> Users:
        """The users with this one, instead of the one with that name. Raises InvalidConfigError."""
        return replace(self, secrets={**self.secrets, check_name(name): secrets})

    def without_user(self, name: str) -> Users:
        """The users without this one. Raises InvalidConfigError if there is none with that name."""
        if name not in self.secrets:
            raise InvalidConfigError("there is no such user", user=name)
        return replace(self, secrets={each: kept for each, kept in self.secrets.items() if each != name})

    def to_json(self) -> str:
        """The file's text."""
        users = {
            name: {mechanism: _written(secret) for mechanism, secret in sorted(secrets.items())}
            for name, secrets in sorted(self.secrets.items())
        }
        document = {"format": _FORMAT, "decoy": b64encode(self.decoy).decode(), "users": users}
        return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def parse_users(text: str) -> Users:
    """The users that `to_json` wrote. Raises InvalidConfigError, which does not quote the file."""
    try:
        document = json.loads(text)
        if document["format"] != _FORMAT:
            raise InvalidConfigError("the file of users has a format that only a newer distlog may know")
        decoy = b64decode(document["decoy"], validate=True)
        users = {check_name(name): _secrets(name, each) for name, each in document["users"].items()}
        if len(decoy) != _DECOY_BYTES:
            raise ValueError("the decoy has another length")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, InvalidConfigError):
            raise
        raise InvalidConfigError("this is no file of users: make one with `distlog users`") from None
    return Users(decoy, users)


def check_name(name: str) -> str:
    """The name of a user. Raises InvalidConfigError for one that no client could send, or no log could show."""
    if not 0 < len(name.encode(errors="replace")) <= MAX_NAME_BYTES or not name.isprintable():
        raise InvalidConfigError(f"a user's name has 1 to {MAX_NAME_BYTES} bytes, all printable", user=ascii(name))
    return name


def _written(secret: ScramSecret) -> dict[str, Any]:
    keys = {"salt": secret.salt, "stored_key": secret.stored_key, "server_key": secret.server_key}
    return {"iterations": secret.iterations, **{name: b64encode(key).decode() for name, key in keys.items()}}


def _secrets(name: str, fields: Any) -> dict[str, ScramSecret]:
    try:
        return {mechanism: _secret(mechanism, fields[mechanism]) for mechanism in HASHES}
    except (ValueError, KeyError, TypeError):
        raise InvalidConfigError("a user has no whole secret: set the password again", user=name) from None


def _secret(mechanism: str, fields: Any) -> ScramSecret:
    salt, stored, server = (b64decode(fields[key], validate=True) for key in ("salt", "stored_key", "server_key"))
    size, iterations = hashlib.new(HASHES[mechanism]).digest_size, fields["iterations"]
    if type(iterations) is not int or not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
        raise ValueError("iterations")
    if len(stored) != size or len(server) != size or not salt:
        raise ValueError("keys")
    return ScramSecret(salt, iterations, stored, server)
