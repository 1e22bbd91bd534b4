"""Reads commits from their bytes as docs/formats.md describes them, without the library's code."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import pyarrow as pa
from crc32c import crc32c

Body = Mapping[str, Any]


class UnreadableError(Exception):
    """Bytes that are not what their name promises."""


@dataclass(frozen=True, slots=True)
class ReadCommit:
    """A commit; each of its `actions` is (name, body), also those from tables."""

    version: int
    id: str
    prev: str | None
    topic_id: str
    timestamp_ms: int
    operation: str
    actions: tuple[tuple[str, Body], ...]
    requires: Body

    def bodies(self, name: str) -> Iterator[Body]:
        return (body for other, body in self.actions if other == name)


def read_commit(data: bytes) -> ReadCommit:
    """Decode a commit; raises UnreadableError."""
    end = data.rindex(b',"crc32c":')
    body = json.loads(data)
    if crc32c(data[:end]) != body["crc32c"]:
        raise UnreadableError("the checksum of a commit is wrong")
    return ReadCommit(
        body["version"],
        body["id"],
        body.get("prev"),
        body["topic_id"],
        body["timestamp_ms"],
        body["operation"],
        tuple(action for item in body["actions"] for action in _actions(item)),
        body.get("requires", {}),
    )


#: The defaults of a segment's optional fields.
DEFAULTS: Body = {
    "leader_epoch": -1,
    "compacted": False,
    "has_transactions": False,
    "min_timestamp": -1,
    "append_time_ms": -1,
    "first_unstable_offset": -2,
    "log_position": -1,
    "offset_index_position": -1,
    "time_index_position": -1,
    "has_producers": False,
    "offset_index_crc32c": -1,
    "time_index_crc32c": -1,
    "txn_index_crc32c": -1,
    "key_index_bytes": 0,
    "key_index_crc32c": -1,
    "key_index_position": -1,
    "first_batch_crc": -1,
    "last_batch_crc": -1,
}
_FLAGS = frozenset({"compacted", "has_transactions", "has_producers"})


def _actions(item: Body) -> Iterator[tuple[str, Body]]:
    ((name, body),) = item.items()
    match name:
        case "add":
            yield name, {**DEFAULTS, **body}
        case "add_table":
            for row in _rows_of_table(body):
                yield "add", {key: row[key] for key in row.keys() - _COMPUTED}
        case "remove_table":
            yield from (("remove", row) for row in _rows_of_table(body))
        case "producers":
            yield name, {"rows": _producers(body)}
        case _:
            yield name, body


_STEPS = frozenset({"partition", "base_offset", "created_ms"})
#: Columns of differences to another column, in the order in which they are read.
_RELATIVE = {
    "next_offset": "base_offset",
    "offset_of_max_timestamp": "base_offset",
    "max_timestamp": "created_ms",
    "first_timestamp": "max_timestamp",
    "min_timestamp": "max_timestamp",
    "last_batch_crc": "first_batch_crc",
}
#: Columns of a table that are differences to a computed value.
_COMPUTED = frozenset({"crc32c", "time_index_crc32c"})
#: Columns with the gap to the end in the previous row, whose size is in the other column.
_GAPS = {
    "log_position": "log_bytes",
    "offset_index_position": "offset_index_bytes",
    "time_index_position": "time_index_bytes",
    "key_index_position": "key_index_bytes",
}


def _rows_of_table(body: Body) -> list[dict[str, Any]]:
    """Return the rows of a table; its two checksums stay differences to computed ones."""
    count, packed = body["rows"], base64.b64decode(body["data"])
    plain = pa.Codec("zstd").decompress(packed, decompressed_size=body["size"], asbytes=True)
    (size,) = struct.unpack_from("<q", plain)
    text, position = json.loads(plain[8 : 8 + size]), 8 + size
    columns: dict[str, list[Any]] = {name: [value] * count for name, value in text["same"].items()}
    for name, width in text["columns"].items():
        letter = {1: "b", 2: "h", 4: "i", 8: "q"}[width]
        columns[name] = list(struct.unpack_from(f"<{count}{letter}", plain, position))
        position += width * count
    for name in _STEPS & columns.keys():
        columns[name] = list(accumulate(columns[name]))
    for name, other in _RELATIVE.items():
        if name in columns:
            columns[name] = [delta + base for delta, base in zip(columns[name], columns[other], strict=True)]
    for name, size_of in _GAPS.items():
        if name in columns:
            end = 0
            for row in range(count):
                columns[name][row] += end
                end = columns[name][row] + columns[size_of][row]
    for name, values in text["texts"].items():
        columns[name] = [values[number] for number in columns[name]]
    for name in _FLAGS & columns.keys():
        columns[name] = list(map(bool, columns[name]))
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


_PRODUCER_COLUMNS = (
    *("partition", "producer_id", "producer_epoch", "last_sequence", "last_offset", "offset_delta"),
    *("timestamp", "kind", "coordinator_epoch"),
)
_PRODUCER_DEFAULTS = {"kind": 0, "coordinator_epoch": -1}


def _producers(body: Body) -> list[dict[str, int]]:
    count = len(body["partition"])
    columns = []
    for name in _PRODUCER_COLUMNS:
        stored = body.get(name, _PRODUCER_DEFAULTS.get(name))
        column = stored if isinstance(stored, list) else [stored] * count
        columns.append(list(accumulate(column)) if name in ("partition", "last_offset", "timestamp") else column)
    return [dict(zip(_PRODUCER_COLUMNS, row, strict=True)) for row in zip(*columns, strict=True)]
