"""Many actions of one kind as one compressed table: the segments that a commit adds, or removes.

docs/formats.md#actions has the layout. `data` and `pad` have at least as many characters as there are rows, so that
no small file takes much memory. Nothing in a table is trusted.
"""

from __future__ import annotations

import base64
import binascii
import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distlog.core.arrays import booleans, flags_of, integers, numbers_of, texts
from distlog.core.commits import fields
from distlog.core.commits.actions import AddTable, RemoveTable
from distlog.core.commits.fields import Integer
from distlog.core.commits.segment_table import REMOVED_SCHEMA, SCHEMA, SegmentInfo, check_rows
from distlog.core.format.kernels.crc import crcs_joined, crcs_of_rows
from distlog.core.format.offset_and_time_index import TIME_ENTRY
from distlog.core.format.record_batch import LOG_OVERHEAD

#: The names of the actions.
ADD_TABLE, REMOVE_TABLE = "add_table", "remove_table"
#: A table has no more rows, and the tables of a commit not more than MOST_ROWS.
MOST_ROWS_OF_TABLE, MOST_ROWS = 100_000, 500_000

STEPS = frozenset({"partition", "base_offset", "created_ms"})
#: In the order in which they are read.
RELATIVE = {
    "next_offset": "base_offset",
    "offset_of_max_timestamp": "base_offset",
    "max_timestamp": "created_ms",
    "first_timestamp": "max_timestamp",
    "min_timestamp": "max_timestamp",
    "last_batch_crc": "first_batch_crc",
}
ADJACENT = {
    "log_position": "log_bytes",
    "offset_index_position": "offset_index_bytes",
    "time_index_position": "time_index_bytes",
}
#: The header of a batch of format 2 up to where its checksum begins to count.
_HEAD = np.dtype([("base_offset", ">i8"), ("size", ">i4"), ("leader_epoch", ">i4"), ("magic", "i1"), ("crc", ">u4")])
_SCHEMAS = {ADD_TABLE: SCHEMA, REMOVE_TABLE: REMOVED_SCHEMA}
_CHECKS = fields.checks(SegmentInfo)
_TEXT_SIZE = struct.Struct("<q")
_LEVEL = 3
_WIDTHS = (1, 2, 4, 8)
_FRAME = struct.pack("<I", 0xFD2FB528)
#: More bytes than the text of a table has: for its names, and for the texts of each row.
_TEXT_OF_NAMES, _TEXT_OF_ROW = 4096, 128

Longs = npt.NDArray[np.int64]


def write_table(action: AddTable | RemoveTable) -> dict[str, Any]:
    """The JSON object of a table of at least one row and at most MOST_ROWS_OF_TABLE."""
    kind = ADD_TABLE if isinstance(action, AddTable) else REMOVE_TABLE
    columns, lists = dict[str, Longs](), dict[str, list[str]]()
    for spec in _SCHEMAS[kind]:
        column = action.rows[spec.name]
        if spec.type == pa.string():
            coded = column.dictionary_encode()
            lists[spec.name] = coded.dictionary.to_pylist()
            columns[spec.name] = numbers_of(coded.indices).astype(np.int64)
        else:
            flags = spec.type == pa.bool_()
            columns[spec.name] = flags_of(column).astype(np.int64) if flags else numbers_of(column)
    encoded = _encoded(columns)
    rows = len(action.rows)
    same = {name: int(column[0]) for name, column in encoded.items() if (column == column[0]).all()}
    widths = {name: _width(column) for name, column in encoded.items() if name not in same}
    text = json.dumps({"texts": lists, "columns": widths, "same": same}, separators=(",", ":")).encode()
    parts = [encoded[name].astype(f"<i{width}").tobytes() for name, width in widths.items()]
    plain = b"".join([_TEXT_SIZE.pack(len(text)), text, *parts])
    data = base64.b64encode(pa.Codec("zstd", _LEVEL).compress(plain, asbytes=True)).decode("ascii")
    return {kind: {"rows": rows, "size": len(plain), "data": data, "pad": "0" * (rows - len(data))}}


def _encoded(columns: Mapping[str, Longs]) -> dict[str, Longs]:
    encoded = dict(columns)
    for name in STEPS & columns.keys():
        encoded[name] = np.diff(columns[name], prepend=0)
    for name, other in RELATIVE.items():
        if name in columns:
            encoded[name] = columns[name] - columns[other]
    for name, size in ADJACENT.items():
        if name in columns:
            ends = columns[name] + columns[size]
            encoded[name] = columns[name] - np.concatenate([[0], ends[:-1]])
    for name, expected in _expected_checksums(columns).items():
        encoded[name] = columns[name] ^ expected
    return encoded


def _expected_checksums(columns: Mapping[str, Longs]) -> dict[str, Longs]:
    """Compute the checksums of a log of one batch of format 2, and of its time index, from other columns."""
    if "crc32c" not in columns:
        return {}
    sizes, count = columns["log_bytes"], len(columns["log_bytes"])
    head = np.empty(count, _HEAD)
    head["base_offset"], head["size"] = columns["stored_base_offset"], sizes - LOG_OVERHEAD
    head["leader_epoch"], head["magic"], head["crc"] = columns["leader_epoch"], 2, columns["first_batch_crc"]
    entry = np.empty(count, TIME_ENTRY)
    entry["timestamp"] = columns["max_timestamp"]
    entry["relative_offset"] = columns["next_offset"] - columns["base_offset"] - 1
    has_entry = columns["time_index_bytes"] == TIME_ENTRY.itemsize
    log = crcs_joined(crcs_of_rows(head), columns["first_batch_crc"], sizes - _HEAD.itemsize)
    return {"crc32c": log, "time_index_crc32c": np.where(has_entry, crcs_of_rows(entry), 0)}


