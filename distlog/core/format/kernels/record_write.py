"""Kernels that assign records to partitions, and write them into batches of format 2."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from distlog.core.arrays import MAX_INT, MAX_LONG
from distlog.core.format.kernels.batch_scan import HEADER_SIZE
from distlog.core.format.kernels.native import copy_bytes, fill_kernel, inlined, item_at, prefetch, put_at, uint32_at
from distlog.core.format.kernels.record_scan import varlong_size, write_varlong


class ByteColumn(NamedTuple):
    """Byte strings: string i is data[offsets[i]:offsets[i + 1]], as in Arrow. An empty `valid` means no nulls."""

    offsets: np.ndarray
    valid: np.ndarray
    data: np.ndarray


class HeaderColumn(NamedTuple):
    """Headers: record i has the items [firsts[i], ends[i]) of `key` and `value`."""

    firsts: np.ndarray
    ends: np.ndarray
    key: ByteColumn
    value: ByteColumn


#: Timestamps, keys, values, and headers. Headers are None if no record has any: a kernel is compiled for this case.
Columns = tuple[np.ndarray, ByteColumn, ByteColumn, HeaderColumn | None]


class BatchLimits(NamedTuple):
    """Where a batch ends.

    A batch of one record has at most `max_record_bytes`, a batch of several at most `usual_record_bytes`. A time
    window lasts `window_ms` (`segment.ms`) from the timestamp of its first record. A record newer than its end begins
    a new batch and a new window, so that a segment can end before it. A window can have many batches.
    """

    usual_record_bytes: int
    max_record_bytes: int
    window_ms: int


#: The `window_end_ms` of `append_records` before any record; the first record with a timestamp sets it.
NOT_STARTED = -1
#: Why a kernel stopped. OK: all records are written. FULL: `target` or `drafts` has no room. OVERSIZED: a record is
#: larger than `max_record_bytes`. TOO_LARGE: the size of a record does not fit in an int32.
OK, FULL, OVERSIZED, BAD_TIMESTAMP, NULL_HEADER_KEY, TOO_LARGE = range(6)
#: The bytes of a batch's first record in addition to its fields: 5 for the size, 1 for the attributes, and 1 for each
#: of the two deltas, which are 0. A record is TOO_LARGE if its bytes do not fit in an int32 even as the first.
_FIRST_RECORD_OVERHEAD = 8

#: An unfinished batch. Its header is at `position`. `first_record` and `newest_record` (with the largest timestamp)
#: count from the first appended record, or in `append_groups` from the first one of the group.
DRAFT = np.dtype(
    [
        ("position", np.int64),
        ("first_record", np.int64),
        ("record_count", np.int64),
        ("record_bytes", np.int64),
        ("base_timestamp", np.int64),
        ("min_timestamp", np.int64),
        ("max_timestamp", np.int64),
        ("newest_record", np.int64),
    ]
)
#: The rows of a partition are far apart in memory, so a row is prefetched this many rows before its use.
_PREFETCH_ROWS = 16


@inlined
def _length(column: ByteColumn, index: int) -> int:
    if column.valid.size and not item_at(column.valid, index):
        return -1
    length: int = item_at(column.offsets, index + 1) - item_at(column.offsets, index)
    return length


@inlined
def _slice_size(length: int) -> int:
    return varlong_size(length) + max(length, 0)


@inlined
def _headers_size(headers: HeaderColumn | None, row: int) -> int:
    """Return the size of a record's headers and of the varint of their count, or -1 if a header's key is null."""
    if headers is None:
        return 1
    first, end = item_at(headers.firsts, row), item_at(headers.ends, row)
    size = varlong_size(end - first)
    for header in range(first, end):
        if headers.key.valid.size and not item_at(headers.key.valid, header):
            return -1
        size += _slice_size(_length(headers.key, header)) + _slice_size(_length(headers.value, header))
    return size


@inlined
def _write_slice(target: np.ndarray, position: int, column: ByteColumn, index: int, length: int) -> int:
    position = write_varlong(target, position, length)
    if length > 0:
        copy_bytes(target, position, column.data, item_at(column.offsets, index), length)
        position += length
    return position


@inlined
def _write_headers(target: np.ndarray, position: int, headers: HeaderColumn | None, row: int) -> int:
    if headers is None:
        put_at(target, position, 0)
        return position + 1
    first, end = item_at(headers.firsts, row), item_at(headers.ends, row)
    position = write_varlong(target, position, end - first)
    for header in range(first, end):
        position = _write_slice(target, position, headers.key, header, _length(headers.key, header))
        position = _write_slice(target, position, headers.value, header, _length(headers.value, header))
    return position


@inlined
def _prefetch_row(key: ByteColumn, value: ByteColumn, rows: np.ndarray, index: int) -> None:
    if index < rows.size:
        row = item_at(rows, index)
        prefetch(key.data, item_at(key.offsets, row))
        prefetch(value.data, item_at(value.offsets, row))
        prefetch(value.data, item_at(value.offsets, row) + 64)  # the next cache line


@inlined
def _append_up_to(
    target: np.ndarray,
    drafts: np.ndarray,
    open_draft: int,
    next_index: int,
    end_index: int,
    rows: np.ndarray,
    columns: Columns,
    limits: BatchLimits,
    window_end_ms: int,
) -> tuple[int, int, int, int, int]:
    """Append `rows[next_index:end_index]`, as `append_records` does, with the same result."""
    timestamps, key, value, headers = columns
    usual_bytes, max_bytes, window_ms = limits
    status, record_end = OK, 0
    count, used = drafts[open_draft]["record_count"], drafts[open_draft]["record_bytes"]
    base, newest = drafts[open_draft]["base_timestamp"], drafts[open_draft]["max_timestamp"]
    oldest = drafts[open_draft]["min_timestamp"]
    position = drafts[open_draft]["position"] + HEADER_SIZE + used
    while next_index < end_index:
        row = item_at(rows, next_index)
        _prefetch_row(key, value, rows, next_index + _PREFETCH_ROWS)
        timestamp = item_at(timestamps, row)
        key_length, value_length, headers_size = _length(key, row), _length(value, row), _headers_size(headers, row)
        fields_size = _slice_size(key_length) + _slice_size(value_length) + headers_size
        if timestamp < -1:
            status = BAD_TIMESTAMP
            break
        if headers_size < 0 or fields_size > MAX_INT - _FIRST_RECORD_OVERHEAD:
            status = NULL_HEADER_KEY if headers_size < 0 else TOO_LARGE
            break
        delta = (timestamp - base) if count else 0
        size = 1 + varlong_size(delta) + varlong_size(count) + fields_size
        record_size = varlong_size(size) + size
        is_past_window = window_end_ms != NOT_STARTED and timestamp > window_end_ms
        if count and (used + record_size > usual_bytes or count == MAX_INT or is_past_window):
            if open_draft + 1 == drafts.size:
                status = FULL
                break
            # end the batch; the next pass of the loop appends this record to the new batch
            drafts[open_draft]["record_count"], drafts[open_draft]["record_bytes"] = count, used
            drafts[open_draft + 1]["position"] = position
            drafts[open_draft + 1]["first_record"] = drafts[open_draft]["first_record"] + count
            position += HEADER_SIZE
            open_draft, count, used = open_draft + 1, 0, 0
            continue
        record_end = position + record_size
        if record_size > max_bytes or record_end > target.size:
            status = OVERSIZED if record_size > max_bytes else FULL
            break
        if timestamp > window_end_ms:  # the record begins a window; one without a timestamp, -1, never does
            window_end_ms = min(timestamp, MAX_LONG - window_ms) + window_ms
        if not count:
            base = oldest = drafts[open_draft]["base_timestamp"] = drafts[open_draft]["min_timestamp"] = timestamp
        if not count or timestamp > newest:
            newest = drafts[open_draft]["max_timestamp"] = timestamp
            drafts[open_draft]["newest_record"] = drafts[open_draft]["first_record"] + count
        elif timestamp < oldest:
            oldest = drafts[open_draft]["min_timestamp"] = timestamp
        position = write_varlong(target, position, size)
        put_at(target, position, 0)  # attributes
        position = write_varlong(target, write_varlong(target, position + 1, delta), count)
        position = _write_slice(target, position, key, row, key_length)
        position = _write_slice(target, position, value, row, value_length)
        position = _write_headers(target, position, headers, row)
        count, used, next_index = count + 1, used + record_size, next_index + 1
    drafts[open_draft]["record_count"], drafts[open_draft]["record_bytes"] = count, used
    return status, next_index, open_draft, record_end, window_end_ms


@fill_kernel
def append_records(
    target: np.ndarray,
    drafts: np.ndarray,
    open_draft: int,
    next_index: int,
    rows: np.ndarray,
    columns: Columns,
    limits: BatchLimits,
    window_end_ms: int,
) -> tuple[int, int, int, int, int]:
    """Append the records of `rows[next_index:]` to the batches in `target`.

    Returns the status, and `next_index`, `open_draft`, `record_end` and `window_end_ms` after these records.

    `drafts` (DRAFT rows) describes the batches in `target` up to the open one, row `open_draft`; later rows are free.
    A batch ends before its records would exceed `usual_record_bytes`, and before a record newer than `window_end_ms`,
    which becomes this record's timestamp plus `window_ms`. If the status is FULL or OVERSIZED, the record at the
    returned `next_index` would end at the position `record_end`; if `drafts` has no free row, it means nothing.
    """
    return _append_up_to(target, drafts, open_draft, next_index, rows.size, rows, columns, limits, window_end_ms)


@fill_kernel
def append_groups(
    target: np.ndarray,
    drafts: np.ndarray,
    rows: np.ndarray,
    counts: np.ndarray,
    columns: Columns,
    limits: BatchLimits,
) -> int:
    """Write each group, the next counts[i] of `rows`, as one batch. `drafts` has a row of 0 per group and a spare.

    Returns the number of groups before the first that needs two batches, has no room, or has a refused record.
    """
    start = 0
    for group in range(counts.size):
        end = start + counts[group]
        status, _, open_draft, _, _ = _append_up_to(
            target, drafts, group, start, end, rows, columns, limits, NOT_STARTED
        )
        if status != OK or open_draft != group:  # not written, or not in one batch
            return group
        # the next batch begins after this one (after the last group, the spare row is set)
        drafts[group + 1]["position"] = drafts[group]["position"] + HEADER_SIZE + drafts[group]["record_bytes"]
        start = end
    return counts.size


@fill_kernel
def copy_slices(
    target: np.ndarray,
    target_positions: np.ndarray,
    source: np.ndarray,
    source_positions: np.ndarray,
    sizes: np.ndarray,
) -> None:
    for index in range(sizes.size):
        copy_bytes(target, target_positions[index], source, source_positions[index], sizes[index])


# Partitions are chosen as in Kafka's `BuiltInPartitioner`, with Austin Appleby's MurmurHash2 (`Utils.murmur2`).

#: An estimate of a record's bytes besides its key and value, for the size of runs of records without a key.
RECORD_OVERHEAD = 8
_SEED, _MULTIPLIER, _MASK = 0x9747B28C, 0x5BD1E995, 0xFFFFFFFF


@fill_kernel
def first_out_of_range(partitions: np.ndarray, count: int) -> int:
    """Return the first row whose partition is not between 0 and `count` - 1, or -1."""
    for row in range(len(partitions)):
        if partitions[row] < 0 or partitions[row] >= count:
            return row
    return -1


@inlined
def murmur2(data: np.ndarray, start: int, end: int) -> int:
    """Return Kafka's murmur2 of `data[start:end]` as an unsigned number; the caller checks the bounds."""
    words_end = end - ((end - start) & 3)
    value = _SEED ^ (end - start)
    for index in range(start, words_end, 4):
        word = (uint32_at(data, index) * _MULTIPLIER) & _MASK
        word = ((word ^ (word >> 24)) * _MULTIPLIER) & _MASK
        value = ((value * _MULTIPLIER) & _MASK) ^ word
    if words_end < end:
        for index in range(words_end, end):
            value ^= item_at(data, index) << (8 * (index - words_end))
        value = (value * _MULTIPLIER) & _MASK
    value = ((value ^ (value >> 13)) * _MULTIPLIER) & _MASK
    return value ^ (value >> 15)


