"""The rule of bundles: no byte of one belongs to two parts, and every position is one that a file can have."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from distlog.core.arrow_arrays import numbers_of
from distlog.core.commits.format.actions import Action, Add
from distlog.core.config import MAX_LONG

#: The field with the position of each part of a bundle that a segment may have, and the field with its size.
PARTS = (
    ("log_position", "log_bytes"),
    ("offset_index_position", "offset_index_bytes"),
    ("time_index_position", "time_index_bytes"),
)


def check_added(actions: Iterable[Action]) -> None:
    """Raise ValueError if parts overlap that one commit adds: a task writes and commits a bundle as a whole."""
    added = [action.segment for action in actions if isinstance(action, Add) and action.segment.is_bundled]
    if added:
        names = ["stem", *(name for part in PARTS for name in part)]
        check(pa.RecordBatch.from_pydict({name: [getattr(one, name) for one in added] for name in names}))


def check(segments: pa.RecordBatch) -> None:
    """Raise ValueError if parts of `segments`, with columns as in SegmentTable's SCHEMA, overlap or end too far."""
    stems = numbers_of(segments["stem"].dictionary_encode().indices)
    columns = [(numbers_of(segments[begin]), numbers_of(segments[size])) for begin, size in PARTS]
    owners = np.concatenate([stems[begins >= 0] for begins, _ in columns])
    begins = np.concatenate([begins[begins >= 0] for begins, _ in columns])
    sizes = np.concatenate([sizes[begins >= 0] for begins, sizes in columns])
    if np.any(begins > MAX_LONG - sizes):
        raise ValueError("a part of a bundle ends behind the largest position")
    order = np.lexsort((begins + sizes, begins, owners))
    owners, begins, ends = owners[order], begins[order], (begins + sizes)[order]
    if np.any((owners[1:] == owners[:-1]) & (begins[1:] < ends[:-1])):
        raise ValueError("two parts of a bundle overlap")
