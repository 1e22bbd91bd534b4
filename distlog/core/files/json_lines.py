"""Lines of JSON as records: objects of any kind with named fields, or records as `distlog read --json` prints them.

Arrow reads a block of objects at once, if all of them are as most are; else they are looked at one by one, which also
finds the line that is wrong.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from distlog.core.arrays import scalar_of, table_of_rows
from distlog.core.batches.record_batch import HEADERS_TYPE
from distlog.core.config import MAX_INT
from distlog.core.errors import InvalidRecordError
from distlog.core.files.parsed import BadLine, Parsed
from distlog.core.files.record_times import TimeReader
from distlog.core.files.text_lines import split_lines
from distlog.core.topics.appendable import ACCEPTED, IGNORED

_FIELDS_SCHEMA = pa.schema([("timestamp", pa.int64()), ("key", pa.binary()), ("value", pa.binary())])
#: How many names of fields are shown beside a wrong one.
_NAMES_SEEN = 20
#: How Arrow reads a field, by the type that it has in the first object.
_BULK_TYPES = {str: pa.string(), int: pa.int64(), bool: pa.bool_(), type(None): pa.string()}
_HINT = "; a line has one whole object: `jq -c '.[]' FILE` writes those of an array so"


@dataclass(slots=True)
class SeenFields:
    """The named fields that some object had, and names that objects have, for the error of a wrong name.

    A field may be missing in some objects, so only the end of the input tells that its name is wrong.
    """

    fields: Mapping[str, str]
    found: set[str] = field(default_factory=set)
    names: dict[str, None] = field(default_factory=dict)

    def look(self, block: bytes) -> None:
        """Look for the fields in a block of lines; once all of them were seen, it costs nothing."""
        missed = {*self.fields.values()} - self.found
        if not missed:
            return
        for line in block.split(b"\n"):
            # a name may be written with escapes, as a slash often is
            may_have = b"\\" in line or any(name.encode() in line for name in missed)
            if may_have or len(self.names) < _NAMES_SEEN:
                names = first_object(line).keys()
                self.names |= dict.fromkeys(list(names)[:_NAMES_SEEN])
                self.found |= missed & names
                missed -= names
            if not missed:
                return

    def add(self, other: SeenFields) -> None:
        """Add what another part of the input had."""
        self.found |= other.found
        self.names |= other.names

    def error(self) -> InvalidRecordError | None:
        """The error of a field that no object has; None if all were seen, or if there was no object."""
        missed = {*self.fields.values()} - self.found
        if not missed or not self.names:
            return None
        seen = ", ".join([*self.names][:_NAMES_SEEN])
        return InvalidRecordError(f"no line has a field {min(missed)}; the lines have {seen}")


@dataclass(frozen=True, slots=True)
class JsonFields:
    """Parses objects of any kind, one a line, of which some fields are the key, the value and the timestamp.

    The value is the line if no field is named. A key or value is the text of its field, or its JSON as it was written
    if that is no text. A field that is not there, or null, makes a null. Blank lines are skipped.
    """

    fields: Mapping[str, str]
    times: TimeReader
    seen: SeenFields

    def parse(self, text: bytes, limit: int, *, is_last: bool) -> Parsed:
        """See `LineParser`."""
        self.seen.look(text)
        rows = self._in_bulk(text)
        if rows is not None:
            return Parsed(rows, (), len(text) + 1)
        return one_by_one(text, self._row, _FIELDS_SCHEMA, parse_float=_Written.of)

    def _in_bulk(self, text: bytes) -> pa.Table | None:
        """The rows of a block whose fields have the types that they have in its first line; else None."""
        first = first_object(text)
        kinds = {name: _BULK_TYPES.get(type(first.get(name))) for name in self.fields.values()}
        objects = None if None in kinds.values() else objects_of(text, kinds, others="ignore")
        if objects is None:
            return None
        empty = pa.nulls(len(objects.lines))
        columns = {"key": empty, "value": objects.lines, "timestamp": empty}
        for role, name in self.fields.items():
            column = objects.fields[name]
            if role == "timestamp":
                times = self.times.of_column(column)
                if times.faults:
                    return None
                columns[role] = times.column
            else:
                columns[role] = column.cast(pa.string())
        return pa.table({field.name: columns[field.name].cast(field.type) for field in _FIELDS_SCHEMA})

    def _row(self, line: bytes, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise ValueError("it must be an object" + (_HINT if line.strip() in (b"[", b"]") else ""))
        texts = {role: _text(value.get(name)) for role, name in self.fields.items() if role != "timestamp"}
        time = value.get(self.fields["timestamp"]) if "timestamp" in self.fields else None
        return {"value": line.removesuffix(b"\r"), **texts, "timestamp": self.times.of_value(time)}


@dataclass(frozen=True, slots=True)
class Objects:
    """Lines, each an object, as bytes without their ends, and some fields of the objects."""

    lines: pa.Array
    fields: pa.RecordBatch


def objects_of(block: bytes, fields: Mapping[str, pa.DataType], *, others: str) -> Objects | None:
    """The objects of a block, one a line, with `fields` of these types; `others` is ignore or error.

    None for what Arrow cannot read so: blank lines, a field twice in an object, a line with several objects or a part
    of one.
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


