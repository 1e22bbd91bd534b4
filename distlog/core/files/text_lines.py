"""Lines of text as records: values, keys and values with a separator, or the groups of a regular expression.

Arrow's RE2 is several times as fast as Python's `re`. They differ in classes of characters outside ASCII, at line
ends, and in repeats of an expression that may be empty. So RE2 reads only ASCII lines, and only by simple patterns. A
pattern is rewritten for RE2 from its parse tree, each class as ranges of ASCII. `re` reads other patterns and lines.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distlog.core.arrays import Longs, byte_array, column_of, flags_of, integers, scalar_of
from distlog.core.files.input_files import PATTERN_GROUPS
from distlog.core.files.record_times import TimeReader

if sys.version_info >= (3, 11):
    from re import _constants as op  # type: ignore[attr-defined]
    from re import _parser  # type: ignore[attr-defined]
else:
    import sre_constants as op
    import sre_parse as _parser

NO_SEPARATOR = "the line has no key separator: correct it, or leave out --key-separator"
#: How many bytes of a bad line an error shows.
_SHOWN_BYTES = 200
_ASCII = 128
_MAX_REPEATS = 1000  # RE2 refuses larger counts of a repeat
#: Flags that the parser has already applied, or that change nothing for ASCII.
_HARMLESS_FLAGS = re.UNICODE | re.VERBOSE | re.ASCII
_CATEGORIES = {
    op.CATEGORY_DIGIT: r"\d",
    op.CATEGORY_NOT_DIGIT: r"\D",
    op.CATEGORY_SPACE: r"\s",
    op.CATEGORY_NOT_SPACE: r"\S",
    op.CATEGORY_WORD: r"\w",
    op.CATEGORY_NOT_WORD: r"\W",
}


class LineParser(Protocol):
    """Parses blocks of whole lines of one format."""

    def parse(self, text: bytes, limit: int, *, is_last: bool) -> Parsed:
        """Return the records that begin in the first `limit` bytes of `text`.

        `text` is whole lines without the last newline; no block follows if `is_last`. Only CSV uses `limit` and
        `is_last`, because its rows can have several lines.
        """


@dataclass(frozen=True, slots=True)
class Parsed:
    """The records of a block of lines, and its lines that are not records."""

    records: pa.Table
    bad: Sequence[BadLine]
    #: The number of parsed bytes: the block and the newline after it, unless its last row continues in the next one.
    consumed: int
    #: The positions of the records in the block; None if each line is a record.
    starts: Longs | None = None


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is not a record: its position in the block, the number of records before it, and the reason."""

    position: int
    records_before: int
    reason: str


@dataclass(frozen=True, slots=True)
class TextLines:
    """Parses lines as values, or with `key_separator` as keys and values; a line without the separator is bad."""

    key_separator: str | None = None

    def parse(self, text: bytes, limit: int, *, is_last: bool) -> Parsed:
        lines = split_lines(text)
        if self.key_separator is None:
            return Parsed(pa.table({"value": lines}), (), len(text) + 1)
        pairs = pc.split_pattern(lines, self.key_separator, max_splits=1)
        is_pair = pc.equal(pc.list_value_length(pairs), scalar_of(2, pa.int32()))
        rows = np.flatnonzero(~flags_of(is_pair)).tolist()
        bad, starts = list[BadLine](), None
        if rows:
            positions = line_starts(text)
            bad = [BadLine(int(positions[row]), row - number, NO_SEPARATOR) for number, row in enumerate(rows)]
            pairs, starts = pairs.filter(is_pair), np.delete(positions, rows)
        columns = {"key": pc.list_element(pairs, 0), "value": pc.list_element(pairs, 1)}
        return Parsed(pa.table(columns), bad, len(text) + 1, starts)


def split_lines(text: bytes) -> pa.Array:
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n").removesuffix(b"\r")
    return pc.split_pattern(scalar_of(text, pa.binary()), "\n").values


