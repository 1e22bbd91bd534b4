"""Memory for kernels: one-dimensional numpy arrays over any bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_SMALL = 4096
_BYTE = np.dtype(np.uint8)

#: Direct writes use whole pages, whatever the block size of the disk.
PAGE_BYTES = 4096
#: How much is gathered before it is written: enough to keep a disk busy.
BLOCK_BYTES = 2 << 20


def byte_array(data: Any) -> np.ndarray:
    """`data`, any contiguous buffer, as a uint8 array; read-only, so that kernels are compiled for one kind only."""
    return np.frombuffer(memoryview(data).toreadonly(), _BYTE)


def new_array(size: int, dtype: type[np.generic]) -> np.ndarray:
    """An uninitialised array. A large one comes from Arrow's memory pool, which keeps pages that are given back.

    Fresh pages cost more than the work that kernels do with them.
    """
    if size < _SMALL:
        return np.empty(size, dtype)
    return np.frombuffer(pa.allocate_buffer(size * np.dtype(dtype).itemsize), dtype)


def fitted(array: np.ndarray, size: int) -> np.ndarray:
    """The first `size` items of an array that was made too large; copied if a quarter or more would be wasted."""
    if 4 * size > 3 * array.size:
        return array[:size]
    copied = new_array(size, array.dtype.type)
    copied[:] = array[:size]
    return copied


def new_pages(size: int, position: int = 0) -> npt.NDArray[np.uint8]:
    """Uninitialised bytes that lie in memory pages as the bytes from `position` on lie in the pages of their file.

    So a direct write takes whole pages of the file from memory without a copy.
    """
    memory = np.frombuffer(pa.allocate_buffer(size + PAGE_BYTES), np.uint8)
    start = (position - address(memory)) % PAGE_BYTES
    return memory[start : start + size]


def lies_in_pages(memory: npt.NDArray[np.uint8], position: int) -> bool:
    """Whether `memory` is aligned as `new_pages` aligns it for this position."""
    return (address(memory) - position) % PAGE_BYTES == 0


def address(memory: npt.NDArray[np.uint8]) -> int:
    """The memory address of the array's first byte in this process."""
    begin: int = memory.__array_interface__["data"][0]
    return begin
