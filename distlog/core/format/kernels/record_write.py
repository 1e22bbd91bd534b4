"""Kernels that assign records to partitions, write them into batches of format 2, and filter them for compaction."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from distlog.core.format.kernels.batch_scan import HEADER_SIZE
from distlog.core.format.kernels.native import (
    copy_bytes,
    fill_kernel,
    half_word_at,
    inlined,
    item_at,
    prefetch,
    put_at,
    word_at,
    wrapped,
)
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
    """Where a batch ends.

    `limit`: the most record bytes of a batch of several records. `largest`: the most of any batch. `window`: the ms
    by which later records of a batch may be newer than the record that began the window.
    """

    limit: int
    largest: int
    window: int


#: The `until` of `append_records` before any record; the first record with a timestamp sets it.
NOT_STARTED = -1
#: Why a kernel stopped. OK: it didn't. FULL: `target` or `drafts` has no room. OVERSIZED: a record is larger than
#: `limits.largest`. TOO_LARGE: the size of a record does not fit an int32. The other two: an invalid field.
OK, FULL, OVERSIZED, BAD_TIMESTAMP, NULL_HEADER_KEY, TOO_LARGE = range(6)
#: The bytes of a batch's first record in addition to its fields: a size of up to 5, attributes, and two deltas of 0.
#: A later record has longer deltas, but its batch has at most `limits.limit` bytes, an int32.
_FIRST_RECORD_OVERHEAD = 8

#: An unfinished batch: the position of its header, the row number of its first record, the number and bytes of its
#: records, the first, smallest and largest timestamp, and the row number of the first record with the largest one.
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


#: The rows of a partition are far apart in memory, and so are the slots of an offset map that consecutive rows need.
#: They are fetched this many rows early: 40 instead of 180 ns a row.
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
    """Return the bytes of a record's headers, with the varint of their count, or -1 if a header's key is null."""
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
        if timestamp < -1 or headers_size < 0 or fields_size > MAX_INT - _FIRST_RECORD_OVERHEAD:
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
    """Write the records of `rows[first:]` to the end of `target`: (status, next row, last draft, end, until).

    `drafts` (DRAFT rows) describes the batches in `target` up to the open batch, `last`. A batch holds at least one
    record. It ends before its records would exceed `limit` bytes, and before a record newer than `until`, which then
    moves to `window` ms after that record. FULL: `target` lacks room for the next record, which would end at `end`,
    or `drafts` has no free row (`end` then means nothing). OVERSIZED: the record, which would end at `end`, is larger
    than `largest`.
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
    """Write `rows` as one batch for each item of `counts`.

    Returns the number of batches before the first that needs a second batch, does not fit into `target`, or has a
    refused record.
    """
    first = 0
    for group in range(counts.size):
        stop = first + counts[group]
        status, _, last, _, _ = _append_up_to(target, drafts, group, first, stop, rows, columns, limits, NOT_STARTED)
        if status != OK or last != group:
            return group
        drafts[group + 1]["position"] = drafts[group]["position"] + HEADER_SIZE + drafts[group]["record_bytes"]
        first = stop
    return counts.size


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


# Records go to partitions as by Kafka's `BuiltInPartitioner`, with Austin Appleby's MurmurHash2 (`Utils.murmur2`).

#: About how many bytes a record has in a batch besides its key and value.
RECORD_OVERHEAD = 8
_SEED, _MULTIPLIER, _MASK = 0x9747B28C, 0x5BD1E995, 0xFFFFFFFF


@fill_kernel
def first_out_of_range(partitions: np.ndarray, count: int) -> int:
    """The first row whose partition is not between 0 and `count` - 1, or -1."""
    for row in range(len(partitions)):
        if partitions[row] < 0 or partitions[row] >= count:
            return row
    return -1


@inlined
def murmur2(data: np.ndarray, start: int, end: int) -> int:
    """Kafka's murmur2 of `data[start:end]` as an unsigned 32-bit number; the caller checks the bounds."""
    words_end = end - ((end - start) & 3)
    value = _SEED ^ (end - start)
    for index in range(start, words_end, 4):
        word = half_word_at(data, index) * _MULTIPLIER & _MASK
        word = (word ^ (word >> 24)) * _MULTIPLIER & _MASK
        value = (value * _MULTIPLIER & _MASK) ^ word
    if words_end < end:
        for index in range(words_end, end):
            value ^= item_at(data, index) << (8 * (index - words_end))
        value = value * _MULTIPLIER & _MASK
    value = (value ^ (value >> 13)) * _MULTIPLIER & _MASK
    return value ^ (value >> 15)


