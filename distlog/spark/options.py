"""Parses the options that Spark passes: strings under case-insensitive names."""

from __future__ import annotations

import difflib
import gc
import json
import re
import sys
from collections.abc import Mapping
from itertools import count
from typing import Any

from distlog.core.errors import InvalidConfigError
from distlog.core.storage.storage import Storage


class Options:
    """Parses `options` by case-insensitive name; `valid_names` are all that exist."""

    def __init__(self, options: Mapping[str, str], valid_names: list[str]) -> None:
        self._values = {name.lower(): value for name, value in options.items()}
        spelled = {name.lower(): name for name in valid_names}
        for name in self._values.keys() - spelled.keys():
            alike = _KAFKA_ALIKE if name.startswith(_KAFKA_PREFIX) else _ALIKE
            close = difflib.get_close_matches(name, spelled, n=1, cutoff=alike)
            if close:
                raise InvalidConfigError(f"unknown option {name}; did you mean {spelled[close[0]]}?")

    def text(self, name: str) -> str | None:
        return self._values.get(name.lower())

    def integer(self, name: str, minimum: int) -> int | None:
        """A whole number from `minimum` on, if it was given."""
        text = self.text(name)
        if text is None:
            return None
        if not text.strip().isdecimal() or int(text) < minimum:
            raise InvalidConfigError(f"option {name} must be a whole number, at least {minimum}", value=text)
        return int(text)

    def flag(self, name: str, *, default: bool) -> bool:
        return self.choice(name, (str(default).lower(), str(not default).lower())) == "true"

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """One of `choices`, the first by default."""
        text = (self.text(name) or choices[0]).strip().lower()
        if text not in choices:
            raise InvalidConfigError(f"option {name} must be {' or '.join(choices)}", value=text)
        return text


_main = sys.modules["__main__"]
_name = str(getattr(getattr(_main, "__spec__", None), "name", ""))
_is_sparks = _name.startswith("pyspark.")
_runs = count(1)


def freeze_objects() -> None:
    """Exclude all current objects from garbage collection, at the first, second, fourth, eighth unit of work.

    Spark's daemons, one for tasks and one for each step of planning, collect garbage after each unit of work. That
    takes 1 ms, but 50 ms with numba's many objects and 10 ms more with the objects of an S3 client, which is made at
    its first use. An excluded object is never freed from a reference cycle, so only few units exclude objects.
    """
    if _is_sparks and (number := next(_runs)).bit_count() == 1:
        if number == 1:
            gc.collect()
        gc.freeze()


def works_for(module: str) -> bool:
    """True if this is a process of Spark for that module: each step of planning has processes of its own."""
    return _is_sparks and module in (_name, *sys.argv)


# Options that Spark or a Kafka job adds are ignored. A name that is almost one of ours is refused, since a misspelt
# option that does nothing is worse than an error.


STORAGE_PREFIX = "storage."

#: How similar (0 to 1) an unknown name must be to one of ours to count as misspelt.
_ALIKE = 0.75
#: The same for options of Kafka clients: there are many, and names like kafka.compression.zstd.level are right.
_KAFKA_PREFIX, _KAFKA_ALIKE = "kafka.", 0.9

#: Spark itself hides the values of options that match (`spark.redaction.regex`), by name or by value.
_HIDDEN_BY_SPARK = re.compile(r"secret|password|token|access[.]?key", re.IGNORECASE)
#: Names of clients' settings that are secrets, also inside of a setting that is a JSON object.
_SECRET = re.compile(
    r"secret|passw|passphrase|token|credential|private|pkey|sas|signature|authorization"
    r"|connection[_-]?string|(access|account|api|customer|encryption|shared)[_-]?key",
    re.IGNORECASE,
)
_PASSWORD_OF_URL = re.compile(r"://[^/@\s]*:[^/@\s]*@")


def check_hidden(options: Mapping[str, str]) -> None:
    """Raise InvalidConfigError if a `storage.` option has a secret that Spark would show in plans and logs."""
    for name, value in options.items():
        shown = not _HIDDEN_BY_SPARK.search(name) and not _HIDDEN_BY_SPARK.search(value)
        nested = re.findall(r'"([^"]+)"\s*:', value) if value.lstrip().startswith(("{", "[")) else []
        is_secret = any(map(_SECRET.search, [name, *nested])) or _PASSWORD_OF_URL.search(value)
        if shown and is_secret and name.lower().startswith(STORAGE_PREFIX):
            raise InvalidConfigError(
                f"option {name} holds a secret, and Spark shows it in plans and in its event log: give it to "
                "distlog.spark.register(spark, storage_options={...}), or to the environment of the machines"
            )


def storage_of(options: Mapping[str, str]) -> Storage:
    """The storage that `path` and the `storage.` options name."""
    return Storage(*url_and_settings(options))


def url_and_settings(options: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """The option `path`, and the `storage.` options by their names without that; raises InvalidConfigError."""
    path = options.get("path")
    if not path:
        raise InvalidConfigError(
            "no topic is named: give its path or URL to load() or save(), as in load('s3://bucket/logs/clicks'); "
            "for SQL make a temporary view with the option path, since tables of the catalog lose their options"
        )
    prefix = len(STORAGE_PREFIX)
    settings = {name[prefix:]: value for name, value in options.items() if name.lower().startswith(STORAGE_PREFIX)}
    return path, settings


def storage_texts(settings: Mapping[str, Any] | None) -> dict[str, str]:
    """The settings of a storage's client as options; `storage_of` turns them back into settings."""
    return {
        f"{STORAGE_PREFIX}{name}": (value if isinstance(value, str) else json.dumps(value))
        for name, value in (settings or {}).items()
    }
