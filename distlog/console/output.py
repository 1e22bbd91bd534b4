"""Prints the results of commands and jobs: tables on a terminal, lines in a pipe, or JSON; and the exit status."""

from __future__ import annotations

import base64
import io
import json
import logging
import re
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from distlog.console.streams import drop_what_cannot_be_written
from distlog.core.display import text as text
from distlog.core.errors import InvalidConfigError
from distlog.core.times import NO_TIMESTAMP, iso

# ---
# Prints the output of commands and jobs: tables on a terminal, tab-separated lines in a pipe, or JSON.
#
# In JSON, times are ms since 1970, and bytes are text if they are UTF-8, else {"base64": "..."}. In tables and
# lines, times are ISO 8601, and bytes that are not UTF-8 and control characters are shown as \xNN.


Row = Mapping[str, Any]

#: Rows of one table. More rows make several tables, so the first rows show before the last are laid out.
_TABLE_ROWS = 200


class Milliseconds(int):
    """A time in ms since 1970: a number in JSON, ISO 8601 for people; -1 is Kafka's "no timestamp"."""

    def __str__(self) -> str:
        return iso(self)


def rows_of(table: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows as dicts. Timestamps are Milliseconds."""
    columns = [_values(table.column(name)) for name in table.schema.names]
    return [dict(zip(table.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]


def _values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    if pa.types.is_timestamp(column.type):
        return [None if ms is None else Milliseconds(ms) for ms in column.cast(pa.int64()).to_pylist()]
    if pa.types.is_binary(column.type):
        with suppress(pa.ArrowInvalid):  # most bytes are text: decoding here saves a call per value
            return column.cast(pa.string()).to_pylist()  # type: ignore[no-any-return]
    return column.to_pylist()  # type: ignore[no-any-return]


def print_json(*values: object) -> None:
    """Print each value on a line of its own; in ASCII if standard output's encoding lacks some character."""
    lines = [_JSON.encode(value) for value in values]
    try:
        "".join(lines).encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        lines = [_ASCII_JSON.encode(value) for value in values]
    _print_lines(lines)


def to_json(value: object) -> object:
    """Bytes as a JSON value: text if they are UTF-8, else {"base64": "..."}. Raises TypeError for other types."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    raise TypeError(f"no JSON form of {type(value).__name__}")


_JSON = json.JSONEncoder(default=to_json, ensure_ascii=False)
_ASCII_JSON = json.JSONEncoder(default=to_json)


def json_text(value: object) -> str:
    """A value as one line of JSON; bytes as `to_json` has them."""
    return _JSON.encode(value)


def print_rows(rows: Sequence[Row], names: Sequence[str] | None = None, *, titles: bool = True) -> None:
    """Print the columns `names` (default: all) of `rows`: tables on a terminal, else a title line and a line each."""
    names = names or list(rows[0] if rows else ())
    if sys.stdout.isatty():
        for start in range(0, len(rows), _TABLE_ROWS):
            _print_table(rows[start : start + _TABLE_ROWS], names, titles=titles and start == 0)
        return
    if titles and names:
        _print_lines(["\t".join(names)])
    _print_lines("\t".join([text(row[name]) for name in names]) for row in rows)


def _print_lines(lines: Iterable[str]) -> None:
    sys.stdout.write("".join([f"{line}\n" for line in lines]))


def _print_table(rows: Sequence[Row], names: Sequence[str], *, titles: bool) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=titles)
    for name in names:
        numbers = all(isinstance(row[name], int | None) for row in rows)
        # a number that is cut without a sign would be another number
        table.add_column(name, overflow="ellipsis" if numbers else "fold", no_wrap=numbers)
    for row in rows:
        table.add_row(*(Text(text(row[name])) for name in names))
    Console().print(table)


# ---
# Batches of records as lines, in bulk: tab-separated texts, or JSON objects, as `output` prints single rows.
#
# No Python object is made per record. Only values that hold control characters or are not UTF-8 take a slower way.


#: The first millisecond of the year 10000, from which on a time is shown as a number.
_FAR = 253_402_300_800_000
_CONTROLS = "[\x00-\x1f\x7f-\x9f]"
_BREAKS = (("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r"))
_JSON_ESCAPES = (("\\", "\\\\"), ('"', '\\"'), *_BREAKS)


def tabbed(batch: pa.RecordBatch) -> memoryview:
    """The rows as UTF-8 lines, their columns separated by tabs."""
    columns = [_or_null(_text(column)) for column in batch.columns]
    return joined_bytes(pc.binary_join_element_wise(pc.binary_join_element_wise(*columns, "\t"), "\n", ""))


def json_objects(batch: pa.RecordBatch) -> memoryview:
    """The rows as UTF-8 lines of JSON objects."""
    return joined_bytes(json_texts(batch, "\n"))


def json_texts(rows: pa.RecordBatch, end: str = "") -> pa.Array:
    """The rows as JSON objects, each with `end` behind it."""
    parts: list[pa.Array | str] = []
    between = "{"
    for name in rows.schema.names:
        values, quote = _json(rows[name])
        parts += [f"{between}{json_text(name)}: {quote}", _or_null(values)]
        between = f"{quote}, "
    return pc.binary_join_element_wise(*parts, between.removesuffix(", ") + "}" + end, "")


def _or_null(column: pa.Array) -> pa.Array:
    return pc.fill_null(column, "null") if column.null_count else column


def csv_rows(batch: pa.RecordBatch, *, titles: bool) -> bytes:
    """The rows as CSV: bytes as they are, null as nothing, times in ISO 8601, headers as name=value."""
    texts = [pa.types.is_timestamp(column.type) or pa.types.is_list(column.type) for column in batch.columns]
    columns = [_text(column) if is_text else column for is_text, column in zip(texts, batch.columns, strict=True)]
    table = pa.table(columns, batch.schema.names)
    output = io.BytesIO()
    csv.write_csv(table, output, csv.WriteOptions(include_header=titles))
    return output.getvalue()


def joined_bytes(lines: pa.Array) -> memoryview:
    """The texts or bytes back to back."""
    if not len(lines):
        return memoryview(b"")
    large = lines.cast(pa.large_string() if pa.types.is_string(lines.type) else pa.large_binary())
    _, offsets, data = large.buffers()
    ends = memoryview(offsets).cast("q")
    return memoryview(data or b"")[ends[large.offset] : ends[large.offset + len(large)]]


def _text(column: pa.Array) -> pa.Array:
    if pa.types.is_timestamp(column.type):
        return _times(column.cast(pa.int64()))
    if pa.types.is_list(column.type):
        return _listed(column, "", text)
    if not pa.types.is_binary(column.type):
        return column.cast(pa.string())
    texts = _utf8(column)
    return _each(column, text) if texts is None else _escaped(texts, _BREAKS, _CONTROLS, text)


def _json(column: pa.Array) -> tuple[pa.Array, str]:
    """The values as JSON, and the mark before and behind each of them: a quote, or nothing."""
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.int64()).cast(pa.string()), ""
    if pa.types.is_list(column.type):
        return _listed(column, "[]", json_text), ""
    if not pa.types.is_binary(column.type):
        return column.cast(pa.string()), ""
    texts = _utf8(column)
    if texts is None:
        return _each(column, json_text), ""
    inner = _escaped(texts, _JSON_ESCAPES, "[\x00-\x1f]", lambda text: json_text(text)[1:-1])
    return (inner, '"') if not column.null_count else (pc.binary_join_element_wise('"', inner, '"', ""), "")


def _times(ms: pa.Array) -> pa.Array:
    """ISO 8601 in UTC, as `times.iso`."""
    low, high = (value.as_py() for value in pc.min_max(ms).values())
    if low is None or low < NO_TIMESTAMP or high >= _FAR:
        return pa.array([None if value is None else iso(value) for value in ms.to_pylist()], pa.string())
    texts = ms.cast(pa.timestamp("ms")).cast(pa.string())
    texts = pc.binary_join_element_wise(pc.binary_replace_slice(texts, 10, 11, "T"), "Z", "")
    return pc.if_else(pc.equal(ms, NO_TIMESTAMP), "none", texts) if low == NO_TIMESTAMP else texts


def _utf8(column: pa.Array) -> pa.Array | None:
    """Bytes as texts, which costs a check; None if some are not UTF-8."""
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        return None


def _escaped(
    texts: pa.Array, escapes: tuple[tuple[str, str], ...], controls: str, slow: Callable[[str], str]
) -> pa.Array:
    """The texts with `escapes` applied, in their order; texts with other `controls` one by one by `slow`."""
    data = np.frombuffer(joined_bytes(texts), np.uint8)
    marks = [mark for mark, _ in escapes]
    others = [code for code in range(160) if re.match(controls, chr(code)) and chr(code) not in marks]
    rare = None
    # a character above 127 begins with a byte of its own
    if any(_holds(data, byte) for byte in {chr(code).encode()[0] for code in others}):
        rare = pc.match_substring_regex(texts, "[" + "".join(f"\\x{{{code:02x}}}" for code in others) + "]")
    escaped = texts
    for mark, escape in escapes:
        escaped = pc.replace_substring(escaped, mark, escape) if _holds(data, ord(mark)) else escaped
    if rare is None or not pc.any(rare).as_py():
        return escaped
    return pc.replace_with_mask(escaped, pc.fill_null(rare, False), _each(texts.filter(rare), slow))


def _holds(data: npt.NDArray[np.uint8], byte: int) -> bool:
    # the least byte is found three times as fast, and most texts have none below a space
    return byte >= data.min(initial=255) and bool((data == byte).any())


def _each(column: pa.Array, slow: Callable[[Any], str]) -> pa.Array:
    return pa.array([None if value is None else slow(value) for value in column.to_pylist()], pa.string())


def _listed(column: pa.Array, empty: str, one: Callable[[object], str]) -> pa.Array:
    """Headers, which most records do not have."""
    lengths = pc.list_value_length(column)
    if pc.max(lengths).as_py() in (0, None) and not column.null_count:
        return pa.repeat(pa.scalar(empty, pa.string()), len(column))
    return _each(column, one)


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


def _plain(column: pa.Array) -> pa.Array:
    return pc.fill_null(column, b"") if column.null_count else column


def _size(column: pa.Array) -> pa.Array:
    return _number(pc.fill_null(pc.binary_length(column), -1))


def _number(column: pa.Array) -> pa.Array:
    return column.cast(pa.int64()).cast(pa.string()).cast(pa.binary())


def _headers(column: pa.Array) -> pa.Array:
    if pc.max(pc.list_value_length(column)).as_py() in (0, None):
        return pa.repeat(pa.scalar(b"", pa.binary()), len(column))
    return pa.array([b",".join(map(_header, headers or ())) for headers in column.to_pylist()], pa.binary())


def _header(header: dict[str, str | bytes | None]) -> bytes:
    return str(header["key"]).encode() + b"=" + (header["value"] or b"")  # type: ignore[operator]


#: By conversion: the column that it shows, and how.
_SHOWN: dict[str, tuple[str, Callable[[pa.Array], pa.Array]]] = {
    "v": ("value", _plain),
    "s": ("value", _plain),
    "S": ("value", _size),
    "k": ("key", _plain),
    "K": ("key", _size),
    "p": ("partition", _number),
    "o": ("offset", _number),
    "T": ("timestamp", _number),
    "h": ("headers", _headers),
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
        parts: list[pa.Array | pa.Scalar] = []
        for piece, is_conversion in self.pieces:
            if is_conversion and piece != "t":
                name, show = _SHOWN[piece]
                parts.append(show(batch.column(name)))
            else:
                parts.append(pa.scalar((topic if is_conversion else piece).encode(), pa.binary()))
        if not any(isinstance(part, pa.Array) for part in parts):
            parts.append(pa.repeat(pa.scalar(b"", pa.binary()), batch.num_rows))
        return joined_bytes(pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary())))


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


# ---
# Ends a command or a job: prints its report, for people or as JSON, or its error, and sets the exit status.
#
# Exit status: 0 done, 1 it failed or found something wrong, 2 the command line is wrong, 130 and 143 it was ended
# by SIGINT (Ctrl-C) or SIGTERM.


DONE, FAILED, WRONG_USAGE = 0, 1, 2
#: 128 and the number of SIGINT or SIGTERM, as shells have it.
INTERRUPTED, TERMINATED = 130, 143


class Report(Protocol):
    """The result of a command: `str` gives a text for people. `ok` among the facts may be false."""

    def to_dict(self) -> dict[str, Any]:
        """The object that `--json` prints."""


@runtime_checkable
class WithTable(Protocol):
    """A report that shows people a table too."""

    def to_table(self) -> pa.Table:
        """The rows of the table."""


@dataclass(frozen=True, slots=True)
class Summary:
    """A report made by its caller. People see its text and the columns `names` (default: all) of `rows`."""

    text: str
    facts: Mapping[str, Any]
    rows: Sequence[Row] = ()
    names: Sequence[str] | None = None

    def __str__(self) -> str:
        return self.text

    def to_dict(self) -> dict[str, Any]:
        """The facts."""
        return dict(self.facts)


def print_report(report: Report, *, as_json: bool) -> None:
    """Print one JSON object as the last line; or the text, and then the rows if there are any."""
    if as_json:
        print_json(report.to_dict())
    else:
        if line := str(report):
            print(line)
        if isinstance(report, Summary):
            print_rows(report.rows, report.names)
        elif isinstance(report, WithTable):
            print_rows(rows_of(report.to_table()))
    sys.stdout.flush()


def status_of(report: Report) -> int:
    """The exit status after a report."""
    return DONE if report.to_dict().get("ok", True) else FAILED


def fail(program: str, error: Exception, reason: str | None = None, *, as_json: bool = False) -> int:
    """Print on one line of standard error why `program` failed, and as JSON on standard output, with `as_json`.

    Control characters, as of a name on storage, are escaped for the terminal. Returns the exit status. The default
    reason is the error's text.
    """
    reason = " ".join((reason or str(error)).split())
    print(f"{program}: {text(reason)}", file=sys.stderr)
    if as_json:
        with suppress(OSError):  # standard output itself may have failed
            print_json({"error": reason, "type": type(error).__name__})
            sys.stdout.flush()
    drop_what_cannot_be_written()
    return WRONG_USAGE if isinstance(error, InvalidConfigError) else FAILED


# ---
# A service's output: lines on standard output, and on a terminal a last line with the status.


_TRACEBACK = logging.Formatter()


class StatusLine(logging.Handler):
    """Prints lines above a status line, which is shown on a terminal only. Warnings go to standard error, as lines.

    `status` gives the text of the status line. Safe between threads.
    """

    def __init__(self, program: str, status: Callable[[], str]) -> None:
        super().__init__(logging.WARNING)
        self._program, self._status = program, status
        self._turn = threading.RLock()
        self.is_visible = sys.stderr.isatty()

    def draw(self) -> None:
        """Show the status as it is now."""
        if self.is_visible:
            with self._turn:
                sys.stderr.write(f"\r{text(self._status())}\x1b[K")
                sys.stderr.flush()

    def clear(self) -> None:
        """Remove the status line."""
        if self.is_visible:
            with self._turn:
                sys.stderr.write("\r\x1b[K")
                sys.stderr.flush()

    def print(self, line: str) -> None:
        """Print a line on standard output, and flush it."""
        with self._turn:
            self.clear()
            print(text(line), flush=True)
            self.draw()

    def print_json(self, event: dict[str, object]) -> None:
        """Print one JSON object as a line on standard output, and flush it."""
        with self._turn:
            self.clear()
            print_json(event)
            sys.stdout.flush()
            self.draw()

    def emit(self, record: logging.LogRecord) -> None:
        """Print a warning on one line of standard error, and below it the traceback, if there is one.

        If standard error is not read any more, the caller that logs goes on.
        """
        lines = [f"{self._program}: {text(' '.join(record.getMessage().split()))}"]
        if record.exc_info and record.exc_info[0] is not None:
            lines += map(text, _TRACEBACK.formatException(record.exc_info).splitlines())
        with suppress(BrokenPipeError), self._turn:
            self.clear()
            print(*lines, sep="\n", file=sys.stderr, flush=True)
            self.draw()