@fill_kernel
def fill_partitions(
    offsets: np.ndarray,
    data: np.ndarray,
    valid: np.ndarray,
    first_bit: int,
    value_offsets: np.ndarray,
    partition_count: int,
    partition: int,
    used_bytes: int,
    run_bytes: int,
    assigned: np.ndarray,
) -> tuple[int, int]:
    """Write the partition of each record to `assigned`: by its key, or by runs of about `run_bytes` for null keys.

    `valid` has a bit for each key from `first_bit` on, or is empty if all are valid. Records without a key continue
    the run in `partition`, which has `used_bytes`. Returns the new `partition` and `used_bytes`, or (-1, row) if the
    key in a row has bad offsets.
    """
    for row in range(len(assigned)):
        bit = first_bit + row
        if len(valid) == 0 or (valid[bit >> 3] >> (bit & 7)) & 1:
            start, end = int(offsets[row]), int(offsets[row + 1])
            if start < 0 or end < start or end > len(data):
                return -1, row
            assigned[row] = (murmur2(data, start, end) & 0x7FFFFFFF) % partition_count
        else:
            if used_bytes >= run_bytes:
                partition, used_bytes = (partition + 1) % partition_count, 0
            assigned[row] = partition
            used_bytes += value_offsets[row + 1] - value_offsets[row] + RECORD_OVERHEAD
    return partition, used_bytes


@fill_kernel
def group_rows(partitions: np.ndarray, order: np.ndarray, counts: np.ndarray, next_positions: np.ndarray) -> int:
    """Write the row numbers to `order`, sorted by partition, and the number of rows of each partition to `counts`.

    Returns the first row with a partition out of range, or -1. `counts` must be 0 at first. `next_positions` is
    scratch space with an item per partition.
    """
    for row in range(len(partitions)):
        if partitions[row] < 0 or partitions[row] >= len(counts):
            return row
        counts[partitions[row]] += 1
    total = 0
    for partition in range(len(counts)):
        next_positions[partition] = total
        total += counts[partition]
    for row in range(len(partitions)):
        order[next_positions[partitions[row]]] = row
        next_positions[partitions[row]] += 1
    return -1
