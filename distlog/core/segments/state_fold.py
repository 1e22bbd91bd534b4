"""Folds the next batches into a segment's numbers: gives the new numbers, and the index entries to write.

Whoever writes a segment, at once or in place, and whoever walks over its log again folds its batches here. So they
all come to the same facts, and to the same indexes byte for byte. The rule for entries is that of `index_build`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from distlog.core.buffers import byte_array
from distlog.core.config import MAX_INT
from distlog.core.indexes.time_index import encode_time_entries
from distlog.core.indexes.transaction_index import AbortedTransaction, encode_transactions
from distlog.core.kernels.index_build import (
    LAST_ENTRY_TIMESTAMP,
    MAX_OFFSET,
    MAX_TIMESTAMP,
    STATE_SIZE,
    count_until_full,
)
from distlog.core.kernels.segment_fold import (
    BAD_OFFSET,
    BAD_POSITION,
    NOT_NEXT,
    NOT_WHOLE,
    OFFSET_ENTRY_SIZE,
    OK,
    TIME_ENTRY_SIZE,
    fold_batches,
)
from distlog.core.segments.segment_state import Numbers, places

Batches = npt.NDArray[Any]
Longs = npt.NDArray[np.int64]

#: Stands for values that only the headers tell.
BY_HEADERS: Longs = np.empty(0, np.int64)

OFFSET_INDEX, TIME_INDEX, TXN_INDEX = places(("offset_index_bytes", "time_index_bytes", "txn_index_bytes"))


class Folded(NamedTuple):
    """The numbers after some batches, and the bytes that these add to the offset, time and transaction index."""

    numbers: Numbers
    entries: tuple[bytes, bytes, bytes]


_NO_ENTRIES = (b"", b"", b"")
_COMPLAINTS = {
    NOT_WHOLE: "the batches are not back to back in their bytes, or not all of them",
    NOT_NEXT: "are not above the last one in the segment",
    BAD_OFFSET: f"are not in the {MAX_INT} above the segment's base offset: roll it",
    BAD_POSITION: f"would make a log file of more than {MAX_INT} bytes: roll the segment",
}


class UnfitBatchError(ValueError):
    """A batch cannot come next in its segment; `row` is its number among those that were to be folded."""

    def __init__(self, message: str, row: int) -> None:
        super().__init__(message)
        self.row = row


def fold(
    numbers: Numbers,
    data: Any,
    batches: Batches,
    interval: int,
    newest_offsets: Longs = BY_HEADERS,
    min_timestamps: Longs = BY_HEADERS,
    aborted: Sequence[AbortedTransaction] = (),
) -> Folded:
    """Fold `batches` (BATCH rows), which are all of `data`, into `numbers`, which stay as they are.

    The checksums in the batches must be right. `newest_offsets`, of each batch's first record with the largest
    timestamp, and `min_timestamps` are what headers may not tell. `aborted` are the transactions whose abort markers
    are among the batches. Raises UnfitBatchError if the batches do not fit the data, their offsets are not above
    those in the segment, or an offset or a position is above the 2^31-1 that indexes can hold.
    """
    count = len(batches)
    if len(newest_offsets) not in (0, count) or len(min_timestamps) not in (0, count):
        raise ValueError("what is told of the batches must be told of each of them")
    after = numbers.copy()
    spare = np.empty(OFFSET_ENTRY_SIZE * count, np.uint8), np.empty(TIME_ENTRY_SIZE * count, np.uint8)
    status, offsets, times = fold_batches(
        after, byte_array(data), batches, newest_offsets, min_timestamps, interval, *spare
    )
    if status != OK:
        raise _refused(status, batches, offsets)
    if not (offsets or times or aborted):
        return Folded(after, _NO_ENTRIES)
    entries = (
        spare[0][: OFFSET_ENTRY_SIZE * offsets].tobytes(),
        spare[1][: TIME_ENTRY_SIZE * times].tobytes(),
        encode_transactions(aborted) if aborted else b"",
    )
    return _with_entries(after, entries)


def fold_seal(numbers: Numbers) -> Folded:
    """Add what a seal adds: the time entry of the largest timestamp, if it has none."""
    if numbers[MAX_TIMESTAMP] <= numbers[LAST_ENTRY_TIMESTAMP]:
        return Folded(numbers, _NO_ENTRIES)
    after = numbers.copy()
    after[LAST_ENTRY_TIMESTAMP] = after[MAX_TIMESTAMP]
    entry = encode_time_entries(after[[MAX_TIMESTAMP]], after[[MAX_OFFSET]])
    return _with_entries(after, (b"", entry, b""))


def room(numbers: Numbers, batches: Batches, interval: int, index_bytes: int) -> int:
    """How many of the next `batches` fit before an index has `index_bytes`; a first batch always fits."""
    # one slot of the time index is for the last entry
    most = np.array([index_bytes // OFFSET_ENTRY_SIZE, index_bytes // TIME_ENTRY_SIZE - 1])
    left = most - numbers[[OFFSET_INDEX, TIME_INDEX]] // (OFFSET_ENTRY_SIZE, TIME_ENTRY_SIZE)
    if left.min() >= len(batches):
        return len(batches)
    return count_until_full(
        np.ascontiguousarray(batches["size"], np.int64),
        np.ascontiguousarray(batches["max_timestamp"], np.int64),
        interval,
        numbers[:STATE_SIZE].copy(),
        left,
    )


def _with_entries(numbers: Numbers, entries: tuple[bytes, bytes, bytes]) -> Folded:
    for place, data in zip((OFFSET_INDEX, TIME_INDEX, TXN_INDEX), entries, strict=True):
        if data:
            # the checksum of an index stands behind its size
            numbers[place + 1] = crc32c(data, int(numbers[place + 1]))
            numbers[place] += len(data)
    return Folded(numbers, entries)


def _refused(status: int, batches: Batches, row: int) -> UnfitBatchError:
    if status == NOT_WHOLE:
        return UnfitBatchError(_COMPLAINTS[status], row)
    first = int(batches["base_offset"][row])
    last = first + int(batches["last_offset_delta"][row])
    return UnfitBatchError(f"offsets {first} to {last} {_COMPLAINTS[status]}", row)
