"""Decides which batches that follow each other become one."""

from __future__ import annotations

import numpy as np

from distlog.core.kernels.native.jit import fill_kernel


@fill_kernel
def cut_runs(joins: np.ndarray, sizes: np.ndarray, limit: int, firsts: np.ndarray) -> int:
    """Cut batches into runs of at most `limit` bytes; returns how many, and puts the first of each into `firsts`.

    `sizes` are their bytes; `joins` says which may be in one run with the batch before it. A batch above the limit is
    a run by itself.
    """
    count = 0
    held = 0
    for row in range(sizes.size):
        held += sizes[row]
        if row == 0 or not joins[row] or held > limit:
            firsts[count] = row
            count += 1
            held = sizes[row]
    return count
