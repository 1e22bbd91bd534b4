"""The values, writers and byte ranges of all kinds of storage."""

from __future__ import annotations

import logging
import os
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from distlog.core.arrays import MAX_LONG
from distlog.core.errors import CommitStateUnknownError, StorageError
from distlog.core.storage.calls import in_parallel

if TYPE_CHECKING:
    from typing_extensions import Buffer, Self

#: The largest conditional put. From 100 MiB on, s3fs makes a multipart upload, which ignores the condition.
MAX_CONDITIONAL_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One listed object. `modified_ms` is by the store's clock, or MAX_LONG if the store does not report it."""

    name: str
    size: int
    modified_ms: int = field(default=MAX_LONG, compare=False)


#: The content of one folder, in any order: its objects, and the names of its folders.
Entries: TypeAlias = list[FileInfo | str]


@dataclass(frozen=True, slots=True)
class UnfinishedUpload:
    """An unfinished multipart upload; `started_ms` is by the store's clock."""

    name: str
    id: str
    started_ms: int


@dataclass(slots=True)
class PutTime:
    """Receives the store's time of a put-if-absent: 0 if unknown, or if only a retry succeeded."""

    time_ms: int = 0


@dataclass(slots=True)
class StorageCounters:
    """Counts requests, including retries (on a disk: opened files), and bytes. Not exact if threads share it."""

    gets: int = 0
    puts: int = 0
    lists: int = 0
    deletes: int = 0
    bytes_read: int = 0
    bytes_written: int = 0


class ObjectWriter(ABC):
    """Writes a new object; a `with` block closes it, or aborts it. A call may raise an earlier call's error."""

    written_bytes: int = 0

    @abstractmethod
    def write(self, data: Buffer) -> None:
        """Append `data`, whose buffer the caller may reuse afterwards."""

    def write_behind(self, data: Buffer) -> None:
        """Append `data`, which must not change until another call returns."""
        self.write(data)

    @abstractmethod
    def close(self) -> None:
        """Make the object durable and visible."""

    @abstractmethod
    def abort(self) -> None:
        """Delete the object, if possible; never raises, and does nothing after `close`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.abort()
            return
        try:
            self.close()
        except BaseException:
            self.abort()
            raise


def check_process(process: int, path: str) -> None:
    """Raise StorageError unless this is the process that started to write `path`."""
    if process != os.getpid():
        raise StorageError("cannot write after a fork: only the parent process can continue this file", file=path)


class Part(NamedTuple):
    """Bytes [begin, begin + size) of the object `name`; all its bytes if `is_file`. Positions count from `begin`."""

    name: str
    begin: int
    size: int
    is_file: bool

    @classmethod
    def file(cls, name: str, size: int) -> Part:
        return cls(name, 0, size, is_file=True)

    def range(self, start: int, end: int) -> tuple[str, int, int]:
        return self.name, self.begin + start, self.begin + end

    @property
    def full_range(self) -> tuple[str, int, int]:
        return self.range(0, self.size)


def too_short_error(name: str, start: int, end: int) -> StorageError:
    text = "the file is shorter than expected: verify, then restore it from a copy"
    return StorageError(text, file=name, start=start, end=end)


#: Ranges with a smaller gap are merged: reading the gap costs less than a round trip.
MAX_GAP_BYTES = 64 * 1024
#: Ranges are merged up to this size, so that threads read larger ones in parallel.
MAX_MERGED_BYTES = 8 * 1024 * 1024


def merge_ranges(ranges: Sequence[tuple[str, int, int]]) -> tuple[list[tuple[str, int, int]], list[int]]:
    """Merge close ranges (path, start, end). Returns the merged ranges, and by range the index of its merged one."""
    merged: list[tuple[str, int, int]] = []
    merged_indexes = [0] * len(ranges)
    for index in sorted(range(len(ranges)), key=ranges.__getitem__):
        path, start, end = ranges[index]
        last_path, last_start, last_end = merged[-1] if merged else (None, 0, 0)
        is_close = path == last_path and start - last_end <= MAX_GAP_BYTES
        if is_close and (end <= last_end or end - last_start <= MAX_MERGED_BYTES):
            merged[-1] = path, last_start, max(last_end, end)
        else:
            merged.append(ranges[index])
        merged_indexes[index] = len(merged) - 1
    return merged, merged_indexes


_log = logging.getLogger("distlog")

#: How many writers compete for a test object in an object store, and on a local disk, where links are atomic.
RACERS, LOCAL_RACERS = 6, 2


def check_one_wins(
    put: Callable[[bytes], bytes], delete: Callable[[], None], folder: str, *, racers: int = RACERS
) -> None:
    """Raise StorageError unless one of several puts wins, and a later put loses. Deletes the object at the end."""
    try:
        outcomes = in_parallel(put, [uuid.uuid4().bytes for _ in range(racers)])  # the stored bytes
        later_put = uuid.uuid4().bytes
        outcomes.append(put(later_put))
    except CommitStateUnknownError as error:
        # a StorageError instead, since only the state of the test object is unknown
        text = f"nothing was written: unknown whether the storage supports conditional puts ({error.message})"
        raise StorageError(text, folder=folder) from None
    finally:
        try:
            delete()
        except StorageError as error:
            _log.warning("could not delete the test object in %s; vacuum will: %s", folder, error)
    if len(set(outcomes)) > 1 or later_put in outcomes:
        raise StorageError(
            "this storage ignores the condition of a put (If-None-Match: *), or lets several concurrent writers "
            "pass, so commits could be lost: use another storage, or a newer version",
            folder=folder,
            winners=len(set(outcomes)),
        )