def one_by_one(
    text: bytes, row_of: Callable[[bytes, Any], dict[str, Any]], schema: pa.Schema, **hooks: Any
) -> Parsed:
    """The rows that `row_of` makes of the lines and their JSON; it raises ValueError. Blank lines are skipped.

    `hooks` are those of `json.JSONDecoder`.
    """
    rows, bad, starts = list[dict[str, Any]](), list[BadLine](), list[int]()
    # `json.loads` with hooks makes a decoder for each line
    decoder, position = json.JSONDecoder(**hooks), 0
    for line in text.split(b"\n"):
        if line.strip():
            try:
                rows.append(row_of(line, decoder.decode(line.decode())))
                starts.append(position)
            except (ValueError, RecursionError) as error:
                bad.append(BadLine(position, len(rows), f"not a record: {error}"))
        position += len(line) + 1
    return Parsed(table_of_rows(rows, schema), bad, len(text) + 1, np.array(starts, np.int64))


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
        return "{" + ", ".join(f"{_dumped(name)}: {_json(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_json, value)) + "]"
    return value.text if isinstance(value, _Written) else _dumped(value)


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


# ---
# Records as `distlog read --json` prints them: `value` (required), `key`, `timestamp`, `partition`, `headers`. Bytes
# are text, null, or {"base64": "..."}. A timestamp is a number since 1970 or ISO 8601.
#
# Both ways stay: Arrow takes 2.5 us a line, but one type a field, so no text beside base64, as `read --json` prints
# them; one by one it is 7.5 us; and 95 us if Arrow is asked for one line, so to halve a refused block is no way.


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


@dataclass(frozen=True, slots=True)
class JsonRecords:
    """Parses objects that are records, as `distlog read --json` prints them. Blank lines are skipped."""

    times: TimeReader

    def parse(self, text: bytes, limit: int, *, is_last: bool) -> Parsed:
        """See `LineParser`."""
        records = self._in_bulk(text)
        if records is None:
            return one_by_one(text, self._record, _SCHEMA, object_pairs_hook=_named_once)
        return Parsed(records, (), len(text) + 1)

    def _in_bulk(self, text: bytes) -> pa.Table | None:
        """The records of a block that Arrow can read at once, as it can most; else None."""
        time_type = pa.string() if isinstance(first_object(text).get("timestamp"), str) else pa.int64()
        objects = objects_of(text, {**_FIELDS, "timestamp": time_type}, others="error")
        if objects is None or not _have_values(objects) or not _are_plain(objects.fields):
            return None
        times = self.times.of_column(objects.fields["timestamp"])
        if times.faults:
            return None
        headers = pc.coalesce(objects.fields["headers"], scalar_of([], _HEADERS)).cast(HEADERS_TYPE)
        columns = {
            name: objects.fields[name].cast(_SCHEMA.field(name).type) for name in ("partition", "key", "value")
        }
        return (
            pa.table({**columns, "timestamp": times.column, "headers": headers}).select(_SCHEMA.names).cast(_SCHEMA)
        )

    def _record(self, _: bytes, record: Any) -> dict[str, Any]:
        if not isinstance(record, dict) or "value" not in record:
            raise ValueError('it must be an object with at least a "value", as `distlog read --json` prints it')
        unknown = sorted(record.keys() - set(ACCEPTED) - set(IGNORED))
        if unknown:
            raise ValueError(f"unknown field {unknown[0]}; known are {', '.join(ACCEPTED)}")
        return {
            "partition": _integer("partition", record.get("partition"), MAX_INT),
            "timestamp": self.times.of_value(record.get("timestamp")),
            "key": _bytes(record.get("key")),
            "value": _bytes(record["value"]),
            "headers": _headers(record.get("headers")),
        }


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


def _named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; raises ValueError for a name that it has twice, of which one value would be lost."""
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in fields:
            raise ValueError(f"it has the field {name} twice")
        fields[name] = value
    return fields


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
