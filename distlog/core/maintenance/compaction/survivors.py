"""Says whether a record is the last of its key, by a map of all keys or by what a shuffle found for some segments."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from distlog.core.kernels.offset_bits import set_bits, unset_bits
from distlog.core.maintenance.compaction.offset_map import OffsetMap
from distlog.core.maintenance.compaction.scanned_records import ScannedRecords


class Survivors(Protocol):
    """Says which records a rewrite keeps. Nothing is known about records above `latest_offset`, so they stay."""

    @property
    def latest_offset(self) -> int:
        """The last offset up to which keys were looked at."""

    def current(self, records: ScannedRecords) -> npt.NDArray[np.bool_]:
        """Per record: true if no later record has its key; any value for a record without a key."""


@dataclass(frozen=True, slots=True)
class MapSurvivors:
    """Survivors by an offset map of keys hashed under `secret`. A record whose key is not in the map stays."""

    offset_map: OffsetMap
    secret: bytes = field(repr=False)

    @property
    def latest_offset(self) -> int:
        """The last offset up to which keys are in the map."""
        return self.offset_map.latest_offset

    def current(self, records: ScannedRecords) -> npt.NDArray[np.bool_]:
        """Per record: true if its offset is not below the one in the map."""
        newest: npt.NDArray[np.bool_] = records.offsets >= self.offset_map.get(records.hashes(self.secret))
        return newest


class OffsetSurvivors:
    """Survivors of a group of segments by the offsets of superseded records, one bit per offset.

    All offsets are in [base_offset, next_offset), which is the span of a group, and so less than 2^31.
    """

    def __init__(self, base_offset: int, next_offset: int, latest_offset: int) -> None:
        self.latest_offset = latest_offset
        self._base_offset = base_offset
        self._bits = np.zeros((next_offset - base_offset + 7) // 8, np.uint8)

    def supersede(self, offsets: npt.NDArray[np.int64]) -> None:
        """Note that the records at `offsets` are superseded: later records have their keys."""
        set_bits(self._bits, self._base_offset, offsets)

    def current(self, records: ScannedRecords) -> npt.NDArray[np.bool_]:
        """Per record: true if its offset is not among the superseded ones."""
        current = np.empty(records.count, bool)
        unset_bits(self._bits, self._base_offset, records.offsets, current)
        return current
