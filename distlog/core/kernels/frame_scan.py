"""Walks the batches of a log that may be damaged: what a batch says of itself is taken as it is, but for its size."""

from __future__ import annotations

import numpy as np

from distlog.core.kernels.batch_scan import (
    BAD_LENGTH,
    BAD_SIZE,
    HEADER_SIZE,
    LEGACY_ENTRY_SIZES,
    LOG_OVERHEAD,
    OK,
    SMALLEST_LENGTH,
    SMALLEST_PREFIX,
    read_int,
    read_row,
)
from distlog.core.kernels.native.jit import fill_kernel, inlined


@inlined
def _smallest(magic: int) -> int:
    if magic >= 2:
        return HEADER_SIZE
    return LEGACY_ENTRY_SIZES[1] if magic == 1 else LEGACY_ENTRY_SIZES[0]


@fill_kernel
def count_frames(data: np.ndarray) -> tuple[int, int, int]:
    """Walk the whole batches of `data`: (status, position of the end or of the bad one, batches before it).

    Formats above 2 are walked as format 2, negative ones as format 0.
    """
    position = 0
    count = 0
    while data.size - position >= SMALLEST_PREFIX:
        length = read_int(data, position + 8, 4)
        if length < SMALLEST_LENGTH:
            return BAD_LENGTH, position, count
        if length > data.size - position - LOG_OVERHEAD:
            break
        if LOG_OVERHEAD + length < _smallest(read_int(data, position + 16, 1)):
            return BAD_SIZE, position, count
        position += LOG_OVERHEAD + length
        count += 1
    return OK, position, count


@fill_kernel
def read_frames(data: np.ndarray, batches: np.ndarray) -> None:
    """Fill `batches` (BATCH rows), as many as `count_frames` found.

    A message of formats 0 and 1 gets its offset as base offset; a compressed one has record count -1.
    """
    position = 0
    for index in range(batches.size):
        row = batches[index]
        read_row(data, position, row)
        position += int(row["size"])
