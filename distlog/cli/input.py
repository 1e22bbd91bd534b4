"""The input of `distlog append`: lines of some format, from files or a stream, or Parquet files."""

from __future__ import annotations

import io
import os
import select
import signal
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from types import FrameType
from typing import Any, BinaryIO, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from distlog.cli.line_formats import (
    CsvRows,
    Fields,
    LineFormat,
    MissedFields,
    Parsed,
    json_fields,
    jsonl_format,
    text_format,
)
from distlog.core.errors import DistlogError, InvalidConfigError, InvalidRecordError
from distlog.core.topics.append_commit import Transaction
from distlog.core.topics.appendable import scaled
from distlog.core.topics.topic import Topic

# ---
# Ends the input of a command at a signal, instead of the command.


T = TypeVar("T")


class Interrupt:
    """A `with` block in which SIGINT and SIGTERM end the input. A second one raises KeyboardInterrupt.

    `signal` is the number of the first one that came, or 0.
    """

    def __init__(self) -> None:
        self.signal = 0
        self._is_waiting = False

    def __enter__(self) -> Interrupt:
        self._before = {
            number: signal.signal(number, self._take_signal) for number in (signal.SIGINT, signal.SIGTERM)
        }
        return self

    def __exit__(self, *_: Any) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _take_signal(self, number: int, _: FrameType | None) -> None:
        is_second, self.signal = self.signal != 0, self.signal or number
        if is_second or self._is_waiting:
            raise KeyboardInterrupt

    def until(self, source: Iterator[T]) -> Iterator[T]:
        """The items of `source` until a signal comes; the item under way then is left there."""
        while not self.signal:
            try:
                self._is_waiting = True
                item = next(source)
                self._is_waiting = False
            except (KeyboardInterrupt, StopIteration):
                self._is_waiting = False
                return
            yield item


# ---
# Takes the lines of a file, a pipe or a terminal as they come.


BLOCK_BYTES = 4 << 20


def blocks(
    file: BinaryIO, size: int = BLOCK_BYTES, wait: Callable[[], float | None] = lambda: None
) -> Iterator[bytes | None]:
    """The file in blocks of whole lines, of about `size` bytes at most. A block has no newline at its end.

    A block is shorter if less is there. None says that nothing came for as many seconds as `wait` gives.
    """
    pieces: list[bytes] = []
    while (data := _read(file, size, wait())) != b"":
        if data is None:
            yield None
            continue
        lines, newline, rest = data.rpartition(b"\n")
        if newline:
            yield b"".join([*pieces, lines])
            pieces.clear()
        if rest:
            pieces.append(rest)
    if pieces:
        yield b"".join(pieces)


def _read(file: BinaryIO, size: int, seconds: float | None) -> bytes | None:
    """The bytes that are there, up to `size`, at least one before the file's end; None after `seconds`."""
    if not _is_ready(file, seconds):
        return None
    pieces = [file.read(size) if _descriptor(file) is None else _read_some(file, size)]
    while pieces[-1] and (size := size - len(pieces[-1])) > 0 and _is_ready(file, 0):
        pieces.append(_read_some(file, size))
    return b"".join(pieces)


def _read_some(file: BinaryIO, size: int) -> bytes:
    """The bytes of one read."""
    return file.read1(size) if isinstance(file, io.BufferedReader) else file.read(size)


def _descriptor(file: BinaryIO) -> int | None:
    try:
        return file.fileno()
    except io.UnsupportedOperation:
        return None


def _is_ready(file: BinaryIO, seconds: float | None) -> bool:
    number = _descriptor(file)
    return number is None or is_readable(number, seconds)


def is_readable(descriptor: int, seconds: float | None) -> bool:
    """True if a read would not wait, now or within so many seconds; None waits for as long as it takes."""
    # not by `select`, which refuses descriptors above 1023
    ready = select.poll()
    ready.register(descriptor, select.POLLIN)
    return bool(ready.poll(None if seconds is None else 1000 * seconds))


STANDARD_INPUT = "-"
#: The ends of the names of files that are decompressed.
COMPRESSED = (".gz", ".bz2", ".zst", ".lz4")


class Format(str, Enum):
    """The format of the input."""

    TEXT = "text"
    JSONL = "jsonl"
    CSV = "csv"
    PARQUET = "parquet"


class FilePart(NamedTuple):
    """A part of the input, and how many bytes of the input it was."""

    parsed: Parsed
    size: int


#: The parts of an input. None says that nothing came for a while.
Parts = Iterator[FilePart | None]


@dataclass(slots=True)
class Input:
    """The way to read the input, and how far it was."""

    format: Format
    fields: Fields
    key_separator: str | None = None
    missed: MissedFields = field(init=False)
    _csv: CsvRows | None = None

    def __post_init__(self) -> None:
        self.missed = MissedFields(self.fields)

    def check(self) -> None:
        """Raise InvalidConfigError for options that the format does not have."""
        if self.key_separator is not None and (self.format is not Format.TEXT or not self.key_separator):
            raise InvalidConfigError("--key-separator needs at least one character, and --format text")
        if self.format is Format.TEXT and self.fields.named:
            raise InvalidConfigError("a line of text has no fields: give --format jsonl, csv or parquet")

    def parts(self, path: str, wait: Callable[[], float | None]) -> Parts:
        """The parts of a file or of standard input. Raises OSError, InvalidRecordError for fields it lacks."""
        if self.format is Format.PARQUET:
            return _tables(path, self.fields)
        return _lines(path, self._parser(), wait)

    def rest(self) -> FilePart | None:
        """The last part of a file, where lines wait for those behind them; None if they never do."""
        return None if self._csv is None else FilePart(self._csv.rest(), 0)

    def _parser(self) -> LineFormat:
        if self.format is Format.CSV:
            self._csv = CsvRows(self.fields)
            return self._csv.parse
        if self.format is Format.JSONL:
            named = self.fields.named
            return json_fields(self.fields, self.missed) if named else jsonl_format(self.fields.timestamp_unit)
        return text_format(self.key_separator)


