"""The files of a partition with an active segment: its log and indexes, and its lock, whose page has the state."""

from __future__ import annotations

import errno
import os
import struct
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from enum import Enum, IntEnum
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from distlog.core import paths
from distlog.core.arrays import MAX_INT, Bytes, new_array
from distlog.core.commits.actions import Active
from distlog.core.config import TopicConfig
from distlog.core.errors import CorruptRecordError, DistlogError, StorageError
from distlog.core.format.indexes import OFFSET_ENTRY, TIME_ENTRY, TRANSACTION_ENTRY, Column, floor_of_file
from distlog.core.format.kernels.batch_scan import MAGIC_AT
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
from distlog.core.segments.segment_state import (
    OFFSET_INDEX,
    STATE_BYTES,
    TIME_INDEX,
    TXN_INDEX,
    IndexEntries,
    Numbers,
    SegmentState,
    packed_flushed,
    packed_position,
)
from distlog.core.storage.calls import process_lock
from distlog.core.storage.local_files import (
    LOCAL_ERRORS,
    OpenedFile,
    failing_as,
    make_folders,
    removed_on_error,
    sync_folder,
)
from distlog.core.storage.locks_and_pages import PAGE_BYTES, FileLock, boot_id, counters_of, open_page, read_newest

if TYPE_CHECKING:
    from typing_extensions import Buffer


class SegmentFiles(NamedTuple):
    """The log and the three indexes of a segment. A new log has `preallocated_bytes`."""

    stem: str
    log: ActiveFile
    offsets: ActiveIndex
    times: ActiveIndex
    transactions: ActiveIndex
    preallocated_bytes: int

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
            ActiveIndex(f"{path}.txnindex", TRANSACTION_ENTRY, 0, calls, writable=writable),
            config.segment_size if config.preallocate else 0,
        )

    @property
    def indexes(self) -> tuple[tuple[int, ActiveIndex], ...]:
        """The indexes in the order of IndexEntries, each after its size's field in Numbers; its checksum follows."""
        return (OFFSET_INDEX, self.offsets), (TIME_INDEX, self.times), (TXN_INDEX, self.transactions)

    def create(self) -> None:
        """Create the log and the preallocated indexes, with durable names."""
        with failing_as("create", self.log.path):
            make_folders(os.path.dirname(self.log.path))
        self.log.create()
        with removed_on_error(self.log.path):
            if self.preallocated_bytes:
                self.log.allocate(self.preallocated_bytes)
            self.offsets.create()
            self.times.create()
        self.sync_names()

    def write_entries(self, numbers_before: Numbers, entries: IndexEntries) -> None:
        for (field, index), data in zip(self.indexes, entries, strict=True):
            if data:
                index.file.write(data, int(numbers_before[field]))

    def has_entries(self, numbers: Numbers) -> bool:
        # close all deleted files first, since `all` stops at a bad index: a rebuild must not write to a deleted file
        for _, index in self.indexes:
            if index.file.is_open and not os.path.exists(index.file.path):
                index.file.close()
        return all(index.has_entries(*_size_and_checksum(numbers, field)) for field, index in self.indexes)

    def has_index_lengths(self, numbers: Numbers) -> bool:
        """True if each index has at least its length; compares only the checksum of the transaction index."""
        is_long = all(index.file.checked_size() >= numbers[field] for field, index in self.indexes)
        return is_long and self.transactions.has_entries(*_size_and_checksum(numbers, TXN_INDEX))

    def rewrite_entries(self, numbers: Numbers) -> None:
        # after a failed sync, Linux keeps the entries in memory, but writes only pages that change
        for field, index in self.indexes:
            if numbers[field]:
                index.file.write(index.file.read(0, int(numbers[field])), 0)

    def cut(self, numbers: Numbers) -> None:
        """Cut the log and the indexes to their sizes in `numbers`, and preallocate zeros after these."""
        self.log.cut(int(numbers[POSITION]), self.preallocated_bytes)
        self.clear_after_entries(numbers)

    def clear_after_entries(self, numbers: Numbers) -> None:
        for field, index in self.indexes:
            index.clear(int(numbers[field]))

    def trim(self, numbers: Numbers) -> None:
        """Cut the log and the indexes to their sizes in `numbers`, without zeros after these."""
        self.log.cut(int(numbers[POSITION]))
        for field, index in self.indexes:
            index.trim(int(numbers[field]))

    def open(self) -> None:
        self.log.open()
        for _, index in self.indexes:
            index.file.open()

    def sync(self) -> None:
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