@fill_kernel
def fill_partitions(
    offsets: np.ndarray,
    data: np.ndarray,
    valid: np.ndarray,
    first_bit: int,
    value_offsets: np.ndarray,
    partitions: int,
    partition: int,
    used_bytes: int,
    run_bytes: int,
    assigned: np.ndarray,
) -> tuple[int, int]:
    """Write the partition of each record to `assigned`: by its key, or by runs of about `run_bytes` for null keys.

    `valid` has a bit for each key from `first_bit` on, or is empty if all are valid. Records without a key continue
    in `partition`, where `used_bytes` of the run are used. Returns these two afterwards, or (-1, row) for a key that
    does not lie in `data`.
    """
    for row in range(len(assigned)):
        bit = first_bit + row
        if len(valid) == 0 or valid[bit >> 3] >> (bit & 7) & 1:
            start, end = int(offsets[row]), int(offsets[row + 1])
            if start < 0 or end < start or end > len(data):
                return -1, row
            assigned[row] = (murmur2(data, start, end) & 0x7FFFFFFF) % partitions
        else:
            if used_bytes >= run_bytes:
                partition, used_bytes = (partition + 1) % partitions, 0
            assigned[row] = partition
            used_bytes += value_offsets[row + 1] - value_offsets[row] + RECORD_OVERHEAD
    return partition, used_bytes


@fill_kernel
def group_rows(partitions: np.ndarray, order: np.ndarray, counts: np.ndarray, following: np.ndarray) -> int:
    """Write row numbers to `order`, by partition, and count them in `counts`; returns the first bad row, or -1.

    `following`, with an item for each partition, is scratch space: where the partition's next row goes in `order`.
    """
    for row in range(len(partitions)):
        if partitions[row] < 0 or partitions[row] >= len(counts):
            return row
        counts[partitions[row]] += 1
    total = 0
    for partition in range(len(counts)):
        following[partition] = total
        total += counts[partition]
    for row in range(len(partitions)):
        order[following[partitions[row]]] = row
        following[partitions[row]] += 1
    return -1


# Compaction compares keys by their SipHash-2-4 of 128 bits. A key belongs to one bucket. One word of its hash selects
# the bucket, the second word the slot in an offset map: with one word for both, the map would fill in clusters.

#: A hash has two words of 64 bits; a row of a bucket has a hash and an offset; a slot of a map has a hash, and an
#: offset plus one, or 0 if the slot is empty.
HASH_WORDS, ROW_WORDS, SLOT_WORDS = 2, 3, 3
ROW_BYTES = 8 * ROW_WORDS

_START_0, _START_1 = 0x736F6D6570736575, 0x646F72616E646F6D
_START_2, _START_3 = 0x6C7967656E657261, 0x7465646279746573
#: Constants that make the result a long one, and make its two words differ.
_LONG, _FIRST_WORD, _SECOND_WORD = 0xEE, 0xEE, 0xDD

State = tuple[int, int, int, int]


@fill_kernel
def hash_all(
    data: np.ndarray, positions: np.ndarray, offsets: np.ndarray, first: int, second: int, hashes: np.ndarray
) -> None:
    """Write the hash of each key under the secret words `first` and `second`; the bounds are not checked."""
    for row in range(positions.size):
        size = item_at(offsets, row + 1) - item_at(offsets, row)
        hashes[row, 0], hashes[row, 1] = siphash(data, item_at(positions, row), size, first, second)


@inlined
def _rotated(value: int, bits: int) -> int:
    return wrapped(value << bits) | (value >> 64 - bits & (1 << bits) - 1)  # type: ignore[no-any-return]


