"""Parses lines into Arrow tables that can be appended. Lines that are no records are left out, and named.

text    A line is a value. With a key separator, the text before the first separator is the key.
jsonl   A line is an object, as `read --json` prints it: `value` (required), `key`, `timestamp`, `partition`,
        `headers`. Bytes are text, null, or {"base64": "..."}. A timestamp is ms since 1970 or ISO 8601.
        If fields are named, it is an object of any kind: `field_formats`.
csv     `csv_format`.

Arrow reads a block of objects at once, if all of them are as most records are; else they are looked at one by one.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distlog.cli.input.bulk_lines import Objects, first_object, objects_of, split_lines, times_of
from distlog.core.batches.record_batch import HEADERS_TYPE
from distlog.core.config import MAX_INT, MAX_LONG
from distlog.core.times import to_ms
from distlog.core.topics.appending.appendable import ACCEPTED, IGNORED


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is no record: its number from 1, how many records of its block stand before it, what is wrong."""

    line: int
    records_before: int
    reason: str


@dataclass(frozen=True, slots=True)
class Parsed:
    """The records of a block of lines, and the lines that are none."""

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
        return _keyed(lines, key_separator, lines_before)

    return parse


def _keyed(lines: pa.Array, separator: str, lines_before: int) -> Parsed:
    parts = pc.split_pattern(lines, separator, max_splits=1)
    good = pc.equal(pc.list_value_length(parts), 2)
    reason = "the line has no key separator: correct it, or leave out --key-separator"
    rows = np.flatnonzero(~good.to_numpy(zero_copy_only=False)).tolist()
    bad = [BadLine(lines_before + row + 1, row - number, reason) for number, row in enumerate(rows)]
    parts = parts.filter(good) if bad else parts
    return Parsed(pa.table({"key": pc.list_element(parts, 0), "value": pc.list_element(parts, 1)}), bad)


def jsonl_format(block: bytes, lines_before: int) -> Parsed:
    """Objects as records. Blank lines are skipped."""
    records = _records_in_bulk(block)
    return parsed_one_by_one(block, lines_before, _record) if records is None else Parsed(records)


def _records_in_bulk(block: bytes) -> pa.Table | None:
    """The records of a block in which all is as most records have it, so that Arrow can read it; else None."""
    time_type = pa.string() if isinstance(first_object(block).get("timestamp"), str) else pa.int64()
    found = objects_of(block, {**_FIELDS, "timestamp": time_type}, others="error")
    if found is None or not _have_values(found) or not _are_plain(found.fields):
        return None
    times = times_of(found.fields["timestamp"])
    if times is None:
        return None
    headers = pc.coalesce(found.fields["headers"], pa.scalar([], _HEADERS)).cast(HEADERS_TYPE)
    columns = {name: found.fields[name].cast(_SCHEMA.field(name).type) for name in ("partition", "key", "value")}
    return pa.table({**columns, "timestamp": times, "headers": headers}).select(_SCHEMA.names).cast(_SCHEMA)


def _have_values(found: Objects) -> bool:
    """Whether each object has a value, be it null, which Arrow does not tell from none."""
    missing = pc.is_null(found.fields["value"])
    return all("value" in json.loads(line) for line in found.lines.filter(missing).to_pylist())


def _are_plain(fields: pa.RecordBatch) -> bool:
    """Whether partitions are in their range, and each header has a name and a value."""
    low, high = (bound.as_py() for bound in pc.min_max(fields["partition"]).values())
    headers = pc.list_flatten(fields["headers"])
    whole = all(part.null_count == 0 for part in (headers, *headers.flatten()))
    return whole and (low is None or (low >= -1 and high <= MAX_INT))


def parsed_one_by_one(
    block: bytes, lines_before: int, row_of: Callable[[bytes, Any], dict[str, Any]], schema: pa.Schema = _SCHEMA
) -> Parsed:
    """The rows that `row_of` makes of the lines and their JSON; it raises ValueError. Blank lines are skipped."""
    rows: list[dict[str, Any]] = []
    bad: list[BadLine] = []
    for number, line in enumerate(block.split(b"\n"), lines_before + 1):
        if line.strip():
            try:
                rows.append(row_of(line, json.loads(line)))
            except (ValueError, RecursionError) as error:
                bad.append(BadLine(number, len(rows), f"not a record: {error}"))
    return Parsed(pa.Table.from_pylist(rows, schema), bad)


def _record(line: bytes, record: Any) -> dict[str, Any]:
    if not isinstance(record, dict) or "value" not in record:
        raise ValueError('it must be an object with at least a "value", or give --value, --key or --timestamp')
    unknown = sorted(record.keys() - set(ACCEPTED) - set(IGNORED))
    if unknown:
        raise ValueError(f"unknown field {unknown[0]}; known are {', '.join(ACCEPTED)}")
    time = record.get("timestamp")
    return {
        "partition": _integer("partition", record.get("partition"), MAX_INT),
        "timestamp": time_of(time),
        "key": _bytes(record.get("key")),
        "value": _bytes(record["value"]),
        "headers": _headers(record.get("headers")),
    }


def time_of(value: Any) -> int | None:
    """A time as ms since 1970; raises ValueError."""
    return _integer("timestamp", to_ms(value) if isinstance(value, str) else value, MAX_LONG)


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
    """The records with these headers behind those that they have."""
    added = [{"key": name, "value": value.encode()} for name, value in headers]
    if not added or not records.num_rows:
        return records
    if "headers" not in records.schema.names:
        column = pa.repeat(pa.scalar(added, HEADERS_TYPE), records.num_rows)
        return records.append_column("headers", column)
    lists = [[*given, *added] for given in records["headers"].to_pylist()]
    place = records.schema.get_field_index("headers")
    return records.set_column(place, "headers", pa.array(lists, HEADERS_TYPE))
