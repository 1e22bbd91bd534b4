"""Lines of text as records: each is a value, or a key and a value with a separator between them."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distlog.core.arrays import flags_of, integers, scalar_of
from distlog.core.files.read_options import BadLine, Parsed, line_starts

NO_SEPARATOR = "the line has no key separator: correct it, or leave out --key-separator"
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\"}


@dataclass(frozen=True, slots=True)
class TextLines:
    """Parses lines as values, or as keys and values: then a line without the separator is bad."""

    key_separator: str | None = None

    def parse(self, text: bytes, limit: int, *, is_last: bool) -> Parsed:
        """See `LineParser`."""
        lines = split_lines(text)
        if self.key_separator is None:
            return Parsed(pa.table({"value": lines}), (), len(text) + 1)
        parts = pc.split_pattern(lines, self.key_separator, max_splits=1)
        good = pc.equal(pc.list_value_length(parts), integers([2], pa.int32())[0])
        rows = np.flatnonzero(~flags_of(good)).tolist()
        bad, starts = list[BadLine](), None
        if rows:
            positions = line_starts(text)
            bad = [BadLine(int(positions[row]), row - number, NO_SEPARATOR) for number, row in enumerate(rows)]
            parts, starts = parts.filter(good), np.delete(positions, rows)
        columns = {"key": pc.list_element(parts, 0), "value": pc.list_element(parts, 1)}
        return Parsed(pa.table(columns), bad, len(text) + 1, starts)


def split_lines(text: bytes) -> pa.Array:
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n").removesuffix(b"\r")
    return pc.split_pattern(scalar_of(text, pa.binary()), "\n").values


def unescaped(text: str) -> str:
    r"""A separator with \t, \n, \r, \\ and \xNN for what they stand for, as in a format of `read`.

    Raises ValueError for another escape.
    """
    fragments, position = list[str](), 0
    for match in _ESCAPE.finditer(text):
        escape = match[1]
        if escape not in _ESCAPES and len(escape) != 3:
            raise ValueError(f"unknown escape \\{escape}; there are \\n, \\t, \\r, \\\\ and \\xNN")
        fragments += [text[position : match.start()], _ESCAPES.get(escape) or chr(int(escape[1:], 16))]
        position = match.end()
    tail = text[position:]
    if tail.endswith("\\"):
        raise ValueError(r"the separator ends with \: write \\")
    return "".join([*fragments, tail])
