"""The quotas of clients and the settings of groups, in the topic `__dynamic_configs` of a root, for all gateways."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from distlog.gateway.groups.group_configs import GroupConfigs, decode_setting, encode_setting
from distlog.gateway.root.client_quotas import Changes, check_change, decode_change, encode_change
from distlog.gateway.root.root_records import RootRecords
from distlog.gateway.server.quotas import Entity, Limits, Quotas
from distlog.gateway.topics.metadata_cache import CONFIGS_TOPIC, MetadataCache

#: An entity and the name of a quota, or a group and the name of a setting.
_Key = tuple[Entity | str, str]


class DynamicConfigs:
    """The changes of administrators while the gateways of a root run; `quotas` and `groups` get them."""

    def __init__(
        self, metadata: MetadataCache, quotas: Quotas, groups: GroupConfigs, clock: Callable[[], int]
    ) -> None:
        self._quotas, self.groups = quotas, groups
        self._records = RootRecords[_Key, float](metadata, CONFIGS_TOPIC, clock, decode_config, self._set)

    @property
    def limits(self) -> Limits:
        """The quotas as of the last refresh."""
        return self._quotas.limits

    def refresh(self) -> None:
        """Read what was changed, by any gateway. Raises DistlogError."""
        self._records.refresh()

    def alter_quotas(self, entity: Entity, changes: Changes) -> None:
        """Keep new values; they are durable, and count here, when this returns. Raises DistlogError."""
        check_change(entity, changes)
        self._records.append([encode_change(entity, name, value) for name, value in sorted(changes.items())])

    def alter_group(self, group: str, changes: Mapping[str, int | None]) -> None:
        """Keep new settings of a group, as `alter_quotas` keeps quotas."""
        self._records.append([encode_setting(group, name, value) for name, value in sorted(changes.items())])

    def _set(self, values: Mapping[_Key, float]) -> None:
        limits: dict[Entity, dict[str, float]] = {}
        settings: dict[tuple[str, str], int] = {}
        for (subject, name), value in values.items():
            if isinstance(subject, Entity):
                limits.setdefault(subject, {})[name] = value
            else:
                settings[subject, name] = int(value)
        self._quotas.set(limits)
        self.groups.set(settings)


def decode_config(key: bytes, value: bytes | None) -> tuple[_Key, float | None]:
    """The subject, the name and the value of a record. Raises InvalidConfigError, ValueError for a record of none."""
    try:
        fields: Any = json.loads(key)
        return decode_setting(fields, value) if "group" in fields else decode_change(fields, value)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError("this is not a quota or a setting") from error
