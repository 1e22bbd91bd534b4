"""The arguments and results of kernels that write and read records: numba supports named tuples, but no classes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class ByteColumn(NamedTuple):
    """Byte strings: string i is data[offsets[i]:offsets[i + 1]]; offsets are Arrow's, int32 or int64.

    `valid` of size 0 means that none is null.
    """

    offsets: np.ndarray
    valid: np.ndarray
    data: np.ndarray


class HeaderColumn(NamedTuple):
    """Headers: record i has the items [firsts[i], ends[i]) of `key` and `value`."""

    firsts: np.ndarray
    ends: np.ndarray
    key: ByteColumn
    value: ByteColumn


#: Timestamps, keys, values, and headers or None if no record has any: numba compiles a kernel of its own for None.
Columns = tuple[np.ndarray, ByteColumn, ByteColumn, HeaderColumn | None]


class BatchLimits(NamedTuple):
    """The most bytes of records in a batch of several records, and in any batch; the ms in its time window."""

    limit: int
    largest: int
    window: int


class Slices(NamedTuple):
    """Byte strings in a buffer, one slot each; `offsets` has one item more, and its first is 0.

    `offsets` (Arrow's) are as if the strings stood back to back; `valid` is False for null. The strings are either
    copied to `copies`, which has room for all bytes of the sections, or located at `positions` of the buffer.
    """

    offsets: np.ndarray
    valid: np.ndarray
    copies: np.ndarray
    positions: np.ndarray


class HeaderPositions(NamedTuple):
    """The `records` that have headers, and the `positions` of their numbers; the record count follows the last."""

    records: np.ndarray
    positions: np.ndarray


class ScannedFields(NamedTuple):
    """The fields of a record and their positions. A negative size means null; the header count is at `headers_at`."""

    end: int
    offset_delta: int
    timestamp_delta: int
    key_at: int
    key_size: int
    value_at: int
    value_size: int
    headers_at: int
    headers: int


class ScanProgress(NamedTuple):
    """The state of a scan: at record `number` of the section, at `position`, after the offset delta `previous`.

    The other fields are counts of the output: records, bytes of their keys and of their values, records with headers,
    and headers of this section's records.
    """

    number: int
    position: int
    previous: int
    records: int
    key_bytes: int
    value_bytes: int
    headed: int
    section_headers: int


class TimeBounds(NamedTuple):
    """The smallest and the largest allowed timestamp (ms); -1, no timestamp, is always allowed."""

    oldest: int
    newest: int


class CheckedRecords(NamedTuple):
    """The end of a check: its status, the record at which it ended, and a summary of the records before it.

    `newest_record` is the first record with the largest timestamp. `refused` counts records that the log refuses.
    """

    status: int
    number: int
    newest_record: int
    max_timestamp: int
    min_timestamp: int
    refused: int
