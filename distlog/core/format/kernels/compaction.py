"""Kernels of compaction: they hash keys, map each key to its last offset, choose records, and rewrite them."""

from __future__ import annotations

import numpy as np

from distlog.core.format.kernels.hashes import siphash
from distlog.core.format.kernels.native import copy_bytes, fill_kernel, inlined, item_at, prefetch, put_at
from distlog.core.format.kernels.record_scan import VARINT, VARLONG, read_number, varlong_size, write_varlong

# Compaction compares keys by their SipHash-2-4 of 128 bits. A bucket is a part of the keys whose offset map fits in
# memory. The second word of a hash selects the bucket, and the first word the slot in its map. With one word for
# both, the keys of a bucket would have neighbouring slots, and a search would be long. To select one of n, a product
# and a shift spread the high 32 bits of a word evenly.

#: Words of 64 bits. A row of a bucket has a hash and an offset. A slot of a map has a hash and an offset + 1, or 0.
HASH_WORDS, ROW_WORDS, SLOT_WORDS = 2, 3, 3
ROW_BYTES = 8 * ROW_WORDS

#: Consecutive rows need slots that are far apart in memory, so a slot is prefetched this many rows before its use.
_PREFETCH_ROWS = 16


@fill_kernel
def hash_all(
    data: np.ndarray, positions: np.ndarray, key_offsets: np.ndarray, first: int, second: int, hashes: np.ndarray
) -> None:
    """Write the hash of each key under the secret words `first` and `second`; the bounds are not checked."""
    for row in range(positions.size):
        size = item_at(key_offsets, row + 1) - item_at(key_offsets, row)
        hashes[row, 0], hashes[row, 1] = siphash(data, item_at(positions, row), size, first, second)


@inlined
def _row_set(second: int, offset: int, start_offset: int, buckets: int) -> int:
    """Return the key's bucket; plus `buckets` for a clean row (below `start_offset`), which the map does not get."""
    bucket = (((second >> 32) & 0xFFFFFFFF) * buckets) >> 32
    return bucket if offset >= start_offset else bucket + buckets


@fill_kernel
def count_keys(
    hashes: np.ndarray, has_key: np.ndarray, offsets: np.ndarray, start_offset: int, counts: np.ndarray
) -> None:
    """Add to `counts` the number of records with a key in each set of rows, by `_row_set`: two sets per bucket."""
    buckets = counts.size // 2
    for row in range(offsets.size):
        if has_key[row]:
            counts[_row_set(hashes[row, 1], offsets[row], start_offset, buckets)] += 1


@fill_kernel
def scatter_keys(
    hashes: np.ndarray,
    has_key: np.ndarray,
    offsets: np.ndarray,
    start_offset: int,
    positions: np.ndarray,
    rows: np.ndarray,
) -> None:
    """Write a row for each record with a key at the position of its set, by `_row_set`, and advance the position."""
    buckets = positions.size // 2
    for row in range(offsets.size):
        if has_key[row]:
            row_set = _row_set(hashes[row, 1], offsets[row], start_offset, buckets)
            target = positions[row_set]
            rows[target, 0], rows[target, 1], rows[target, 2] = hashes[row, 0], hashes[row, 1], offsets[row]
            positions[row_set] = target + 1


@fill_kernel
def set_bits(bits: np.ndarray, base_offset: int, offsets: np.ndarray) -> None:
    """Add `offsets` to the set `bits`: bit i is for the offset `base_offset` + i."""
    for row in range(offsets.size):
        bit = offsets[row] - base_offset
        bits[bit >> 3] |= np.uint8(1 << (bit & 7))


@fill_kernel
def unset_bits(bits: np.ndarray, base_offset: int, offsets: np.ndarray, is_unset: np.ndarray) -> None:
    """Write to `is_unset` whether each of `offsets` is missing in the set `bits`."""
    for row in range(offsets.size):
        bit = offsets[row] - base_offset
        is_unset[row] = ((bits[bit >> 3] >> (bit & 7)) & 1) == 0


