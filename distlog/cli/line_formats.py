"""Parses lines of some format into Arrow tables: text, JSON lines, CSV. Lines that are no records are named."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json

from distlog.console.output import json_text
from distlog.console.record_lines import json_texts
from distlog.core.arrays import byte_array, column_of, flags_of, integers, scalar_of, table_of_rows
from distlog.core.batches.record_batch import HEADERS_TYPE
from distlog.core.config import MAX_INT, MAX_LONG
from distlog.core.errors import InvalidRecordError
from distlog.core.times import NO_TIMESTAMP, WHOLE_TIME, to_ms, wrong_unit
from distlog.core.topics.appendable import ACCEPTED, IGNORED, scaled

# ---
# Reads the objects and times of a block of lines all at once, by Arrow, without a Python object for each.
#
# Each function returns None for lines that Arrow cannot take so: then they must be looked at one by one, which also
# finds the line that is wrong.


@dataclass(frozen=True, slots=True)
class Objects:
    """Lines, each an object, as bytes without their ends, and some fields of the objects."""

    lines: pa.Array
    fields: pa.RecordBatch


def split_lines(block: bytes) -> pa.Array:
    """The lines as bytes without their ends."""
    text = scalar_of(block.replace(b"\r\n", b"\n").removesuffix(b"\r"), pa.binary())
    return pc.split_pattern(text, "\n").values


def objects_of(block: bytes, fields: Mapping[str, pa.DataType], *, others: str) -> Objects | None:
    """The objects of a block, one a line, with `fields` of these types; `others` is ignore or error.

    None also for blank lines, for a field twice in an object, and if a line ends within an object or has several.
    """
    lines = split_lines(block)
    if len(block) >= MAX_INT or not _are_delimited(lines):
        return None
    try:
        lines.cast(pa.string())  # Arrow does not check that the other fields are UTF-8
        table = pyarrow.json.read_json(
            pa.BufferReader(block),
            pyarrow.json.ReadOptions(use_threads=False, block_size=len(block) + 1),
            pyarrow.json.ParseOptions(explicit_schema=pa.schema(fields.items()), unexpected_field_behavior=others),
        )
    except pa.ArrowException:
        return None
    # no object goes on where } and { meet, so as many objects as lines are one in each
    batches = table.select(list(fields)).combine_chunks().to_batches() if table.num_rows == len(lines) else []
    return Objects(lines, batches[0]) if batches else None


def _are_delimited(lines: pa.Array) -> bool:
    # Arrow's reader crashes at a null ahead of the first object
    delimited = pc.and_(pc.starts_with(lines, "{"), pc.ends_with(lines, "}"))
    return bool(pc.all(delimited).as_py())


def first_object(block: bytes) -> Mapping[str, Any]:
    """The object of the first line, whose types the others may have; empty if it is none."""
    try:
        value = json.loads(block.partition(b"\n")[0])
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def times_of(column: pa.Array, unit: str = "ms") -> pa.Array | None:
    """Milliseconds since 1970, of numbers of a unit, or of texts: all numbers, or all ISO 8601 (no zone: UTC).

    None if they are none of these.
    """
    if pa.types.is_boolean(column.type):
        return None
    for kind in (pa.int64(), pa.timestamp("us", "UTC"), pa.timestamp("us")):
        try:
            times = column.cast(kind).cast(pa.int64())
        except pa.ArrowException:
            continue
        is_number = pa.types.is_integer(kind)
        earliest = pc.min(times).as_py()
        if earliest is not None and earliest < (NO_TIMESTAMP if is_number else 0):
            return None
        if not is_number:
            return pc.divide(times, 1000)
        try:
            return scaled(times, unit)
        except InvalidRecordError:
            return None
    return None


# ---
# Parses lines into Arrow tables that can be appended. Lines that are no records are left out, and named.
#
# text    A line is a value. With a key separator, the text before the first separator is the key.
# jsonl   A line is an object, as `read --json` prints it: `value` (required), `key`, `timestamp`, `partition`,
#         `headers`. Bytes are text, null, or {"base64": "..."}. A timestamp is a number since 1970 or ISO 8601.
#         If fields are named, it is an object of any kind.
# csv     `CsvRows`.
#
# Arrow reads a block of objects at once, if all of them are as most records are; else they are looked at one by one.
# Both ways stay: Arrow takes 2.5 us a line, but one type a field, so no text beside base64, as `read --json` prints
# them; one by one it is 7.5 us; and 95 us if Arrow is asked for one line, so to halve a refused block is no way.


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is no record: its number from 1, the number of records before it in its block, and the reason."""

    line: int
    records_before: int
    reason: str


