"""The loops of the map from the hash of a key to its last offset.

Open addressing with linear probing over one flat array; a slot is the two words of the hash, and the offset plus one
(0: empty). One slot is always empty.
"""

from __future__ import annotations

import numpy as np

from distlog.core.kernels.native.jit import fill_kernel, inlined
from distlog.core.kernels.native.memory import prefetch

SLOT_WORDS = 3
#: How many records ahead a slot is fetched: memory takes about as long as that many searches.
_AHEAD = 16


@inlined
def _home(slots: int, first: int) -> int:
    """Where the search begins for a hash with the first word `first`."""
    return (first >> 32 & 0xFFFFFFFF) * slots >> 32


@inlined
def _find(table: np.ndarray, slots: int, first: int, second: int) -> int:
    """The position of the slot that holds the hash, else of the empty slot where it belongs; one is always empty."""
    slot = _home(slots, first)
    while True:
        at = slot * SLOT_WORDS
        if table[at + 2] == 0 or (table[at] == first and table[at + 1] == second):
            return at
        slot = slot + 1 if slot + 1 < slots else 0


@fill_kernel
def put_all(
    table: np.ndarray,
    slots: int,
    limit: int,
    size: int,
    hashes: np.ndarray,
    valid: np.ndarray,
    offsets: np.ndarray,
) -> tuple[int, int, int]:
    """Note records in their order, each with its offset, until the map holds `limit` keys.

    Returns (records taken, keys in the map, last offset put or -1).
    """
    latest = -1
    for row in range(offsets.size):
        if row + _AHEAD < offsets.size:
            prefetch(table, _home(slots, hashes[row + _AHEAD, 0]) * SLOT_WORDS)
        if not valid[row]:
            continue
        if size >= limit:
            return row, size, latest
        at = _find(table, slots, hashes[row, 0], hashes[row, 1])
        if table[at + 2] == 0:
            table[at] = hashes[row, 0]
            table[at + 1] = hashes[row, 1]
            size += 1
        latest = offsets[row]
        table[at + 2] = latest + 1
    return offsets.size, size, latest


@fill_kernel
def get_all(table: np.ndarray, slots: int, hashes: np.ndarray, found: np.ndarray) -> None:
    """Write the last offset of each key to `found`, or -1 for a key that is not in the map."""
    for row in range(found.size):
        if row + _AHEAD < found.size:
            prefetch(table, _home(slots, hashes[row + _AHEAD, 0]) * SLOT_WORDS)
        found[row] = table[_find(table, slots, hashes[row, 0], hashes[row, 1]) + 2] - 1


@fill_kernel
def take_all(
    table: np.ndarray, slots: int, limit: int, size: int, rows: np.ndarray, superseded: np.ndarray
) -> tuple[int, int]:
    """Note `rows`, each a hash and an offset, in any order; of two of a key the lower offset goes to `superseded`.

    Returns (superseded records, or -1 when the map is full; keys in the map).
    """
    count = 0
    for row in range(superseded.size):
        if row + _AHEAD < superseded.size:
            prefetch(table, _home(slots, rows[row + _AHEAD, 0]) * SLOT_WORDS)
        at = _find(table, slots, rows[row, 0], rows[row, 1])
        noted, offset = table[at + 2] - 1, rows[row, 2]
        if noted < 0:
            if size >= limit:
                return -1, size
            table[at] = rows[row, 0]
            table[at + 1] = rows[row, 1]
            size += 1
        elif noted != offset:
            superseded[count] = min(noted, offset)
            count += 1
        table[at + 2] = max(noted, offset) + 1
    return count, size


@fill_kernel
def find_superseded(table: np.ndarray, slots: int, rows: np.ndarray, superseded: np.ndarray) -> int:
    """Write to `superseded` the offsets of `rows` whose key has a later offset in the map; returns their number."""
    count = 0
    for row in range(superseded.size):
        if row + _AHEAD < superseded.size:
            prefetch(table, _home(slots, rows[row + _AHEAD, 0]) * SLOT_WORDS)
        if table[_find(table, slots, rows[row, 0], rows[row, 1]) + 2] - 1 > rows[row, 2]:
            superseded[count] = rows[row, 2]
            count += 1
    return count
