"""What a kind of storage offers, and `LocalFiles` and `ObjectStore` both keep.

Paths are whole (an absolute path, or a URL). A missing object is FileNotFoundError; anything else that goes
wrong is StorageError; `put_if_absent` may also raise CommitStateUnknownError. What was put is durable.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, TypeAlias

from distlog.core.config import MAX_LONG
from distlog.core.errors import StorageError

if TYPE_CHECKING:
    from typing_extensions import Buffer, Self


# s3fs turns a create of 100 MiB or more into a multipart upload; a commit is far smaller.
MAX_CONDITIONAL_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One listed object: its name relative to the storage that listed it, and its size in bytes.

    `modified_ms` is when it was last written, in ms since 1970 by the store's own clock; a store that does not say
    makes it MAX_LONG, a time that never comes.
    """

    name: str
    size: int
    modified_ms: int = field(default=MAX_LONG, compare=False)


# What is right inside a folder, in any order: its objects, and the names of its folders.
Entries: TypeAlias = list[FileInfo | str]


@dataclass(frozen=True, slots=True)
class UnfinishedUpload:
    """A multipart upload that was neither completed nor aborted: what it would become, and when it was begun.

    The store knows it by `id`; `started_ms` is by the store's own clock.
    """

    name: str
    id: str
    started_ms: int


@dataclass(slots=True)
class StorageCounters:
    """Requests sent (with those sent again) and bytes moved; on a local disk, files opened instead of requests.

    For measuring: not exact when several threads count at once.
    """

    gets: int = 0
    puts: int = 0
    lists: int = 0
    deletes: int = 0
    bytes_read: int = 0
    bytes_written: int = 0


class ObjectWriter(ABC):
    """Writes one new object piece by piece; as a context manager it closes, or aborts on an error.

    It is of one process: a forked child can only abort it, which leaves the object to the parent.
    `written` counts the bytes given to it. What goes wrong with them may be told by a later call, `close` at last.
    """

    written: int = 0

    @abstractmethod
    def write(self, data: Buffer) -> None:
        """Append `data`; the caller may reuse its buffer afterwards."""

    def write_behind(self, data: Buffer) -> None:
        """Append `data`, which must stay as it is until another call to this object returns."""
        self.write(data)

    @abstractmethod
    def close(self) -> None:
        """Make the object durable and visible as a whole; StorageError means that it must not be relied on."""

    @abstractmethod
    def abort(self) -> None:
        """Drop what was written, as far as that can be; never raises, and does nothing after `close`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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

    def put_if_absent(self, path: str, data: bytes, timeout_s: float) -> bytes: ...

    def sync(self, folder: str) -> None: ...

    def open_write(self, path: str) -> ObjectWriter: ...

    def entries(self, folder: str) -> Entries: ...

    def delete(self, paths: Sequence[str]) -> None: ...

    def now_ms(self, folder: str) -> int: ...

    def uploads(self, folder: str) -> list[UnfinishedUpload]: ...

    def abort_uploads(self, uploads: Sequence[UnfinishedUpload]) -> None: ...


def check_process(process: int, path: str) -> None:
    """Raise StorageError unless this is the process of that id, which began to write `path`."""
    if process != os.getpid():
        raise StorageError("cannot write: this was begun before a fork, and the parent goes on with it", file=path)


def byte_view(data: Buffer) -> memoryview:
    """`data`, whatever it is made of, as a flat view of its bytes, without a copy."""
    view = memoryview(data)
    if view.format == "B" and view.ndim == 1:
        return view
    return view.cast("B") if view.nbytes else memoryview(b"")
