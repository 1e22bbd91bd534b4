"""The lines of a dump: named values, as Kafka's `DumpLogSegments` prints them or as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distlog.core.arrays import booleans, integers, texts
from distlog.core.errors import DistlogError
from distlog.core.integers import MAX_INT, MIN_LONG
from distlog.core.read.row_lines import TEXT, Texts, bytes_of, joined, numbers, scalar

Longs = npt.NDArray[np.int64]
#: The value of an absent number.
ABSENT = MIN_LONG
#: Kinds of values. A choice has the number of its word as its value.
_NUMBER, _OPTIONAL, _CHOICE = range(3)
_BOOLEANS = ("false", "true")
_ENCODER = json.JSONEncoder(ensure_ascii=False)
#: The most lines that are made at once.
_LINES = 1 << 16


@dataclass(frozen=True, slots=True)
class LineField:
    """A value of a line: its label and its words, as text and as JSON."""

    name: str
    kind: int
    labels: tuple[str, str]
    words: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())

    def parts(self, values: npt.NDArray[Any], style: int) -> list[Texts]:
        """The texts of some values, as text (style 0) or as JSON (1)."""
        words, label = self.words[style], self.labels[style]
        if self.kind == _CHOICE:
            return [label, texts(words).cast(TEXT).take(integers(values, pa.int64()))]
        column = integers(values, pa.int64())
        if self.kind == _NUMBER:
            return [label, numbers(column)]
        absent, begin, end = words
        present = joined([begin, numbers(column), end], len(column))
        return [label, pc.if_else(booleans(values == ABSENT), scalar(absent), present)]


def number(name: str, label: str | None = None) -> LineField:
    """A number; in text `label` may stand before it instead of its name."""
    return LineField(name, _NUMBER, (f" {name}: " if label is None else label, f',"{name}":'))


def flag(name: str) -> LineField:
    """A value that is false or true."""
    return LineField(name, _CHOICE, _labels(name), (_BOOLEANS, _BOOLEANS))


def choice(name: str, words: Sequence[str]) -> LineField:
    """One of `words`, by its number."""
    return LineField(name, _CHOICE, _labels(name), (tuple(words), tuple(json.dumps(word) for word in words)))


def labelled(name: str, as_text: Sequence[str], as_json: Sequence[str]) -> LineField:
    """One of some words that have their label in them, by its number."""
    return LineField(name, _CHOICE, ("", ""), (tuple(as_text), tuple(as_json)))


def optional(
    name: str, as_text: tuple[str, str, str] | None = None, as_json: tuple[str, str, str] | None = None
) -> LineField:
    """A number that may be absent, by default as Java prints an `OptionalLong`."""
    text, label = f" {name}: ", f',"{name}":'
    as_text = as_text or (f"{text}OptionalLong.empty", f"{text}OptionalLong[", "]")
    return LineField(name, _OPTIONAL, ("", ""), (as_text, as_json or (f"{label}null", label, "")))


def time(name: str) -> list[LineField]:
    """A timestamp (`name`) with its type (`timestamp_type`: 0 none, 1 of creation, 2 of appending) as its label."""
    types = ("NoTimestampType", "CreateTime", "LogAppendTime")
    label = labelled(
        "timestamp_type",
        tuple(f" {kind}: " for kind in types),
        tuple(f',"timestampType":"{kind}"' for kind in types),
    )
    return [label, number(name, "")]


def _labels(name: str) -> tuple[str, str]:
    return f" {name}: ", f',"{name}":'


@dataclass(frozen=True, slots=True)
class Line:
    """The fields of a line of a `kind`, with the texts before and after them as text."""

    kind: str
    fields: tuple[LineField, ...]
    begin: str = ""
    end: str = "\n"

    def parts(self, columns: Mapping[str, npt.NDArray[Any]], *, as_json: bool) -> list[Texts]:
        """The texts of lines with the values of `columns`, without the end."""
        parts = [part for field in self.fields for part in field.parts(columns[field.name], int(as_json))]
        if as_json:
            return [f'{{"type":"{self.kind}"', *parts]
        if not self.begin and parts:
            parts[0] = str(parts[0]).removeprefix(" ")
        return [self.begin, *parts]

    def texts(self, count: int, columns: Mapping[str, npt.NDArray[Any]], *, as_json: bool) -> pa.Array:
        """`count` lines with the values of `columns`."""
        return joined([*self.parts(columns, as_json=as_json), "}\n" if as_json else self.end], count)


@dataclass(slots=True)
class DumpOutput:
    """The streams of a dump; `failures` counts the files and batches that could not be read."""

    out: BinaryIO
    err: BinaryIO
    as_json: bool = False
    failures: int = field(default=0, init=False)

    def write(self, data: memoryview) -> None:
        """Write lines that are made already."""
        self.out.write(data)

    def say(self, text: str, kind: str, stream: BinaryIO | None = None, /, **fields: Any) -> None:
        """Write one line: `text`, or an object of type `kind` with `fields`."""
        line = _ENCODER.encode({"type": kind, **fields}) if self.as_json else text
        (stream or self.out).write(f"{line}\n".encode("utf-8", "backslashreplace"))

    def lines(self, line: Line, columns: Mapping[str, npt.NDArray[Any]], stream: BinaryIO | None = None) -> None:
        """Write lines with the values of `columns`."""
        count = len(next(iter(columns.values())))
        for start in range(0, count, _LINES):
            part = {name: values[start : start + _LINES] for name, values in columns.items()}
            text = line.texts(min(_LINES, count - start), part, as_json=self.as_json)
            (stream or self.out).write(bytes_of(text))

    def problems(self, title: str, line: Line, columns: Mapping[str, npt.NDArray[Any]]) -> None:
        """Write lines of problems; in text `title` stands above them, if there are any."""
        if len(next(iter(columns.values()))):
            if title and not self.as_json:
                self.err.write(f"{title}\n".encode())
            self.lines(line, columns, self.out if self.as_json else self.err)

    def note(self, text: str, kind: str, **fields: Any) -> None:
        """Write one line about a problem."""
        self.say(text, kind, self.out if self.as_json else self.err, **fields)

    def fail(self, error: DistlogError) -> None:
        """Write the error of a file or batch that could not be read."""
        self.failures += 1
        self.note(" ".join(str(error).split()), "error", message=error.message, **error.details)


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpOptions:
    """The options of `distlog dump`; see its help."""

    print_data_log: bool = False
    deep_iteration: bool = False
    skip_record_metadata: bool = False
    verify_index_only: bool = False
    index_sanity_check: bool = False
    max_bytes: int = MAX_INT

    @property
    def is_deep(self) -> bool:
        """True if records are shown."""
        return self.print_data_log or self.deep_iteration

    @property
    def is_cut(self) -> bool:
        """True if the end of a log may be left out."""
        return self.max_bytes < MAX_INT
