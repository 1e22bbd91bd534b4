"""Parses arguments of the command line and of the Spark jobs. A ValueError names the expected form."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from distlog.core.opening import open as open_topic
from distlog.core.read.lookup import EARLIEST, LATEST, MAX_TIMESTAMP
from distlog.core.schemas.registry import DEFAULT_CONTEXT, SchemaRegistry
from distlog.core.times import iso, now_ms, to_ms

_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\"}
_PARTITION_OFFSET = re.compile(r"(?:([0-9]{1,9}):)?(-1|[0-9]{1,18})")
_AGO = re.compile(r"-([0-9]{1,9})([smhd])")
_UNITS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_TIMES = "write 2026-01-31, 2026-01-31T12:00Z, now, -1h or milliseconds since 1970"
#: The environment variable that replaces --registry, since most addresses include a password.
REGISTRY_VARIABLE = "DISTLOG_SCHEMA_REGISTRY"
_SPECIAL_TIMES = {"earliest": EARLIEST, "latest": LATEST, "max-timestamp": MAX_TIMESTAMP}


def setting(text: str) -> tuple[str, str]:
    """Split `NAME=VALUE`. The value may contain equals signs."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise ValueError("write NAME=VALUE")
    return name, value


def registry_at(
    address: str | None, context: str = DEFAULT_CONTEXT, storage: Mapping[str, Any] | None = None
) -> SchemaRegistry | None:
    """Return the registry at a server's or topic's URL, `address` or $DISTLOG_SCHEMA_REGISTRY; None without a URL."""
    address = address or os.environ.get(REGISTRY_VARIABLE)
    if address is None:
        return None
    is_server = address.startswith(("http://", "https://"))
    return SchemaRegistry(address if is_server else open_topic(address, storage_options=storage), context)


def topic_version(text: str) -> tuple[str | None, int]:
    """Split `TOPIC=VERSION`, or a VERSION alone, whose topic is None."""
    topic, equals, number = text.rpartition("=")
    return (topic if equals else None), version(number)


def check_unique_names(pairs: Iterable[tuple[str, str]]) -> None:
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{name} is set {names.count(name)} times: set it once")


def partition_offset(text: str) -> tuple[int | None, int]:
    """Split `PARTITION:OFFSET`, or an OFFSET alone, whose partition is None. The offset -1 is the log end."""
    match = _PARTITION_OFFSET.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is not an offset (100) or PARTITION:OFFSET (0:100)")
    return (None if match[1] is None else int(match[1])), int(match[2])


def time(text: str, clock: Callable[[], int] = now_ms, *, round_up: bool = False) -> int:
    """Parse digits, ISO 8601 (no zone means UTC), `now`, or an age like `-90s` to milliseconds since 1970."""
    if text == "now":
        return clock()
    if ago := _AGO.fullmatch(text):
        return clock() - int(ago[1]) * _UNITS[ago[2]]
    try:
        return to_ms(text, round_up=round_up)
    except ValueError:
        raise ValueError(f"{text!r} is not a time: {_TIMES}") from None


def record_time(text: str) -> int:
    """Parse a bound: records at or after it, or before it. Rounding up is exact, since record times are whole ms."""
    milliseconds = time(text, round_up=True)
    if milliseconds < 0:
        raise ValueError(f"{text!r} is before 1970: use a later time")
    return milliseconds


def time_or_special(text: str) -> int:
    """Parse a time, or `earliest`, `latest` or `max-timestamp`, which become the numbers of `_SPECIAL_TIMES`."""
    if text in _SPECIAL_TIMES:
        return _SPECIAL_TIMES[text]
    try:
        return time(text, round_up=True)
    except ValueError as error:
        raise ValueError(f"{error}, or {', '.join(_SPECIAL_TIMES)}") from None


class FromEnd(int):
    """A number of offsets before the end of a partition."""


def offset_or_end(text: str) -> int | FromEnd:
    """Parse an offset, a distance from the end like `-5`, or `earliest` or `latest`, which become special numbers."""
    if text in ("earliest", "latest"):
        return _SPECIAL_TIMES[text]
    problem = f"{text!r} is not an offset (100, or -5 from the end), earliest or latest"
    number = _number_or_error(text.removeprefix("-"), problem)
    return FromEnd(number) if text.startswith("-") else number


