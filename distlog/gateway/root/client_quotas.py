"""The quotas of clients as records."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from distlog.core.errors import InvalidConfigError
from distlog.gateway.server.quotas import CLIENT_ID, MOST_NAME_BYTES, NAMES, REQUEST_PERCENTAGE, USER, Entity

# A quota as a record: {"client-id": null, "user": "alice"} and its name in the key, a number in the value. Null is
# the default entity. The newest record of a key counts, and one without a value removes the quota.

#: The largest value of a quota, as of Kafka's LONG settings.
_MOST = float(1 << 63)

#: The new values of quotas by their names; None removes one.
Changes = Mapping[str, float | None]


def check_change(entity: Entity, changes: Changes) -> None:
    """Raise InvalidConfigError for an entity or a quota that cannot be."""
    types = [kind for kind, _ in entity.parts]
    if "ip" in types:
        raise InvalidConfigError("there are no quotas of addresses: max.connections.per.ip bounds their connections")
    if not types or not {USER, CLIENT_ID}.issuperset(types):
        raise InvalidConfigError("quotas are of users and client ids", types=", ".join(types))
    for _, name in entity.parts:
        if name is not None and not 0 < len(name.encode()) <= MOST_NAME_BYTES:
            raise InvalidConfigError("the name of a user or client id is empty or too long")
    for name, value in changes.items():
        if name not in NAMES:
            raise InvalidConfigError(f"a quota is one of {', '.join(NAMES)}", found=name)
        if value is not None and not (0 < value < _MOST and (value == int(value) or name == REQUEST_PERCENTAGE)):
            raise InvalidConfigError("a quota is above 0, and a whole number if it counts bytes", found=str(value))


def encode_change(entity: Entity, name: str, value: float | None) -> tuple[bytes, bytes | None]:
    """The key and the value of a record."""
    key = json.dumps({"entity": dict(entity.parts), "quota": name}, sort_keys=True).encode()
    return key, None if value is None else json.dumps(value).encode()


def decode_change(fields: Mapping[str, Any], value: bytes | None) -> tuple[tuple[Entity, str], float | None]:
    """The entity, the quota's name, and its value, of a key's `fields`."""
    entity, name = Entity.of(dict(fields["entity"])), str(fields["quota"])
    changed = None if value is None else float(json.loads(value))
    check_change(entity, {name: changed})
    return (entity, name), changed
