"""The files of a segment that is being appended to: its log and its indexes, written and cut together."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from crc32c import crc32c

from distlog.core.arrays import new_array
from distlog.core.config import TopicConfig
from distlog.core.errors import DistlogError, StorageError
from distlog.core.format.kernels.segment_fold import POSITION
from distlog.core.format.offset_and_time_index import OFFSET_ENTRY, TIME_ENTRY, Column, floor_of_file
from distlog.core.format.transaction_index import TRANSACTION_ENTRY as TXN_ENTRY
from distlog.core.integers import MAX_INT
from distlog.core.locks import process_lock
from distlog.core.segments.segment_state import OFFSET_INDEX, TIME_INDEX, TXN_INDEX, Numbers
from distlog.core.storage.backend import byte_view
from distlog.core.storage.durable_files import LOCAL_ERRORS, failing_as, make_folders, removed_on_error, sync_folder

if TYPE_CHECKING:
    from typing_extensions import Buffer


class SegmentFiles(NamedTuple):
    """The log and the three indexes. A preallocated log has `log_bytes` from the start, else that is 0."""

    stem: str
    log: ActiveFile
    offsets: ActiveIndex
    times: ActiveIndex
    transactions: ActiveIndex
    log_bytes: int

    @classmethod
    def of(
        cls, folder: str, stem: str, config: TopicConfig, calls: FileCalls = os, *, writable: bool = True
    ) -> SegmentFiles:
        path, size = os.path.join(folder, stem), config.segment_index_bytes
        return cls(
            stem,
            ActiveFile(f"{path}.log", calls, writable=writable),
            ActiveIndex(f"{path}.index", OFFSET_ENTRY, size, calls, writable=writable),
            ActiveIndex(f"{path}.timeindex", TIME_ENTRY, size, calls, writable=writable),
            ActiveIndex(f"{path}.txnindex", TXN_ENTRY, 0, calls, writable=writable),
            config.segment_size if config.preallocate else 0,
        )

    @property
    def indexes(self) -> tuple[tuple[int, ActiveIndex], ...]:
        """(the place of its size in the numbers, the index) of each index, in the order of `Folded.entries`."""
        return (OFFSET_INDEX, self.offsets), (TIME_INDEX, self.times), (TXN_INDEX, self.transactions)

    def create(self) -> None:
        """Make the log and the preallocated indexes, and sync their names; others are made with their first entry."""
        with failing_as("create", self.log.path):
            make_folders(os.path.dirname(self.log.path))
        self.log.create()
        with removed_on_error(self.log.path):
            if self.log_bytes:
                self.log.allocate(self.log_bytes)
            self.offsets.create()
            self.times.create()
        self.sync_names()

    def check_size(self) -> None:
        if self.log.size() > MAX_INT:
            raise StorageError(f"a log file cannot have more than {MAX_INT} bytes", file=self.log.path)

    def write_entries(self, numbers_before: Numbers, entries: tuple[bytes, bytes, bytes]) -> None:
        for (field, index), data in zip(self.indexes, entries, strict=True):
            if data:
                index.file.write(data, int(numbers_before[field]))

    def has_entries(self, numbers: Numbers) -> bool:
        self.close_deleted_indexes()
        return all(index.has_entries(*numbers[[field, field + 1]].tolist()) for field, index in self.indexes)

    def seems_to_have_entries(self, numbers: Numbers) -> bool:
        """True if each index has its length in `numbers`; reads only the entries of transactions."""
        is_long = all(index.file.size() >= numbers[field] for field, index in self.indexes)
        return is_long and self.transactions.has_entries(*numbers[[TXN_INDEX, TXN_INDEX + 1]].tolist())

    def close_deleted_indexes(self) -> None:
        """Close indexes whose files somebody deleted, so that what is written next makes new ones."""
        for _, index in self.indexes:
            if index.file.is_open and not os.path.exists(index.file.path):
                index.file.close()

    def write_entries_again(self, numbers: Numbers) -> None:
        for field, index in self.indexes:
            if numbers[field]:
                index.file.write(index.file.read(0, int(numbers[field])), 0)

    def cut(self, numbers: Numbers) -> None:
        """Cut every file to its size in `numbers`; preallocated space after that becomes zeros."""
        self.log.cut(int(numbers[POSITION]))
        self.log.cut(int(numbers[POSITION]), self.log_bytes)
        self.clear_after_entries(numbers)

    def clear_after_entries(self, numbers: Numbers) -> None:
        """Cut every index to its size in `numbers`; preallocated space after that becomes zeros."""
        for field, index in self.indexes:
            index.clear(int(numbers[field]))

    def trim(self, numbers: Numbers) -> None:
        self.log.cut(int(numbers[POSITION]))
        for field, index in self.indexes:
            index.trim(int(numbers[field]))

    def open(self) -> None:
        self.log.open()
        for _, index in self.indexes:
            index.file.open()

    def sync(self) -> None:
        """Sync all files, the log first."""
        self.log.sync()
        self.sync_indexes()

    def sync_indexes(self) -> None:
        for _, index in self.indexes:
            index.file.sync()

    def sync_names(self) -> None:
        with failing_as("sync", self.log.path):
            sync_folder(os.path.dirname(self.log.path))

    def close(self) -> None:
        self.log.close()
        for _, index in self.indexes:
            index.file.close()


class FileCalls(Protocol):
    """The system calls that change a file; the module `os` has them."""

    def pwrite(self, fd: int, data: Buffer, offset: int, /) -> int: ...
    def ftruncate(self, fd: int, length: int, /) -> None: ...
    def posix_fallocate(self, fd: int, offset: int, length: int, /) -> None: ...
    def fsync(self, fd: int, /) -> None: ...


class ActiveFile:
    """A file with one writer at a time, opened when it is first used; every OSError becomes a StorageError.

    It has no position of its own, so threads, and processes after a fork, may read while one writes. Close it only
    when it is not in use.
    """

    def __init__(self, path: str, calls: FileCalls = os, *, writable: bool = True) -> None:
        self.path = path
        self._calls, self._writable = calls, writable
        self._file: int | None = None
        self._inode = 0
        #: Whether `size` found another file than the one that was open, and that one was not opened yet.
        self.was_replaced = False
        self._opening = process_lock()

    def create(self) -> None:
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
        count = 0
        try:
            file = self._file if self._file is not None else self._open(0)
            while count < view.nbytes and (more := os.preadv(file, [view[count:]], position + count)):
                count += more
        except OSError as error:
            raise self._failure("read", error) from error
        return count

    def size(self) -> int:
        """The size of the file that has this name now, or 0; the one that is open is closed if it was replaced."""
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            self.close()
            return 0
        except OSError as error:
            raise self._failure("look at", error) from error
        if self._file is not None and status.st_ino != self._inode:
            self.close()
            self.was_replaced = True
        return status.st_size

    def next_data(self, position: int, end: int) -> tuple[int, int]:
        """The next part of [position, end) that may hold something else than zeros; empty, at `end`, if none does."""
        if position >= end:
            return end, end
        try:
            file = self._file if self._file is not None else self._open(0)
            # all reads and writes say where, so the position that a seek changes does not matter
            start = min(os.lseek(file, position, os.SEEK_DATA), end)
            return start, min(os.lseek(file, start, os.SEEK_HOLE), end)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return end, end
            raise self._failure("look at", error) from error

    def cut(self, size: int, allocated: int = 0) -> None:
        """Cut the file to `size` bytes, with zeros up to `allocated`. Raises StorageError for a shorter file."""
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
        return self._file is not None

    def open(self) -> None:
        """Open the file now, if there is one: so that a `sync` does not fail for want of a descriptor."""
        if self._file is None and os.path.exists(self.path):
            self._open(0)

    def sync(self) -> None:
        """Sync the file, with the writes of all processes."""
        # a sync of a file that was replaced would save nothing
        self.size()
        self.open()
        if self._file is None:
            return
        try:
            self._calls.fsync(self._file)
        except OSError as error:
            raise self._failure("sync", error) from error

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def _open(self, flags: int) -> int:
        mode = os.O_RDWR if self._writable else os.O_RDONLY
        try:
            with self._opening:
                if self._file is None:
                    file = os.open(self.path, mode | flags | os.O_CLOEXEC, 0o666)
                    self._inode, self._file, self.was_replaced = os.fstat(file).st_ino, file, False
                return self._file
        except OSError as error:
            raise self._failure("open", error) from error

    def _failure(self, action: str, error: OSError) -> DistlogError:
        return LOCAL_ERRORS.failure(action, self.path, error)


# Many processes have an index file open, so it is never mapped. One process appends under the partition's lock, and
# cuts the file to its entries when it seals the segment: a process that had it mapped would be killed (SIGBUS) by
# touching a part that was cut, as it would if its state were older than a recovery that dropped entries. A read of
# that part only comes out short, and the log is then walked from the last entry that is there. The segment's state
# says how many entries count; after them are zeros, up to the preallocated size.


class ActiveIndex:
    """An index of entries of one type, whose first field is the key; `max_bytes` is its preallocated size, or 0."""

    def __init__(
        self, path: str, entry: np.dtype[np.void], max_bytes: int, calls: FileCalls = os, *, writable: bool = True
    ) -> None:
        self.file = ActiveFile(path, calls, writable=writable)
        self.max_bytes = max_bytes // entry.itemsize * entry.itemsize
        self._entry, self._key = entry, Column(entry.itemsize, 0, entry[0].itemsize)

    def create(self) -> None:
        self.file.create()
        self.file.cut(0, self.max_bytes)

    def floor(self, target: int, size: int) -> tuple[int, int]:
        """(key, second field) of the last entry in `size` bytes whose key is not above `target`; (-1, 0) if none."""
        _, key, value = floor_of_file(self.file.read, size, target, self._entry, self._key)
        return key, value

    def has_entries(self, size: int, checksum: int) -> bool:
        return self.file.size() >= size and (not size or crc32c(self.file.read(0, size)) == checksum)

    def trim(self, size: int) -> None:
        """Cut the file to its entries, which are `size` bytes; a shorter file does not change."""
        if size or self.file.size():
            self.file.cut(min(size, self.file.size()))

    def clear(self, size: int) -> None:
        """Fill the file with zeros from `size`, the end of the entries, up to `max_bytes`."""
        if self.max_bytes or size or self.file.size():
            end = min(size, self.file.size())
            self.file.cut(end)
            self.file.cut(end, self.max_bytes)
