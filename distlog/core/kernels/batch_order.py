"""Batches beside the offsets that their segment has at their place: base offsets are outside of the checksums."""

from __future__ import annotations

import numpy as np

from distlog.core.kernels.jit import fill_kernel

#: What is known of a run of batches of one file: the offset at which it begins or, in a segment with gaps, not before
#: which (-1: not known); where the segment ends; whether it has no gaps; whether the file ends with the run.
RUN = np.dtype([("first_offset", np.int64), ("end_offset", np.int64), ("dense", np.int64), ("ends_file", np.int64)])


@fill_kernel
def first_misplaced(batches: np.ndarray, owner: np.ndarray, runs: np.ndarray) -> int:
    """The first of `batches` (BATCH rows) that is not where `runs` (RUN rows, by `owner`) let it be, or -1.

    In a run batches follow each other, without a gap where the segment is dense, and nothing follows its end.
    """
    following = 0
    for row in range(batches.size):
        run = runs[owner[row]]
        opens = row == 0 or owner[row] != owner[row - 1]
        closes = run["ends_file"] and (row + 1 == batches.size or owner[row] != owner[row + 1])
        expected = run["first_offset"] if opens else following
        base_offset = batches[row]["base_offset"]
        following = base_offset + batches[row]["last_offset_delta"] + 1
        exact = run["dense"] and expected >= 0
        if base_offset < expected or (exact and base_offset != expected):
            return row
        if following > run["end_offset"] or (not closes and following == run["end_offset"]):
            return row
        if closes and run["dense"] and following != run["end_offset"]:
            return row
    return -1
