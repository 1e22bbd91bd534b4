"""Record by record: a buffer that becomes a commit by size, by time, on flush and on close."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from distlog.core.append import AppendResult
from distlog.core.errors import InvalidRecordError

if TYPE_CHECKING:
    from distlog.core.topic import Topic

#: Bytes of keys and values, with what each record costs on disk, that are committed without waiting longer.
BUFFER_BYTES = 16 << 20
_RECORD_OVERHEAD = 32


class Writer:
    """Buffers records and appends them in one commit when `buffer_bytes` are there, or after `linger_ms`.

    A record is durable when `flush` or `close` has returned, not before. An error of a commit that ran in the
    background is raised by the next call; after one the writer takes no more records. Safe to share between threads.
    """

    def __init__(self, topic: Topic, *, linger_ms: int, buffer_bytes: int = BUFFER_BYTES) -> None:
        if linger_ms < 0 or buffer_bytes < 1:
            raise ValueError("linger_ms must not be negative, buffer_bytes must be positive")
        self._topic, self._linger_s, self._buffer_bytes = topic, linger_ms / 1000, buffer_bytes
        self._rows: list[dict[str, Any]] = []
        self._bytes = 0
        self._lock = threading.RLock()
        self._timer: threading.Timer | None = None
        self._error: BaseException | None = None
        self._closed = False
        self.result = AppendResult(None)

    def append(
        self,
        value: bytes | str | None,
        *,
        key: bytes | str | None = None,
        timestamp: int | None = None,
        headers: Iterable[tuple[str, bytes | None]] | None = None,
        partition: int | None = None,
    ) -> None:
        """Take one record; a missing timestamp (ms) is now. InvalidRecordError tells what does not fit."""
        key, value = _bytes("key", key), _bytes("value", value)
        row = {
            "partition": partition,
            "timestamp": self._topic.clock() if timestamp is None else timestamp,
            "key": key,
            "value": value,
            "headers": None if headers is None else [_header(*header) for header in headers],
        }
        self._topic.check_partition(partition or 0)
        with self._lock:
            self._check_open()
            self._rows.append(row)
            self._bytes += len(key or b"") + len(value or b"") + _RECORD_OVERHEAD
            if self._bytes >= self._buffer_bytes:
                self.flush()
            elif self._timer is None:
                self._start_timer()

    def flush(self) -> AppendResult:
        """Commit what is buffered; the outcome, also kept as `result`. Raises what the commit raises."""
        with self._lock:
            self._check_open()
            self._stop_timer()
            rows, self._rows, self._bytes = self._rows, [], 0
            if rows:
                try:
                    self.result = self._topic.append(rows)
                except BaseException as error:
                    self._error = error
                    raise
            return self.result

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
            raise self._error
        if self._closed:
            raise ValueError("the writer is closed")

    def _start_timer(self) -> None:
        self._timer = threading.Timer(self._linger_s, self._flush_in_background)
        self._timer.daemon = True
        self._timer.start()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _flush_in_background(self) -> None:
        with self._lock:
            if not self._closed and self._error is None:
                # flush keeps the error for the caller's next call
                with contextlib.suppress(Exception):
                    self.flush()

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _header(key: str, value: bytes | str | None) -> tuple[str, bytes | None]:
    if not isinstance(key, str):
        raise InvalidRecordError("a header's key must be text", type=type(key).__name__)
    return key, _bytes("a header's value", value)


def _bytes(name: str, value: bytes | str | None) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    raise InvalidRecordError(f"{name} must be bytes, text or None", type=type(value).__name__)
