"""The options of a read of input files: a value that tasks can be sent."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from distlog.core.arrays import byte_array
from distlog.core.errors import InvalidConfigError
from distlog.core.files.input_files import FORMATS, TEXT
from distlog.core.times import check_unit

FAIL, SKIP = "fail", "skip"
NO_FIELDS = "a line of text has no fields: give --format jsonl, csv or parquet, or --pattern"
#: The groups of a pattern that make a record.
GROUPS = ("key", "value", "timestamp")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options of a read; None leaves the choice to the content, or to the topic.

    `format` is one of FORMATS. `key`, `value` and `timestamp` name fields or columns; numbers for times count
    `timestamp_unit`, and texts are ISO 8601 or as `time_format` has it (Python's strptime). `pattern` is a Python
    regular expression for lines of text. Each record gets `headers` after its own, and `partition` if given. A bad
    line raises an error, or with `bad_lines` "skip" is left out and counted. `now_ms` is the time when the read was
    planned: times without a year get its year.
    """

    format: str | None = None
    key: str | None = None
    value: str | None = None
    timestamp: str | None = None
    timestamp_unit: str = "ms"
    key_separator: str | None = None
    pattern: str | None = None
    time_format: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    partition: int | None = None
    bad_lines: str = FAIL
    now_ms: int = 0

    def __post_init__(self) -> None:
        """Raise InvalidConfigError for what cannot be meant, before anything is read."""
        check_unit(self.timestamp_unit)
        if self.format not in (None, *FORMATS):
            raise InvalidConfigError(f"a format is one of {', '.join(FORMATS)}", format=self.format)
        if self.bad_lines not in (FAIL, SKIP):
            raise InvalidConfigError(f"bad lines are to {FAIL} or to {SKIP}", bad_lines=self.bad_lines)
        is_text = self.format in (None, TEXT)
        if self.key_separator is not None and (not is_text or not self.key_separator):
            raise InvalidConfigError("--key-separator needs at least one character, and --format text")
        if self.pattern is not None:
            if not is_text or self.key_separator is not None:
                raise InvalidConfigError("--pattern needs --format text, and no --key-separator")
            try:
                groups = re.compile(self.pattern).groupindex
            except (re.error, RecursionError, OverflowError) as error:
                raise InvalidConfigError(f"the pattern is not a regular expression: {error}") from None
            if not groups.keys() & set(GROUPS):
                text = "the pattern needs a group named key, value or timestamp, as in (?P<key>[^ ]+)"
                raise InvalidConfigError(text)
        if self.format == TEXT and self.fields:
            raise InvalidConfigError(NO_FIELDS)

    @property
    def fields(self) -> dict[str, str]:
        """The names of the fields by their roles: key, value, timestamp."""
        names = {"key": self.key, "value": self.value, "timestamp": self.timestamp}
        return {role: name for role, name in names.items() if name is not None}

    @property
    def skips_bad_lines(self) -> bool:
        """True if bad lines are left out and counted."""
        return self.bad_lines == SKIP


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is not a record: its position in the block, the number of records before it, and the reason."""

    position: int
    records_before: int
    reason: str


@dataclass(frozen=True, slots=True)
class Parsed:
    """The records of a block of lines, and its lines that are not records.

    `consumed` counts the parsed bytes of the block and its last newline: the remaining bytes belong to a row that
    continues in the next block. `starts` are where the records begin in the block; None if each line that is not bad
    is a record.
    """

    records: pa.Table
    bad: Sequence[BadLine]
    consumed: int
    starts: npt.NDArray[np.int64] | None = None


class LineParser(Protocol):
    """Parses blocks of whole lines of one format."""

    def parse(self, text: bytes, limit: int, *, is_last: bool) -> Parsed:
        """The records that begin in the first `limit` bytes of a block, which has no newline at its end.

        `is_last` says that no line follows. Raises InvalidRecordError for what makes all of the file useless.
        """


def line_starts(text: bytes) -> npt.NDArray[np.int64]:
    return np.append(0, np.flatnonzero(byte_array(text) == ord("\n")) + 1)


def line_at(text: bytes, position: int) -> int:
    return text.count(b"\n", 0, position)
