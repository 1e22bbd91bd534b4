"""Lines of named values, as text or as JSON, written many at a time by a kernel: for dumps, commands and jobs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from distlog.core.arrays import byte_array, new_array
from distlog.core.kernel_tuples import Layout, Texts
from distlog.core.kernels.text import (
    CHOICE,
    GROWTH,
    LONGEST_NUMBER,
    NUMBER,
    OPTIONAL,
    SLACK,
    UTF8,
    write_rows,
)

# In the text of a dump a value is `name: value`, as in Kafka's `DumpLogSegments`; a line of JSON also has its `type`.

Longs = npt.NDArray[np.int64]
#: No bytes, and no ends of lines.
NOTHING: npt.NDArray[np.uint8] = byte_array(b"")
NO_ENDS: Longs = np.empty(0, np.int64)

_BOOLEANS = ("false", "true")


class Places(NamedTuple):
    """Byte strings in some bytes: where each begins (ABSENT for null), and its size."""

    positions: Longs
    sizes: Longs


#: The values of a field: numbers, one for all lines, or byte strings.
Values = npt.NDArray[np.generic] | int | Places


@dataclass(frozen=True, slots=True)
class LineField:
    """A value of a line: its label and its words, as text and as JSON."""

    name: str
    kind: int
    labels: tuple[str, str]
    words: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())

    @property
    def rows(self) -> int:
        """The number of rows of its values."""
        return 1 if self.kind < UTF8 else 2


def number(name: str, label: str | None = None) -> LineField:
    """A number; in text `label` may stand before it instead of its name."""
    return LineField(name, NUMBER, (f" {name}: " if label is None else label, f',"{name}":'))


def flag(name: str) -> LineField:
    """A value that is false or true."""
    return LineField(name, CHOICE, _labels(name), (_BOOLEANS, _BOOLEANS))


def choice(name: str, words: Sequence[str]) -> LineField:
    """One of `words`, by its number."""
    return LineField(name, CHOICE, _labels(name), (tuple(words), tuple(json.dumps(word) for word in words)))


def optional(name: str) -> LineField:
    """A number that may be absent, as Java prints an `OptionalLong`."""
    words = ("OptionalLong.empty", "OptionalLong[", "]"), ("null", "", "")
    return LineField(name, OPTIONAL, _labels(name), words)


def time(name: str) -> list[LineField]:
    """A timestamp (`name`) with its type (`timestamp_type`: 0 none, 1 of creation, 2 of appending) as its label."""
    types = ("NoTimestampType", "CreateTime", "LogAppendTime")
    words = tuple(f" {kind}: " for kind in types), tuple(f',"timestampType":"{kind}"' for kind in types)
    return [LineField("timestamp_type", CHOICE, ("", ""), words), number(name, "")]


def constant(text: str, as_json: str = "") -> LineField:
    """A text that stands in every line."""
    return LineField("", CHOICE, ("", ""), ((text,), (as_json,)))


def _labels(name: str) -> tuple[str, str]:
    return f" {name}: ", f',"{name}":'


@dataclass(frozen=True, slots=True)
class Line:
    """The fields of a line, with the texts before and behind them.

    A part of a line, which is written behind others, has no `kind`.
    """

    kind: str
    fields: tuple[LineField, ...]
    begin: str = ""
    end: str = "\n"

    @property
    def longest(self) -> int:
        """The most bytes that a line takes."""
        texts = (
            text for field in self.fields for style in (0, 1) for text in (field.labels[style], *field.words[style])
        )
        return sum(len(text.encode()) for text in texts) + LONGEST_NUMBER * len(self.fields) + len(self.kind) + 16

    def layout(self, *, as_json: bool) -> Layout:
        """The line for the kernels."""
        return _layout(self, as_json)

    def values(self, count: int, columns: Mapping[str, Values]) -> Longs:
        """`columns`, one value or `count` of them by field, as the kernels take them."""
        fields = _complete(self)
        values = np.zeros((sum(field.rows for field in fields), count), np.int64)
        for field, row in zip(fields, _rows(self).tolist(), strict=True):
            if field.name:
                values[row : row + field.rows] = columns[field.name]
        return values

    def write(
        self,
        count: int,
        columns: Mapping[str, Values],
        data: Sequence[npt.NDArray[np.uint8]] = (NOTHING, NOTHING),
        ends: Longs = NO_ENDS,
        *,
        as_json: bool,
    ) -> memoryview:
        """`count` lines with the values of `columns`, of which bytes are in `data`; `ends` gets the end of each.

        A position p of the second of `data` is given as ~p.
        """
        sizes = ((field.kind, columns[field.name]) for field in self.fields if field.rows > 1)
        room = sum(GROWTH[kind] * int(places.sizes.sum()) for kind, places in sizes if isinstance(places, Places))
        out = new_array(count * self.longest + room + SLACK, np.uint8)
        size = write_rows(out, ends, self.layout(as_json=as_json), self.values(count, columns), *data)
        return memoryview(out.data)[:size]


def texts(words: Iterable[str]) -> Texts:
    """`words` for the kernels."""
    encoded = [word.encode() for word in words]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    return Texts(np.frombuffer(b"".join(encoded) + bytes(SLACK), np.uint8), ends)


@lru_cache
def _complete(line: Line) -> tuple[LineField, ...]:
    """The fields, with the texts at both ends of a whole line."""
    if not line.kind:
        return line.fields
    begin = constant(line.begin, f'{{"type":"{line.kind}"')
    return (begin, *line.fields, constant(line.end, "}\n")) if line.end else (begin, *line.fields)


@lru_cache
def _rows(line: Line) -> Longs:
    """The first row of the values of each field."""
    counts = [field.rows for field in _complete(line)]
    return np.cumsum([0, *counts[:-1]], dtype=np.int64)


@lru_cache
def _layout(line: Line, as_json: bool) -> Layout:
    style, fields = int(as_json), _complete(line)
    labels = [field.labels[style] for field in fields]
    if line.kind and not line.begin and not as_json and line.fields:
        labels[1] = labels[1].removeprefix(" ")
    counts = [len(field.words[style]) for field in fields]
    first = np.cumsum([0, *counts[:-1]], dtype=np.int64)
    words = (word for field in fields for word in field.words[style])
    return Layout(
        texts(labels), np.array([field.kind for field in fields], np.int64), _rows(line), first, texts(words)
    )
