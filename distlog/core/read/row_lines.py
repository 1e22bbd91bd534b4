"""Writes rows of Arrow columns as lines: tab-separated texts, JSON objects, CSV, or a format such as `%k %v`."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distlog.core.arrays import Longs, column_of, integers, java_text, numbers_of, scalar_of
from distlog.core.display import text as display_text
from distlog.core.times import iso

#: The type of all texts here. It is bytes, since CSV and formats (`%k %v`) keep bytes that are not UTF-8.
TEXT = pa.large_binary()
Texts: TypeAlias = str | pa.Array


def joined(parts: Sequence[Texts], count: int) -> pa.Array:
    """Join the parts of each of `count` rows; a row with a null part is null."""
    columns = [scalar(part) if isinstance(part, str) else part for part in parts]
    if not any(isinstance(column, pa.Array) for column in columns):
        return pa.repeat(scalar("".join(map(str, parts))), count)
    return pc.binary_join_element_wise(*columns, scalar(""))


def joined_items(items: pa.Array, lengths: Longs, separator: str) -> pa.Array:
    """Join the next lengths[i] of `items` to the text of row i."""
    list_offsets = integers(np.append(0, np.cumsum(lengths, dtype=np.int64)))
    return pc.binary_join(pa.LargeListArray.from_arrays(list_offsets, items), scalar(separator))


@lru_cache
def scalar(text: str) -> pa.Scalar:
    return column_of([text.encode()], pa.binary()).cast(TEXT)[0]


def or_else(texts: pa.Array, text: str) -> pa.Array:
    return pc.fill_null(texts, scalar(text)) if texts.null_count else texts


def bytes_of(texts: pa.Array) -> memoryview:
    _, offset_bytes, text_bytes = texts.buffers()
    if not len(texts) or text_bytes is None:
        return memoryview(b"")
    offsets = np.frombuffer(offset_bytes, np.int64)[texts.offset :]
    return memoryview(text_bytes)[offsets[0] : offsets[len(texts)]]


def number_texts(column: pa.Array) -> pa.Array:
    return column.cast(pa.large_string()).view(TEXT)


def raw(column: pa.Array) -> pa.Array:
    return column.cast(TEXT)


_JSON_ESCAPES = {char: json.dumps(char)[1:-1] for char in ("\\", '"', *map(chr, range(32)))}
_SHOWN_ESCAPES = {char: display_text(char) for char in map(chr, (*range(32), *range(127, 160)))}


def json_texts(column: pa.Array, around_base64: tuple[str, str] = ('{"base64": "', '"}')) -> pa.Array:
    """Write values as JSON strings; bytes that are not UTF-8 as base64 between the texts `around_base64`."""
    if _is_utf8(column):
        return joined(['"', _replaced(raw(column), _JSON_ESCAPES), '"'], len(column))
    begin, end = around_base64

    def json_text(value: bytes) -> bytes:
        try:
            return json.dumps(value.decode(), ensure_ascii=False).encode()
        except UnicodeDecodeError:
            return b"%b%b%b" % (begin.encode(), base64.b64encode(value), end.encode())

    return _mapped(raw(column), json_text)


def shown_texts(column: pa.Array) -> pa.Array:
    if _is_utf8(column):
        return _replaced(raw(column), _SHOWN_ESCAPES)
    return _mapped(raw(column), lambda value: display_text(value).encode())


def java_texts(column: pa.Array) -> pa.Array:
    """Write bytes as Java decodes them: bytes that are not UTF-8 become U+FFFD."""
    return raw(column) if _is_utf8(column) else _mapped(raw(column), lambda value: java_text(value).encode())


def _is_utf8(column: pa.Array) -> bool:
    try:
        raw(column).cast(pa.large_string())
    except pa.ArrowInvalid:
        return False
    return True


def _mapped(column: pa.Array, write: Callable[[Any], bytes]) -> pa.Array:
    texts = [None if value is None else write(value) for value in column.to_pylist()]
    return column_of(texts, pa.binary()).cast(TEXT)


def _replaced(texts: pa.Array, escapes: Mapping[str, str]) -> pa.Array:
    all_bytes = bytes(bytes_of(texts))
    for char, escape in escapes.items():
        if char.encode() in all_bytes:
            texts = pc.replace_substring(texts, pattern=char.encode(), replacement=escape.encode())
    return texts


def _quoted(texts: pa.Array) -> pa.Array:
    """Quote texts for CSV (RFC 4180)."""
    return joined(['"', pc.replace_substring(raw(texts), pattern=b'"', replacement=b'""'), '"'], len(texts))


#: The starts of the years 1 and 10,000, in ms since 1970: Python's first time, and the end of its times.
_FIRST_MS, _END_MS = -62_135_596_800_000, 253_402_300_800_000


def iso_times(column: pa.Array) -> pa.Array:
    """Write times in ms as `times.iso`: in ISO 8601 and UTC, -1 as none, numbers outside of the years 1 to 9999."""
    ms = column.cast(pa.int64())
    values = numbers_of(pc.fill_null(ms, scalar_of(0, pa.int64())))
    if ((values == -1) | (values < _FIRST_MS) | (values >= _END_MS)).any():
        return _mapped(ms, lambda value: iso(value).encode())
    texts = number_texts(ms.cast(pa.timestamp("ms")))
    return joined([pc.replace_substring(texts, pattern=b" ", replacement=b"T"), "Z"], len(texts))


class Style(NamedTuple):
    """The formats of null, bytes, times, and lists of headers."""

    null: str
    of_bytes: Callable[[pa.Array], pa.Array]
    of_times: Callable[[pa.Array], pa.Array]
    #: The texts before the key and the value of a header, after the value, and between two headers.
    header: tuple[str, str, str, str]
    of_lists: Callable[[pa.Array], pa.Array] = raw


def _integers(column: pa.Array) -> pa.Array:
    return number_texts(column.cast(pa.int64()))


_SHOWN = Style(null="null", of_bytes=shown_texts, of_times=iso_times, header=("", "=", "", " "))
_OBJECT = Style(
    null="null",
    of_bytes=json_texts,
    of_times=_integers,
    header=('{"key": ', ', "value": ', "}", ", "),
    of_lists=lambda texts: joined(["[", texts, "]"], len(texts)),
)
_CSV = Style("", _quoted, lambda column: _quoted(iso_times(column)), _SHOWN.header, of_lists=_quoted)
#: For a format such as `%k %v`.
PLAIN = Style(null="", of_bytes=raw, of_times=_integers, header=("", "=", "", ","))


def tabbed(batch: pa.RecordBatch) -> memoryview:
    return _rows(batch, ["", *["\t"] * (batch.num_columns - 1)], "\n", _SHOWN)


def json_objects(batch: pa.RecordBatch) -> memoryview:
    return _rows(batch, json_labels(batch.schema.names), "}\n", _OBJECT)


def csv_rows(batch: pa.RecordBatch, *, titles: bool) -> bytes | memoryview:
    """Write rows as CSV: bytes unchanged, null as an empty field, times in ISO 8601, headers as name=value."""
    lines = _rows(batch, ["", *[","] * (batch.num_columns - 1)], "\n", _CSV)
    names = ",".join(f'"{name}"' for name in batch.schema.names)
    return f"{names}\n".encode() + lines if titles else lines


def json_labels(names: Sequence[str]) -> list[str]:
    labels = [f"{json.dumps(name, ensure_ascii=False)}: " for name in names]
    return [f"{', ' if number else '{'}{label}" for number, label in enumerate(labels)]


def _rows(batch: pa.RecordBatch, labels: Sequence[str], end: str, style: Style) -> memoryview:
    """Write each row as label 0, cell 0, label 1, cell 1, ..., `end`."""
    cells = (texts_of(column, style) for column in batch.columns)
    parts = [part for label_and_cell in zip(labels, cells, strict=True) for part in label_and_cell]
    return bytes_of(joined([*parts, end], batch.num_rows))


def texts_of(column: pa.Array, style: Style) -> pa.Array:
    if pa.types.is_list(column.type):
        # in CSV the whole list is quoted, not its parts
        texts = style.of_lists(_headers(column, _SHOWN if style is _CSV else style))
    elif pa.types.is_timestamp(column.type):
        texts = style.of_times(column)
    elif pa.types.is_integer(column.type):
        texts = number_texts(column)
    else:
        texts = style.of_bytes(column)
    return or_else(texts, style.null)


def _headers(column: pa.Array, style: Style) -> pa.Array:
    keys, values = (texts_of(child, style) for child in column.flatten().flatten())  # of the headers of all rows
    before_key, before_value, after, between = style.header
    items = joined([before_key, keys, before_value, values, after], len(keys))
    lengths = numbers_of(pc.fill_null(pc.list_value_length(column), scalar_of(0, pa.int32())))
    texts = joined_items(items, lengths, between)
    return pc.if_else(column.is_valid(), texts, pa.nulls(1, TEXT)[0]) if column.null_count else texts