@dataclass(frozen=True, slots=True)
class Parsed:
    """The records of a block of lines, and its lines that are no records."""

    records: pa.Table
    bad: Sequence[BadLine] = ()


#: Parses a block of whole lines; its second argument is the number of lines before the block.
LineFormat = Callable[[bytes, int], Parsed]

_SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("timestamp", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS_TYPE),
    ]
)


_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))
#: The usual types of the fields that an object may have.
_FIELDS = {
    "partition": pa.int64(),
    "timestamp": pa.int64(),
    "key": pa.string(),
    "value": pa.string(),
    "headers": _HEADERS,
    **dict.fromkeys(IGNORED, pa.int64()),
    "topic": pa.string(),
}


def text_format(key_separator: str | None) -> LineFormat:
    """A parser of lines as values, or as keys and values: then a line without the separator is bad."""

    def parse(block: bytes, lines_before: int) -> Parsed:
        lines = split_lines(block)
        if key_separator is None:
            return Parsed(pa.table({"value": lines}))
        parts = pc.split_pattern(lines, key_separator, max_splits=1)
        good = pc.equal(pc.list_value_length(parts), integers([2], pa.int32())[0])
        reason = "the line has no key separator: correct it, or leave out --key-separator"
        rows = np.flatnonzero(~flags_of(good)).tolist()
        bad = [BadLine(lines_before + row + 1, row - number, reason) for number, row in enumerate(rows)]
        parts = parts.filter(good) if bad else parts
        return Parsed(pa.table({"key": pc.list_element(parts, 0), "value": pc.list_element(parts, 1)}), bad)

    return parse


def jsonl_format(timestamp_unit: str = "ms") -> LineFormat:
    """A parser of objects as records. Blank lines are skipped."""
    record_of = partial(_record, unit=timestamp_unit)

    def parse(block: bytes, lines_before: int) -> Parsed:
        records = _records_in_bulk(block, timestamp_unit)
        if records is None:
            return parsed_one_by_one(block, lines_before, record_of, object_pairs_hook=_named_once)
        return Parsed(records)

    return parse


def _records_in_bulk(block: bytes, unit: str) -> pa.Table | None:
    """The records of a block that Arrow can read at once, as it can most; else None."""
    time_type = pa.string() if isinstance(first_object(block).get("timestamp"), str) else pa.int64()
    objects = objects_of(block, {**_FIELDS, "timestamp": time_type}, others="error")
    if objects is None or not _have_values(objects) or not _are_plain(objects.fields):
        return None
    times = times_of(objects.fields["timestamp"], unit)
    if times is None:
        return None
    headers = pc.coalesce(objects.fields["headers"], scalar_of([], _HEADERS)).cast(HEADERS_TYPE)
    columns = {name: objects.fields[name].cast(_SCHEMA.field(name).type) for name in ("partition", "key", "value")}
    return pa.table({**columns, "timestamp": times, "headers": headers}).select(_SCHEMA.names).cast(_SCHEMA)


def _have_values(objects: Objects) -> bool:
    """True if each object has a value, which may be null: Arrow does not tell a null from a missing value."""
    missing = pc.is_null(objects.fields["value"])
    return all("value" in json.loads(line) for line in objects.lines.filter(missing).to_pylist())


def _are_plain(fields: pa.RecordBatch) -> bool:
    """True if partitions are in their range, and each header has a name and a value."""
    low, high = (bound.as_py() for bound in pc.min_max(fields["partition"]).values())
    headers = pc.list_flatten(fields["headers"])
    whole = all(part.null_count == 0 for part in (headers, *headers.flatten()))
    return whole and (low is None or (low >= -1 and high <= MAX_INT))


