"""Checks new batches, and moves them to the offsets that a log gives them: what an append does before its write."""

from __future__ import annotations

import numpy as np

from distlog.core.kernels.batch_scan import HEADER_SIZE
from distlog.core.kernels.native.jit import fill_kernel
from distlog.core.kernels.native.memory import put_at

#: What is wrong with batches: nothing, they are not all of their bytes, they are not of format 2 or have attributes
#: that are refused, or their offsets are not those from 0 on.
FINE, NOT_ALL, BAD_FORMAT, BAD_OFFSETS = range(4)

_FORMAT = 2


@fill_kernel
def look_at_batches(batches: np.ndarray, size: int, refused: int) -> tuple[int, int, int, int, bool]:
    """What is wrong with `batches` (BATCH rows) that should fill `size` bytes, with offsets from 0 on.

    `refused` are attribute bits that none may have. Then the size of the largest one, the offset behind them, the
    largest timestamp, and whether any has a producer id; there must be one batch.
    """
    verdict = FINE
    position = 0
    end_offset = 0
    largest = 0
    newest = batches[0]["max_timestamp"]
    of_producers = False
    for row in range(batches.size):
        batch = batches[row]
        if batch["position"] != position or not HEADER_SIZE <= batch["size"] <= size - position:
            return NOT_ALL, largest, end_offset, newest, of_producers
        if batch["magic"] != _FORMAT or batch["attributes"] & refused:
            verdict = BAD_FORMAT
        elif batch["base_offset"] != end_offset and verdict == FINE:
            verdict = BAD_OFFSETS
        position += batch["size"]
        end_offset = batch["base_offset"] + batch["last_offset_delta"] + 1
        largest = max(largest, batch["size"])
        newest = max(newest, batch["max_timestamp"])
        of_producers |= batch["producer_id"] >= 0
    return (verdict if position == size else NOT_ALL), largest, end_offset, newest, of_producers


@fill_kernel
def move_batches(data: np.ndarray, batches: np.ndarray, first_offset: int, moved: np.ndarray) -> None:
    """Fill `moved` with `batches`, their offsets counted from `first_offset`, and write these into `data`.

    `look_at_batches` must have found that they are all of `data`. The checksums do not cover what is written.
    """
    for row in range(batches.size):
        moved[row] = batches[row]
        base_offset = batches[row]["base_offset"] + first_offset
        moved[row]["base_offset"] = base_offset
        for byte in range(8):
            put_at(data, batches[row]["position"] + byte, base_offset >> 56 - 8 * byte & 0xFF)
