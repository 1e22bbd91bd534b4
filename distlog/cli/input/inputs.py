"""What `distlog append` takes: lines of some format, from files or a stream, or Parquet files."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from distlog.cli.input.csv_format import csv_format
from distlog.cli.input.field_formats import Fields, json_fields
from distlog.cli.input.incoming import blocks
from distlog.cli.input.line_formats import LineFormat, Parsed, jsonl_format, text_format
from distlog.core.errors import InvalidConfigError, InvalidRecordError

STANDARD_INPUT = "-"


class Format(str, Enum):
    """The format of the input."""

    TEXT = "text"
    JSONL = "jsonl"
    CSV = "csv"
    PARQUET = "parquet"


class Part(NamedTuple):
    """A part of the input, and how many bytes of the input it was."""

    parsed: Parsed
    size: int


#: The parts of an input. None says that nothing came for a while.
Parts = Iterator[Part | None]


@dataclass(frozen=True, slots=True)
class Input:
    """How the input is to be read."""

    format: Format
    fields: Fields
    key_separator: str | None = None

    def check(self) -> None:
        """Raise InvalidConfigError for options that the format does not have."""
        if self.key_separator is not None and (self.format is not Format.TEXT or not self.key_separator):
            raise InvalidConfigError("--key-separator needs at least one character, and --format text")
        if self.format is Format.TEXT and self.fields.named:
            raise InvalidConfigError("a line of text has no fields: give --format jsonl, csv or parquet")

    def parts(self, path: str, wait: Callable[[], float | None]) -> Parts:
        """The parts of a file or of standard input. Raises OSError, InvalidConfigError for fields it lacks."""
        if self.format is Format.PARQUET:
            return _tables(path, self.fields)
        return _lines(path, self._parser(), wait)

    def _parser(self) -> LineFormat:
        if self.format is Format.CSV:
            return csv_format(self.fields)
        if self.format is Format.JSONL:
            return json_fields(self.fields) if self.fields.named else jsonl_format
        return text_format(self.key_separator)


def size_of(paths: list[str]) -> int | None:
    """The bytes of the files; None if one of them is a stream, which has no size. Raises OSError."""
    sizes = [None if path == STANDARD_INPUT else os.stat(path) for path in paths]
    files = [found for found in sizes if found is not None and stat.S_ISREG(found.st_mode)]
    return sum(found.st_size for found in files) if len(files) == len(paths) else None


def _lines(path: str, parse: LineFormat, wait: Callable[[], float | None]) -> Parts:
    lines = 0
    with _opened(path) as file:
        for block in blocks(file, wait=wait):
            if block is None:
                yield None
                continue
            yield Part(_parsed(parse, block, lines, path), len(block) + 1)
            lines += block.count(b"\n") + 1


def _parsed(parse: LineFormat, block: bytes, lines: int, path: str) -> Parsed:
    try:
        return parse(block, lines)
    except InvalidRecordError as error:
        error.details["file"] = None if path == STANDARD_INPUT else path
        raise


@contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    if path == STANDARD_INPUT:
        yield sys.stdin.buffer
    else:
        with open(path, "rb") as file:
            yield file


def _tables(path: str, fields: Fields) -> Parts:
    if path == STANDARD_INPUT:
        raise InvalidConfigError("--format parquet needs a file: its end is read first")
    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            fields.check(names)
            columns = {name: name for name in ("partition", "timestamp", "key", "value", "headers") if name in names}
            columns |= fields.named
            for batch in file.iter_batches(columns=sorted({*columns.values()})):
                table = pa.table({name: batch.column(field) for name, field in columns.items()})
                yield Part(Parsed(table), table.nbytes)
    except pa.ArrowInvalid as error:
        raise InvalidRecordError(f"this is no Parquet file: {error}", file=path) from None