def _size_and_checksum(numbers: Numbers, field: int) -> list[int]:
    values: list[int] = numbers[[field, field + 1]].tolist()
    return values


class FileCalls(Protocol):
    """The system calls that change a file; the module `os` has them."""

    def pwrite(self, fd: int, data: Buffer, offset: int, /) -> int: ...
    def ftruncate(self, fd: int, length: int, /) -> None: ...
    def posix_fallocate(self, fd: int, offset: int, length: int, /) -> None: ...
    def fsync(self, fd: int, /) -> None: ...


class ActiveFile:
    """A file with one writer at a time, opened at its first use. Every OSError becomes a StorageError."""

    def __init__(self, path: str, calls: FileCalls = os, *, writable: bool = True) -> None:
        self.path = path
        self._calls, self._writable = calls, writable
        self._file: int | None = None
        self._inode = 0
        #: Whether `checked_size` found another file at the path; it closed this one, and the new one is not open yet.
        self.was_replaced = False
        self._opening = process_lock()

    def create(self) -> None:
        self._open(os.O_CREAT | os.O_EXCL)

    def write(self, data: Buffer, position: int) -> None:
        # faster than `_open` if the file is open, since `_open` takes a lock
        file = self._file if self._file is not None else self._open(os.O_CREAT)
        view = memoryview(data)
        try:
            size = self._calls.pwrite(file, view, position)
            while size < view.nbytes:
                next_size = self._calls.pwrite(file, view[size:], position + size)
                if next_size == 0:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)
                size += next_size
        except OSError as error:
            raise self._failure("write", error) from error

    def read(self, start: int, end: int) -> memoryview:
        """Return bytes [start, end), read-only, or fewer if the file ends earlier."""
        view = new_array(max(end - start, 0), np.uint8).data
        return view[: self.read_into(view, start)].toreadonly()

    def read_into(self, view: memoryview, position: int) -> int:
        size = 0
        try:
            file = self._file if self._file is not None else self._open(0)
            while size < view.nbytes and (next_size := os.preadv(file, [view[size:]], position + size)):
                size += next_size
        except OSError as error:
            raise self._failure("read", error) from error
        return size

    def checked_size(self) -> int:
        """Return the size of the file at the path, or 0; closes an open file if another file replaced it."""
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

    def next_written(self, position: int, end: int) -> tuple[int, int]:
        """Return the next range in [position, end) that is not a hole of zeros, or (end, end)."""
        if position >= end:
            return end, end
        try:
            file = self._open(0)
            start = min(os.lseek(file, position, os.SEEK_DATA), end)
            return start, min(os.lseek(file, start, os.SEEK_HOLE), end)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole follows
                return end, end
            raise self._failure("seek in", error) from error

    def cut(self, size: int, allocated: int = 0) -> None:
        """Cut the file to `size` bytes, and add zeros up to `allocated`; StorageError if the file is shorter."""
        length = self.checked_size()
        if length < size:
            details = {"file": self.path, "size": length, "recorded_size": size}
            raise StorageError("the file is shorter than its recorded end: run `distlog repair`", **details)
        if length == size and allocated <= size:
            return
        try:
            file = self._open(os.O_CREAT)
            if length > size:
                self._calls.ftruncate(file, size)
            if allocated > size:
                self._calls.ftruncate(file, allocated)
        except OSError as error:
            raise self._failure("cut", error) from error

    def allocate(self, size: int) -> None:
        try:
            self._calls.posix_fallocate(self._open(0), 0, size)
        except OSError as error:
            raise self._failure("preallocate", error) from error

    @property
    def is_open(self) -> bool:
        return self._file is not None

    def open(self) -> None:
        """Open the file, if it exists, so that a later `sync` needs no new file descriptor."""
        if self._file is None and os.path.exists(self.path):
            self._open(0)

    def sync(self) -> None:
        # closes an open file that was replaced, since its sync would save nothing
        self.checked_size()
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


