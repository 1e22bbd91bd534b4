"""A file that is written in place: positioned reads, writes and cuts. Tests can make its system calls fail."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Protocol

import numpy as np

from distlog.core.buffers import new_array
from distlog.core.errors import StorageError
from distlog.core.locks import ProcessLock
from distlog.core.storage.backend import byte_view
from distlog.core.storage.local.durable_files import LOCAL_ERRORS

if TYPE_CHECKING:
    from typing_extensions import Buffer


class FileCalls(Protocol):
    """The system calls that change a file; the module `os` has them."""

    def pwrite(self, fd: int, data: Buffer, offset: int, /) -> int: ...
    def ftruncate(self, fd: int, length: int, /) -> None: ...
    def posix_fallocate(self, fd: int, offset: int, length: int, /) -> None: ...
    def fsync(self, fd: int, /) -> None: ...


class ActiveFile:
    """A file with one writer at a time, opened when it is first used; every OSError becomes a StorageError.

    It has no position of its own, so threads, and processes after a fork, may read while one writes. Close it only
    when nobody uses it.
    """

    def __init__(self, path: str, calls: FileCalls = os, *, writable: bool = True) -> None:
        self.path = path
        self._calls, self._writable = calls, writable
        self._file: int | None = None
        self._opening = ProcessLock()

    def create(self) -> None:
        """Create the file, empty; StorageError if it exists."""
        self._open(os.O_CREAT | os.O_EXCL)

    def write(self, data: Buffer, position: int) -> None:
        """Write all of `data` at `position`; creates a missing file. Raises StorageFullError on a full disk."""
        file = self._file if self._file is not None else self._open(os.O_CREAT)
        view = byte_view(data)
        try:
            written = self._calls.pwrite(file, view, position)
            while written < view.nbytes:
                more = self._calls.pwrite(file, view[written:], position + written)
                if more == 0:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)
                written += more
        except OSError as error:
            raise self._failure("write", error) from error

    def read(self, start: int, end: int) -> memoryview:
        """The bytes from `start` (in) to `end` (out), read-only; fewer if the file ends before `end`."""
        view = new_array(max(end - start, 0), np.uint8).data
        return view[: self.read_into(view, start)].toreadonly()

    def read_into(self, view: memoryview, position: int) -> int:
        """Fill `view` with the bytes from `position` on; returns how many bytes there were."""
        done = 0
        try:
            file = self._file if self._file is not None else self._open(0)
            while done < view.nbytes and (more := os.preadv(file, [view[done:]], position + done)):
                done += more
        except OSError as error:
            raise self._failure("read", error) from error
        return done

    def size(self) -> int:
        """The file's size in bytes; 0 if there is no file."""
        try:
            # all reads and writes say where, so nobody misses the position that a seek changes
            return os.stat(self.path).st_size if self._file is None else os.lseek(self._file, 0, os.SEEK_END)
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise self._failure("look at", error) from error

    def cut(self, size: int, allocated: int = 0) -> None:
        """Cut the file to `size` bytes; zeros follow up to `allocated`. A file that needs no cut is left alone.

        A missing file is created if it is to be allocated. Raises StorageError if the file is shorter than `size`.
        """
        length = self.size()
        if length < size:
            raise StorageError(
                "cannot cut a file to more than it has: recover the segment", file=self.path, size=size
            )
        if length == size >= allocated:
            return
        try:
            file = self._file if self._file is not None else self._open(os.O_CREAT)
            if length > size:
                self._calls.ftruncate(file, size)
            if allocated > size:
                self._calls.ftruncate(file, allocated)
        except OSError as error:
            raise self._failure("cut", error) from error

    def allocate(self, size: int) -> None:
        """Make the file `size` bytes long and allocate its disk blocks; StorageFullError if the disk is full."""
        try:
            self._calls.posix_fallocate(self._file if self._file is not None else self._open(0), 0, size)
        except OSError as error:
            raise self._failure("preallocate", error) from error

    @property
    def is_open(self) -> bool:
        """Whether the file is open."""
        return self._file is not None

    def open(self) -> None:
        """Open the file now, if there is one: so that a `sync` does not fail for want of a descriptor."""
        if self._file is None and os.path.exists(self.path):
            self._open(0)

    def sync(self) -> None:
        """Sync the file: returns when what any process wrote is on the device. Does nothing if there is no file."""
        self.open()
        if self._file is None:
            return
        try:
            self._calls.fsync(self._file)
        except OSError as error:
            raise self._failure("sync", error) from error

    def close(self) -> None:
        """Close the file; a later use opens it again."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def _open(self, flags: int) -> int:
        mode = os.O_RDWR if self._writable else os.O_RDONLY
        try:
            with self._opening:
                if self._file is None:
                    self._file = os.open(self.path, mode | flags | os.O_CLOEXEC, 0o666)
                return self._file
        except OSError as error:
            raise self._failure("open", error) from error

    def _failure(self, action: str, error: OSError) -> StorageError:
        return LOCAL_ERRORS.failure(action, self.path, error)
