"""Which partition each record goes to, and the order that brings a partition's records together.

The hash is Austin Appleby's MurmurHash2 as Kafka's `Utils.murmur2` has it; what is done with it, and with records
without a key, is what Kafka's `BuiltInPartitioner` does.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from distlog.core.kernels.jit import fill_kernel, inlined, kernel

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]

#: What a record takes in a batch besides its key and value, about.
RECORD_OVERHEAD = 8
_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_MASK = 0xFFFFFFFF
_BYTE = np.dtype(np.uint8)


class StickyState(NamedTuple):
    """The partition that records without a key go to now, and the bytes of them that it got in this run."""

    partition: int
    used_bytes: int


def assign_partitions(
    keys: pa.Array[Any], values: pa.Array[Any], partitions: int, sticky: StickyState, run_bytes: int
) -> tuple[Ints, StickyState]:
    """The partition of each record, int32: by its key, or by runs of about `run_bytes` where the key is null.

    `keys` and `values` are binary or large_binary, of one length. Returns the state to pass on with the next records.
    Raises ValueError when the columns, or the buffers of one, do not fit together.
    """
    if len(keys) != len(values):
        raise ValueError(f"{len(keys)} keys and {len(values)} values")
    key_offsets, key_data, valid = _buffers(keys)
    value_offsets, _, _ = _buffers(values)
    assigned = np.empty(len(keys), np.int32)
    partition, used_bytes = _assign(
        key_offsets, key_data, valid, keys.offset, value_offsets, partitions, *sticky, run_bytes, assigned
    )
    if partition < 0:
        raise ValueError("the offsets of the key column do not fit its data")
    return assigned, StickyState(partition, used_bytes)


def group_by_partition(partitions: Ints, count: int) -> tuple[Longs, Longs]:
    """(the row numbers by partition, those of one partition in their order; how many rows each partition has).

    Both int64. Raises ValueError unless every partition is between 0 and `count` - 1.
    """
    order = np.empty(len(partitions), np.int64)
    counts = np.zeros(count, np.int64)
    if _group(partitions, order, counts) >= 0:
        raise ValueError(f"a partition is not between 0 and {count - 1}")
    return order, counts


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
def _assign(
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
    # The sticky state afterwards; (-1, row) for a key that does not lie in `data`.
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
def _group(partitions: Ints, order: Longs, counts: Longs) -> int:
    # A counting sort; the first row that is out of range, or -1.
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


def _buffers(array: pa.Array[Any]) -> tuple[Ints | Longs, Bytes, Bytes]:
    # (the offsets of this slice, the data, the validity bits of the whole array or nothing where all are valid)
    valid, offsets, data = array.buffers()
    kind = np.dtype(np.int64 if pa.types.is_large_binary(array.type) else np.int32)
    wanted = _view(offsets, kind)[array.offset : array.offset + len(array) + 1]
    return wanted, _view(data), _view(valid if array.null_count else None)


def _view(buffer: pa.Buffer | None, kind: np.dtype[Any] = _BYTE) -> npt.NDArray[Any]:
    return np.frombuffer(memoryview(buffer) if buffer else b"", kind)
