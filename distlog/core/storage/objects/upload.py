"""Writes an object of unknown size to an object store, in bounded memory.

An object below 16 MiB is one PUT. A larger one is uploaded in parts of 8 MiB, two at a time, while the next part
fills. All parts but the last have the same size, as some stores demand. The object is not visible before `close`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from distlog.core.errors import StorageError
from distlog.core.storage.backend import ObjectWriter, byte_view, check_process
from distlog.core.storage.crew import Crew
from distlog.core.storage.objects.requests import ObjectRequests
from distlog.core.storage.task import Task

if TYPE_CHECKING:
    from typing_extensions import Buffer

PART_BYTES = 8 * 1024 * 1024
SINGLE_PUT_BYTES = 2 * PART_BYTES
PARTS_IN_FLIGHT = 2


class Upload(Protocol):
    """The upload of one object in parts."""

    def send(self, part: bytearray) -> None: ...

    def finish(self) -> None: ...

    def discard(self) -> None: ...


class BufferedWriter(ObjectWriter):
    """Fills parts; uploads them once the object is too large for a single PUT."""

    def __init__(self, requests: ObjectRequests, path: str) -> None:
        self._requests, self._path = requests, path
        self._full: list[bytearray] = []
        self._filling = bytearray()
        self._upload: Upload | None = None
        self._open, self._process = True, os.getpid()

    def write(self, data: Buffer) -> None:
        """See `ObjectWriter.write`."""
        check_process(self._process, self._path)
        if not self._open:
            raise StorageError("cannot write: the object is closed", file=self._path)
        view = byte_view(data)
        self.written += view.nbytes
        while view.nbytes:
            room = PART_BYTES - len(self._filling)
            self._filling += view[:room]
            view = view[room:]
            if len(self._filling) == PART_BYTES:
                self._full.append(self._filling)
                self._filling = bytearray()
                self._send_full()

    def close(self) -> None:
        """See `ObjectWriter.close`."""
        if not self._open:
            return
        check_process(self._process, self._path)
        if self._upload is None:
            self._requests.put(self._path, b"".join([*self._full, self._filling]))
        else:
            if self._filling:
                self._upload.send(self._filling)
            self._upload.finish()
        self._forget()

    def abort(self) -> None:
        """See `ObjectWriter.abort`."""
        if self._open and self._upload is not None and self._process == os.getpid():
            with suppress(Exception):
                self._upload.discard()
        self._forget()

    def _send_full(self) -> None:
        # The memory store keeps the object in memory in any case: parts would only be a second copy.
        if self.written < SINGLE_PUT_BYTES or self._requests.protocol == "memory":
            return
        if self._upload is None:
            kind = MultipartUpload if self._requests.protocol == "s3" else StreamUpload
            self._upload = kind(self._requests, self._path)
        for part in self._full:
            self._upload.send(part)
        self._full.clear()

    def _forget(self) -> None:
        self._open, self._upload = False, None
        self._full, self._filling = [], bytearray()


class MultipartUpload:
    """S3's multipart upload; each request is retried by itself."""

    def __init__(self, requests: ObjectRequests, path: str) -> None:
        self._requests, self._path = requests, path
        self._bucket, self._key, _ = requests.fs.split_path(path)
        self._crew = Crew(PARTS_IN_FLIGHT, "distlog-upload")
        self._tags: list[Task[str]] = []
        self._sent = 0
        self._id = self._call("create_multipart_upload")["UploadId"]

    def send(self, part: bytearray) -> None:
        """Start to upload `part` when fewer than PARTS_IN_FLIGHT are running; raises an earlier part's error."""
        if len(self._tags) >= PARTS_IN_FLIGHT:
            self._tags[-PARTS_IN_FLIGHT].wait()
        self._tags.append(Task(partial(self._upload, len(self._tags) + 1, part)))
        self._crew.put(self._tags[-1].run)
        self._sent += len(part)

    def finish(self) -> None:
        """Wait for all parts, and complete the object."""
        parts = [{"PartNumber": at, "ETag": tag.wait()} for at, tag in enumerate(self._tags, start=1)]
        self._crew.end(joined=True)
        try:
            self._call("complete_multipart_upload", UploadId=self._id, MultipartUpload={"Parts": parts})
        except FileNotFoundError:
            self._check_completed()

    def discard(self) -> None:
        """Stop, and abort the upload."""
        self._crew.end(joined=True)
        self._call("abort_multipart_upload", UploadId=self._id)

    def _check_completed(self) -> None:
        """Raise StorageError unless the object is there: then the upload was completed, and the reply was lost."""
        try:
            size = self._requests.size(self._path)
        except FileNotFoundError:
            size = None
        if size != self._sent:
            raise StorageError(
                "the upload was aborted by somebody else, or expired: write the object again",
                file=self._path,
                sent=self._sent,
                size=size,
            )

    def _upload(self, number: int, part: bytearray) -> str:
        reply = self._call("upload_part", UploadId=self._id, PartNumber=number, Body=part)
        self._requests.counters.bytes_written += len(part)
        return str(reply["ETag"])

    def _call(self, method: str, **arguments: Any) -> Any:
        def call() -> Any:
            self._requests.counters.puts += 1
            return self._requests.fs.call_s3(method, Bucket=self._bucket, Key=self._key, **arguments)

        return self._requests.retried("upload", self._path, call)


class StreamUpload:
    """The chunked upload of an fsspec file, which has its own retries; for stores other than S3."""

    def __init__(self, requests: ObjectRequests, path: str) -> None:
        self._requests, self._path = requests, path
        self._file = self._once(lambda: requests.fs.open(path, "wb", block_size=PART_BYTES))

    def send(self, part: bytearray) -> None:
        """Write `part`."""
        self._once(lambda: self._file.write(part))
        self._requests.counters.bytes_written += len(part)

    def finish(self) -> None:
        """Make the object visible."""
        self._once(self._file.close)
        self._requests.counters.puts += 1

    def discard(self) -> None:
        """Discard the chunks, if the client can."""
        self._file.discard()

    def _once(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:
            raise self._requests.failure("upload", self._path, error) from None
