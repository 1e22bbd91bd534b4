"""Assigns records to partitions, and finds the order that brings a partition's records together.

The hash is Austin Appleby's MurmurHash2 as in Kafka's `Utils.murmur2`. The use of the hash, and the partitions of
records without a key, follow Kafka's `BuiltInPartitioner`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from distlog.core.kernels.native.jit import fill_kernel, inlined, kernel

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]

#: About how many bytes a record takes in a batch beyond its key and value.
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
    for at in range(start, words_end, 4):
        word = _word(data, at) * _MULTIPLIER & _MASK
        word = (word ^ (word >> 24)) * _MULTIPLIER & _MASK
        value = (value * _MULTIPLIER & _MASK) ^ word
    if words_end < end:
        for at in range(words_end, end):
            value ^= int(data[at]) << (8 * (at - words_end))
        value = value * _MULTIPLIER & _MASK
    value = (value ^ (value >> 13)) * _MULTIPLIER & _MASK
    return value ^ (value >> 15)


@inlined
def _word(data: Bytes, position: int) -> int:
    # Unrolled, with indexes that cannot be negative, so that the compiler makes it one load.
    at = np.uintp(position)
    low = np.int64(data[at]) | (np.int64(data[at + np.uintp(1)]) << 8)
    return int(low | (np.int64(data[at + np.uintp(2)]) << 16) | (np.int64(data[at + np.uintp(3)]) << 24))


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


@kernel
def group(partitions: Ints, order: Longs, counts: Longs) -> int:
    """Write the row numbers to `order`, sorted by partition and then by row, and each partition's count to `counts`.

    `counts` must be zeros. Returns the first row whose partition is not between 0 and the size of `counts`, or -1.
    """
    for row in range(len(partitions)):
        if partitions[row] < 0 or partitions[row] >= len(counts):
            return row
        counts[partitions[row]] += 1
    following = np.empty(len(counts), np.int64)
    total = 0
    for partition in range(len(counts)):
        following[partition] = total
        total += counts[partition]
    for row in range(len(partitions)):
        order[following[partitions[row]]] = row
        following[partitions[row]] += 1
    return -1
