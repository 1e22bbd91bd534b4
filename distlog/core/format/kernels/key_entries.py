"""The entries of a key index: collects, sorts, writes and finds them."""

from __future__ import annotations

import numpy as np

from distlog.core.format.kernels.batch_scan import EMPTY_CRC, crc32c_of
from distlog.core.format.kernels.native import fill_kernel, inlined, int_at, item_at, put_at, put_int_at
from distlog.core.format.kernels.siphash import siphash
from distlog.core.integers import MAX_LONG

#: A block ends with the CRC-32C of its items XOR `log_crc`, the checksum of the log's first batch: a block from
#: another log's index then fails the comparison. The last block of a table may have fewer items.
BLOCK_BYTES, CRC_BYTES = 4096, 4
ENTRY_BYTES, POSTING_BYTES = 12, 4
BLOCK_ENTRIES = (BLOCK_BYTES - CRC_BYTES) // ENTRY_BYTES
BLOCK_POSTINGS = (BLOCK_BYTES - CRC_BYTES) // POSTING_BYTES
#: Pairs are sorted in buckets of the hashes with the same first 10 of 63 bits.
BUCKETS, BUCKET_SHIFT = 1 << 10, 63 - 10
#: Other results of a search, larger than any value: the hash has no entry, or has it before or after these blocks.
ABSENT, IN_EARLIER_BLOCK, IN_LATER_BLOCK, BAD_BLOCK = (result + (1 << 40) for result in range(4))


@inlined
def _hash(data: np.ndarray, position: int, size: int) -> int:
    first, _ = siphash(data, position, size, 0, 0)
    return first & MAX_LONG


@fill_kernel
def hash_keys(data: np.ndarray, offsets: np.ndarray, hashes: np.ndarray) -> None:
    """Write the hash of each key; key i is data[offsets[i] : offsets[i + 1]]."""
    for row in range(hashes.size):
        hashes[row] = _hash(data, item_at(offsets, row), item_at(offsets, row + 1) - item_at(offsets, row))


@fill_kernel
def collect_pairs(
    data: np.ndarray,
    key_positions: np.ndarray,
    key_offsets: np.ndarray,
    valid: np.ndarray,
    counts: np.ndarray,
    batch_positions: np.ndarray,
    recent: np.ndarray,
    bucket_sizes: np.ndarray,
    hashes: np.ndarray,
    positions: np.ndarray,
) -> int:
    """Write a pair of each key, its hash and the position of its batch; returns the number of pairs.

    `counts` has the number of records of each batch. `recent` has recent pairs by the last bits of their hash, so
    that few pairs are written twice. `bucket_sizes` counts the pairs of each bucket.
    """
    written = record = 0
    for batch in range(counts.size):
        position = item_at(batch_positions, batch)
        for _ in range(item_at(counts, batch)):
            if item_at(valid, record):
                size = item_at(key_offsets, record + 1) - item_at(key_offsets, record)
                key_hash = _hash(data, item_at(key_positions, record), size)
                slot = key_hash & (recent.shape[0] - 1)
                if recent[slot, 0] != key_hash or recent[slot, 1] != position:
                    recent[slot, 0], recent[slot, 1] = key_hash, position
                    put_at(hashes, written, key_hash)
                    put_at(positions, written, position)
                    bucket = key_hash >> BUCKET_SHIFT
                    put_at(bucket_sizes, bucket, item_at(bucket_sizes, bucket) + 1)
                    written += 1
            record += 1
    return written


@inlined
def _move_to_buckets(
    hashes: np.ndarray,
    positions: np.ndarray,
    start: int,
    end: int,
    shift: int,
    targets: np.ndarray,
    new_hashes: np.ndarray,
    new_positions: np.ndarray,
) -> None:
    """Copy pairs [start, end) to the next row of their bucket, whose number is the last bits of hash >> shift."""
    bucket_mask = targets.size - 1
    for row in range(start, end):
        bucket = (item_at(hashes, row) >> shift) & bucket_mask
        target = item_at(targets, bucket)
        put_at(targets, bucket, target + 1)
        put_at(new_hashes, target, item_at(hashes, row))
        put_at(new_positions, target, item_at(positions, row))


@fill_kernel
def move_to_buckets(
    hashes: np.ndarray, positions: np.ndarray, targets: np.ndarray, new_hashes: np.ndarray, new_positions: np.ndarray
) -> None:
    """Copy pairs to the buckets of their hashes' first bits; `targets`, the next row of each bucket, advances."""
    _move_to_buckets(hashes, positions, 0, hashes.size, BUCKET_SHIFT, targets, new_hashes, new_positions)


