"""Times from one unit to another."""

from __future__ import annotations

import numpy as np

from distlog.core.config import MAX_LONG
from distlog.core.kernels.jit import fill_kernel


@fill_kernel
def multiply_times(times: np.ndarray, factor: int, products: np.ndarray) -> bool:
    """Fill `products` with `factor`, above 0, times each; whether none is beyond MAX_LONG, or below -MAX_LONG."""
    limit = MAX_LONG // factor
    fitting = True
    for index in range(times.size):
        fitting &= -limit <= times[index] <= limit
        products[index] = times[index] * factor
    return fitting
