"""Settings of a Kafka broker as fields of dataclasses: each field has its setting's name, bounds and meaning.

A field may count in another unit than its setting, as `offsets.retention.minutes` does in ms.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any, NamedTuple

from distlog.core.config import without_unit
from distlog.core.errors import InvalidConfigError
from distlog.core.limits import MAX_LONG

_SETTING = "broker_setting"


class BrokerSetting(NamedTuple):
    """A setting by its names, the first of which is shown; its value times `unit` is the field's."""

    names: tuple[str, ...]
    meaning: str
    least: int
    most: int
    unit: int

    @property
    def name(self) -> str:
        return self.names[0]


def broker_setting(
    names: str, default: Any, meaning: str = "", *, least: int = 0, most: int = MAX_LONG, unit: int = 1
) -> Any:
    """A field for a setting: a number, true or false, or text; the first of `names`, parted by spaces, counts.

    With the default None -1 asks for it.
    """
    return field(
        default=default, metadata={_SETTING: BrokerSetting(tuple(names.split()), meaning, least, most, unit)}
    )


def settings_of(kind: Any) -> dict[str, BrokerSetting]:
    return {
        setting_field.name: setting_field.metadata[_SETTING]
        for setting_field in dataclasses.fields(kind)
        if _SETTING in setting_field.metadata
    }


def given_values(kind: type[Any], settings: Mapping[str, object]) -> dict[str, Any]:
    """The values of the dataclass's fields that Kafka-named `settings` give; others are left out."""
    defaults = {setting_field.name: setting_field.default for setting_field in dataclasses.fields(kind)}
    by_field = {
        name: (setting, next((present for present in setting.names if present in settings), None))
        for name, setting in settings_of(kind).items()
    }
    return {
        name: _value(setting, present, settings[present], defaults[name])
        for name, (setting, present) in by_field.items()
        if present is not None
    }


def shown(values: Any) -> Iterator[tuple[BrokerSetting, str, bool]]:
    for setting_field in dataclasses.fields(values):
        setting, value = setting_field.metadata.get(_SETTING), getattr(values, setting_field.name)
        if setting is not None:
            yield setting, _text(setting, value), value == setting_field.default


def _text(setting: BrokerSetting, value: Any) -> str:
    if value is None:
        return "-1"
    if isinstance(value, str):
        return value
    return str(value).lower() if isinstance(value, bool) else str(value // setting.unit)


def _value(setting: BrokerSetting, name: str, value: object, default: Any) -> int | bool | str | None:
    text = str(value).strip()
    if isinstance(default, str):
        return text
    if isinstance(default, bool):
        if text.lower() not in ("true", "false"):
            raise InvalidConfigError(f"{name} must be true or false", value=value)
        return text.lower() == "true"
    if default is None and text == "-1":
        return None
    return setting.unit * setting_number(name, value, setting.least, setting.most)


def setting_number(name: str, value: object, least: int, most: int = MAX_LONG) -> int:
    try:
        number = int(str(value).strip())
    except ValueError:
        hint = without_unit(name, str(value).strip(), lambda number: least <= number <= most)
        raise InvalidConfigError(f"{name} must be a whole number{hint}", value=value) from None
    if not least <= number <= most:
        raise InvalidConfigError(f"{name} must be between {least} and {most}", value=value)
    return number
