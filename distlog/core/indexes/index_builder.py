"""Makes the entries of a segment's offset and time index from the headers of its batches.

The rule is that of Kafka's `LogSegment.append`, batch by batch. A batch gets an entry when more than
`index.interval.bytes` have passed since the last one; the first batch never does. The entry is (last offset, start
position) in the offset index, and (largest timestamp so far, last offset of its batch) in the time index. On close
the time index gets a last entry with the maximum; a slot is reserved for it. The writer and a rebuild use the same
rule, so a rebuilt index equals the written one byte for byte.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from distlog.core.config import MAX_INT
from distlog.core.indexes.offset_index import ENTRY as OFFSET_ENTRY
from distlog.core.indexes.offset_index import encode_offset_entries
from distlog.core.indexes.time_index import ENTRY as TIME_ENTRY
from distlog.core.indexes.time_index import encode_time_entries
from distlog.core.kernels.index_build import (
    LAST_ENTRY_TIMESTAMP,
    MAX_OFFSET,
    MAX_TIMESTAMP,
    STATE_SIZE,
    add_batches,
    count_until_full,
)
from distlog.core.times import NO_TIMESTAMP

Longs = npt.NDArray[np.int64]


class IndexBuilder:
    """Takes batches in file order; offsets are relative to the segment's base offset.

    `index_bytes` is the size that neither index should exceed. `room` tells how many batches fit; when no more do,
    the caller must roll.
    """

    def __init__(self, interval_bytes: int, index_bytes: int = MAX_INT) -> None:
        self._interval, self._index_bytes = interval_bytes, index_bytes
        self._counts = np.zeros(2, np.int64)
        self._state = np.zeros(STATE_SIZE, np.int64)
        self._state[[MAX_TIMESTAMP, LAST_ENTRY_TIMESTAMP]] = NO_TIMESTAMP
        self._offset_entries: list[Longs] = []
        self._time_entries: list[Longs] = []

    def room(self, batches: npt.NDArray[Any]) -> int:
        """How many of the next `batches` fit before an index is full; a first batch always fits."""
        left = np.array([self._index_bytes // OFFSET_ENTRY.itemsize, self._index_bytes // TIME_ENTRY.itemsize - 1])
        left -= self._counts
        if left.min() >= len(batches):
            return len(batches)
        return count_until_full(
            np.ascontiguousarray(batches["size"], np.int64),
            np.ascontiguousarray(batches["max_timestamp"], np.int64),
            self._interval,
            self._state.copy(),
            left,
        )

    def add(self, batches: npt.NDArray[Any], base_offsets: Longs, position: int) -> None:
        """Add `batches` (BATCH rows) with `base_offsets`, which lie back to back from `position` in the log file."""
        offset_entries, time_entries = np.empty((2, len(batches), 2), np.int64)
        offset_count, time_count = add_batches(
            np.ascontiguousarray(batches["size"], np.int64),
            base_offsets + batches["last_offset_delta"],
            np.ascontiguousarray(batches["max_timestamp"], np.int64),
            position,
            self._interval,
            self._state,
            offset_entries,
            time_entries,
        )
        self._counts += offset_count, time_count
        self._offset_entries.append(offset_entries[:offset_count].copy())
        self._time_entries.append(time_entries[:time_count].copy())

    def finish(self) -> dict[str, bytes]:
        """The bytes of the index files by suffix; empty for an index without entries."""
        if self._state[MAX_TIMESTAMP] > self._state[LAST_ENTRY_TIMESTAMP]:
            self._time_entries.append(self._state[[MAX_TIMESTAMP, MAX_OFFSET]].reshape(1, 2))
        return {
            ".index": encode_offset_entries(*_columns(self._offset_entries)),
            ".timeindex": encode_time_entries(*_columns(self._time_entries)),
        }


def _columns(parts: list[Longs]) -> tuple[Longs, Longs]:
    entries = np.concatenate([np.empty((0, 2), np.int64), *parts])
    return entries[:, 0], entries[:, 1]
