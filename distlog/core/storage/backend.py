"""The interface of a kind of storage, which `LocalFiles` and `ObjectStore` implement, and ranges of its files."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from distlog.core.errors import StorageError
from distlog.core.integers import MAX_LONG

if TYPE_CHECKING:
    from typing_extensions import Buffer, Self


class Backend(Protocol):
    """One kind of storage, `LocalFiles` or `ObjectStore`; see the methods of `Storage` of the same names.

    Paths are absolute paths or URLs. A missing object raises FileNotFoundError, any other failure StorageError;
    `put_if_absent` may also raise CommitStateUnknownError. When a put returns, its object is durable.
    """

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


# s3fs turns a create of 100 MiB or more into a multipart upload; a commit is far smaller.
MAX_CONDITIONAL_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One listed object; `modified_ms` is by the store's own clock, MAX_LONG if the store does not say."""

    name: str
    size: int
    modified_ms: int = field(default=MAX_LONG, compare=False)


# The content of one folder, in any order: its objects, and the names of its folders.
Entries: TypeAlias = list[FileInfo | str]


@dataclass(frozen=True, slots=True)
class UnfinishedUpload:
    """An unfinished multipart upload; `started_ms` is by the store's clock."""

    name: str
    id: str
    started_ms: int


@dataclass(slots=True)
class PutTime:
    """Gets the store's own time of a put-if-absent; 0 if the store does not say, or it succeeded at a later try."""

    time_ms: int = 0


@dataclass(slots=True)
class StorageCounters:
    """Requests sent (retries included; on a disk: files opened) and bytes moved; not exact between threads."""

    gets: int = 0
    puts: int = 0
    lists: int = 0
    deletes: int = 0
    bytes_read: int = 0
    bytes_written: int = 0


class ObjectWriter(ABC):
    """Writes a new object in several calls; its `with` block closes it, or aborts it on an error.

    It belongs to one process: a forked child can only abort it, without an effect on the parent. A later call may
    raise the error of an earlier one, at the latest `close`.
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
        """Make the object durable and visible; after StorageError, don't use the object."""

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


def check_process(process: int, path: str) -> None:
    """Raise StorageError unless this is `process`, which started to write `path`."""
    if process != os.getpid():
        raise StorageError("cannot write after a fork: only the parent process can continue this file", file=path)


def byte_view(data: Buffer) -> memoryview:
    """A flat view of the bytes of `data`, of any item type, without a copy."""
    view = memoryview(data)
    if view.format == "B" and view.ndim == 1:
        return view
    return view.cast("B") if view.nbytes else memoryview(b"")


class Part(NamedTuple):
    """Bytes [begin, begin + size) of the object `name`; all its bytes if it `is_file`.

    Readers count positions from the part's first byte. Errors have positions in the object.
    """

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


#: A gap of this size costs less than a round trip.
MAX_GAP_BYTES = 64 * 1024
#: Larger requests would not be parallel.
MAX_MERGED_BYTES = 8 * 1024 * 1024


def merge_ranges(ranges: Sequence[tuple[str, int, int]]) -> tuple[list[tuple[str, int, int]], list[int]]:
    """Merge close (path, start, end).

    Returns the merged ranges, and for each range the number of its merged range.
    """
    merged: list[tuple[str, int, int]] = []
    covered_by = [0] * len(ranges)
    for number in sorted(range(len(ranges)), key=ranges.__getitem__):
        path, start, end = ranges[number]
        last_path, last_start, last_end = merged[-1] if merged else (None, 0, 0)
        is_close = path == last_path and start - last_end <= MAX_GAP_BYTES
        if is_close and (end <= last_end or end - last_start <= MAX_MERGED_BYTES):
            merged[-1] = path, last_start, max(last_end, end)
        else:
            merged.append(ranges[number])
        covered_by[number] = len(merged) - 1
    return merged, covered_by
