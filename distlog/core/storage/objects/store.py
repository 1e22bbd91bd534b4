"""Objects in S3 and other object stores, through fsspec: one request per operation, where the store allows it.

A request is repeated until a deadline while its answer is unclear (`storage.retry`). Operations that only S3 has
(multipart uploads, bulk deletes) use s3fs's `call_s3`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

from distlog.core.errors import StorageError
from distlog.core.locks import ProcessLock
from distlog.core.storage import retry as storage_retry
from distlog.core.storage.backend import (
    MAX_CONDITIONAL_BYTES,
    Entries,
    FileInfo,
    StorageCounters,
    UnfinishedUpload,
    byte_view,
)
from distlog.core.storage.objects.client import ClientErrors, ClientSource, StorageOptions, is_past_the_end
from distlog.core.storage.objects.object_times import modified_ms, now_ms
from distlog.core.storage.objects.unfinished_uploads import abort_upload, list_uploads
from distlog.core.storage.objects.upload import SINGLE_PUT_BYTES, BufferedWriter
from distlog.core.storage.parallel import in_parallel
from distlog.core.storage.range_merge import merge_ranges
from distlog.core.storage.retry import Deadline, retried, settle

if TYPE_CHECKING:
    from typing_extensions import Buffer

_WRITABLE = ("s3", "gs", "abfs", "abfss", "az", "memory")
_KEYS_PER_DELETE = 1000
_MEMORY = ProcessLock()

T = TypeVar("T")


class ObjectStore:
    """The backend of URLs; it looks the client up for each call, since the process may have forked."""

    def __init__(self, protocol: str, options: StorageOptions, counters: StorageCounters) -> None:
        self.protocol, self.counters = protocol, counters
        self._client = ClientSource(protocol, options)
        self._errors = ClientErrors(options)

    @property
    def fs(self) -> Any:
        """The fsspec file system of this process."""
        return self._client.get()

    def retried(self, action: str, path: str, call: Callable[[], T]) -> T:
        """The result of `call()`, which is repeated after faults that may pass."""
        return retried(call, action, path, self._errors, Deadline(storage_retry.RETRY_TIMEOUT_S))

    def failure(self, action: str, path: str, error: Exception) -> StorageError:
        """What to raise instead of `error`."""
        return self._errors.failure(action, path, error)

    def read(self, path: str, start: int, end: int | None) -> bytes:
        """See `Storage.read`; the range is always given, so that the client does not ask for the size first."""
        return self.retried("read", path, lambda: self._get(path, start, end))

    def read_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> list[memoryview]:
        """See `Storage.read_ranges`."""
        merged = merge_ranges(ranges)
        parts = in_parallel(lambda item: memoryview(self.read(item.path, item.start, item.end)), merged.requests)
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
        return int(self.describe(path)["size"])

    def describe(self, path: str) -> Any:
        """What the client knows of an object."""
        return self.retried("look at", path, lambda: self._head(path))

    def put_many(self, files: Mapping[str, Buffer]) -> None:
        """See `Storage.put_many`."""
        self._check_writable()
        in_parallel(lambda item: self._put_any(*item), files.items())

    def put_if_absent(self, path: str, data: bytes, timeout_s: float) -> bytes:
        """See `Storage.put_if_absent`."""
        self._check_writable()
        return settle(
            lambda: self._create(path, data),
            lambda: self._get(path, 0, MAX_CONDITIONAL_BYTES + 1),
            path,
            self._errors,
            Deadline(timeout_s),
        )

    def sync(self, folder: str) -> None:
        """See `Storage.sync`; visible objects are durable."""

    def open_write(self, path: str) -> BufferedWriter:
        """See `Storage.open_write`."""
        self._check_writable()
        return BufferedWriter(self, path)

    def entries(self, folder: str) -> Entries:
        """The objects and the names of the folders; a folder that does not exist is empty."""
        self.counters.lists += 1
        try:
            found = self.retried("list", folder, lambda: self.fs.ls(folder, detail=True))
        except FileNotFoundError:
            return []
        prefix = self.fs._strip_protocol(folder) + "/"
        named = ((entry["name"][len(prefix) :], entry) for entry in found if entry["name"].startswith(prefix))
        return [
            FileInfo(name, entry["size"], modified_ms(entry)) if entry["type"] == "file" else name
            for name, entry in named
            if name.strip("/")
        ]

    def delete(self, paths: Sequence[str]) -> None:
        """See `Storage.delete`."""
        self._check_writable()
        if self.protocol != "s3":
            in_parallel(self._delete_one, paths)
            return
        chunks = [paths[at : at + _KEYS_PER_DELETE] for at in range(0, len(paths), _KEYS_PER_DELETE)]
        in_parallel(lambda chunk: self.retried("delete", chunk[0], lambda: self._delete_keys(chunk)), chunks)

    def now_ms(self, folder: str) -> int:
        """See `Storage.now_ms`."""
        return now_ms(self, folder)

    def uploads(self, folder: str) -> list[UnfinishedUpload]:
        """See `Storage.uploads`."""
        return list_uploads(self, folder)

    def abort_uploads(self, uploads: Sequence[UnfinishedUpload]) -> None:
        """See `Storage.abort_uploads`."""
        in_parallel(lambda upload: abort_upload(self, upload), uploads)

    def put(self, path: str, data: bytes | bytearray) -> None:
        """Put a whole object in one request."""
        self.retried("put", path, lambda: self._put(path, data))

    def _put_any(self, path: str, data: Buffer) -> None:
        view = byte_view(data)
        if view.nbytes < SINGLE_PUT_BYTES:
            self.put(path, data if isinstance(data, bytes) else bytes(view))
            return
        with self.open_write(path) as writer:
            writer.write(view)

    def _get(self, path: str, start: int, end: int | None) -> bytes:
        if end is not None and end <= start:
            return b""
        self.counters.gets += 1
        try:
            data: bytes = self.fs.cat_file(path, start=start, end=end)
        except Exception as error:
            if is_past_the_end(error):
                return b""
            raise
        if end is not None and len(data) > end - start:
            raise StorageError("the storage ignores byte ranges", file=path)
        self.counters.bytes_read += len(data)
        return data

    def _head(self, path: str) -> Any:
        self.counters.gets += 1
        found = self.fs.info(path)
        if found["type"] != "file":
            raise FileNotFoundError(path)
        return found

    def _put(self, path: str, data: bytes | bytearray, **condition: str) -> None:
        self.counters.puts += 1
        self.fs.pipe_file(path, data, **condition)
        self.counters.bytes_written += len(data)

    def _create(self, path: str, data: bytes) -> bytes:
        # fsspec's memory file system tests and then writes; a lock makes that one step, as there is one process.
        with _MEMORY if self.protocol == "memory" else nullcontext():
            self._put(path, data, mode="create")
        return data

    def _delete_one(self, path: str) -> None:
        self.counters.deletes += 1
        try:
            self.retried("delete", path, lambda: self.fs.rm_file(path))
        except FileNotFoundError:
            return

    def _delete_keys(self, paths: Sequence[str]) -> None:
        self.counters.deletes += 1
        split = [self.fs.split_path(path) for path in paths]
        wanted = {"Objects": [{"Key": key} for _, key, _ in split], "Quiet": True}
        reply = self.fs.call_s3("delete_objects", Bucket=split[0][0], Delete=wanted)
        failed = {error.get("Code") for error in reply.get("Errors", [])} - {"NoSuchKey"}
        if "AccessDenied" in failed:
            raise StorageError("not allowed to delete", file=paths[0])
        if failed:
            raise OSError(f"some objects were not deleted: {failed}")

    def _check_writable(self) -> None:
        if self.protocol not in _WRITABLE:
            raise StorageError(
                "cannot write here: distlog writes to local paths, s3://, gs://, abfs:// and memory://",
                protocol=self.protocol,
            )
