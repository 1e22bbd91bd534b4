"""A partition's folder in a broker's log directory: its files and logs, and Kafka's small text files."""

from __future__ import annotations

import base64
import binascii
import fcntl
import itertools
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from distlog.core import paths
from distlog.core.arrays import MAX_INT, MAX_LONG
from distlog.core.errors import (
    CorruptionError,
    CorruptMetadataError,
    InvalidTopicError,
    StorageError,
    UnsupportedVersionError,
)
from distlog.core.format.indexes import OFFSET_ENTRY
from distlog.core.format.record_batch import HEADER_SIZE, BatchWalk, size_of_first
from distlog.core.paths import LEADER_EPOCHS, SNAPSHOT_SUFFIX
from distlog.core.segments.producer_states import ProducerStates, read_producer_snapshot
from distlog.core.segments.segment_parts import LogFile
from distlog.core.storage.backend import Part
from distlog.core.storage.local_files import OpenedFile, SparseMap, failing_as, make_folders
from distlog.core.storage.storage import FileInfo, Storage

CLEAN_SHUTDOWN_FILE, BROKER_LOCK_FILE, META_PROPERTIES = ".kafka_cleanshutdown", ".lock", "meta.properties"
PARTITION_METADATA = "partition.metadata"
#: The topic with the metadata of a KRaft cluster, which has no records of users.
CLUSTER_METADATA = "__cluster_metadata"
Positions = npt.NDArray[np.int64]
_COPIED_BYTES = 8 << 20
#: The bytes per step of a walk: the first for a mapped log of which only headers are read, the second for others.
_WINDOW_BYTES, _READ_BYTES = 64 << 20, 4 << 20
#: For batches of at least this mean size, fetching the pages of headers is faster than reading the log. A measured
#: disk read 45,000 single pages a second, or 440 MB sequentially, so a page took as long as 10 kB of the log.
_MIN_BATCH_BYTES = 12 << 10
#: The most batches in the sample of `_are_batches`, and the share of the sample that the index must have right.
_SAMPLE_SIZE, _MIN_SHARE = 64, 0.95
_NO_POSITIONS: Positions = np.zeros(0, np.int64)


