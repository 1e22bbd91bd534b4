"""Reads commits from their bytes as docs/formats.md describes them, with no code of the library."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import pyarrow as pa
from crc32c import crc32c

Body = Mapping[str, Any]


class UnreadableError(Exception):
    """Bytes that are not what their name says."""


@dataclass(frozen=True, slots=True)
class ReadCommit:
    """A commit; each of its `actions` is (name, body), those in columns, tables and manifests one by one."""

    version: int
    id: str
    prev: str | None
    topic_id: str
    timestamp_ms: int
    operation: str
    actions: tuple[tuple[str, Body], ...]
    requires: Body

    def bodies(self, name: str) -> Iterator[Body]:
        """The bodies of the actions with this name."""
        return (body for other, body in self.actions if other == name)


def read_commit(data: bytes, read_file: Callable[[str], bytes]) -> ReadCommit:
    """The commit that `data` holds; `read_file` reads a manifest. Raises UnreadableError."""
    at = data.rindex(b',"crc32c":')
    body = json.loads(data)
    if crc32c(data[:at]) != body["crc32c"]:
        raise UnreadableError("the checksum of a commit is wrong")
    items = [item for each in body["actions"] for item in _with_manifests(each, read_file)]
    return ReadCommit(
        body["version"],
        body["id"],
        body.get("prev"),
        body["topic_id"],
        body["timestamp_ms"],
        body["operation"],
        tuple(action for item in items for action in _actions(item)),
        body.get("requires", {}),
    )


def _with_manifests(item: Body, read_file: Callable[[str], bytes]) -> Iterator[Body]:
    if "manifest" not in item:
        yield item
        return
    lines = read_file(item["manifest"]["file"])
    if crc32c(lines) != item["manifest"]["crc32c"]:
        raise UnreadableError("the checksum of a manifest is wrong")
    yield from map(json.loads, lines.splitlines())


#: The fields of a segment that are left out where they have these values.
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
    "first_batch_crc": -1,
    "last_batch_crc": -1,
}
_FLAGS = frozenset({"compacted", "has_transactions", "has_producers"})


def _actions(item: Body) -> Iterator[tuple[str, Body]]:
    ((name, body),) = item.items()
    if name in ("adds", "removes"):
        rows = _rows_of_columns(body)
    elif name in ("add_table", "remove_table"):
        rows = _rows_of_table(body)
    elif name == "producers":
        yield name, {"rows": _producers(body)}
        return
    else:
        yield name, {**DEFAULTS, **body} if name == "add" else body
        return
    for row in rows:
        if name.startswith("add"):
            segment = {**DEFAULTS, **row}
            yield "add", segment if name == "adds" else {key: segment[key] for key in segment.keys() - _COMPUTED}
        else:
            yield "remove", row


_STEPS = frozenset({"partition", "base_offset", "created_ms"})
_STEPS_OF_COLUMNS = _STEPS | {"log_position", "offset_index_position", "time_index_position"}
#: Columns of differences to another one, in the order in which they are read.
_RELATIVE = {
    "next_offset": "base_offset",
    "offset_of_max_timestamp": "base_offset",
    "max_timestamp": "created_ms",
    "first_timestamp": "max_timestamp",
    "min_timestamp": "max_timestamp",
    "last_batch_crc": "first_batch_crc",
}
#: Columns of a table that are differences to what the others tell.
_COMPUTED = frozenset({"crc32c", "time_index_crc32c"})
#: Columns of a table that tell the gap after the part in the row before, whose size is in the other column.
_GAPS = {
    "log_position": "log_bytes",
    "offset_index_position": "offset_index_bytes",
    "time_index_position": "time_index_bytes",
}


def _rows_of_columns(body: Body) -> list[dict[str, Any]]:
    count, stems = len(body["partition"]), body["stems"]
    columns = {
        name: column if isinstance(column, list) else [column] * count
        for name, column in body.items()
        if name != "stems"
    }
    columns["stem"] = [stems[number] for number in columns["stem"]]
    for name in _STEPS_OF_COLUMNS & columns.keys():
        columns[name] = list(accumulate(columns[name]))
    _add_bases(columns, count)
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _add_bases(columns: dict[str, list[Any]], count: int) -> None:
    for name, other in _RELATIVE.items():
        if name in columns:
            bases = columns.get(other, [DEFAULTS.get(other)] * count)
            columns[name] = [own + base for own, base in zip(columns[name], bases, strict=True)]


def _rows_of_table(body: Body) -> list[dict[str, Any]]:
    """The rows of a table; its two checksums are differences to computed ones."""
    count, packed = body["rows"], base64.b64decode(body["data"])
    plain = pa.Codec("zstd").decompress(packed, decompressed_size=body["size"], asbytes=True)
    (size,) = struct.unpack_from("<q", plain)
    text, at = json.loads(plain[8 : 8 + size]), 8 + size
    columns: dict[str, list[Any]] = {name: [value] * count for name, value in text["same"].items()}
    for name, width in text["columns"].items():
        letter = {1: "b", 2: "h", 4: "i", 8: "q"}[width]
        columns[name] = list(struct.unpack_from(f"<{count}{letter}", plain, at))
        at += width * count
    for name in _STEPS & columns.keys():
        columns[name] = list(accumulate(columns[name]))
    _add_bases(columns, count)
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