# An index file is never mapped: SIGBUS would kill a reader of a part that another process has cut off.
class ActiveIndex:
    """An index. It has entries whose first field is the key, and then zeros up to `max_bytes`."""

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
        """Return the two fields of the last entry in `size` bytes whose key is at most `target`, or (-1, 0)."""
        _, key, value = floor_of_file(self.file.read, size, target, self._entry, self._key)
        return key, value

    def has_entries(self, size: int, checksum: int) -> bool:
        return self.file.checked_size() >= size and (not size or crc32c(self.file.read(0, size)) == checksum)

    def trim(self, size: int) -> None:
        """Cut the file to `size` bytes of entries, unless it is shorter."""
        if size or self.file.checked_size():
            self.file.cut(min(size, self.file.checked_size()))

    def clear(self, size: int) -> None:
        """Fill the file with zeros from `size` to `max_bytes`."""
        if self.max_bytes or size or self.file.checked_size():
            self.file.cut(min(size, self.file.checked_size()), self.max_bytes)


#: The bytes that are read at once if a whole file is read.
WALK_BYTES = 4 << 20
_SECTOR = 512  # a device loses unsynced bytes in units of this size
#: The magic of format 2.
_MAGIC = 2
_OFFSET_BYTES = 8
#: `inspect_tail` computes checksums over at most this many bytes plus twice the tail's size, because hostile records
#: may look like any number of headers of any size.
_MIN_CHECKED_BYTES = 64 << 20


def batches_from(file: ActiveFile, position: int, end: int, step: int) -> Iterator[Batches]:
    """Yield the whole batches from `position` to `end`, about `step` bytes at a time; compares no checksums."""
    return iter(BatchWalk(_reader(file), position, end, step, on_damage="raise", file=file.path))


def _reader(file: ActiveFile) -> Callable[[int, int], memoryview]:
    buffer = new_array(0, np.uint8)

    def read(start: int, end: int) -> memoryview:
        # one buffer is enough, since callers use only the batches of the last step
        nonlocal buffer
        if buffer.size < end - start:
            buffer = new_array(end - start, np.uint8)
        return buffer.data[: file.read_into(buffer.data[: end - start], start)]

    return read


def sound_batches(file: ActiveFile, position: int, end: int, next_offset: int) -> Iterator[Batches]:
    """Yield the batches before the first one that is torn, fails its checksum or is out of order."""
    walk = BatchWalk(_reader(file), position, end, WALK_BYTES, on_damage="stop", file=file.path, checked=True)
    for batches in walk:
        count = _count_in_order(batches.rows, next_offset)
        sound = walk.stop(batches, count) if count < len(batches.rows) else batches
        if count:
            yield sound
            next_offset = next_offset_of(sound.rows)


def _count_in_order(rows: npt.NDArray[Any], next_offset: int) -> int:
    """Count the batches before the first one whose offset is below the end of its predecessor."""
    ends = rows["base_offset"] + rows["last_offset_delta"] + 1
    is_out_of_order = rows["base_offset"] < np.concatenate([[next_offset], ends[:-1]])
    return int(is_out_of_order.argmax()) if is_out_of_order.any() else len(rows)


class TrailingBytes(NamedTuple):
    """The bytes after the last batch that a recovery accepts, from `position` to `end`; only zeros follow `end`.

    `sound` is the position and base offset of the first sound batch there, or None. `is_hole` is True if the batch at
    `position` has zeros in its first bytes or in a whole sector. Then the device did not write the whole batch.
    """

    position: int
    end: int
    sound: tuple[int, int] | None
    is_hole: bool


def inspect_tail(file: ActiveFile, position: int, end: int, base_offset: int) -> TrailingBytes:
    """Inspect bytes [position, end). A sound batch after `position` has an offset of at least `base_offset`."""
    head = file.read(position, min(position + LOG_OVERHEAD, end)) if position < end else memoryview(b"")
    size = size_of_first(head)
    if HEADER_SIZE <= size <= end - position and _is_sound(file, position, size):
        return TrailingBytes(position, end, (position, int.from_bytes(head[:8], "big", signed=True)), is_hole=False)
    start = written_end = position
    sound: tuple[int, int] | None = None
    checkable_bytes = 2 * (end - position) + _MIN_CHECKED_BYTES
    while True:
        start, stop = file.next_written(start, end)
        if start == stop:
            break  # only a hole follows
        stop = min(start + WALK_BYTES, stop)
        # with the header of a batch that begins just before `stop`
        data = np.frombuffer(file.read(start, min(stop + HEADER_SIZE, end)), np.uint8)
        is_written = data[: stop - start] != 0
        if is_written.any():
            written_end = start + is_written.size - int(is_written[::-1].argmax())
            candidates = _possible_batches(data, start, stop, end, base_offset) if sound is None else ()
            for batch_position, offset, size in candidates:
                checkable_bytes -= size
                # if a check of the tail takes too long, this batch is taken as sound, so that nothing is cut
                if checkable_bytes < 0 or _is_sound(file, batch_position, size):
                    sound = batch_position, offset
                    break
        start = stop
    return TrailingBytes(position, written_end, sound, written_end > position and _is_hole(file, position, end))


