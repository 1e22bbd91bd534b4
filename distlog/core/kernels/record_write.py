"""Writes records, format 2, from Arrow's arrays (Kafka's `MemoryRecordsBuilder`, `DefaultRecord`).

A record is a row of arrays: its timestamp, and its slots in a ByteColumn of keys, one of values and a HeaderColumn.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from distlog.core.config import MAX_INT
from distlog.core.kernels.jit import fill_kernel, inlined
from distlog.core.kernels.memory import copy_bytes
from distlog.core.kernels.varint import varlong_size, write_varlong

OK, BAD_TIMESTAMP, NULL_HEADER_KEY, TOO_LARGE = range(4)

#: One batch to be: its rows, the size of its records, its largest timestamp and the first row that has it.
PLAN = np.dtype(
    [
        ("first_row", np.int64),
        ("record_count", np.int64),
        ("record_bytes", np.int64),
        ("max_timestamp", np.int64),
        ("max_row", np.int64),
    ]
)


class ByteColumn(NamedTuple):
    """Byte strings: string i is data[offsets[i]:offsets[i + 1]]; int64 offsets; `valid` of size 0: none is null."""

    offsets: np.ndarray
    valid: np.ndarray
    data: np.ndarray


class HeaderColumn(NamedTuple):
    """Headers: those of record i are [firsts[i], ends[i]) of `key` and `value`; size 0 if no record has any."""

    firsts: np.ndarray
    ends: np.ndarray
    key: ByteColumn
    value: ByteColumn


@inlined
def _length(column: ByteColumn, index: int) -> int:
    length: int = column.offsets[index + 1] - column.offsets[index]
    return -1 if column.valid.size and not column.valid[index] else length


@inlined
def _slice_size(column: ByteColumn, index: int) -> int:
    length = _length(column, index)
    return varlong_size(length) + max(length, 0)


@inlined
def _headers_size(headers: HeaderColumn, row: int) -> int:
    """The size of a record's headers and their count, or -1 if the key of one is null."""
    if not headers.firsts.size:
        return 1
    first, end = headers.firsts[row], headers.ends[row]
    size = varlong_size(end - first)
    for header in range(first, end):
        if headers.key.valid.size and not headers.key.valid[header]:
            return -1
        size += _slice_size(headers.key, header) + _slice_size(headers.value, header)
    return size


@fill_kernel
def plan_batches(
    timestamps: np.ndarray,
    key: ByteColumn,
    value: ByteColumn,
    headers: HeaderColumn,
    limit: int,
    sizes: np.ndarray,
    plan: np.ndarray,
) -> tuple[int, int]:
    """Cut the rows into batches of at most `limit` bytes of records, or of one record: (status, batches or bad row).

    Fills `sizes`, what the length field of each record will say, and `plan` (PLAN rows); both have a slot per row.
    """
    count = -1
    first_row = 0
    used = 0
    for row in range(timestamps.size):
        timestamp = timestamps[row]
        headers_size = _headers_size(headers, row)
        if timestamp < -1:
            return BAD_TIMESTAMP, row
        if headers_size < 0:
            return NULL_HEADER_KEY, row
        fixed = 1 + _slice_size(key, row) + _slice_size(value, row) + headers_size
        size = fixed + varlong_size(timestamp - timestamps[first_row]) + varlong_size(row - first_row)
        if count < 0 or used + varlong_size(size) + size > limit or row - first_row == MAX_INT:
            size = fixed + 2
            used = 0
            first_row = row
            count += 1
            plan[count]["first_row"] = row
            plan[count]["max_timestamp"] = timestamp
            plan[count]["max_row"] = row
        if size > MAX_INT - 5:
            return TOO_LARGE, row
        sizes[row] = size
        used += varlong_size(size) + size
        plan[count]["record_bytes"] = used
        plan[count]["record_count"] = row + 1 - first_row
        if timestamp > plan[count]["max_timestamp"]:
            plan[count]["max_timestamp"] = timestamp
            plan[count]["max_row"] = row
    return OK, count + 1


@inlined
def _write_slice(target: np.ndarray, position: int, column: ByteColumn, index: int) -> int:
    length = _length(column, index)
    position = write_varlong(target, position, length)
    if length > 0:
        copy_bytes(target, position, column.data, column.offsets[index], length)
        position += length
    return position


@inlined
def _write_headers(target: np.ndarray, position: int, headers: HeaderColumn, row: int) -> int:
    if not headers.firsts.size:
        target[position] = 0
        return position + 1
    first, end = headers.firsts[row], headers.ends[row]
    position = write_varlong(target, position, end - first)
    for header in range(first, end):
        position = _write_slice(target, position, headers.key, header)
        position = _write_slice(target, position, headers.value, header)
    return position


@fill_kernel
def write_records(
    target: np.ndarray,
    positions: np.ndarray,
    plan: np.ndarray,
    sizes: np.ndarray,
    timestamps: np.ndarray,
    key: ByteColumn,
    value: ByteColumn,
    headers: HeaderColumn,
) -> None:
    """Write the records of each batch of `plan` to `target`, from the batch's place in `positions` on."""
    for batch in range(plan.size):
        position = positions[batch]
        first_row = plan[batch]["first_row"]
        for row in range(first_row, first_row + plan[batch]["record_count"]):
            position = write_varlong(target, position, sizes[row])
            target[position] = 0
            position = write_varlong(target, position + 1, timestamps[row] - timestamps[first_row])
            position = write_varlong(target, position, row - first_row)
            position = _write_slice(target, position, key, row)
            position = _write_slice(target, position, value, row)
            position = _write_headers(target, position, headers, row)
