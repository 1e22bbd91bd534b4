"""Who tells whether a record is the last of its key: a map of all keys, or what a shuffle found for some segments."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from distlog.core.kernels.offset_bits import set_bits, unset_bits
from distlog.core.maintenance.compaction.offset_map import OffsetMap
from distlog.core.maintenance.compaction.scanned_records import ScannedRecords


class Survivors(Protocol):
    """What rewriting asks; about records above `latest_offset` nothing is known, so they stay."""

    @property
    def latest_offset(self) -> int:
        """The last offset of which the keys were looked at."""

    def current(self, records: ScannedRecords) -> npt.NDArray[np.bool_]:
        """Per record: that no later record has its key; anything for a record without one."""


@dataclass(frozen=True, slots=True)
class MapSurvivors:
    """Survivors by an offset map of keys hashed under `secret`; a key that it does not know has no later record."""

    offset_map: OffsetMap
    secret: bytes = field(repr=False)

    @property
    def latest_offset(self) -> int:
        """The last offset of which the keys are in the map."""
        return self.offset_map.latest_offset

    def current(self, records: ScannedRecords) -> npt.NDArray[np.bool_]:
        """Per record: that its offset is not below the one in the map."""
        newest: npt.NDArray[np.bool_] = records.offsets >= self.offset_map.get(records.hashes(self.secret))
        return newest


class OffsetSurvivors:
    """Survivors of a group of segments by the offsets of those records that a later one supersedes, a bit for each.

    All offsets are in [base_offset, next_offset), which as the span of a group is less than 2^31.
    """

    def __init__(self, base_offset: int, next_offset: int, latest_offset: int) -> None:
        self.latest_offset = latest_offset
        self._base_offset = base_offset
        self._bits = np.zeros((next_offset - base_offset + 7) // 8, np.uint8)

    def supersede(self, offsets: npt.NDArray[np.int64]) -> None:
        """Say that there are later records of the keys of these."""
        set_bits(self._bits, self._base_offset, offsets)

    def current(self, records: ScannedRecords) -> npt.NDArray[np.bool_]:
        """Per record: that its offset is not among the superseded."""
        current = np.empty(records.count, bool)
        unset_bits(self._bits, self._base_offset, records.offsets, current)
        return current