def _possible_batches(
    data: Bytes, start: int, stop: int, end: int, base_offset: int
) -> Iterator[tuple[int, int, int]]:
    """Yield (position, base offset, size) of each possible batch that begins in [start, stop) of the file."""
    # candidates are positions in `data`; a batch may begin at each byte before `stop` that a whole header follows
    count = min(stop - start, data.size - HEADER_SIZE + 1)
    candidates = np.flatnonzero(data[MAGIC_AT : MAGIC_AT + max(count, 0)] == _MAGIC)
    heads = data[candidates[:, None] + np.arange(LOG_OVERHEAD)]  # their first fields: base offset, length
    offsets = np.ascontiguousarray(heads[:, :8]).view(">i8")[:, 0].astype(np.int64)
    sizes = np.ascontiguousarray(heads[:, 8:]).view(">i4")[:, 0].astype(np.int64) + LOG_OVERHEAD
    fits = (offsets >= base_offset) & (offsets - base_offset <= MAX_INT) & (sizes >= HEADER_SIZE)
    fits &= sizes <= end - start - candidates
    yield from zip((start + candidates[fits]).tolist(), offsets[fits].tolist(), sizes[fits].tolist(), strict=True)


def _is_sound(file: ActiveFile, position: int, size: int) -> bool:
    expected = int.from_bytes(file.read(position + CRC_AT, position + CRC_START), "big")
    checksum, end = 0, position + size
    for start in range(position + CRC_START, end, WALK_BYTES):
        checksum = crc32c(file.read(start, min(start + WALK_BYTES, end)), checksum)
    return checksum == expected


def _is_hole(file: ActiveFile, position: int, end: int) -> bool:
    """True if the batch at `position` has only zeros in its first bytes, or in a sector."""
    head = file.read(position, min(position + LOG_OVERHEAD, end))
    if not any(head):
        return True
    size = LOG_OVERHEAD + int.from_bytes(head[8:], "big", signed=True)
    batch_end = position + (size if HEADER_SIZE <= size <= end - position else HEADER_SIZE)
    # A sound batch may begin with the zeros of its offset, and end with the zero of a record without headers. So
    # `first` skips a sector that has only bytes of the offset, and `stop` excludes the last byte.
    to_sector = -position % _SECTOR  # the bytes up to the next sector
    first = position + to_sector if to_sector <= _OFFSET_BYTES else position
    stop = batch_end - 1
    for step in range(first - first % _SECTOR, stop, WALK_BYTES):
        start = max(step, first)
        data = np.frombuffer(file.read(start, min(step + WALK_BYTES, stop)), np.uint8)
        # the starts of sectors in `data`; the first sector may start before `data`
        sectors = np.maximum(np.arange(step - start, data.size, _SECTOR), 0)
        if not np.maximum.reduceat(data, sectors).all():
            return True
    return False


class DamagedLogError(CorruptRecordError):
    """An active log lacks acknowledged records, which no crash explains; nothing was appended, cut or changed."""


@dataclass(frozen=True, slots=True)
class DurableEnd:
    """The end that a recovery must reach. Bytes before it are fsynced, or, if written in this boot, in memory."""

    offset: int = 0
    position: int = 0


NOTHING_DURABLE = DurableEnd()


def next_offset_of(rows: npt.NDArray[Any]) -> int:
    return int(rows["base_offset"][-1]) + int(rows["last_offset_delta"][-1]) + 1


T = TypeVar("T")

# The page has the state of the active segment, and a recovery point. Since the page is not synced, it may be older
# after a restart of the machine. So its state is valid only in the boot whose id it has. A flushed end and the
# recovery point (Kafka's `recovery-point-offset-checkpoint`) are valid in any boot, since they are written after a
# sync. Without a valid page, the state is rebuilt from the commit log and the segment.
_VERSION = 3
_HEADER = struct.Struct("=BB16s16s")  # version, PageStatus, boot id, topic id
_POINT_START = _HEADER.size + STATE_BYTES
RECORD_BYTES = _HEADER.size + 2 * STATE_BYTES
#: The recovery point of a segment that was never synced.
NO_POINT = bytes(STATE_BYTES)


