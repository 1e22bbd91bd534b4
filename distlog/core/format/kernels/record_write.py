"""Writes records, format 2, from Arrow's arrays or from other batches (Kafka's `MemoryRecordsBuilder`)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from distlog.core.format.kernels.batch_scan import HEADER_SIZE
from distlog.core.format.kernels.native import copy_bytes, fill_kernel, inlined, item_at, prefetch, put_at
from distlog.core.format.kernels.record_scan import VARINT, VARLONG, read_number, varlong_size, write_varlong
from distlog.core.integers import MAX_INT, MAX_LONG


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


#: The initial `until` of the first batch, which `append_records` moves.
NO_LIMIT = -1
OK, FULL, OVERSIZED, BAD_TIMESTAMP, NULL_HEADER_KEY, TOO_LARGE = range(6)

#: An unfinished batch: the position of its header, its first record, the number and bytes of its records, the first,
#: smallest and largest timestamp, and the first record with the largest.
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


#: The rows of a partition are far apart, so they are fetched this many rows early: 40 instead of 180 ns a row.
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
    """Return the size of a record's headers and their count, or -1 if a key is null."""
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
def _write_start(target: np.ndarray, position: int, size: int, timestamp_delta: int, offset_delta: int) -> int:
    position = write_varlong(target, position, size)
    put_at(target, position, 0)
    return write_varlong(target, write_varlong(target, position + 1, timestamp_delta), offset_delta)


@inlined
def _write_fields(
    target: np.ndarray, position: int, columns: Columns, row: int, key_length: int, value_length: int
) -> int:
    _, key, value, headers = columns
    position = _write_slice(target, position, key, row, key_length)
    position = _write_slice(target, position, value, row, value_length)
    return _write_headers(target, position, headers, row)


@inlined
def _prefetch_row(key: ByteColumn, value: ByteColumn, rows: np.ndarray, index: int) -> None:
    if index < rows.size:
        row = item_at(rows, index)
        prefetch(key.data, item_at(key.offsets, row))
        prefetch(value.data, item_at(value.offsets, row))
        prefetch(value.data, item_at(value.offsets, row) + 64)


@inlined
def _close_draft(drafts: np.ndarray, last: int, position: int, count: int, used: int) -> None:
    """End the open batch at `position`, where the next batch starts."""
    drafts[last]["record_count"], drafts[last]["record_bytes"] = count, used
    drafts[last + 1]["position"] = position
    drafts[last + 1]["first_record"] = drafts[last]["first_record"] + count


@inlined
def _append_up_to(
    target: np.ndarray,
    drafts: np.ndarray,
    last: int,
    first: int,
    stop: int,
    rows: np.ndarray,
    columns: Columns,
    limits: BatchLimits,
    until: int,
) -> tuple[int, int, int, int, int]:
    (timestamps, key, value, headers), (limit, largest, window) = columns, limits
    status, next_row, end = OK, first, 0
    count, used = drafts[last]["record_count"], drafts[last]["record_bytes"]
    base, newest = drafts[last]["base_timestamp"], drafts[last]["max_timestamp"]
    oldest = drafts[last]["min_timestamp"]
    position = drafts[last]["position"] + HEADER_SIZE + used
    while next_row < stop:
        row = item_at(rows, next_row)
        _prefetch_row(key, value, rows, next_row + _PREFETCH_ROWS)
        timestamp = item_at(timestamps, row)
        key_length, value_length, headers_size = _length(key, row), _length(value, row), _headers_size(headers, row)
        fields_size = _slice_size(key_length) + _slice_size(value_length) + headers_size
        if timestamp < -1 or headers_size < 0 or fields_size > MAX_INT - 8:
            status = NULL_HEADER_KEY if headers_size < 0 else TOO_LARGE
            if timestamp < -1:
                status = BAD_TIMESTAMP
            break
        delta = timestamp - base if count else 0
        size = 1 + varlong_size(delta) + varlong_size(count) + fields_size
        record_size = varlong_size(size) + size
        if count and (used + record_size > limit or count == MAX_INT or timestamp > until >= 0):
            if last + 1 == drafts.size:
                status = FULL
                break
            _close_draft(drafts, last, position, count, used)
            position, last, count, used = position + HEADER_SIZE, last + 1, 0, 0
            continue
        end = position + record_size
        if record_size > largest or end > target.size:
            status = OVERSIZED if record_size > largest else FULL
            break
        if timestamp > until:
            until = min(timestamp, MAX_LONG - window) + window
        if not count:
            base = oldest = drafts[last]["base_timestamp"] = drafts[last]["min_timestamp"] = timestamp
        if not count or timestamp > newest:
            newest = drafts[last]["max_timestamp"] = timestamp
            drafts[last]["newest_record"] = drafts[last]["first_record"] + count
        elif timestamp < oldest:
            oldest = drafts[last]["min_timestamp"] = timestamp
        position = _write_start(target, position, size, delta, count)
        position = _write_fields(target, position, columns, row, key_length, value_length)
        count, used, next_row = count + 1, used + record_size, next_row + 1
    drafts[last]["record_count"], drafts[last]["record_bytes"] = count, used
    return status, next_row, last, end, until


