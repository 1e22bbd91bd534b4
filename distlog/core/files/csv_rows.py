"""Rows of CSV as records: some fields are the key, the value and the timestamp; without a value it is the whole row.

A row is as RFC 4180 has it: a quote counts where a field begins, a quoted field may have line ends, and a comma or
the end of the row follows it. An expression finds how far the rows are good, and Arrow reads these at once. It reads
a block without it, in much less time, if all lines are rows by what is counted in them.

After a quoted field that does not end so, the next line begins a row again: a stray quote costs only its line.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv

from distlog.core.arrays import byte_array, integers
from distlog.core.errors import InvalidRecordError
from distlog.core.files.read_options import BadLine, Parsed
from distlog.core.files.record_times import TimeReader
from distlog.core.files.row_json import json_rows

_CELL = rb'(?:"[^"]*(?:""[^"]*)*"|[^",\r\n][^,\r\n]*|)'
_CELLS = rb"%b(?:,%b)*" % (_CELL, _CELL)
_BLANK = rb"[ \t\v\f\r]*\n"
_ROW = re.compile(rb"(?!%b)%b\r?\n" % (_BLANK, _CELLS))
_BLANK_LINE = re.compile(rb"^%b" % _BLANK, re.MULTILINE)
_BLANKS = re.compile(rb"(?:%b)+" % _BLANK)
_OPEN = re.compile(rb'(?:%b,)*"[^"]*(?:""[^"]*)*\Z' % _CELL)
_GOOD = re.compile(_CELLS)
_MASK = bytes(min(byte, 127) for byte in range(256))
#: A quoted field with more lines has hardly one: the quote before it is a stray one.
_MOST_LINES = 1000


@dataclass(frozen=True, slots=True)
class CsvRows:
    """Parses rows of the columns `names`, of which `fields` are the key, the value and the timestamp of a record."""

    names: Sequence[str]
    fields: Mapping[str, str]
    times: TimeReader

    def __post_init__(self) -> None:
        """Raise InvalidRecordError for a field that the file lacks."""
        check_names(self.fields, self.names)

    def parse(self, text: bytes, limit: int, *, is_last: bool) -> Parsed:
        """See `LineParser`. A row that has not ended in the block is not consumed, unless it `is_last`."""
        size, text = len(text), text + b"\n"
        table = _all_rows(text, self.names) if limit >= size else None
        if table is not None:
            columns, bad_times = self._columns(table)
            if not bad_times:
                return Parsed(columns, (), len(text))
        spans, bad, position = list[tuple[int, int]](), dict[int, str](), 0
        while position < min(limit, size) or (limit >= size and position < len(text)):
            start = position
            while (limit >= size or position < limit) and (row := _ROW.match(text, position)):
                position = row.end()
            spans.append((start, position))
            if blanks := _BLANKS.match(text, position):
                position = blanks.end()
            elif position < (len(text) if limit >= size else limit):
                is_open = _OPEN.match(text, position) is not None
                if is_open and not is_last and text.count(b"\n", position) <= _MOST_LINES:
                    break
                bad[position] = _fault(text, position, is_open=is_open)
                position = text.index(b"\n", position) + 1
        return self._parsed(text, spans, bad, position)

    def _parsed(self, text: bytes, spans: list[tuple[int, int]], bad: dict[int, str], consumed: int) -> Parsed:
        """The records of the rows in `spans` of a text. Some may have other fields than the names, or no times."""
        good = b"".join(text[start:end] for start, end in spans)
        try:
            table, refused = _read_rows(good, self.names), dict[int, str]()
        except pa.ArrowInvalid:
            refused = _refused(good, self.names)
            rows = [row[0] for number, row in enumerate(_ROW.finditer(good)) if number not in refused]
            table = _read_rows(b"".join(rows), self.names)
        columns, bad_times = self._columns(table)
        starts = np.array([row.start() for span in spans for row in _ROW.finditer(text, *span)], np.int64)
        bad |= {int(starts[row]): reason for row, reason in refused.items()}
        starts = np.delete(starts, [*refused])
        if bad_times:
            bad |= {int(starts[row]): reason for row, reason in bad_times.items()}
            columns = columns.take(integers(np.delete(np.arange(len(starts)), [*bad_times])))
            starts = np.delete(starts, [*bad_times])
        counts_before = np.searchsorted(starts, sorted(bad)).tolist()
        lines = [
            BadLine(position, count, bad[position])
            for position, count in zip(sorted(bad), counts_before, strict=True)
        ]
        return Parsed(columns, lines, consumed, starts)

    def _columns(self, table: pa.Table) -> tuple[pa.Table, Mapping[int, str]]:
        """The columns of the records, and the faults of the rows with bad times, by their number."""
        columns = {role: table[name] for role, name in self.fields.items() if role != "timestamp"}
        if "value" not in self.fields:
            arrays = [column.combine_chunks() for column in table.columns]
            columns["value"] = json_rows(pa.RecordBatch.from_arrays(arrays, table.schema.names))
        if "timestamp" not in self.fields:
            return pa.table(columns), {}
        times = self.times.of_column(table[self.fields["timestamp"]].combine_chunks())
        return pa.table({**columns, "timestamp": times.column}), times.faults


def check_names(fields: Mapping[str, str], names: Sequence[str]) -> None:
    """Raise InvalidRecordError for a field that is not among the names of a file's columns."""
    for name in fields.values():
        if name not in names:
            raise InvalidRecordError(f"the file has no column {name}; it has {', '.join(names)}")


