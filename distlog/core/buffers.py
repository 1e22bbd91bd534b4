"""Memory as kernels take it: one-dimensional numpy arrays over anybody's bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_SMALL = 4096

#: Direct writes are of whole pages, whatever the blocks of the disk.
PAGE_BYTES = 4096
#: What is gathered before it is written: enough to keep a disk busy.
BLOCK_BYTES = 2 << 20


def byte_array(data: Any) -> np.ndarray:
    """`data`, any contiguous buffer, as a uint8 array; read-only, so that kernels are compiled for one kind only."""
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


def fitted(array: np.ndarray, size: int) -> np.ndarray:
    """The first `size` items of an array that was made larger than it had to be: copied where it wastes a quarter."""
    if 4 * size > 3 * array.size:
        return array[:size]
    copied = new_array(size, array.dtype.type)
    copied[:] = array[:size]
    return copied


def new_pages(size: int, position: int = 0) -> npt.NDArray[np.uint8]:
    """Uninitialised bytes that lie in pages of memory as those from `position` on lie in pages of their file.

    So a direct write takes whole pages of the file from where they are.
    """
    memory = np.frombuffer(pa.allocate_buffer(size + PAGE_BYTES), np.uint8)
    start = (position - address(memory)) % PAGE_BYTES
    return memory[start : start + size]


def lies_in_pages(memory: npt.NDArray[np.uint8], position: int) -> bool:
    """Whether `memory` lies as `new_pages` makes it for this position."""
    return (address(memory) - position) % PAGE_BYTES == 0


def address(memory: npt.NDArray[np.uint8]) -> int:
    """Where the array begins in the memory of this process."""
    begin: int = memory.__array_interface__["data"][0]
    return begin
