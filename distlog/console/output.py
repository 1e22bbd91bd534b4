"""Prints the reports, rows and records of commands and Spark jobs, and defines their exit statuses.

In JSON, times are ms since 1970, and bytes are text if they are UTF-8, else {"base64": "..."}. In tables and lines,
times are ISO 8601, and bytes that are not UTF-8 and control characters are escaped.
"""

from __future__ import annotations

import base64
import json
import logging
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import pyarrow as pa
import pyarrow.compute as pc

from distlog.console.arguments import unescaped
from distlog.console.streams import drop_unwritable_output
from distlog.core.arrays import integers
from distlog.core.display import text as text  # writes a value as one line, with escapes
from distlog.core.errors import InvalidConfigError
from distlog.core.read.row_lines import PLAIN, Texts, bytes_of, joined, json_objects, tabbed, texts_of
from distlog.core.times import iso

Row = Mapping[str, Any]
#: The most rows of one table. Further rows make further tables, so the first rows are printed early.
_TABLE_ROWS = 200
#: Exit status: success, a failure or a problem in a report, and a wrong command line.
SUCCESS, FAILED, WRONG_USAGE = 0, 1, 2
#: 128 and the number of SIGINT (Ctrl-C) or SIGTERM, as in shells.
INTERRUPTED, TERMINATED = 130, 143
_TRACEBACK = logging.Formatter()
#: A conversion (%k), an escape (\n, \x41) or a text. The last alternative is a % or \ at the end of the format.
_TOKEN = re.compile(r"%(.)|\\(x[0-9a-fA-F]{2}|.)|([^%\\]+|.)", re.DOTALL)


class Milliseconds(int):
    """A time in ms since 1970, which JSON shows as a number and tables as ISO 8601; -1 is Kafka's "no timestamp"."""

    def __str__(self) -> str:
        return iso(self)


