"""A set of offsets as bits, one for each offset from `base_offset` on; the bounds are not checked."""

from __future__ import annotations

import numpy as np

from distlog.core.kernels.native.jit import fill_kernel


@fill_kernel
def set_bits(bits: np.ndarray, base_offset: int, offsets: np.ndarray) -> None:
    """Put `offsets` into the set."""
    for row in range(offsets.size):
        at = offsets[row] - base_offset
        bits[at >> 3] |= np.uint8(1 << (at & 7))


@fill_kernel
def unset_bits(bits: np.ndarray, base_offset: int, offsets: np.ndarray, unset: np.ndarray) -> None:
    """Write to `unset`, for each of `offsets`, whether it is not in the set."""
    for row in range(offsets.size):
        at = offsets[row] - base_offset
        unset[row] = bits[at >> 3] >> (at & 7) & 1 == 0
