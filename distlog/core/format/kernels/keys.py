"""The kernels for keys of records: hashes, the map of compaction, and partitions."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from distlog.core.format.kernels.native import fill_kernel, half_word_at, inlined, item_at, prefetch, word_at, wrapped

HASH_WORDS = 2

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
        hashes[row, 0], hashes[row, 1] = _siphash(data, item_at(positions, row), size, first, second)


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
def _siphash(data: np.ndarray, position: int, size: int, first: int, second: int) -> tuple[int, int]:
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


# A key belongs to one bucket. One word of its hash selects the bucket, the second word the slot in an offset map:
# with the same word for both, the map would fill in clusters.


ROW_WORDS = 3
ROW_BYTES = 8 * ROW_WORDS


@inlined
def _bucket(second: int, offset: int, start_offset: int, buckets: int) -> int:
    """The bucket of a key by the second word of its hash; plus `buckets` if `offset` is below `start_offset`."""
    number = (second >> 32 & 0xFFFFFFFF) * buckets >> 32
    return number if offset >= start_offset else number + buckets


@fill_kernel
def count_keys(
    hashes: np.ndarray, keyed: np.ndarray, offsets: np.ndarray, start_offset: int, counts: np.ndarray
) -> None:
    """Add to `counts`, two per bucket, the number of records with a key that `_bucket` puts there."""
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
    """Write the rows of records with a key at the position of their bucket, and advance that position."""
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


# Open addressing with linear probing over one flat array; a slot is the two words of the hash, and the offset plus
# one (0: empty). One slot is always empty.


SLOT_WORDS = 3
#: A slot is fetched this many records early: memory takes as long as about that many searches.
_PREFETCH_ROWS = 16


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
    """Add records until the map holds `limit` keys: (records added, keys in the map, last offset added or -1)."""
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
    """Add `rows`; a key's lower offset goes to `superseded`. Returns their number (-1: full), and keys in the map."""
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


# The hash is Austin Appleby's MurmurHash2 as in Kafka's `Utils.murmur2`. The use of the hash, and the partitions of
# records without a key, follow Kafka's `BuiltInPartitioner`.


Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]

#: About how many bytes a record has in a batch besides its key and value.
RECORD_OVERHEAD = 8
_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_MASK = 0xFFFFFFFF


@fill_kernel
def first_out_of_range(partitions: Ints, count: int) -> int:
    """The first row whose partition is not between 0 and `count` - 1, or -1."""
    for row in range(len(partitions)):
        if partitions[row] < 0 or partitions[row] >= count:
            return row
    return -1


@inlined
def murmur2(data: Bytes, start: int, end: int) -> int:
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
def assign(
    offsets: Ints | Longs,
    data: Bytes,
    valid: Bytes,
    first_bit: int,
    value_offsets: Ints | Longs,
    partitions: int,
    partition: int,
    used_bytes: int,
    run_bytes: int,
    assigned: Ints,
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
def group(partitions: Ints, order: Longs, counts: Longs, following: Longs) -> int:
    """Write row numbers to `order`, by partition, and count them in `counts`; returns the first bad row, or -1."""
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
