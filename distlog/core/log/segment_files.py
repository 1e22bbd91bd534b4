"""The log and the indexes of a segment that is being appended to, and their recovery after a crash."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from distlog.core.arrays import new_array
from distlog.core.config import TopicConfig
from distlog.core.errors import CorruptRecordError, DistlogError, StorageError
from distlog.core.format.indexes import OFFSET_ENTRY, TIME_ENTRY, Column, floor_of_file
from distlog.core.format.indexes import TRANSACTION_ENTRY as TXN_ENTRY
from distlog.core.format.kernels.segments import POSITION
from distlog.core.format.record_batch import (
    CRC_AT,
    CRC_START,
    HEADER_SIZE,
    LOG_OVERHEAD,
    Batches,
    BatchWalk,
    size_of_first,
)
from distlog.core.integers import MAX_INT
from distlog.core.segments.segment_state import OFFSET_INDEX, TIME_INDEX, TXN_INDEX, IndexEntries, Numbers
from distlog.core.storage.local_files import LOCAL_ERRORS, failing_as, make_folders, removed_on_error, sync_folder
from distlog.core.storage.parallel import process_lock

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
        """(the number of its size's field, the index) of each index, in the order of `Folded.entries`."""
        return (OFFSET_INDEX, self.offsets), (TIME_INDEX, self.times), (TXN_INDEX, self.transactions)

    def create(self) -> None:
        """Create the log and the preallocated indexes, with durable names."""
        with failing_as("create", self.log.path):
            make_folders(os.path.dirname(self.log.path))
        self.log.create()
        with removed_on_error(self.log.path):
            if self.log_bytes:
                self.log.allocate(self.log_bytes)
            self.offsets.create()
            self.times.create()
        self.sync_names()

    def write_entries(self, numbers_before: Numbers, entries: IndexEntries) -> None:
        for (field, index), data in zip(self.indexes, entries, strict=True):
            if data:
                index.file.write(data, int(numbers_before[field]))

    def has_entries(self, numbers: Numbers) -> bool:
        self.close_deleted_indexes()
        return all(index.has_entries(*numbers[[field, field + 1]].tolist()) for field, index in self.indexes)

    def seems_to_have_entries(self, numbers: Numbers) -> bool:
        """True if each index has its length; reads only the entries of transactions."""
        is_long = all(index.file.size() >= numbers[field] for field, index in self.indexes)
        return is_long and self.transactions.has_entries(*numbers[[TXN_INDEX, TXN_INDEX + 1]].tolist())

    def close_deleted_indexes(self) -> None:
        for _, index in self.indexes:
            if index.file.is_open and not os.path.exists(index.file.path):
                index.file.close()

    def write_entries_again(self, numbers: Numbers) -> None:
        for field, index in self.indexes:
            if numbers[field]:
                index.file.write(index.file.read(0, int(numbers[field])), 0)

    def cut(self, numbers: Numbers) -> None:
        """Cut the log and the indexes to their sizes in `numbers`; preallocated space after that becomes zeros."""
        self.log.cut(int(numbers[POSITION]))
        self.log.cut(int(numbers[POSITION]), self.log_bytes)
        self.clear_after_entries(numbers)

    def clear_after_entries(self, numbers: Numbers) -> None:
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
    """A file with one writer at a time, opened at first use; every OSError becomes a StorageError."""

    def __init__(self, path: str, calls: FileCalls = os, *, writable: bool = True) -> None:
        self.path = path
        self._calls, self._writable = calls, writable
        self._file: int | None = None
        self._inode = 0
        #: True if `size` found another file than the open one, and nothing has opened it since.
        self.was_replaced = False
        self._opening = process_lock()

    def create(self) -> None:
        self._open(os.O_CREAT | os.O_EXCL)

    def write(self, data: Buffer, position: int) -> None:
        """Write all bytes of `data`, a buffer of bytes, at `position`; creates a missing file."""
        file = self._file if self._file is not None else self._open(os.O_CREAT)
        view = memoryview(data)
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
        """Return the bytes of [start, end), read-only; fewer if the file ends before."""
        view = new_array(max(end - start, 0), np.uint8).data
        return view[: self.read_into(view, start)].toreadonly()

    def read_into(self, view: memoryview, position: int) -> int:
        count = 0
        try:
            file = self._file if self._file is not None else self._open(0)
            while count < view.nbytes and (more := os.preadv(file, [view[count:]], position + count)):
                count += more
        except OSError as error:
            raise self._failure("read", error) from error
        return count

    def size(self) -> int:
        """Return the size of the file with this name now, or 0; closes an open file that was replaced."""
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            self.close()
            return 0
        except OSError as error:
            raise self._failure("stat", error) from error
        if self._file is not None and status.st_ino != self._inode:
            self.close()
            self.was_replaced = True
        return status.st_size

    def next_data(self, position: int, end: int) -> tuple[int, int]:
        """Return the next part of [position, end) that may not be zeros; (end, end) if there is none."""
        if position >= end:
            return end, end
        try:
            file = self._file if self._file is not None else self._open(0)
            start = min(os.lseek(file, position, os.SEEK_DATA), end)
            return start, min(os.lseek(file, start, os.SEEK_HOLE), end)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return end, end
            raise self._failure("seek in", error) from error

    def cut(self, size: int, allocated: int = 0) -> None:
        """Cut the file to `size` bytes, with zeros up to `allocated`; StorageError if it is shorter."""
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
        """Make the file `size` bytes long, and allocate its disk blocks."""
        try:
            self._calls.posix_fallocate(self._file if self._file is not None else self._open(0), 0, size)
        except OSError as error:
            raise self._failure("preallocate", error) from error

    @property
    def is_open(self) -> bool:
        return self._file is not None

    def open(self) -> None:
        """Open the file, if it exists, so that a `sync` does not fail for lack of a descriptor."""
        if self._file is None and os.path.exists(self.path):
            self._open(0)

    def sync(self) -> None:
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


# An index file is never mapped: a seal or a recovery in another process may cut it, and SIGBUS would kill a process
# that touches the part that was cut. A read of that part is only short.
class ActiveIndex:
    """An index of entries whose first field is the key; after them are zeros up to `max_bytes`."""

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
        """Return (key, second field) of the last entry in `size` bytes with a key up to `target`, or (-1, 0)."""
        _, key, value = floor_of_file(self.file.read, size, target, self._entry, self._key)
        return key, value

    def has_entries(self, size: int, checksum: int) -> bool:
        return self.file.size() >= size and (not size or crc32c(self.file.read(0, size)) == checksum)

    def trim(self, size: int) -> None:
        """Cut the file to `size` bytes of entries; a shorter file does not change."""
        if size or self.file.size():
            self.file.cut(min(size, self.file.size()))

    def clear(self, size: int) -> None:
        """Fill the file with zeros from `size` to `max_bytes`."""
        if self.max_bytes or size or self.file.size():
            end = min(size, self.file.size())
            self.file.cut(end)
            self.file.cut(end, self.max_bytes)


#: Bytes per read where a whole file is read.
WALK_BYTES = 4 << 20
#: A device loses unsynced bytes in units of this size.
_SECTOR = 512
_MAGIC_AT, _MAGIC, _OFFSET_BYTES = 16, 2, 8
#: Bytes to compare after a bad batch, besides twice the tail's size: hostile records may look like any number of
#: headers of any size.
_SPARE_CHECKS = 64 << 20


def batches_from(file: ActiveFile, position: int, end: int, step: int) -> Iterator[Batches]:
    """The whole batches from `position` to `end`, about `step` bytes at a time; compares no checksums."""
    return iter(BatchWalk(_reader(file), position, end, step, "raise", file.path))


def _reader(file: ActiveFile) -> Callable[[int, int], memoryview]:
    buffer = new_array(0, np.uint8)

    def read(start: int, end: int) -> memoryview:
        # callers keep no step's batches, so one buffer is enough
        nonlocal buffer
        if buffer.size < end - start:
            buffer = new_array(end - start, np.uint8)
        return buffer.data[: file.read_into(buffer.data[: end - start], start)]

    return read


def sound_batches(file: ActiveFile, position: int, end: int, next_offset: int) -> Iterator[Batches]:
    """The batches up to the first that is torn, fails its checksum or is out of order."""
    walk = BatchWalk(_reader(file), position, end, WALK_BYTES, "stop", file.path, checked=True)
    for batches in walk:
        count = _in_order(batches.rows, next_offset)
        sound = walk.stop(batches, count) if count < len(batches.rows) else batches
        if count:
            yield sound
            next_offset = next_offset_of(sound.rows)


def _in_order(rows: npt.NDArray[Any], next_offset: int) -> int:
    """The number of batches before the first one that begins below the end of the batch before it."""
    ends = rows["base_offset"] + rows["last_offset_delta"] + 1
    bad = rows["base_offset"] < np.concatenate([[next_offset], ends[:-1]])
    return int(bad.argmax()) if bad.any() else len(rows)


class TrailingBytes(NamedTuple):
    """The tail after the last sound batch of a log, from `position` to `end`; only zeros follow.

    `sound` is the position and the base offset of the first sound batch in it. `is_hole`: the device lost the bytes
    at `position`, which are zeros for a head or a sector.
    """

    position: int
    end: int
    sound: tuple[int, int] | None
    is_hole: bool


def inspect_tail(file: ActiveFile, position: int, end: int, base_offset: int) -> TrailingBytes:
    """Inspect the tail [position, end); a sound batch has `base_offset` or above, at `position` itself any offset."""
    head = file.read(position, min(position + LOG_OVERHEAD, end)) if position < end else memoryview(b"")
    if HEADER_SIZE <= (size := size_of_first(head)) <= end - position and _is_sound(file, position, size):
        return TrailingBytes(position, end, (position, int.from_bytes(head[:8], "big", signed=True)), is_hole=False)
    begin, last, sound, to_check = position, position, None, 2 * (end - position) + _SPARE_CHECKS
    while True:
        begin, stop = file.next_data(begin, end)
        if begin == stop:
            break
        stop = min(begin + WALK_BYTES, stop)
        data = np.frombuffer(file.read(begin, min(stop + HEADER_SIZE, end)), np.uint8)
        written = data[: stop - begin] != 0
        if written.any():
            last = begin + written.size - int(written[::-1].argmax())
            for batch_position, offset, size in (
                _headers_in(data, begin, stop, end, base_offset) if sound is None else ()
            ):
                to_check -= size
                # a tail that takes too long to check counts as sound: nothing is cut
                if to_check < 0 or _is_sound(file, batch_position, size):
                    sound = batch_position, offset
                    break
        begin = stop
    return TrailingBytes(position, last, sound, last > position and _is_hole(file, position, end))


def _headers_in(
    data: npt.NDArray[np.uint8], begin: int, stop: int, end: int, base_offset: int
) -> Iterator[tuple[int, int, int]]:
    """(position, base offset, size) of each possible batch from `begin`, where `data` begins, to `stop`."""
    count = min(stop - begin, data.size - HEADER_SIZE + 1)
    field_numbers = np.flatnonzero(data[_MAGIC_AT : _MAGIC_AT + max(count, 0)] == _MAGIC)
    heads = data[field_numbers[:, None] + np.arange(LOG_OVERHEAD)]
    offsets = np.ascontiguousarray(heads[:, :8]).view(">i8")[:, 0].astype(np.int64)
    sizes = np.ascontiguousarray(heads[:, 8:]).view(">i4")[:, 0].astype(np.int64) + LOG_OVERHEAD
    fits = (offsets >= base_offset) & (offsets - base_offset <= MAX_INT) & (sizes >= HEADER_SIZE)
    fits &= sizes <= end - begin - field_numbers
    yield from zip((begin + field_numbers[fits]).tolist(), offsets[fits].tolist(), sizes[fits].tolist(), strict=True)


def _is_sound(file: ActiveFile, position: int, size: int) -> bool:
    expected = int.from_bytes(file.read(position + CRC_AT, position + CRC_START), "big")
    checksum, end = 0, position + size
    for start in range(position + CRC_START, end, WALK_BYTES):
        checksum = crc32c(file.read(start, min(start + WALK_BYTES, end)), checksum)
    return checksum == expected


def _is_hole(file: ActiveFile, position: int, end: int) -> bool:
    """True if the batch at `position` has only zeros in one of its sectors."""
    head = file.read(position, min(position + LOG_OVERHEAD, end))
    if not any(head):
        return True
    size = LOG_OVERHEAD + int.from_bytes(head[8:], "big", signed=True)
    batch_end = position + (size if HEADER_SIZE <= size <= end - position else HEADER_SIZE)
    # an offset begins with zeros, and a record without headers ends with one
    begin, stop = position + (to_sector if (to_sector := -position % _SECTOR) <= _OFFSET_BYTES else 0), batch_end - 1
    for step in range(begin - begin % _SECTOR, stop, WALK_BYTES):
        start = max(step, begin)
        data = np.frombuffer(file.read(start, min(step + WALK_BYTES, stop)), np.uint8)
        sectors = np.maximum(np.arange(step - start, data.size, _SECTOR), 0)
        if not np.maximum.reduceat(data, sectors).all():
            return True
    return False


class DamagedLogError(CorruptRecordError):
    """An active log lacks acknowledged records, and not by a crash: nothing is appended, cut or changed."""


@dataclass(frozen=True, slots=True)
class DurableEnd:
    """The end that a recovery must find: the log up to there is fsynced, or was written since the boot."""

    offset: int = 0
    position: int = 0


#: For the crash of a process while the machine keeps running.
NOTHING_DURABLE = DurableEnd()


def next_offset_of(rows: npt.NDArray[Any]) -> int:
    return int(rows["base_offset"][-1]) + int(rows["last_offset_delta"][-1]) + 1
