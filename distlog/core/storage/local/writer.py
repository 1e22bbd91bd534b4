"""Writes a large local file piece by piece, past the page cache where the file system allows it (O_DIRECT, Linux).

A segment is written once and synced anyway. Going through the page cache would cost more processor time than making
the records, and push out the pages that readers use.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from distlog.core.buffers import BLOCK_BYTES, PAGE_BYTES, lies_in_pages, new_pages
from distlog.core.errors import StorageError
from distlog.core.storage.backend import ObjectWriter, StorageCounters, byte_view, check_process
from distlog.core.storage.local.durable_files import create_file, failing_as, sync_folder, write_all
from distlog.core.storage.task import Task, begin

if TYPE_CHECKING:
    from typing_extensions import Buffer

#: How much is gathered before it is written, and the least size that is written directly from the caller's memory.
_GATHERED, _LARGE = BLOCK_BYTES // 2, 1 << 18
_DIRECT: int = getattr(os, "O_DIRECT", 0)


class LocalWriter(ObjectWriter):
    """Writes directly to the final name, which must be new; nothing refers to it before it is closed.

    Complete parts are written in the background while the caller makes more. Such a part is a half of the block that
    gathers small pieces, or the caller's own memory if it lies in memory pages as it will in the pages of the file.
    """

    def __init__(self, path: str, counters: StorageCounters) -> None:
        self._path, self._counters = path, counters
        self._block, self._start, self._filled = new_pages(BLOCK_BYTES), 0, 0
        with failing_as("create", path):
            self._file: int | None = create_file(path)
        self._writing: Task[None] | None = None
        self._is_broken = False
        self._process = os.getpid()
        _pass_cache(self._file, True)

    def write(self, data: Buffer) -> None:
        """See `ObjectWriter.write`."""
        self._settle()
        self._gather(byte_view(data))

    def write_behind(self, data: Buffer) -> None:
        """See `ObjectWriter.write_behind`; nothing is copied if `data` lies in a page as it will in the file."""
        self._settle()
        view = byte_view(data)
        head = -self.written % PAGE_BYTES
        if view.nbytes >= _LARGE and lies_in_pages(np.frombuffer(view, np.uint8), self.written):
            end = view.nbytes - (view.nbytes - head) % PAGE_BYTES
            self._fill(view[:head])
            self._start_write(view[head:end])
            self.written += end - head
            view = view[end:]
        self._gather(view)

    def _gather(self, view: memoryview) -> None:
        while view.nbytes:
            count = min(view.nbytes, _GATHERED - self._filled)
            self._fill(view[:count])
            view = view[count:]
            if self._filled == _GATHERED:
                self._settle()
                self._start_write()

    def _fill(self, view: memoryview) -> None:
        place = self._start + self._filled
        self._block.data[place : place + view.nbytes] = view
        self._filled += view.nbytes
        self.written += view.nbytes

    def _held(self) -> memoryview:
        return self._block.data[self._start : self._start + self._filled]

    def _start_write(self, *more: memoryview) -> None:
        """Begin to write what is gathered, and then `more`; no other write may be going on."""
        file = self._opened()
        # if this fails, the file must not go on with a part missing or written twice, unnoticed by the caller
        self._is_broken = True
        # a descriptor of its own: after an abort, the old number may soon belong to another file
        with failing_as("write", self._path):
            own = os.dup(file)
        self._writing = begin(partial(self._write_and_close, own, self._held(), *more))
        self._start, self._filled = _GATHERED - self._start, 0
        self._is_broken = False

    def _settle(self) -> None:
        """Wait for the write that is going on; StorageError if a part of the file was lost."""
        self._opened()
        if self._writing is not None:
            self._is_broken = True
            self._writing.wait()
            self._writing, self._is_broken = None, False

    def _opened(self) -> int:
        check_process(self._process, self._path)
        if self._file is None:
            raise StorageError("cannot write: the file is closed", file=self._path)
        if self._is_broken:
            raise StorageError(
                "cannot write: an earlier write of this file failed; write it again from its start", file=self._path
            )
        return self._file

    def _write_and_close(self, file: int, *views: memoryview) -> None:
        try:
            self._write_out(file, *views)
        finally:
            with failing_as("write", self._path):
                os.close(file)

    def _write_out(self, file: int, *views: memoryview) -> None:
        with failing_as("write", self._path):
            try:
                written = os.writev(file, views)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                written = 0
            for view in views:
                if written < view.nbytes:
                    # the file system does not take direct writes after all, or took a part of a disk's block
                    _pass_cache(file, False)
                    write_all(file, view[written:])
                written = max(written - view.nbytes, 0)

    def close(self) -> None:
        """See `ObjectWriter.close`."""
        if self._file is None:
            return
        self._settle()
        file, held = self._opened(), self._held()
        whole = self._filled // PAGE_BYTES * PAGE_BYTES
        # broken until closed: after a failed sync a second one would succeed, without the data that was lost
        self._is_broken = True
        if whole:
            self._write_out(file, held[:whole])
        _pass_cache(file, False)
        self._write_out(file, held[whole:])
        with failing_as("write", self._path):
            os.fsync(file)
            self._file = None
            os.close(file)
            sync_folder(os.path.dirname(self._path))
        self._counters.puts += 1
        self._counters.bytes_written += self.written

    def abort(self) -> None:
        """See `ObjectWriter.abort`."""
        if self._file is None:
            return
        # a write that is going on continues into a file without a name
        file, self._file = self._file, None
        with suppress(OSError):
            os.close(file)
        if self._process == os.getpid():
            with suppress(OSError):
                os.unlink(self._path)


def _pass_cache(file: int, wanted: bool) -> None:
    """Turn writes past the page cache on or off. The refusal of a file system that cannot do them is ignored."""
    flags = fcntl.fcntl(file, fcntl.F_GETFL)
    with suppress(OSError):
        fcntl.fcntl(file, fcntl.F_SETFL, flags | _DIRECT if wanted else flags & ~_DIRECT)
