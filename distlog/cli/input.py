"""The input of `distlog append`: lines from files or a stream, or Parquet files."""

from __future__ import annotations

import io
import itertools
import os
import select
import signal
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from types import FrameType
from typing import Any, BinaryIO, TypeVar

from distlog.core.errors import DistlogError, InvalidConfigError, InvalidRecordError
from distlog.core.files.file_reader import (
    Block,
    FileReader,
    FileSplit,
    InputPart,
    LineReading,
    RunReading,
    files_without_records,
    warning_of_no_records,
)
from distlog.core.files.input_files import HEAD_BYTES, PARQUET, TEXT, UTF8_MARK, check_stream
from distlog.core.files.json_lines import SeenFields
from distlog.core.topic import Topic
from distlog.core.write.append import BatchId, Transaction

T = TypeVar("T")


class Interrupt:
    """A `with` block in which a first SIGINT or SIGTERM ends the input, and a second raises KeyboardInterrupt."""

    def __init__(self) -> None:
        #: The number of the first signal; 0 before.
        self.signal = 0
        # whether input is being read, so that the first signal must also raise KeyboardInterrupt to end the read
        self._is_waiting = False

    def __enter__(self) -> Interrupt:
        self._handlers = {n: signal.signal(n, self._on_signal) for n in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: Any) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        is_second = self.signal != 0
        self.signal = self.signal or number
        if is_second or self._is_waiting:
            raise KeyboardInterrupt

    def until(self, source: Iterator[T]) -> Iterator[T]:
        """Yield the items of `source` until a signal. The signal discards an unfinished item."""
        while not self.signal:
            try:
                self._is_waiting = True
                item = next(source)
                self._is_waiting = False
            except (KeyboardInterrupt, StopIteration):
                self._is_waiting = False
                return
            yield item


BLOCK_BYTES = 4 << 20


def blocks(
    file: BinaryIO, size: int = BLOCK_BYTES, wait: Callable[[], float | None] = lambda: None
) -> Iterator[bytes | None]:
    """Yield whole lines in blocks of at most about `size` bytes, and None after `wait()` seconds without input.

    `wait` is called before each read; it returns None to wait without a limit.
    """
    fragments: list[bytes] = []
    while (chunk := _read(file, size, wait())) != b"":
        if chunk is None:
            yield None
            continue
        lines, newline, fragment = chunk.rpartition(b"\n")
        if newline:
            yield b"".join([*fragments, lines])
            fragments.clear()
        if fragment:
            fragments.append(fragment)
    if fragments:
        yield b"".join(fragments)


def _read(file: BinaryIO, size: int, seconds: float | None) -> bytes | None:
    """Read available bytes, up to `size`: b"" at the end of the file, None after `seconds` without input."""
    if not _is_ready(file, seconds):
        return None
    chunks = [_read_available(file, size)]
    remaining = size - len(chunks[0])
    while chunks[-1] and remaining > 0 and _is_ready(file, 0):
        chunks.append(_read_available(file, remaining))
        remaining -= len(chunks[-1])
    return b"".join(chunks)


def _read_available(file: BinaryIO, size: int) -> bytes:
    return file.read1(size) if isinstance(file, io.BufferedReader) else file.read(size)


def _is_ready(file: BinaryIO, seconds: float | None) -> bool:
    try:
        return is_readable(file.fileno(), seconds)
    except io.UnsupportedOperation:  # a file in memory has no descriptor
        return True


def is_readable(descriptor: int, seconds: float | None) -> bool:
    """Return whether a read would not wait, now or within `seconds`; None waits without a limit."""
    # `select` would refuse descriptors above 1023
    ready = select.poll()
    ready.register(descriptor, select.POLLIN)
    return bool(ready.poll(None if seconds is None else 1000 * seconds))


STANDARD_INPUT = "-"


def is_stream(path: str) -> bool:
    """Return whether the path is standard input, a pipe or a device."""
    if path == STANDARD_INPUT:
        return True
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


class StreamReading:
    """Iterates over the records of a stream. Yields None after `wait()` seconds without input, as `blocks` does."""

    def __init__(self, reader: FileReader, path: str, fields: SeenFields, wait: Callable[[], float | None]) -> None:
        input_format = reader.options.format or TEXT
        if input_format == PARQUET:
            raise InvalidConfigError("--format parquet cannot read a stream: use a file")
        self._path, self._wait = path, wait
        self._lines = LineReading(reader, input_format, fields)

    def __iter__(self) -> Iterator[InputPart | None]:
        """Raises OSError, and InvalidRecordError for a bad line."""
        position = 0
        with nullcontext(sys.stdin.buffer) if self._path == STANDARD_INPUT else open(self._path, "rb") as file:
            for text in blocks(file, wait=self._wait):
                if text is None:
                    yield None
                    continue
                if position == 0:
                    check_stream(text[:HEAD_BYTES])
                    text = text.removeprefix(UTF8_MARK)
                yield from self._lines.block(Block(position, text))
                # `blocks` has removed the newline at the end
                position += len(text) + 1

    def remaining(self) -> Iterator[InputPart]:
        return self._lines.remaining()


