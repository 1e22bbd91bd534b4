"""Prints batches of records: tab-separated texts, JSON objects, CSV, or a format of one's own."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distlog.console.output import json_text, print_json, print_rows, rows_of
from distlog.core.arrays import byte_array, flags_of, integers, numbers_of
from distlog.core.kernels.text import ABSENT, CHOICE, JSON, OPTIONAL, QUOTED, RAW, SHOWN, TIME
from distlog.core.lines import NO_ENDS, NOTHING, Line, LineField, Longs, Places, Values, constant

# ---
# Batches of records as lines, in bulk: tab-separated texts, or JSON objects, as `output` prints single rows; or CSV.
#
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
_OBJECT = _Style("null", JSON, (*_BARE, *_BASE64), OPTIONAL, _BARE, RAW, ("[", "]"), _OBJECTS)
_CSV = _Style("", QUOTED, _QUOTES, TIME, _QUOTES, QUOTED, _QUOTES, _TEXT.header)
#: Of a format with conversions.
_PLAIN = _Style("", RAW, _BARE, OPTIONAL, _BARE, RAW, _BARE, ("", "=", "", ","))


def tabbed(batch: pa.RecordBatch) -> memoryview:
    """The rows as UTF-8 lines, their columns separated by tabs."""
    return _rows(batch, ["", *["\t"] * (batch.num_columns - 1)], "\n", _TEXT).written()


def json_objects(batch: pa.RecordBatch) -> memoryview:
    """The rows as UTF-8 lines of JSON objects."""
    return _rows(batch, _names(batch), "}\n", _OBJECT).written()


def json_texts(rows: pa.RecordBatch) -> pa.Array:
    """The rows as JSON objects, which are texts."""
    return _rows(rows, _names(rows), "}", _OBJECT).texts().view(pa.large_string())


def csv_rows(batch: pa.RecordBatch, *, titles: bool) -> bytes | memoryview:
    """The rows as CSV: bytes as they are, null as nothing, times in ISO 8601, headers as name=value."""
    lines = _rows(batch, ["", *[","] * (batch.num_columns - 1)], "\n", _CSV).written()
    names = ",".join(f'"{name}"' for name in batch.schema.names)
    return f"{names}\n".encode() + lines if titles else lines


def _names(batch: pa.RecordBatch) -> list[str]:
    names = [f"{json_text(name)}: " for name in batch.schema.names]
    return [f"{', ' if number else '{'}{name}" for number, name in enumerate(names)]


def _rows(batch: pa.RecordBatch, labels: Sequence[str], end: str, style: _Style) -> _Lines:
    lines = _Lines(batch.num_rows)
    for label, column in zip(labels, batch.columns, strict=True):
        lines.add(label, column, style)
    lines.add(end)
    return lines


class _Lines:
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
    lines = _Lines(len(keys))
    lines.add_choice(("", between), is_next)
    lines.add(before_key, keys, style)
    lines.add(before_value, values, style)
    lines.add(behind)
    texts = lines.texts(firsts)
    return pc.if_else(column.is_valid(), texts, pa.nulls(1, texts.type)[0]) if column.null_count else texts


# ---
# Records in a format of one's own, as kcat's: `%k %v\n`.
#
# %v %s the value; %S its bytes, -1 if it is null %k the key; %K its bytes, -1 if it is null %p %o partition and
# offset %T the timestamp in ms since 1970 %h the headers, as in name=value,name=value %t the topic %% a percent
# sign
#
# \n, \t, \r, \\ and \xNN stand for themselves. Keys and values are printed as they are; null as nothing.


_PIECE = re.compile(r"%(.)|\\(x[0-9a-fA-F]{2}|.)|([^%\\]+|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\"}


def _same(column: pa.Array) -> pa.Array:
    return column


def _size(column: pa.Array) -> pa.Array:
    return pc.fill_null(pc.binary_length(column).cast(pa.int64()), integers([-1])[0])


#: By conversion: the column that it shows, and how.
_SHOWN: dict[str, tuple[str, Callable[[pa.Array], pa.Array]]] = {
    "v": ("value", _same),
    "s": ("value", _same),
    "S": ("value", _size),
    "k": ("key", _same),
    "K": ("key", _size),
    "p": ("partition", _same),
    "o": ("offset", _same),
    "T": ("timestamp", _same),
    "h": ("headers", _same),
}


@dataclass(frozen=True, slots=True)
class Conversions:
    """A format: texts, and names of conversions between them, in their order."""

    pieces: tuple[tuple[str, bool], ...]

    @classmethod
    def parse(cls, text: str) -> Conversions:
        """Parse a format; raises ValueError for an unknown conversion or escape, or if it has no conversion."""
        pieces = tuple(_piece(*groups) for groups in _PIECE.findall(text))
        if not any(is_conversion for _, is_conversion in pieces):
            raise ValueError(f"{text!r} is none of json, csv, and a format with conversions like '%k %v\\n'")
        return cls(pieces)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the records that the format shows; one at least, so that there are rows."""
        columns = [_SHOWN[name][0] for name, is_conversion in self.pieces if is_conversion and name != "t"]
        return tuple(dict.fromkeys(columns)) or ("offset",)

    def texts(self, batch: pa.RecordBatch, topic: str) -> memoryview:
        """The rows in this format, back to back."""
        lines = _Lines(batch.num_rows)
        for piece, is_conversion in self.pieces:
            if is_conversion and piece != "t":
                name, show = _SHOWN[piece]
                lines.add("", show(batch.column(name)))
            else:
                lines.add(topic if is_conversion else piece)
        return lines.written()


def _piece(conversion: str, escape: str, text: str) -> tuple[str, bool]:
    if text:
        if text in "%\\":
            raise ValueError(f"the format ends with {text}: write {text}{text}")
        return text, False
    if escape:
        if escape not in _ESCAPES and len(escape) != 3:
            raise ValueError(f"unknown escape \\{escape}; there are \\n, \\t, \\r, \\\\ and \\xNN")
        return _ESCAPES.get(escape) or chr(int(escape[1:], 16)), False
    if conversion == "%":
        return "%", False
    if conversion not in _SHOWN and conversion != "t":
        raise ValueError(f"unknown conversion %{conversion}; there are %{' %'.join([*_SHOWN, 't', '%'])}")
    return conversion, True


# ---
# Prints batches of records: fast to a file or a pipe, as a table on a terminal.


def print_batch(batch: pa.RecordBatch, *, as_json: bool, titles: bool) -> None:
    """Print the rows of a batch, below a line of titles if `titles` is true and they are not JSON."""
    if not _takes_utf8() or (sys.stdout.isatty() and not as_json):
        rows = rows_of(batch)
        return print_json(*rows) if as_json else print_rows(rows, batch.schema.names, titles=titles)
    if titles and not as_json:
        sys.stdout.write("\t".join(batch.schema.names) + "\n")
    print_bytes(json_objects(batch) if as_json else tabbed(batch))
    return None


def print_bytes(lines: bytes | memoryview) -> None:
    """Print bytes as they are."""
    sys.stdout.flush()
    sys.stdout.buffer.write(lines)


def _takes_utf8() -> bool:
    """True if standard output is a stream of bytes in UTF-8."""
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8" and hasattr(sys.stdout, "buffer")
