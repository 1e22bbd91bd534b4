"""The rows that tasks exchange about keys: three words, the hash of a key and the offset of its record.

A key belongs to one bucket. One word of its hash decides the bucket, the other one the place in an offset map: the
same word for both would fill the map's slots in clusters.
"""

from __future__ import annotations

import numpy as np

from distlog.core.kernels.native.jit import fill_kernel, inlined

ROW_WORDS = 3
ROW_BYTES = 8 * ROW_WORDS


@inlined
def _place(second: int, offset: int, start_offset: int, buckets: int) -> int:
    """The bucket of a key by the second word of its hash; plus `buckets` if `offset` is below `start_offset`."""
    bucket = (second >> 32 & 0xFFFFFFFF) * buckets >> 32
    return bucket if offset >= start_offset else bucket + buckets


@fill_kernel
def count_keys(
    hashes: np.ndarray, keyed: np.ndarray, offsets: np.ndarray, start_offset: int, counts: np.ndarray
) -> None:
    """Add to `counts`, two per bucket, the number of records with a key that `_place` puts at each place."""
    buckets = counts.size // 2
    for row in range(offsets.size):
        if keyed[row]:
            counts[_place(hashes[row, 1], offsets[row], start_offset, buckets)] += 1


@fill_kernel
def place_keys(
    hashes: np.ndarray,
    keyed: np.ndarray,
    offsets: np.ndarray,
    start_offset: int,
    positions: np.ndarray,
    rows: np.ndarray,
) -> None:
    """Write the rows of records with a key, each at the position of its place, and move that position on."""
    buckets = positions.size // 2
    for row in range(offsets.size):
        if keyed[row]:
            place = _place(hashes[row, 1], offsets[row], start_offset, buckets)
            at = positions[place]
            rows[at, 0] = hashes[row, 0]
            rows[at, 1] = hashes[row, 1]
            rows[at, 2] = offsets[row]
            positions[place] = at + 1
