"""Rows and values of Arrow columns as JSON texts, without a Python object for each.

Times have all digits of their unit, and a Z if the column has a zone, whose times are shown in UTC. Bytes are text if
they are UTF-8, else {"base64": "..."}. NaN and infinities, which JSON lacks, are texts.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distlog.core.arrays import flags_of, integers, numbers_of
from distlog.core.errors import InvalidRecordError
from distlog.core.read.row_lines import joined, joined_items, json_labels, json_texts, or_else

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


def json_rows(batch: pa.RecordBatch) -> pa.Array:
    return _objects(batch.schema.names, batch.columns, batch.num_rows)


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
        texts = _objects([field.name for field in kind], column.flatten(), len(column))
    elif pa.types.is_map(kind):
        texts = joined(["{", joined_items(_entries(column), _lengths(column), ", "), "}"], len(column))
    elif any(is_list(kind) for is_list in _LISTS):
        if not pa.types.is_list(kind) and not pa.types.is_large_list(kind):
            column = column.cast(pa.list_(kind.value_type))
        items = or_else(json_values(column.flatten()), "null")
        texts = joined(["[", joined_items(items, _lengths(column), ", "), "]"], len(column))
    elif any(is_bytes(kind) for is_bytes in _BYTES):
        texts = json_texts(column)
    else:
        texts = _plain(column)
    return pc.if_else(column.is_valid(), texts, pa.nulls(1, texts.type)[0]) if column.null_count else texts


def _objects(names: list[str], columns: list[pa.Array], count: int) -> pa.Array:
    if not columns:
        return joined(["{}"], count)
    texts = (or_else(json_values(column), "null") for column in columns)
    parts = [part for label_and_text in zip(json_labels(names), texts, strict=True) for part in label_and_text]
    return joined([*parts, "}"], count)


def _entries(column: pa.Array) -> pa.Array:
    """The entries of all maps, as `"key": value`; a key that is not a text is its JSON in quotes."""
    firsts, ends = column.offsets[0].as_py(), column.offsets[len(column)].as_py()
    keys, items = column.keys, column.items
    if len(keys) != ends - firsts:
        keys, items = keys.slice(firsts, ends - firsts), items.slice(firsts, ends - firsts)
    if not any(is_bytes(keys.type) for is_bytes in _BYTES):
        keys = json_values(keys)
    return joined([json_texts(keys), ": ", or_else(json_values(items), "null")], len(keys))


def _lengths(column: pa.Array) -> npt.NDArray[np.int64]:
    if pa.types.is_map(column.type):
        return np.where(flags_of(column.is_valid()), np.diff(numbers_of(column.offsets)), 0)
    return numbers_of(pc.fill_null(pc.cast(pc.list_value_length(column), pa.int64()), integers([0])[0]))


def _plain(column: pa.Array) -> pa.Array:
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
