"""The settings of single groups, which administrators change while gateways run: Kafka's resource GROUP."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from distlog.core.errors import InvalidConfigError
from distlog.core.limits import MAX_INT
from distlog.core.log_manager.broker_config import settings_of
from distlog.gateway.config import GroupSettings


class GroupConfigs:
    """The settings of groups: the broker's, and the ones that were set for a group; for many threads."""

    def __init__(self, settings: GroupSettings) -> None:
        self.settings = settings
        self._overrides: Mapping[str, Mapping[str, int]] = {}
        self._of: Mapping[str, GroupSettings] = {}

    def of(self, group: str) -> GroupSettings:
        """The settings of a group."""
        return self._of.get(group, self.settings)

    @property
    def groups(self) -> list[str]:
        """The groups with settings of their own, which need not exist."""
        return sorted(self._overrides)

    def overrides(self, group: str) -> Mapping[str, int]:
        """The settings that were set for a group."""
        return self._overrides.get(group, {})

    def described(self, group: str) -> Iterator[GroupSetting]:
        """All settings of a group."""
        values, overrides, defaults = self.of(group), self.overrides(group), GroupSettings()
        for name, (field, _, _) in _FIELDS.items():
            value = getattr(values, field)
            is_default = value == getattr(defaults, field)
            yield GroupSetting(name, value, name in overrides, is_default, _BROKER[field].meaning)

    def set(self, values: Mapping[tuple[str, str], int]) -> None:
        """Take the settings of all groups, by the group and the name."""
        overrides: dict[str, dict[str, int]] = {}
        for (group, name), value in values.items():
            overrides.setdefault(group, {})[name] = value
        self._of = {group: self._with(group_overrides) for group, group_overrides in overrides.items()}
        self._overrides = overrides

    def checked(self, group: str, changes: Mapping[str, str | None]) -> dict[str, int | None]:
        """The changes as numbers; None removes a setting. Raises InvalidConfigError in the words of brokers."""
        numbers = {name: None if value is None else _number(name, value) for name, value in changes.items()}
        numbers = {name: value for name, value in numbers.items() if name in _FIELDS}
        changed = {**self.overrides(group), **numbers}
        settings = self._with({name: value for name, value in changed.items() if value is not None})
        for name, fields in _FIELDS.items():
            value, least, most = (getattr(settings, field) for field in fields)
            if numbers.get(name) is not None and value < least:
                raise InvalidConfigError(f"{name} must be greater than or equal to {_BROKER[fields[1]].name}")
            if numbers.get(name) is not None and value > most:
                raise InvalidConfigError(f"{name} must be less than or equal to {_BROKER[fields[2]].name}")
        if settings.consumer_session_timeout_ms <= settings.consumer_heartbeat_interval_ms:
            raise InvalidConfigError(f"{SESSION_TIMEOUT} must be greater than {HEARTBEAT_INTERVAL}")
        return numbers

    def _with(self, overrides: Mapping[str, int]) -> GroupSettings:
        return dataclasses.replace(self.settings, **{_FIELDS[name][0]: value for name, value in overrides.items()})


#: The settings of a group by Kafka's names: the field with its default, and those with its bounds.
_FIELDS = {
    f"consumer.{name}": tuple(f"consumer_{bound}{name.replace('.', '_')}" for bound in ("", "min_", "max_"))
    for name in ("session.timeout.ms", "heartbeat.interval.ms")
}
SESSION_TIMEOUT, HEARTBEAT_INTERVAL = _FIELDS
_BROKER = settings_of(GroupSettings)
#: The settings of kinds of groups that there are not.
_OTHER_KINDS = ("share.", "streams.")


class GroupSetting(NamedTuple):
    """A setting of a group with its current value."""

    name: str
    value: int
    is_override: bool
    is_default: bool
    meaning: str


def _number(name: str, value: str) -> int:
    if name.startswith(_OTHER_KINDS):
        raise InvalidConfigError(f"This server has no share groups and no streams groups: {name}")
    if name not in _FIELDS:
        raise InvalidConfigError(f"Unknown group config name: {name}")
    text = value.strip()
    if not (text.isascii() and text.isdecimal() and int(text) <= MAX_INT):
        raise InvalidConfigError(f"Invalid value {text} for configuration {name}: Not a number of type INT")
    return int(text)


def encode_setting(group: str, name: str, value: int | None) -> tuple[bytes, bytes | None]:
    """The key and the value of a record."""
    key = json.dumps({"group": group, "setting": name}, sort_keys=True).encode()
    return key, None if value is None else b"%d" % value


def decode_setting(fields: Mapping[str, Any], value: bytes | None) -> tuple[tuple[str, str], int | None]:
    """The group, the setting's name, and its value, of a key's `fields`."""
    name, number = str(fields["setting"]), None
    if value is not None and not (number := _number(name, value.decode())):
        raise ValueError("no setting of a group is 0")
    return (str(fields["group"]), name), number
