"""Parses CSV: rows under a line of names, some fields of which are the key, the value and the timestamp of a record.

Arrow reads a block of lines at once. Only if some line of it is no row, or blank, are its lines looked at one by one.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from distlog.cli.input.bulk_lines import times_of
from distlog.cli.input.field_formats import Fields, time_of_field
from distlog.cli.input.line_formats import BadLine, LineFormat, Parsed
from distlog.console import record_lines
from distlog.core.errors import InvalidRecordError

_MASK = bytes(min(byte, 127) for byte in range(256))
_BLANK_LINE = re.compile(rb"^\s*$", re.MULTILINE)


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
    except (UnicodeDecodeError, csv.Error):
        names = []
    if not names or len(set(names)) < len(names):
        raise InvalidRecordError("the first line of CSV must have the names of the fields, each once", line=1)
    return names


def _rows(block: bytes, lines_before: int, names: list[str], fields: Fields) -> Parsed:
    table = _rows_in_bulk(block, names)
    if table is not None:
        columns, untimely = _columns(table, fields)
        if not untimely:
            return Parsed(columns)
    return _rows_one_by_one(block, lines_before, names, fields)


def _rows_in_bulk(block: bytes, names: list[str]) -> pa.Table | None:
    """The rows of a block whose lines are all rows, and none of them blank; else None."""
    text = block.replace(b"\r\n", b"\n").removesuffix(b"\r")
    if b"\r" in text or (len(names) == 1 and _BLANK_LINE.search(text)):
        return None
    try:
        table = _read(text, names)
    except pa.ArrowInvalid:
        return None
    return table if table.num_rows == text.count(b"\n") + 1 else None


def _rows_one_by_one(block: bytes, lines_before: int, names: list[str], fields: Fields) -> Parsed:
    lines = {number: line for number, line in enumerate(block.split(b"\n"), lines_before + 1) if line.strip()}
    bad: dict[int, str] = {}
    rows, refused = _shape(lines.values(), names)
    # where a carriage return ends rows too, as many rows as lines need not be one in each
    if rows.num_rows + len(refused) != len(lines) or any(map(_has_return, lines.values())):
        bad = {number: _torn(line) for number, line in lines.items() if not _is_one_row(line, names)}
        _, refused = _shape([line for number, line in lines.items() if number not in bad], names)
    numbers = [number for number in lines if number not in bad]
    bad |= {numbers[row]: reason for row, reason in refused.items()}
    numbers = [number for number in numbers if number not in bad]
    columns, untimely = _columns(_read(b"\n".join([lines[number] for number in numbers]), names), fields)
    bad |= {numbers[row]: reason for row, reason in untimely.items()}
    good = pa.array([row for row in range(len(numbers)) if row not in untimely], pa.int64())
    return Parsed(columns.take(good) if untimely else columns, _in_order(lines, bad))


def _is_one_row(line: bytes, names: list[str]) -> bool:
    """Whether a line begins and ends a row, however many fields that has: then a row behind it is as it was."""
    if b'"' not in line and not _has_return(line):
        return True
    next_row = [b"."] * len(names)
    rows, refused = _shape([line, b",".join(next_row)], names)
    last = [column[-1].as_py() for column in rows.columns] if rows.num_rows else []
    return rows.num_rows + len(refused) == 2 and last == next_row


def _torn(line: bytes) -> str:
    """Why a line is not one row."""
    return f"a {'carriage return must end its' if _has_return(line) else 'quoted field must end on its'} line"


def _has_return(line: bytes) -> bool:
    return b"\r" in line.removesuffix(b"\r")


def _shape(lines: Iterable[bytes], names: list[str]) -> tuple[pa.Table, dict[int, str]]:
    """The rows with as many fields as names, and what the others are, by their number; bytes above 127 are masked."""
    refused: dict[int, str] = {}

    def refuse(row: Any) -> str:
        refused[row.number - 1] = f"the line has {row.actual_columns} fields, not {row.expected_columns}"
        return "skip"

    # Arrow decodes what it tells of a row
    return _read(b"\n".join(lines).translate(_MASK), names, refuse), refused


def _read(text: bytes, names: list[str], refuse: Callable[[Any], str] | None = None) -> pa.Table:
    """The rows as bytes; raises ArrowInvalid for one with other fields than the names, unless `refuse` skips it."""
    if not text:
        return pa.table({name: pa.array([], pa.binary()) for name in names})
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
        arrays = [column.combine_chunks() for column in table.columns]
        columns["value"] = record_lines.json_texts(pa.RecordBatch.from_arrays(arrays, table.schema.names))
    if fields.timestamp is None:
        return pa.table(columns), {}
    times, untimely = _times(table[fields.timestamp])
    return pa.table({**columns, "timestamp": times}), untimely


def _times(column: pa.ChunkedArray) -> tuple[pa.Array, dict[int, str]]:
    try:
        texts = column.cast(pa.string())
        times = times_of(pc.if_else(pc.equal(texts, ""), None, texts))
    except pa.ArrowInvalid:
        times = None
    if times is not None:
        return times, {}
    untimely: dict[int, str] = {}
    found = [_time_or_why(value, row, untimely) for row, value in enumerate(column.to_pylist())]
    return pa.array(found, pa.int64()), untimely


def _time_or_why(value: bytes, row: int, untimely: dict[int, str]) -> int | None:
    try:
        return time_of_field(value.decode() or None)
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
