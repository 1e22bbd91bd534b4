"""An object store in simulated time: S3, GCS and Azure with their rules and faults, and fsspec's interface."""

from __future__ import annotations

import email.utils
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from math import exp, floor, log
from random import NV_MAGICCONST, Random
from typing import Any
from unittest import mock

from crc32c import crc32c

from distlog.core.storage import object_client, object_store
from simulation.threads import current
from simulation.world import BEGIN_MS, Process, World

#: How long a client waits for a response, in s.
CLIENT_TIMEOUT_S = 20.0
#: Median and 99th percentile, in s, of reads and of writes (S3, objects smaller than 1 MiB).
READ_S, WRITE_S = (0.030, 0.200), (0.080, 0.400)


class ReplyError(Exception):
    """An error of the server, as botocore raises it."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status, self.code = status, code
        self.response = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}


class HttpError(Exception):
    """An error of the server, as gcsfs raises it."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.code, self.message = status, code


class HttpResponseError(Exception):
    """An error of the server, as Azure's library raises it."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status_code, self.error_code, self.message = status, code, code


#: For each protocol: its error class, its error for too many requests, and its error for an object that exists.
_FORMS: dict[str, tuple[type[Exception], tuple[int, str], tuple[int, str]]] = {
    "s3": (ReplyError, (503, "SlowDown"), (412, "PreconditionFailed")),
    "gs": (HttpError, (429, "rateLimitExceeded"), (412, "conditionNotMet")),
    "abfs": (HttpResponseError, (503, "ServerBusy"), (409, "BlobAlreadyExists")),
}
#: GCS accepts one write of an object a second.
GCS_PAUSE_S = 1.0


@dataclass(slots=True)
class Faults:
    throttled: float = 0.0
    failed: float = 0.0
    #: The request never arrives.
    dropped: float = 0.0
    #: The request is handled, and its response never arrives.
    unanswered: float = 0.0
    #: The request is handled hours after the client has given up.
    late: float = 0.0
    #: The client's library sends the request twice.
    twice: float = 0.0
    #: The calling process is paused for up to `still_s` before the response.
    still: float = 0.0
    still_s: float = 0.0
    #: The calling process dies, or counts as dead, before the response.
    death: float = 0.0
    #: From a commit on, no request gets a response for a while.
    silence: float = 0.0


@dataclass(slots=True)
class Flaws:
    ignores_condition: bool = False
    #: It checks for the object first, and stores it later.
    condition_in_two_steps: bool = False
    #: The age of listings, in s.
    listing_lag_s: float = 0.0


@dataclass(slots=True)
class Object:
    data: bytes
    written_s: float


#: Mean and deviation of the logarithms of latencies, of reads and of writes.
_LOGNORMAL = [(log(median), log(p99 / median) / 2.326) for median, p99 in (READ_S, WRITE_S)]


def lognormal(random: Random, writes: bool) -> float:
    """Draw the latency of a request to S3, in s; like `Random.lognormvariate`, without its function calls."""
    draw, (mean, deviation) = random.random, _LOGNORMAL[writes]
    while True:
        first, second = draw(), 1.0 - draw()
        z = NV_MAGICCONST * (first - 0.5) / second
        if z * z / 4.0 <= -log(second):
            return exp(mean + z * deviation)


@dataclass(slots=True)
class ObjectStore:
    """The server: keys with whole objects, strongly consistent, like S3 since 2020; its clock is right."""

    world: World
    faults: Faults = field(default_factory=Faults)
    flaws: Flaws = field(default_factory=Flaws)
    #: Draws the latency of a request, given whether it writes; the first half is the way to the server.
    latency: Callable[[Random, bool], float] = lognormal
    objects: dict[str, Object] = field(default_factory=dict)
    #: Ends a process, and starts another one.
    replace: Callable[[Process], None] | None = None
    #: Called before each change of an object with the kind of change, the key and the bytes.
    watchers: list[Callable[[str, str, bytes | None], None]] = field(default_factory=list)
    #: The process whose request is handled now.
    author: Process | None = None
    #: The number of requests of each kind.
    requests: Counter[str] = field(default_factory=Counter)
    #: Until when no request gets a response, in s; about half of the requests are handled.
    silent_until: float = 0.0
    #: The changes within the lag of listings: the time, the key and the old object.
    recent: list[tuple[float, str, Object | None]] = field(default_factory=list)
    #: The store's rules: s3, gs or abfs.
    protocol: str = "s3"
    #: Unfinished uploads of S3 by their ids: the key, the start time and the parts.
    uploads: dict[str, tuple[str, float, dict[int, bytes]]] = field(default_factory=dict)

    def put(self, key: str, data: bytes, *, if_absent: bool) -> None:
        """Store an object; raises ReplyError if it exists, and must not."""
        if if_absent and key in self.objects and not self.flaws.ignores_condition:
            raise ReplyError(*_FORMS[self.protocol][2])
        old = self.objects.get(key)
        if self.protocol == "gs" and old is not None and self.world.now < old.written_s + GCS_PAUSE_S:
            raise ReplyError(429, "rateLimitExceeded")
        if self.world.story is not None:
            self.world.note(f"{key} has {len(data)} bytes ({crc32c(data):08x})")
        for watch in self.watchers:
            watch("put", key, data)
        self._change(key, Object(data, self.world.now))

    def delete(self, key: str) -> None:
        """Delete an object; raises FileNotFoundError for a missing one, except on S3."""
        if key not in self.objects and self.protocol != "s3":
            raise FileNotFoundError(key)
        if key in self.objects:
            for watch in self.watchers:
                watch("delete", key, None)
            self._change(key, None)

    def _change(self, key: str, after: Object | None) -> None:
        if self.flaws.listing_lag_s:
            self.recent.append((self.world.now, key, self.objects.get(key)))
        if after is None:
            del self.objects[key]
        else:
            self.objects[key] = after

    def listed(self) -> dict[str, Object]:
        lag_s = self.flaws.listing_lag_s
        while self.recent and self.recent[0][0] < self.world.now - lag_s:
            self.recent.pop(0)
        if not lag_s:
            return self.objects
        shown = dict(self.objects)
        for _, key, old in reversed(self.recent):
            if old is None:
                shown.pop(key, None)
            else:
                shown[key] = old
        return shown


@lru_cache(1000)
def _moment(since_s: float) -> datetime:
    """Return the time `since_s` after the start of the world, in whole seconds."""
    return datetime.fromtimestamp(floor(BEGIN_MS / 1000 + since_s), UTC)


@lru_cache(1000)
def _date_of(seconds: int) -> str:
    return email.utils.formatdate(seconds, usegmt=True)


class Client:
    """The part of s3fs, gcsfs and adlfs that the library uses, for one process; requests take virtual time."""

    def __init__(self, store: ObjectStore, process: Process) -> None:
        self.store, self.process, self.world = store, process, process.world
        self.protocol = (store.protocol,)
        self._form, self._too_many, _ = _FORMS[store.protocol]
        self.random = Random(f"{self.world.seed}/requests/{process.name}/{process.pid}")
        self.retries = 1

    # --- requests

    def request(self, kind: str, key: str, effect: Callable[[], Any], *, writes: bool) -> Any:
        world, faults, draw = self.world, self.store.faults, self.random.random
        store, random = self.store, self.random
        world.count_call()
        store.requests[kind] += 1
        fault = world.schedule.meet(self.process, kind, key, writes=writes) if world.schedule is not None else ""
        latency = store.latency
        there_s, back_s = latency(random, writes) / 2, latency(random, writes) / 2
        world.pause(there_s)
        if draw() < faults.throttled:
            return self._fail(kind, key, back_s, self._form(*self._too_many))
        if draw() < faults.failed:
            return self._fail(kind, key, back_s, self._form(500, "InternalError"))
        is_silent = world.now < store.silent_until
        if draw() < faults.dropped or (is_silent and draw() < 0.5):
            return self._fail(kind, key, CLIENT_TIMEOUT_S, TimeoutError("no answer"))
        if fault == "late" or (writes and draw() < faults.late):
            world.call_at(world.now + self.random.uniform(60, 6 * 3600), lambda: self._late(kind, key, effect))
            return self._fail(kind, key, CLIENT_TIMEOUT_S, TimeoutError("no answer"))
        try:
            replied_s = world.now
            result = self._count(kind, key, effect)
            if draw() < faults.twice and writes:
                # the client's own library did not get the first response, and tries again
                world.pause(back_s)
                result = self._count(kind, key, effect)
        except ReplyError as error:
            if fault == "lost":
                return self._fail(kind, key, CLIENT_TIMEOUT_S, TimeoutError("no answer"), "refused, but ")
            return self._fail(kind, key, back_s, self._form(error.status, error.code), replied_s=replied_s)
        except FileNotFoundError as error:
            return self._fail(kind, key, back_s, error, replied_s=replied_s)
        self._meet_fate(kind, key)
        if fault == "death" and store.replace is not None:
            store.replace(self.process)
        if fault == "lost" or is_silent or world.now < store.silent_until or draw() < faults.unanswered:
            return self._fail(kind, key, CLIENT_TIMEOUT_S, TimeoutError("no answer"), "done, but ")
        world.pause(back_s)
        object_client.record_reply(self, self._date(replied_s))
        return result

    def _date(self, when_s: float) -> str:
        return _date_of(floor(BEGIN_MS / 1000 + when_s))

    def _meet_fate(self, kind: str, key: str) -> None:
        world, faults, draw = self.world, self.store.faults, self.random.random
        if draw() < faults.still:
            self.process.stand_still(self.random.uniform(0, faults.still_s))
        if draw() < faults.death and self.store.replace is not None:
            self.store.replace(self.process)
        if kind == "put if absent" and "_commits/" in key and draw() < faults.silence:
            seconds = self.random.choice((60.0, 700.0, 900.0))
            world.note(f"the store is silent for {seconds:.0f} s")
            self.store.silent_until = world.now + seconds

    def _count(self, kind: str, key: str, effect: Callable[[], Any]) -> Any:
        try:
            result = effect()
        except (ReplyError, FileNotFoundError) as error:
            self._note(kind, key, "refused" if isinstance(error, ReplyError) else "missing")
            raise
        if self.world.story is not None:
            self._note(kind, key, f"done ({crc32c(result):08x})" if isinstance(result, bytes) else "done")
        return result

    def _late(self, kind: str, key: str, effect: Callable[[], Any]) -> None:
        try:
            effect()
            self._note(kind, key, "done late")
        except (ReplyError, FileNotFoundError):
            self._note(kind, key, "refused late")

    def _fail(
        self, kind: str, key: str, wait_s: float, error: Exception, how: str = "", *, replied_s: float | None = None
    ) -> Any:
        if not isinstance(error, FileNotFoundError):
            self._note(kind, key, f"{how}{error}")
        else:
            self._meet_fate(kind, key)
        self.world.pause(wait_s)
        if replied_s is not None:
            object_client.record_reply(self, self._date(replied_s))
        try:
            raise error
        finally:
            # its traceback holds this frame, a cycle that would stay since a world collects no garbage
            del error

    def _note(self, kind: str, key: str, outcome: str) -> None:
        if self.world.story is not None:
            self.world.note(f"{self.process.name} {kind} {key}: {outcome}")

    # --- the interface of fsspec

    @staticmethod
    def _strip_protocol(path: str) -> str:
        return path.partition("://")[2].rstrip("/") if "://" in path else path.rstrip("/")

    def split_path(self, path: str) -> tuple[str, str, None]:
        bucket, _, key = self._strip_protocol(path).partition("/")
        return bucket, key, None

    def pipe_file(self, path: str, data: bytes, mode: str = "overwrite") -> None:
        key, body = self._strip_protocol(path), bytes(data)

        def effect() -> None:
            self.store.author = self.process
            self.store.put(key, body, if_absent=mode == "create")

        if mode == "create" and self.store.flaws.condition_in_two_steps:

            def check() -> None:
                if key in self.store.objects:
                    raise ReplyError(*_FORMS[self.store.protocol][2])

            self.request("look", key, check, writes=False)
            mode = "overwrite"
        kind = "put if absent" if mode == "create" else "put"
        try:
            self.request(kind, key, effect, writes=True)
        except self._form as error:
            if str(error) == _FORMS[self.store.protocol][2][1]:
                raise FileExistsError(path) from error
            raise

    def cat_file(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        key = self._strip_protocol(path)

        def effect() -> bytes:
            stored = self.store.objects.get(key)
            if stored is None:
                raise FileNotFoundError(path)
            if start and start >= len(stored.data):
                raise ReplyError(416, "InvalidRange")
            return stored.data[start:end]

        result: bytes = self.request("get", key, effect, writes=False)
        return result

    def info(self, path: str) -> dict[str, Any]:
        key = self._strip_protocol(path)

        def effect() -> dict[str, Any]:
            if key not in self.store.objects:
                raise FileNotFoundError(path)
            return self._entry(key, self.store.objects[key])

        result: dict[str, Any] = self.request("head", key, effect, writes=False)
        return result

    def ls(self, path: str, detail: bool = True) -> list[dict[str, Any]]:
        prefix = self._strip_protocol(path) + "/"

        def effect() -> list[dict[str, Any]]:
            entries: dict[str, dict[str, Any]] = {}
            listed = self.store.listed()
            for key in sorted([key for key in listed if key.startswith(prefix)]):
                name, _, below = key[len(prefix) :].partition("/")
                if below:
                    entries[name] = {"name": prefix + name, "type": "directory", "size": 0}
                else:
                    entries[name] = self._entry(key, listed[key])
            if not entries:
                raise FileNotFoundError(path)
            return list(entries.values())

        result: list[dict[str, Any]] = self.request("list", prefix, effect, writes=False)
        return result

    def rm_file(self, path: str) -> None:
        key = self._strip_protocol(path)

        def effect() -> None:
            self.store.delete(key)

        self.request("delete", key, effect, writes=True)

    def call_s3(self, method: str, **arguments: Any) -> Any:
        bucket = arguments["Bucket"]
        match method:
            case "delete_objects":
                keys = [f"{bucket}/{entry['Key']}" for entry in arguments["Delete"]["Objects"]]

                def delete() -> dict[str, Any]:
                    # a batch has no order
                    for key in self.random.sample(keys, len(keys)):
                        self.store.delete(key)
                    return {}

                return self.request("delete", ", ".join(sorted(keys)), delete, writes=True)
            case "list_objects_v2":

                def list_page() -> dict[str, Any]:
                    listed = self._page(f"{bucket}/{arguments['Prefix']}", arguments)
                    return {"ResponseMetadata": {"HTTPHeaders": {"date": self._date(self.world.now)}}, **listed}

                return self.request("list", f"{bucket}/{arguments['Prefix']}", list_page, writes=False)
            case "list_multipart_uploads":
                prefix = f"{bucket}/{arguments['Prefix']}"
                return self.request("list uploads", prefix, lambda: self._uploads(bucket, prefix), writes=False)
        return self._upload(method, f"{bucket}/{arguments['Key']}", arguments)

    def _uploads(self, bucket: str, prefix: str) -> dict[str, Any]:
        def entry(id_: str, key: str, start_s: float) -> dict[str, Any]:
            return {"Key": key[len(bucket) + 1 :], "UploadId": id_, "Initiated": _moment(start_s)}

        uploads = self.store.uploads.items()
        entries = [entry(id_, key, start_s) for id_, (key, start_s, _) in uploads if key.startswith(prefix)]
        return {"Uploads": entries, "IsTruncated": False}

    def _upload(self, method: str, key: str, arguments: dict[str, Any]) -> Any:
        """Handle a request of a multipart upload: the object becomes visible at its completion."""
        uploads = self.store.uploads

        def begin() -> dict[str, Any]:
            id_ = f"upload-{len(uploads)}-{self.random.getrandbits(64):x}"
            uploads[id_] = key, self.world.now, {}
            return {"UploadId": id_}

        def parts() -> dict[int, bytes]:
            if arguments["UploadId"] not in uploads:
                raise ReplyError(404, "NoSuchUpload")
            return uploads[arguments["UploadId"]][2]

        def add_part() -> dict[str, Any]:
            parts()[arguments["PartNumber"]] = body
            return {"ETag": f"etag-{arguments['PartNumber']}"}

        def complete() -> dict[str, Any]:
            stored = parts()
            numbers = [part["PartNumber"] for part in arguments["MultipartUpload"]["Parts"]]
            self.store.put(key, b"".join(stored[number] for number in numbers), if_absent=False)
            del uploads[arguments["UploadId"]]
            return {}

        def abort() -> dict[str, Any]:
            parts()
            del uploads[arguments["UploadId"]]
            return {}

        body = bytes(arguments.get("Body", b""))
        effects: dict[str, Callable[[], Any]] = {
            "create_multipart_upload": begin,
            "upload_part": add_part,
            "complete_multipart_upload": complete,
            "abort_multipart_upload": abort,
        }
        return self.request(method.replace("_", " "), key, effects[method], writes=True)

    def open(self, path: str, mode: str, block_size: int) -> Stream:
        """Return a writer of an object in blocks, as on GCS and Azure."""
        return Stream(self, self._strip_protocol(path))

    def send_block(self, key: str) -> None:
        """Send a block of an object that is not visible yet."""
        self.request("put block", key, lambda: None, writes=True)

    def put_blocks(self, key: str, data: bytes) -> None:
        self.request("put blocks", key, lambda: self.store.put(key, data, if_absent=False), writes=True)

    def _page(self, prefix: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return a page of a listing, as the API does: the entries of the folder, in order, after a name."""
        bucket, after = arguments["Bucket"], arguments.get("ContinuationToken") or arguments.get("StartAfter", "")
        listed = self.store.listed()
        keys = sorted([key for key in listed if key.startswith(prefix) and "/" not in key[len(prefix) :]])
        remaining = [key for key in keys if key.removeprefix(f"{bucket}/") > after]
        page = remaining[: arguments.get("MaxKeys", 1000)]
        contents = [
            {
                "Key": key.removeprefix(f"{bucket}/"),
                "Size": len(listed[key].data),
                "LastModified": _moment(listed[key].written_s),
            }
            for key in page
        ]
        is_truncated = len(page) < len(remaining)
        more = {"IsTruncated": True, "NextContinuationToken": contents[-1]["Key"]} if is_truncated else {}
        return {"Contents": contents, **more}

    def _entry(self, key: str, stored: Object) -> dict[str, Any]:
        entry: dict[str, Any] = {"name": key, "type": "file", "size": len(stored.data)}
        match self.store.protocol:
            case "gs":
                entry["updated"] = _moment(stored.written_s).isoformat().replace("+00:00", ".000Z")
            case "abfs":
                entry["last_modified"] = _moment(stored.written_s)
            case _:
                entry["mtime"] = _moment(stored.written_s).timestamp()
        return entry


