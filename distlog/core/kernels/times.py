"""Converts times from one unit to another."""

from __future__ import annotations

import numpy as np

from distlog.core.config import MAX_LONG
from distlog.core.kernels.native.jit import fill_kernel

_LIMIT = MAX_LONG // 1000


@fill_kernel
def to_microseconds(milliseconds: np.ndarray, microseconds: np.ndarray) -> bool:
    """Fill `microseconds` with the same times; returns whether all of them fit into 64 bits."""
    fitting = True
    for index in range(milliseconds.size):
        fitting &= -_LIMIT <= milliseconds[index] <= _LIMIT
        microseconds[index] = milliseconds[index] * 1000
    return fitting
