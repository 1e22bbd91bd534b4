"""What the commands print: tables on a terminal, tab-separated lines in a pipe, or JSON.

In JSON, times are ms since 1970, and bytes are text where they are UTF-8, else {"base64": "..."}. Elsewhere, times
are ISO 8601, bytes that are no text are shown as \\xNN, and so are control characters.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from itertools import islice
from typing import Any

import pyarrow as pa

from distlog.core.records import NO_TIMESTAMP

Row = Mapping[str, Any]

#: Rows of one table, so that the first rows show before the last are read.
_TABLE_ROWS = 200
_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))} | {9: "\\t", 10: "\\n", 13: "\\r"}


class Milliseconds(int):
    """A time in ms since 1970: a number in JSON, ISO 8601 for people; -1 is Kafka's "no timestamp"."""

    def __str__(self) -> str:
        if self == NO_TIMESTAMP:
            return "none"
        try:
            time = datetime.fromtimestamp(self // 1000, timezone.utc)
        except (ValueError, OverflowError, OSError):
            return repr(int(self))  # no datetime goes beyond the year 9999
        return f"{time:%Y-%m-%dT%H:%M:%S}.{self % 1000:03}Z"


def rows_of(table: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows as dicts; timestamps are Milliseconds."""
    columns = [_values(table.column(name)) for name in table.schema.names]
    return [dict(zip(table.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]


def _values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    if not pa.types.is_timestamp(column.type):
        return column.to_pylist()  # type: ignore[no-any-return]
    return [None if ms is None else Milliseconds(ms) for ms in column.cast(pa.int64()).to_pylist()]


def print_json(*values: object) -> None:
    """Each value on a line of its own."""
    for value in values:
        print(json.dumps(value, default=to_json, ensure_ascii=False))


def to_json(value: object) -> object:
    """Bytes as JSON has them: text where they are UTF-8, else {"base64": "..."}."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    raise TypeError(f"no JSON form of {type(value).__name__}")


def print_rows(rows: Sequence[Row], names: Sequence[str] | None = None, *, titles: bool = True) -> None:
    """The columns `names` (default: all) of `rows`: tables on a terminal, else a line of titles and a line each."""
    names = names or list(rows[0] if rows else ())
    cells = ([text(row[name]) for name in names] for row in rows)
    if sys.stdout.isatty():
        while part := list(islice(cells, _TABLE_ROWS)):
            _print_table(part, names)
        return
    if titles and names:
        print(*names, sep="\t")
    for line in cells:
        print(*line, sep="\t")


def _print_table(cells: Sequence[Sequence[str]], names: Sequence[str]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*names, box=None, pad_edge=False)
    for line in cells:
        table.add_row(*(Text(cell) for cell in line))
    Console().print(table)


def text(value: object) -> str:
    """A value for people, on one line: no control character reaches the terminal."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace").translate(_ESCAPES)
    if isinstance(value, list):
        return " ".join(f"{text(header['key'])}={text(header['value'])}" for header in value)
    return "null" if value is None else str(value).translate(_ESCAPES)