class Source:
    """The inputs of a command, in order. All files are listed before the first is read."""

    def __init__(self, reader: FileReader, inputs: Sequence[str]) -> None:
        self._reader, self.seen_fields = reader, SeenFields(reader.options.fields)
        # a path is a stream; a list has the splits (parts) of the files between two streams
        self._items = list[str | list[FileSplit]]()
        for are_streams, group in itertools.groupby(inputs, is_stream):
            paths = list(group)
            self._items += paths if are_streams else [reader.splits(reader.files(paths), None)]
        self._readings = list[tuple[list[FileSplit], RunReading]]()

    @property
    def has_stream(self) -> bool:
        return any(isinstance(item, str) for item in self._items)

    @property
    def shown_size(self) -> int | None:
        """The bytes to read, for a progress bar; None if unknown."""
        splits = [split for item in self._items if not isinstance(item, str) for split in item]
        if self.has_stream or any(split.file.kind.compression for split in splits):
            return None
        return sum(split.length for split in splits)

    def batch_identity(self, app_id: str | None, batch_id: str | None) -> tuple[str, BatchId] | None:
        """Return the identity of an idempotent append. Raises InvalidConfigError if an option is missing."""
        if app_id is None and batch_id is None:
            return None
        if app_id is None or batch_id is None:
            raise InvalidConfigError("give --app-id and --batch-id together: one alone prevents no duplicates")
        if self.has_stream:
            raise InvalidConfigError("--app-id and --batch-id are for files: a stream needs many commits")
        return app_id, batch_id

    def readings(self, wait: Callable[[], float | None]) -> Iterator[StreamReading | RunReading]:
        for item in self._items:
            if isinstance(item, str):
                yield StreamReading(self._reader, item, self.seen_fields, wait)
                continue
            reading = self._reader.read(item, self.seen_fields)
            self._readings.append((item, reading))
            yield reading

    def missing_records_warning(self) -> str | None:
        names = [name for splits, reading in self._readings for name in files_without_records(splits, reading.report)]
        return warning_of_no_records(names) if names else None


#: From this size on, a stream is committed before its time, since larger segments gain nothing.
COMMIT_BYTES = 256 << 20


class RecordAppender:
    """Appends records. Commits a stream every `period_s` and at its end. Without `period_s`, commits files once."""

    def __init__(
        self,
        topic: Topic,
        compression: str | None,
        period_s: float | None,
        clock: Callable[[], float],
        batch_identity: tuple[str, BatchId] | None = None,
    ) -> None:
        self._topic, self._compression = topic, compression
        self._batch_identity: tuple[str | None, BatchId | None] = batch_identity or (None, None)
        self._period_s, self._clock = period_s, clock
        self._transaction: Transaction | None = None
        # the size of the buffered records, and the time when they must be committed
        self._bytes, self._due_s = 0, 0.0
        self.version: int | None = None
        #: The numbers of records and of skipped bad lines; whether the batch had been committed before.
        self.records, self.skipped, self.is_replayed = 0, 0, False
        #: By partition, the first offset and the end of the committed records.
        self.offsets = dict[int, tuple[int, int]]()

    def wait(self) -> float | None:
        """Return the seconds until a stream's next commit, or None without buffered records."""
        if self._period_s is None or self._transaction is None:
            return None
        return max(0.0, self._due_s - self._clock())

    def append(self, part: InputPart) -> None:
        """Buffer the records of a part. Raises InvalidRecordError with file and line for a refused record."""
        records = part.records
        self.skipped += part.skipped
        if records.num_rows == 0:
            return
        if self._transaction is None:
            self._transaction = self._topic.transaction(*self._batch_identity, compression=self._compression)
            self._bytes, self._due_s = 0, self._clock() + (self._period_s or 0)
        self._bytes += records.nbytes
        try:
            self._transaction.append(records)
        except BaseException as error:
            # the error aborted the transaction and its buffered records
            self._transaction = None
            if isinstance(error, InvalidRecordError):
                raise part.located(error) from None
            raise

    def commit_if_due(self) -> None:
        """Commit the buffered records of a stream if their time has come, or if they have COMMIT_BYTES."""
        if self._period_s is not None and (self.wait() == 0 or self._bytes >= COMMIT_BYTES):
            self.commit()

    def commit(self) -> None:
        if self._transaction is None:
            return
        transaction, self._transaction = self._transaction, None
        result = transaction.commit()
        self.version = result.version
        self.records += result.record_count
        self.is_replayed = result.replayed
        for number, (first, end) in result.offsets.items():
            first_of_all, _ = self.offsets.get(number, (first, end))
            self.offsets[number] = (first_of_all, end)

    def abort(self) -> None:
        if self._transaction is not None:
            self._transaction.abort()
        self._transaction = None

    def __enter__(self) -> RecordAppender:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        # a bad line ends a stream, but its earlier lines are committed
        if kind is None or (self._period_s is not None and issubclass(kind, InvalidRecordError)):
            self.commit()
        else:
            self.abort()
        if isinstance(error, DistlogError):
            error.details["appended"] = self.records
