"""Who tells whether a record is the last of its key: a map of all keys, or what a shuffle found for some segments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from distlog.core.kernels.offset_map import OffsetMap
from distlog.core.maintenance.scanned_records import ScannedRecords


class Survivors(Protocol):
    """What rewriting asks; about records above `latest_offset` nothing is known, so they stay."""

    @property
    def latest_offset(self) -> int:
        """The last offset of which the keys were looked at."""

    def current(self, records: ScannedRecords) -> npt.NDArray[np.bool_]:
        """Per record: that no later record has its key; anything for a record without one."""


@dataclass(frozen=True, slots=True)
class MapSurvivors:
    """Survivors by an offset map; a key that it does not know has no later record."""

    offset_map: OffsetMap

    @property
    def latest_offset(self) -> int:
        """The last offset of which the keys are in the map."""
        return self.offset_map.latest_offset

    def current(self, records: ScannedRecords) -> npt.NDArray[np.bool_]:
        """Per record: that its offset is not below the one in the map."""
        newest: npt.NDArray[np.bool_] = records.offsets >= self.offset_map.get(records.hashes())
        return newest


@dataclass(frozen=True, slots=True)
class OffsetSurvivors:
    """Survivors by the offsets, ascending, of those records that a later one supersedes: 8 bytes each, for a task."""

    superseded: npt.NDArray[np.int64]
    latest_offset: int

    def current(self, records: ScannedRecords) -> npt.NDArray[np.bool_]:
        """Per record: that its offset is not among the superseded."""
        return ~np.isin(records.offsets, self.superseded, assume_unique=True)