class Stream:
    """A file of gcsfs or adlfs: it sends blocks, and its object becomes visible when it is closed."""

    def __init__(self, client: Client, key: str) -> None:
        self._client, self._key, self._blocks = client, key, list[bytes]()

    def write(self, data: Any) -> None:
        self._client.send_block(self._key)
        self._blocks.append(bytes(data))

    def close(self) -> None:
        self._client.put_blocks(self._key, b"".join(self._blocks))

    def discard(self) -> None:
        self._blocks.clear()


@contextmanager
def parts_of(size: int) -> Iterator[None]:
    """Upload objects larger than twice this size in parts, since objects of histories are small."""
    sizes = object_store.PART_BYTES, object_store.SINGLE_PUT_BYTES
    object_store.PART_BYTES, object_store.SINGLE_PUT_BYTES = size, 2 * size
    try:
        yield
    finally:
        object_store.PART_BYTES, object_store.SINGLE_PUT_BYTES = sizes


@contextmanager
def connected(store: ObjectStore) -> Iterator[None]:
    """Connect every process of the store's world with the store, for any bucket."""
    clients = dict[int, Client]()

    def connect(protocol: str, options: object) -> Client:
        fiber = current()
        assert fiber is not None
        return clients.setdefault(fiber.process.pid, Client(store, fiber.process))

    _forget()
    try:
        with (
            mock.patch.object(object_client, "_connect", connect),
            # each new storage searches it
            mock.patch.object(object_client, "environment", dict),
        ):
            yield
    finally:
        _forget()


def _forget() -> None:
    """Clear the library's caches about stores."""
    object_client._CLIENTS.clear()
