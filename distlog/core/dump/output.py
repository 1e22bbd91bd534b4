"""Where a dump goes: lines of values to one stream, what is wrong to another; with JSON all to the first."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import numpy.typing as npt

from distlog.core.dump.line import Line
from distlog.core.errors import DistlogError

_ENCODER = json.JSONEncoder(ensure_ascii=False)
#: The most lines that are made at once.
_LINES = 1 << 16


@dataclass(slots=True)
class DumpOutput:
    """The streams of a dump; `failures` counts what could not be read."""

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
        """Write lines of what is wrong; in text `title` stands above them, if there are any."""
        if len(next(iter(columns.values()))):
            if title and not self.as_json:
                _write_all(self.err, memoryview(f"{title}\n".encode()))
            self._lines(self.out if self.as_json else self.err, line, columns)

    def note(self, text: str, kind: str, **facts: Any) -> None:
        """Write one line of what is wrong."""
        self._say(self.out if self.as_json else self.err, text, kind, facts)

    def fail(self, error: DistlogError) -> None:
        """Write that something could not be read, and go on."""
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
