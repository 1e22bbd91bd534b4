"""Prints batches of records: tab-separated texts, JSON objects, CSV, or a custom format."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from distlog.console.output import RowPrinter, print_json, rows_of
from distlog.core.arrays import integers
from distlog.core.read.row_lines import PLAIN, Texts, bytes_of, joined, json_objects, tabbed, texts_of

# \n, \t, \r, \\ and \xNN stand for themselves. Keys and values are printed as they are; null as nothing.


_TOKEN = re.compile(r"%(.)|\\(x[0-9a-fA-F]{2}|.)|([^%\\]+|.)", re.DOTALL)
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

    tokens: tuple[tuple[str, bool], ...]

    @classmethod
    def parse(cls, text: str) -> Conversions:
        """Parse a format; raises ValueError for an unknown conversion or escape, or if it has no conversion."""
        tokens = tuple(_token(*groups) for groups in _TOKEN.findall(text))
        if not any(is_conversion for _, is_conversion in tokens):
            raise ValueError(f"{text!r} is not json, csv or a format with conversions ('%k %v\\n')")
        return cls(tokens)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the records that the format shows; one at least, so that there are rows."""
        columns = [_SHOWN[name][0] for name, is_conversion in self.tokens if is_conversion and name != "t"]
        return tuple(dict.fromkeys(columns)) or ("offset",)

    def texts(self, batch: pa.RecordBatch, topic: str) -> memoryview:
        """The rows in this format, back to back."""
        parts: list[Texts] = []
        for token, is_conversion in self.tokens:
            if is_conversion and token != "t":
                name, show = _SHOWN[token]
                parts.append(texts_of(show(batch.column(name)), PLAIN))
            else:
                parts.append(topic if is_conversion else token)
        return bytes_of(joined(parts, batch.num_rows))


def _token(conversion: str, escape: str, text: str) -> tuple[str, bool]:
    if text:
        if text in "%\\":
            raise ValueError(f"the format ends with a single {text}: write {text}{text}")
        return text, False
    if escape:
        if escape not in _ESCAPES and len(escape) != 3:
            raise ValueError(f"unknown escape \\{escape}: use \\n, \\t, \\r, \\\\ or \\xNN")
        return _ESCAPES.get(escape) or chr(int(escape[1:], 16)), False
    if conversion == "%":
        return "%", False
    if conversion not in _SHOWN and conversion != "t":
        raise ValueError(f"unknown conversion %{conversion}: use %{' %'.join([*_SHOWN, 't', '%'])}")
    return conversion, True


def print_objects(batch: pa.RecordBatch) -> None:
    """Print the rows of a batch as JSON, a line each."""
    if _is_utf8():
        print_bytes(json_objects(batch))
    else:
        print_json(*rows_of(batch))


def print_batch(batch: pa.RecordBatch, printer: RowPrinter) -> None:
    """Print the rows of a batch, after the earlier batches that `printer` has printed."""
    if not _is_utf8() or sys.stdout.isatty():
        printer.print(rows_of(batch), batch.schema.names)
        return
    printer.print((), batch.schema.names)
    print_bytes(tabbed(batch))


def print_bytes(lines: bytes | memoryview) -> None:
    """Print bytes as they are."""
    sys.stdout.flush()
    sys.stdout.buffer.write(lines)


def _is_utf8() -> bool:
    """True if standard output is a stream of bytes in UTF-8."""
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8" and hasattr(sys.stdout, "buffer")
