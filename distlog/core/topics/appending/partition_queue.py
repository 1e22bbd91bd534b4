"""Queues the rows of one partition for its segment writer: any thread may write them, in their order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from types import TracebackType

import numpy as np
import numpy.typing as npt

from distlog.core.batches.record_input import RecordInput
from distlog.core.commits.format.segment_info import SegmentInfo
from distlog.core.errors import StorageError
from distlog.core.segments.segment_writer import SegmentWriter


class PartitionQueue:
    """A SegmentWriter for many threads: one at a time writes the rows, first the ones that were put first."""

    def __init__(self, writer: SegmentWriter) -> None:
        self._writer, self._lock = writer, threading.Lock()
        self._waiting = deque[tuple[RecordInput, npt.NDArray[np.int64]]]()
        self._put = self._written = 0
        self._is_aborted = False
        self._error: BaseException | None = None
        self._trace: TracebackType | None = None

    def put(self, source: RecordInput, rows: npt.NDArray[np.int64]) -> Callable[[], None]:
        """Queue the `rows` of `source`; returns a call that writes them, and all rows that were put before.

        The call raises the writer's error, and so do the calls for all rows behind; then only `abort` may be called.
        """
        self._waiting.append((source, rows))
        self._put += 1
        return partial(self._write_up_to, self._put)

    def _write_up_to(self, count: int) -> None:
        try:
            with self._lock:
                while self._written < count:
                    self._write_next()
        finally:
            if self._is_aborted:
                self.abort()

    def _write_next(self) -> None:
        if self._is_aborted:
            raise StorageError("cannot write: the append was aborted")
        if self._error is not None:
            # with its first traceback: each raise adds to it, and so would keep the caller's objects alive
            raise self._error.with_traceback(self._trace)
        try:
            self._writer.append(*self._waiting[0])
        except BaseException as error:
            self._error, self._trace = error, error.__traceback__
            raise
        self._waiting.popleft()
        self._written += 1

    def close(self) -> list[SegmentInfo]:
        """See `SegmentWriter.close`; all rows that were put must be written."""
        return self._writer.close()

    @property
    def is_uploading(self) -> bool:
        """See `SegmentWriter`."""
        return self._writer.is_uploading

    def abort(self) -> None:
        """Abort the segments, now or when the thread that writes them has finished its rows."""
        self._is_aborted = True
        if self._lock.acquire(blocking=False):
            try:
                self._writer.abort()
            finally:
                self._lock.release()