def _width(column: Longs) -> int:
    low, high = int(column.min()), int(column.max())
    return next(width for width in _WIDTHS if -(1 << (8 * width - 1)) <= low and high < 1 << (8 * width - 1))


def read_table(kind: str, body: Any) -> AddTable | RemoveTable:
    """The action that `write_table` wrote; raises ValueError."""
    if not isinstance(body, dict) or not isinstance(body.get("data"), str):
        raise ValueError(f"{kind} must be an object with data")
    rows = fields.Integer(1, MOST_ROWS_OF_TABLE)(body.get("rows"))
    pad = body.get("pad")
    if not isinstance(pad, str) or rows > len(body["data"]) + len(pad):
        raise ValueError(f"{kind}: {rows} rows are more than its data and padding have characters")
    columns, lists = _unpacked(body, rows, _SCHEMAS[kind])
    batch = pa.RecordBatch.from_arrays(
        [_column(spec, columns, lists, rows) for spec in _SCHEMAS[kind]], schema=_SCHEMAS[kind]
    )
    if kind == REMOVE_TABLE:
        for name in REMOVED_SCHEMA.names:
            fields.check_column(name, batch[name], _CHECKS[name])
        return RemoveTable(batch)
    check_rows(batch)
    return AddTable(batch)


def _unpacked(body: Mapping[str, Any], rows: int, schema: pa.Schema) -> tuple[dict[str, Longs], dict[str, list[str]]]:
    most_text = _TEXT_OF_NAMES + _TEXT_OF_ROW * rows
    size = Integer(_TEXT_SIZE.size, most_text + 8 * len(schema) * rows)(body.get("size"))
    try:
        data = base64.b64decode(body["data"], validate=True)
        if declared_size(data) != size:
            raise ValueError("its table does not have the size that it declares")
        plain = memoryview(pa.Codec("zstd").decompress(data, decompressed_size=size))
    except (binascii.Error, pa.ArrowException, OSError) as error:
        raise ValueError(f"its table cannot be decompressed: {error}") from None
    (text_size,) = _TEXT_SIZE.unpack_from(plain)
    if not 0 <= text_size <= min(size - _TEXT_SIZE.size, most_text):
        raise ValueError("the text of its table is cut off")
    start = _TEXT_SIZE.size + text_size
    text = fields.parse(bytes(plain[_TEXT_SIZE.size : start]))
    if not isinstance(text, dict):
        raise ValueError("the text of its table must be an object")
    lists, widths, same = (text.get(name) for name in ("texts", "columns", "same"))
    if not isinstance(lists, dict) or not isinstance(widths, dict) or not isinstance(same, dict):
        raise ValueError("its table lacks columns")
    if {*widths, *same} != {*schema.names} or len(widths) + len(same) != len(schema):
        raise ValueError("its table has other columns than this library knows")
    number = Integer(-(1 << 63), (1 << 63) - 1)
    columns = {name: np.full(rows, number(value), np.int64) for name, value in same.items()}
    for name, width in widths.items():
        if type(width) is not int or width not in _WIDTHS:
            raise ValueError(f"{name}: a number has 1, 2, 4 or 8 bytes")
        end = start + width * rows
        if end > size:
            raise ValueError(f"{name}: its column is cut off")
        columns[name] = np.frombuffer(plain[start:end], f"<i{width}").astype(np.int64)
        start = end
    if start != size:
        raise ValueError("its table has more bytes than columns")
    return _decoded(columns), lists


def _decoded(columns: dict[str, Longs]) -> dict[str, Longs]:
    for name in STEPS & columns.keys():
        columns[name] = np.cumsum(columns[name])
    for name, other in RELATIVE.items():
        if name in columns:
            columns[name] = columns[name] + columns[other]
    for name, size in ADJACENT.items():
        if name in columns:
            columns[name] = np.cumsum(columns[name] + np.concatenate([[0], columns[size][:-1]]))
    for name, expected in _expected_checksums(columns).items():
        columns[name] = columns[name] ^ expected
    return columns


def _column(spec: pa.Field, columns: Mapping[str, Longs], lists: Mapping[str, Any], rows: int) -> pa.Array:
    column = columns[spec.name]
    if spec.type == pa.string():
        values = lists.get(spec.name)
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise ValueError(f"{spec.name}: there must be a list of texts")
        if len(values) > rows:
            raise ValueError(f"{spec.name}: {len(values)} texts are more than rows")
        _check_within(spec.name, column, len(values))
        for value in values:
            _CHECKS[spec.name](value)
        return pc.take(texts(values), integers(column))
    if spec.type == pa.bool_():
        _check_within(spec.name, column, 2)
        return booleans(column)
    return integers(column)


def _check_within(name: str, column: Longs, end: int) -> None:
    if column.min() < 0 or column.max() >= end:
        raise ValueError(f"{name}: must be numbers from 0 to {end - 1}")


def declared_size(data: bytes) -> int:
    """The size that the header of a zstd frame (RFC 8878, 3.1.1.1) declares."""
    flags = data[4] if len(data) > len(_FRAME) else 0
    has_window, width = not flags & 32, (flags >> 5 & 1, 2, 4, 8)[flags >> 6]
    start = 5 + has_window + (0, 1, 2, 4)[flags & 3]
    if data[:4] != _FRAME or not width or len(data) < start + width:
        raise ValueError("it is not a zstd frame that declares its size")
    return int.from_bytes(data[start : start + width], "little") + (256 if width == 2 else 0)