def version(text: str) -> int:
    return _number_or_error(text, f"{text!r} is not a version: `distlog history` lists the versions")


def count(text: str) -> int:
    return _number_or_error(text, f"{text!r} is not a number (0 or more)")


def start(text: str) -> int | str | dict[int, int]:
    """Parse `earliest`, `latest`, offsets as in `offsets`, or a record time, as text (an int would be an offset)."""
    if text in ("earliest", "latest"):
        return _SPECIAL_TIMES[text]
    # digits are an offset here, not ms since 1970; a time has a hyphen, or is `now`
    if "-" not in text and text != "now":
        return offsets(text)
    try:
        return iso(record_time(text))
    except ValueError:
        raise ValueError(
            f"{text!r} is not an offset (10), offsets by partition (0:10,1:7), earliest, latest, an ISO 8601 time "
            "since 1970, now or -1h"
        ) from None


def partitions(text: str) -> list[int]:
    try:
        return [_number(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{text!r} is not a list of partitions (0,1)") from None


def offsets(text: str) -> int | dict[int, int]:
    """Parse one offset for all partitions, or `PARTITION:OFFSET` separated by commas."""
    try:
        if ":" not in text:
            return _number(text)
        pairs = [part.split(":") for part in text.split(",")]
        return {_number(partition): _number(offset) for partition, offset in pairs}
    except ValueError:
        raise ValueError(f"{text!r} is not an offset (10) or offsets by partition (0:10,1:7)") from None


def _number_or_error(text: str, problem: str) -> int:
    try:
        return _number(text)
    except ValueError:
        raise ValueError(problem) from None


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(text)
    return int(text)


def unescaped(text: str) -> str:
    r"""Resolve \t, \n, \r, \\ and \xNN, as in `read --format '%k\t%v\n'`. Raises ValueError for another escape."""
    fragments, position = list[str](), 0
    for match in _ESCAPE.finditer(text):
        escape = match[1]
        if escape not in _ESCAPES and len(escape) != 3:  # all other escapes are xNN, with three characters
            raise ValueError(f"unknown escape \\{escape}: use \\n, \\t, \\r, \\\\ or \\xNN")
        fragments += [text[position : match.start()], _ESCAPES.get(escape) or chr(int(escape[1:], 16))]
        position = match.end()
    tail = text[position:]
    if tail.endswith("\\"):
        raise ValueError(rf"{text!r} ends with a single \: write \\")
    return "".join([*fragments, tail])


class OptionHelp(NamedTuple):
    """The placeholder of an option's value, None for a list of choices, and the option's help."""

    metavar: str | None
    text: str


APPEND_HELP: Mapping[str, OptionHelp] = {
    "--format": OptionHelp(
        None,
        "Read text (a line is a value), jsonl, csv (the first line has names), parquet, or records as read --json "
        "prints them. Default: detected from each file's contents and name; text for a stream.",
    ),
    "--key": OptionHelp("FIELD", "Take the key from FIELD."),
    "--value": OptionHelp("FIELD", "Take the value from FIELD. Default: the whole line or row."),
    "--timestamp": OptionHelp("FIELD", "Take the time from FIELD: a number since 1970, or ISO 8601. Default: now."),
    "--timestamp-unit": OptionHelp(None, "Set the unit of numeric times."),
    "--pattern": OptionHelp(
        "REGEX", "Parse lines of text by a Python regular expression with groups named key, value or timestamp."
    ),
    "--time-format": OptionHelp("FORMAT", "Parse times by a strptime format: '%d/%b/%Y:%H:%M:%S %z'."),
    "--key-separator": OptionHelp("TEXT", r"Split lines of text into key and value at TEXT; \t is a tab."),
    "--header": OptionHelp("NAME=VALUE", "Add a header to every record."),
    "--partition": OptionHelp("N", "Append to partition N. Default: by each record's partition field or key."),
    "--bad-lines": OptionHelp(None, "Fail at a line that is not a record, or skip and count it."),
    "--app-id": OptionHelp("ID", "With --batch-id: append this batch only once, even if the command runs again."),
    "--batch-id": OptionHelp("ID", "With --app-id: set the number or name of the batch."),
    "--compression": OptionHelp(
        "CODEC", "Compress with none, gzip, snappy, lz4 or zstd, if the topic's compression.type is producer."
    ),
}