class PageStatus(IntEnum):
    """The status of a partition's active segment."""

    NONE = 0  # the partition has no active segment
    ACTIVE = 1  # it takes appends
    CHANGING = 2  # it is being sealed, and only the commit log shows whether the seal happened
    FAILED = 3  # a sync failed, so it must be cut to its flushed end, and sealed
    TORN = 4  # a failed append could not be cut off, so the log must be cut to the state's end


@dataclass(frozen=True, slots=True)
class StateRecord:
    """The state of a partition's active segment or None, and its packed recovery point or NO_POINT."""

    topic_id: str
    status: PageStatus
    state: SegmentState | None = None
    recovery_point: bytes = NO_POINT

    def pack(self) -> bytes:
        """Pack the record into RECORD_BYTES bytes, which `unpack` accepts until the machine restarts."""
        state = bytes(STATE_BYTES) if self.state is None else self.state.pack()
        return packed_header(self.topic_id, self.status) + state + self.recovery_point

    @classmethod
    def unpack(cls, data: bytes | None) -> StateRecord | None:
        """Return the record in `data`; None unless `pack` wrote it since the machine started."""
        if data is None or len(data) != RECORD_BYTES:
            return None
        version, status, boot, topic = _HEADER.unpack_from(data)
        if version != _VERSION or boot != boot_id() or status not in PageStatus.__members__.values():
            return None
        try:
            state = SegmentState.unpack(data[_HEADER.size : _POINT_START]) if status != PageStatus.NONE else None
        except ValueError:
            return None
        return cls(str(uuid.UUID(bytes=topic)), PageStatus(status), state, data[_POINT_START:])

    def state_of(self, topic_id: str, active: Active | None) -> SegmentState | None:
        """Return the state; None unless it belongs to this topic and this `active` segment."""
        return _if_of_segment(self.state, active) if topic_id == self.topic_id else None


def recovery_point(page_value: bytes | None, topic_id: str, active: Active) -> tuple[SegmentState | None, DurableEnd]:
    """Return the `active` segment's recovery point or None, and its durable end, from a page of any boot."""
    state = point = None
    if page_value is not None and len(page_value) == RECORD_BYTES:
        version, _, _, topic = _HEADER.unpack_from(page_value)
        if version == _VERSION and topic == uuid.UUID(topic_id).bytes:
            state = _unpacked_state(page_value[_HEADER.size : _POINT_START], active)
            point = _unpacked_state(page_value[_POINT_START:], active)
    ends = [(stored.flushed_offset, stored.flushed_position) for stored in (state, point) if stored is not None]
    return point, DurableEnd(*max(ends, default=(0, 0)))


def _unpacked_state(packed: bytes, active: Active) -> SegmentState | None:
    with suppress(ValueError):
        return _if_of_segment(SegmentState.unpack(packed), active)
    return None


def _if_of_segment(state: SegmentState | None, active: Active | None) -> SegmentState | None:
    if state is None or active is None:
        return None
    return state if (state.stem, state.base_offset) == (active.stem, active.base_offset) else None


def stored_page_value(path: str) -> bytes | None:
    """Read the value of the page in a lock's file without the lock; None without a file or a whole value."""
    return _parsed_page(path, read_newest)


def _parsed_page(path: str, parse: Callable[[Callable[[], bytes]], T]) -> T | None:
    """Return the result of `parse`, which gets a function that reads the page; None without a file."""
    with failing_as("read", path):
        try:
            file = open_page(path)
        except FileNotFoundError:
            return None
        with OpenedFile(file):
            return parse(partial(os.pread, file, PAGE_BYTES, 0))


def packed_header(topic_id: str, status: PageStatus) -> bytes:
    return _HEADER.pack(_VERSION, status, boot_id(), uuid.UUID(topic_id).bytes)


