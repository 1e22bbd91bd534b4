"""The bytes of offset indexes, for tests that need a file with these entries."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from distlog.core.indexes.offset_and_time_index import OFFSET_ENTRY


def offset_entries(relative_offsets: npt.ArrayLike, positions: npt.ArrayLike) -> bytes:
    """An entry for each relative offset and its position."""
    entries = np.empty(len(np.atleast_1d(relative_offsets)), OFFSET_ENTRY)
    entries["relative_offset"], entries["position"] = relative_offsets, positions
    return entries.tobytes()
