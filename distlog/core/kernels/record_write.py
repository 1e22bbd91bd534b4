"""Writes records, format 2, from Arrow's arrays (Kafka's `MemoryRecordsBuilder`, `DefaultRecord`).

A column of bytes is three arrays: int64 `offsets`, one more than there are strings, `valid` (size 0: none is null)
and `data`. Headers are two such columns, and the range [first, end) of them that each record has (size 0: none).
"""

from __future__ import annotations

import numpy as np

from distlog.core.kernels.jit import fill_kernel, inlined
from distlog.core.kernels.memory import copy_bytes
from distlog.core.kernels.varint import varlong_size, write_varlong

MAX_INT = 2**31 - 1

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


@inlined
def _length(offsets: np.ndarray, valid: np.ndarray, index: int) -> int:
    length: int = offsets[index + 1] - offsets[index]
    return -1 if valid.size and not valid[index] else length


@inlined
def _slice_size(length: int) -> int:
    return varlong_size(length) + max(length, 0)


@inlined
def _headers_size(
    first: int, end: int, key_offsets: np.ndarray, value_offsets: np.ndarray, value_valid: np.ndarray
) -> int:
    size = varlong_size(end - first)
    for header in range(first, end):
        size += _slice_size(key_offsets[header + 1] - key_offsets[header])
        size += _slice_size(_length(value_offsets, value_valid, header))
    return size


@fill_kernel
def plan_batches(
    timestamps: np.ndarray,
    key_offsets: np.ndarray,
    key_valid: np.ndarray,
    value_offsets: np.ndarray,
    value_valid: np.ndarray,
    header_firsts: np.ndarray,
    header_ends: np.ndarray,
    header_key_offsets: np.ndarray,
    header_key_valid: np.ndarray,
    header_value_offsets: np.ndarray,
    header_value_valid: np.ndarray,
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
        if timestamp < -1:
            return BAD_TIMESTAMP, row
        fixed = 2
        if header_firsts.size:
            first, end = header_firsts[row], header_ends[row]
            for header in range(first, end):
                if header_key_valid.size and not header_key_valid[header]:
                    return NULL_HEADER_KEY, row
            fixed = 1 + _headers_size(first, end, header_key_offsets, header_value_offsets, header_value_valid)
        fixed += _slice_size(_length(key_offsets, key_valid, row))
        fixed += _slice_size(_length(value_offsets, value_valid, row))
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
def _write_slice(
    target: np.ndarray, position: int, offsets: np.ndarray, valid: np.ndarray, data: np.ndarray, index: int
) -> int:
    length = _length(offsets, valid, index)
    position = write_varlong(target, position, length)
    if length > 0:
        copy_bytes(target, position, data, offsets[index], length)
        position += length
    return position


@fill_kernel
def write_records(
    target: np.ndarray,
    positions: np.ndarray,
    plan: np.ndarray,
    sizes: np.ndarray,
    timestamps: np.ndarray,
    key_offsets: np.ndarray,
    key_valid: np.ndarray,
    key_data: np.ndarray,
    value_offsets: np.ndarray,
    value_valid: np.ndarray,
    value_data: np.ndarray,
    header_firsts: np.ndarray,
    header_ends: np.ndarray,
    header_key_offsets: np.ndarray,
    header_key_valid: np.ndarray,
    header_key_data: np.ndarray,
    header_value_offsets: np.ndarray,
    header_value_valid: np.ndarray,
    header_value_data: np.ndarray,
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
            position = _write_slice(target, position, key_offsets, key_valid, key_data, row)
            position = _write_slice(target, position, value_offsets, value_valid, value_data, row)
            if not header_firsts.size:
                target[position] = 0
                position += 1
                continue
            first, end = header_firsts[row], header_ends[row]
            position = write_varlong(target, position, end - first)
            for header in range(first, end):
                position = _write_slice(
                    target, position, header_key_offsets, header_key_valid, header_key_data, header
                )
                position = _write_slice(
                    target, position, header_value_offsets, header_value_valid, header_value_data, header
                )
