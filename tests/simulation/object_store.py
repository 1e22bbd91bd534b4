"""An object store in simulated time: the rules of S3, GCS and Azure, by fsspec's interface, with faults."""

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

#: How long a client waits for an answer, in s.
CLIENT_TIMEOUT_S = 20.0
#: Median and 99th percentile, in s, of requests that read and that write (S3, objects below 1 MiB).
READ_S, WRITE_S = (0.030, 0.200), (0.080, 0.400)


class ReplyError(Exception):
    """An error of the server, in the form that botocore gives it."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status, self.code = status, code
        self.response = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}


class HttpError(Exception):
    """The same in the form of gcsfs."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.code, self.message = status, code


class HttpResponseError(Exception):
    """The same in the form of Azure's library."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status_code, self.error_code, self.message = status, code, code


#: For each protocol: its form of errors, its word for too many requests, and for an object that is there already.
_FORMS: dict[str, tuple[type[Exception], tuple[int, str], tuple[int, str]]] = {
    "s3": (ReplyError, (503, "SlowDown"), (412, "PreconditionFailed")),
    "gs": (HttpError, (429, "rateLimitExceeded"), (412, "conditionNotMet")),
    "abfs": (HttpResponseError, (503, "ServerBusy"), (409, "BlobAlreadyExists")),
}
#: GCS takes one write of an object a second.
GCS_PAUSE_S = 1.0


@dataclass(slots=True)
class Faults:
    """How likely, for each request, each fault is."""

    throttled: float = 0.0
    failed: float = 0.0
    #: The request never arrives.
    lost: float = 0.0
    #: It has its effect, and its answer never comes.
    unanswered: float = 0.0
    #: It has its effect hours after the client has given up.
    late: float = 0.0
    #: The client's library sends it twice.
    twice: float = 0.0
    #: The process that asked stands still for up to `still_s`, before the answer comes.
    still: float = 0.0
    still_s: float = 0.0
    #: The process that asked dies, or is taken for dead, before the answer comes.
    death: float = 0.0
    #: No request is answered for a while, from this one on, if it writes a commit.
    silence: float = 0.0


@dataclass(slots=True)
class Flaws:
    """Rules that a bad store breaks."""

    ignores_condition: bool = False
    #: It looks whether the object is there, and puts it later.
    condition_in_two_steps: bool = False
    #: Listings are as old as this, in s.
    listing_lag_s: float = 0.0


@dataclass(slots=True)
class Object:
    """What is stored under a key."""

    data: bytes
    written_s: float


#: Mean and deviation of the logarithms, of requests that read and that write.
_LOGNORMAL = [(log(median), log(p99 / median) / 2.326) for median, p99 in (READ_S, WRITE_S)]


def lognormal(random: Random, writes: bool) -> float:
    """How long a request to S3 takes, in s; as `Random.lognormvariate` draws it, which calls two more functions."""
    draw, (mean, deviation) = random.random, _LOGNORMAL[writes]
    while True:
        first, second = draw(), 1.0 - draw()
        z = NV_MAGICCONST * (first - 0.5) / second
        if z * z / 4.0 <= -log(second):
            return exp(mean + z * deviation)


@dataclass(slots=True)
class ObjectStore:
    """The server: keys with whole objects, strongly consistent, as S3 since 2020; its clock is right."""

    world: World
    faults: Faults = field(default_factory=Faults)
    flaws: Flaws = field(default_factory=Flaws)
    #: The time of a request; half of it is the way there. It gets whether the request writes.
    latency: Callable[[Random, bool], float] = lognormal
    objects: dict[str, Object] = field(default_factory=dict)
    #: Called to end a process, and to have another one go on.
    replace: Callable[[Process], None] | None = None
    #: Called before each change of an object: with the name of the change, the key and the bytes.
    watchers: list[Callable[[str, str, bytes | None], None]] = field(default_factory=list)
    #: The process whose request has its effect now.
    author: Process | None = None
    #: How many requests there were of each kind.
    requests: Counter[str] = field(default_factory=Counter)
    #: Until when no request is answered, in s; about half of them have their effect.
    silent_until: float = 0.0
    #: Keys with what was removed or put within the lag of listings.
    recent: list[tuple[float, str, Object | None]] = field(default_factory=list)
    #: Whose rules hold: s3, gs or abfs.
    protocol: str = "s3"
    #: Unfinished uploads of S3 by their ids: the key, when they were begun, and their parts.
    uploads: dict[str, tuple[str, float, dict[int, bytes]]] = field(default_factory=dict)

    def put(self, key: str, data: bytes, *, if_absent: bool) -> None:
        """Store an object; raises ReplyError if it is there, and must not be."""
        if if_absent and key in self.objects and not self.flaws.ignores_condition:
            raise ReplyError(*_FORMS[self.protocol][2])
        known = self.objects.get(key)
        if self.protocol == "gs" and known is not None and self.world.now < known.written_s + GCS_PAUSE_S:
            raise ReplyError(429, "rateLimitExceeded")
        if self.world.story is not None:
            self.world.note(f"{key} has {len(data)} bytes ({crc32c(data):08x})")
        for watch in self.watchers:
            watch("put", key, data)
        self._change(key, Object(data, self.world.now))

    def delete(self, key: str) -> None:
        """Delete an object; raises FileNotFoundError if it is not there, and that is no success."""
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
        """What a listing shows now."""
        lag_s = self.flaws.listing_lag_s
        while self.recent and self.recent[0][0] < self.world.now - lag_s:
            self.recent.pop(0)
        if not lag_s:
            return self.objects
        shown = dict(self.objects)
        for _, key, before in reversed(self.recent):
            if before is None:
                shown.pop(key, None)
            else:
                shown[key] = before
        return shown


@lru_cache(1000)
def _moment(since_s: float) -> datetime:
    """The second that is so many after the begin of the world."""
    return datetime.fromtimestamp(floor(BEGIN_MS / 1000 + since_s), UTC)


@lru_cache(1000)
def _date_of(seconds: int) -> str:
    return email.utils.formatdate(seconds, usegmt=True)


class Client:
    """What the library uses of s3fs, gcsfs and adlfs, for one process; each request takes virtual time."""

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
        if draw() < faults.lost or (is_silent and draw() < 0.5):
            return self._fail(kind, key, CLIENT_TIMEOUT_S, TimeoutError("no answer"))
        if fault == "late" or (writes and draw() < faults.late):
            world.at(world.now + self.random.uniform(60, 6 * 3600), lambda: self._late(kind, key, effect))
            return self._fail(kind, key, CLIENT_TIMEOUT_S, TimeoutError("no answer"))
        try:
            replied_s = world.now
            result = self._count(kind, key, effect)
            if draw() < faults.twice and writes:
                # the first answer was lost on the way, and the client's own library asks again
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
        object_client.note_reply(self, self._date(replied_s))
        return result

    def _date(self, when_s: float) -> str:
        return _date_of(floor(BEGIN_MS / 1000 + when_s))

    def _meet_fate(self, kind: str, key: str) -> None:
        """What may come between the effect of a request and its answer."""
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
            object_client.note_reply(self, self._date(replied_s))
        try:
            raise error
        finally:
            # its traceback holds this frame: together they would stay, since a world collects no garbage
            del error

    def _note(self, kind: str, key: str, outcome: str) -> None:
        if self.world.story is not None:
            self.world.note(f"{self.process.name} {kind} {key}: {outcome}")

    # --- the interface of fsspec

    @staticmethod
    def _strip_protocol(path: str) -> str:
        return path.partition("://")[2].rstrip("/") if "://" in path else path.rstrip("/")

    def split_path(self, path: str) -> tuple[str, str, None]:
        """The bucket and the key."""
        bucket, _, key = self._strip_protocol(path).partition("/")
        return bucket, key, None

    def pipe_file(self, path: str, data: bytes, mode: str = "overwrite") -> None:
        """Put a whole object."""
        key, body = self._strip_protocol(path), bytes(data)

        def effect() -> None:
            self.store.author = self.process
            self.store.put(key, body, if_absent=mode == "create")

        if mode == "create" and self.store.flaws.condition_in_two_steps:

            def look() -> None:
                if key in self.store.objects:
                    raise ReplyError(*_FORMS[self.store.protocol][2])

            self.request("look", key, look, writes=False)
            mode = "overwrite"
        kind = "put if absent" if mode == "create" else "put"
        try:
            self.request(kind, key, effect, writes=True)
        except self._form as error:
            if str(error) == _FORMS[self.store.protocol][2][1]:
                raise FileExistsError(path) from error
            raise

    def cat_file(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        """A range of an object."""
        key = self._strip_protocol(path)

        def effect() -> bytes:
            found = self.store.objects.get(key)
            if found is None:
                raise FileNotFoundError(path)
            if start and start >= len(found.data):
                raise ReplyError(416, "InvalidRange")
            return found.data[start:end]

        result: bytes = self.request("get", key, effect, writes=False)
        return result

    def info(self, path: str) -> dict[str, Any]:
        """What is known of an object."""
        key = self._strip_protocol(path)

        def effect() -> dict[str, Any]:
            if key not in self.store.objects:
                raise FileNotFoundError(path)
            return self._entry(key, self.store.objects[key])

        result: dict[str, Any] = self.request("head", key, effect, writes=False)
        return result

    def ls(self, path: str, detail: bool = True) -> list[dict[str, Any]]:
        """What is in a folder; a page for each thousand."""
        prefix = self._strip_protocol(path) + "/"

        def effect() -> list[dict[str, Any]]:
            found: dict[str, dict[str, Any]] = {}
            listed = self.store.listed()
            for key in sorted([key for key in listed if key.startswith(prefix)]):
                name, _, below = key[len(prefix) :].partition("/")
                if below:
                    found[name] = {"name": prefix + name, "type": "directory", "size": 0}
                else:
                    found[name] = self._entry(key, listed[key])
            if not found:
                raise FileNotFoundError(path)
            return list(found.values())

        result: list[dict[str, Any]] = self.request("list", prefix, effect, writes=False)
        return result

    def rm_file(self, path: str) -> None:
        """Delete an object."""
        key = self._strip_protocol(path)

        def effect() -> None:
            self.store.delete(key)

        self.request("delete", key, effect, writes=True)

    def call_s3(self, method: str, **arguments: Any) -> Any:
        """The calls of S3's API that the library makes itself."""
        bucket = arguments["Bucket"]
        match method:
            case "delete_objects":
                keys = [f"{bucket}/{each['Key']}" for each in arguments["Delete"]["Objects"]]

                def delete() -> dict[str, Any]:
                    # a batch has no order
                    for key in self.random.sample(keys, len(keys)):
                        self.store.delete(key)
                    return {}

                return self.request("delete", ", ".join(sorted(keys)), delete, writes=True)
            case "list_objects_v2":

                def look() -> dict[str, Any]:
                    listed = self._page(f"{bucket}/{arguments['Prefix']}", arguments)
                    return {"ResponseMetadata": {"HTTPHeaders": {"date": self._date(self.world.now)}}, **listed}

                return self.request("list", f"{bucket}/{arguments['Prefix']}", look, writes=False)
            case "list_multipart_uploads":
                prefix = f"{bucket}/{arguments['Prefix']}"
                return self.request("list uploads", prefix, lambda: self._uploads(bucket, prefix), writes=False)
        return self._upload(method, f"{bucket}/{arguments['Key']}", arguments)

    def _uploads(self, bucket: str, prefix: str) -> dict[str, Any]:
        def entry(id_: str, key: str, begun_s: float) -> dict[str, Any]:
            return {"Key": key[len(bucket) + 1 :], "UploadId": id_, "Initiated": _moment(begun_s)}

        uploads = self.store.uploads.items()
        found = [entry(id_, key, begun_s) for id_, (key, begun_s, _) in uploads if key.startswith(prefix)]
        return {"Uploads": found, "IsTruncated": False}

    def _upload(self, method: str, key: str, arguments: dict[str, Any]) -> Any:
        """A request of a multipart upload: the object is there when it is completed."""
        uploads = self.store.uploads

        def begin() -> dict[str, Any]:
            id_ = f"upload-{len(uploads)}-{self.random.getrandbits(64):x}"
            uploads[id_] = key, self.world.now, {}
            return {"UploadId": id_}

        def parts() -> dict[int, bytes]:
            if arguments["UploadId"] not in uploads:
                raise ReplyError(404, "NoSuchUpload")
            return uploads[arguments["UploadId"]][2]

        def take() -> dict[str, Any]:
            parts()[arguments["PartNumber"]] = body
            return {"ETag": f"etag-{arguments['PartNumber']}"}

        def complete() -> dict[str, Any]:
            found = parts()
            wanted = [each["PartNumber"] for each in arguments["MultipartUpload"]["Parts"]]
            self.store.put(key, b"".join(found[number] for number in wanted), if_absent=False)
            del uploads[arguments["UploadId"]]
            return {}

        def abort() -> dict[str, Any]:
            parts()
            del uploads[arguments["UploadId"]]
            return {}

        body = bytes(arguments.get("Body", b""))
        effects: dict[str, Callable[[], Any]] = {
            "create_multipart_upload": begin,
            "upload_part": take,
            "complete_multipart_upload": complete,
            "abort_multipart_upload": abort,
        }
        return self.request(method.replace("_", " "), key, effects[method], writes=True)

    def open(self, path: str, mode: str, block_size: int) -> Stream:
        """An object that is written in blocks, as on GCS and Azure."""
        return Stream(self, self._strip_protocol(path))

    def send_block(self, key: str) -> None:
        """Send a block of an object that is not there before its end."""
        self.request("put block", key, lambda: None, writes=True)

    def put_blocks(self, key: str, data: bytes) -> None:
        """End the object."""
        self.request("put blocks", key, lambda: self.store.put(key, data, if_absent=False), writes=True)

    def _page(self, prefix: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """A page of a listing, as the API gives it: what is right below the prefix, in order, behind a name."""
        bucket, after = arguments["Bucket"], arguments.get("ContinuationToken") or arguments.get("StartAfter", "")
        listed = self.store.listed()
        keys = sorted([key for key in listed if key.startswith(prefix) and "/" not in key[len(prefix) :]])
        wanted = [key for key in keys if key.removeprefix(f"{bucket}/") > after]
        page = wanted[: arguments.get("MaxKeys", 1000)]
        contents = [
            {
                "Key": key.removeprefix(f"{bucket}/"),
                "Size": len(listed[key].data),
                "LastModified": _moment(listed[key].written_s),
            }
            for key in page
        ]
        more = {"IsTruncated": True, "NextContinuationToken": contents[-1]["Key"]} if len(page) < len(wanted) else {}
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
    """A file of gcsfs or adlfs: its blocks are sent as they fill, and the object is there when it is closed."""

    def __init__(self, client: Client, key: str) -> None:
        self._client, self._key, self._blocks = client, key, list[bytes]()

    def write(self, data: Any) -> None:
        """Send a block."""
        self._client.send_block(self._key)
        self._blocks.append(bytes(data))

    def close(self) -> None:
        """Make the object visible."""
        self._client.put_blocks(self._key, b"".join(self._blocks))

    def discard(self) -> None:
        """Forget the blocks."""
        self._blocks.clear()


@contextmanager
def parts_of(size: int) -> Iterator[None]:
    """Have objects of twice this size uploaded in parts, since those of histories are small."""
    before = object_store.PART_BYTES, object_store.SINGLE_PUT_BYTES
    object_store.PART_BYTES, object_store.SINGLE_PUT_BYTES = size, 2 * size
    try:
        yield
    finally:
        object_store.PART_BYTES, object_store.SINGLE_PUT_BYTES = before


@contextmanager
def connected(store: ObjectStore) -> Iterator[None]:
    """Have every process of the store's world reach it, whatever bucket is asked for."""
    clients = dict[int, Client]()

    def connect(protocol: str, options: object) -> Client:
        fiber = current()
        assert fiber is not None
        return clients.setdefault(fiber.process.pid, Client(store, fiber.process))

    _forget()
    try:
        with (
            mock.patch.object(object_client, "_connect", connect),
            # each storage that is made looks through it
            mock.patch.object(object_client, "environment", dict),
        ):
            yield
    finally:
        _forget()


def _forget() -> None:
    """Forget what processes of this machine, or of another world, know of their stores."""
    for known in (object_client._CLIENTS, object_client._ANSWERED, object_client._PROOFS):
        known.clear()
