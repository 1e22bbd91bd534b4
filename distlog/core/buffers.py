"""Memory as kernels take it: one-dimensional numpy arrays over anybody's bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

_SMALL = 4096


def byte_array(data: Any) -> np.ndarray:
    """`data`, any contiguous buffer, as a uint8 array; read-only, lest kernels be compiled for both kinds."""
    array = np.frombuffer(data, dtype=np.uint8)
    array.flags.writeable = False
    return array


def new_array(size: int, dtype: type[np.generic]) -> np.ndarray:
    """An uninitialised array; a large one comes from Arrow's memory pool, which keeps the pages that are given back.

    Fresh pages cost more than what kernels do with them.
    """
    if size < _SMALL:
        return np.empty(size, dtype)
    return np.frombuffer(pa.allocate_buffer(size * np.dtype(dtype).itemsize), dtype)
