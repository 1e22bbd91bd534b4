"""Walks the batches of a broker's log file: by their headers alone, or with their checksums compared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from distlog.core.batches.record_batch import LOG_OVERHEAD, check_crcs, read_headers
from distlog.core.errors import CorruptRecordError
from distlog.core.kafka_directory.source_log import RemoteLog, SourceLog

#: What is taken at once: of a map of which only headers are looked at, and of what is read.
_WINDOW_BYTES, _READ_BYTES = 64 << 20, 4 << 20


class Batches(NamedTuple):
    """Whole batches from `position` of the file on: their bytes, and BATCH rows with positions in those bytes."""

    position: int
    data: memoryview
    rows: npt.NDArray[Any]


class LogWalk:
    """Goes over the batches of the first `size` bytes of `log`, up to the first that is damaged or not whole.

    It begins at byte `start`. With `checked`, each checksum is compared; then every byte is read. Afterwards `end` is
    where the walk stopped, and `damage` says what was wrong there, None if nothing was. `file` is for errors.
    """

    def __init__(self, log: SourceLog, *, checked: bool, file: str, start: int = 0, size: int | None = None) -> None:
        self._log, self._checked, self._file = log, checked, file
        # a log that got shorter meanwhile ends where it ends
        self._size = len(log) if size is None else min(size, len(log))
        self.end, self._is_over = start, False
        self.damage: CorruptRecordError | None = None

    def __iter__(self) -> Iterator[Batches]:
        window = _READ_BYTES if isinstance(self._log, RemoteLog) or self._checked else _WINDOW_BYTES
        size = window
        while not self._is_over and self.damage is None and self.end < self._size:
            data = self._log[self.end : min(self.end + size, self._size)]
            rows = self._sound(data)
            taken = int(rows["size"].sum())
            if taken:
                start, size = self.end, window
                self.end += taken
                yield Batches(start, data[:taken], rows)
            elif self.damage is None:
                size = self._larger(data, size)

    def stop(self, found: Batches, row: int, reason: str | None) -> Batches:
        """End the walk before a row of what it yielded last; returns the batches before that row.

        A `reason` is the damage; None is for a row with which nothing is wrong.
        """
        position = int(found.rows["position"][row])
        self.end, self._is_over = found.position + position, True
        if reason is not None:
            self.damage = self._damage(reason, self.end)
        return Batches(found.position, found.data[:position], found.rows[:row])

    def _sound(self, data: memoryview) -> npt.NDArray[Any]:
        try:
            rows = read_headers(data, file=self._file, file_position=self.end)
        except CorruptRecordError as error:
            self.damage = error
            rows = read_headers(data, end=error.details["position"] - self.end)
        if not self._checked:
            return rows
        try:
            check_crcs(data, rows, file=self._file, file_position=self.end)
        except CorruptRecordError as error:
            self.damage = error
            rows = rows[: np.searchsorted(rows["position"], error.details["position"] - self.end)]
        return rows

    def _larger(self, data: memoryview, size: int) -> int:
        """The size of a window that holds the next batch; ends the walk if the file ends within that batch."""
        left = self._size - self.end
        wanted = LOG_OVERHEAD + int.from_bytes(data[8:LOG_OVERHEAD], "big") if left >= LOG_OVERHEAD else left + 1
        if wanted > left or len(data) == left:
            self.damage = self._damage("the file ends within a batch", self.end)
        return max(wanted, size + 1)

    def _damage(self, reason: str, position: int) -> CorruptRecordError:
        return CorruptRecordError(reason, file=self._file, position=position)
