"""Compares batches with the offsets that their segment has at their place; checksums do not cover base offsets."""

from __future__ import annotations

import numpy as np

from distlog.core.kernels.native.jit import fill_kernel

#: What is known of a run of batches of one file: its first offset (in a segment with gaps, a lower bound of it; -1:
#: not known); where the segment ends; whether the segment has no gaps; whether the file ends with the run.
RUN = np.dtype([("first_offset", np.int64), ("end_offset", np.int64), ("dense", np.int64), ("ends_file", np.int64)])


@fill_kernel
def first_misplaced(batches: np.ndarray, owner: np.ndarray, runs: np.ndarray) -> int:
    """The first misplaced one of `batches` (BATCH rows), or -1; `owner` has the row in `runs` (RUN) of each batch.

    In a run batches follow each other, without a gap where the segment is dense, and nothing follows its end.
    """
    last = -1
    for row in range(batches.size):
        run = runs[owner[row]]
        opens = row == 0 or owner[row] != owner[row - 1]
        closes = run["ends_file"] and (row + 1 == batches.size or owner[row] != owner[row + 1])
        # no offset exceeds the largest int64: subtract one on both sides, since adding one could overflow
        before, end = run["first_offset"] - 1 if opens else last, run["end_offset"] - 1
        previous = batches[row]["base_offset"] - 1
        last = batches[row]["base_offset"] + batches[row]["last_offset_delta"]
        exact = run["dense"] and before >= -1
        if previous < before or (exact and previous != before):
            return row
        if last > end or (not closes and last == end):
            return row
        if closes and run["dense"] and last != end:
            return row
    return -1
