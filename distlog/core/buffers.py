"""Memory as kernels take it: one-dimensional numpy arrays over anybody's bytes."""

from __future__ import annotations

import mmap
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_SMALL = 4096

#: Direct writes are of whole pages, whatever the blocks of the disk.
PAGE_BYTES = 4096
#: What an encoder fills before it hands it on: whole pages, and enough to keep a disk busy.
BLOCK_BYTES = 2 << 20
_KEPT_BLOCKS = 16

_free_blocks: deque[npt.NDArray[np.uint8]] = deque(maxlen=_KEPT_BLOCKS)


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


def fitted(array: np.ndarray, size: int) -> np.ndarray:
    """The first `size` items of an array that was made larger than it had to be: copied where it wastes a quarter."""
    if 4 * size > 3 * array.size:
        return array[:size]
    copied = new_array(size, array.dtype.type)
    copied[:] = array[:size]
    return copied


def take_block() -> npt.NDArray[np.uint8]:
    """BLOCK_BYTES of uninitialised memory that begin at a page, as direct writes want it.

    Its pages are those of a block that was given back, where there is one; safe to call from any thread.
    """
    try:
        return _free_blocks.pop()
    except IndexError:
        return np.frombuffer(mmap.mmap(-1, BLOCK_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)


def give_back(memory: npt.NDArray[np.uint8]) -> None:
    """Keep a block that nobody looks at any more for the next one who takes one, 32 MiB of them at most.

    Memory that is no block is let go.
    """
    if memory.size == BLOCK_BYTES and begins_at_page(memory):
        _free_blocks.append(memory)


def begins_at_page(memory: npt.NDArray[np.uint8]) -> bool:
    """Whether `memory` begins where a page does."""
    address: int = memory.__array_interface__["data"][0]
    return address % PAGE_BYTES == 0
