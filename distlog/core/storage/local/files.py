"""Files on a local or network-mounted disk, durable when a call returns; without fsspec.

fsspec's local "create" tests and then writes, so several writers can succeed; and it never syncs.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from distlog.core.buffers import new_array
from distlog.core.errors import CommitStateUnknownError, StorageError
from distlog.core.storage.backend import (
    MAX_CONDITIONAL_BYTES,
    Entries,
    FileInfo,
    StorageCounters,
    UnfinishedUpload,
    byte_view,
)
from distlog.core.storage.local.durable_files import (
    LOCAL_ERRORS,
    failing_as,
    replace_files,
    sync_folder,
    write_temporary,
)
from distlog.core.storage.local.many_files import fill_whole
from distlog.core.storage.local.mapping import map_sealed
from distlog.core.storage.local.writer import LocalWriter
from distlog.core.storage.retry import Deadline, settle
from distlog.core.times import now_ms

if TYPE_CHECKING:
    from typing_extensions import Buffer

_READ = os.O_RDONLY | os.O_CLOEXEC
#: A buffer of up to this size is allocated without a look at the size of the files.
_PLAIN_BYTES = 8 << 20
_READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)
_NO_HARD_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)

T = TypeVar("T")


class LocalFiles:
    """The backend of absolute paths."""

    def __init__(self, counters: StorageCounters) -> None:
        self._counters = counters

    def read(self, path: str, start: int, end: int | None) -> bytes:
        """See `Storage.read`."""
        data = self._opened("read", path, lambda file: _pread(file, start, end))
        self._counters.bytes_read += len(data)
        return data

    def read_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> list[memoryview]:
        """See `Storage.read_ranges`; a file is opened once for ranges that follow each other."""
        found: list[bytes] = []
        for path, group in itertools.groupby(ranges, key=itemgetter(0)):
            found += self._opened("read", path, partial(_pread_each, list(group)))
        self._counters.bytes_read += sum(map(len, found))
        return [memoryview(data) for data in found]

    def read_joined(self, ranges: Sequence[tuple[str, int, int]]) -> memoryview:
        """See `Storage.read_joined`; it stops after a range that its file cuts short."""
        sizes = [max(end - start, 0) for _, start, end in ranges]
        is_plain = sum(sizes) <= _PLAIN_BYTES
        if not is_plain:
            # a wrong size in the metadata must not make us allocate more than there is
            sizes = [max(min(end, self.size(path)) - start, 0) for path, start, end in ranges]
        memory = new_array(sum(sizes), np.uint8)
        whole = fill_whole(memory, ranges, sizes, _READ) if is_plain and len(ranges) > 1 else 0
        self._counters.gets += whole
        buffer, position = memory.data, sum(sizes[:whole])
        for (path, start, end), size in zip(ranges[whole:], sizes[whole:], strict=True):
            count = self._opened("read", path, partial(_fill, buffer[position : position + size], start))
            position += count
            if count < end - start:
                break
        self._counters.bytes_read += position
        return buffer[:position].toreadonly()

    def map(self, path: str, start: int, end: int | None) -> memoryview:
        """See `Storage.map`."""
        return self._opened("map", path, partial(map_sealed, start=start, end=end))

    def size(self, path: str) -> int:
        """See `Storage.size`."""
        try:
            return os.stat(path).st_size
        except FileNotFoundError:
            raise
        except OSError as error:
            raise LOCAL_ERRORS.failure("look at", path, error) from error

    def put_many(self, files: Mapping[str, Buffer]) -> None:
        """See `Storage.put_many`; each file replaces the old one in one step."""
        replace_files(files)
        for data in files.values():
            self._count(data)
        for folder in dict.fromkeys(map(os.path.dirname, files)):
            with failing_as("put", folder):
                sync_folder(folder)

    def put_if_absent(self, path: str, data: bytes, timeout_s: float) -> bytes:
        """See `Storage.put_if_absent`: it links a durable temporary file to the name; only one writer can."""
        temporary = write_temporary(path, data)
        self._count(data)
        try:
            standing = settle(
                lambda: _link(temporary, path, data),
                lambda: self.read(path, 0, MAX_CONDITIONAL_BYTES + 1),
                path,
                LOCAL_ERRORS,
                Deadline(timeout_s),
            )
        finally:
            with suppress(OSError):
                os.unlink(temporary)
        self.sync(os.path.dirname(path))
        return standing

    def sync(self, folder: str) -> None:
        """See `Storage.sync`."""
        try:
            sync_folder(folder)
        except OSError as error:
            raise CommitStateUnknownError(
                f"written, but the folder cannot be made durable: {error.strerror}", folder=folder
            ) from error

    def open_write(self, path: str) -> LocalWriter:
        """See `Storage.open_write`."""
        return LocalWriter(path, self._counters)

    def entries(self, folder: str) -> Entries:
        """The files and the names of the folders; files that vanish during the call are left out."""
        self._counters.lists += 1
        with failing_as("list", folder):
            try:
                with os.scandir(folder) as found:
                    return list(_described(found))
            except FileNotFoundError:
                return []

    def delete(self, paths: Sequence[str]) -> None:
        """See `Storage.delete`; not synced: a file that comes back after a crash will be deleted again."""
        for path in paths:
            with failing_as("delete", path), suppress(FileNotFoundError):
                os.unlink(path)
        self._counters.deletes += len(paths)

    def now_ms(self, folder: str) -> int:
        """See `Storage.now_ms`: a touch gets the file server's time, and needs no disk space."""
        with failing_as("get the storage's time", folder):
            try:
                os.utime(folder)
            except OSError as error:
                if error.errno not in _READ_ONLY:
                    raise
                return now_ms()  # a process that may only read, in a dry run, does no harm with a wrong time
            return os.stat(folder).st_mtime_ns // 1_000_000

    def uploads(self, folder: str) -> list[UnfinishedUpload]:
        """See `Storage.uploads`."""
        return []

    def abort_uploads(self, uploads: Sequence[UnfinishedUpload]) -> None:
        """See `Storage.abort_uploads`."""

    def _opened(self, action: str, path: str, use: Callable[[int], T]) -> T:
        try:
            file = os.open(path, _READ)
            try:
                found = use(file)
            finally:
                os.close(file)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise LOCAL_ERRORS.failure(action, path, error) from error
        self._counters.gets += 1
        return found

    def _count(self, data: Buffer) -> None:
        self._counters.puts += 1
        self._counters.bytes_written += byte_view(data).nbytes


