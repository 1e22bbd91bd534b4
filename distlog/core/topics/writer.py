"""Record by record: a buffer that becomes a commit by size, by time, on flush, on close, or at exit at last."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING

from distlog.core.config import whole_number
from distlog.core.errors import InvalidConfigError, InvalidRecordError
from distlog.core.locks import ProcessLock
from distlog.core.segments.segment_writer import codec_of
from distlog.core.topics.append import AppendResult
from distlog.core.topics.given_up import tell_given_up
from distlog.core.topics.left_open import left_open
from distlog.core.topics.records import check_row
from distlog.core.topics.rows import Header, Row, batch_of, columns_of, row_of

if TYPE_CHECKING:
    from distlog.core.topics.topic import Topic

#: Bytes of records, as they are at most in a batch, that are committed without waiting longer.
BUFFER_BYTES = 16 << 20

_left_open = left_open()


class Writer:
    """Buffers records and appends them in one commit when `buffer_bytes` are there, or after `linger_ms`.

    A record is durable when `flush` or `close` has returned, not before. A `with` block closes the writer, and so
    commits what it took, however the block ends, as Kafka's producer does. A record that does not fit is refused by
    `append`, and the others stay. After an error of a commit, which in the background is raised by the next call,
    every call raises it again, and what was to be committed is given up: the error says how many records, of which
    partitions. Safe to share between threads.

    What a writer that was not closed still holds, though nobody refers to it, is committed at exit, with a
    ResourceWarning, and an error is logged. A process that is killed commits nothing. In a forked child it is empty.
    """

    def __init__(
        self, topic: Topic, *, linger_ms: int, buffer_bytes: int = BUFFER_BYTES, compression: str | None = None
    ) -> None:
        codec_of(topic.config, compression)
        if whole_number("linger_ms", linger_ms) < 0 or buffer_bytes < 1:
            raise InvalidConfigError("linger_ms must not be negative, buffer_bytes must be positive")
        self._topic, self._linger_s, self._buffer_bytes = topic, linger_ms / 1000, buffer_bytes
        self._compression = compression
        self._lock = ProcessLock()
        self.result = AppendResult(None)
        self.begin_empty()

    def begin_empty(self) -> None:
        """Hold nothing, as after a fork: the parent has the records, their timer and their error."""
        self._rows: list[Row] = []
        self._bytes = 0
        self._timer: threading.Timer | None = None
        self._error: BaseException | None = None
        self._closed = False

    def append(
        self,
        value: bytes | str | None,
        *,
        key: bytes | str | None = None,
        timestamp: int | None = None,
        headers: Iterable[Header] | None = None,
        partition: int | None = None,
    ) -> None:
        """Take one record; a missing timestamp (ms) is now. InvalidRecordError tells what does not fit.

        With a compressed topic, too, a record must fit `max.message.bytes` uncompressed. The commit asks the topic's
        rules again: a config that was changed meanwhile, or a record that grew too old, fails it.
        """
        now_ms = self._topic.clock()
        row = row_of(value, key, now_ms if timestamp is None else timestamp, headers, partition)
        size = row.max_bytes
        self._check(row, size, now_ms)
        with self._lock:
            self._check_open()
            if not self._rows:
                _left_open.add(self)
            self._rows.append(row)
            self._bytes += size
            if self._bytes >= self._buffer_bytes:
                self.flush()
            elif self._timer is None:
                self._start_timer()

    def _check(self, row: Row, size: int, now_ms: int) -> None:
        config = self._topic.config
        check_row(row, size, config, now_ms, codec_of(config, self._compression))
        partitions = self._topic.partitions
        if row.partition is not None and row.partition >= partitions:
            raise InvalidRecordError(f"the topic has partitions 0 to {partitions - 1}", partition=row.partition)

    def flush(self) -> AppendResult:
        """Commit what is buffered; the outcome of the last commit, also kept as `result`. Raises what it raises."""
        with self._lock:
            self._check_open()
            self._commit()
            _left_open.discard(self)
            if self._error is not None:
                raise self._error
            return self.result

    def _commit(self) -> None:
        """Append what is buffered; an error is kept."""
        self._stop_timer()
        rows, self._rows, self._bytes = self._rows, [], 0
        if rows:
            try:
                self.result = self._topic.append(batch_of(columns_of(rows)), compression=self._compression)
            except BaseException as error:
                tell_given_up(error, rows, self._topic.partitions)
                self._error = error

    def close(self) -> None:
        """Flush, and take no more records. Raises what the last commit raises."""
        with self._lock:
            if not self._closed:
                try:
                    self.flush()
                finally:
                    self._closed = True

    def _check_open(self) -> None:
        if self._error is not None:
            _left_open.discard(self)
            raise self._error
        if self._closed:
            raise InvalidRecordError("the writer is closed; open another")

    def _start_timer(self) -> None:
        self._timer = threading.Timer(self._linger_s, self._flush_in_background)
        self._timer.daemon = True
        try:
            self._timer.start()
        except RuntimeError:  # there can be no more threads, or the interpreter is ending
            self.flush()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _flush_in_background(self) -> None:
        with self._lock:
            if not self._closed and self._error is None:
                self._commit()
                if self._error is None:
                    _left_open.discard(self)

    def commit_at_exit(self) -> tuple[int, BaseException | None]:
        """Commit what nobody will flush any more: how many records there were, and the error that nobody was told."""
        with self._lock:
            count = len(self._rows)
            if self._error is None:
                self._commit()
            _left_open.discard(self)
            return count, self._error

    @property
    def is_closed(self) -> bool:
        """Whether it takes no more records."""
        return self._closed

    def __repr__(self) -> str:
        return f"Writer({self._topic.url!r})"

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