# An offset map has open addressing with linear probing over one flat array. One slot is always empty.


@inlined
def _first_slot(slots: int, first: int) -> int:
    return (((first >> 32) & 0xFFFFFFFF) * slots) >> 32


@inlined
def _find(table: np.ndarray, slots: int, first: int, second: int) -> int:
    """Return the position of the slot that holds the hash, else of the empty slot where it belongs."""
    slot = _first_slot(slots, first)
    while True:
        position = slot * SLOT_WORDS
        if table[position + 2] == 0 or (table[position] == first and table[position + 1] == second):
            return position
        slot = (slot + 1) if slot + 1 < slots else 0


@fill_kernel
def put_all(
    table: np.ndarray,
    slots: int,
    max_keys: int,
    key_count: int,
    hashes: np.ndarray,
    has_key: np.ndarray,
    offsets: np.ndarray,
) -> tuple[int, int, int]:
    """Add records to a map of `key_count` keys up to `max_keys`; returns (next row, key count, last offset or -1)."""
    last_offset = -1
    for row in range(offsets.size):
        if row + _PREFETCH_ROWS < offsets.size:
            prefetch(table, _first_slot(slots, hashes[row + _PREFETCH_ROWS, 0]) * SLOT_WORDS)
        if not has_key[row]:
            continue
        if key_count >= max_keys:
            return row, key_count, last_offset
        position = _find(table, slots, hashes[row, 0], hashes[row, 1])
        if table[position + 2] == 0:
            table[position], table[position + 1] = hashes[row, 0], hashes[row, 1]
            key_count += 1
        last_offset = offsets[row]
        table[position + 2] = last_offset + 1
    return offsets.size, key_count, last_offset


@fill_kernel
def get_all(table: np.ndarray, slots: int, hashes: np.ndarray, last_offsets: np.ndarray) -> None:
    """Write the last offset of each key to `last_offsets`, or -1 for a key that is not in the map."""
    for row in range(last_offsets.size):
        if row + _PREFETCH_ROWS < last_offsets.size:
            prefetch(table, _first_slot(slots, hashes[row + _PREFETCH_ROWS, 0]) * SLOT_WORDS)
        last_offsets[row] = table[_find(table, slots, hashes[row, 0], hashes[row, 1]) + 2] - 1


@fill_kernel
def put_rows(
    table: np.ndarray, slots: int, max_keys: int, key_count: int, rows: np.ndarray, superseded: np.ndarray
) -> tuple[int, int]:
    """Add `rows` to a map of `key_count` keys. If a key gets a second offset, the lower one goes to `superseded`.

    Returns (number of superseded offsets, or -1 if there are more keys than `max_keys`; new key count).
    """
    count, row_count = 0, rows.shape[0]
    for row in range(row_count):
        if row + _PREFETCH_ROWS < row_count:
            prefetch(table, _first_slot(slots, rows[row + _PREFETCH_ROWS, 0]) * SLOT_WORDS)
        position = _find(table, slots, rows[row, 0], rows[row, 1])
        known_offset, offset = table[position + 2] - 1, rows[row, 2]
        if known_offset < 0:
            if key_count >= max_keys:
                return -1, key_count
            table[position], table[position + 1] = rows[row, 0], rows[row, 1]
            key_count += 1
        elif known_offset != offset:
            superseded[count] = min(known_offset, offset)
            count += 1
        table[position + 2] = max(known_offset, offset) + 1
    return count, key_count


@fill_kernel
def find_superseded(table: np.ndarray, slots: int, rows: np.ndarray, superseded: np.ndarray) -> int:
    """Write to `superseded` the offsets of `rows` whose key has a later offset in the map; returns their number."""
    count, row_count = 0, rows.shape[0]
    for row in range(row_count):
        if row + _PREFETCH_ROWS < row_count:
            prefetch(table, _first_slot(slots, rows[row + _PREFETCH_ROWS, 0]) * SLOT_WORDS)
        if table[_find(table, slots, rows[row, 0], rows[row, 1]) + 2] - 1 > rows[row, 2]:
            superseded[count] = rows[row, 2]
            count += 1
    return count


