"""Parses the lines of a file into Arrow tables that can be appended.

text    A line is a value. With a key separator, the text before the first separator is the key.
jsonl   A line is an object, as `read --json` prints it: `value` (required), `key`, `timestamp`, `partition`,
        `headers`. Bytes are text, null, or {"base64": "..."}. A timestamp is ms since 1970 or ISO 8601.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc

from distlog.core.batches.record_batch import HEADERS_TYPE
from distlog.core.config import MAX_INT, MAX_LONG
from distlog.core.errors import InvalidRecordError
from distlog.core.times import to_ms
from distlog.core.topics.appendable import ACCEPTED, IGNORED

BLOCK_BYTES = 4 << 20

#: Makes a table from a block of whole lines and the number of lines before the block.
LineFormat = Callable[[bytes, int], pa.Table]

_SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("timestamp", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS_TYPE),
    ]
)


def blocks(file: BinaryIO, size: int = BLOCK_BYTES) -> Iterator[bytes]:
    """The file in blocks of whole lines, of about `size` bytes. A block has no newline at its end."""
    kept = b""
    while block := file.read(size):
        lines, newline, rest = (kept + block).rpartition(b"\n")
        kept = rest
        if newline:
            yield lines
    if kept:
        yield kept


def text_format(key_separator: str | None) -> LineFormat:
    """A parser of lines as values, or as keys and values.

    The parser raises InvalidRecordError for a line without the separator.
    """

    def parse(block: bytes, lines_before: int) -> pa.Table:
        text = pa.scalar(block.replace(b"\r\n", b"\n").removesuffix(b"\r"), pa.binary())
        lines = pc.split_pattern(text, "\n").values
        if key_separator is None:
            return pa.table({"value": lines})
        return _keyed(lines, key_separator, lines_before)

    return parse


def _keyed(lines: pa.Array, separator: str, lines_before: int) -> pa.Table:
    parts = pc.split_pattern(lines, separator, max_splits=1)
    row = pc.index(pc.list_value_length(parts), pa.scalar(1, pa.int32())).as_py()
    if row >= 0:
        raise InvalidRecordError(
            "a line has no key separator: correct it, or leave out --key-separator", line=lines_before + row + 1
        )
    return pa.table({"key": pc.list_element(parts, 0), "value": pc.list_element(parts, 1)})


def jsonl_format(block: bytes, lines_before: int) -> pa.Table:
    """Objects as records. Skips blank lines. Raises InvalidRecordError, which names the line and what is wrong."""
    rows = []
    for number, line in enumerate(block.split(b"\n"), lines_before + 1):
        if line.strip():
            try:
                rows.append(_row(json.loads(line)))
            except (ValueError, RecursionError) as error:
                raise InvalidRecordError(f"not a record: {error}", line=number) from None
    return pa.Table.from_pylist(rows, _SCHEMA)


def _row(record: Any) -> dict[str, Any]:
    if not isinstance(record, dict) or "value" not in record:
        raise ValueError('it must be an object with at least a "value"')
    unknown = sorted(record.keys() - set(ACCEPTED) - set(IGNORED))
    if unknown:
        raise ValueError(f"unknown field {unknown[0]}; known are {', '.join(ACCEPTED)}")
    time = record.get("timestamp")
    return {
        "partition": _integer("partition", record.get("partition"), MAX_INT),
        "timestamp": _integer("timestamp", to_ms(time) if isinstance(time, str) else time, MAX_LONG),
        "key": _bytes(record.get("key")),
        "value": _bytes(record["value"]),
        "headers": _headers(record.get("headers")),
    }


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
