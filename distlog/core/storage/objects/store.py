"""Objects in S3 and other object stores, through fsspec: one request per operation, where the store allows it.

A request is repeated until a deadline while its answer is unclear (`storage.retry`). Operations that only S3 has
(multipart uploads, bulk deletes) use s3fs's `call_s3`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from distlog.core.errors import StorageError
from distlog.core.storage.backend import Entries, FileInfo, StorageCounters, UnfinishedUpload, byte_view
from distlog.core.storage.objects.client import StorageOptions
from distlog.core.storage.objects.object_times import modified_ms, now_ms
from distlog.core.storage.objects.requests import ObjectRequests
from distlog.core.storage.objects.unfinished_uploads import abort_upload, list_uploads
from distlog.core.storage.objects.upload import SINGLE_PUT_BYTES, BufferedWriter
from distlog.core.storage.parallel import in_parallel
from distlog.core.storage.range_merge import merge_ranges

if TYPE_CHECKING:
    from typing_extensions import Buffer

_WRITABLE = ("s3", "gs", "abfs", "abfss", "az", "memory")
_KEYS_PER_DELETE = 1000


class ObjectStore:
    """The backend of URLs, made of requests."""

    def __init__(self, protocol: str, options: StorageOptions, counters: StorageCounters) -> None:
        self._requests = ObjectRequests(protocol, options, counters)

    def read(self, path: str, start: int, end: int | None) -> bytes:
        """See `Storage.read`."""
        return self._requests.read(path, start, end)

    def read_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> list[memoryview]:
        """See `Storage.read_ranges`."""
        merged = merge_ranges(ranges)
        parts = in_parallel(
            lambda item: memoryview(self._requests.read(item.path, item.start, item.end)), merged.requests
        )
        return merged.cut(parts)

    def read_joined(self, ranges: Sequence[tuple[str, int, int]]) -> memoryview:
        """See `Storage.read_joined`."""
        found: list[memoryview] = []
        for (_, start, end), part in zip(ranges, self.read_ranges(ranges), strict=True):
            found.append(part)
            if len(part) < end - start:
                break
        return found[0] if len(found) == 1 else memoryview(b"".join(found))

    def size(self, path: str) -> int:
        """See `Storage.size`."""
        return self._requests.size(path)

    def put_many(self, files: Mapping[str, Buffer]) -> None:
        """See `Storage.put_many`."""
        self._check_writable()
        in_parallel(lambda item: self._put_any(*item), files.items())

    def put_if_absent(self, path: str, data: bytes, timeout_s: float) -> bytes:
        """See `Storage.put_if_absent`."""
        self._check_writable()
        return self._requests.put_if_absent(path, data, timeout_s)

    def sync(self, folder: str) -> None:
        """See `Storage.sync`; visible objects are durable."""

    def open_write(self, path: str) -> BufferedWriter:
        """See `Storage.open_write`."""
        self._check_writable()
        return BufferedWriter(self._requests, path)

    def entries(self, folder: str) -> Entries:
        """The objects and the names of the folders; a folder that does not exist is empty."""
        requests = self._requests
        requests.counters.lists += 1
        try:
            found = requests.retried("list", folder, lambda: requests.fs.ls(folder, detail=True))
        except FileNotFoundError:
            return []
        prefix = requests.fs._strip_protocol(folder) + "/"
        named = ((entry["name"][len(prefix) :], entry) for entry in found if entry["name"].startswith(prefix))
        return [
            FileInfo(name, entry["size"], modified_ms(entry)) if entry["type"] == "file" else name
            for name, entry in named
            if name.strip("/")
        ]

    def delete(self, paths: Sequence[str]) -> None:
        """See `Storage.delete`."""
        self._check_writable()
        if self._requests.protocol != "s3":
            in_parallel(self._requests.delete, paths)
            return
        chunks = [paths[at : at + _KEYS_PER_DELETE] for at in range(0, len(paths), _KEYS_PER_DELETE)]
        in_parallel(self._requests.delete_many, chunks)

    def now_ms(self, folder: str) -> int:
        """See `Storage.now_ms`."""
        return now_ms(self._requests, folder)

    def uploads(self, folder: str) -> list[UnfinishedUpload]:
        """See `Storage.uploads`."""
        return list_uploads(self._requests, folder)

    def abort_uploads(self, uploads: Sequence[UnfinishedUpload]) -> None:
        """See `Storage.abort_uploads`."""
        in_parallel(lambda upload: abort_upload(self._requests, upload), uploads)

    def _put_any(self, path: str, data: Buffer) -> None:
        view = byte_view(data)
        if view.nbytes < SINGLE_PUT_BYTES:
            self._requests.put(path, data if isinstance(data, bytes) else bytes(view))
            return
        with self.open_write(path) as writer:
            writer.write(view)

    def _check_writable(self) -> None:
        protocol = self._requests.protocol
        if protocol not in _WRITABLE:
            raise StorageError(
                "cannot write here: distlog writes to local paths, s3://, gs://, abfs:// and memory://",
                protocol=protocol,
            )
