"""What tasks exchange about keys: rows of three words, the hash of a key and the offset of its record.

A key belongs to one bucket. The word of its hash that says so is not the one that places it in an offset map, whose
slots would else be taken in clusters.
"""

from __future__ import annotations

import numpy as np

from distlog.core.kernels.jit import fill_kernel, inlined

ROW_WORDS = 3
ROW_BYTES = 8 * ROW_WORDS


@inlined
def _place(second: int, offset: int, start_offset: int, buckets: int) -> int:
    """The bucket of a key with that second word of its hash; counted on from `buckets` below `start_offset`."""
    bucket = (second >> 32 & 0xFFFFFFFF) * buckets >> 32
    return bucket if offset >= start_offset else bucket + buckets


@fill_kernel
def count_keys(
    hashes: np.ndarray, keyed: np.ndarray, offsets: np.ndarray, start_offset: int, counts: np.ndarray
) -> None:
    """Add to `counts`, two for each bucket, how many records with a key have each place."""
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
    """Write the rows of records with a key from where `positions` says for their place, and move it on."""
    buckets = positions.size // 2
    for row in range(offsets.size):
        if keyed[row]:
            place = _place(hashes[row, 1], offsets[row], start_offset, buckets)
            at = positions[place]
            rows[at, 0] = hashes[row, 0]
            rows[at, 1] = hashes[row, 1]
            rows[at, 2] = offsets[row]
            positions[place] = at + 1