@dataclass(frozen=True, slots=True)
class PatternLines:
    """Parses lines with a pattern's groups key, value and timestamp; without a value group the value is the line."""

    pattern: str
    times: TimeReader

    def parse(self, text: bytes, limit: int, *, is_last: bool) -> Parsed:
        lines = split_lines(text)
        groups = _line_groups(lines, self.pattern, is_ascii=text.isascii())
        columns: dict[str, pa.Array] = {"value": lines, **groups.columns}
        faults = dict[int, str]()
        if "timestamp" in columns:
            times = self.times.of_column(columns["timestamp"])
            columns["timestamp"], faults = times.column, dict(times.faults)
        if "key" in columns:
            key = columns["key"]  # empty without a match of the group; an empty key becomes null
            columns["key"] = pc.if_else(pc.equal(pc.binary_length(key), 0), pa.nulls(1, key.type)[0], key)
        for row in np.flatnonzero(~groups.matches).tolist():
            line_start = lines[row].as_py()[:_SHOWN_BYTES].decode(errors="replace")
            faults[row] = f"the pattern does not match: {line_start}"
        if not faults:
            return Parsed(pa.table(columns), (), len(text) + 1)
        return without_bad_rows(pa.table(columns), line_starts(text), faults, len(text) + 1)


def without_bad_rows(rows: pa.Table, starts: Longs, faults: Mapping[int, str], consumed: int) -> Parsed:
    """Return the rows, which begin at `starts` in a block, without the rows in `faults`."""
    bad_rows = sorted(faults)
    bad = [BadLine(int(starts[row]), row - count, faults[row]) for count, row in enumerate(bad_rows)]
    good_rows = np.delete(np.arange(len(starts)), bad_rows)
    return Parsed(rows.take(integers(good_rows)), bad, consumed, starts[good_rows])


@dataclass(frozen=True, slots=True)
class _LineGroups:
    """The pattern's named groups in each line, as bytes, and which lines match; a group without a match is empty."""

    columns: Mapping[str, pa.Array]
    matches: np.ndarray


def _line_groups(lines: pa.Array, pattern: str, *, is_ascii: bool) -> _LineGroups:
    rewritten_pattern = re2_pattern(pattern)
    if rewritten_pattern is None:
        return _by_python(lines, pattern)
    if is_ascii:
        return _by_re2(lines, rewritten_pattern)
    flags = flags_of(pc.string_is_ascii(lines.view(pa.string())))
    if not flags.any():
        return _by_python(lines, pattern)
    ascii_rows, other_rows = np.flatnonzero(flags), np.flatnonzero(~flags)
    by_re2 = _by_re2(lines.take(integers(ascii_rows)), rewritten_pattern)
    by_python = _by_python(lines.take(integers(other_rows)), pattern)
    original_order = np.argsort(np.concatenate([ascii_rows, other_rows]))
    columns = {
        name: pa.concat_arrays([column, by_python.columns[name]]).take(integers(original_order))
        for name, column in by_re2.columns.items()
    }
    return _LineGroups(columns, np.concatenate([by_re2.matches, by_python.matches])[original_order])


def _by_re2(lines: pa.Array, pattern: str) -> _LineGroups:
    matches = pc.extract_regex(lines.view(pa.string()), pattern)
    names = [field.name for field in matches.type]
    columns = {name: matches.field(number).cast(pa.binary()) for number, name in enumerate(names)}
    return _LineGroups(columns, flags_of(matches.is_valid()))


def _by_python(lines: pa.Array, pattern: str) -> _LineGroups:
    compiled = re.compile(pattern)
    names = [name for name in PATTERN_GROUPS if name in compiled.groupindex]
    texts = (line.decode(errors="surrogateescape") for line in lines.to_pylist())  # keeps bytes that are not UTF-8
    matches = [compiled.search(text) for text in texts]
    columns = {name: column_of([_group(match, name) for match in matches], pa.binary()) for name in names}
    return _LineGroups(columns, np.array([match is not None for match in matches], np.bool_))


def _group(match: re.Match[str] | None, name: str) -> bytes:
    return b"" if match is None else (match[name] or "").encode(errors="surrogateescape")


