"""The checks of stored metadata: each is declared once, next to its field, and made on every read."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar, cast

import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

from distlog.core import arrays
from distlog.core.arrays import MAX_INT, MAX_LONG
from distlog.core.paths import STEM_PATTERN

# A stored value is a frozen dataclass whose fields are made with `stored(check)`. A check converts a value of
# `json.loads` or raises ValueError; `read` converts a whole object, and ignores unknown fields. If older libraries
# must not ignore a new field, the commit lists a feature in `actions.Requires`.

#: Up to this many values of a column are checked one by one, in less time than an Arrow kernel takes to start.
_FEW_VALUES = 64
#: Metadata of n bytes may have MIN_VALUE_LIMIT + n / BYTES_PER_VALUE values; a commit has one per 20 to 30 bytes.
MIN_VALUE_LIMIT, BYTES_PER_VALUE = 1_000_000, 16
_CHECKSUM = re.compile(rb',"crc32c":(\d{1,10})\}\n')

Check = Callable[[Any], Any]
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Integer:
    """An integer from `low` to `high`, both included; True and 1.0 are not integers."""

    low: int
    high: int

    def __call__(self, value: Any) -> int:
        if type(value) is not int or not self.low <= value <= self.high:
            raise ValueError(f"must be an integer from {self.low} to {self.high}")
        return value


@cache
def _matcher(pattern: str) -> Callable[[str], re.Match[str] | None]:
    return re.compile(pattern).fullmatch


@dataclass(frozen=True, slots=True)
class Text:
    """A string that matches `pattern`, a regular expression with the same meaning in Python and RE2."""

    pattern: str

    def __call__(self, value: Any) -> str:
        if not isinstance(value, str) or not _matcher(self.pattern)(value):
            raise ValueError(f"must be a string that matches {self.pattern}")
        return value


def boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def by_partition(check: Check) -> Check:
    """Return the check of a JSON object whose names are partition numbers, and whose values `check` accepts."""

    def checked(value: Any) -> dict[int, Any]:
        if not isinstance(value, dict):
            raise ValueError("must be an object whose names are partitions")
        if not all(re.fullmatch(r"[0-9]{1,10}", name) for name in value):
            raise ValueError("a partition must be a number")
        return {PARTITION(int(name)): check(member) for name, member in value.items()}

    return checked


def offset_range(bounds: Any) -> tuple[int, int]:
    if not isinstance(bounds, list) or len(bounds) != 2 or LONG(bounds[0]) > LONG(bounds[1]):
        raise ValueError("offsets must be [start_offset, end_offset]")
    return bounds[0], bounds[1]


def settings(value: Any) -> dict[str, str]:
    """Check an object of strings; TopicConfig checks the names and values."""
    if not isinstance(value, dict) or not all(isinstance(setting, str) for setting in value.values()):
        raise ValueError("must be an object of strings")
    return value


def batch_id(value: Any) -> int | str:
    """Check the id of an application's batch: an integer of at least 0, or a string that is not empty."""
    return LONG(value) if type(value) is int else NAME(value)


def optional(check: Check) -> Check:
    """Return the check of null, or a value that `check` accepts."""
    return lambda value: None if value is None else check(value)


LONG = Integer(0, MAX_LONG)
PARTITION = Integer(0, MAX_INT)
TIMESTAMP = Integer(-1, MAX_LONG)
UUID = Text(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
MAX_NAME_LENGTH = 1000
NAME = Text(rf"(?s).{{1,{MAX_NAME_LENGTH}}}")
STEM = Text(STEM_PATTERN)


def stored(check: Check, default: Any = dataclasses.MISSING) -> Any:
    """Return a dataclass field that is stored; `read` requires it unless it has a default."""
    return dataclasses.field(default=default, metadata={"check": check})


@cache
def checks(kind: Any) -> Mapping[str, Check]:
    return {spec.name: spec.metadata["check"] for spec in dataclasses.fields(kind) if "check" in spec.metadata}


@cache
def _defaults(kind: Any) -> Mapping[str, Any]:
    return {spec.name: spec.default for spec in dataclasses.fields(kind) if "check" in spec.metadata}


def check_column(name: str, column: pa.Array, check: Check) -> None:
    """Raise ValueError unless `check` accepts each value. Only Integer and Text have more to check than the type."""
    if isinstance(check, Integer) and len(column):
        if len(column) <= _FEW_VALUES:
            numbers = column.to_pylist()
            low, high = min(numbers), max(numbers)
        else:
            values = arrays.numbers_of(column)
            low, high = values.min(), values.max()
        is_legal = check.low <= low and high <= check.high
    elif isinstance(check, Text):
        texts = column if len(column) <= _FEW_VALUES else pc.unique(column)
        if len(texts) <= _FEW_VALUES:
            is_legal = all(map(_matcher(check.pattern), set(texts.to_pylist())))
        else:
            is_legal = pc.all(pc.match_substring_regex(texts, rf"^(?:{check.pattern})\z")).as_py()
    else:
        is_legal = True
    if not is_legal:
        raise ValueError(f"a segment's {name} has a value that is not allowed: {check}")


def read(kind: type[Value], body: Any, **other_values: Any) -> Value:
    """Return a `kind` with the values of the JSON object `body` and `other_values`; ValueError names a bad field."""
    if not isinstance(body, dict):
        raise ValueError(f"{kind.__name__} must be an object")
    values, name = {}, ""
    try:
        for name, check in checks(cast(Hashable, kind)).items():
            if name in body:
                values[name] = check(body[name])
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    try:
        return kind(**values, **other_values)
    except TypeError as error:
        raise ValueError(f"{kind.__name__} lacks a field: {error}") from None


def write(value: Any) -> dict[str, Any]:
    """The JSON object that `read` turns into an equal value, without the fields that have their defaults."""
    defaults = _defaults(cast(Hashable, type(value)))
    stored_values = {name: getattr(value, name) for name in defaults}
    return {name: member for name, member in stored_values.items() if member != defaults[name]}


def with_checksum(body: Mapping[str, Any]) -> bytes:
    """A line with the JSON object `body`, whose last member is the CRC-32C of the bytes before it."""
    text = json.dumps(body, default=write, separators=(",", ":"), allow_nan=False)[:-1].encode()
    return text + b',"crc32c":%d}\n' % crc32c(text)


def check_checksum(data: bytes) -> None:
    """Raise ValueError unless `data` ends with the checksum that `with_checksum` appends."""
    checksum = _CHECKSUM.search(data, max(0, len(data) - 32))
    if not checksum or checksum.end() != len(data) or int(checksum[1]) != crc32c(data[: checksum.start()]):
        raise ValueError("the checksum is wrong")


def parse(data: bytes) -> Any:
    """The value of the JSON text `data`; raises ValueError, and RecursionError if it is nested too deep."""
    # many values take much memory; this also counts commas and brackets inside strings, of which metadata has few
    values = data.count(b",") + data.count(b"[") + data.count(b"{")
    if values > MIN_VALUE_LIMIT + len(data) // BYTES_PER_VALUE:
        raise ValueError(f"the text has {values} values in {len(data)} bytes, more than metadata does")
    return json.loads(data)