def _link(temporary: str, path: str, data: bytes) -> bytes:
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno in _NO_HARD_LINKS:
            raise StorageError("commits need a file system with hard links, and this one has none") from error
        # Over NFS the reply to a link that was made can be lost; the count of names knows.
        if os.stat(temporary).st_nlink != 2:
            raise
    return data


def _pread_each(ranges: Sequence[tuple[str, int, int]], file: int) -> list[bytes]:
    return [_pread(file, start, end) for _, start, end in ranges]


def _pread(file: int, start: int, end: int | None) -> bytes:
    """Bytes from `start` to `end` or the end of the file, which bounds what is allocated."""
    size = os.fstat(file).st_size
    end = size if end is None or end > size else end
    if end <= start:
        return b""
    data = os.pread(file, end - start, start)
    while len(data) < end - start and (more := os.pread(file, end - start - len(data), start + len(data))):
        data += more
    return data


def _fill(part: memoryview, start: int, file: int) -> int:
    """Read into `part` from position `start` on, up to the end of the file; returns how many bytes."""
    done = 0
    while done < len(part) and (more := os.preadv(file, [part[done:]], start + done)):
        done += more
    return done


def _described(found: Iterator[os.DirEntry[str]]) -> Iterator[FileInfo | str]:
    for entry in found:
        with suppress(FileNotFoundError):
            yield entry.name if entry.is_dir() else _described_file(entry.name, entry.stat())


def _described_file(name: str, status: os.stat_result) -> FileInfo:
    return FileInfo(name, status.st_size, status.st_mtime_ns // 1_000_000)
