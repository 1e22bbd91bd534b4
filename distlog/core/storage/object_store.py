"""Objects in S3 and other object stores, through fsspec: one request per operation, where the store allows it."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from distlog.core import paths, times
from distlog.core.arrays import MAX_LONG, byte_view
from distlog.core.errors import DistlogError, StorageError
from distlog.core.storage import calls
from distlog.core.storage.backend import (
    MAX_CONDITIONAL_BYTES,
    Entries,
    FileInfo,
    ObjectWriter,
    PutTime,
    StorageCounters,
    UnfinishedUpload,
    check_one_wins,
    check_process,
    merge_ranges,
)
from distlog.core.storage.calls import (
    PARALLEL_READS,
    Deadline,
    ErrorKind,
    Task,
    WorkerThreads,
    in_parallel,
    process_lock,
    resolve_put,
    retried,
)
from distlog.core.storage.object_client import (
    REPLY_TIMES,
    ClientErrors,
    ClientSource,
    PutProof,
    StorageOptions,
    replied_ms,
)
from distlog.core.times import to_ms

if TYPE_CHECKING:
    from typing_extensions import Buffer

_WRITABLE_PROTOCOLS = ("s3", "gs", "abfs", "abfss", "az", "memory")
_KEYS_PER_DELETE = 1000
#: The attempts to get the store's time from a new object, since another process may delete the object.
_TIME_PROBES = 3
#: The fields with the time of a listed object, by the clients of S3, Google, Azure and memory.
_MODIFIED_FIELDS = ("LastModified", "mtime", "updated", "last_modified", "created")
#: The default size of a part of an upload; an object of SINGLE_PUT_BYTES or more is uploaded in parts.
PART_BYTES, SINGLE_PUT_BYTES = 8 << 20, 16 << 20
PARTS_IN_FLIGHT = 2
_MEMORY_LOCK = process_lock()

T = TypeVar("T")


class ObjectStore:
    """The storage backend for URLs. Retries requests after temporary errors. Each process has its own client."""

    def __init__(self, protocol: str, options: StorageOptions, counters: StorageCounters) -> None:
        self.protocol, self.counters = protocol, counters
        self._client = ClientSource(protocol, options)
        self._errors = ClientErrors(options, protocol)

    @property
    def fs(self) -> Any:
        return self._client.get().client

    def retried(self, action: str, path: str, call: Callable[[], T]) -> T:
        """Return `call()`, retried after temporary errors, for a shorter time if the server has never answered."""
        timeout_s, min_pauses = calls.RETRY_TIMEOUT_S, 1  # retry once even if the first call took all the time
        if not self._client.has_answered:
            timeout_s, min_pauses = min(timeout_s, calls.FIRST_TIMEOUT_S), 0
            call = partial(self._noting_answer, call)
        return retried(call, action, path, self._errors, Deadline(timeout_s, min_pauses=min_pauses))

    def retried_in_bucket(self, action: str, path: str, call: Callable[[], T]) -> T:
        """Same as `retried`, but FileNotFoundError becomes StorageError, since only the bucket can be missing."""
        try:
            return self.retried(action, path, call)
        except FileNotFoundError as error:
            raise self.failure(action, path, error) from None

    def _noting_answer(self, call: Callable[[], T]) -> T:
        try:
            answer = call()
        except Exception as error:
            if self._errors.is_answer(error):
                self._client.get().has_answered = True
            raise
        self._client.get().has_answered = True
        return answer

    def failure(self, action: str, path: str, error: Exception) -> DistlogError:
        return self._errors.failure(action, path, error)

    def read(self, path: str, start: int, end: int | None) -> bytes:
        """See `Storage.read`. Every request has a range, so that no client queries the size first."""
        return self.retried("read", path, lambda: self._get(path, start, end))

    def size(self, path: str) -> int:
        return int(self.describe(path)["size"])

    def describe(self, path: str) -> Any:
        return self.retried("stat", path, lambda: self._head(path))

    def put(self, path: str, data: bytes | bytearray) -> None:
        self.retried_in_bucket("put", path, lambda: self._put(path, data))

    def _put_if_absent(self, path: str, data: bytes, timeout_s: float, put_time: PutTime) -> bytes:
        # for each attempt, the times of its replies, which the client appends through REPLY_TIMES
        reply_times: list[list[int]] = []

        def create() -> bytes:
            reply_times.append([])
            context = REPLY_TIMES.set(reply_times[-1])
            try:
                return self._create(path, data)
            finally:
                REPLY_TIMES.reset(context)

        # one byte more than a commit may have, so that callers notice larger objects
        stored = resolve_put(
            create, lambda: self._get(path, 0, MAX_CONDITIONAL_BYTES + 1), path, self._errors, Deadline(timeout_s)
        )
        if stored == data and len(reply_times) == 1:  # after a retry the time stays 0: any attempt may have put it
            put_time.time_ms = times.now_ms() if self.protocol == "memory" else min(reply_times[0], default=0)
        return stored

    def replied_ms(self) -> int:
        """See `Storage.replied_ms`; memory has this machine's time."""
        return times.now_ms() if self.protocol == "memory" else replied_ms(self.fs)

    def delete_one(self, path: str) -> None:
        self.counters.deletes += 1
        with suppress(FileNotFoundError):
            self.retried("delete", path, lambda: self.fs.rm_file(path))

    def delete_many(self, paths: Sequence[str]) -> None:
        split = [self.fs.split_path(path) for path in paths]
        request = {"Objects": [{"Key": key} for _, key, _ in split], "Quiet": True}

        def delete() -> None:
            self.counters.deletes += 1
            reply = self.fs.call_s3("delete_objects", Bucket=split[0][0], Delete=request)
            failed = {error.get("Code") for error in reply.get("Errors", [])} - {"NoSuchKey"}
            if "AccessDenied" in failed:
                raise StorageError("cannot delete: check the permissions of the credentials", file=paths[0])
            if failed:
                raise OSError(f"some objects were not deleted: {failed}")

        self.retried("delete", paths[0], delete)

    def list_s3(self, action: str, folder: str, method: str = "list_objects_v2", **arguments: Any) -> Any:
        """Return the client's reply to a request for a page of an S3 listing. Without a Delimiter it is recursive."""
        bucket, key, _ = self.fs.split_path(folder)

        def request() -> Any:
            self.counters.lists += 1
            return self.fs.call_s3(method, Bucket=bucket, Prefix=f"{key}/" if key else "", **arguments)

        return self.retried_in_bucket(action, folder, request)

    def _get(self, path: str, start: int, end: int | None) -> bytes:
        if end is not None and end <= start:
            return b""
        self.counters.gets += 1
        try:
            data: bytes = self.fs.cat_file(path, start=start, end=end)
        except Exception as error:
            if self._errors.kind(error) is ErrorKind.PAST_THE_END:
                return b""
            raise
        if end is not None and len(data) > end - start:
            raise StorageError("the storage ignores byte ranges: use another storage", file=path)
        self.counters.bytes_read += len(data)
        return data

    def _head(self, path: str) -> Any:
        self.counters.gets += 1
        info = self.fs.info(path)
        if info["type"] != "file":
            raise FileNotFoundError(path)
        return info

    def _put(self, path: str, data: bytes | bytearray, **condition: str) -> None:
        self.counters.puts += 1
        self.fs.pipe_file(path, data, **condition)
        self.counters.bytes_written += len(data)

    def _create(self, path: str, data: bytes) -> bytes:
        # fsspec's memory store first tests and then writes, which the lock makes atomic
        with _MEMORY_LOCK if self.protocol == "memory" else nullcontext():
            self._put(path, data, mode="create")
        return data

    def read_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> list[memoryview]:
        # close ranges share one request: each range is cut out of the reply for its merged range
        merged, merged_indexes = merge_ranges(ranges)
        replies = in_parallel(lambda span: memoryview(self.read(*span)), merged, PARALLEL_READS)
        parts = list[memoryview]()
        for (_, start, end), index in zip(ranges, merged_indexes, strict=True):
            merged_start = merged[index][1]
            parts.append(replies[index][start - merged_start : max(end, start) - merged_start])
        return parts

    def read_joined(self, ranges: Sequence[tuple[str, int, int]]) -> memoryview:
        """See `Storage.read_joined`. Ends after the first part that is too short, so that the length shows it."""
        parts: list[memoryview] = []
        for (_, start, end), part in zip(ranges, self.read_ranges(ranges), strict=True):
            parts.append(part)
            if len(part) < end - start:
                break
        return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))

    def put_many(self, files: Mapping[str, Buffer]) -> None:
        self._check_writable()
        in_parallel(lambda item: self._put_or_upload(*item), files.items())

    def put_if_absent(self, path: str, data: bytes, timeout_s: float, put_time: PutTime) -> bytes:
        """See `Storage.put_if_absent`; the timeout includes a probe before the first put."""
        start_s = time.monotonic()
        self.probe_put_if_absent(path.rpartition("/")[0], timeout_s)
        left_s = timeout_s - (time.monotonic() - start_s)
        return self._put_if_absent(path, data, left_s, put_time)

    def probe_put_if_absent(self, folder: str, timeout_s: float) -> None:
        """See `Storage.probe_put_if_absent`. One thread at a time tests a bucket, until it passes (PutProof)."""
        self._check_writable()
        start_s = time.monotonic()
        bucket = "" if self.protocol == "memory" else folder.split("/")[2]  # the memory store has no buckets
        proof = self._client.get().proofs.setdefault(bucket, PutProof())
        with proof.lock:
            if proof.is_proven:
                return
            left_s = timeout_s - (time.monotonic() - start_s)
            if left_s <= 0:
                # The wait for the lock took all the time. A new probe would make writers time out one after another.
                text = "nothing was written: the storage did not answer another writer; try again"
                raise StorageError(text, folder=folder)
            path = f"{folder}/{paths.probe_file(uuid.uuid4().hex)}"
            check_one_wins(
                lambda data: self._put_if_absent(path, data, left_s, PutTime()), lambda: self.delete([path]), folder
            )
            proof.is_proven = True

    def sync(self, folder: str) -> None:
        """See `Storage.sync`; visible objects are durable."""

    def open_write(self, path: str, part_bytes: int | None = None) -> BufferedWriter:
        self._check_writable()
        return BufferedWriter(self, path, part_bytes)

    def entries(self, folder: str) -> Entries:
        """List the objects and the names of the folders; a missing folder is empty."""
        self.counters.lists += 1
        try:
            entries = self.retried("list", folder, lambda: self.fs.ls(folder, detail=True))
        except FileNotFoundError:
            return []
        prefix = self.fs._strip_protocol(folder) + "/"
        named = ((entry["name"][len(prefix) :], entry) for entry in entries if entry["name"].startswith(prefix))
        return [
            FileInfo(name, entry["size"], modified_ms(entry)) if entry["type"] == "file" else name
            for name, entry in named
            if name.strip("/")  # not an object with the name of the folder itself
        ]

    def files_after(self, folder: str, name: str) -> Iterator[FileInfo]:
        """See `Storage.list_after`; on S3 page by page, unlike fsspec."""
        if self.protocol != "s3":
            files = (entry for entry in self.entries(folder) if isinstance(entry, FileInfo))
            yield from (file for file in files if file.name > name)
            return
        _, key, _ = self.fs.split_path(folder)
        prefix = f"{key}/" if key else ""
        # the arguments that request the next page; None after the last page
        paging: dict[str, Any] | None = {"StartAfter": prefix + name} if name else {}
        while paging is not None:
            reply = self.list_s3("list", folder, Delimiter="/", **paging)
            for entry in reply.get("Contents", []):
                if entry_name := entry["Key"][len(prefix) :]:
                    yield FileInfo(entry_name, entry["Size"], to_ms(entry["LastModified"]))
            paging = {"ContinuationToken": reply["NextContinuationToken"]} if reply.get("IsTruncated") else None

    def modified_ms(self, path: str) -> int:
        return modified_ms(self.describe(path))

    def delete(self, paths: Sequence[str]) -> None:
        self._check_writable()
        if self.protocol != "s3":
            in_parallel(self.delete_one, paths)
            return
        starts = range(0, len(paths), _KEYS_PER_DELETE)
        chunks = [paths[start : start + _KEYS_PER_DELETE] for start in starts]
        in_parallel(self.delete_many, chunks)

    def now_ms(self, folder: str) -> int:
        """See `Storage.now_ms`: the Date of a reply on S3, elsewhere the time of a new object."""
        if self.protocol == "s3":
            # a listing, which needs only the permission to read a topic
            reply = self.list_s3("get the storage's time", folder, MaxKeys=1)
            return to_ms(parsedate_to_datetime(reply["ResponseMetadata"]["HTTPHeaders"]["date"]))
        path = f"{folder}/{paths.probe_file(uuid.uuid4().hex)}"
        for _ in range(_TIME_PROBES):
            self.put(path, b"time")
            try:
                written_ms = self.modified_ms(path)
                break
            except FileNotFoundError:
                continue  # this process was paused, and a vacuum deleted the object
            finally:
                self.delete_one(path)
        else:  # no attempt found its object
            raise StorageError("the storage lost a new object: check what else deletes files here", file=path)
        if written_ms == MAX_LONG:
            text = "this storage does not report when an object was written: use another storage"
            raise StorageError(text, file=folder)
        return written_ms

    def uploads(self, folder: str) -> list[UnfinishedUpload]:
        """See `Storage.uploads`. On S3, a request lists up to a thousand; other stores get no request."""
        uploads = list[UnfinishedUpload]()
        marker: dict[str, str] | None = {} if self.protocol == "s3" else None
        while marker is not None:
            reply = self.list_s3("list the uploads in", folder, "list_multipart_uploads", **marker)
            root = folder[: len(folder) - len(self.fs.split_path(folder)[1])]  # the bucket's URL
            for entry in reply.get("Uploads", []):
                uploads.append(UnfinishedUpload(root + entry["Key"], entry["UploadId"], to_ms(entry["Initiated"])))
            has_more = reply.get("IsTruncated")
            names = ("KeyMarker", "UploadIdMarker")
            marker = {name: reply[f"Next{name}"] for name in names} if has_more else None
        return uploads

    def abort_uploads(self, uploads: Sequence[UnfinishedUpload]) -> None:
        in_parallel(self._abort_upload, uploads)

    def _abort_upload(self, upload: UnfinishedUpload) -> None:
        bucket, key, _ = self.fs.split_path(upload.name)

        def abort() -> Any:
            self.counters.deletes += 1
            return self.fs.call_s3("abort_multipart_upload", Bucket=bucket, Key=key, UploadId=upload.id)

        with suppress(FileNotFoundError):
            self.retried("abort the upload of", upload.name, abort)

    def _put_or_upload(self, path: str, data: Buffer) -> None:
        view = byte_view(data)
        if view.nbytes < SINGLE_PUT_BYTES:
            self.put(path, data if isinstance(data, bytes) else bytes(view))
            return
        with self.open_write(path) as writer:
            writer.write(view)

    def _check_writable(self) -> None:
        if self.protocol not in _WRITABLE_PROTOCOLS:
            text = "cannot write here: distlog writes to local paths, s3://, gs://, abfs:// and memory://"
            raise StorageError(text, protocol=self.protocol)


