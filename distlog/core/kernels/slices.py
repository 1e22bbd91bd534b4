"""Byte strings that a scan finds in a buffer, as Arrow lays them out."""

from __future__ import annotations

import numpy as np

from distlog.core.kernel_tuples import Slices
from distlog.core.kernels.native.jit import inlined
from distlog.core.kernels.native.memory import copy_bytes, put_at


@inlined
def put_slice(slices: Slices, index: int, total: int, data: np.ndarray, position: int, size: int) -> int:
    """Put the string at `position` into slot `index`, after `total` bytes; a size below 0 is null."""
    length = max(size, 0)
    put_at(slices.offsets, index + 1, total + length)
    put_at(slices.valid, index, size >= 0)
    if slices.positions.size:
        put_at(slices.positions, index, position)
    elif length:
        copy_bytes(slices.copies, total, data, position, length)
    return total + length
