"""Writing a large local file piece by piece, past the page cache where the file system allows it (O_DIRECT, Linux).

A segment is written once and synced anyhow. Pages of the cache would cost the processor more than making the records
does, and push out those that readers use.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from distlog.core.buffers import PAGE_BYTES, give_back, take_block
from distlog.core.errors import StorageError
from distlog.core.storage.backend import ObjectWriter, StorageCounters, byte_view
from distlog.core.storage.durable_files import create_file, failing_as, sync_folder, write_all

if TYPE_CHECKING:
    from typing_extensions import Buffer

#: What is gathered before it is written, and what is enough to be written from where it is.
_GATHERED, _LARGE = 1 << 20, 1 << 18
_DIRECT: int = getattr(os, "O_DIRECT", 0)


class LocalWriter(ObjectWriter):
    """Writes straight to the final name, which must be new; nothing refers to it before it is closed."""

    def __init__(self, path: str, counters: StorageCounters) -> None:
        self._path, self._counters = path, counters
        self._block, self._filled = take_block(), 0
        with failing_as("create", path):
            self._file: int | None = create_file(path)
        self._is_broken = False
        _pass_cache(self._file, True)

    def write(self, data: Buffer) -> None:
        """See `ObjectWriter.write`."""
        file = self._opened()
        view = byte_view(data)
        self.written += view.nbytes
        head = -self._filled % PAGE_BYTES
        if view.nbytes >= _LARGE and _is_page(view[head:]):
            view = self._write_pages(file, view, head)
        while view.nbytes:
            count = min(view.nbytes, _GATHERED - self._filled)
            self._block.data[self._filled : self._filled + count] = view[:count]
            self._filled, view = self._filled + count, view[count:]
            if self._filled == _GATHERED:
                self._write_out(file, self._block.data[:_GATHERED])
                self._filled, self._is_broken = 0, False

    def _write_pages(self, file: int, view: memoryview, head: int) -> memoryview:
        """Write what is held and all whole pages of `view`, whose `head` completes the last one held; the rest."""
        whole = self._filled + head
        self._block.data[self._filled : whole] = view[:head]
        end = view.nbytes - (view.nbytes - head) % PAGE_BYTES
        self._write_out(file, self._block.data[:whole], view[head:end])
        self._filled, self._is_broken = 0, False
        return view[end:]

    def _opened(self) -> int:
        if self._file is None:
            raise StorageError("cannot write: the file is closed", file=self._path)
        if self._is_broken:
            raise StorageError("cannot write: a part was lost before, so give the file up", file=self._path)
        return self._file

    def _write_out(self, file: int, *views: memoryview) -> None:
        # what callers gave before is in it too, and must not be missing, or there twice, behind their back
        self._is_broken = True
        with failing_as("write", self._path):
            try:
                written = os.writev(file, views)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                written = 0
            for view in views:
                if written < view.nbytes:
                    # a file system that does not take direct writes after all, or took a part of a disk's block
                    _pass_cache(file, False)
                    write_all(file, view[written:])
                written = max(written - view.nbytes, 0)

    def close(self) -> None:
        """See `ObjectWriter.close`."""
        if self._file is None:
            return
        file = self._opened()
        whole = self._filled // PAGE_BYTES * PAGE_BYTES
        if whole:
            self._write_out(file, self._block.data[:whole])
        _pass_cache(file, False)
        self._write_out(file, self._block.data[whole : self._filled])
        # it stays broken until it is closed: a second sync after one that failed would succeed, without what was lost
        with failing_as("write", self._path):
            os.fsync(file)
            self._file = None
            os.close(file)
            sync_folder(os.path.dirname(self._path))
        give_back(self._block)
        self._counters.puts += 1
        self._counters.bytes_written += self.written

    def abort(self) -> None:
        """See `ObjectWriter.abort`."""
        if self._file is None:
            return
        # another thread may still be in the middle of a write, so the block is not for others
        file, self._file = self._file, None
        with suppress(OSError):
            os.close(file)
        with suppress(OSError):
            os.unlink(self._path)


def _is_page(view: memoryview) -> bool:
    """Whether it begins where a page does."""
    address: int = np.frombuffer(view, np.uint8).__array_interface__["data"][0]
    return address % PAGE_BYTES == 0


def _pass_cache(file: int, wanted: bool) -> None:
    """Ask for writes past the page cache, or for usual ones; a file system that cannot do the former says so."""
    flags = fcntl.fcntl(file, fcntl.F_GETFL)
    with suppress(OSError):
        fcntl.fcntl(file, fcntl.F_SETFL, flags | _DIRECT if wanted else flags & ~_DIRECT)
