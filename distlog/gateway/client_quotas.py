"""The quotas of clients as records in the topic `__client_quotas` of a root: the same for all its gateways."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from distlog.core.batches.record_batch import CONTROL
from distlog.core.batches.record_decoder import decode
from distlog.core.config import TopicConfig
from distlog.core.errors import DistlogError, InvalidConfigError, TopicNotFoundError
from distlog.core.maintenance.cleaning_plan import first_dirty_offset
from distlog.gateway.server.quotas import CLIENT_ID, NAMES, REQUEST_PERCENTAGE, USER, Entity, Limits, Quotas
from distlog.gateway.topics.metadata_cache import QUOTAS_TOPIC, HostedTopic, MetadataCache
from distlog.gateway.topics.partition import READ_BYTES, PartitionTail
from distlog.gateway.transactions.transaction_log import own_batch

# ---
# A quota as a record: {"client-id": null, "user": "alice"} and its name in the key, a number in the value. Null is
# the default entity. The newest record of a key counts, and one without a value removes the quota.


_log = logging.getLogger("distlog.gateway")
_CONFIG = TopicConfig.parse({"cleanup.policy": "compact"})
_COLUMNS = ("offset", "key", "value")
_MOST_NAME_BYTES = 1 << 10
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
        if name is not None and not 0 < len(name.encode()) <= _MOST_NAME_BYTES:
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


def take_change(limits: dict[Entity, dict[str, float]], key: bytes | None, value: bytes | None) -> None:
    """Change limits by a record. Raises InvalidConfigError, ValueError for one that is none."""
    try:
        fields: Any = json.loads(key or b"")
        entity, name = Entity.of(dict(fields["entity"])), str(fields["quota"])
        changed = None if value is None else float(json.loads(value))
        check_change(entity, {name: changed})
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError("this is no quota") from error
    of_entity = limits.setdefault(entity, {})
    if changed is None:
        of_entity.pop(name, None)
    else:
        of_entity[name] = changed
    if not of_entity:
        del limits[entity]


# ---
# Reads and changes the quotas of a root.


class ClientQuotas:
    """The quotas in a root; `quotas` gets them when they change. For many threads; `clock` tells the ms."""

    def __init__(self, metadata: MetadataCache, quotas: Quotas, clock: Callable[[], int]) -> None:
        self._metadata, self._quotas, self._clock = metadata, quotas, clock
        self._lock = threading.Lock()
        self._hosted: HostedTopic | None = None
        self._tail = PartitionTail(lambda offset: None)
        self._limits: dict[Entity, dict[str, float]] = {}

    @property
    def limits(self) -> Limits:
        """The quotas as of the last look."""
        return self._quotas.limits

    def look(self) -> None:
        """Read what was changed, by any gateway. Raises DistlogError."""
        with self._lock:
            try:
                hosted = self._metadata.fresh_topic(QUOTAS_TOPIC)
                hosted.refresh()
            except TopicNotFoundError:
                if self._hosted is not None:
                    self._hosted, self._limits = None, {}
                    self._quotas.set({})
                return
            if self._read(hosted):
                self._quotas.set({entity: dict(each) for entity, each in self._limits.items()})

    def alter(self, entity: Entity, changes: Changes) -> None:
        """Keep new values; they are durable, and count here, when this returns. Raises DistlogError."""
        check_change(entity, changes)
        if changes:
            records = [encode_change(entity, name, value) for name, value in sorted(changes.items())]
            hosted = self._metadata.own_topic(QUOTAS_TOPIC, 1, _CONFIG)
            hosted.append_run(0, own_batch(records, self._clock()), lambda snapshot: None)
            self.look()

    def _read(self, hosted: HostedTopic) -> bool:
        """Take new records; whether there are any."""
        partition = hosted.partition(0)
        if hosted is not self._hosted:
            self._hosted, self._limits = hosted, {}
            self._tail = PartitionTail(lambda offset: partition.fetch(offset, READ_BYTES, committed=False).batches)
        state = partition.fresh.snapshot.partitions[0]
        if max(first_dirty_offset(state), state.log_start_offset) > self._tail.offset:
            # the part that is not read yet was cleaned, and may have had the end of a quota
            self._limits = {}
            self._tail.offset = state.log_start_offset
        has_changed = False
        for batches in self._tail.batches():
            rows = batches.rows[batches.rows["attributes"] & CONTROL == 0]
            for row in decode(batches.data, rows, columns=_COLUMNS).to_pylist():
                has_changed = True
                try:
                    take_change(self._limits, row["key"], row["value"])
                except (ValueError, DistlogError) as error:
                    _log.error("a record of %s is no quota: %s (offset=%s)", QUOTAS_TOPIC, error, row["offset"])
        return has_changed
