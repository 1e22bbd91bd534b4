"""Byte strings that a scan finds in a buffer, as Arrow lays them out."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from distlog.core.kernels.jit import inlined
from distlog.core.kernels.memory import copy_bytes, put_at


class Slices(NamedTuple):
    """Byte strings in a buffer, one slot each; `offsets` has one item more, and its first is 0.

    `offsets` (Arrow's) are as if the strings stood back to back; `valid` is False for null. The strings are either
    copied to `copies`, which has room for as many bytes as the sections have, or found at `positions` of the buffer.
    """

    offsets: np.ndarray
    valid: np.ndarray
    copies: np.ndarray
    positions: np.ndarray


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