@lru_cache
def re2_pattern(pattern: str) -> str | None:
    """Return the pattern for RE2, with the same matches in a line of ASCII; None if that is not certain."""
    try:
        tree = _parser.parse(pattern)
        if tree.state.flags & ~_HARMLESS_FLAGS:
            return None
        names = {number: name for name, number in tree.state.groupdict.items() if name in PATTERN_GROUPS}
        rewritten = _re2_text(tree, names)
        pc.extract_regex(pa.array([""]), rewritten)  # raises if RE2 refuses the pattern
    except (_UnsureError, pa.ArrowException, RecursionError):
        return None
    return rewritten


class _UnsureError(Exception):
    """Raised for a pattern that RE2 may match in another way than Python."""


def _re2_text(tree: Any, names: Mapping[int, str]) -> str:
    return "".join(_node_text(code, argument, names) for code, argument in tree)


def _node_text(code: Any, argument: Any, names: Mapping[int, str]) -> str:
    if code is op.LITERAL and argument < _ASCII:
        return f"\\x{{{argument:x}}}"
    if code in (op.NOT_LITERAL, op.ANY, op.IN):
        return _class_text(_members(code, argument))
    if code is op.AT:
        return _anchor_text(argument)
    if code is op.BRANCH:
        return f"(?:{'|'.join(_re2_text(choice, names) for choice in argument[1])})"
    if code is op.SUBPATTERN:
        group, added_flags, removed_flags, body = argument
        if added_flags or removed_flags:
            raise _UnsureError
        begin = f"(?P<{names[group]}>" if group in names else "(?:"
        return f"{begin}{_re2_text(body, names)})"
    if code in (op.MAX_REPEAT, op.MIN_REPEAT):
        return _repeat_text(code, argument, names)
    raise _UnsureError


def _repeat_text(code: Any, argument: Any, names: Mapping[int, str]) -> str:
    min_count, max_count, body = argument
    inside = _re2_text(body, names)
    repeats_group = "(?P<" in inside and max_count != 1  # RE2 and Python may return different repetitions
    is_unbounded = max_count is op.MAXREPEAT
    largest_count = min_count if is_unbounded else max_count
    can_be_empty = body.getwidth()[0] == 0
    if can_be_empty or repeats_group or largest_count > _MAX_REPEATS:
        raise _UnsureError
    times = f"{{{min_count},}}" if is_unbounded else f"{{{min_count},{max_count}}}"
    return f"(?:{inside}){times}{'?' if code is op.MIN_REPEAT else ''}"


def _anchor_text(anchor: Any) -> str:
    if anchor in (op.AT_BEGINNING, op.AT_BEGINNING_STRING):
        return r"\A"
    if anchor in (op.AT_END, op.AT_END_STRING):  # a line has no newline at its end
        return r"\z"
    if anchor is op.AT_BOUNDARY:
        return r"\b"
    raise _UnsureError


def _members(code: Any, argument: Any) -> set[int]:
    """Return the codes of the ASCII characters that a node of one character matches."""
    everything = set(range(_ASCII))
    if code is op.NOT_LITERAL:
        return everything - {argument}
    if code is op.ANY:
        return everything - {ord("\n")}
    members, is_negated = set[int](), False
    for kind, value in argument:
        if kind is op.NEGATE:
            is_negated = True
        elif kind is op.LITERAL:
            members |= {value} & everything
        elif kind is op.RANGE:
            members |= set(range(value[0], min(value[1] + 1, _ASCII)))
        elif kind is op.CATEGORY and value in _CATEGORIES:
            members |= {point for point in everything if re.fullmatch(_CATEGORIES[value], chr(point))}
        else:
            raise _UnsureError
    return everything - members if is_negated else members


def _class_text(members: set[int]) -> str:
    if not members:
        raise _UnsureError
    points = np.array(sorted(members))
    spans: Sequence[np.ndarray] = np.split(points, np.flatnonzero(np.diff(points) > 1) + 1)
    return "[" + "".join(f"\\x{{{span[0]:x}}}-\\x{{{span[-1]:x}}}" for span in spans) + "]"


def line_starts(text: bytes) -> Longs:
    return np.append(0, np.flatnonzero(byte_array(text) == ord("\n")) + 1)


def line_at(text: bytes, position: int) -> int:
    """Return the number of the line at `position`; the first line is 0."""
    return text.count(b"\n", 0, position)
