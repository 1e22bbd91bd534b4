"""Parses the options that Spark passes: strings under case-insensitive names.

Options that Spark or a Kafka job adds are ignored. A name that is almost one of ours is refused, since a misspelt
option that does nothing is worse than an error.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from typing import Any

from distlog.core.errors import InvalidConfigError
from distlog.core.storage.storage import Storage

STORAGE_PREFIX = "storage."

#: How similar (0 to 1) an unknown name must be to one of ours to count as misspelt.
_ALIKE = 0.75
#: The same for options of Kafka's clients: there are many, and names like kafka.compression.zstd.level are right.
_KAFKA_PREFIX, _KAFKA_ALIKE = "kafka.", 0.9


def storage_of(given: Mapping[str, str]) -> Storage:
    """The storage that `path` and the `storage.` options name."""
    path, settings = place_of(given)
    return Storage(path, settings)


def place_of(given: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """The option `path`, and the `storage.` options by their names without that; raises InvalidConfigError."""
    path = given.get("path")
    if not path:
        raise InvalidConfigError(
            "no topic is named: give its path or URL to load() or save(), as in load('s3://bucket/logs/clicks'); "
            "for SQL make a temporary view with the option path, since tables of the catalog lose their options"
        )
    prefix = len(STORAGE_PREFIX)
    settings = {name[prefix:]: value for name, value in given.items() if name.lower().startswith(STORAGE_PREFIX)}
    return path, settings


def storage_texts(settings: Mapping[str, Any] | None) -> dict[str, str]:
    """The settings of a storage's client as options; `storage_of` turns them back into settings."""
    return {f"{STORAGE_PREFIX}{name}": _text(value) for name, value in (settings or {}).items()}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


class Options:
    """Parses the options `given`, by case-insensitive name. `known` are all valid names."""

    def __init__(self, given: Mapping[str, str], known: list[str]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}
        spelled = {name.lower(): name for name in known}
        for name in self._given.keys() - spelled.keys():
            alike = _KAFKA_ALIKE if name.startswith(_KAFKA_PREFIX) else _ALIKE
            close = difflib.get_close_matches(name, spelled, n=1, cutoff=alike)
            if close:
                raise InvalidConfigError(f"unknown option {name}; did you mean {spelled[close[0]]}?")

    def text(self, name: str) -> str | None:
        """The option's value, if it was given."""
        return self._given.get(name.lower())

    def integer(self, name: str, minimum: int) -> int | None:
        """A whole number from `minimum` on, if it was given."""
        text = self.text(name)
        if text is None:
            return None
        if not text.strip().isdecimal() or int(text) < minimum:
            raise InvalidConfigError(f"option {name} must be a whole number, at least {minimum}", value=text)
        return int(text)

    def flag(self, name: str, *, default: bool) -> bool:
        """Whether the option is true."""
        return self.choice(name, (str(default).lower(), str(not default).lower())) == "true"

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """One of `choices`, the first by default."""
        text = (self.text(name) or choices[0]).strip().lower()
        if text not in choices:
            raise InvalidConfigError(f"option {name} must be {' or '.join(choices)}", value=text)
        return text
