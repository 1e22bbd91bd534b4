"""Rows of Arrow columns as lines, written by a kernel: tab-separated texts, JSON objects, CSV, or any form."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distlog.core.arrays import byte_array, flags_of, integers, numbers_of
from distlog.core.kernels.text import ABSENT, CHOICE, JSON, OPTIONAL, QUOTED, RAW, SHOWN, TIME
from distlog.core.lines import NO_ENDS, NOTHING, Line, LineField, Longs, Places, Values, constant

# No Python object is made per record: the kernel of `lines` writes all.


class _Style(NamedTuple):
    """The forms of values with the texts around them: of null, bytes, times, and lists of headers, which are texts.

    Behind the texts around bytes are those around base64. `header` are the texts before the key and the value of a
    header, behind both, and between two headers.
    """

    null: str
    bytes: int
    around: tuple[str, ...]
    times: int
    around_times: tuple[str, str]
    lists: int
    around_lists: tuple[str, str]
    header: tuple[str, str, str, str]


_BARE, _QUOTES, _BASE64 = ("", ""), ('"', '"'), ('{"base64": "', '"}')
_TEXT = _Style("null", SHOWN, _BARE, TIME, _BARE, RAW, _BARE, ("", "=", "", " "))
_OBJECTS = '{"key": ', ', "value": ', "}", ", "
OBJECT = _Style("null", JSON, (*_BARE, *_BASE64), OPTIONAL, _BARE, RAW, ("[", "]"), _OBJECTS)
_CSV = _Style("", QUOTED, _QUOTES, TIME, _QUOTES, QUOTED, _QUOTES, _TEXT.header)
#: Of texts that are JSON already.
JSON_TEXT = OBJECT._replace(bytes=RAW, around=_BARE)
#: Of a format with conversions.
_PLAIN = _Style("", RAW, _BARE, OPTIONAL, _BARE, RAW, _BARE, ("", "=", "", ","))


def tabbed(batch: pa.RecordBatch) -> memoryview:
    """The rows as UTF-8 lines, their columns separated by tabs."""
    return _rows(batch, ["", *["\t"] * (batch.num_columns - 1)], "\n", _TEXT).written()


def json_objects(batch: pa.RecordBatch) -> memoryview:
    """The rows as UTF-8 lines of JSON objects."""
    return _rows(batch, _names(batch), "}\n", OBJECT).written()


def csv_rows(batch: pa.RecordBatch, *, titles: bool) -> bytes | memoryview:
    """The rows as CSV: bytes as they are, null as nothing, times in ISO 8601, headers as name=value."""
    lines = _rows(batch, ["", *[","] * (batch.num_columns - 1)], "\n", _CSV).written()
    names = ",".join(f'"{name}"' for name in batch.schema.names)
    return f"{names}\n".encode() + lines if titles else lines


def _names(batch: pa.RecordBatch) -> list[str]:
    names = [f"{json.dumps(name, ensure_ascii=False)}: " for name in batch.schema.names]
    return [f"{', ' if number else '{'}{name}" for number, name in enumerate(names)]


def _rows(batch: pa.RecordBatch, labels: Sequence[str], end: str, style: _Style) -> RowLines:
    lines = RowLines(batch.num_rows)
    for label, column in zip(labels, batch.columns, strict=True):
        lines.add(label, column, style)
    lines.add(end)
    return lines


class RowLines:
    """As many lines as `count` says, made of columns of values, with texts before them."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._line_fields, self._values = list[LineField](), dict[str, Values]()
        self._bytes = list[tuple[str, Places, npt.NDArray[np.uint8]]]()

    def add(self, label: str, column: pa.Array | None = None, style: _Style = _PLAIN) -> None:
        """Add a text and a column of values behind it, or a text alone."""
        if column is None:
            self._line_fields.append(constant(label))
        elif pa.types.is_list(column.type):
            texts = _listed(column, _TEXT if style is _CSV else style)
            self._add_bytes(label, texts, style.lists, (style.null, *style.around_lists))
        elif pa.types.is_timestamp(column.type):
            self._add(label, style.times, (style.null, *style.around_times), _numbers(column))
        elif pa.types.is_integer(column.type):
            self._add(label, OPTIONAL, (style.null, "", ""), _numbers(column))
        else:
            self._add_bytes(label, column, style.bytes, (style.null, *style.around))

    def add_choice(self, words: Sequence[str], numbers: Longs) -> None:
        """Add one of some words, by its number."""
        self._add("", CHOICE, words, numbers)

    def _add_bytes(self, label: str, column: pa.Array, kind: int, words: Sequence[str]) -> None:
        column = column.cast(pa.large_binary())
        _, offsets, data = column.buffers()
        ends = np.frombuffer(offsets or bytes(8), np.int64)[column.offset :][: self._count + 1]
        positions = ends[:-1] - ends[0]
        if column.null_count:
            positions = np.where(flags_of(column.is_null()), ABSENT, positions)
        places = Places(positions, np.diff(ends))
        self._bytes.append((str(len(self._line_fields)), places, byte_array(data or b"")[ends[0] : ends[-1]]))
        self._add(label, kind, words, places)

    def _add(self, label: str, kind: int, words: Sequence[str], values: Values) -> None:
        name = str(len(self._line_fields))
        self._line_fields.append(LineField(name, kind, (label, ""), (tuple(words), ())))
        self._values[name] = values

    def written(self, ends: Longs = NO_ENDS) -> memoryview:
        """The lines, back to back; `ends` gets the end of each."""
        values, size = dict(self._values), 0
        # the largest column is not copied
        parts = sorted(self._bytes, key=lambda part: -part[2].size)
        for name, (positions, sizes), data in parts[1:]:
            values[name] = Places(np.where(positions == ABSENT, ABSENT, ~(positions + size)), sizes)
            size += data.size
        first, *others = [data for _, _, data in parts] or [NOTHING]
        more = byte_array(np.concatenate([NOTHING, *others]))
        line = Line("", tuple(self._line_fields))
        return line.write(self._count, values, (byte_array(first), more), ends, as_json=False)

    def texts(self, firsts: Longs | None = None) -> pa.Array:
        """The lines, each as bytes; or those from each of `firsts` to the next one together."""
        ends = np.zeros(self._count + 1, np.int64)
        data = self.written(ends[1:])
        ends = ends if firsts is None else ends[firsts]
        return pa.Array.from_buffers(pa.large_binary(), len(ends) - 1, [None, pa.py_buffer(ends), pa.py_buffer(data)])


def _numbers(column: pa.Array) -> Longs:
    return numbers_of(pc.fill_null(column.cast(pa.int64()), integers([ABSENT])[0]))


def _listed(column: pa.Array, style: _Style) -> pa.Array:
    """The headers of each record as one text."""
    keys, values = column.flatten().flatten()
    lengths = numbers_of(pc.fill_null(pc.list_value_length(column), integers([0], pa.int32())[0]))
    firsts = np.append(0, np.cumsum(lengths, dtype=np.int64))
    is_next = np.ones(len(keys), np.int64)
    is_next[firsts[:-1][lengths > 0]] = 0
    before_key, before_value, behind, between = style.header
    lines = RowLines(len(keys))
    lines.add_choice(("", between), is_next)
    lines.add(before_key, keys, style)
    lines.add(before_value, values, style)
    lines.add(behind)
    texts = lines.texts(firsts)
    return pc.if_else(column.is_valid(), texts, pa.nulls(1, texts.type)[0]) if column.null_count else texts