@fill_kernel
def sort_buckets(
    hashes: np.ndarray,
    positions: np.ndarray,
    ends: np.ndarray,
    bits: int,
    most_moves: int,
    targets: np.ndarray,
    scratch_hashes: np.ndarray,
    scratch_positions: np.ndarray,
) -> bool:
    """Sort the pairs of each bucket by hash, then by position; returns whether they are sorted.

    Gives up after `most_moves` moves and returns False: the arrays then still have every pair, in some other order.
    The pairs of a bucket are moved to sub-buckets by the next `bits` bits of their hashes, and then sorted by
    insertion, a bucket at a time so that it stays in the processor's cache. `targets` has room for 2^bits numbers,
    the scratch arrays for the largest bucket.
    """
    shift = BUCKET_SHIFT - bits
    bucket_mask = targets.size - 1
    start = moves = 0
    for bucket in range(ends.size):
        end = item_at(ends, bucket)
        # `targets` has the counts of the sub-buckets first, then their next rows
        for sub_bucket in range(targets.size):
            put_at(targets, sub_bucket, 0)
        for row in range(start, end):
            sub_bucket = (item_at(hashes, row) >> shift) & bucket_mask
            put_at(targets, sub_bucket, item_at(targets, sub_bucket) + 1)
        next_target = 0
        for sub_bucket in range(targets.size):
            count = item_at(targets, sub_bucket)
            put_at(targets, sub_bucket, next_target)
            next_target += count
        _move_to_buckets(hashes, positions, start, end, shift, targets, scratch_hashes, scratch_positions)
        for row in range(start, end):
            key_hash, position = item_at(scratch_hashes, row - start), item_at(scratch_positions, row - start)
            hole = row
            while (
                hole > start
                and moves <= most_moves
                and (
                    item_at(hashes, hole - 1) > key_hash
                    or (item_at(hashes, hole - 1) == key_hash and item_at(positions, hole - 1) > position)
                )
            ):
                put_at(hashes, hole, item_at(hashes, hole - 1))
                put_at(positions, hole, item_at(positions, hole - 1))
                hole -= 1
                moves += 1
            put_at(hashes, hole, key_hash)
            put_at(positions, hole, position)
        if moves > most_moves:
            return False
        start = end
    return True


@inlined
def _entry_at(entry: int) -> int:
    return entry // BLOCK_ENTRIES * BLOCK_BYTES + entry % BLOCK_ENTRIES * ENTRY_BYTES


@inlined
def _posting_at(posting: int) -> int:
    return posting // BLOCK_POSTINGS * BLOCK_BYTES + posting % BLOCK_POSTINGS * POSTING_BYTES


@fill_kernel
def write_items(
    hashes: np.ndarray, positions: np.ndarray, log_crc: int, entries: np.ndarray, postings: np.ndarray
) -> tuple[int, int]:
    """Write the entries and postings of sorted pairs, and their checksums; returns the number of each.

    An entry is a hash (8 bytes) and a value (4 bytes). If one batch has the hash, the value is the batch's position.
    Otherwise it is ~n (the complement), n being the number of the hash's first posting. A posting is a batch's
    position; the last posting of a hash is stored as ~position. Both tables have room for an item per pair.
    """
    entry = posting = start = 0
    while start < hashes.size:
        end = start + 1
        while end < hashes.size and hashes[end] == hashes[start]:
            end += 1
        first = posting
        last = positions[end - 1]
        if last != positions[start]:
            for row in range(start, end):
                if row == start or positions[row] != positions[row - 1]:
                    is_last = positions[row] == last
                    put_int_at(postings, _posting_at(posting), 4, ~positions[row] if is_last else positions[row])
                    posting += 1
        target = _entry_at(entry)
        put_int_at(entries, target, 8, hashes[start])
        put_int_at(entries, target + 8, 4, ~first if posting > first else last)
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
        if crc32c_of(EMPTY_CRC, blocks, block, crc_at) ^ log_crc != int_at(blocks, crc_at, 4) & 0xFFFFFFFF:
            return block
    return -1


@fill_kernel
def first_bad_block(blocks: np.ndarray, log_crc: int) -> int:
    """Return the position of the first block with a wrong checksum, or -1."""
    return _bad_block(blocks, 0, blocks.size, log_crc)


@inlined
def _find(blocks: np.ndarray, start: int, count: int, key_hash: int) -> int:
    """Return the value of the hash's entry among the `count` entries from `start` on, or why it is not there."""
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
    """Write the result of a search for each hash among the `count` entries in `blocks`."""
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
    """Write the result of a search for the hash in each of several indexes, or BAD_BLOCK.

    Bytes [starts[i], ends[i]) of `blocks` are some blocks of index i, with counts[i] entries, of the log log_crcs[i].
    Only the block that the hash belongs to is checked, and the next block if its first hash shows the hash's absence.
    """
    for row in range(starts.size):
        block = starts[row]
        while block + BLOCK_BYTES < ends[row] and int_at(blocks, block + BLOCK_BYTES, 8) <= key_hash:
            block += BLOCK_BYTES
        count = min(counts[row] - (block - starts[row]) // BLOCK_BYTES * BLOCK_ENTRIES, BLOCK_ENTRIES)
        value = _find(blocks, block, count, key_hash)
        checked_end = min(block + BLOCK_BYTES, ends[row])
        if value == IN_LATER_BLOCK and checked_end < ends[row]:
            # the next block begins with a greater hash, if its checksum is right
            value = ABSENT
            checked_end = min(checked_end + BLOCK_BYTES, ends[row])
        values[row] = value if _bad_block(blocks, block, checked_end, log_crcs[row]) < 0 else BAD_BLOCK


@fill_kernel
def read_postings(blocks: np.ndarray, count: int, starts: np.ndarray, positions: np.ndarray, rows: np.ndarray) -> int:
    """Write the positions of the lists that begin at `starts` among `count` postings, and the row of each position.

    Returns the number of positions; -1 if a list does not end among these postings, or `positions` is full.
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
