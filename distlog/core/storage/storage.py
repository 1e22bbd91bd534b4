"""All access to stored bytes: one class, whatever the storage is."""

from __future__ import annotations

import dataclasses
import os
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from distlog.core import paths
from distlog.core.errors import StorageError
from distlog.core.storage.backend import (
    MAX_CONDITIONAL_BYTES,
    Backend,
    Entries,
    FileInfo,
    ObjectWriter,
    StorageCounters,
    UnfinishedUpload,
)
from distlog.core.storage.local.files import LocalFiles
from distlog.core.storage.local.local_disk import known_local_disk
from distlog.core.storage.objects.client import StorageOptions
from distlog.core.storage.objects.store import ObjectStore
from distlog.core.storage.url import StorageUrl, parse_url

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["MAX_CONDITIONAL_BYTES", "FileInfo", "ObjectWriter", "Storage", "StorageCounters", "UnfinishedUpload"]

COMMIT_TIMEOUT_S = 600.0


class Storage:
    """One folder (a topic, or a root of topics) on a local disk or on any fsspec URL, and the files below it.

    Names are relative to the folder, with `/` between their parts; a name that was read from storage must be checked
    first. A missing file raises FileNotFoundError, any other failure StorageError. Reads and writes are repeated for
    a minute after faults that may pass. When a put returns, its file is durable.

    It can be pickled, with its options, and used from several threads and after a fork.
    """

    def __init__(self, url: str | os.PathLike[str], options: Mapping[str, Any] | None = None) -> None:
        """`url` is a path, file://, s3://bucket/folder, memory://, ...; `options` are its fsspec client's.

        Raises StorageError when the URL holds credentials: give them in `options` or in the environment.
        """
        address = parse_url(url)
        self._options = StorageOptions(options or {})
        self.counters = StorageCounters()
        self._backend = _backend(address, self._options, self.counters)
        self._set_folder(address.url)

    def _set_folder(self, url: str) -> None:
        self.url = url
        self._prefix = url.rstrip("/") + "/"

    def __repr__(self) -> str:
        return f"Storage({self.url!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Storage, (self.url, self._options)

    @property
    def options(self) -> Mapping[str, Any]:
        """The options of the fsspec client. Their `repr` hides the values."""
        return self._options

    @property
    def is_local(self) -> bool:
        """Whether this is a local disk, so that `map` and `local_path` work."""
        return isinstance(self._backend, LocalFiles)

    @property
    def is_local_disk(self) -> bool:
        """Whether this is a disk of this machine, so that processes may share files by locks and mapped pages."""
        return self.is_local and known_local_disk(self.local_path(""))

    def child(self, name: str) -> Storage:
        """The folder `name` below this one, with the same client, options and counters."""
        child = object.__new__(Storage)
        child.__dict__.update(self.__dict__)
        child._set_folder(self._prefix + name.strip("/"))
        return child

    def sibling(self, name: str) -> Storage | None:
        """The folder `name` beside this one, as `child` makes it; None if this one has no folder above it."""
        parent, _, own = self.url.rpartition("/")
        if not own or parent.endswith("/"):
            return None
        beside = self.child("")
        beside._set_folder(f"{parent}/{name}")
        return beside

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Bytes `start` to `end` (None: all the rest) in one request; fewer if the file is shorter."""
        return self._backend.read(self._prefix + name, start, end)

    def read_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> list[memoryview]:
        """The bytes of each (name, start, end), in this order: close ones in one request, requests in parallel.

        Raises StorageError when a file ends before its range does.
        """
        found = self._backend.read_ranges([(self._prefix + name, start, end) for name, start, end in ranges])
        for (name, start, end), data in zip(ranges, found, strict=True):
            if len(data) != max(end - start, 0):
                raise StorageError("a file is shorter than it should be", file=name, start=start, end=end)
        return found

    def read_joined(self, ranges: Sequence[tuple[str, int, int]]) -> memoryview:
        """The bytes of each (name, start, end), back to back in one buffer; otherwise as `read_ranges`."""
        found = self._backend.read_joined([(self._prefix + name, start, end) for name, start, end in ranges])
        position = 0
        for name, start, end in ranges:
            position += max(end - start, 0)
            if position > len(found):
                raise StorageError("a file is shorter than it should be", file=name, start=start, end=end)
        return found

    def size(self, name: str) -> int:
        """The size of a file in bytes."""
        return self._backend.size(self._prefix + name)

    def put(self, name: str, data: Buffer) -> None:
        """Write or replace a whole file; a reader sees either the old file or the new one."""
        self._backend.put_many({self._prefix + name: data})

    def put_many(self, files: Mapping[str, Buffer]) -> None:
        """Write or replace whole files, which must be few; after an error some of them may be written."""
        self._backend.put_many({self._prefix + name: data for name, data in files.items()})

    def open_write(self, name: str) -> ObjectWriter:
        """A writer of the file `name`, in bounded memory; the file must not exist."""
        return self._backend.open_write(self._prefix + name)

    def put_if_absent(self, name: str, data: bytes, *, timeout_s: float = COMMIT_TIMEOUT_S) -> bytes:
        """Write `data` unless `name` exists; return the bytes that are stored there: ours, or another writer's.

        Of another writer's bytes at most MAX_CONDITIONAL_BYTES + 1 are returned.

        `data` must differ from that of any other writer (by a uuid in it): the caller compares the bytes to learn who
        was first. After a lost reply the file is read back, so the result is right. Raises StorageError when the
        storage refused and nothing was written, CommitStateUnknownError when `data` may have been written.
        """
        if not 0 < len(data) <= MAX_CONDITIONAL_BYTES:
            raise StorageError("a conditional put takes 1 byte to 64 MiB", file=name, size=len(data))
        return self._backend.put_if_absent(self._prefix + name, data, timeout_s)

    def sync(self, folder: str) -> None:
        """Make all visible files in `folder` durable, also those of other processes; call it before you rely on them.

        Raises CommitStateUnknownError when they may not be durable.
        """
        self._backend.sync(self._prefix + folder)

    def probe_put_if_absent(self, folder: str) -> None:
        """Raise StorageError if `put_if_absent` replaces a file that exists: then commits could be lost."""
        name = f"{folder}/{paths.probe_file(uuid.uuid4().hex)}"
        first, second = uuid.uuid4().bytes, uuid.uuid4().bytes
        try:
            self.put_if_absent(name, first)
            standing = (self.put_if_absent(name, second), self.read(name))
        finally:
            self.delete([name])
        if standing != (first, first):
            raise StorageError(
                "this storage ignores the condition of a put (If-None-Match: *), so commits could be lost: "
                "use another, or a newer version of it",
                url=self.url,
            )

    def list_folders(self, folder: str = "") -> list[str]:
        """The folders in `folder`, not below them; names are relative to this storage."""
        prefix, found = self._entries(folder)
        return [prefix + entry for entry in found if isinstance(entry, str)]

    def is_there(self) -> bool:
        """Whether this folder exists; an object store has no folders, so there each does that can be listed."""
        return not self.is_local or os.path.isdir(self.local_path(""))

    def _entries(self, folder: str) -> tuple[str, Entries]:
        prefix = f"{folder.strip('/')}/" if folder.strip("/") else ""
        return prefix, self._backend.entries((self._prefix + prefix).rstrip("/") or "/")

    def now_ms(self, folder: str) -> int:
        """The store's own time, in ms since 1970, not this process's; `folder` must be writable.

        On a network disk it is the file server's time; on S3 it is exact to the second.
        """
        return self._backend.now_ms(self._prefix + folder)

    def uploads(self) -> list[UnfinishedUpload]:
        """The multipart uploads below this folder: those under way, and those whose writers died.

        Only S3 keeps them for ever. Google deletes resumable sessions, and Azure uncommitted blocks, after a week. A
        local disk and memory have none. (MinIO lists none, and deletes them after a day.)
        """
        found = self._backend.uploads(self.url.rstrip("/"))
        return [dataclasses.replace(upload, name=upload.name[len(self._prefix) :]) for upload in found]

    def abort_uploads(self, uploads: Sequence[UnfinishedUpload]) -> None:
        """Abort `uploads` and delete their parts; an upload that is gone is no error."""
        self._backend.abort_uploads(
            [dataclasses.replace(upload, name=self._prefix + upload.name) for upload in uploads]
        )

    def list(self, folder: str = "") -> list[FileInfo]:
        """The files in `folder`, not below it, in any order; none if the folder does not exist.

        On a local disk these may include temporary files of processes that died during a put.
        """
        prefix, found = self._entries(folder)
        return [
            FileInfo(prefix + entry.name, entry.size, entry.modified_ms)
            for entry in found
            if isinstance(entry, FileInfo)
        ]

    def delete(self, names: Sequence[str]) -> None:
        """Delete files; a missing file is no error."""
        self._backend.delete([self._prefix + name for name in names])

    def map(self, name: str, start: int = 0, end: int | None = None) -> memoryview:
        """Bytes `start` to `end` (None: all the rest) of a local file, which nothing may cut (see `mapping`).

        They are read-only memory; fewer if the file is shorter.
        """
        return self._local().map(self._prefix + name, start, end)

    def local_path(self, name: str) -> str:
        """The path of a local file."""
        self._local()
        return self._prefix + name

    def _local(self) -> LocalFiles:
        if not isinstance(self._backend, LocalFiles):
            raise StorageError("this needs a local disk", url=self.url)
        return self._backend


def _backend(address: StorageUrl, options: StorageOptions, counters: StorageCounters) -> Backend:
    if address.protocol == "file":
        return LocalFiles(counters)
    return ObjectStore(address.protocol, options, counters)
