"""The offset, time and transaction index of a segment (Kafka's `OffsetIndex`, ...), and a cache of index files."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import re
import stat
import struct
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from distlog.core.arrays import MAX_INT, MAX_LONG, byte_array
from distlog.core.errors import CorruptIndexError, StorageError, UnsupportedVersionError
from distlog.core.format.kernels.segments import WARM_BYTES, first_bad_slot, floor_entry, floor_slot
from distlog.core.storage.backend import Part
from distlog.core.storage.local_files import map_sealed
from distlog.core.storage.storage import Storage
from distlog.core.times import NO_TIMESTAMP

if TYPE_CHECKING:
    from typing_extensions import Buffer

IndexBytes = bytes | memoryview  # an index file in memory


class Column(NamedTuple):
    """A field of index entries: the size of an entry, and the start and size of the field in it, in bytes."""

    stride: int
    start: int
    width: int


class MappedIndex:
    """The mapped file of an offset or time index of a sealed segment: `size` bytes from `begin`, or all.

    A slot is the number of an entry, as in Kafka's `AbstractIndex`. A lookup raises CorruptIndexError if it reads a
    negative number. After other damage, or if a crash left zero entries at the end, it may return an earlier entry
    than the right one, so a search of the log takes longer. Only `sanity_check` detects this.
    """

    ENTRY: ClassVar[np.dtype[np.void]]
    PACKED: ClassVar[struct.Struct]
    OFFSETS: ClassVar[Column]

    def __init__(self, path: str, base_offset: int, begin: int = 0, size: int | None = None) -> None:
        self.path = path
        self.base_offset = base_offset
        self._begin = begin
        end = None if size is None else begin + size
        self._stride = self.ENTRY.itemsize
        with open(path, "rb", buffering=0) as file:
            mapped = map_sealed(file.fileno(), begin, end)
        self._data: npt.NDArray[np.uint8] = np.frombuffer(mapped, np.uint8)
        self.entries = len(self._data) // self._stride

    def checksum(self) -> int:
        return crc32c(self._data.data)

    def _read(self, slot: int) -> tuple[int, int]:
        first, second = self.PACKED.unpack_from(self._data.data, slot * self._stride)
        if first < 0 or second < 0:
            raise self._negative(slot)
        return first, second

    def _check_length(self) -> None:
        if len(self._data) % self._stride:
            position = self.entries * self._stride
            raise self._corrupt(
                f"the length of the file is not a multiple of {self._stride}: rebuild the index", position=position
            )

    def _check_column(self, column: Column, field_name: str, *, step: int, largest: int) -> None:
        """Raise CorruptIndexError unless a field is at least 0, at most `largest`, and grows by `step` or more."""
        slot = first_bad_slot(self._data, self.entries, step, largest, *column)
        if slot >= 0:
            raise self._corrupt(
                f"an entry's {field_name} is out of order or range, as in zeros after a crash: rebuild the index",
                position=slot * self._stride,
            )

    def _negative(self, slot: int) -> CorruptIndexError:
        return self._corrupt("an entry has a negative number: rebuild the index", position=slot * self._stride)

    def _corrupt(self, message: str, position: int) -> CorruptIndexError:
        return CorruptIndexError(message, file=self.path, position=self._begin + position)


# The offset index, `<stem>.index`, maps an offset to a position in the log file (Kafka's `OffsetIndex`).
#
#     position | type | field
#     0        | i32  | relative offset: the last offset of a batch minus the segment's base offset
#     4        | i32  | position of that batch in the log file
#
# The file has big-endian entries and no header. There is about one entry per `index.interval.bytes`, and none for a
# segment's first batch. Offsets and positions strictly increase.
OFFSET_ENTRY = np.dtype([("relative_offset", ">i4"), ("position", ">i4")])

#: The size of an entry, and of the key at its start, for `floor_entry`, which finds and reads an entry in one call.
_OFFSET_KEY = (OFFSET_ENTRY.itemsize, 4)
_POSITIONS = Column(OFFSET_ENTRY.itemsize, 4, 4)


class OffsetPosition(NamedTuple):
    """The last offset of a batch, and the position of the batch in the log file."""

    offset: int
    position: int


class OffsetIndex(MappedIndex):
    ENTRY: ClassVar[np.dtype[np.void]] = OFFSET_ENTRY
    PACKED: ClassVar[struct.Struct] = struct.Struct(">ii")
    OFFSETS: ClassVar[Column] = Column(OFFSET_ENTRY.itemsize, 0, 4)

    def lookup(self, offset: int) -> OffsetPosition:
        """Return the last entry whose offset is at most `offset`, or (base offset, 0)."""
        target = offset - self.base_offset
        slot, relative_offset, position = floor_entry(self._data, self.entries, target, *_OFFSET_KEY)
        if relative_offset < 0 or position < 0:  # both are 0 without an entry
            raise self._negative(slot)
        return OffsetPosition(self.base_offset + relative_offset, position)

    def ceiling(self, offset: int) -> OffsetPosition | None:
        """Return the first entry whose offset is at least `offset`, or None."""
        slot = floor_slot(self._data, self.entries, offset - self.base_offset - 1, *self.OFFSETS) + 1
        entry = self._entry(slot) if slot < self.entries else None
        if entry and entry.offset < offset:
            raise self._corrupt("the entries are out of order: rebuild the index", position=slot * self._stride)
        return entry

    def position_floor(self, position: int) -> OffsetPosition:
        """Return the last entry whose position is at most `position`, or (base offset, 0)."""
        return self._entry(floor_slot(self._data, self.entries, position, *_POSITIONS))

    def sanity_check(self, log_bytes: int | None = None) -> None:
        """Raise CorruptIndexError unless offsets and positions increase, and positions are less than `log_bytes`."""
        self._check_length()
        self._check_column(self.OFFSETS, "offset", step=1, largest=MAX_INT)
        self._check_column(_POSITIONS, "position", step=1, largest=MAX_INT if log_bytes is None else log_bytes - 1)

    def _entry(self, slot: int) -> OffsetPosition:
        if slot < 0:
            return OffsetPosition(self.base_offset, 0)
        relative_offset, position = self._read(slot)
        return OffsetPosition(self.base_offset + relative_offset, position)


# The time index, `<stem>.timeindex`, maps a timestamp to an offset (Kafka's `TimeIndex`).
#
#     position | type | field
#     0        | i64  | largest timestamp in the segment so far, ms
#     8        | i32  | relative offset: the last offset of the batch that has it, minus the segment's base offset
#
# The file has big-endian entries and no header. Timestamps strictly increase, and offsets never decrease. No record
# up to the offset of an entry is later than its timestamp, so a search for a later time may start after the offset.
# The last entry of a sealed segment has the largest timestamp; one slot of the preallocated file is reserved for it.
TIME_ENTRY = np.dtype([("timestamp", ">i8"), ("relative_offset", ">i4")])

_TIME_KEY = (TIME_ENTRY.itemsize, 8)
_TIMESTAMPS = Column(TIME_ENTRY.itemsize, 0, 8)


class TimestampOffset(NamedTuple):
    """A timestamp in ms, and an offset up to which no record is later."""

    timestamp: int
    offset: int


class TimeIndex(MappedIndex):
    ENTRY: ClassVar[np.dtype[np.void]] = TIME_ENTRY
    PACKED: ClassVar[struct.Struct] = struct.Struct(">qi")
    OFFSETS: ClassVar[Column] = Column(TIME_ENTRY.itemsize, 8, 4)

    def lookup(self, timestamp: int) -> TimestampOffset:
        """Return the last entry whose timestamp is at most `timestamp`, or (-1, base offset)."""
        slot, entry_timestamp, relative_offset = floor_entry(self._data, self.entries, timestamp, *_TIME_KEY)
        if slot < 0:
            return TimestampOffset(NO_TIMESTAMP, self.base_offset)
        if entry_timestamp < 0 or relative_offset < 0:
            raise self._negative(slot)
        return TimestampOffset(entry_timestamp, self.base_offset + relative_offset)

    def sanity_check(self, next_offset: int | None = None) -> None:
        """Raise CorruptIndexError unless timestamps increase, and offsets do not decrease up to `next_offset`."""
        largest = MAX_INT if next_offset is None else next_offset - 1 - self.base_offset
        self._check_length()
        self._check_column(_TIMESTAMPS, "timestamp", step=1, largest=MAX_LONG)
        self._check_column(self.OFFSETS, "offset", step=0, largest=largest)


# Indexes of an active segment are read, not mapped or cached. If another process truncated the file, a process that
# maps it would be killed (SIGBUS). Only the entries within the size in the segment's state are valid.

#: Reads the bytes of the file between two positions, or fewer if the file is shorter.
ReadBytes = Callable[[int, int], memoryview | bytes]


def floor_of_file(
    read: ReadBytes, size: int, target: int, entry: np.dtype[np.void], key: Column
) -> tuple[int, int, int]:
    """Return (slot, first field, second field) of the last entry whose `key` is at most `target`, or (-1, -1, 0)."""
    stride = entry.itemsize
    # read backward from the end, where most lookups are, first WARM_BYTES and then twice as many each time
    end, step = size // stride * stride, WARM_BYTES // stride * stride
    while end > 0:
        start = max(end - step, 0)
        data = byte_array(read(start, end))
        slot = floor_slot(data, len(data) // stride, target, *key)
        if slot >= 0:
            first, second = np.frombuffer(data.data, entry, 1, slot * stride)[0].item()
            if first >= 0 and second >= 0:
                return start // stride + slot, first, second
        end, step = start, 2 * step  # no entry up to `target`, or a damaged one: an earlier one means more to read
    return -1, -1, 0


class GrowingOffsetIndex:
    """The first `size` bytes of a growing offset index, with the lookups of OffsetIndex."""

    def __init__(self, read: ReadBytes, size: int, base_offset: int) -> None:
        self._read, self._size, self._base_offset = read, size, base_offset

    def lookup(self, offset: int) -> OffsetPosition:
        return self._floor(offset - self._base_offset, OffsetIndex.OFFSETS)

    def position_floor(self, position: int) -> OffsetPosition:
        return self._floor(position, _POSITIONS)

    def ceiling(self, offset: int) -> OffsetPosition | None:
        slot, *_ = floor_of_file(
            self._read, self._size, offset - self._base_offset - 1, OFFSET_ENTRY, OffsetIndex.OFFSETS
        )
        start = (slot + 1) * OFFSET_ENTRY.itemsize
        data = self._read(start, min(start + OFFSET_ENTRY.itemsize, self._size))
        if len(data) < OFFSET_ENTRY.itemsize:
            return None
        relative_offset, position = np.frombuffer(data, OFFSET_ENTRY)[0].item()
        return OffsetPosition(self._base_offset + relative_offset, position)

    def _floor(self, target: int, key: Column) -> OffsetPosition:
        _, relative_offset, position = floor_of_file(self._read, self._size, target, OFFSET_ENTRY, key)
        return OffsetPosition(self._base_offset + max(relative_offset, 0), position)  # -1 without an entry


class GrowingTimeIndex:
    """The first `size` bytes of a growing time index, with the lookup of TimeIndex."""

    def __init__(self, read: ReadBytes, size: int, base_offset: int) -> None:
        self._read, self._size, self._base_offset = read, size, base_offset

    def lookup(self, timestamp: int) -> TimestampOffset:
        _, entry_timestamp, relative_offset = floor_of_file(
            self._read, self._size, timestamp, TIME_ENTRY, _TIMESTAMPS
        )
        return TimestampOffset(entry_timestamp, self._base_offset + relative_offset)  # -1, NO_TIMESTAMP, if none


# The transaction index, `<stem>.txnindex`, has the aborted transactions that end in a segment, in the order of their
# abort markers (Kafka's `TransactionIndex`). Offsets are absolute. `last_stable_offset` is the first offset of the
# oldest transaction that was open after the marker was appended, or the offset after the marker if none was open.
TRANSACTION_ENTRY = np.dtype(
    [
        ("version", ">i2"),
        ("producer_id", ">i8"),
        ("first_offset", ">i8"),
        ("last_offset", ">i8"),
        ("last_stable_offset", ">i8"),
    ]
)
TRANSACTION_VERSION = 0


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """An aborted transaction; `last_offset` is the offset of its abort marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int

    def moved(self, shift: int) -> AbortedTransaction:
        """Return the transaction with offsets that are higher by `shift`."""
        first, last, stable = self.first_offset, self.last_offset, self.last_stable_offset
        return AbortedTransaction(self.producer_id, first + shift, last + shift, stable + shift)


