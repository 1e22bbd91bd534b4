"""Lines of named values, as text or as JSON objects, written many at a time by a kernel.

In text a value is `name: value`, as in Kafka's `DumpLogSegments`; a line of JSON also has its `type`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from distlog.core.buffers import new_array
from distlog.core.kernel_tuples import Layout, Texts
from distlog.core.kernels.dump_lines import CHOICE, NUMBER, OPTIONAL, write_rows
from distlog.core.kernels.text import LONGEST_NUMBER, SLACK

Longs = npt.NDArray[np.int64]

_BOOLEANS = ("false", "true")


@dataclass(frozen=True, slots=True)
class Field:
    """A value of a line: what stands before it, and its words, as text and as JSON."""

    name: str
    kind: int
    labels: tuple[str, str]
    words: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())


def number(name: str, label: str | None = None) -> Field:
    """A number; in text `label` may stand before it instead of its name."""
    return Field(name, NUMBER, (f" {name}: " if label is None else label, f',"{name}":'))


def flag(name: str) -> Field:
    """A value that is false or true."""
    return Field(name, CHOICE, _labels(name), (_BOOLEANS, _BOOLEANS))


def choice(name: str, words: Sequence[str]) -> Field:
    """One of `words`, by its number."""
    return Field(name, CHOICE, _labels(name), (tuple(words), tuple(json.dumps(word) for word in words)))


def optional(name: str) -> Field:
    """A number that may be absent, as Java prints an `OptionalLong`."""
    words = ("OptionalLong.empty", "OptionalLong[", "]"), ("null", "", "")
    return Field(name, OPTIONAL, _labels(name), words)


def time(name: str) -> list[Field]:
    """A timestamp (`name`) with its type (`timestamp_type`: 0 none, 1 of creation, 2 of appending) as its label."""
    types = ("NoTimestampType", "CreateTime", "LogAppendTime")
    words = tuple(f" {kind}: " for kind in types), tuple(f',"timestampType":"{kind}"' for kind in types)
    return [Field("timestamp_type", CHOICE, ("", ""), words), number(name, "")]


def constant(text: str, as_json: str = "") -> Field:
    """Something that stands in every line."""
    return Field("", CHOICE, ("", ""), ((text,), (as_json,)))


def _labels(name: str) -> tuple[str, str]:
    return f" {name}: ", f',"{name}":'


@dataclass(frozen=True, slots=True)
class Line:
    """The fields of a line, with what stands before and behind them in text.

    A part of a line, which is written behind others, has no `kind`.
    """

    kind: str
    fields: tuple[Field, ...]
    begin: str = ""
    end: str = "\n"

    @property
    def longest(self) -> int:
        """The most bytes that a line takes."""
        texts = (
            text for field in self.fields for style in (0, 1) for text in (field.labels[style], *field.words[style])
        )
        return sum(len(text) for text in texts) + LONGEST_NUMBER * len(self.fields) + len(self.kind) + 16

    def layout(self, *, as_json: bool) -> Layout:
        """The line for the kernels."""
        return _layout(self, as_json)

    def values(self, count: int, columns: Mapping[str, npt.NDArray[np.generic] | int]) -> npt.NDArray[np.int64]:
        """`columns`, one value or `count` of them by field, as the kernels take them."""
        found = np.zeros((len(_complete(self)), count), np.int64)
        for row, field in enumerate(_complete(self)):
            if field.name:
                found[row] = columns[field.name]
        return found

    def write(self, count: int, columns: Mapping[str, npt.NDArray[np.generic] | int], *, as_json: bool) -> memoryview:
        """`count` lines with the values of `columns`."""
        out = new_array(count * self.longest + SLACK, np.uint8)
        size = write_rows(out, self.layout(as_json=as_json), self.values(count, columns))
        return memoryview(out.data)[:size]


def texts(words: Iterable[str]) -> Texts:
    """`words` for the kernels."""
    encoded = [word.encode() for word in words]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    return Texts(np.frombuffer(b"".join(encoded) + bytes(SLACK), np.uint8), ends)


@lru_cache
def _complete(line: Line) -> tuple[Field, ...]:
    """The fields, with what stands at both ends of a whole line."""
    if not line.kind:
        return line.fields
    begin = constant(line.begin, f'{{"type":"{line.kind}"')
    return (begin, *line.fields, constant(line.end, "}\n")) if line.end else (begin, *line.fields)


@lru_cache
def _layout(line: Line, as_json: bool) -> Layout:
    style, fields = int(as_json), _complete(line)
    labels = [field.labels[style] for field in fields]
    if line.kind and not line.begin and not as_json and line.fields:
        labels[1] = labels[1].removeprefix(" ")
    counts = [len(field.words[style]) for field in fields]
    first = np.cumsum([0, *counts[:-1]], dtype=np.int64)
    words = (word for field in fields for word in field.words[style])
    return Layout(texts(labels), np.array([field.kind for field in fields], np.int64), first, texts(words))