def size_of(paths: list[str]) -> int | None:
    """The bytes of the files; None if one of them is a stream, which has no size. Raises OSError."""
    sizes = [None if path == STANDARD_INPUT else os.stat(path) for path in paths]
    files = [status for status in sizes if status is not None and stat.S_ISREG(status.st_mode)]
    return sum(status.st_size for status in files) if len(files) == len(paths) else None


def _lines(path: str, parse: LineFormat, wait: Callable[[], float | None]) -> Parts:
    lines = 0
    with _opened(path) as file:
        for block in blocks(file, wait=wait):
            if block is None:
                yield None
                continue
            yield FilePart(_parsed(parse, block, lines, path), len(block) + 1)
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
    elif path.endswith(COMPRESSED):
        try:
            with pa.input_stream(path) as file:
                yield file
        except (OSError, pa.ArrowException) as error:
            # one of the system has a number, and one of what was read is a ValueError
            if isinstance(error, ValueError) or getattr(error, "errno", None) is not None:
                raise
            raise InvalidRecordError(f"the file cannot be decompressed: {error}", file=path) from None
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
            rows = 0
            columns = {name: name for name in ("partition", "timestamp", "key", "value", "headers") if name in names}
            columns |= fields.named
            if "value" not in columns:
                raise InvalidRecordError(f"no column is the value: name one by --value; there are {', '.join(names)}")
            for batch in file.iter_batches(columns=sorted({*columns.values()})):
                arrays = {name: batch.column(field) for name, field in columns.items()}
                if "timestamp" in arrays:
                    arrays["timestamp"] = scaled(arrays["timestamp"], fields.timestamp_unit, rows)
                table, rows = pa.table(arrays), rows + batch.num_rows
                yield FilePart(Parsed(table), table.nbytes)
    except pa.ArrowInvalid as error:
        raise InvalidRecordError(f"this is no Parquet file: {error}", file=path) from None
    except InvalidRecordError as error:
        error.details.setdefault("file", path)
        raise


# ---
# Appends the input: files in one commit or none, a stream in commits by time and size.


#: A stream is committed when it has so many bytes, whatever the time: then its segments have a good size.
COMMIT_BYTES = 256 << 20


@dataclass(slots=True)
class AppendedInput:
    """The appended records: the last version, and by partition the first offset and the end of the last commit.

    `early_ms` is a time before 1990 of a record, if any has such a time.
    """

    version: int | None = None
    records: int = 0
    offsets: dict[int, tuple[int, int]] = field(default_factory=dict)
    expired: int = 0
    early_ms: int | None = None


class Appending:
    """Takes records and commits them: when `seconds` have passed since the first, or at its end if that is None.

    A `with` block commits its records if it ends well, and also if it raises and the input is a stream.
    """

    def __init__(
        self,
        topic: Topic,
        partition: int | None,
        compression: str | None,
        seconds: float | None,
        clock: Callable[[], float],
    ) -> None:
        self._topic, self._partition, self._compression = topic, partition, compression
        self._seconds, self._clock = seconds, clock
        self._transaction: Transaction | None = None
        self._bytes, self._due = 0, 0.0
        self.appended = AppendedInput()

    def wait(self) -> float | None:
        """The seconds until the next commit, or None if nothing waits for one."""
        if self._seconds is None or self._transaction is None:
            return None
        return max(0.0, self._due - self._clock())

    def append(self, records: pa.Table) -> int:
        """Take records; returns how many."""
        if records.num_rows == 0:
            return 0
        if self._transaction is None:
            self._transaction, self._bytes = self._topic.transaction(compression=self._compression), 0
            self._due = self._clock() + (self._seconds or 0)
        self._bytes += records.nbytes
        try:
            return self._transaction.append(records, self._partition)
        except BaseException:
            # it ended itself, so the records that waited for the commit are not appended
            self._transaction = None
            raise

    def commit_if_due(self) -> None:
        """Commit the waiting records if it is time, or if they are many."""
        if self._seconds is not None and (self.wait() == 0 or self._bytes >= COMMIT_BYTES):
            self.commit()

    def commit(self) -> None:
        """Commit the waiting records."""
        if self._transaction is None:
            return
        transaction, self._transaction = self._transaction, None
        result, self._bytes = transaction.commit(), 0
        self.appended.version = result.version
        self.appended.records += result.record_count
        self.appended.expired += result.expired
        if self.appended.early_ms is None:
            self.appended.early_ms = result.early_ms
        for number, (first, end) in result.offsets.items():
            self.appended.offsets[number] = self.appended.offsets.get(number, (first, end))[0], end

    def abort(self) -> None:
        """Drop the waiting records."""
        if self._transaction is not None:
            self._transaction.abort()
        self._transaction = None

    def __enter__(self) -> Appending:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if kind is None or (self._seconds is not None and issubclass(kind, InvalidRecordError)):
            self.commit()
        else:
            self.abort()
        if isinstance(error, DistlogError):
            error.details["appended"] = self.appended.records
