"""Lines of named values, as text or as JSON objects, written many at a time by a kernel."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from distlog.core.arrays import new_array
from distlog.core.config import MAX_INT
from distlog.core.errors import DistlogError
from distlog.core.kernel_tuples import Layout, Texts
from distlog.core.kernels.text import CHOICE, LONGEST_NUMBER, NUMBER, OPTIONAL, SLACK, write_rows

# ---
# The options of a dump, named as in Kafka's `DumpLogSegments`.


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpOptions:
    """`print_data_log` shows the records with keys and payloads, `deep_iteration` alone without them.

    Without `skip_record_metadata` a record has its offset, time, sizes, sequence and header keys. Of a log only the
    first `max_bytes` are looked at. With `verify_index_only` the entries of an index are checked and not shown; with
    `index_sanity_check` only a broker's checks at its start are made.
    """

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


# ---
# In text a value is `name: value`, as in Kafka's `DumpLogSegments`; a line of JSON also has its `type`.
#
# Commands and jobs print rows by Arrow (`json_texts` of the console): batches of any columns, where the kernel knows
# the fields of a record. Both stay. Of a log of 93 MB with a million records a dump takes 0.21 s of processor time as
# text and 0.24 s as JSON, 0.05 s of it for the scan. To join the same text by Arrow takes 0.22 s alone, without
# headers and bytes that are not UTF-8: a dump would take a third longer.

Longs = npt.NDArray[np.int64]

_BOOLEANS = ("false", "true")


@dataclass(frozen=True, slots=True)
class LineField:
    """A value of a line: its label and its words, as text and as JSON."""

    name: str
    kind: int
    labels: tuple[str, str]
    words: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())


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
        return sum(len(text) for text in texts) + LONGEST_NUMBER * len(self.fields) + len(self.kind) + 16

    def layout(self, *, as_json: bool) -> Layout:
        """The line for the kernels."""
        return _layout(self, as_json)

    def values(self, count: int, columns: Mapping[str, npt.NDArray[np.generic] | int]) -> npt.NDArray[np.int64]:
        """`columns`, one value or `count` of them by field, as the kernels take them."""
        values = np.zeros((len(_complete(self)), count), np.int64)
        for row, value in enumerate(_complete(self)):
            if value.name:
                values[row] = columns[value.name]
        return values

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
def _complete(line: Line) -> tuple[LineField, ...]:
    """The fields, with the texts at both ends of a whole line."""
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


# ---
# The streams of a dump: lines of values go to one, problems to another; with JSON all to the first.


_ENCODER = json.JSONEncoder(ensure_ascii=False)
#: The most lines that are made at once.
_LINES = 1 << 16


@dataclass(slots=True)
class DumpOutput:
    """The streams of a dump; `failures` counts the files and batches that could not be read."""

    out: BinaryIO
    err: BinaryIO
    as_json: bool = False
    failures: int = field(default=0, init=False)

    def write(self, data: memoryview) -> None:
        """Write lines that are made already."""
        _write_all(self.out, data)

    def say(self, text: str, kind: str, **facts: Any) -> None:
        """Write one line: `text`, or an object of type `kind` with `facts`."""
        self._say(self.out, text, kind, facts)

    def lines(self, line: Line, columns: Mapping[str, npt.NDArray[Any]]) -> None:
        """Write lines with the values of `columns`."""
        self._lines(self.out, line, columns)

    def problems(self, title: str, line: Line, columns: Mapping[str, npt.NDArray[Any]]) -> None:
        """Write lines of problems; in text `title` stands above them, if there are any."""
        if len(next(iter(columns.values()))):
            if title and not self.as_json:
                _write_all(self.err, memoryview(f"{title}\n".encode()))
            self._lines(self.out if self.as_json else self.err, line, columns)

    def note(self, text: str, kind: str, **facts: Any) -> None:
        """Write one line about a problem."""
        self._say(self.out if self.as_json else self.err, text, kind, facts)

    def fail(self, error: DistlogError) -> None:
        """Write the error of a file or batch that could not be read."""
        self.failures += 1
        self.note(" ".join(str(error).split()), "error", message=error.message, **error.details)

    def _say(self, stream: BinaryIO, text: str, kind: str, facts: Mapping[str, Any]) -> None:
        line = _ENCODER.encode({"type": kind, **facts}) if self.as_json else text
        _write_all(stream, memoryview(f"{line}\n".encode("utf-8", "backslashreplace")))

    def _lines(self, stream: BinaryIO, line: Line, columns: Mapping[str, npt.NDArray[Any]]) -> None:
        count = len(next(iter(columns.values())))
        for start in range(0, count, _LINES):
            part = {name: values[start : start + _LINES] for name, values in columns.items()}
            _write_all(stream, line.write(min(_LINES, count - start), part, as_json=self.as_json))


def _write_all(stream: BinaryIO, data: memoryview) -> None:
    # a stream without a buffer, as with PYTHONUNBUFFERED, may take less than it is given
    while data.nbytes:
        data = data[stream.write(data) :]
