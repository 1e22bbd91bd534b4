"""The options of a dump, and the streams that its lines go to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import numpy.typing as npt

from distlog.core.errors import DistlogError
from distlog.core.kafka.dump_lines import Line
from distlog.core.limits import MAX_INT
from distlog.core.read.row_lines import bytes_of


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


_ENCODER = json.JSONEncoder(ensure_ascii=False)
#: The most lines that are made at once.
_LINES = 1 << 16
