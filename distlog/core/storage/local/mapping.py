"""Which files may be mapped, and which must be read.

When a mapped file is cut, a process that touches a lost page is killed (SIGBUS); this cannot become an error. So only
files that are never cut are mapped:

- log files, whole or in windows, and index files of sealed segments: immutable by contract, for a commit names their
  sizes, writers create them under new names, and a rebuilt index replaces its file by rename, which leaves the mapped
  one whole;
- copies in the index cache: they come by rename and go by unlink;
- an index by the one process that writes it;
- the page in the file of a lock, which nobody cuts while there are processes that use it (`map_shared`).

The caller compares the length of the map with the segment's metadata, so a file that was cut earlier is an error of
ours. All other files are read: those that are being written, those that others may cut, and those that are needed as
a whole.
"""

from __future__ import annotations

import errno
import mmap
import os


def map_sealed(file: int, start: int = 0, end: int | None = None) -> memoryview:
    """Bytes [start, end) of the file of a descriptor, or as many as there are; the map outlives the descriptor.

    Without bounds it is the whole file with its present length. The bytes are read-only. Raises OSError, also when
    the file is cut during the call.
    """
    length = os.fstat(file).st_size
    end = length if end is None else min(end, length)
    if start >= end:
        return memoryview(b"")
    before = start % mmap.ALLOCATIONGRANULARITY
    try:
        mapped = mmap.mmap(file, before + end - start, access=mmap.ACCESS_READ, offset=start - before)
        return memoryview(mapped)[before:]
    except ValueError as error:
        raise OSError(errno.EIO, f"the file was cut while it was opened: {error}") from error


def map_shared(file: int, length: int) -> memoryview:
    """The first `length` bytes of a descriptor's file, which must be that long: stores are seen by all processes."""
    return memoryview(mmap.mmap(file, length, mmap.MAP_SHARED))