class PartitionFolder:
    """The files of partition `name` in `storage`, as listed in `files`. Changes no file."""

    def __init__(self, storage: Storage, name: PartitionName, files: Iterable[FileInfo]) -> None:
        self._storage, self.name = storage, name
        self._files = {file.name: file for file in files}

    @cached_property
    def loaded(self) -> LoadedFiles:
        """The files that a broker would load. Raises StorageError as `check_files`."""
        self.check_files(filter(parse_file, self._files))
        return loaded_files(self._files, self._next_offset)

    def check_files(self, names: Iterable[str]) -> None:
        """Raise StorageError for a link, and for a pipe or a device among `names`, since a read could block."""
        self._storage.refuse_links()
        for name in names if self._storage.is_local else ():  # an object store has only objects
            if not os.path.isfile(self.path(name)):
                text = "not a file, but a link, pipe or device: remove it, and adopt again"
                raise StorageError(text, file=self.path(name))

    @property
    def names(self) -> Iterable[str]:
        return self._files.keys()

    def path(self, name: str) -> str:
        return self._storage.local_path(name) if self._storage.is_local else f"{self._storage.url}/{name}"

    def read(self, name: str) -> bytes:
        return self._storage.read(name)

    def open_file(self, name: str) -> int:
        """Open a local file, which the caller closes. Raises OSError, and StorageError for a link."""
        return self._storage.open_file(name)

    def walk(
        self, name: str, *, checked: bool, start: int = 0, end: int = MAX_LONG, offset_index: bytes | None = None
    ) -> BatchWalk:
        """Walk over the batches in [start, end) of a log, up to damage; an `offset_index` locates some headers."""
        log = self.log(name) if checked or offset_index is None else self.headers(name, offset_index)
        step = _WINDOW_BYTES if self._storage.is_local and not checked else _READ_BYTES
        # damage ends the walk ("stop"); `min`, since the log may have become shorter
        return BatchWalk(log.read, start, min(log.size, end), step, "stop", self.path(name), checked=checked)

    def log(self, name: str) -> SourceLog:
        size = self.size(name)
        if not self._storage.is_local:
            return SourceLog(LogFile(self._storage, Part.file(name, size), size, mapped=False).read, size)
        data = self._storage.map(name)
        return SourceLog(lambda start, end: data[start:end], len(data))

    def headers(self, name: str, offset_index: bytes) -> SourceLog:
        """Return a log for reading headers; only the pages of headers are fetched if this is faster."""
        size = self.size(name)
        positions = batch_positions(offset_index, size) if self._storage.is_local else _NO_POSITIONS
        if len(positions) * _MIN_BATCH_BYTES > size or not len(positions):  # small batches, or no positions
            return self.log(name)
        with failing_as("open the log", self.path(name)):
            file = SparseMap(self.open_file(name))
        sample = positions[:: -(-len(positions) // _SAMPLE_SIZE)]  # rounded up: at most _SAMPLE_SIZE
        if file.is_in_memory(sample.tolist(), HEADER_SIZE) or not _are_batches(file, sample, positions):
            # no prefetch, since the headers are in memory, or the index lacks batches
            return SourceLog(lambda start, end: file.data[start:end], len(file.data))
        file.read_nothing_ahead()
        return SourceLog(HeaderScan(file, positions).read, len(file.data))

    def size(self, name: str) -> int:
        return self._files[name].size

    def modified_ms(self, name: str) -> int:
        """Return the last write's time in ms; at least 0, since an export's `_put_empty` sets a time before 1970."""
        time_ms = self._files[name].modified_ms
        if time_ms == MAX_LONG:
            text = "the storage does not report write times, which retention may need: copy the files to a disk"
            raise StorageError(text, file=self.path(name))
        return max(time_ms, 0)

    def _next_offset(self, name: str) -> int:
        """Return the offset after the last batch of a log, or its base offset if it has no batch."""
        end = int(name[:20])  # the digits of the base offset
        for batches in self.walk(name, checked=False):
            end = int(batches.rows["base_offset"][-1] + batches.rows["last_offset_delta"][-1]) + 1
        return end

    def topic_id(self) -> uuid.UUID | None:
        file = PARTITION_METADATA
        return read_topic_id(self.read(file), file=self.path(file)) if file in self._files else None

    def leader_epochs(self, log_start_offset: int, log_end_offset: int) -> Epochs:
        """Return the leader epochs between these offsets; none if the folder has no checkpoint of epochs."""
        file = LEADER_EPOCHS
        epochs = read_epochs(self.read(file), file=self.path(file)) if file in self._files else []
        # `joined_epochs` takes a list for each segment: here one list has all entries
        return joined_epochs([[entry for entry in epochs if entry[1] < log_end_offset]], log_start_offset)

    def producers(self, end_offset: int = MAX_LONG) -> ProducerStates:
        """Read the producers from the newest valid snapshot up to `end_offset`; none if no snapshot is valid."""
        for offset, name in sorted(self.loaded.snapshots.items(), reverse=True):
            if offset <= end_offset:
                with suppress(CorruptionError):
                    entries = read_producer_snapshot(self.read(name), file=self.path(name))
                    return ProducerStates.of_snapshot(entries, offset)
        return ProducerStates()


_FOLDER = re.compile(r"(?P<topic>.+)-(?P<partition>0|[1-9][0-9]{0,5})")
_FOLDER_IN_STATE = re.compile(r".+-[0-9]+\.[0-9a-f]{32}-(?P<state>delete|future|stray)")
_FILE = re.compile(
    r"(?P<offset>[0-9]{20})(?P<suffix>\.log|\.index|\.timeindex|\.txnindex|\.snapshot)"
    r"(?P<temporary>\.cleaned|\.swap|\.deleted)?"
)


class PartitionName(NamedTuple):
    topic: str
    partition: int


class FileName(NamedTuple):
    """A file of a segment, or a producer snapshot; `temporary` is a second suffix, such as .swap, or empty."""

    offset: int
    suffix: str
    temporary: str


def parse_partition_folder(name: str) -> PartitionName | None:
    """Return the partition whose folder has this name, if any."""
    with suppress(InvalidTopicError):
        if match := _FOLDER.fullmatch(name):
            return PartitionName(paths.check_topic_name(match["topic"]), int(match["partition"]))
    return None


def folder_state(name: str) -> str | None:
    """Return the state in which a broker left a partition's folder: delete, future (a move), stray or None."""
    match = _FOLDER_IN_STATE.fullmatch(name)
    return match["state"] if match else None


def parse_file(name: str) -> FileName | None:
    """Parse the name of a segment's file or a producer snapshot in a partition's folder; None for other files."""
    match = _FILE.fullmatch(name)
    if match is None or int(match["offset"]) > MAX_LONG:
        return None
    return FileName(int(match["offset"]), match["suffix"], match["temporary"] or "")


def file_name(offset: int, suffix: str) -> str:
    return f"{offset:020d}{suffix}"


# A checkpoint (`CheckpointFile`) has a line with the version (0), a line with the number of entries, and a line for
# each entry: `<topic> <partition> <offset>`, or `<epoch> <start offset>` in a leader-epoch-checkpoint.
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_START_OFFSETS = "log-start-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
FIRST_DIRTY_OFFSETS = "cleaner-offset-checkpoint"
_VERSION = "0"
LOG_SUFFIX = ".log"
#: (leader epoch, its first offset), ascending.
Epochs = Sequence[tuple[int, int]]


def read_offsets(data: bytes, *, file: str = "") -> dict[PartitionName, int]:
    """Parse a checkpoint file: offsets by partition. Raises CorruptMetadataError for an incomplete file."""
    offsets = dict[PartitionName, int]()
    for topic, partition, offset in _entries(data, 3, file):
        offsets[PartitionName(topic, _number(partition, MAX_INT, file))] = _number(offset, MAX_LONG, file)
    return offsets


def write_offsets(offsets: Mapping[PartitionName, int]) -> bytes:
    return _text(f"{topic} {partition} {offset}" for (topic, partition), offset in sorted(offsets.items()))


def read_epochs(data: bytes, *, file: str = "") -> Epochs:
    """Parse a leader-epoch-checkpoint. Raises CorruptMetadataError for an incomplete file."""
    entries = _entries(data, 2, file)
    return [(_number(epoch, MAX_INT, file), _number(start, MAX_LONG, file)) for epoch, start in entries]


def write_epochs(epochs: Epochs) -> bytes:
    return _text(f"{epoch} {start}" for epoch, start in epochs)


def joined_epochs(segments: Iterable[Iterable[tuple[int, int]]], log_start_offset: int) -> list[tuple[int, int]]:
    """Join the leader epochs of segments to the entries of a leader-epoch-checkpoint."""
    epochs = list[tuple[int, int]]()
    for epoch, start in itertools.chain.from_iterable(segments):
        if not epochs or epoch > epochs[-1][0]:
            epochs.append((epoch, start))
    # the epoch of the log start offset may begin earlier: its entry gets the log start offset
    earlier = [epoch for epoch, start in epochs if start < log_start_offset]
    later = [(epoch, start) for epoch, start in epochs if start >= log_start_offset]
    if earlier and (not later or later[0][1] > log_start_offset):
        later.insert(0, (earlier[-1], log_start_offset))
    return later


def read_topic_id(data: bytes, *, file: str = "") -> uuid.UUID:
    """Read the topic's id in a `partition.metadata`. Raises CorruptMetadataError, UnsupportedVersionError."""
    lines = [line.partition(":")[2].strip() for line in data.decode("utf-8", "replace").splitlines()[:2]]
    version = _number(lines[0] if lines else "", MAX_INT, file)
    if str(version) != _VERSION:
        text = "this partition.metadata has an unknown version: a newer Kafka may have written it"
        raise UnsupportedVersionError(text, file=file or None, version=version)
    try:
        topic_id = uuid.UUID(bytes=base64.urlsafe_b64decode(lines[1] + "=="))
    except (IndexError, ValueError, binascii.Error):
        raise _malformed(file) from None
    if topic_id.int == 0:
        raise _malformed(file)
    return topic_id


def write_topic_id(topic_id: uuid.UUID) -> bytes:
    """Return the content of a `partition.metadata`, as in Kafka without a final newline."""
    return b"version: 0\ntopic_id: " + base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=")


def _text(lines: Iterable[str]) -> bytes:
    entries = list(lines)
    return "".join(f"{line}\n" for line in (_VERSION, len(entries), *entries)).encode()


def _entries(data: bytes, tokens: int, file: str) -> list[list[str]]:
    lines = data.decode("utf-8", "replace").splitlines()
    # as in Kafka, a file that is empty or has only the version has no entries
    if lines in ([], [_VERSION]):
        return []
    entries = [line.split() for line in lines[2:]]
    is_complete = lines[0] == _VERSION and _number(lines[1], MAX_INT, file) == len(entries)
    if not is_complete or any(len(entry) != tokens for entry in entries):
        raise _malformed(file)
    return entries


def _number(text: str, largest: int, file: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20) or int(text) > largest:
        raise _malformed(file)
    return int(text)


def _malformed(file: str) -> CorruptMetadataError:
    return CorruptMetadataError("this file of a broker is malformed: restore it, or delete it", file=file or None)


@contextmanager
def locked_log_dir(log_dir: Storage, *, is_exclusive: bool = False) -> Iterator[None]:
    """Lock the log directory against brokers; imports share the lock, an export is exclusive. Raises StorageError."""
    if not log_dir.is_local:
        yield
        return
    with ExitStack() as stack:
        folder = log_dir.local_path("")
        with failing_as("open the log directory", folder):
            if is_exclusive:
                make_folders(folder)
            file = stack.enter_context(OpenedFile(os.open(folder, os.O_RDONLY | os.O_CLOEXEC)))
        try:
            fcntl.flock(file, (fcntl.LOCK_EX if is_exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError:
            text = "another export or import is running in this log directory: wait for it"
            raise StorageError(text, directory=folder) from None
        except OSError:
            # a network file system cannot lock folders: the user must not run two exports or imports at once
            pass
        path = log_dir.local_path(BROKER_LOCK_FILE)
        with suppress(FileNotFoundError):
            broker_lock = stack.enter_context(OpenedFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC)))
            try:
                fcntl.lockf(broker_lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                text = "a broker is running on this log directory, since it holds the lock: stop it first"
                raise StorageError(text, file=path) from None
        yield


@dataclass(frozen=True, slots=True)
class LoadedFiles:
    """The valid files, of segments by offset and suffix, of snapshots by offset, and why other files are left out."""

    segments: dict[int, dict[str, str]] = field(default_factory=dict)
    snapshots: dict[int, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


def loaded_files(names: Iterable[str], next_offset: Callable[[str], int]) -> LoadedFiles:
    """Select the valid files of `names`; `next_offset` returns the offset after the last batch of a `.log.swap`."""
    # a broker that replaces segments writes `.cleaned` files, renames them to `.swap`, deletes the old files, and
    # renames the `.swap` files. It may have stopped after any step. The first renames go from the highest offset
    # down: if a `.cleaned` file is left, the `.swap` files from its offset on are of the same, incomplete replacement
    files = {name: parsed for name in sorted(names) if (parsed := parse_file(name)) is not None}
    cleaned_start = min((file.offset for file in files.values() if file.temporary == ".cleaned"), default=MAX_LONG)
    reasons = {
        ".deleted": "was being deleted",
        ".cleaned": "of a cleaning that did not finish",
        ".swap": "of a replacement that did not finish",
    }
    left_out = {
        name: reasons[parsed.temporary]
        for name, parsed in files.items()
        if parsed.temporary and (parsed.temporary != ".swap" or parsed.offset >= cleaned_start)
    }
    swaps = {name: parsed for name, parsed in files.items() if parsed.temporary == ".swap" and name not in left_out}
    # plain files in the range of offsets of the `.swap` logs are left out, as old files that were not deleted
    logs = [(parsed.offset, name) for name, parsed in swaps.items() if parsed.suffix == LOG_SUFFIX]
    swap_start = min((offset for offset, _ in logs), default=0)
    swap_end = max((next_offset(name) for _, name in logs), default=0)
    for name, parsed in files.items():
        if not parsed.temporary and swap_start <= parsed.offset < swap_end:
            left_out[name] = "replaced by a .swap file"
    plain = {name: parsed for name, parsed in files.items() if not parsed.temporary and name not in left_out}
    loaded = LoadedFiles(left_out=left_out)  # `left_out` gets more files below
    for name, parsed in sorted({**plain, **swaps}.items(), key=lambda item: item[1].offset):
        if parsed.suffix == SNAPSHOT_SUFFIX:
            loaded.snapshots[parsed.offset] = name
        else:
            # if no `.swap` log has batches, a plain file of this offset is not left out: the .swap file replaces it
            loaded.segments.setdefault(parsed.offset, {})[parsed.suffix] = name
    for offset in [offset for offset, suffixes in loaded.segments.items() if LOG_SUFFIX not in suffixes]:
        left_out.update(dict.fromkeys(loaded.segments.pop(offset).values(), "an index without a log"))
    return loaded


class SourceLog(NamedTuple):
    """A log of `size` bytes; `read` returns the bytes [start, end). `start` must not decrease from call to call."""

    read: Callable[[int, int], memoryview]
    size: int

    def chunks(self, start: int, end: int) -> Iterator[memoryview]:
        for position in range(start, end, _COPIED_BYTES):
            yield self.read(position, min(position + _COPIED_BYTES, end))


class HeaderScan:
    """A local log of which only the pages with headers are fetched."""

    def __init__(self, log: SparseMap, positions: Positions) -> None:
        self._log, self._positions = log, positions

    def read(self, start: int, end: int) -> memoryview:
        first, last = np.searchsorted(self._positions, (start, end))
        self._log.announce(self._positions[first:last].tolist(), HEADER_SIZE)
        self._positions = self._positions[last:]
        return self._log.data[start:end]


def batch_positions(offset_index: bytes, size: int) -> Positions:
    """Return the positions of batches in the index of a log of `size` bytes; empty for a bad index."""
    # an incomplete last entry is left out; the first batch, at 0, has no entry in an index
    entries_end = len(offset_index) // OFFSET_ENTRY.itemsize * OFFSET_ENTRY.itemsize
    positions = np.append(0, np.frombuffer(offset_index[:entries_end], OFFSET_ENTRY)["position"].astype(np.int64))
    is_sound = (np.diff(positions) > 0).all() and positions[-1] < size
    return positions if is_sound else _NO_POSITIONS


def _are_batches(log: SparseMap, sample: Positions, positions: Positions) -> bool:
    """Return whether the index seems to have every batch: most sampled batches end where the next entry begins.

    An offset index has an entry for each batch only if batches are larger than `index.interval.bytes`.
    """
    log.announce(sample.tolist(), HEADER_SIZE)
    # for each sampled batch, the position of the next batch, or the end of the log
    ends = np.append(positions[1:], len(log.data))[np.searchsorted(positions, sample)]
    sizes = [size_of_first(log.data[position : position + HEADER_SIZE]) for position in sample]
    return bool((sample + sizes == ends).mean() >= _MIN_SHARE)
