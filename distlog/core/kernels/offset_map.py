"""The map that compaction is made with: from the hash of a key to its last offset (Kafka's `SkimpyOffsetMap`).

Open addressing with linear probing over one flat array; a slot is the two words of the hash, and the offset plus one
(0: empty). Keys are compared by their hash alone, as Kafka compares them by their MD5.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from distlog.core.errors import InvalidConfigError
from distlog.core.kernels.jit import fill_kernel, inlined
from distlog.core.kernels.memory import prefetch

SLOT_WORDS = 3
SLOT_BYTES = 8 * SLOT_WORDS

#: Kafka's log.cleaner.io.buffer.load.factor.
LOAD_FACTOR = 0.9
_MAX_SLOTS = 2**31 - 1
#: How many records ahead a slot is fetched: memory takes about as long as that many searches.
_AHEAD = 16

Longs = npt.NDArray[np.int64]


class OffsetMap:
    """Room for `slots` keys, of which `load_factor` are used; full, it takes no record with a key any more.

    Memory is SLOT_BYTES a slot, given by the system as it is touched. `latest_offset` is the last offset put, or what
    it was moved to. InvalidConfigError when there is room for no key.
    """

    def __init__(self, slots: int, load_factor: float = LOAD_FACTOR) -> None:
        self.slots = min(slots, _MAX_SLOTS)
        self._limit = min(int(self.slots * load_factor), self.slots - 1)
        if self._limit < 1:
            raise InvalidConfigError("the offset map has room for no key: give compaction more memory", slots=slots)
        self.clear()

    @classmethod
    def within(cls, memory_bytes: int, records: int) -> OffsetMap:
        """A map for up to `records` records that takes at most `memory_bytes`."""
        return cls(min(memory_bytes // SLOT_BYTES, int(records / LOAD_FACTOR) + 2))

    def clear(self) -> None:
        """Forget everything."""
        self._table = np.zeros(self.slots * SLOT_WORDS, np.int64)
        self.size = 0
        self.latest_offset = -1

    @property
    def utilization(self) -> float:
        """The share of slots that hold a key."""
        return self.size / self.slots

    def put(self, hashes: Longs, valid: npt.NDArray[np.bool_], offsets: Longs) -> int:
        """Note the offsets of records in their order; those that are not `valid`, without a key, are passed over.

        Returns how many records were taken: fewer than there are when the map is full. As in Kafka a full map stops
        at the next key even where it knows that key.
        """
        taken, self.size, latest = _put_all(self._table, self.slots, self._limit, self.size, hashes, valid, offsets)
        if latest >= 0:
            self.latest_offset = int(latest)
        return taken

    def get(self, hashes: Longs) -> Longs:
        """The last offset of each key, -1 where the map does not know it."""
        found = np.empty(len(hashes), np.int64)
        _get_all(self._table, self.slots, hashes, found)
        return found

    def take(self, rows: Longs) -> Longs:
        """Note records in any order, each a row of its hash and its offset; the offsets of those that are superseded.

        They are, of two records of a key, the earlier one, be it noted now or before. Raises InvalidConfigError when
        there is no room for a key.
        """
        superseded = np.empty(len(rows), np.int64)
        count, self.size = _take_all(self._table, self.slots, self._limit, self.size, rows, superseded)
        if count < 0:
            raise InvalidConfigError(
                "more keys than there is room for: give compaction more memory", slots=self.slots
            )
        return superseded[:count]

    def superseded(self, rows: Longs) -> Longs:
        """The offsets of those records, rows as of `take`, of whose key a later one is noted."""
        superseded = np.empty(len(rows), np.int64)
        return superseded[: _find_superseded(self._table, self.slots, rows, superseded)]

    def update_latest_offset(self, offset: int) -> None:
        """Say that everything up to `offset` was looked at."""
        self.latest_offset = offset


@inlined
def _home(slots: int, first: int) -> int:
    """Where the search for a hash with that first word begins."""
    return (first >> 32 & 0xFFFFFFFF) * slots >> 32


@inlined
def _find(table: np.ndarray, slots: int, first: int, second: int) -> int:
    """The position of the slot that holds the hash, or of the empty one where it belongs; one is always empty."""
    slot = _home(slots, first)
    while True:
        at = slot * SLOT_WORDS
        if table[at + 2] == 0 or (table[at] == first and table[at + 1] == second):
            return at
        slot = slot + 1 if slot + 1 < slots else 0


@fill_kernel
def _put_all(
    table: np.ndarray,
    slots: int,
    limit: int,
    size: int,
    hashes: np.ndarray,
    valid: np.ndarray,
    offsets: np.ndarray,
) -> tuple[int, int, int]:
    """(records taken, keys in the map, last offset put or -1)."""
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
def _get_all(table: np.ndarray, slots: int, hashes: np.ndarray, found: np.ndarray) -> None:
    for row in range(found.size):
        if row + _AHEAD < found.size:
            prefetch(table, _home(slots, hashes[row + _AHEAD, 0]) * SLOT_WORDS)
        found[row] = table[_find(table, slots, hashes[row, 0], hashes[row, 1]) + 2] - 1


@fill_kernel
def _take_all(
    table: np.ndarray, slots: int, limit: int, size: int, rows: np.ndarray, superseded: np.ndarray
) -> tuple[int, int]:
    """(superseded records, or -1 when the map is full; keys in the map)."""
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
def _find_superseded(table: np.ndarray, slots: int, rows: np.ndarray, superseded: np.ndarray) -> int:
    count = 0
    for row in range(superseded.size):
        if row + _AHEAD < superseded.size:
            prefetch(table, _home(slots, rows[row + _AHEAD, 0]) * SLOT_WORDS)
        if table[_find(table, slots, rows[row, 0], rows[row, 1]) + 2] - 1 > rows[row, 2]:
            superseded[count] = rows[row, 2]
            count += 1
    return count
