"""The quotas of clients as records in the topic `__client_quotas` of a root: the same for all its gateways."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from distlog.core.errors import InvalidConfigError
from distlog.gateway.root_records import RootRecords
from distlog.gateway.server.quotas import (
    CLIENT_ID,
    MOST_NAME_BYTES,
    NAMES,
    REQUEST_PERCENTAGE,
    USER,
    Entity,
    Limits,
    Quotas,
)
from distlog.gateway.topics.metadata_cache import QUOTAS_TOPIC, MetadataCache

# ---
# A quota as a record: {"client-id": null, "user": "alice"} and its name in the key, a number in the value. Null is
# the default entity. The newest record of a key counts, and one without a value removes the quota.


#: The largest value of a quota, as of Kafka's LONG settings.
_MOST = float(1 << 63)

#: The new values of quotas by their names; None removes one.
Changes = Mapping[str, float | None]


def check_change(entity: Entity, changes: Changes) -> None:
    """Raise InvalidConfigError for an entity or a quota that cannot be."""
    types = [each for each, _ in entity.parts]
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


def decode_change(key: bytes, value: bytes | None) -> tuple[tuple[Entity, str], float | None]:
    """The entity, the quota's name, and its value. Raises InvalidConfigError, ValueError for a record of none."""
    try:
        fields: Any = json.loads(key)
        entity, name = Entity.of(dict(fields["entity"])), str(fields["quota"])
        changed = None if value is None else float(json.loads(value))
        check_change(entity, {name: changed})
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError("this is no quota") from error
    return (entity, name), changed


# ---
# Reads and changes the quotas of a root.


class ClientQuotas:
    """The quotas in a root; `quotas` gets them when they change. For many threads; `clock` tells the ms."""

    def __init__(self, metadata: MetadataCache, quotas: Quotas, clock: Callable[[], int]) -> None:
        self._quotas = quotas
        self._records = RootRecords(metadata, QUOTAS_TOPIC, clock, decode_change, self._set)

    @property
    def limits(self) -> Limits:
        """The quotas as of the last look."""
        return self._quotas.limits

    def look(self) -> None:
        """Read what was changed, by any gateway. Raises DistlogError."""
        self._records.look()

    def alter(self, entity: Entity, changes: Changes) -> None:
        """Keep new values; they are durable, and count here, when this returns. Raises DistlogError."""
        check_change(entity, changes)
        self._records.append([encode_change(entity, name, value) for name, value in sorted(changes.items())])

    def _set(self, values: Mapping[tuple[Entity, str], float]) -> None:
        limits: dict[Entity, dict[str, float]] = {}
        for (entity, name), value in values.items():
            limits.setdefault(entity, {})[name] = value
        self._quotas.set(limits)