def modified_ms(entry: Mapping[str, Any]) -> int:
    """Return the time of a listed object in ms since 1970; MAX_LONG if unknown."""
    modified = next((entry[name] for name in _MODIFIED_FIELDS if entry.get(name)), MAX_LONG)
    if isinstance(modified, datetime | str):
        return to_ms(modified)
    return int(modified * 1000) if isinstance(modified, float) else MAX_LONG


class BufferedWriter(ObjectWriter):
    """Puts a small object in one request, and uploads a larger one in parts of equal size, as some stores require."""

    def __init__(self, store: ObjectStore, path: str, part_bytes: int | None = None) -> None:
        self._store, self._path, self._part_bytes = store, path, part_bytes or PART_BYTES
        self._full_parts: list[bytearray] = []
        self._filling = bytearray()
        self._upload: MultipartUpload | StreamUpload | None = None
        self._is_open, self._process = True, os.getpid()

    def write(self, data: Buffer) -> None:
        check_process(self._process, self._path)
        if not self._is_open:
            raise StorageError("cannot write: the object is closed", file=self._path)
        view = byte_view(data)
        self.written_bytes += view.nbytes
        while view.nbytes:
            free_bytes = self._part_bytes - len(self._filling)
            self._filling += view[:free_bytes]
            view = view[free_bytes:]
            if len(self._filling) == self._part_bytes:
                self._full_parts.append(self._filling)
                self._filling = bytearray()
                self._send_full()

    def close(self) -> None:
        if not self._is_open:
            return
        check_process(self._process, self._path)
        if self._upload is None:
            self._store.put(self._path, b"".join([*self._full_parts, self._filling]))
        else:
            if self._filling:
                self._upload.send(self._filling)
            self._upload.finish()
        self._drop_parts()

    def abort(self) -> None:
        if self._is_open and self._upload is not None and self._process == os.getpid():
            with suppress(Exception):
                self._upload.discard()
        self._drop_parts()

    def _send_full(self) -> None:
        # `close` puts a small object, and any object of the memory store, in one request
        if self.written_bytes < SINGLE_PUT_BYTES or self._store.protocol == "memory":
            return
        if self._upload is None:
            kind = MultipartUpload if self._store.protocol == "s3" else StreamUpload
            self._upload = kind(self._store, self._path)
        for part in self._full_parts:
            self._upload.send(part)
        self._full_parts.clear()

    def _drop_parts(self) -> None:
        self._is_open, self._upload = False, None
        self._full_parts, self._filling = [], bytearray()


