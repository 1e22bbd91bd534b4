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
from distlog.core.storage.objects.client import StorageOptions
from distlog.core.storage.objects.store import ObjectStore
from distlog.core.storage.url import StorageUrl, parse_url

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["MAX_CONDITIONAL_BYTES", "FileInfo", "ObjectWriter", "Storage", "StorageCounters", "UnfinishedUpload"]

COMMIT_TIMEOUT_S = 600.0


class Storage:
    """One folder (a topic, or a root of topics) on a local disk or on any fsspec URL, and the files below it.

    Names are relative to the folder, with `/` between their parts; whoever reads a name from storage checks it
    first. A missing file is FileNotFoundError, all other trouble StorageError; reads and writes that meet a
    passing fault are tried again for a minute. What was put is durable when the call returns.

    It pickles, with its options, and may be used from several threads and after a fork.
    """

    def __init__(self, url: str | os.PathLike[str], options: Mapping[str, Any] | None = None) -> None:
        """`url` is a path, file://, s3://bucket/folder, memory://, ...; `options` are its fsspec client's.

        Raises StorageError when the URL carries credentials: they belong in `options` or the environment.
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
    def is_local(self) -> bool:
        """True when `map` and `local_path` work."""
        return isinstance(self._backend, LocalFiles)

    def child(self, name: str) -> Storage:
        """The folder `name` below this one, with the same client, options and counters."""
        child = object.__new__(Storage)
        child.__dict__.update(self.__dict__)
        child._set_folder(self._prefix + name.strip("/"))
        return child

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Bytes `start` to `end` (None: all the rest) in one request; fewer if the file is shorter."""
        return self._backend.read(self._prefix + name, start, end)

    def read_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> list[memoryview]:
        """The bytes of each (name, start, end), in the order asked: close ones in one request, requests in parallel.

        Raises StorageError when a file ends before its range does.
        """
        found = self._backend.read_ranges([(self._prefix + name, start, end) for name, start, end in ranges])
        for (name, start, end), data in zip(ranges, found, strict=True):
            if len(data) != max(end - start, 0):
                raise StorageError("a file is shorter than it should be", file=name, start=start, end=end)
        return found

    def read_joined(self, ranges: Sequence[tuple[str, int, int]]) -> memoryview:
        """The bytes of each (name, start, end) back to back in one buffer; else as `read_ranges`."""
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
        """Write a whole file, or replace it; a reader sees the old one or the new one."""
        self._backend.put_many({self._prefix + name: data})

    def put_many(self, files: Mapping[str, Buffer]) -> None:
        """Write whole files; durable one by one, so after an error some are there and some are not."""
        self._backend.put_many({self._prefix + name: data for name, data in files.items()})

    def open_write(self, name: str) -> ObjectWriter:
        """A writer of the new file `name`, in bounded memory; `name` must not be in use."""
        return self._backend.open_write(self._prefix + name)

    def put_if_absent(self, name: str, data: bytes, *, timeout_s: float = COMMIT_TIMEOUT_S) -> bytes:
        """Write `data` unless `name` exists, and return the bytes that stand there: ours, or the winner's.

        Of the winner's come up to one more than a conditional put takes.

        `data` must be unlike any other writer's (hold a uuid), since the caller learns who won by comparing. Never
        wrong either way: a reply that was lost is settled by reading back. Raises StorageError when the storage
        refused, so that nothing happened, and CommitStateUnknownError when something may have.
        """
        if not 0 < len(data) <= MAX_CONDITIONAL_BYTES:
            raise StorageError("a conditional put takes 1 byte to 64 MiB", file=name, size=len(data))
        return self._backend.put_if_absent(self._prefix + name, data, timeout_s)

    def sync(self, folder: str) -> None:
        """Make durable what is seen in `folder`, whoever put it there, before somebody relies on having seen it.

        Raises CommitStateUnknownError when that is not known to have happened.
        """
        self._backend.sync(self._prefix + folder)

    def probe_put_if_absent(self, folder: str) -> None:
        """Raise StorageError if this storage lets a second writer replace what a first one created."""
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
        """The names, relative to this storage, of the folders right inside `folder`."""
        prefix, found = self._entries(folder)
        return [prefix + entry for entry in found if isinstance(entry, str)]

    def _entries(self, folder: str) -> tuple[str, Entries]:
        prefix = f"{folder.strip('/')}/" if folder.strip("/") else ""
        return prefix, self._backend.entries((self._prefix + prefix).rstrip("/") or "/")

    def now_ms(self, folder: str) -> int:
        """The store's own time, in ms since 1970, whatever this process's clock says; `folder` is one to write to.

        The file server's on a network disk, to the second on S3.
        """
        return self._backend.now_ms(self._prefix + folder)

    def uploads(self) -> list[UnfinishedUpload]:
        """The multipart uploads below this folder that are under way, or whose writers died.

        Only S3 keeps them for ever. Google's resumable sessions and Azure's uncommitted blocks go after a week by
        themselves, and a local disk and memory have none. (MinIO lists none, and drops them after a day.)
        """
        found = self._backend.uploads(self.url.rstrip("/"))
        return [dataclasses.replace(upload, name=upload.name[len(self._prefix) :]) for upload in found]

    def abort_uploads(self, uploads: Sequence[UnfinishedUpload]) -> None:
        """Give the parts of `uploads` up; those that are gone are fine."""
        self._backend.abort_uploads(
            [dataclasses.replace(upload, name=self._prefix + upload.name) for upload in uploads]
        )

    def list(self, folder: str = "") -> list[FileInfo]:
        """The files right inside `folder`, none if it does not exist, in no particular order.

        On a local disk that includes temporary files, which a process that died inside a put leaves.
        """
        prefix, found = self._entries(folder)
        return [
            FileInfo(prefix + entry.name, entry.size, entry.modified_ms)
            for entry in found
            if isinstance(entry, FileInfo)
        ]

    def delete(self, names: Sequence[str]) -> None:
        """Delete files; those that are missing are fine."""
        self._backend.delete([self._prefix + name for name in names])

    def map(self, name: str) -> memoryview:
        """A local file that nobody cuts (`mapping`) as read-only memory, without a read, as long as it is now."""
        return self._local().map(self._prefix + name)

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
