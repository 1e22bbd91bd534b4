"""Values as short texts for people. Bytes that are no UTF-8 and control characters are shown as \\xNN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from distlog.core.display.units import size_text
from distlog.core.times import iso

#: The longest text of a cell.
LONGEST = 60
_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))} | {9: "\\t", 10: "\\n", 13: "\\r"}


def text(value: object) -> str:
    """A value as one line; a header is key=value. Control characters are escaped for the terminal."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace").translate(_ESCAPES)
    if isinstance(value, list):
        return " ".join(text(item) for item in value)
    if isinstance(value, dict):
        return f"{text(value['key'])}={text(value['value'])}"
    return "null" if value is None else str(value).translate(_ESCAPES)


def cells(column: pa.ChunkedArray, name: str) -> list[str]:
    """The values of a table's column, for people: times in ISO 8601, sizes with units, nothing for null."""
    if pa.types.is_timestamp(column.type):
        return _shown(column.cast(pa.timestamp("ms")).cast(pa.int64()), iso)
    if is_number(column.type):
        return _shown(column, size_text if name.endswith("bytes") else "{:,}".format)
    return _shown(column, lambda value: _cut(text(value)))


def is_number(kind: pa.DataType) -> bool:
    """Whether values of this type are numbers, which stand to the right."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _shown(column: pa.ChunkedArray, show: Callable[[Any], str]) -> list[str]:
    return ["" if value is None else show(value) for value in column.to_pylist()]


def _cut(shown: str) -> str:
    return shown if len(shown) <= LONGEST else f"{shown[: LONGEST - 1]}…"