def parsed_one_by_one(
    block: bytes,
    lines_before: int,
    row_of: Callable[[bytes, Any], dict[str, Any]],
    schema: pa.Schema = _SCHEMA,
    **hooks: Any,
) -> Parsed:
    """The rows that `row_of` makes of the lines and their JSON; it raises ValueError. Blank lines are skipped.

    `hooks` are those of `json.JSONDecoder`.
    """
    rows: list[dict[str, Any]] = []
    bad: list[BadLine] = []
    # `json.loads` with hooks makes a decoder for each line
    decoder = json.JSONDecoder(**hooks)
    for number, line in enumerate(block.split(b"\n"), lines_before + 1):
        if line.strip():
            try:
                text = line.decode(json.detect_encoding(line), "surrogatepass")
                rows.append(row_of(line, decoder.decode(text)))
            except (ValueError, RecursionError) as error:
                bad.append(BadLine(number, len(rows), f"not a record: {error}"))
    return Parsed(table_of_rows(rows, schema), bad)


def _named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; raises ValueError for a name that it has twice, of which one value would be lost."""
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in fields:
            raise ValueError(f"it has the field {name} twice")
        fields[name] = value
    return fields


def _record(line: bytes, record: Any, unit: str) -> dict[str, Any]:
    if not isinstance(record, dict) or "value" not in record:
        raise ValueError('it must be an object with at least a "value", or give --value, --key or --timestamp')
    unknown = sorted(record.keys() - set(ACCEPTED) - set(IGNORED))
    if unknown:
        raise ValueError(f"unknown field {unknown[0]}; known are {', '.join(ACCEPTED)}")
    time = record.get("timestamp")
    return {
        "partition": _integer("partition", record.get("partition"), MAX_INT),
        "timestamp": time_of(time, unit),
        "key": _bytes(record.get("key")),
        "value": _bytes(record["value"]),
        "headers": _headers(record.get("headers")),
    }


def time_of(value: Any, unit: str = "ms") -> int | None:
    """A time, which is text or a number of units, as ms since 1970; raises ValueError."""
    if isinstance(value, str) and value.strip().removeprefix("-").isdecimal():
        value = int(value)
    time = to_ms(value, unit) if isinstance(value, str) or type(value) is int else value
    if type(value) is int and unit != "ms" and (wrong := wrong_unit(value, unit)):
        raise ValueError(wrong)
    if time is None or (type(time) is int and -1 <= time <= MAX_LONG):
        return time
    raise ValueError(f"{WHOLE_TIME} (--timestamp-unit), from 0 on, -1 for none, or null, not {value!r}")


def _integer(name: str, value: Any, limit: int) -> int | None:
    if value is None or (type(value) is int and -1 <= value <= limit):
        return value
    raise ValueError(f"{name} must be an integer from -1 to {limit}, or null")


def _headers(value: Any) -> list[dict[str, Any]]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise ValueError("headers must be a list")
    return [_header(item) for item in value]


def _header(item: Any) -> dict[str, Any]:
    if not isinstance(item, dict) or item.keys() != {"key", "value"} or not isinstance(item["key"], str):
        raise ValueError('a header must be {"key": text, "value": bytes}')
    return {"key": item["key"], "value": _bytes(item["value"])}


def _bytes(value: Any) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and value.keys() == {"base64"} and isinstance(value["base64"], str):
        return base64.b64decode(value["base64"], validate=True)
    raise ValueError('bytes must be text, null or {"base64": "..."}')


def with_headers(records: pa.Table, headers: Iterable[tuple[str, str]]) -> pa.Table:
    """The records with these headers behind their own."""
    added = [{"key": name, "value": value.encode()} for name, value in headers]
    if not added or not records.num_rows:
        return records
    if "headers" not in records.schema.names:
        column = pa.repeat(scalar_of(added, HEADERS_TYPE), records.num_rows)
        return records.append_column("headers", column)
    lists = [[*own, *added] for own in records["headers"].to_pylist()]
    place = records.schema.get_field_index("headers")
    return records.set_column(place, "headers", column_of(lists, HEADERS_TYPE))


# ---
# Parses objects that have fields, of which some are the key, the value and the timestamp of a record.
#
# An object is a line of JSON. The value is the line if no field is named. Fields are the bytes of their text, or
# of their JSON if they are no text. A field that is not there, or null, makes a null. A timestamp is a number or
# ISO 8601. Blank lines are skipped. `CsvRows` has the same for rows of CSV.


_FIELDS_SCHEMA = pa.schema([("timestamp", pa.int64()), ("key", pa.binary()), ("value", pa.binary())])
#: How many names of fields are shown beside a wrong one.
_NAMES_SEEN = 20
#: How Arrow reads a field, by the type that it has in the first object.
_BULK_TYPES = {str: pa.string(), int: pa.int64(), bool: pa.bool_(), type(None): pa.string()}


@dataclass(frozen=True, slots=True)
class Fields:
    """The names of the fields that are a record's key, value and timestamp; None if no field is.

    Numbers for times count `timestamp_unit`, also where no field is named.
    """

    key: str | None = None
    value: str | None = None
    timestamp: str | None = None
    timestamp_unit: str = "ms"

    @property
    def named(self) -> dict[str, str]:
        """The names of the fields by their roles: key, value, timestamp."""
        names = {"key": self.key, "value": self.value, "timestamp": self.timestamp}
        return {name: field for name, field in names.items() if field is not None}

    def check(self, names: Sequence[str]) -> None:
        """Raise InvalidRecordError for a field that is not among `names`."""
        for name in self.named.values():
            if name not in names:
                raise InvalidRecordError(f"the input has no field {name}; it has {', '.join(names)}")


class MissedFields:
    """The named fields that no object of the input had so far, and names that objects have instead.

    A field may be missing in some objects, so only the end of the input tells that its name is wrong.
    """

    def __init__(self, fields: Fields) -> None:
        self._missed, self._names = {*fields.named.values()}, dict[str, None]()

    def look(self, block: bytes) -> None:
        """Look for the fields in a block of lines; once all of them were seen, it costs nothing."""
        if not self._missed:
            return
        for line in block.split(b"\n"):
            # a name may be written with escapes, as a slash often is
            may_have = b"\\" in line or any(name.encode() in line for name in self._missed)
            if may_have or len(self._names) < _NAMES_SEEN:
                names = first_object(line).keys()
                self._names |= dict.fromkeys(list(names)[:_NAMES_SEEN])
                self._missed -= names
            if not self._missed:
                return

    def error(self) -> InvalidRecordError | None:
        """The error of a field that no object has; None if all were seen, or if there was no object."""
        if not self._missed or not self._names:
            return None
        seen = ", ".join([*self._names][:_NAMES_SEEN])
        return InvalidRecordError(f"no line has a field {min(self._missed)}; the lines have {seen}")


def json_fields(fields: Fields, missed: MissedFields | None = None) -> LineFormat:
    """A parser of objects, one a line; it tells `missed` of their fields."""

    def row_of(line: bytes, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise ValueError("it must be an object")
        text = {name: _text(value.get(field)) for name, field in fields.named.items() if name != "timestamp"}
        time = None if fields.timestamp is None else value.get(fields.timestamp)
        return {"value": line.removesuffix(b"\r"), **text, "timestamp": time_of(time, fields.timestamp_unit)}

    def parse(block: bytes, lines_before: int) -> Parsed:
        if missed is not None:
            missed.look(block)
        rows = _objects_in_bulk(block, fields)
        if rows is not None:
            return Parsed(rows)
        return parsed_one_by_one(block, lines_before, row_of, _FIELDS_SCHEMA, parse_float=_Written.of)

    return parse


def _objects_in_bulk(block: bytes, fields: Fields) -> pa.Table | None:
    """The rows of a block whose fields have the types that they have in its first line; else None."""
    first = first_object(block)
    kinds = {field: _BULK_TYPES.get(type(first.get(field))) for field in fields.named.values()}
    objects = None if None in kinds.values() else objects_of(block, kinds, others="ignore")
    if objects is None:
        return None
    empty = pa.nulls(len(objects.lines))
    columns = {"key": empty, "value": objects.lines, "timestamp": empty}
    for name, source in fields.named.items():
        column = objects.fields[source]
        columns[name] = times_of(column, fields.timestamp_unit) if name == "timestamp" else column.cast(pa.string())
    if columns["timestamp"] is None:
        return None
    return pa.table({field.name: columns[field.name].cast(field.type) for field in _FIELDS_SCHEMA})


class _Written(float):
    """A number with a fraction or an exponent, and its text: as a float alone it may lose digits."""

    __slots__ = ("text",)
    text: str

    @classmethod
    def of(cls, text: str) -> _Written:
        """The number that a text of JSON is."""
        number = cls(text)
        number.text = text
        return number


def _text(value: Any) -> bytes | None:
    if value is None or isinstance(value, str):
        return None if value is None else value.encode()
    return _json(value).encode()


def _json(value: Any) -> str:
    """A value as JSON, with its numbers as they were written."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json_text(name)}: {_json(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_json, value)) + "]"
    return value.text if isinstance(value, _Written) else json_text(value)


