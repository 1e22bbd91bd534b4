"""Kafka's broker settings as fields of dataclasses: each field knows its setting's name, bounds and meaning.

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
    return {each.name: each.metadata[_SETTING] for each in dataclasses.fields(kind) if _SETTING in each.metadata}


def given(kind: type[Any], settings: Mapping[str, object]) -> dict[str, Any]:
    """The values of the dataclass's fields that Kafka-named `settings` give; others are left out."""
    defaults = {each.name: each.default for each in dataclasses.fields(kind)}
    by_field = {
        name: (one, next((present for present in one.names if present in settings), None))
        for name, one in settings_of(kind).items()
    }
    return {
        name: _value(one, present, settings[present], defaults[name])
        for name, (one, present) in by_field.items()
        if present is not None
    }


def shown(values: Any) -> Iterator[tuple[BrokerSetting, str, bool]]:
    for each in dataclasses.fields(values):
        one, value = each.metadata.get(_SETTING), getattr(values, each.name)
        if one is not None:
            yield one, _text(one, value), value == each.default


def _text(one: BrokerSetting, value: Any) -> str:
    if value is None:
        return "-1"
    if isinstance(value, str):
        return value
    return str(value).lower() if isinstance(value, bool) else str(value // one.unit)


def _value(one: BrokerSetting, name: str, value: object, default: Any) -> int | bool | str | None:
    text = str(value).strip()
    if isinstance(default, str):
        return text
    if isinstance(default, bool):
        if text.lower() not in ("true", "false"):
            raise InvalidConfigError(f"{name} must be true or false", value=value)
        return text.lower() == "true"
    if default is None and text == "-1":
        return None
    return one.unit * setting_number(name, value, one.least, one.most)


def setting_number(name: str, value: object, least: int, most: int = MAX_LONG) -> int:
    try:
        number = int(str(value).strip())
    except ValueError:
        hint = without_unit(name, str(value).strip(), lambda number: least <= number <= most)
        raise InvalidConfigError(f"{name} must be a whole number{hint}", value=value) from None
    if not least <= number <= most:
        raise InvalidConfigError(f"{name} must be between {least} and {most}", value=value)
    return number
