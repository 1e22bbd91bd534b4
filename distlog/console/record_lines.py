"""Batches of records as lines, in bulk: tab-separated texts, or JSON objects, as `output` prints single rows.

No Python object is made per record. Only values that hold control characters or are not UTF-8 take a slower way.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from distlog.console import output
from distlog.core.times import NO_TIMESTAMP, iso

#: The first millisecond of the year 10000, from which on a time is shown as a number.
_FAR = 253_402_300_800_000
_CONTROLS = "[\x00-\x1f\x7f-\x9f]"
_BREAKS = (("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r"))
_JSON_ESCAPES = (("\\", "\\\\"), ('"', '\\"'), *_BREAKS)

_Format = Callable[[pa.Array], pa.Array]


def tabbed(batch: pa.RecordBatch) -> memoryview:
    """The rows as UTF-8 lines, their columns separated by tabs."""
    columns = [_or_null(_text(column)) for column in batch.columns]
    return joined_bytes(pc.binary_join_element_wise(pc.binary_join_element_wise(*columns, "\t"), "\n", ""))


def json_objects(batch: pa.RecordBatch) -> memoryview:
    """The rows as UTF-8 lines of JSON objects."""
    return joined_bytes(json_texts(batch, "\n"))


def json_texts(rows: pa.RecordBatch | pa.Table, end: str = "") -> pa.Array:
    """The rows as JSON objects, each with `end` behind it."""
    parts: list[pa.Array | str] = []
    for name in rows.schema.names:
        parts += [f"{', ' if parts else '{'}{output.json_text(name)}: ", _or_null(_json(rows[name]))]
    return pc.binary_join_element_wise(*parts, "}" + end, "")


def _or_null(column: pa.Array) -> pa.Array:
    return pc.fill_null(column, "null") if column.null_count else column


def csv_rows(batch: pa.RecordBatch, *, titles: bool) -> bytes:
    """The rows as CSV: bytes as they are, null as nothing, times in ISO 8601, headers as name=value."""
    texts = [pa.types.is_timestamp(column.type) or pa.types.is_list(column.type) for column in batch.columns]
    columns = [_text(column) if text else column for text, column in zip(texts, batch.columns, strict=True)]
    table = pa.table(columns, batch.schema.names)
    written = io.BytesIO()
    csv.write_csv(table, written, csv.WriteOptions(include_header=titles))
    return written.getvalue()


def joined_bytes(lines: pa.Array) -> memoryview:
    """The texts or bytes back to back."""
    if not len(lines):
        return memoryview(b"")
    _, offsets, data = lines.cast(
        pa.large_string() if pa.types.is_string(lines.type) else pa.large_binary()
    ).buffers()
    ends = memoryview(offsets).cast("q")
    return memoryview(data)[ends[lines.offset] : ends[lines.offset + len(lines)]]


def _text(column: pa.Array) -> pa.Array:
    if pa.types.is_timestamp(column.type):
        return _times(column.cast(pa.int64()))
    if pa.types.is_list(column.type):
        return _listed(column, "", output.text)
    if not pa.types.is_binary(column.type):
        return column.cast(pa.string())
    return _decoded(column, lambda texts: _escaped(texts, _BREAKS, _CONTROLS, output.text), output.text)


def _json(column: pa.Array) -> pa.Array:
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.int64()).cast(pa.string())
    if pa.types.is_list(column.type):
        return _listed(column, "[]", output.json_text)
    if not pa.types.is_binary(column.type):
        return column.cast(pa.string())
    return _decoded(column, _quoted, output.json_text)


def _quoted(texts: pa.Array) -> pa.Array:
    inner = _escaped(texts, _JSON_ESCAPES, "[\x00-\x1f]", lambda text: output.json_text(text)[1:-1])
    return pc.binary_join_element_wise('"', inner, '"', "")


def _times(ms: pa.Array) -> pa.Array:
    """ISO 8601 in UTC, as `times.iso`."""
    low, high = (value.as_py() for value in pc.min_max(ms).values())
    if low is None or low < NO_TIMESTAMP or high >= _FAR:
        return pa.array([None if value is None else iso(value) for value in ms.to_pylist()], pa.string())
    texts = ms.cast(pa.timestamp("ms")).cast(pa.string())
    texts = pc.binary_join_element_wise(pc.binary_replace_slice(texts, 10, 11, "T"), "Z", "")
    return pc.if_else(pc.equal(ms, NO_TIMESTAMP), "none", texts) if low == NO_TIMESTAMP else texts


def _decoded(column: pa.Array, fast: _Format, slow: Callable[[bytes], str]) -> pa.Array:
    """Bytes as texts: all at once by `fast` if all are UTF-8, which costs a check, else one by one by `slow`."""
    try:
        texts = column.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([None if value is None else slow(value) for value in column.to_pylist()], pa.string())
    return fast(texts)


def _escaped(
    texts: pa.Array, escapes: tuple[tuple[str, str], ...], controls: str, slow: Callable[[str], str]
) -> pa.Array:
    """The texts with `escapes` applied, in their order; those with other `controls` one by one by `slow`."""
    present = {mark: pc.any(pc.match_substring(texts, mark)).as_py() for mark, _ in escapes}
    rare = pc.match_substring_regex(texts, _without(controls, present))
    found = texts
    for mark, escape in escapes:
        found = pc.replace_substring(found, mark, escape) if present[mark] else found
    if not pc.any(rare).as_py():
        return found
    return pc.replace_with_mask(found, pc.fill_null(rare, False), _each(texts.filter(rare), slow))


def _without(controls: str, marks: dict[str, bool | None]) -> str:
    """A pattern of the characters of the class `controls` that are none of `marks`."""
    left = [code for code in range(160) if re.match(controls, chr(code)) and chr(code) not in marks]
    return "[" + "".join(f"\\x{{{code:02x}}}" for code in left) + "]"


def _each(texts: pa.Array, slow: Callable[[str], str]) -> pa.Array:
    return pa.array([slow(text) for text in texts.to_pylist()], pa.string())


def _listed(column: pa.Array, empty: str, one: Callable[[object], str]) -> pa.Array:
    """Headers, which most records do not have."""
    lengths = pc.list_value_length(column)
    if pc.max(lengths).as_py() in (0, None) and not column.null_count:
        return pa.repeat(pa.scalar(empty, pa.string()), len(column))
    return pa.array([None if value is None else one(value) for value in column.to_pylist()], pa.string())