@fill_kernel
def append_records(
    target: np.ndarray,
    drafts: np.ndarray,
    last: int,
    first: int,
    rows: np.ndarray,
    columns: Columns,
    limits: BatchLimits,
    until: int,
) -> tuple[int, int, int, int, int]:
    """Write the records of `rows[first:]` to the end of `target`: (status, rows written, last draft, end, until).

    `drafts` (DRAFT rows) describes the batches in `target` up to the open batch, `last`. A batch holds at least one
    record. It ends before its records would exceed `limit` bytes, and before a record newer than `until`, which then
    moves to `window` ms after that record. FULL: the next record, which would end at `end`, does not fit into
    `target` or `drafts`. OVERSIZED: the record is larger than `largest`.
    """
    return _append_up_to(target, drafts, last, first, rows.size, rows, columns, limits, until)


@fill_kernel
def append_groups(
    target: np.ndarray,
    drafts: np.ndarray,
    rows: np.ndarray,
    counts: np.ndarray,
    columns: Columns,
    limits: BatchLimits,
) -> int:
    """Write `rows`, `counts` in each batch; returns the number of batches, fewer if one or `target` is too small."""
    first = 0
    for group in range(counts.size):
        stop = first + counts[group]
        status, _, last, _, _ = _append_up_to(target, drafts, group, first, stop, rows, columns, limits, NO_LIMIT)
        if status != OK or last != group:
            return group
        drafts[group + 1]["position"] = drafts[group]["position"] + HEADER_SIZE + drafts[group]["record_bytes"]
        first = stop
    return counts.size


#: The bytes by which a record can grow when the base of its timestamp or offset changes.
RECORD_GROWTH = 17

#: The retained records of a batch: their number, the number of tombstones, the first and the largest timestamp, and
#: the first record with the largest. `first_record` counts the records of earlier batches.
RETAINED = np.dtype(
    [
        ("first_record", np.int64),
        ("records", np.int64),
        ("tombstones", np.int64),
        ("first_timestamp", np.int64),
        ("max_timestamp", np.int64),
        ("offset_of_max", np.int64),
    ]
)


@fill_kernel
def choose_records(
    counts: np.ndarray,
    untouched: np.ndarray,
    expired: np.ndarray,
    latest_offset: int,
    current: np.ndarray,
    keyed: np.ndarray,
    valued: np.ndarray,
    offsets: np.ndarray,
    timestamps: np.ndarray,
    keep: np.ndarray,
    retained: np.ndarray,
) -> int:
    """Fill `keep`, per record, and `retained` (RETAINED rows), per batch; returns how many records lack a key.

    `counts` has the number of records per batch, `untouched` whether all stay, `expired` whether the tombstones have
    expired. In other batches, a record stays if its offset is above `latest_offset`, or if it is `current`, the last
    of its key, and has a value or is a tombstone that has not expired.
    """
    unkeyed = 0
    record = 0
    for batch in range(counts.size):
        row = retained[batch]
        row["first_record"] = record
        row["records"] = 0
        row["tombstones"] = 0
        for index in range(record, record + counts[batch]):
            stays = untouched[batch] or offsets[index] > latest_offset
            if not stays:
                if not keyed[index]:
                    unkeyed += 1
                else:
                    stays = current[index] and (valued[index] or not expired[batch])
            keep[index] = stays
            if not stays:
                continue
            if row["records"] == 0:
                row["first_timestamp"] = timestamps[index]
            if row["records"] == 0 or timestamps[index] > row["max_timestamp"]:
                row["max_timestamp"] = timestamps[index]
                row["offset_of_max"] = offsets[index]
            row["records"] += 1
            if not valued[index]:
                row["tombstones"] += 1
        record += counts[batch]
    return unkeyed


@fill_kernel
def rewrite_records(
    data: np.ndarray,
    sections: np.ndarray,
    first_records: np.ndarray,
    base_offsets: np.ndarray,
    base_timestamps: np.ndarray,
    keep: np.ndarray,
    timestamps: np.ndarray,
    target: np.ndarray,
    ends: np.ndarray,
) -> None:
    """Write the retained records of `sections` to `target`, section after section, and the section ends to `ends`.

    Times and offsets become relative to the sections' `base_timestamps` and `base_offsets`; other fields are copied.
    `keep` and `timestamps` are per record; `first_records` has the first record of each section. A scan has checked
    the bounds of the records.
    """
    position = 0
    for number in range(sections.size):
        source_position, end = sections[number]["start"], sections[number]["end"]
        moved = sections[number]["base_offset"] - base_offsets[number]
        base_timestamp = base_timestamps[number]
        first = first_records[number]
        for index in range(first, first + sections[number]["record_count"]):
            size, body = read_number(data, source_position, end, VARINT, True)
            source_position = body + size
            if not keep[index]:
                continue
            _, fields = read_number(data, body + 1, end, VARLONG, True)
            offset_delta, fields = read_number(data, fields, end, VARINT, True)
            offset_delta += moved
            delta = timestamps[index] - base_timestamp
            size = 1 + varlong_size(delta) + varlong_size(offset_delta) + source_position - fields
            position = write_varlong(target, position, size)
            put_at(target, position, item_at(data, body))
            position = write_varlong(target, write_varlong(target, position + 1, delta), offset_delta)
            copy_bytes(target, position, data, fields, source_position - fields)
            position += source_position - fields
        ends[number] = position


@fill_kernel
def copy_slices(
    target: np.ndarray,
    target_positions: np.ndarray,
    source: np.ndarray,
    source_positions: np.ndarray,
    sizes: np.ndarray,
) -> None:
    """Copy slices of `source` to positions in `target`."""
    for index in range(sizes.size):
        copy_bytes(target, target_positions[index], source, source_positions[index], sizes[index])