def collect_aborted(
    transactions: Sequence[AbortedTransaction], fetch_offset: int, upper_bound: int
) -> tuple[list[AbortedTransaction], bool]:
    """Return the transactions that overlap [fetch_offset, upper_bound), and False if later indexes may have more."""
    # a transaction after `stop` was open at its marker or began later: it begins at or after its last stable offset,
    # and so not below `upper_bound`; `stop` itself may begin earlier
    stop = next((n for n, aborted in enumerate(transactions) if aborted.last_stable_offset >= upper_bound), None)
    candidates = transactions if stop is None else transactions[: stop + 1]
    inside = [
        aborted
        for aborted in candidates
        if aborted.last_offset >= fetch_offset and aborted.first_offset < upper_bound
    ]
    return inside, stop is not None


def decode_transactions(data: bytes, file: str, base_offset: int) -> list[AbortedTransaction]:
    """Decode the content of the index `file`; ignores an incomplete last entry.

    Raises UnsupportedVersionError, and CorruptIndexError for offsets that a segment at `base_offset` cannot have.
    """
    size = TRANSACTION_ENTRY.itemsize
    entries = np.frombuffer(data[: len(data) // size * size], TRANSACTION_ENTRY)
    is_newer = (entries["version"] >> 8) > TRANSACTION_VERSION  # Kafka reads only the first byte (`AbortedTxn`)
    if is_newer.any():
        raise UnsupportedVersionError(
            "the transaction index has an entry of an unknown version: upgrade, or rebuild the index",
            file=file,
            version=int(entries["version"][is_newer.argmax()]),
            position=int(is_newer.argmax()) * size,
        )
    is_bad = (entries["last_offset"] < base_offset) | (entries["first_offset"] > entries["last_offset"])
    if is_bad.any():
        text = "the transaction index has offsets that its segment cannot have: rebuild the index"
        raise CorruptIndexError(text, file=file, position=int(is_bad.argmax()) * size)
    return [AbortedTransaction(*fields) for _, *fields in entries.tolist()]


def encode_transactions(transactions: Iterable[AbortedTransaction]) -> bytes:
    """Encode `transactions`, which must be in the order of their last offsets."""
    return np.array(
        [(TRANSACTION_VERSION, *dataclasses.astuple(transaction)) for transaction in transactions], TRANSACTION_ENTRY
    ).tobytes()


#: The default size of the cache, in bytes. It has room for the indexes of about 200 GiB of log.
DEFAULT_MAX_BYTES = 1 << 30
_SCAN_SHARE = 16  # a process lists the folder again after it has added one sixteenth of `max_bytes`
#: A process also lists the folder with its first copy, unless the folder was listed less than this time ago.
_LISTED_NS = 60 * 10**9
_LISTED_FILE = ".listed"  # an empty file; its modification time is the time of the last listing
_AT_ONCE = 512  # the most copies that are fetched, and held in memory, together
#: A process does not evict this many copies that it used last, since it may be about to open them.
_PROTECTED_COPIES = 64
#: A temporary file that is this much older than the newest copy belongs to a crashed process.
_ABANDONED_NS = 3_600 * 10**9
_COPY_NAME = re.compile(r"[0-9a-f]{64}(\.\w+)?")


class IndexCache:
    """Copies of index files in `folder`: up to `max_bytes`, and a sixteenth more for each further process."""

    def __init__(self, folder: str | None = None, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self.folder = folder or default_folder()
        self.max_bytes = max_bytes
        #: The bytes that this process added since it last listed the folder; None before its first copy.
        self._added_bytes: int | None = None
        self._protected: deque[str] = deque(maxlen=_PROTECTED_COPIES)

    def local_file(self, storage: Storage, part: Part, *, tag: str = "") -> tuple[str, int]:
        """Return the path of a local file that has the index `part`, and the position of the index in the file.

        Local storage has the file itself; an object is copied. `tag`, from the segment's checksums, distinguishes
        files of the same name: a rebuilt index replaces the old file, and another log may later have the names of a
        deleted one. Open the path soon, since another process may evict the copy. Raises CorruptIndexError for
        another size, StorageError for a bad folder.
        """
        if storage.is_local:
            path = storage.local_path(part.name)
            _check_size(part, os.stat(path).st_size - part.begin)
            return path, part.begin
        self._claim_folder()
        path = self._path(storage, part, tag)
        self._protected.append(os.path.basename(path))
        if not _mark_used(path, part.size):
            # a part that is a file is read to the end of the file: if it is longer, it is another file
            data = storage.read(part.name, part.begin, None if part.is_file else part.begin + part.size)
            _check_size(part, len(data))
            self._add(path, data)
        return path, 0

    def fetch(self, storage: Storage, parts: Sequence[tuple[Part, str]]) -> None:
        """Fetch the missing copies of `parts`, with their tags, from bundles (files of many partitions' segments)."""
        self._claim_folder()
        paths = [(part, self._path(storage, part, tag)) for part, tag in parts]
        missing = [(part, path) for part, path in paths if not _mark_used(path, part.size)]
        for start in range(0, len(missing), _AT_ONCE):
            group = missing[start : start + _AT_ONCE]
            indexes = storage.read_ranges([part.full_range for part, _ in group])
            for (_, path), data in zip(group, indexes, strict=True):
                self._protected.append(os.path.basename(path))
                self._add(path, data)

    def discard(self, storage: Storage, part: Part, *, tag: str = "") -> None:
        """Delete the copy that `local_file` would return, but no local file."""
        if not storage.is_local:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path(storage, part, tag))

    def _path(self, storage: Storage, part: Part, tag: str) -> str:
        position = "" if part.is_file else str(part.begin)
        key = hashlib.sha256("\0".join((storage.url, part.name, position, str(part.size), tag)).encode()).hexdigest()
        return os.path.join(self.folder, key)

    def _claim_folder(self) -> None:
        # a link, or a folder that another user may write, could have forged copies
        with contextlib.suppress(FileExistsError):
            os.makedirs(self.folder, mode=0o700)
        status = os.lstat(self.folder)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
            text = "the index cache must be your own folder, with mode 0700: delete it, or set TMPDIR"
            raise StorageError(text, folder=self.folder)

    def _add(self, path: str, data: Buffer) -> None:
        """Write a copy, and list the folder if it is time, to evict the copies that were not used for longest."""
        handle, temporary = tempfile.mkstemp(prefix=f"{os.path.basename(path)}.", dir=self.folder)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
        if self._added_bytes is None:
            # `max_bytes`, which is above the limit below, makes this call list the folder
            self._added_bytes = 0 if self._was_listed(path) else self.max_bytes
        self._added_bytes += memoryview(data).nbytes
        if self._added_bytes > self.max_bytes // _SCAN_SHARE:
            with open(os.path.join(self.folder, _LISTED_FILE), "wb") as listed:
                os.utime(listed.fileno())
            self._added_bytes = 0
            copies = sorted(self._copies())
            # leaves room for the copies that this process adds before it lists the folder again
            excess = sum(size for _, size, _ in copies) - (self.max_bytes - self.max_bytes // _SCAN_SHARE)
            for last_use, size, name in copies:
                if excess <= 0:
                    break
                is_being_written = "." in name and copies[-1][0] - last_use < _ABANDONED_NS
                if name not in self._protected and not is_being_written:
                    excess -= size
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(os.path.join(self.folder, name))

    def _was_listed(self, path: str) -> bool:
        """Whether the folder was listed less than a minute before now, when the copy `path` was written."""
        with contextlib.suppress(FileNotFoundError):
            listed_ns = os.stat(os.path.join(self.folder, _LISTED_FILE)).st_mtime_ns
            return 0 <= os.stat(path).st_mtime_ns - listed_ns < _LISTED_NS
        return False

    def _copies(self) -> list[tuple[int, int, str]]:
        """Return (last use, size, name) of each copy and temporary file."""
        copies = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    if _COPY_NAME.fullmatch(entry.name):
                        status = entry.stat(follow_symlinks=False)
                        copies.append((status.st_mtime_ns, status.st_size, entry.name))
        return copies


def default_folder() -> str:
    try:
        temporary = tempfile.gettempdir()
    except OSError:
        # no folder can be written, as on a full disk: an OSError follows, and `SegmentIndexes` reads without copies
        temporary = os.environ.get("TMPDIR") or "/tmp"
    return os.path.join(temporary, f"distlog-index-cache-{os.getuid()}")


def _mark_used(path: str, size: int) -> bool:
    """Mark the copy as used now; returns False if there is no whole copy."""
    try:
        if os.stat(path).st_size != size:
            return False
        os.utime(path)
    except FileNotFoundError:
        return False
    return True


def _check_size(part: Part, size: int) -> None:
    if size < part.size or (part.is_file and size > part.size):
        text = "the size of the index file differs from its segment's metadata: rebuild the index"
        raise CorruptIndexError(text, file=part.name, size=size, expected=part.size)