#: The bytes by which a record can grow when the bases of its timestamp and offset change: its size, timestamp delta
#: and offset delta may grow from 1 byte to 5, 10 and 5 bytes.
RECORD_GROWTH = 17

#: The retained records of a batch. `first_record` is the number of the batch's first record among the records of all
#: batches. `offset_of_max` is the offset of the first retained record with the largest timestamp.
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
    stays_whole: np.ndarray,
    drops_tombstones: np.ndarray,
    last_compacted_offset: int,
    is_current: np.ndarray,
    has_key: np.ndarray,
    has_value: np.ndarray,
    offsets: np.ndarray,
    timestamps: np.ndarray,
    is_kept: np.ndarray,
    retained: np.ndarray,
) -> int:
    """Fill `is_kept`, per record, and `retained` (RETAINED rows), per batch.

    Returns how many records were dropped because they lack a key.

    For each batch, `counts` is the number of its records, `stays_whole` is whether all its records stay, and
    `drops_tombstones` is whether its tombstones are dropped. If the batch does not stay whole, a record stays if its
    offset is above `last_compacted_offset`, or if it is its key's last (`is_current`) and not a dropped tombstone.
    """
    unkeyed_records = record = 0
    for batch in range(counts.size):
        row = retained[batch]
        row["first_record"] = record
        row["records"] = row["tombstones"] = 0
        for index in range(record, record + counts[batch]):
            stays = stays_whole[batch] or offsets[index] > last_compacted_offset
            if not stays:
                if not has_key[index]:
                    unkeyed_records += 1
                else:
                    stays = is_current[index] and (has_value[index] or not drops_tombstones[batch])
            is_kept[index] = stays
            if not stays:
                continue
            if row["records"] == 0:
                row["first_timestamp"] = timestamps[index]
            if row["records"] == 0 or timestamps[index] > row["max_timestamp"]:
                row["max_timestamp"] = timestamps[index]
                row["offset_of_max"] = offsets[index]
            row["records"] += 1
            if not has_value[index]:
                row["tombstones"] += 1
        record += counts[batch]
    return unkeyed_records


@fill_kernel
def rewrite_records(
    data: np.ndarray,
    sections: np.ndarray,
    first_records: np.ndarray,
    base_offsets: np.ndarray,
    base_timestamps: np.ndarray,
    is_kept: np.ndarray,
    timestamps: np.ndarray,
    target: np.ndarray,
    ends: np.ndarray,
) -> None:
    """Write the retained records of `sections` to `target`, section after section, and the section ends to `ends`.

    Times and offsets become relative to the sections' `base_timestamps` and `base_offsets`; other fields are copied.
    `is_kept` and `timestamps` are per record, `first_records` per section. A scan has checked the records' bounds.
    """
    position = 0
    for number in range(sections.size):
        source_position, end = sections[number]["start"], sections[number]["end"]
        shift = sections[number]["base_offset"] - base_offsets[number]
        base_timestamp = base_timestamps[number]
        first = first_records[number]
        for index in range(first, first + sections[number]["record_count"]):
            size, body_at = read_number(data, source_position, end, VARINT, True)
            source_position = body_at + size
            if not is_kept[index]:
                continue
            _, fields_at = read_number(data, body_at + 1, end, VARLONG, True)
            offset_delta, fields_at = read_number(data, fields_at, end, VARINT, True)
            offset_delta += shift
            delta = timestamps[index] - base_timestamp
            fields_size = source_position - fields_at
            new_size = 1 + varlong_size(delta) + varlong_size(offset_delta) + fields_size
            position = write_varlong(target, position, new_size)
            put_at(target, position, item_at(data, body_at))  # attributes
            position = write_varlong(target, write_varlong(target, position + 1, delta), offset_delta)
            copy_bytes(target, position, data, fields_at, fields_size)
            position += fields_size
        ends[number] = position
