"""The entries of a segment's offset and time index, from the headers of its batches alone.

The rule is that of Kafka's `LogSegment.append`, batch by batch: an entry when more than `index.interval.bytes` have
passed since the last one, never for the first batch; it is (last offset, start position) and (largest timestamp so
far, last offset of its batch); the last time index entry on close is the maximum. Writer and rebuild share it, so a
rebuilt index is the written one byte for byte.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from distlog.core.offset_index import encode_offset_entries
from distlog.core.records import NO_TIMESTAMP
from distlog.core.time_index import encode_time_entries


class IndexBuilder:
    """Takes batches in file order; offsets are relative to the segment's base offset."""

    def __init__(self, interval_bytes: int) -> None:
        self._interval = interval_bytes
        self._since_entry = 0
        self._offset_entries: list[tuple[int, int]] = []
        self._time_entries: list[tuple[int, int]] = []
        self._max_timestamp = NO_TIMESTAMP
        self._max_offset = 0

    def add(self, batches: npt.NDArray[Any], base_offsets: npt.NDArray[np.int64], position: int) -> None:
        """Take `batches` (BATCH rows) that lie at `base_offsets`, back to back from `position` of the log file."""
        last_offsets = base_offsets + batches["last_offset_delta"]
        rows = zip(last_offsets.tolist(), batches["size"].tolist(), batches["max_timestamp"].tolist(), strict=True)
        for last_offset, size, max_timestamp in rows:
            if max_timestamp > self._max_timestamp:
                self._max_timestamp, self._max_offset = max_timestamp, last_offset
            if self._since_entry > self._interval:
                self._offset_entries.append((last_offset, position))
                self._add_time_entry()
                self._since_entry = 0
            self._since_entry += size
            position += size

    def _add_time_entry(self) -> None:
        last = self._time_entries[-1][0] if self._time_entries else NO_TIMESTAMP
        if self._max_timestamp > last:
            self._time_entries.append((self._max_timestamp, self._max_offset))

    def finish(self) -> dict[str, bytes]:
        """The content of the index files by suffix; empty where there is no entry."""
        self._add_time_entry()
        return {
            ".index": encode_offset_entries(*_columns(self._offset_entries)),
            ".timeindex": encode_time_entries(*_columns(self._time_entries)),
        }


def _columns(entries: list[tuple[int, int]]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    table = np.array(entries, np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]