# ---
# Parses CSV: rows under a line of names, some fields of which are the key, the value and the timestamp of a record.
#
# A row is as RFC 4180 has it: a quote counts where a field begins, a quoted field may have line ends, and a comma or
# the end of the row is behind it. An expression finds how far the rows are good, and Arrow reads these at once. It
# reads a block without it, in much less time, if all lines are rows by what is counted in them.
#
# Behind a quoted field that does not end so, the next line begins a row again: a stray quote costs its line alone.


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


class CsvRows:
    """A parser of the lines of one file, whose first line it takes for the names."""

    def __init__(self, fields: Fields) -> None:
        self._roles, self._names = fields, list[str]()
        self._open, self._open_line = b"", 0

    def parse(self, block: bytes, lines_before: int) -> Parsed:
        """The rows of a block of whole lines, but for one that has not ended: it waits for the next block."""
        if self._open:
            return self._rows(self._open + block + b"\n", self._open_line)
        if self._names:
            return self._rows(block + b"\n", lines_before)
        line, newline, block = block.removeprefix(b"\xef\xbb\xbf").partition(b"\n")
        self._names = _names(line)
        self._roles.check(self._names)
        return self._rows(block + newline, lines_before + 1)

    def rest(self) -> Parsed:
        """The rows from the one on that waits, at the end of the input."""
        return self._rows(self._open, self._open_line, is_last=True) if self._open else Parsed(pa.table({}))

    def _rows(self, text: bytes, lines_before: int, *, is_last: bool = False) -> Parsed:
        table = None if self._open else _all_rows(text, self._names)
        if table is not None:
            columns, bad_times = _columns(table, self._roles)
            if not bad_times:
                return Parsed(columns)
        spans, bad, position = list[tuple[int, int]](), dict[int, str](), 0
        while position < len(text):
            start = position
            while row := _ROW.match(text, position):
                position = row.end()
            spans.append((start, position))
            if blanks := _BLANKS.match(text, position):
                position = blanks.end()
            elif position < len(text):
                is_open = _OPEN.match(text, position) is not None
                if is_open and not is_last and text.count(b"\n", position) <= _MOST_LINES:
                    break
                bad[position] = _fault(text, position, is_open=is_open)
                position = text.index(b"\n", position) + 1
        self._open, self._open_line = text[position:], lines_before + text.count(b"\n", 0, position)
        return self._parsed(text, spans, bad, lines_before)

    def _parsed(self, text: bytes, spans: list[tuple[int, int]], bad: dict[int, str], lines_before: int) -> Parsed:
        """The records of the rows in `spans` of a text. Some may have other fields than the names, or no times."""
        good = b"".join(text[start:end] for start, end in spans)
        try:
            table, refused = _read_rows(good, self._names), dict[int, str]()
        except pa.ArrowInvalid:
            refused = _refused(good, self._names)
            rows = [row[0] for number, row in enumerate(_ROW.finditer(good)) if number not in refused]
            table = _read_rows(b"".join(rows), self._names)
        columns, bad_times = _columns(table, self._roles)
        if not (bad or refused or bad_times):
            return Parsed(columns)
        places = np.array([row.start() for span in spans for row in _ROW.finditer(text, *span)], np.int64)
        bad |= {int(places[row]): reason for row, reason in refused.items()}
        places = np.delete(places, [*refused])
        bad |= {int(places[row]): reason for row, reason in bad_times.items()}
        columns = columns.take(integers(np.delete(np.arange(len(places)), [*bad_times])))
        positions = sorted(bad)
        lines = lines_before + 1 + np.searchsorted(np.flatnonzero(byte_array(text) == ord("\n")), positions)
        before = np.searchsorted(np.delete(places, [*bad_times]), positions)
        found = zip(lines.tolist(), before.tolist(), positions, strict=True)
        return Parsed(columns, [BadLine(line, records, bad[position]) for line, records, position in found])