@inlined
def _round(state: State) -> State:
    v0, v1, v2, v3 = state
    v0 = wrapped(v0 + v1)
    v2 = wrapped(v2 + v3)
    v1 = _rotated(v1, 13) ^ v0
    v3 = _rotated(v3, 16) ^ v2
    v0 = wrapped(_rotated(v0, 32) + v3)
    v2 = wrapped(v2 + v1)
    v1 = _rotated(v1, 17) ^ v2
    v3 = _rotated(v3, 21) ^ v0
    return v0, v1, _rotated(v2, 32), v3


@inlined
def _with_word(state: State, word: int) -> State:
    v0, v1, v2, v3 = state
    v0, v1, v2, v3 = _round(_round((v0, v1, v2, v3 ^ word)))
    return v0 ^ word, v1, v2, v3


@inlined
def _finished(state: State) -> State:
    return _round(_round(_round(_round(state))))


@inlined
def _part_of_word(data: np.ndarray, position: int, size: int) -> int:
    """The little-endian word of `size` bytes, 0 to 7."""
    if position + 8 <= data.size:
        word: int = word_at(data, position)
        return word & (1 << 8 * size) - 1
    value = 0
    for index in range(size):
        value |= item_at(data, position + index) << 8 * index
    return value


@inlined
def siphash(data: np.ndarray, position: int, size: int, first: int, second: int) -> tuple[int, int]:
    state = first ^ _START_0, second ^ _START_1 ^ _LONG, first ^ _START_2, second ^ _START_3
    tail = position + (size & -8)
    for index in range(position, tail, 8):
        state = _with_word(state, word_at(data, index))
    state = _with_word(state, wrapped((size & 0xFF) << 56) | _part_of_word(data, tail, size & 7))
    v0, v1, v2, v3 = state
    v0, v1, v2, v3 = _finished((v0, v1, v2 ^ _FIRST_WORD, v3))
    result = v0 ^ v1 ^ v2 ^ v3
    v0, v1, v2, v3 = _finished((v0, v1 ^ _SECOND_WORD, v2, v3))
    return result, v0 ^ v1 ^ v2 ^ v3


@inlined
def _bucket(second: int, offset: int, start_offset: int, buckets: int) -> int:
    """The set of rows for a key: its bucket, by the second word of its hash.

    Rows with offsets below `start_offset` are in sets of their own, one for each bucket, numbered from `buckets` on.
    """
    number = (second >> 32 & 0xFFFFFFFF) * buckets >> 32
    return number if offset >= start_offset else number + buckets


@fill_kernel
def count_keys(
    hashes: np.ndarray, keyed: np.ndarray, offsets: np.ndarray, start_offset: int, counts: np.ndarray
) -> None:
    """Add to `counts` the number of records with a key in each set of rows, by `_bucket`: two sets per bucket."""
    buckets = counts.size // 2
    for row in range(offsets.size):
        if keyed[row]:
            counts[_bucket(hashes[row, 1], offsets[row], start_offset, buckets)] += 1


@fill_kernel
def scatter_keys(
    hashes: np.ndarray,
    keyed: np.ndarray,
    offsets: np.ndarray,
    start_offset: int,
    positions: np.ndarray,
    rows: np.ndarray,
) -> None:
    """Write a row for each record with a key at the position of its set, by `_bucket`, and advance the position."""
    buckets = positions.size // 2
    for row in range(offsets.size):
        if keyed[row]:
            bucket = _bucket(hashes[row, 1], offsets[row], start_offset, buckets)
            target = positions[bucket]
            rows[target, 0] = hashes[row, 0]
            rows[target, 1] = hashes[row, 1]
            rows[target, 2] = offsets[row]
            positions[bucket] = target + 1


@fill_kernel
def set_bits(bits: np.ndarray, base_offset: int, offsets: np.ndarray) -> None:
    """Add `offsets` to the set."""
    for row in range(offsets.size):
        bit = offsets[row] - base_offset
        bits[bit >> 3] |= np.uint8(1 << (bit & 7))


@fill_kernel
def unset_bits(bits: np.ndarray, base_offset: int, offsets: np.ndarray, unset: np.ndarray) -> None:
    """Write to `unset`, for each of `offsets`, whether it is not in the set."""
    for row in range(offsets.size):
        bit = offsets[row] - base_offset
        unset[row] = bits[bit >> 3] >> (bit & 7) & 1 == 0


# An offset map has open addressing with linear probing over one flat array. One slot is always empty.


