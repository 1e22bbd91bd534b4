"""Blocks in parsers of lines."""

from __future__ import annotations

from typing import Any

from distlog.core.files.json_lines import JsonFields, JsonRecords, SeenFields
from distlog.core.files.record_times import TimeReader
from distlog.core.files.table_rows import CsvRows, header_names
from distlog.core.files.text_lines import LineParser, Parsed, line_at


def parsed(parser: LineParser, block: bytes) -> Parsed:
    return parser.parse(block, len(block), is_last=False)


def rows(result: Parsed) -> list[dict[str, Any]]:
    return result.records.to_pylist()  # type: ignore[no-any-return]


def bad_lines(result: Parsed, block: bytes) -> list[tuple[int, int]]:
    """The numbers of bad lines, and how many records are before each."""
    return [(line_at(block, bad.position) + 1, bad.records_before) for bad in result.bad]


def records(unit: str = "ms") -> JsonRecords:
    return JsonRecords(TimeReader(unit))


def objects(unit: str = "ms", **fields: str) -> JsonFields:
    return JsonFields(fields, TimeReader(unit), SeenFields(fields))


def csv(text: str | bytes, unit: str = "ms", **fields: str) -> tuple[Parsed, bytes]:
    """Parse CSV; also returns its rows."""
    head, _, block = (text.encode() if isinstance(text, str) else text).partition(b"\n")
    return CsvRows(header_names(head), fields, TimeReader(unit)).parse(block, len(block), is_last=True), block
