"""Finds a batch by its offset, and the first few wanted records in it, without reading what follows.

Only batches of format 2 are walked. Errors are not described: a reader of the whole file does that.
"""

from __future__ import annotations

import numpy as np

from distlog.core.config import MAX_LONG
from distlog.core.kernels.batch_scan import HEADER_SIZE, LOG_OVERHEAD, read_int
from distlog.core.kernels.native.jit import fill_kernel, inlined
from distlog.core.kernels.record_scan import NOT_APPEND_TIME, OK, read_record
from distlog.core.kernels.varint import read_varint, read_varlong

#: Neither a position nor a count: the bytes are not as they should be, or not of format 2.
UNSURE = -1

#: A record that was found: where its bytes are (a size below 0 means null), and where its number of headers is.
FOUND = np.dtype(
    [
        ("offset_delta", np.int64),
        ("timestamp", np.int64),
        ("key_at", np.int64),
        ("key_size", np.int64),
        ("value_at", np.int64),
        ("value_size", np.int64),
        ("headers_at", np.int64),
        ("headers", np.int64),
    ]
)

#: The bytes of one header of a record.
FOUND_HEADER = np.dtype(
    [("key_at", np.int64), ("key_size", np.int64), ("value_at", np.int64), ("value_size", np.int64)]
)


@inlined
def _size_of(data: np.ndarray, position: int, end: int) -> int:
    """The size of the batch at `position`, or 0 if no whole batch of format 2 is there before `end`."""
    if end - position < HEADER_SIZE or read_int(data, position + 16, 1) != 2:
        return 0
    size = LOG_OVERHEAD + read_int(data, position + 8, 4)
    return size if HEADER_SIZE <= size <= end - position else 0


@fill_kernel
def find_batch(
    data: np.ndarray, position: int, end: int, following: int, dense: bool, end_offset: int, offset: int
) -> int:
    """The position of the first batch, from `position` on, that does not end below `offset`; `end` if there is none.

    All offsets are stored offsets. Returns UNSURE when the skipped batches, the found one and the beginning of the
    next do not follow each other as in `first_misplaced`. They go from the offset `following`, or, if that is
    -1, from an offset not above `offset`, to `end_offset`, where the file ends.
    """
    while position < end:
        size = _size_of(data, position, end)
        if size == 0:
            return UNSURE
        base_offset, delta = read_int(data, position, 8), read_int(data, position + 23, 4)
        if base_offset < 0 or delta < 0 or base_offset > MAX_LONG - delta:
            return UNSURE
        if following < 0:
            if base_offset > offset:
                return UNSURE
        elif base_offset < following or (dense and base_offset != following):
            return UNSURE
        last = base_offset + delta
        closes = position + size == end
        if last >= end_offset or (last == end_offset - 1 and not closes):
            return UNSURE
        if closes:
            if dense and last != end_offset - 1:
                return UNSURE
        elif last >= offset:
            if _size_of(data, position + size, end) == 0:
                return UNSURE
            behind = read_int(data, position + size, 8)
            if behind <= last or (dense and behind != last + 1):
                return UNSURE
        if last >= offset:
            return position
        position += size
        following = last + 1
    return end


@fill_kernel
def find_records(
    data: np.ndarray,
    position: int,
    end: int,
    count: int,
    last_offset_delta: int,
    base_timestamp: int,
    append_time: int,
    start_delta: int,
    oldest: int,
    found: np.ndarray,
) -> int:
    """Fill `found` (FOUND rows) with the first wanted of the `count` records in [position, end); returns how many.

    Wanted are records with an offset delta from `start_delta` on and a timestamp not below `oldest`. Nothing is read
    after the last record that `found` has room for. Returns UNSURE when a record is malformed.
    """
    previous = -1
    records = 0
    for _ in range(count):
        size, body = read_varint(data, position, end)
        timestamp_delta, at = read_varlong(data, body + 1, end)
        delta, at = read_varint(data, at, end)
        if at > body + size or delta <= previous or delta > last_offset_delta:
            return UNSURE
        previous = delta
        timestamp = base_timestamp + timestamp_delta if append_time == NOT_APPEND_TIME else append_time
        if delta >= start_delta and timestamp >= oldest:
            status, record = read_record(data, position, end, True)
            if status != OK:
                return UNSURE
            row = found[records]
            row["offset_delta"] = delta
            row["timestamp"] = timestamp
            row["key_at"], row["key_size"] = record.key_at, record.key_size
            row["value_at"], row["value_size"] = record.value_at, record.value_size
            row["headers_at"], row["headers"] = record.headers_at, record.headers
            records += 1
            if records == found.size:
                return records
        position = body + size
    return records if position == end else UNSURE


@fill_kernel
def find_headers(data: np.ndarray, position: int, found: np.ndarray) -> None:
    """Fill `found` (FOUND_HEADER rows) with the headers whose number is at `position`; a scan has checked them."""
    _, position = read_varint(data, position, data.size)
    for number in range(found.size):
        row = found[number]
        size, position = read_varint(data, position, data.size)
        row["key_at"], row["key_size"] = position, size
        size, position = read_varint(data, position + size, data.size)
        row["value_at"], row["value_size"] = position, size
        position += max(size, 0)
