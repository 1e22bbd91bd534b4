"""Folds the next batches into a segment's numbers: gives the new numbers, and the index entries to write.

The rule for entries is that of `IndexBuilder`, so an index that grew in place equals the one that a rebuild makes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from distlog.core.batches.record_batch import CRC_START
from distlog.core.buffers import byte_array
from distlog.core.config import MAX_INT
from distlog.core.indexes.offset_index import encode_offset_entries
from distlog.core.indexes.time_index import encode_time_entries
from distlog.core.indexes.transaction_index import AbortedTransaction, encode_transactions
from distlog.core.kernels.crc import crc_of_batches
from distlog.core.kernels.index_build import LAST_ENTRY_TIMESTAMP, MAX_OFFSET, MAX_TIMESTAMP
from distlog.core.kernels.segment_fold import NOT_NEXT, NOT_WHOLE, OK, POSITION, fold_batches
from distlog.core.log.segment_state import Numbers, places

#: From this size on, joining the checksums of the batches is faster than the checksum of their bytes.
_LARGE_BYTES = 16 << 10

Longs = npt.NDArray[np.int64]

#: Stands for values that only the headers tell.
BY_HEADERS: Longs = np.empty(0, np.int64)

OFFSET_INDEX, TIME_INDEX, TXN_INDEX = places(("offset_index_bytes", "time_index_bytes", "txn_index_bytes"))
_CRC, _CREATED = places(("crc32c", "created_ms"))


class Folded(NamedTuple):
    """The numbers after some batches, and the bytes that these add to the offset, time and transaction index."""

    numbers: Numbers
    entries: tuple[bytes, bytes, bytes]


_NO_ENTRIES = (b"", b"", b"")


def fold(
    numbers: Numbers,
    data: memoryview,
    rows: npt.NDArray[Any],
    interval: int,
    newest_offsets: Longs = BY_HEADERS,
    min_timestamps: Longs = BY_HEADERS,
    aborted: Sequence[AbortedTransaction] = (),
) -> Folded:
    """Fold `rows` (BATCH rows), the headers of all of `data`, into `numbers`, which stay as they are.

    The checksums in batches of format 2 must be right. `aborted` are the transactions whose abort markers are among the batches. Raises ValueError if the rows do not fit
    the data, or their offsets are not above those in the segment, and OverflowError if an offset or a position
    is above the 2^31-1 that indexes can hold.
    """
    if not {len(newest_offsets), len(min_timestamps)} <= {0, len(rows)}:
        raise ValueError("what is told of the batches must be told of each of them")
    after, spare = numbers.copy(), np.empty((2, len(rows), 2), np.int64)
    size = data.nbytes
    status, offsets, times = fold_batches(
        after, rows, size, newest_offsets, min_timestamps, interval, spare[0], spare[1]
    )
    if status != OK:
        raise _refused(status, rows, offsets)
    if after[POSITION] > MAX_INT:
        raise OverflowError(f"a log file must not have more than {MAX_INT} bytes: roll the segment")
    after[_CRC] = _checksum(int(after[_CRC]), data, rows)
    if not (offsets or times or aborted):
        return Folded(after, _NO_ENTRIES)
    entries = (
        encode_offset_entries(spare[0, :offsets, 0], spare[0, :offsets, 1]) if offsets else b"",
        encode_time_entries(spare[1, :times, 0], spare[1, :times, 1]) if times else b"",
        encode_transactions(aborted) if aborted else b"",
    )
    return _with_entries(after, entries)


def _checksum(before: int, data: memoryview, rows: npt.NDArray[Any]) -> int:
    # joined from those of the batches, which are right: it costs a few headers, and not all the bytes again
    if data.nbytes < _LARGE_BYTES or (rows["magic"] != 2).any():
        return crc32c(data, before)
    return int(crc_of_batches(before, byte_array(data), rows, CRC_START))


def fold_seal(numbers: Numbers) -> Folded:
    """Add what a seal adds: the time entry of the largest timestamp, if it has none."""
    if numbers[MAX_TIMESTAMP] <= numbers[LAST_ENTRY_TIMESTAMP]:
        return Folded(numbers, _NO_ENTRIES)
    after = numbers.copy()
    after[LAST_ENTRY_TIMESTAMP] = after[MAX_TIMESTAMP]
    entry = encode_time_entries(after[[MAX_TIMESTAMP]], after[[MAX_OFFSET]])
    return _with_entries(after, (b"", entry, b""))


def _with_entries(numbers: Numbers, entries: tuple[bytes, bytes, bytes]) -> Folded:
    for place, data in zip((OFFSET_INDEX, TIME_INDEX, TXN_INDEX), entries, strict=True):
        # the checksum of an index stands behind its size
        numbers[place + 1] = crc32c(data, int(numbers[place + 1]))
        numbers[place] += len(data)
    return Folded(numbers, entries)


def _refused(status: int, rows: npt.NDArray[Any], row: int) -> Exception:
    if status == NOT_WHOLE:
        return ValueError("the batches are not back to back in the bytes that are to be appended, or not all of them")
    first = int(rows["base_offset"][row])
    last = first + int(rows["last_offset_delta"][row])
    if status == NOT_NEXT:
        return ValueError(f"offset {first} is not above the last one in the segment")
    return OverflowError(
        f"offsets {first} to {last} are not in the {MAX_INT} above the segment's base offset: roll it"
    )
