"""Records in a format of one's own, as kcat's: `%k %v\\n`.

%v %s  the value; %S its bytes, -1 if it is null
%k     the key;   %K its bytes, -1 if it is null
%p %o  partition and offset
%T     the timestamp in ms since 1970
%h     the headers, as in name=value,name=value
%t     the topic
%%     a percent sign

\\n, \\t, \\r, \\\\ and \\xNN stand for themselves. Keys and values are printed as they are; null as nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from distlog.console.record_lines import joined_bytes

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
        named = [_SHOWN[name][0] for name, is_conversion in self.pieces if is_conversion and name != "t"]
        return tuple(dict.fromkeys(named)) or ("offset",)

    def texts(self, batch: pa.RecordBatch, topic: str) -> memoryview:
        """The rows in this format, back to back."""
        parts: list[pa.Array | pa.Scalar] = []
        for text, is_conversion in self.pieces:
            if is_conversion and text != "t":
                name, show = _SHOWN[text]
                parts.append(show(batch.column(name)))
            else:
                parts.append(pa.scalar((topic if is_conversion else text).encode(), pa.binary()))
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
