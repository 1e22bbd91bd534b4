"""Prints the output of commands and jobs: tables on a terminal, tab-separated lines in a pipe, or JSON.

In JSON, times are ms since 1970, and bytes are text if they are UTF-8, else {"base64": "..."}. In tables and lines,
times are ISO 8601, and bytes that are not UTF-8 and control characters are shown as \\xNN.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from distlog.core.display.cells import text as text
from distlog.core.times import iso

Row = Mapping[str, Any]

#: Rows of one table. More rows make several tables, so the first rows show before the last are laid out.
_TABLE_ROWS = 200


class Milliseconds(int):
    """A time in ms since 1970: a number in JSON, ISO 8601 for people; -1 is Kafka's "no timestamp"."""

    def __str__(self) -> str:
        return iso(self)


def rows_of(table: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows as dicts. Timestamps are Milliseconds."""
    columns = [_values(table.column(name)) for name in table.schema.names]
    return [dict(zip(table.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]


def _values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    if pa.types.is_timestamp(column.type):
        return [None if ms is None else Milliseconds(ms) for ms in column.cast(pa.int64()).to_pylist()]
    if pa.types.is_binary(column.type):
        with suppress(pa.ArrowInvalid):  # most bytes are text: decoding here saves a call per value
            return column.cast(pa.string()).to_pylist()  # type: ignore[no-any-return]
    return column.to_pylist()  # type: ignore[no-any-return]


def print_json(*values: object) -> None:
    """Print each value on a line of its own; in ASCII if standard output's encoding lacks some character."""
    lines = [_JSON.encode(value) for value in values]
    try:
        "".join(lines).encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        lines = [_ASCII_JSON.encode(value) for value in values]
    _print_lines(lines)


def to_json(value: object) -> object:
    """Bytes as a JSON value: text if they are UTF-8, else {"base64": "..."}. Raises TypeError for other types."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    raise TypeError(f"no JSON form of {type(value).__name__}")


_JSON = json.JSONEncoder(default=to_json, ensure_ascii=False)
_ASCII_JSON = json.JSONEncoder(default=to_json)


def json_text(value: object) -> str:
    """A value as one line of JSON; bytes as `to_json` has them."""
    return _JSON.encode(value)


def print_rows(rows: Sequence[Row], names: Sequence[str] | None = None, *, titles: bool = True) -> None:
    """Print the columns `names` (default: all) of `rows`: tables on a terminal, else a title line and a line each."""
    names = names or list(rows[0] if rows else ())
    if sys.stdout.isatty():
        for start in range(0, len(rows), _TABLE_ROWS):
            _print_table(rows[start : start + _TABLE_ROWS], names, titles=titles and start == 0)
        return
    if titles and names:
        _print_lines(["\t".join(names)])
    _print_lines("\t".join([text(row[name]) for name in names]) for row in rows)


def _print_lines(lines: Iterable[str]) -> None:
    sys.stdout.write("".join([f"{line}\n" for line in lines]))


def _print_table(rows: Sequence[Row], names: Sequence[str], *, titles: bool) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=titles)
    for name in names:
        numbers = all(isinstance(row[name], int | None) for row in rows)
        # a number that is cut without a sign would be another number
        table.add_column(name, overflow="ellipsis" if numbers else "fold", no_wrap=numbers)
    for row in rows:
        table.add_row(*(Text(text(row[name])) for name in names))
    Console().print(table)