@inlined
def _home(slots: int, first: int) -> int:
    """Return the first slot to search for a hash with the first word `first`."""
    return (first >> 32 & 0xFFFFFFFF) * slots >> 32


@inlined
def _find(table: np.ndarray, slots: int, first: int, second: int) -> int:
    """Return the position of the slot that holds the hash, else of the empty slot where it belongs."""
    slot = _home(slots, first)
    while True:
        position = slot * SLOT_WORDS
        if table[position + 2] == 0 or (table[position] == first and table[position + 1] == second):
            return position
        slot = slot + 1 if slot + 1 < slots else 0


@fill_kernel
def put_all(
    table: np.ndarray, slots: int, limit: int, size: int, hashes: np.ndarray, valid: np.ndarray, offsets: np.ndarray
) -> tuple[int, int, int]:
    """Add records until the map has `limit` keys: (next row, keys in the map, last offset added or -1)."""
    latest = -1
    for row in range(offsets.size):
        if row + _PREFETCH_ROWS < offsets.size:
            prefetch(table, _home(slots, hashes[row + _PREFETCH_ROWS, 0]) * SLOT_WORDS)
        if not valid[row]:
            continue
        if size >= limit:
            return row, size, latest
        position = _find(table, slots, hashes[row, 0], hashes[row, 1])
        if table[position + 2] == 0:
            table[position] = hashes[row, 0]
            table[position + 1] = hashes[row, 1]
            size += 1
        latest = offsets[row]
        table[position + 2] = latest + 1
    return offsets.size, size, latest


@fill_kernel
def get_all(table: np.ndarray, slots: int, hashes: np.ndarray, last_offsets: np.ndarray) -> None:
    """Write the last offset of each key to `last_offsets`, or -1 for a key that is not in the map."""
    for row in range(last_offsets.size):
        if row + _PREFETCH_ROWS < last_offsets.size:
            prefetch(table, _home(slots, hashes[row + _PREFETCH_ROWS, 0]) * SLOT_WORDS)
        last_offsets[row] = table[_find(table, slots, hashes[row, 0], hashes[row, 1]) + 2] - 1


@fill_kernel
def put_rows(
    table: np.ndarray, slots: int, limit: int, size: int, rows: np.ndarray, superseded: np.ndarray
) -> tuple[int, int]:
    """Add `rows`, and write the lower of a key's two offsets to `superseded`.

    Returns (offsets written, or -1 if the map is full; keys in the map).
    """
    count = 0
    for row in range(superseded.size):
        if row + _PREFETCH_ROWS < superseded.size:
            prefetch(table, _home(slots, rows[row + _PREFETCH_ROWS, 0]) * SLOT_WORDS)
        position = _find(table, slots, rows[row, 0], rows[row, 1])
        known_offset, offset = table[position + 2] - 1, rows[row, 2]
        if known_offset < 0:
            if size >= limit:
                return -1, size
            table[position] = rows[row, 0]
            table[position + 1] = rows[row, 1]
            size += 1
        elif known_offset != offset:
            superseded[count] = min(known_offset, offset)
            count += 1
        table[position + 2] = max(known_offset, offset) + 1
    return count, size


@fill_kernel
def find_superseded(table: np.ndarray, slots: int, rows: np.ndarray, superseded: np.ndarray) -> int:
    """Write to `superseded` the offsets of `rows` whose key has a later offset in the map; returns their number."""
    count = 0
    for row in range(superseded.size):
        if row + _PREFETCH_ROWS < superseded.size:
            prefetch(table, _home(slots, rows[row + _PREFETCH_ROWS, 0]) * SLOT_WORDS)
        if table[_find(table, slots, rows[row, 0], rows[row, 1]) + 2] - 1 > rows[row, 2]:
            superseded[count] = rows[row, 2]
            count += 1
    return count


#: The bytes by which a record can grow when the base of its timestamp or offset changes.
RECORD_GROWTH = 17


#: The retained records of a batch: their number, the number of tombstones, the first and the largest timestamp, and
#: the offset of the first record with the largest one. `first_record` counts the records of earlier batches.
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
    """Fill `keep`, per record, and `retained` (RETAINED rows), per batch.

    Returns how many records were dropped because they lack a key.

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
