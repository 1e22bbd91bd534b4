"""Batches of records as lines, in bulk: tab-separated texts, or JSON objects, as `output` prints single rows.

No Python object is made per record. Only values that hold control characters or are not UTF-8 take a slower way.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
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


def tabbed(batch: pa.RecordBatch) -> memoryview:
    """The rows as UTF-8 lines, their columns separated by tabs."""
    columns = [_or_null(_text(column)) for column in batch.columns]
    return joined_bytes(pc.binary_join_element_wise(pc.binary_join_element_wise(*columns, "\t"), "\n", ""))


def json_objects(batch: pa.RecordBatch) -> memoryview:
    """The rows as UTF-8 lines of JSON objects."""
    return joined_bytes(json_texts(batch, "\n"))


def json_texts(rows: pa.RecordBatch, end: str = "") -> pa.Array:
    """The rows as JSON objects, each with `end` behind it."""
    parts: list[pa.Array | str] = []
    between = "{"
    for name in rows.schema.names:
        shown, quote = _json(rows[name])
        parts += [f"{between}{output.json_text(name)}: {quote}", _or_null(shown)]
        between = f"{quote}, "
    return pc.binary_join_element_wise(*parts, between.removesuffix(", ") + "}" + end, "")


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
    large = lines.cast(pa.large_string() if pa.types.is_string(lines.type) else pa.large_binary())
    _, offsets, data = large.buffers()
    ends = memoryview(offsets).cast("q")
    return memoryview(data or b"")[ends[large.offset] : ends[large.offset + len(large)]]


def _text(column: pa.Array) -> pa.Array:
    if pa.types.is_timestamp(column.type):
        return _times(column.cast(pa.int64()))
    if pa.types.is_list(column.type):
        return _listed(column, "", output.text)
    if not pa.types.is_binary(column.type):
        return column.cast(pa.string())
    texts = _utf8(column)
    return _each(column, output.text) if texts is None else _escaped(texts, _BREAKS, _CONTROLS, output.text)


def _json(column: pa.Array) -> tuple[pa.Array, str]:
    """The values as JSON, and what stands before and behind each of them: a quote, or nothing."""
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.int64()).cast(pa.string()), ""
    if pa.types.is_list(column.type):
        return _listed(column, "[]", output.json_text), ""
    if not pa.types.is_binary(column.type):
        return column.cast(pa.string()), ""
    texts = _utf8(column)
    if texts is None:
        return _each(column, output.json_text), ""
    inner = _json_text(texts)
    return (inner, '"') if not column.null_count else (pc.binary_join_element_wise('"', inner, '"', ""), "")


def _json_text(texts: pa.Array) -> pa.Array:
    return _escaped(texts, _JSON_ESCAPES, "[\x00-\x1f]", lambda text: output.json_text(text)[1:-1])


def _times(ms: pa.Array) -> pa.Array:
    """ISO 8601 in UTC, as `times.iso`."""
    low, high = (value.as_py() for value in pc.min_max(ms).values())
    if low is None or low < NO_TIMESTAMP or high >= _FAR:
        return pa.array([None if value is None else iso(value) for value in ms.to_pylist()], pa.string())
    texts = ms.cast(pa.timestamp("ms")).cast(pa.string())
    texts = pc.binary_join_element_wise(pc.binary_replace_slice(texts, 10, 11, "T"), "Z", "")
    return pc.if_else(pc.equal(ms, NO_TIMESTAMP), "none", texts) if low == NO_TIMESTAMP else texts


def _utf8(column: pa.Array) -> pa.Array | None:
    """Bytes as texts, which costs a check; None if some are not UTF-8."""
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        return None


def _escaped(
    texts: pa.Array, escapes: tuple[tuple[str, str], ...], controls: str, slow: Callable[[str], str]
) -> pa.Array:
    """The texts with `escapes` applied, in their order; those with other `controls` one by one by `slow`."""
    data = np.frombuffer(joined_bytes(texts), np.uint8)
    marks = [mark for mark, _ in escapes]
    others = [code for code in range(160) if re.match(controls, chr(code)) and chr(code) not in marks]
    rare = None
    # a character above 127 begins with a byte of its own
    if any(_holds(data, byte) for byte in {chr(code).encode()[0] for code in others}):
        rare = pc.match_substring_regex(texts, "[" + "".join(f"\\x{{{code:02x}}}" for code in others) + "]")
    found = texts
    for mark, escape in escapes:
        found = pc.replace_substring(found, mark, escape) if _holds(data, ord(mark)) else found
    if rare is None or not pc.any(rare).as_py():
        return found
    return pc.replace_with_mask(found, pc.fill_null(rare, False), _each(texts.filter(rare), slow))


def _holds(data: npt.NDArray[np.uint8], byte: int) -> bool:
    # the least byte is found three times as fast, and most texts have none below a space
    return byte >= data.min(initial=255) and bool((data == byte).any())


def _each(column: pa.Array, slow: Callable[[Any], str]) -> pa.Array:
    return pa.array([None if value is None else slow(value) for value in column.to_pylist()], pa.string())


def _listed(column: pa.Array, empty: str, one: Callable[[object], str]) -> pa.Array:
    """Headers, which most records do not have."""
    lengths = pc.list_value_length(column)
    if pc.max(lengths).as_py() in (0, None) and not column.null_count:
        return pa.repeat(pa.scalar(empty, pa.string()), len(column))
    return _each(column, one)
