"""The map that compaction uses: from the hash of a key to the key's last offset (Kafka's `SkimpyOffsetMap`).

Keys are compared by their hashes alone, as Kafka compares them by their MD5.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from distlog.core.errors import InvalidConfigError
from distlog.core.kernels.offset_map import SLOT_WORDS, find_superseded, get_all, put_all, take_all

SLOT_BYTES = 8 * SLOT_WORDS

#: Kafka's log.cleaner.io.buffer.load.factor.
LOAD_FACTOR = 0.9
_MAX_SLOTS = 2**31 - 1

Longs = npt.NDArray[np.int64]


class OffsetMap:
    """A map with `slots` slots. It is full when the share LOAD_FACTOR of them is used; then it takes no more keys.

    Memory is SLOT_BYTES per slot; the system provides it as it is touched. `latest_offset` is the last offset put, or
    the offset it was moved to. Raises InvalidConfigError when there is no room for a single key.
    """

    def __init__(self, slots: int) -> None:
        self.slots = min(slots, _MAX_SLOTS)
        self._limit = int(self.slots * LOAD_FACTOR)
        if self._limit < 1:
            raise InvalidConfigError("the offset map has room for no key: give compaction more memory", slots=slots)
        self._table = np.zeros(self.slots * SLOT_WORDS, np.int64)
        self.size = 0
        self.latest_offset = -1

    @classmethod
    def within(cls, memory_bytes: int, records: int) -> OffsetMap:
        """A map for up to `records` records, in at most `memory_bytes` of memory."""
        return cls(min(memory_bytes // SLOT_BYTES, int(records / LOAD_FACTOR) + 2))

    def put(self, hashes: Longs, valid: npt.NDArray[np.bool_], offsets: Longs) -> int:
        """Note the offsets of records, in order. Records that are not `valid` have no key, and are passed over.

        Returns how many records were taken, which is not all of them if the map gets full. As in Kafka, a full map
        stops at the next record with a key, even if it knows that key.
        """
        taken, self.size, latest = put_all(self._table, self.slots, self._limit, self.size, hashes, valid, offsets)
        if latest >= 0:
            self.latest_offset = int(latest)
        return taken

    def get(self, hashes: Longs) -> Longs:
        """The last offset of each key, or -1 if the map does not know the key."""
        found = np.empty(len(hashes), np.int64)
        get_all(self._table, self.slots, hashes, found)
        return found

    def take(self, rows: Longs) -> Longs:
        """Note records in any order, each a row of its hash and its offset; returns the superseded offsets.

        Of two records with one key the earlier one is superseded, no matter which of them was noted first. Raises
        InvalidConfigError when there is no room for a key.
        """
        superseded = np.empty(len(rows), np.int64)
        count, self.size = take_all(self._table, self.slots, self._limit, self.size, rows, superseded)
        if count < 0:
            raise InvalidConfigError(
                "more keys than there is room for: give compaction more memory", slots=self.slots
            )
        return superseded[:count]

    def superseded(self, rows: Longs) -> Longs:
        """The offsets of the records in `rows`, as for `take`, whose key has a later record in the map."""
        superseded = np.empty(len(rows), np.int64)
        return superseded[: find_superseded(self._table, self.slots, rows, superseded)]

    def update_latest_offset(self, offset: int) -> None:
        """Set `latest_offset`: everything up to `offset` was looked at."""
        self.latest_offset = offset