def _fault(text: bytes, position: int, *, is_open: bool) -> str:
    """The reason why no row is there."""
    if is_open:
        return f"the quoted field does not end, at least not within {_MOST_LINES} lines"
    good = _GOOD.match(text, position)
    if good and text.startswith(b"\r", good.end()):
        return "a carriage return must end its line"
    return "there is text behind the end of a quoted field: a quote inside of one is doubled"


def _names(line: bytes) -> list[str]:
    names: list[str] = []
    with suppress(UnicodeDecodeError, csv.Error):
        if _ROW.fullmatch(line + b"\n"):
            names = next(csv.reader([line.decode().removesuffix("\r")]), [])
    if not names or len(set(names)) < len(names):
        why = "the first line of CSV must have the names of the fields, each once; a quoted one ends on that line"
        raise InvalidRecordError(why, line=1)
    return names


def _all_rows(text: bytes, names: list[str]) -> pa.Table | None:
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
    places = np.flatnonzero(data == ord('"'))
    before, behind = data[places[::2] - 1], data[places[1::2] + 1]
    is_begin = (before == ord(",")) | (before == ord("\n"))
    is_end = (behind == ord(",")) | (behind == ord("\n")) | (behind == ord("\r"))
    return len(places) % 2 == 0 and bool(is_begin.all() and is_end.all())


