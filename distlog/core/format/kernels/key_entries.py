"""Kernels that collect, sort, write and find the entries of a key index; key_index.py describes its tables."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from distlog.core.arrays import MAX_LONG
from distlog.core.format.kernels.batch_scan import EMPTY_CRC, crc32c_of
from distlog.core.format.kernels.hashes import xxh64
from distlog.core.format.kernels.native import fill_kernel, inlined, int_at, item_at, put_at, put_int_at
from distlog.core.format.kernels.record_scan import OK, SLACK, Slices, read_record

#: A table has blocks of items (entries or postings). A block ends with the CRC-32C of its items XOR `log_crc`, the
#: checksum of the log's first batch, so that a block of another log fails the check. The last block may be shorter.
BLOCK_BYTES, CRC_BYTES = 4096, 4
ENTRY_BYTES, POSTING_BYTES = 12, 4
BLOCK_ENTRIES = (BLOCK_BYTES - CRC_BYTES) // ENTRY_BYTES
BLOCK_POSTINGS = (BLOCK_BYTES - CRC_BYTES) // POSTING_BYTES
#: Pairs of a key's hash and a batch's position are sorted in buckets, by the first 10 of the 63 bits of the hash.
BUCKETS, BUCKET_SHIFT = 1 << 10, 63 - 10
#: Other results of a search, larger than any value. ABSENT: the hash has no entry. BAD_BLOCK: a checksum is wrong.
#: IN_EARLIER_BLOCK, IN_LATER_BLOCK: if the hash has an entry, it is before or after the searched blocks.
ABSENT, IN_EARLIER_BLOCK, IN_LATER_BLOCK, BAD_BLOCK = range(1 << 40, (1 << 40) + 4)


@inlined
def _hash(data: np.ndarray, position: int, size: int) -> int:
    return xxh64(data, position, size) & MAX_LONG


@fill_kernel
def hash_keys(data: np.ndarray, offsets: np.ndarray, hashes: np.ndarray) -> None:
    """Write the hash of each key; key i is data[offsets[i] : offsets[i + 1]]."""
    for row in range(hashes.size):
        hashes[row] = _hash(data, item_at(offsets, row), item_at(offsets, row + 1) - item_at(offsets, row))


class CollectedPairs(NamedTuple):
    """Memory for pairs of a key's hash and the position of a batch with the key.

    `recent` is a cache of pairs by the last bits of the hash. It has a hash and a position for each of 2^n slots.
    """

    hashes: np.ndarray
    positions: np.ndarray
    recent: np.ndarray
    bucket_sizes: np.ndarray


@inlined
def _collect(pairs: CollectedPairs, row: int, key_hash: int, position: int) -> int:
    """Write a pair to `row`, unless it was collected recently; returns the next row."""
    slot = 2 * (key_hash & (pairs.recent.size // 2 - 1))
    if item_at(pairs.recent, slot) == key_hash and item_at(pairs.recent, slot + 1) == position:
        return row
    put_at(pairs.recent, slot, key_hash)
    put_at(pairs.recent, slot + 1, position)
    put_at(pairs.hashes, row, key_hash)
    put_at(pairs.positions, row, position)
    bucket = key_hash >> BUCKET_SHIFT
    put_at(pairs.bucket_sizes, bucket, item_at(pairs.bucket_sizes, bucket) + 1)
    return row + 1


@fill_kernel
def collect_pairs(data: np.ndarray, sections: np.ndarray, batch_positions: np.ndarray, pairs: CollectedPairs) -> int:
    """Collect the keys of `sections` (SECTION rows) of format 2; section i is in the batch at batch_positions[i].

    Returns the number of pairs, or -1 if a record is malformed.
    """
    row = 0
    for index in range(sections.size):
        start, end = int(sections[index]["start"]), int(sections[index]["end"])
        position = item_at(batch_positions, index)
        for _ in range(sections[index]["record_count"]):
            # a fast read needs SLACK bytes after the section, and fails at large numbers
            is_careful = end + SLACK > data.size
            status, record = read_record(data, start, end, is_careful)
            if status != OK:
                status, record = read_record(data, start, end, True)
                if status != OK:
                    return -1
            start = record.end
            if record.key_size >= 0:
                row = _collect(pairs, row, _hash(data, record.key_at, record.key_size), position)
    return row


@fill_kernel
def collect_pairs_of_entries(
    data: np.ndarray, key: Slices, sections: np.ndarray, batch_positions: np.ndarray, pairs: CollectedPairs
) -> int:
    """Collect the scanned keys of entries in older formats, as `collect_pairs` does."""
    row = number = 0
    for index in range(sections.size):
        for _ in range(sections[index]["emitted"]):
            if item_at(key.valid, number):
                size = item_at(key.offsets, number + 1) - item_at(key.offsets, number)
                key_hash = _hash(data, item_at(key.positions, number), size)
                row = _collect(pairs, row, key_hash, item_at(batch_positions, index))
            number += 1
    return row


@inlined
def _put_entry(table: np.ndarray, start: int, key_hash: int, value: int) -> None:
    put_int_at(table, start, 8, key_hash)
    put_int_at(table, start + 8, 4, value)


@fill_kernel
def move_to_buckets(hashes: np.ndarray, positions: np.ndarray, next_rows: np.ndarray, pairs: np.ndarray) -> None:
    """Write each pair to the next row of its bucket in `pairs`; `next_rows` has the next row of each bucket."""
    for source in range(hashes.size):
        key_hash = item_at(hashes, source)
        row = item_at(next_rows, key_hash >> BUCKET_SHIFT)
        put_at(next_rows, key_hash >> BUCKET_SHIFT, row + 1)
        _put_entry(pairs, row * ENTRY_BYTES, key_hash, item_at(positions, source))


@inlined
def _entry_at(entry: int) -> int:
    """Return the position of entry number `entry` in its table, whose blocks end with checksums."""
    return entry // BLOCK_ENTRIES * BLOCK_BYTES + entry % BLOCK_ENTRIES * ENTRY_BYTES


@inlined
def _posting_at(posting: int) -> int:
    return posting // BLOCK_POSTINGS * BLOCK_BYTES + posting % BLOCK_POSTINGS * POSTING_BYTES


@inlined
def _sort_bucket(
    pairs: np.ndarray,
    start: int,
    end: int,
    most_moves: int,
    next_rows: np.ndarray,
    hashes: np.ndarray,
    positions: np.ndarray,
) -> int:
    """Sort pairs [start, end), all of one bucket, by hash into `hashes` and `positions`; returns the number of moves.

    Pairs with one hash keep their order. The pairs are first moved to sub-buckets, one for each item of `next_rows`.
    Then an insertion sort finishes the order. It gives up after more than `most_moves` moves.
    """
    # (hash >> shift) & mask is the sub-bucket: as many bits as `mask` has, after the hash's bits for the bucket
    mask, shift = next_rows.size - 1, BUCKET_SHIFT
    while mask >> (BUCKET_SHIFT - shift):
        shift -= 1
    # count the pairs of each sub-bucket, and replace the counts by the first rows
    for sub_bucket in range(next_rows.size):
        put_at(next_rows, sub_bucket, 0)
    for pair in range(start, end):
        sub_bucket = (int_at(pairs, pair * ENTRY_BYTES, 8) >> shift) & mask
        put_at(next_rows, sub_bucket, item_at(next_rows, sub_bucket) + 1)
    next_row = 0
    for sub_bucket in range(next_rows.size):
        count = item_at(next_rows, sub_bucket)
        put_at(next_rows, sub_bucket, next_row)
        next_row += count
    for pair in range(start, end):
        key_hash = int_at(pairs, pair * ENTRY_BYTES, 8)
        sub_bucket = (key_hash >> shift) & mask
        row = item_at(next_rows, sub_bucket)
        put_at(next_rows, sub_bucket, row + 1)
        put_at(hashes, row, key_hash)
        put_at(positions, row, int_at(pairs, pair * ENTRY_BYTES + 8, 4))
    moves = 0
    for row in range(1, end - start):
        key_hash, position, hole = item_at(hashes, row), item_at(positions, row), row
        while hole > 0 and item_at(hashes, hole - 1) > key_hash:
            put_at(hashes, hole, item_at(hashes, hole - 1))
            put_at(positions, hole, item_at(positions, hole - 1))
            hole -= 1
        put_at(hashes, hole, key_hash)
        put_at(positions, hole, position)
        moves += row - hole
        if moves > most_moves:
            break
    return moves


@fill_kernel
def write_items(
    pairs: np.ndarray,
    ends: np.ndarray,
    most_moves: int,
    next_rows: np.ndarray,
    hashes: np.ndarray,
    positions: np.ndarray,
    log_crc: int,
    entries: np.ndarray,
    postings: np.ndarray,
) -> tuple[int, int]:
    """Write both tables of `pairs`, whose buckets end at `ends`; returns the numbers of entries and of postings.

    An entry is a hash (8 bytes) and a value (4 bytes). If only one batch has the hash, the value is its position.
    Otherwise the value is ~n, where n is the number of the hash's first posting. A posting is a batch's position; the
    last posting of a hash is stored as ~position. `postings` has room for an item per pair.

    `entries` may overlap `pairs` if it begins before them, since each bucket is sorted into `hashes` and `positions`
    before its entries are written. Returns (-1, 0) after more than `most_moves` moves, which only happens if someone
    chose keys with similar hashes.
    """
    entry = posting = bucket_start = 0
    for bucket in range(ends.size):
        bucket_end = item_at(ends, bucket)
        most_moves -= _sort_bucket(pairs, bucket_start, bucket_end, most_moves, next_rows, hashes, positions)
        if most_moves < 0:
            return -1, 0
        count, bucket_start = bucket_end - bucket_start, bucket_end
        start = 0
        while start < count:
            key_hash, first = item_at(hashes, start), posting
            last = item_at(positions, start)
            end = start + 1
            while end < count and item_at(hashes, end) == key_hash:
                position = item_at(positions, end)
                if position != last:
                    put_int_at(postings, _posting_at(posting), 4, last)
                    posting += 1
                    last = position
                end += 1
            if posting > first:
                put_int_at(postings, _posting_at(posting), 4, ~last)
                posting += 1
            _put_entry(entries, _entry_at(entry), key_hash, ~first if posting > first else last)
            entry += 1
            start = end
    _write_crcs(entries, _entry_at(entry - 1) + ENTRY_BYTES, log_crc)
    if posting:
        _write_crcs(postings, _posting_at(posting - 1) + POSTING_BYTES, log_crc)
    return entry, posting


@inlined
def _write_crcs(table: np.ndarray, last_end: int, log_crc: int) -> None:
    """Write the checksums of a table whose last item ends at `last_end`."""
    for start in range(0, last_end, BLOCK_BYTES):
        end = min(start + BLOCK_BYTES - CRC_BYTES, last_end)
        put_int_at(table, end, 4, crc32c_of(EMPTY_CRC, table, start, end) ^ log_crc)


@inlined
def _bad_block(blocks: np.ndarray, start: int, end: int, log_crc: int) -> int:
    for block in range(start, end, BLOCK_BYTES):
        crc_at = min(block + BLOCK_BYTES, end) - CRC_BYTES
        stored = int_at(blocks, crc_at, 4) & 0xFFFFFFFF
        if crc32c_of(EMPTY_CRC, blocks, block, crc_at) ^ log_crc != stored:
            return block
    return -1


@fill_kernel
def first_bad_block(blocks: np.ndarray, log_crc: int) -> int:
    """Return the position of the first block with a wrong checksum, or -1."""
    return _bad_block(blocks, 0, blocks.size, log_crc)


@inlined
def _find(blocks: np.ndarray, start: int, count: int, key_hash: int) -> int:
    """Return the value of the hash's entry among the `count` entries from `start` on, or why there is none."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if int_at(blocks, start + _entry_at(middle), 8) < key_hash:
            low = middle + 1
        else:
            high = middle
    if low < count and int_at(blocks, start + _entry_at(low), 8) == key_hash:
        value: int = int_at(blocks, start + _entry_at(low) + 8, 4)
        return value
    if low == 0:
        return IN_EARLIER_BLOCK
    return IN_LATER_BLOCK if low == count else ABSENT


