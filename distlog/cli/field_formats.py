"""Parses lines that have fields, of which some are the key, the value and the timestamp of a record.

jsonl   A line is an object. The value is the line if no field is named.
csv     The first line has the names. A row is a line. The value is the row as an object if no field is named.

Fields are the bytes of their text; what is not text in JSON is its JSON. A field that is not there, or null, makes a
null. A timestamp is ms since 1970 or ISO 8601. Blank lines are skipped.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.csv

from distlog.cli.line_formats import BadLine, LineFormat, Parsed, parsed_one_by_one, time_of
from distlog.console import output, record_lines
from distlog.core.errors import InvalidConfigError

_SCHEMA = pa.schema([("timestamp", pa.int64()), ("key", pa.binary()), ("value", pa.binary())])


@dataclass(frozen=True, slots=True)
class Fields:
    """The names of the fields that are a record's key, value and timestamp; None if no field is."""

    key: str | None = None
    value: str | None = None
    timestamp: str | None = None

    @property
    def named(self) -> dict[str, str]:
        """The fields by what they are."""
        given = {"key": self.key, "value": self.value, "timestamp": self.timestamp}
        return {name: field for name, field in given.items() if field is not None}

    def check(self, names: Sequence[str]) -> None:
        """Raise InvalidConfigError for a field that is not among `names`."""
        for field in self.named.values():
            if field not in names:
                raise InvalidConfigError(f"the input has no field {field}; it has {', '.join(names)}")


def json_fields(fields: Fields) -> LineFormat:
    """A parser of objects, one a line."""

    def row_of(line: bytes, found: Any) -> dict[str, Any]:
        if not isinstance(found, dict):
            raise ValueError("it must be an object")
        text = {name: _text(found.get(field)) for name, field in fields.named.items() if name != "timestamp"}
        time = None if fields.timestamp is None else found.get(fields.timestamp)
        return {"value": line.removesuffix(b"\r"), **text, "timestamp": _time(time)}

    def parse(block: bytes, lines_before: int) -> Parsed:
        return parsed_one_by_one(block, lines_before, row_of, _SCHEMA)

    return parse


def _text(value: Any) -> bytes | None:
    if value is None or isinstance(value, str):
        return None if value is None else value.encode()
    return output.json_text(value).encode()


def _time(value: Any) -> int | None:
    if isinstance(value, str) and value.removeprefix("-").isdecimal():
        return time_of(int(value))
    return time_of(value)


def csv_format(fields: Fields) -> LineFormat:
    """A parser of the lines of one file, whose first line it takes for the names."""
    names: list[str] = []

    def parse(block: bytes, lines_before: int) -> Parsed:
        if not names:
            line, _, block = block.removeprefix(b"\xef\xbb\xbf").partition(b"\n")
            names.extend(_names(line))
            fields.check(names)
            lines_before += 1
        return _rows(block, lines_before, names, fields)

    return parse


def _names(line: bytes) -> list[str]:
    try:
        names = next(csv.reader([line.decode().removesuffix("\r")]), [])
    except UnicodeDecodeError:
        names = []
    if not names or len(set(names)) < len(names):
        raise InvalidConfigError("the first line of CSV must have the names of the fields, each once")
    return names


def _rows(block: bytes, lines_before: int, names: list[str], fields: Fields) -> Parsed:
    lines = {number: line for number, line in enumerate(block.split(b"\n"), lines_before + 1) if line.strip()}
    bad: dict[int, str] = {}
    table = _read(lines, names, bad)
    if table.num_rows + len(bad) < len(lines):
        bad = {number: "a quoted field must end on its line" for number in lines if lines[number].count(b'"') % 2}
        table = _read({number: line for number, line in lines.items() if number not in bad}, names, bad)
    numbers = [number for number in lines if number not in bad]
    columns, untimely = _columns(table, fields)
    bad |= {numbers[row]: reason for row, reason in untimely.items()}
    good = [row for row in range(len(numbers)) if row not in untimely]
    columns = columns.take(good) if untimely else columns
    return Parsed(columns, _in_order(lines, bad))


def _read(lines: Mapping[int, bytes], names: list[str], bad: dict[int, str]) -> pa.Table:
    """The rows as bytes; `bad` gets the numbers of those that have other fields than the names."""
    numbers = list(lines)

    def refuse(row: Any) -> str:
        bad[numbers[row.number - 1]] = f"the line has {row.actual_columns} fields, not {row.expected_columns}"
        return "skip"

    if not lines:
        return pa.table({name: pa.array([], pa.binary()) for name in names})
    text = b"\n".join(lines.values())
    kinds = {name: pa.binary() for name in names}
    return pyarrow.csv.read_csv(
        io.BytesIO(text),
        pyarrow.csv.ReadOptions(column_names=names, use_threads=False, block_size=len(text) + 1),
        pyarrow.csv.ParseOptions(invalid_row_handler=refuse),
        pyarrow.csv.ConvertOptions(column_types=kinds, strings_can_be_null=False, quoted_strings_can_be_null=False),
    )


def _columns(table: pa.Table, fields: Fields) -> tuple[pa.Table, dict[int, str]]:
    """The columns of the records, and what is wrong with the times of which rows."""
    columns = {name: table[field] for name, field in fields.named.items() if name != "timestamp"}
    if fields.value is None:
        columns["value"] = record_lines.json_texts(table.combine_chunks())
    if fields.timestamp is None:
        return pa.table(columns), {}
    times, untimely = _times(table[fields.timestamp])
    return pa.table({**columns, "timestamp": times}), untimely


def _times(column: pa.ChunkedArray) -> tuple[pa.Array, dict[int, str]]:
    try:
        return column.cast(pa.string()).cast(pa.int64()), {}
    except pa.ArrowInvalid:
        untimely: dict[int, str] = {}
        times = [_time_or_why(value, row, untimely) for row, value in enumerate(column.to_pylist())]
        return pa.array(times, pa.int64()), untimely


def _time_or_why(value: bytes, row: int, untimely: dict[int, str]) -> int | None:
    try:
        return _time(value.decode() or None)
    except ValueError as error:
        untimely[row] = f"not a time: {error}"
        return None


def _in_order(lines: Mapping[int, bytes], bad: Mapping[int, str]) -> list[BadLine]:
    found: list[BadLine] = []
    if bad:
        for place, number in enumerate(lines):
            if number in bad:
                found.append(BadLine(number, place - len(found), bad[number]))
    return found