def _refused(rows: bytes, names: list[str]) -> dict[int, str]:
    """The faults of the rows that have other fields than the names, by their number."""
    bad_rows: dict[int, str] = {}

    def refuse(row: Any) -> str:
        bad_rows[row.number - 1] = f"the row has {row.actual_columns} fields, not {row.expected_columns}"
        return "skip"

    # Arrow decodes the bytes of a row for its message
    _read_rows(rows.translate(_MASK), names, refuse)
    return bad_rows


def _read_rows(text: bytes, names: list[str], refuse: Callable[[Any], str] | None = None) -> pa.Table:
    """The rows as bytes; raises ArrowInvalid for one with other fields than the names, unless `refuse` skips it."""
    if not text:
        return pa.table({name: pa.nulls(0, pa.binary()) for name in names})
    kinds = {name: pa.binary() for name in names}
    return pyarrow.csv.read_csv(
        io.BytesIO(text),
        pyarrow.csv.ReadOptions(column_names=names, use_threads=False, block_size=len(text) + 1),
        pyarrow.csv.ParseOptions(invalid_row_handler=refuse, newlines_in_values=True),
        pyarrow.csv.ConvertOptions(column_types=kinds, strings_can_be_null=False, quoted_strings_can_be_null=False),
    )


def _columns(table: pa.Table, fields: Fields) -> tuple[pa.Table, dict[int, str]]:
    """The columns of the records, and the faults of the rows with bad times, by their number."""
    columns = {name: table[field] for name, field in fields.named.items() if name != "timestamp"}
    if fields.value is None:
        arrays = [column.combine_chunks() for column in table.columns]
        columns["value"] = json_texts(pa.RecordBatch.from_arrays(arrays, table.schema.names))
    if fields.timestamp is None:
        return pa.table(columns), {}
    times, bad_times = _times(table[fields.timestamp], fields.timestamp_unit)
    return pa.table({**columns, "timestamp": times}), bad_times


def _times(column: pa.ChunkedArray, unit: str) -> tuple[pa.Array, dict[int, str]]:
    try:
        texts = column.cast(pa.string())
        times = times_of(pc.if_else(pc.equal(texts, ""), None, texts), unit)
    except pa.ArrowInvalid:
        times = None
    if times is not None:
        return times, {}
    bad_times: dict[int, str] = {}
    values = [_time_or_why(value, unit, row, bad_times) for row, value in enumerate(column.to_pylist())]
    return column_of(values, pa.int64()), bad_times


def _time_or_why(value: bytes, unit: str, row: int, bad_times: dict[int, str]) -> int | None:
    try:
        return time_of(value.decode() or None, unit)
    except ValueError as error:
        bad_times[row] = f"not a time: {error}"
        return None