_ABORTED = "the upload expired, or another process aborted it: write the object again"


class MultipartUpload:
    """S3's multipart upload. Each request is retried by itself."""

    def __init__(self, store: ObjectStore, path: str) -> None:
        self._store, self._path = store, path
        self._bucket, self._key, _ = store.fs.split_path(path)
        self._threads = WorkerThreads(PARTS_IN_FLIGHT, "distlog-upload")
        self._part_tasks: list[Task[str]] = []  # each uploads a part, and returns its ETag
        self._sent_bytes = 0
        self._id = self._call("create_multipart_upload")["UploadId"]

    def send(self, part: bytearray) -> None:
        """Start to upload `part` once fewer than PARTS_IN_FLIGHT parts are in flight. Raises an earlier error."""
        if len(self._part_tasks) >= PARTS_IN_FLIGHT:
            self._part_tasks[-PARTS_IN_FLIGHT].wait()
        self._part_tasks.append(Task(partial(self._upload, len(self._part_tasks) + 1, part)))
        self._threads.put(self._part_tasks[-1].run)
        self._sent_bytes += len(part)

    def finish(self) -> None:
        parts = [{"PartNumber": number, "ETag": task.wait()} for number, task in enumerate(self._part_tasks, start=1)]
        self._threads.end(joined=True)
        try:
            self._call("complete_multipart_upload", UploadId=self._id, MultipartUpload={"Parts": parts})
        except FileNotFoundError:  # if only the response was lost, the object exists
            try:
                size = self._store.size(self._path)
            except FileNotFoundError:
                size = None
            if size != self._sent_bytes:
                raise StorageError(_ABORTED, file=self._path, sent=self._sent_bytes, size=size) from None

    def discard(self) -> None:
        self._threads.end(joined=True)
        self._call("abort_multipart_upload", UploadId=self._id)

    def _upload(self, number: int, part: bytearray) -> str:
        try:
            reply = self._call("upload_part", UploadId=self._id, PartNumber=number, Body=part)
        except FileNotFoundError:
            # callers would take FileNotFoundError for a missing file that they read
            raise StorageError(_ABORTED, file=self._path, part=number) from None
        self._store.counters.bytes_written += len(part)
        return str(reply["ETag"])

    def _call(self, method: str, **arguments: Any) -> Any:
        def call() -> Any:
            self._store.counters.puts += 1
            return self._store.fs.call_s3(method, Bucket=self._bucket, Key=self._key, **arguments)

        return self._store.retried("upload", self._path, call)


class StreamUpload:
    """An upload in chunks by an fsspec file, for stores other than S3."""

    def __init__(self, store: ObjectStore, path: str) -> None:
        self._store, self._path = store, path
        self._file = self._call(lambda: store.fs.open(path, "wb", block_size=PART_BYTES))

    def send(self, part: bytearray) -> None:
        self._call(lambda: self._file.write(part))
        self._store.counters.bytes_written += len(part)

    def finish(self) -> None:
        self._call(self._file.close)
        self._store.counters.puts += 1

    def discard(self) -> None:
        self._file.discard()

    def _call(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:
            raise self._store.failure("upload", self._path, error) from None
