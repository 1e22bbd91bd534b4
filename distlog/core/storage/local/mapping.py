"""Who may map a file, and who must read it.

A process that touches a page of a mapping which its file no longer has is killed (SIGBUS), and nobody can make an
error of that. So only what nobody cuts is mapped:

- log and index files of sealed segments: immutable by contract, for a commit names their sizes, writers create them
  under new names, and a rebuilt index replaces its file by rename, which leaves the mapped one whole;
- copies in the index cache: they come by rename and go by unlink;
- an index by the one process that writes it;
- the page in the file of a lock, which nobody cuts while there are processes that use it (`map_shared`).

A file that was cut before is an error of ours: whoever maps compares the map's length with what the segment says.
Everything else is read: what is being written, what somebody else may cut, and what is wanted as a whole.
"""

from __future__ import annotations

import errno
import mmap
import os


def map_sealed(file: int) -> memoryview:
    """The file of a descriptor as read-only bytes, as long as it is now; the map outlives the descriptor.

    Raises OSError, also where the file is cut at this moment.
    """
    length = os.fstat(file).st_size
    if length == 0:
        return memoryview(b"")
    try:
        return memoryview(mmap.mmap(file, length, access=mmap.ACCESS_READ))
    except ValueError as error:
        raise OSError(errno.EIO, f"the file was cut while it was opened: {error}") from error


def map_shared(file: int, length: int) -> memoryview:
    """The first `length` bytes of a descriptor's file, which must be that long: stores are seen by all processes."""
    return memoryview(mmap.mmap(file, length, mmap.MAP_SHARED))