@fill_kernel
def find_entries(blocks: np.ndarray, count: int, hashes: np.ndarray, values: np.ndarray) -> None:
    """Search for each hash among the `count` entries in `blocks`, and write the results to `values`."""
    for row in range(hashes.size):
        values[row] = _find(blocks, 0, count, hashes[row])


@fill_kernel
def find_in_each(
    blocks: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    counts: np.ndarray,
    log_crcs: np.ndarray,
    key_hash: int,
    values: np.ndarray,
) -> None:
    """Search for the hash in several indexes, and write the results to `values`.

    Bytes [starts[i], ends[i]) of `blocks` are some blocks of index i, with counts[i] entries. Checks the checksum of
    the block where the hash belongs, and of the next block if its first hash shows that the hash is absent.
    """
    for row in range(starts.size):
        block = starts[row]
        while block + BLOCK_BYTES < ends[row] and int_at(blocks, block + BLOCK_BYTES, 8) <= key_hash:
            block += BLOCK_BYTES
        count = min(counts[row] - (block - starts[row]) // BLOCK_BYTES * BLOCK_ENTRIES, BLOCK_ENTRIES)
        value = _find(blocks, block, count, key_hash)
        checked_end = min(block + BLOCK_BYTES, ends[row])
        if value == IN_LATER_BLOCK and checked_end < ends[row]:
            # the next block begins with a greater hash, unless its checksum is wrong
            value = ABSENT
            checked_end = min(checked_end + BLOCK_BYTES, ends[row])
        values[row] = value if _bad_block(blocks, block, checked_end, log_crcs[row]) < 0 else BAD_BLOCK


@fill_kernel
def read_postings(blocks: np.ndarray, count: int, starts: np.ndarray, positions: np.ndarray, rows: np.ndarray) -> int:
    """Write the positions in the lists of postings that begin at `starts`, and the row of its list for each position.

    Returns the number of positions, or -1 if a list does not end within `count` postings, or `positions` is full.
    """
    written = 0
    for row in range(starts.size):
        posting = starts[row]
        while True:
            if posting >= count or written == positions.size:
                return -1
            value = int_at(blocks, _posting_at(posting), 4)
            positions[written] = value if value >= 0 else ~value
            rows[written] = row
            written += 1
            posting += 1
            if value < 0:
                break
    return written
