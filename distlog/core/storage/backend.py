"""The interface of a kind of storage, which `LocalFiles` and `ObjectStore` implement, and ranges of its files."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from distlog.core.config import MAX_LONG
from distlog.core.errors import StorageError

# ---
# The interface of a kind of storage, which `LocalFiles` and `ObjectStore` implement.
#
# Paths are absolute paths or URLs. A missing object raises FileNotFoundError, any other failure StorageError;
# `put_if_absent` may also raise CommitStateUnknownError. When a put returns, its object is durable.


if TYPE_CHECKING:
    from typing_extensions import Buffer, Self


# s3fs turns a create of 100 MiB or more into a multipart upload; a commit is far smaller.
MAX_CONDITIONAL_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One listed object: its name relative to the storage that listed it, and its size in bytes.

    `modified_ms` is when it was last written, in ms since 1970 by the store's own clock; MAX_LONG if the store does
    not say.
    """

    name: str
    size: int
    modified_ms: int = field(default=MAX_LONG, compare=False)


# The content of one folder, in any order: its objects, and the names of its folders.
Entries: TypeAlias = list[FileInfo | str]


@dataclass(frozen=True, slots=True)
class UnfinishedUpload:
    """A multipart upload that is neither completed nor aborted: the name of its object, and when it began.

    `id` is the store's id of the upload; `started_ms` is by the store's own clock.
    """

    name: str
    id: str
    started_ms: int


@dataclass(slots=True)
class PutTime:
    """Gets the store's own time of a put-if-absent that succeeded at its first try.

    It stays 0 if the store does not say, or if an earlier try may have been the one that succeeded.
    """

    time_ms: int = 0


@dataclass(slots=True)
class StorageCounters:
    """Requests sent (retries included) and bytes moved; on a local disk, files opened instead of requests.

    For measurements; not exact when several threads count at once.
    """

    gets: int = 0
    puts: int = 0
    lists: int = 0
    deletes: int = 0
    bytes_read: int = 0
    bytes_written: int = 0


class ObjectWriter(ABC):
    """Writes one new object piece by piece; its `with` block closes it, or aborts it on an error.

    It belongs to one process: a forked child can only abort it, and the parent's object is not touched. `written`
    counts the bytes given to it. An error may be raised by a later call, at the latest by `close`.
    """

    written: int = 0

    @abstractmethod
    def write(self, data: Buffer) -> None:
        """Append `data`; the caller may reuse its buffer afterwards."""

    def write_behind(self, data: Buffer) -> None:
        """Append `data`, which must not change until another call to this object returns."""
        self.write(data)

    @abstractmethod
    def close(self) -> None:
        """Make the whole object durable and visible; after StorageError, do not use the object."""

    @abstractmethod
    def abort(self) -> None:
        """Drop what was written, if possible; it never raises, and does nothing after `close`."""

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


class Backend(Protocol):
    """One kind of storage; see the methods of `Storage` of the same names."""

    def read(self, path: str, start: int, end: int | None) -> bytes: ...

    def read_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> list[memoryview]: ...

    def read_joined(self, ranges: Sequence[tuple[str, int, int]]) -> memoryview: ...

    def size(self, path: str) -> int: ...

    def put_many(self, files: Mapping[str, Buffer]) -> None: ...

    def put_if_absent(self, path: str, data: bytes, timeout_s: float, put_time: PutTime) -> bytes: ...

    def probe_put_if_absent(self, folder: str, timeout_s: float) -> None: ...

    def sync(self, folder: str) -> None: ...

    def open_write(self, path: str, part_bytes: int | None) -> ObjectWriter: ...

    def entries(self, folder: str) -> Entries: ...

    def files_after(self, folder: str, name: str) -> Iterator[FileInfo]: ...

    def delete(self, paths: Sequence[str]) -> None: ...

    def now_ms(self, folder: str) -> int: ...

    def replied_ms(self) -> int: ...

    def modified_ms(self, path: str) -> int: ...

    def uploads(self, folder: str) -> list[UnfinishedUpload]: ...

    def abort_uploads(self, uploads: Sequence[UnfinishedUpload]) -> None: ...


def check_process(process: int, path: str) -> None:
    """Raise StorageError unless this is `process`, the process that began to write `path`."""
    if process != os.getpid():
        raise StorageError("cannot write: this was begun before a fork, and the parent goes on with it", file=path)


def byte_view(data: Buffer) -> memoryview:
    """A flat view of the bytes of `data`, of any item type, without a copy."""
    view = memoryview(data)
    if view.format == "B" and view.ndim == 1:
        return view
    return view.cast("B") if view.nbytes else memoryview(b"")


# ---
# A part: where bytes of a segment lie, in a file of their own or within a larger object.


class Part(NamedTuple):
    """Bytes [begin, begin + size) of the object `name`; if it `is_file`, the object is this part and nothing more.

    Readers count positions from the part's first byte. Positions in errors are those of the object.
    """

    name: str
    begin: int
    size: int
    is_file: bool

    @classmethod
    def file(cls, name: str, size: int) -> Part:
        """The part that is the whole file `name`."""
        return cls(name, 0, size, is_file=True)

    def range(self, start: int, end: int) -> tuple[str, int, int]:
        """Bytes [start, end) of the part, as (name, start, end) of its object."""
        return self.name, self.begin + start, self.begin + end

    @property
    def whole(self) -> tuple[str, int, int]:
        """All bytes of the part, as (name, start, end) of its object."""
        return self.range(0, self.size)


# ---
# Close ranges of one file are fetched in one request: a gap of 64 KiB costs less than a round trip.


MAX_GAP_BYTES = 64 * 1024
MAX_MERGED_BYTES = 8 * 1024 * 1024


@dataclass(slots=True)
class RangeRequest:
    """One request: bytes `start` to `end` of `path`."""

    path: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class MergedRanges:
    """The requests to send, and for each wanted range the request that covers it."""

    ranges: Sequence[tuple[str, int, int]]
    requests: list[RangeRequest]
    covered_by: list[int]

    def cut(self, replies: Sequence[memoryview]) -> list[memoryview]:
        """The bytes of each wanted range, without a copy; `replies` are in the order of `requests`."""
        parts = []
        for (_, start, end), number in zip(self.ranges, self.covered_by, strict=True):
            shift = self.requests[number].start
            parts.append(replies[number][start - shift : max(end, start) - shift])
        return parts


def merge_ranges(ranges: Sequence[tuple[str, int, int]]) -> MergedRanges:
    """Merge (path, start, end) that are at most MAX_GAP_BYTES apart, up to MAX_MERGED_BYTES to keep them parallel."""
    requests: list[RangeRequest] = []
    covered_by = [0] * len(ranges)
    for number in sorted(range(len(ranges)), key=ranges.__getitem__):
        path, start, end = ranges[number]
        if requests and _fits(requests[-1], path, start, end):
            requests[-1].end = max(requests[-1].end, end)
        else:
            requests.append(RangeRequest(path, start, end))
        covered_by[number] = len(requests) - 1
    return MergedRanges(ranges, requests, covered_by)


def _fits(last: RangeRequest, path: str, start: int, end: int) -> bool:
    close = path == last.path and start - last.end <= MAX_GAP_BYTES
    return close and (end <= last.end or end - last.start <= MAX_MERGED_BYTES)