def _fault(text: bytes, position: int, *, is_open: bool) -> str:
    if is_open:
        return f"the quoted field does not end, at least not within {_MOST_LINES} lines"
    good = _GOOD.match(text, position)
    if good and text.startswith(b"\r", good.end()):
        return "a carriage return must end its line"
    return "there is text after the end of a quoted field: a quote inside of one is doubled"


def header_names(line: bytes) -> list[str]:
    """The names in the first line of a file. Raises InvalidRecordError for a line that does not name columns."""
    names: list[str] = []
    with suppress(UnicodeDecodeError, csv.Error):
        if _ROW.fullmatch(line + b"\n"):
            names = next(csv.reader([line.decode().removesuffix("\r")]), [])
    if not names or len(set(names)) < len(names):
        reason = "the first line of CSV must have the names of the fields, each once; a quoted one ends on that line"
        raise InvalidRecordError(reason, line=1)
    return names


def _all_rows(text: bytes, names: Sequence[str]) -> pa.Table | None:
    """The rows of a text whose lines are all rows, as plain ones are; None if that is not sure."""
    # Arrow takes a return for the end of a row, and a blank line for a row of one field
    has_returns = text.count(b"\r") != text.count(b"\r\n")
    if has_returns or not _has_plain_quotes(text) or (len(names) == 1 and _BLANK_LINE.search(text)):
        return None
    try:
        table = _read_rows(text, names)
    except pa.ArrowInvalid:
        return None
    # line ends within fields, and lines that Arrow skips, make fewer rows
    return table if table.num_rows == text.count(b"\n") else None


def _has_plain_quotes(text: bytes) -> bool:
    """True if the quotes alternately begin a field and end one."""
    if b'"' not in text:
        return True
    data = byte_array(text)
    positions = np.flatnonzero(data == ord('"'))
    characters_before, characters_after = data[positions[::2] - 1], data[positions[1::2] + 1]
    is_begin = (characters_before == ord(",")) | (characters_before == ord("\n"))
    is_end = (characters_after == ord(",")) | (characters_after == ord("\n")) | (characters_after == ord("\r"))
    return len(positions) % 2 == 0 and bool(is_begin.all() and is_end.all())


def _refused(rows: bytes, names: Sequence[str]) -> dict[int, str]:
    """The faults of the rows that have other fields than the names, by their number."""
    bad_rows: dict[int, str] = {}

    def refuse(row: Any) -> str:
        bad_rows[row.number - 1] = f"the row has {row.actual_columns} fields, not {row.expected_columns}"
        return "skip"

    # Arrow decodes the bytes of a row for its message
    _read_rows(rows.translate(_MASK), names, refuse)
    return bad_rows


def _read_rows(text: bytes, names: Sequence[str], refuse: Callable[[Any], str] | None = None) -> pa.Table:
    """The rows as bytes; raises ArrowInvalid for one with other fields than the names, unless `refuse` skips it."""
    if not text:
        return pa.table({name: pa.nulls(0, pa.binary()) for name in names})
    kinds = {name: pa.binary() for name in names}
    return pyarrow.csv.read_csv(
        io.BytesIO(text),
        pyarrow.csv.ReadOptions(column_names=list(names), use_threads=False, block_size=len(text) + 1),
        pyarrow.csv.ParseOptions(invalid_row_handler=refuse, newlines_in_values=True),
        pyarrow.csv.ConvertOptions(column_types=kinds, strings_can_be_null=False, quoted_strings_can_be_null=False),
    )
