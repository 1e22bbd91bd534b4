"""Requests to an object store about one object each, tried again until a deadline while their answer is unclear."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, TypeVar

from distlog.core.errors import StorageError
from distlog.core.locks import ProcessLock
from distlog.core.storage import retry as storage_retry
from distlog.core.storage.backend import MAX_CONDITIONAL_BYTES, StorageCounters
from distlog.core.storage.objects.client import ClientErrors, ClientSource, StorageOptions, is_past_the_end
from distlog.core.storage.retry import Deadline, retried, settle

_MEMORY = ProcessLock()

T = TypeVar("T")


class ObjectRequests:
    """Sends requests, and counts them; the client is looked up for each, as a fork may have come between."""

    def __init__(self, protocol: str, options: StorageOptions, counters: StorageCounters) -> None:
        self.protocol, self.counters = protocol, counters
        self._client = ClientSource(protocol, options)
        self._errors = ClientErrors(options)

    @property
    def fs(self) -> Any:
        """The fsspec file system of this process."""
        return self._client.get()

    def retried(self, action: str, path: str, call: Callable[[], T]) -> T:
        """`call()`, again while it fails for reasons that may pass.

        A server that has never answered may not be there at all, so it gets less time. One that has is asked at least
        twice: a process that was stopped during a request finds its time gone when it goes on.
        """
        timeout_s, least = storage_retry.RETRY_TIMEOUT_S, 1
        if not self._client.has_answered:
            timeout_s, least = min(timeout_s, storage_retry.FIRST_TIMEOUT_S), 0
        return retried(partial(self._asked, call), action, path, self._errors, Deadline(timeout_s, least=least))

    def _asked(self, call: Callable[[], T]) -> T:
        try:
            answer = call()
        except Exception as error:
            if self._errors.is_answer(error):
                self._client.note_answer()
            raise
        self._client.note_answer()
        return answer

    def failure(self, action: str, path: str, error: Exception) -> StorageError:
        """What to raise instead of `error`."""
        return self._errors.failure(action, path, error)

    def read(self, path: str, start: int, end: int | None) -> bytes:
        """See `Storage.read`; a known range, so that no client asks for the size first."""
        return self.retried("read", path, lambda: self._get(path, start, end))

    def size(self, path: str) -> int:
        """See `Storage.size`."""
        return int(self.describe(path)["size"])

    def describe(self, path: str) -> Any:
        """What the client knows of an object."""
        return self.retried("look at", path, lambda: self._head(path))

    def put(self, path: str, data: bytes | bytearray) -> None:
        """Put a whole object in one request."""
        self.retried("put", path, lambda: self._put(path, data))

    def put_if_absent(self, path: str, data: bytes, timeout_s: float) -> bytes:
        """See `Storage.put_if_absent`."""
        return settle(
            lambda: self._create(path, data),
            lambda: self._get(path, 0, MAX_CONDITIONAL_BYTES + 1),
            path,
            self._errors,
            Deadline(timeout_s),
        )

    def delete(self, path: str) -> None:
        """Delete an object; one that is missing is fine."""
        self.counters.deletes += 1
        try:
            self.retried("delete", path, lambda: self.fs.rm_file(path))
        except FileNotFoundError:
            return

    def delete_many(self, paths: Sequence[str]) -> None:
        """Delete up to a thousand objects of S3 in one request."""
        self.retried("delete", paths[0], lambda: self._delete_keys(paths))

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
            raise StorageError("the storage ignores byte ranges: use another", file=path)
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
        # fsspec's memory tests and then writes; there is one process, so one lock makes one step of it.
        with _MEMORY if self.protocol == "memory" else nullcontext():
            self._put(path, data, mode="create")
        return data

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
