"""Writes lines of named values for `distlog dump`: numbers, words, and the keys and payloads of records."""

from __future__ import annotations

import numpy as np

from distlog.core.kernel_tuples import Layout, RecordContent, Slices, Texts
from distlog.core.kernels.native.jit import fill_kernel, inlined
from distlog.core.kernels.native.memory import item_at, put_at
from distlog.core.kernels.text import put_base64, put_json_text, put_number, put_text, put_utf8
from distlog.core.kernels.varint import read_varint

#: The value of an optional number that is not there.
ABSENT = -(2**63)
#: Kinds of values. A choice has its number among the texts as its value.
NUMBER, OPTIONAL, CHOICE = range(3)
#: Texts around what a record holds, by their number.
HEADERS, HEADERS_END, KEY, PAYLOAD, BASE64, BASE64_END, END = range(7)

_COMMA = 44


@inlined
def _put_text(out: np.ndarray, at: int, texts: Texts, index: int) -> int:
    start: int = item_at(texts.ends, index)
    return put_text(out, at, texts.text, start, item_at(texts.ends, index + 1) - start)


@inlined
def _put_row(out: np.ndarray, at: int, layout: Layout, values: np.ndarray, row: int) -> int:
    for column in range(layout.kinds.size):
        at = _put_text(out, at, layout.labels, column)
        value = values[column, row]
        kind = item_at(layout.kinds, column)
        first = item_at(layout.first, column)
        if kind == NUMBER:
            at = put_number(out, at, value)
        elif kind == CHOICE:
            at = _put_text(out, at, layout.words, first + value)
        elif value == ABSENT:
            at = _put_text(out, at, layout.words, first)
        else:
            at = _put_text(out, at, layout.words, first + 1)
            at = put_number(out, at, value)
            at = _put_text(out, at, layout.words, first + 2)
    return at


@fill_kernel
def write_rows(out: np.ndarray, layout: Layout, values: np.ndarray) -> int:
    """Write a line for each column of `values`, which has a row for each value of `layout`; returns its bytes."""
    at = 0
    for row in range(values.shape[1]):
        at = _put_row(out, at, layout, values, row)
    return at


@inlined
def _put_bytes(out: np.ndarray, at: int, content: RecordContent, part: Slices, row: int, texts: Texts) -> int:
    """Write a key or payload as text; in JSON one that is no text as base64."""
    position = item_at(part.positions, row)
    size = item_at(part.offsets, row + 1) - item_at(part.offsets, row)
    if item_at(texts.ends, BASE64) == item_at(texts.ends, BASE64 + 1):
        return put_utf8(out, at, content.data, position, size)
    end, valid = put_json_text(out, at, content.data, position, size, True)
    if valid:
        return end
    at = _put_text(out, at, texts, BASE64)
    at = put_base64(out, at, content.data, position, size)
    return _put_text(out, at, texts, BASE64_END)


@inlined
def _put_header_keys(out: np.ndarray, at: int, content: RecordContent, place: int, texts: Texts) -> int:
    data = content.data
    as_json = item_at(texts.ends, BASE64) < item_at(texts.ends, BASE64 + 1)
    count, position = read_varint(data, item_at(content.headed.positions, place), data.size)
    for number in range(count):
        if number:
            put_at(out, at, _COMMA)
            at += 1
        size, position = read_varint(data, position, data.size)
        if as_json:
            at, _ = put_json_text(out, at, data, position, size, False)
        else:
            at = put_utf8(out, at, data, position, size)
        size, position = read_varint(data, position + size, data.size)
        position += max(size, 0)
    return at


@fill_kernel
def write_records(
    out: np.ndarray,
    batch: Layout,
    batches: np.ndarray,
    counts: np.ndarray,
    record: Layout,
    records: np.ndarray,
    marker: Layout,
    markers: np.ndarray,
    content: RecordContent,
    shown: np.ndarray,
    texts: Texts,
) -> int:
    """Write a line for each batch, and behind it one for each of its `counts` records; returns their bytes.

    `batches`, `records` and `markers` are values as `write_rows` takes them. A record whose `markers` are not absent
    is a control record. The header keys are written if `headed` has room, and the keys and payloads of data if
    `shown` is not empty.
    """
    at = 0
    row = 0
    place = 0
    for number in range(counts.size):
        at = _put_row(out, at, batch, batches, number)
        for _ in range(item_at(counts, number)):
            at = _put_row(out, at, record, records, row)
            if content.headed.records.size:
                at = _put_text(out, at, texts, HEADERS)
                if item_at(content.headed.records, place) == row:
                    at = _put_header_keys(out, at, content, place, texts)
                    place += 1
                at = _put_text(out, at, texts, HEADERS_END)
            is_control = markers.size and markers[0, row] != ABSENT
            if is_control:
                at = _put_row(out, at, marker, markers, row)
            elif shown.size:
                if item_at(content.key.valid, row):
                    at = _put_text(out, at, texts, KEY)
                    at = _put_bytes(out, at, content, content.key, row, texts)
                if item_at(content.value.valid, row):
                    at = _put_text(out, at, texts, PAYLOAD)
                    at = _put_bytes(out, at, content, content.value, row, texts)
            at = _put_text(out, at, texts, END)
            row += 1
    return at