def rows_of(table: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    columns = [_python_values(table.column(name)) for name in table.schema.names]
    return [dict(zip(table.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]


def _python_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    if pa.types.is_timestamp(column.type):
        return [None if ms is None else Milliseconds(ms) for ms in column.cast(pa.int64()).to_pylist()]
    if pa.types.is_binary(column.type):
        with suppress(pa.ArrowInvalid):  # most columns are text, and decoding here saves a call for each value
            return column.cast(pa.string()).to_pylist()  # type: ignore[no-any-return]
    return column.to_pylist()  # type: ignore[no-any-return]


def print_json(*values: object) -> None:
    """Print each value on a line of its own, in ASCII if standard output cannot encode a character."""
    lines = [_JSON.encode(value) for value in values]
    try:
        "".join(lines).encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        lines = [_ASCII_JSON.encode(value) for value in values]
    _print_lines(lines)


def to_json(value: object) -> object:
    """Convert bytes to JSON: text if they are UTF-8, else {"base64": "..."}. Raises TypeError for other types."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    raise TypeError(f"no JSON form of {type(value).__name__}")


_JSON = json.JSONEncoder(default=to_json, ensure_ascii=False)
_ASCII_JSON = json.JSONEncoder(default=to_json)


class RowPrinter:
    """Prints batches of rows: on a terminal as one table, else as a line of titles and a line for each row."""

    def __init__(self) -> None:
        self.has_printed_titles = False
        #: Column widths of a table. They never shrink, so that the rows of all batches are aligned.
        self._widths = dict[str, int]()

    def print(self, rows: Sequence[Row], names: Sequence[str]) -> None:
        if sys.stdout.isatty():
            for start in range(0, len(rows), _TABLE_ROWS):
                self._print_table(rows[start : start + _TABLE_ROWS], names)
            return
        if not self.has_printed_titles and names:
            _print_lines(["\t".join(names)])
        self.has_printed_titles = True
        _print_lines("\t".join([text(row[name]) for name in names]) for row in rows)

    def _print_table(self, rows: Sequence[Row], names: Sequence[str]) -> None:
        from rich.cells import cell_len
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, show_header=not self.has_printed_titles)
        self.has_printed_titles = True
        columns = {name: [text(row[name]) for row in rows] for name in names}
        for name, cells in columns.items():
            self._widths[name] = max(self._widths.get(name, cell_len(name)), *map(cell_len, cells))
        console = Console()
        has_room = sum(self._widths.values()) + 2 * len(names) <= console.width
        for name in names:
            is_numeric = all(isinstance(row[name], int | None) for row in rows)
            # without an ellipsis, a number that is cut would be another number
            overflow: Literal["ellipsis", "fold"] = "ellipsis" if is_numeric else "fold"
            width = self._widths[name] if has_room else None
            table.add_column(name, min_width=width, overflow=overflow, no_wrap=is_numeric)
        for row in zip(*columns.values(), strict=True):
            table.add_row(*map(Text, row))
        console.print(table)


def _print_lines(lines: Iterable[str]) -> None:
    sys.stdout.write("".join([f"{line}\n" for line in lines]))


class Report(Protocol):
    """The result of a command. `str` returns a text for people. A false `ok` in `to_dict` means that it failed."""

    def to_dict(self) -> dict[str, Any]: ...


@runtime_checkable
class WithTable(Protocol):
    def to_table(self) -> pa.Table: ...


@dataclass(frozen=True, slots=True)
class Summary:
    """A report. JSON has `fields`; a terminal shows the text, and the columns `names` (default: all) of `rows`."""

    text: str
    fields: Mapping[str, Any]
    rows: Sequence[Row] = ()
    names: Sequence[str] | None = None

    def __str__(self) -> str:
        return self.text

    def to_dict(self) -> dict[str, Any]:
        return dict(self.fields)


def print_report(report: Report, *, as_json: bool) -> None:
    if as_json:
        print_json(report.to_dict())
    else:
        if line := str(report):
            print(line)
        if isinstance(report, Summary):
            rows, names = report.rows, report.names
        else:
            rows, names = (rows_of(report.to_table()) if isinstance(report, WithTable) else ()), None
        RowPrinter().print(rows, names or list(rows[0] if rows else ()))
    sys.stdout.flush()


def status_of(report: Report) -> int:
    return SUCCESS if report.to_dict().get("ok", True) else FAILED


def print_failure(program: str, error: Exception, reason: str | None = None, *, as_json: bool = False) -> int:
    """Print why `program` failed, on one line of standard error and as JSON. Returns the exit status."""
    reason = " ".join((reason or str(error)).split())
    print(f"{program}: {text(reason)}", file=sys.stderr)
    if as_json:
        with suppress(OSError):  # standard output itself may have failed
            print_json({"error": reason, "type": type(error).__name__})
            sys.stdout.flush()
    drop_unwritable_output()
    return WRONG_USAGE if isinstance(error, InvalidConfigError) else FAILED


class StatusLine(logging.Handler):
    """Prints the events of a service, and logged warnings, on a terminal above a status line. Thread-safe."""

    def __init__(self, program: str, status: Callable[[], str], *, as_json: bool = False) -> None:
        super().__init__(logging.WARNING)
        self._program, self._status, self._as_json = program, status, as_json
        self._output_lock = threading.RLock()
        self.is_visible = sys.stderr.isatty()

    def __enter__(self) -> StatusLine:
        logging.getLogger("distlog").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("distlog").removeHandler(self)

    def draw(self) -> None:
        if self.is_visible:
            self._replace(text(self._status()))

    def clear(self) -> None:
        if self.is_visible:
            self._replace("")

    def _replace(self, status: str) -> None:
        with self._writing():
            sys.stderr.write(f"\r{status}\x1b[K")
            sys.stderr.flush()

    def event(self, name: str, line: str, **fields: object) -> None:
        """Print an event: the line, or as JSON its name and fields."""
        with self._writing():
            self.clear()
            if self._as_json:
                print_json({"event": name, **fields})
            else:
                print(text(line))
            sys.stdout.flush()
            self.draw()

    def emit(self, record: logging.LogRecord) -> None:
        """Print a warning on one line of standard error, and then its traceback, if any."""
        lines = [f"{self._program}: {text(' '.join(record.getMessage().split()))}"]
        if record.exc_info and record.exc_info[0] is not None:
            lines += map(text, _TRACEBACK.formatException(record.exc_info).splitlines())
        with self._writing():
            self.clear()
            print(*lines, sep="\n", file=sys.stderr, flush=True)
            self.draw()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with suppress(OSError), self._output_lock:  # a full disk or a closed pipe must not stop the service
            yield


#: The column of each conversion; %S and %K show its length in bytes. %t, the topic's name, needs no column.
_COLUMN_OF = {
    "v": "value",
    "s": "value",
    "S": "value",
    "k": "key",
    "K": "key",
    "p": "partition",
    "o": "offset",
    "T": "timestamp",
    "h": "headers",
}


@dataclass(frozen=True, slots=True)
class Conversions:
    """A format of texts and conversions. Keys and values are printed unchanged, and null as nothing."""

    #: A text and False, or the letter of a conversion and True.
    tokens: tuple[tuple[str, bool], ...]

    @classmethod
    def parse(cls, format_text: str) -> Conversions:
        """Parse a format; raises ValueError for an unknown conversion or escape, or if it has no conversion."""
        tokens = tuple(_token(*groups) for groups in _TOKEN.findall(format_text))
        if not any(is_conversion for _, is_conversion in tokens):
            raise ValueError(f"{format_text!r} is not json, csv or a format with conversions ('%k %v\\n')")
        return cls(tokens)

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the columns that the format shows; at least one, so that batches have rows."""
        columns = [_COLUMN_OF[name] for name, is_conversion in self.tokens if is_conversion and name != "t"]
        return tuple(dict.fromkeys(columns)) or ("offset",)

    def texts(self, batch: pa.RecordBatch, topic: str) -> memoryview:
        """Return the rows in this format, joined."""
        parts: list[Texts] = []
        for token, is_conversion in self.tokens:
            if is_conversion and token != "t":
                column = batch.column(_COLUMN_OF[token])
                if token in "SK":
                    length_of_null = integers([-1])[0]
                    column = pc.fill_null(pc.binary_length(column).cast(pa.int64()), length_of_null)
                parts.append(texts_of(column, PLAIN))
            else:
                parts.append(topic if is_conversion else token)
        return bytes_of(joined(parts, batch.num_rows))


def _token(conversion: str, escape: str, literal: str) -> tuple[str, bool]:
    if literal:
        if literal in ("%", "\\"):
            raise ValueError(f"the format ends with a single {literal}: write {literal}{literal}")
        return literal, False
    if escape:
        return unescaped(f"\\{escape}"), False
    if conversion == "%":
        return "%", False
    if conversion not in _COLUMN_OF and conversion != "t":
        raise ValueError(f"unknown conversion %{conversion}: use %{' %'.join([*_COLUMN_OF, 't', '%'])}")
    return conversion, True


def print_objects(batch: pa.RecordBatch) -> None:
    if _is_utf8():
        print_bytes(json_objects(batch))
    else:
        print_json(*rows_of(batch))


def print_batch(batch: pa.RecordBatch, printer: RowPrinter) -> None:
    """Print the rows of a batch. `printer` must be the same for all batches."""
    if not _is_utf8() or sys.stdout.isatty():
        printer.print(rows_of(batch), batch.schema.names)
        return
    printer.print((), batch.schema.names)  # the titles, before the first batch
    print_bytes(tabbed(batch))


def print_bytes(lines: bytes | memoryview) -> None:
    sys.stdout.flush()
    sys.stdout.buffer.write(lines)


def _is_utf8() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8" and hasattr(sys.stdout, "buffer")
