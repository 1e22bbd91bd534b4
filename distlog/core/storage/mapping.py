"""The choice between mapping a file and reading it."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

# When a mapped file is cut, a process that touches a lost page is killed (SIGBUS); this cannot become an error. So
# only files that are never cut are mapped:
#
# - log and index files of sealed segments. They are immutable: a commit names their sizes, and a rebuilt index
#   replaces its file by rename, so the mapped one stays whole;
# - copies in the index cache: they come by rename and go by unlink;
# - the page in the file of a lock, which is never cut while a process uses it (`map_shared`).
#
# The caller compares the length of the map with the segment's metadata. All other files are read. Many files stay
# mapped at once, and Python's own map holds a descriptor as long as it lives, so the system's calls make these.

_system = ctypes.CDLL(None, use_errno=True)
_system.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_system.mmap.restype = ctypes.c_void_p
_system.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_system.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_FAILED = ctypes.c_void_p(-1).value


class FileMap:
    """Maps `length` bytes of a descriptor's file from a page, until the last array over them is deleted."""

    def __init__(self, file: int, start: int, length: int, *, writable: bool = False) -> None:
        access = mmap.PROT_READ | mmap.PROT_WRITE if writable else mmap.PROT_READ
        address = _system.mmap(None, length, access, mmap.MAP_SHARED, file, start)
        if address == _FAILED:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        # numpy's array interface: the flag says whether the array is read-only
        interface = {"version": 3, "shape": (length,), "typestr": "|u1", "data": (address, not writable)}
        self.__array_interface__ = interface
        self._mapped = address, length

    def __del__(self, unmap: Any = _system.munmap) -> None:
        if hasattr(self, "_mapped"):
            unmap(*self._mapped)


def map_sealed(file: int, start: int = 0, end: int | None = None) -> memoryview:
    """Map bytes [start, end) of a descriptor's file, fewer if it is shorter, read-only; outlives the descriptor.

    Raises OSError, also if the file is truncated during the call.
    """
    length = os.fstat(file).st_size
    end = length if end is None else min(end, length)
    if start >= end:
        return memoryview(b"")
    skipped = start % mmap.ALLOCATIONGRANULARITY
    mapped = np.asarray(FileMap(file, start - skipped, skipped + end - start))
    if os.stat(file).st_size < end:
        raise OSError(errno.EIO, "the file was truncated while it was opened")
    return mapped.data[skipped:]


def map_watched(file: int, length: int) -> memoryview:
    """Same as `map_shared`, but read-only."""
    return memoryview(mmap.mmap(file, length, mmap.MAP_SHARED, mmap.PROT_READ))


def map_shared(file: int, length: int) -> memoryview:
    """Map the first `length` bytes of a descriptor's file, which must exist, shared between processes."""
    return np.asarray(FileMap(file, 0, length, writable=True)).data


def read_nothing_ahead(data: memoryview) -> None:
    """Advise the system that a map is read at random positions."""
    _system.madvise(np.frombuffer(data, np.uint8).ctypes.data, len(data), mmap.MADV_RANDOM)


class SparseMap:
    """The bytes of a file with few small reads, which are announced; the system prefetches no other bytes."""

    def __init__(self, file: int) -> None:
        self._file = file
        try:
            self.data = map_sealed(self._file)
        except BaseException:
            os.close(self._file)
            raise

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if hasattr(self, "data"):
            close(self._file)

    def is_in_memory(self, positions: Iterable[int], size: int) -> bool:
        """Return whether `size` bytes at all `positions` are in the page cache; False if unknown."""
        if not hasattr(os, "RWF_NOWAIT"):  # as of a Python that was built for a glibc before 2.26
            return False
        buffer = bytearray(size)
        try:
            return all(os.preadv(self._file, [buffer], position, os.RWF_NOWAIT) for position in positions)
        except OSError:
            return False

    def announce(self, positions: Iterable[int], size: int) -> None:
        """Start to prefetch `size` bytes at all `positions`, without waiting."""
        for position in positions if hasattr(os, "posix_fadvise") else ():
            os.posix_fadvise(self._file, position, size, os.POSIX_FADV_WILLNEED)

    def read_nothing_ahead(self) -> None:
        if len(self.data):
            read_nothing_ahead(self.data)
