"""Parses objects that have fields, of which some are the key, the value and the timestamp of a record.

An object is a line of JSON. The value is the line if no field is named. Fields are the bytes of their text; what is
not text is its JSON. A field that is not there, or null, makes a null. A timestamp is ms since 1970 or ISO 8601.
Blank lines are skipped. `csv_format` has the same for rows of CSV.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from distlog.cli.input.bulk_lines import first_object, objects_of, times_of
from distlog.cli.input.line_formats import LineFormat, Parsed, parsed_one_by_one, time_of
from distlog.console import output
from distlog.core.errors import InvalidRecordError

_SCHEMA = pa.schema([("timestamp", pa.int64()), ("key", pa.binary()), ("value", pa.binary())])
#: How Arrow reads a field, by the type that it has in the first object.
_BULK_TYPES = {str: pa.string(), int: pa.int64(), bool: pa.bool_(), type(None): pa.string()}


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
        """Raise InvalidRecordError for a field that is not among `names`."""
        for field in self.named.values():
            if field not in names:
                raise InvalidRecordError(f"the input has no field {field}; it has {', '.join(names)}")


def json_fields(fields: Fields) -> LineFormat:
    """A parser of objects, one a line."""

    def row_of(line: bytes, found: Any) -> dict[str, Any]:
        if not isinstance(found, dict):
            raise ValueError("it must be an object")
        text = {name: _text(found.get(field)) for name, field in fields.named.items() if name != "timestamp"}
        time = None if fields.timestamp is None else found.get(fields.timestamp)
        return {"value": line.removesuffix(b"\r"), **text, "timestamp": time_of_field(time)}

    def parse(block: bytes, lines_before: int) -> Parsed:
        rows = _rows_in_bulk(block, fields)
        return parsed_one_by_one(block, lines_before, row_of, _SCHEMA) if rows is None else Parsed(rows)

    return parse


def _rows_in_bulk(block: bytes, fields: Fields) -> pa.Table | None:
    """The rows of a block whose fields have the types that they have in its first line; else None."""
    first = first_object(block)
    kinds = {field: _BULK_TYPES.get(type(first.get(field))) for field in fields.named.values()}
    found = None if None in kinds.values() else objects_of(block, kinds, others="ignore")
    if found is None:
        return None
    empty = pa.nulls(len(found.lines))
    columns = {"key": empty, "value": found.lines, "timestamp": empty}
    for name, field in fields.named.items():
        column = found.fields[field]
        columns[name] = times_of(column) if name == "timestamp" else column.cast(pa.string())
    if columns["timestamp"] is None:
        return None
    return pa.table({field.name: columns[field.name].cast(field.type) for field in _SCHEMA})


def _text(value: Any) -> bytes | None:
    if value is None or isinstance(value, str):
        return None if value is None else value.encode()
    return output.json_text(value).encode()


def time_of_field(value: Any) -> int | None:
    """The time that a field holds, as ms since 1970; raises ValueError."""
    if isinstance(value, str) and value.removeprefix("-").isdecimal():
        return time_of(int(value))
    return time_of(value)
