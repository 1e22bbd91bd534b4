"""The SCRAM credentials of users as records in the topic `__user_credentials` of a root (KIP-554)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from distlog.core.errors import InvalidConfigError
from distlog.gateway.root.root_records import RootRecords, UnknownValueError
from distlog.gateway.security.users_file import HASHES, ScramSecret, check_name, parsed_secret, written_secret
from distlog.gateway.topics.metadata_cache import CREDENTIALS_TOPIC, MetadataCache


class RootUsers:
    """The credentials in a root, for many threads; `clock` returns ms."""

    def __init__(self, metadata: MetadataCache, clock: Callable[[], int]) -> None:
        #: The secrets of each user by their mechanisms, as of the last refresh; another object after a change.
        self.secrets: Mapping[str, Mapping[str, ScramSecret]] = {}
        self._records = RootRecords(metadata, CREDENTIALS_TOPIC, clock, decode_credential, self._set)
        #: Reads what was changed, by any gateway. Raises DistlogError.
        self.refresh = self._records.refresh

    def alter(self, changes: Iterable[tuple[Credential, ScramSecret | None]]) -> None:
        """Set credentials, None removes one; they are durable, and count here, when this returns."""
        self._records.append([encode_credential(name, secret) for name, secret in changes])

    def _set(self, secrets: Mapping[Credential, ScramSecret]) -> None:
        users: dict[str, dict[str, ScramSecret]] = {}
        for name, secret in secrets.items():
            users.setdefault(name.user, {})[name.mechanism] = secret
        self.secrets = users


# A credential as a record: the user and the mechanism in the key, and in the value a secret as the file of users has
# it, without a password. A record without a value removes it.

_MALFORMED = (ValueError, KeyError, TypeError, AttributeError, RecursionError)


class Credential(NamedTuple):
    """The name of a credential."""

    user: str
    mechanism: str


def encode_credential(name: Credential, secret: ScramSecret | None) -> tuple[bytes, bytes | None]:
    """The key and the value of a record; None removes a credential."""
    key = json.dumps(name._asdict(), sort_keys=True).encode()
    return key, None if secret is None else json.dumps(written_secret(secret)).encode()


def decode_credential(key: bytes, value: bytes | None) -> tuple[Credential, ScramSecret | None]:
    """The credential of a record. Raises InvalidConfigError, ValueError for another record, without its content.

    UnknownValueError for an unreadable secret: the former one was replaced, and must not stay valid.
    """
    try:
        fields: Any = json.loads(key)
        name = Credential(check_name(fields["user"]), fields["mechanism"])
        if name.mechanism not in HASHES:
            raise ValueError("an unknown mechanism")
    except InvalidConfigError:
        raise
    except _MALFORMED:
        raise ValueError("this is not a credential") from None
    try:
        return name, None if value is None else parsed_secret(name.mechanism, json.loads(value))
    except _MALFORMED:
        raise UnknownValueError(name, "this is not a credential") from None
