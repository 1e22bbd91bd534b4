"""The bytes of offset and time indexes, for tests that need a file with these entries."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from distlog.core.format.indexes import OFFSET_ENTRY, TIME_ENTRY


def offset_entries(relative_offsets: npt.ArrayLike, positions: npt.ArrayLike) -> bytes:
    """An entry for each relative offset and its position."""
    entries = np.empty(len(np.atleast_1d(relative_offsets)), OFFSET_ENTRY)
    entries["relative_offset"], entries["position"] = relative_offsets, positions
    return entries.tobytes()


def time_entries(timestamps: npt.ArrayLike, relative_offsets: npt.ArrayLike) -> bytes:
    """An entry for each timestamp and its relative offset."""
    entries = np.empty(len(np.atleast_1d(timestamps)), TIME_ENTRY)
    entries["timestamp"], entries["relative_offset"] = timestamps, relative_offsets
    return entries.tobytes()
