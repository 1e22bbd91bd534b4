"""Rows and values of Arrow columns as JSON texts, without a Python object for each.

Times have all digits of their unit, and a Z if the column has a zone, whose times are shown in UTC. Bytes are text if
they are UTF-8, else {"base64": "..."}. NaN and infinities, which JSON lacks, are texts.
"""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distlog.core.arrays import integers, numbers_of
from distlog.core.errors import InvalidRecordError
from distlog.core.row_lines import JSON_TEXT, OBJECT, RowLines

_BYTES = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_fixed_size_binary,
    pa.types.is_string_view,
    pa.types.is_binary_view,
)
_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list, pa.types.is_list_view)
_MICROSECONDS = {"s": 1_000_000, "ms": 1000}


def json_rows(batch: pa.RecordBatch) -> pa.Array:
    """The rows as JSON objects of all columns (large_binary)."""
    return _objects(batch.schema.names, batch.columns, batch.num_rows).texts()


def json_values(column: pa.Array) -> pa.Array:
    """The values of a column as JSON texts (large_binary); null for null.

    Raises InvalidRecordError for a type that has no form in JSON.
    """
    kind = column.type
    if pa.types.is_dictionary(kind):
        return json_values(column.cast(kind.value_type))
    if isinstance(column, pa.ExtensionArray):
        return json_values(column.storage)
    if pa.types.is_struct(kind):
        children = column.flatten()
        texts = _objects([field.name for field in kind], children, len(column)).texts()
    elif pa.types.is_map(kind):
        texts = _joined(column, _entries(column), "{", "}")
    elif any(is_list(kind) for is_list in _LISTS):
        if not pa.types.is_list(kind) and not pa.types.is_large_list(kind):
            column = column.cast(pa.list_(kind.value_type))
        texts = _joined(column, json_values(column.flatten()), "[", "]")
    elif any(is_bytes(kind) for is_bytes in _BYTES):
        texts = _line(column)
    else:
        texts = _plain(column)
    return pc.if_else(column.is_valid(), texts, pa.nulls(1, texts.type)[0]) if column.null_count else texts


def _objects(names: list[str], columns: list[pa.Array], count: int) -> RowLines:
    lines = RowLines(count)
    for number, (name, column) in enumerate(zip(names, columns, strict=True)):
        label = f"{', ' if number else '{'}{json.dumps(name, ensure_ascii=False)}: "
        if any(is_bytes(column.type) for is_bytes in _BYTES):
            lines.add(label, _plain_bytes(column), OBJECT)
        else:
            lines.add(label, json_values(column), JSON_TEXT)
    lines.add("}" if columns else "{}")
    return lines


def _plain_bytes(column: pa.Array) -> pa.Array:
    return column.cast(pa.large_binary())


def _line(column: pa.Array) -> pa.Array:
    lines = RowLines(len(column))
    lines.add("", _plain_bytes(column), OBJECT)
    return lines.texts()


def _entries(column: pa.Array) -> pa.Array:
    """The entries of all maps, as `"key": value`; a key that is no text is its JSON in quotes."""
    firsts, ends = column.offsets[0].as_py(), column.offsets[len(column)].as_py()
    keys, items = column.keys, column.items
    if len(keys) != ends - firsts:
        keys, items = keys.slice(firsts, ends - firsts), items.slice(firsts, ends - firsts)
    if not any(is_bytes(keys.type) for is_bytes in _BYTES):
        keys = json_values(keys)
    lines = RowLines(len(keys))
    lines.add("", _plain_bytes(keys), OBJECT)
    lines.add(": ", json_values(items), JSON_TEXT)
    return lines.texts()


def _joined(column: pa.Array, texts: pa.Array, begin: str, end: str) -> pa.Array:
    """The texts of the items of each list, with commas between them."""
    lengths = numbers_of(pc.fill_null(pc.cast(_lengths(column), pa.int64()), integers([0])[0]))
    firsts = np.append(0, np.cumsum(lengths))
    is_next = np.ones(len(texts), np.int64)
    is_next[firsts[:-1][lengths > 0]] = 0
    lines = RowLines(len(texts))
    lines.add_choice(("", ", "), is_next)
    lines.add("", texts, JSON_TEXT)
    inside = lines.texts(firsts)
    around = RowLines(len(column))
    around.add(begin, inside, JSON_TEXT)
    around.add(end)
    return around.texts()


def _lengths(column: pa.Array) -> pa.Array:
    if pa.types.is_map(column.type):
        offsets = numbers_of(column.offsets)
        lengths = np.diff(offsets)
        return pc.if_else(column.is_valid(), integers(lengths), integers([0])[0])
    return pc.list_value_length(column)


def _plain(column: pa.Array) -> pa.Array:
    """Numbers, flags, times and nulls."""
    kind = column.type
    if pa.types.is_null(kind):
        return pa.nulls(len(column), pa.large_binary())
    if pa.types.is_timestamp(kind):
        return _times(column)
    if pa.types.is_floating(kind):
        texts = column.cast(pa.float64()).cast(pa.string()) if kind == pa.float16() else column.cast(pa.string())
        finite = pc.is_finite(column.cast(pa.float64()))
        names = pc.if_else(
            pc.is_nan(column.cast(pa.float64())),
            '"NaN"',
            pc.if_else(pc.less(column.cast(pa.float64()), 0.0), '"-Infinity"', '"Infinity"'),
        )
        return pc.if_else(finite, texts, names).cast(pa.large_binary())
    try:
        texts = column.cast(pa.string())
    except pa.ArrowException:
        raise InvalidRecordError(f"a column of {kind} has no form in JSON: cast it, or leave it out") from None
    if pa.types.is_temporal(kind):
        texts = pc.binary_join_element_wise('"', texts, '"', "")
    return texts.cast(pa.large_binary())


def _times(column: pa.Array) -> pa.Array:
    zone = column.type.tz
    plain = (
        column.cast(pa.timestamp(column.type.unit, "UTC")).cast(pa.timestamp(column.type.unit)) if zone else column
    )
    texts = pc.strftime(plain, "%Y-%m-%dT%H:%M:%S")
    return pc.binary_join_element_wise('"', texts, 'Z"' if zone else '"', "").cast(pa.large_binary())
