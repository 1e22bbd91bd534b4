"""Translates Python's time formats to Spark's, so that a job takes the format that most people know."""

from __future__ import annotations

import re

#: Spark's pattern letters for strptime's directives. Names of days are missing: Spark cannot parse them.
_PATTERNS = {
    "Y": "yyyy",
    "y": "yy",
    "m": "MM",
    "b": "MMM",
    "B": "MMMM",
    "d": "dd",
    "j": "DDD",
    "H": "HH",
    "I": "hh",
    "p": "a",
    "M": "mm",
    "S": "ss",
    "f": "SSSSSS",
    "z": "[XXX][XX]",
    "T": "HH:mm:ss",
    "F": "yyyy-MM-dd",
}
_PIECE = re.compile(r"%(?P<directive>.)|(?P<literal>[^%]+)", re.DOTALL)


def spark_pattern(time_format: str) -> str:
    """Spark's pattern for a strptime format like `%d/%b/%Y:%H:%M:%S %z`.

    Raises ValueError for a directive that Spark cannot parse.
    """
    pieces = []
    end = 0
    for match in _PIECE.finditer(time_format):
        end = match.end()
        pieces.append(_quoted(match["literal"]) if match["literal"] else _pattern(match["directive"]))
    if end != len(time_format):
        raise ValueError("a time format must not end with a single %")
    return "".join(pieces)


def _pattern(directive: str) -> str:
    if directive == "%":
        return "%"
    if directive not in _PATTERNS:
        known = " ".join(f"%{known}" for known in _PATTERNS)
        raise ValueError(f"a time format cannot have %{directive}; it can have {known} %%")
    return _PATTERNS[directive]


def _quoted(literal: str) -> str:
    """The literal as Spark's pattern: letters and Spark's own marks are quoted, and a quote is doubled."""
    quoted = literal.replace("'", "''")
    return f"'{quoted}'" if re.search(r"[A-Za-z\[\]{}#;]", literal) else quoted