class PartitionLock(FileLock):
    """The lock of the partition in `folder`, and its page."""

    def __init__(self, folder: str, topic_id: str, timeout_s: float) -> None:
        super().__init__(os.path.join(folder, paths.LOCK_FILE), timeout_s)
        self._topic_id = topic_id
        # packed once, since every append writes it
        self._active_header = packed_header(topic_id, PageStatus.ACTIVE)
        self.recovery_point = NO_POINT

    def is_durable(self, stem: str, end_offset: int) -> bool:
        """Whether the page says that the active segment `stem` is on disk up to `end_offset`; needs no lock."""
        page_value, size = self.page.read(), len(self._active_header)
        if page_value is None or len(page_value) != RECORD_BYTES or not page_value.startswith(self._active_header):
            return False
        return packed_flushed(page_value[size:], stem) >= end_offset

    def stored_record(self) -> StateRecord | None:
        """Return the page's record; None without a file, or if the page is not valid in this boot."""
        return StateRecord.unpack(stored_page_value(self.path))

    @property
    def recovery_position(self) -> int:
        return packed_position(self.recovery_point)

    def publish(self, status: PageStatus, state: SegmentState | None) -> None:
        self.page.write(StateRecord(self._topic_id, status, state, self.recovery_point).pack())

    def publish_active(self, packed_state: bytes) -> bytes:
        """Write the page of an active segment; returns the page's value."""
        page_value = self._active_header + packed_state + self.recovery_point
        self.page.write(page_value)
        return page_value


# The kernel reports a disk error only once, to the processes that have the file open. It then treats the bytes as
# written, so the next sync may succeed without them. So before a sync starts, the flush lock's page gets a mark that
# its outcome is unknown. A mark is valid for one segment, until the machine restarts.
class FlushOutcome(Enum):
    """The outcome of a segment's last sync."""

    STARTED = b"B"  # unknown: the sync is running, its process died, or a log was closed with unflushed records
    FAILED = b"F"  # the segment must be cut to its flushed end, and sealed
    DOUBTED = b"D"  # success, but the kernel may have lost later records of a killed writer: the next sync reads them
    ENDED = b""  # success


def packed_outcome(outcome: FlushOutcome, stem: str) -> bytes:
    return b"" if outcome == FlushOutcome.ENDED else b"".join((boot_id(), outcome.value, stem.encode("ascii")))


def outcome_in(page_value: bytes | None, stem: str) -> FlushOutcome:
    if not page_value:
        return FlushOutcome.ENDED
    # a mark of another boot or segment does not apply
    outcomes = (outcome for outcome in FlushOutcome if page_value == packed_outcome(outcome, stem))
    return next(outcomes, FlushOutcome.ENDED)


def stored_outcome(folder: str, stem: str) -> FlushOutcome:
    return outcome_in(stored_page_value(os.path.join(folder, paths.FLUSH_FILE)), stem)


def mark_doubted(folder: str, stem: str) -> bool:
    """Mark that the next sync of the segment must read its unflushed records; False while a sync is running."""
    with closing(FileLock(os.path.join(folder, paths.FLUSH_FILE))) as lock:
        try:
            with lock.held(0) as page:
                if outcome_in(page.read(), stem) == FlushOutcome.ENDED:
                    page.write(packed_outcome(FlushOutcome.DOUBTED, stem))
        except StorageError:
            return False
    return True


def may_have_failed_sync(folder: str, stem: str) -> bool:
    """True if the segment's last sync failed, or its process died before it published the outcome."""
    with closing(FileLock(os.path.join(folder, paths.FLUSH_FILE))) as lock:
        with suppress(StorageError), lock.held(0) as page:
            return outcome_in(page.read(), stem) in (FlushOutcome.STARTED, FlushOutcome.FAILED)
        # the flush lock is held, by a sync or by a process that cuts and seals the segment after a failed sync
        return stored_outcome(folder, stem) == FlushOutcome.FAILED


class PartitionCounters(NamedTuple):
    """Counts the direct appends and syncs of all processes since the machine started; the first counters of a page.

    An append is timed from the request for the lock until readers can read the records. A flush is a sync of the log,
    also by a seal. The page of the partition's lock counts appends and seals, the flush lock's page other flushes.
    """

    appends: int = 0
    append_bytes: int = 0
    append_ns: int = 0
    flushes: int = 0
    flush_ns: int = 0


def counters_in(folder: str) -> PartitionCounters | None:
    """Return the counters of the partition in `folder`, or None without direct appends; needs no lock."""
    files = (os.path.join(folder, name) for name in (paths.LOCK_FILE, paths.FLUSH_FILE))
    pages = [page for path in files if (page := _parsed_page(path, lambda read: read()))]
    if not pages:
        return None
    sums = [sum(values) for values in zip(*map(counters_of, pages), strict=True)]
    return PartitionCounters(*sums[: len(PartitionCounters._fields)])
