"""All access to stored bytes: `Storage`, its check `check_store`, and `InputStorage` for files to read."""

from __future__ import annotations

import dataclasses
import os
import re
import stat
import statistics
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from distlog.core.errors import DistlogError, StorageError, StorageRefusedError
from distlog.core.storage.backend import (
    MAX_CONDITIONAL_BYTES,
    Entries,
    FileInfo,
    ObjectWriter,
    PutTime,
    StorageCounters,
    UnfinishedUpload,
    check_one_wins,
    too_short_error,
)
from distlog.core.storage.calls import in_order
from distlog.core.storage.local_files import LINK_ERROR, LocalFiles, OpenedFile, known_local_disk
from distlog.core.storage.object_client import StorageOptions
from distlog.core.storage.object_store import ObjectStore

if TYPE_CHECKING:
    from typing_extensions import Buffer

# callers of a storage import these names of `backend` from here
__all__ = ["MAX_CONDITIONAL_BYTES", "FileInfo", "ObjectWriter", "PutTime", "StorageCounters", "UnfinishedUpload"]

#: How long a conditional put is tried, in seconds.
COMMIT_TIMEOUT_S = 600.0
#: The bytes of an input file in one read, and how many later reads run while the caller waits for a read.
CHUNK_BYTES = 2 << 20
_READS_IN_FLIGHT = 4
#: The largest accepted difference between the store's clock and this machine's. S3 refuses requests at 15 minutes.
MAX_CLOCK_SKEW_MS = 300_000
#: In `check_store` _RACERS writers race for each of _RACES names, and _SAMPLES requests measure each speed.
_RACES, _RACERS, _SAMPLES = 3, 16, 10
_SMALL, _LARGE_BYTES = bytes(1024), 32 << 20


class Storage:
    """A folder (a topic, or a root of topics) on a local disk or at a fsspec URL, and the files in it.

    Names are relative to the folder, with `/` between their parts. Callers check names that come from storage. A
    missing file raises FileNotFoundError, and other failures raise StorageError. After temporary errors, requests to
    an object store are repeated for up to a minute. Puts are durable.

    Pickles with its options. Safe between threads and after a fork.
    """

    def __init__(self, url: str | os.PathLike[str], options: Mapping[str, Any] | None = None) -> None:
        """`url` is a path, file://, s3://bucket/folder, memory://, ...; `options` are for the fsspec client."""
        address = parse_url(url)
        if not isinstance(options or {}, Mapping):
            raise StorageError(
                "storage options must be a dict, as in {'endpoint_url': URL}", got=type(options).__name__
            )
        self._options = StorageOptions(options or {})
        self.counters = StorageCounters()
        self._backend: LocalFiles | ObjectStore
        if address.protocol == "file":
            self._backend = LocalFiles(self.counters, address.url)
        else:
            options = StorageOptions({**address.settings, **self._options})
            self._backend = ObjectStore(address.protocol, options, self.counters)
        self._set_folder(address.url)

    def _set_folder(self, url: str) -> None:
        self.url = url
        self._prefix = url.rstrip("/") + "/"

    def __repr__(self) -> str:
        return f"Storage({self.url!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Storage, (self.url, self._options)

    @property
    def name(self) -> str:
        """The last part of the address, which is the name of the topic."""
        return self.url.rstrip("/").rpartition("/")[2]

    @property
    def options(self) -> Mapping[str, Any]:
        return self._options

    @property
    def is_local(self) -> bool:
        return isinstance(self._backend, LocalFiles)

    @property
    def is_local_disk(self) -> bool:
        """Return whether this is a disk of this machine, where processes may share locks and mapped pages."""
        return self.is_local and known_local_disk(self.local_path(""))

    def _with_folder(self, url: str) -> Storage:
        storage = object.__new__(Storage)
        storage.__dict__.update(self.__dict__)
        storage._set_folder(url)
        return storage

    def child(self, name: str) -> Storage:
        """Return the folder `name` in this one, with the same client, options and counters."""
        return self._with_folder(self._prefix + name.strip("/"))

    def without_links(self) -> Storage:
        """Return this folder with reads that refuse links: to open a file through a link raises StorageError."""
        storage = self._with_folder(self.url)
        storage._backend = self._backend.without_links() if isinstance(self._backend, LocalFiles) else self._backend
        return storage

    def parents(self) -> Iterator[Storage]:
        """Yield the folders around this one, the nearest first, up to the bucket or the root of the disk."""
        url = self.url.rstrip("/").rpartition("/")[0]
        while url and not url.endswith("/"):  # "" is above /folder, and "s3:/" above s3://bucket
            yield self._with_folder(url)
            url = url.rpartition("/")[0]

    def sibling(self, name: str) -> Storage | None:
        """Return the folder `name` next to this one; None if this folder has no parent."""
        parent, _, own_name = self.url.rpartition("/")
        return None if not own_name or parent.endswith("/") else self._with_folder(f"{parent}/{name}")

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Read bytes `start` to `end` (None: the end) in one request; fewer if the file is shorter."""
        return self._backend.read(self._prefix + name, start, end)

    def read_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> list[memoryview]:
        """Read the bytes of each (name, start, end). Raises StorageError if a file is shorter."""
        parts = self._backend.read_ranges([(self._prefix + name, start, end) for name, start, end in ranges])
        for (name, start, end), data in zip(ranges, parts, strict=True):
            if len(data) != max(end - start, 0):
                raise too_short_error(name, start, end)
        return parts

    def read_joined(self, ranges: Sequence[tuple[str, int, int]]) -> memoryview:
        """Same as `read_ranges`, with the bytes back to back in one buffer."""
        data = self._backend.read_joined([(self._prefix + name, start, end) for name, start, end in ranges])
        position = 0
        for name, start, end in ranges:
            position += max(end - start, 0)
            if position > len(data):
                raise too_short_error(name, start, end)
        return data

    def size(self, name: str) -> int:
        return self._backend.size(self._prefix + name)

    def put(self, name: str, data: Buffer) -> None:
        """Write or replace a file atomically."""
        self._backend.put_many({self._prefix + name: data})

    def put_many(self, files: Mapping[str, Buffer]) -> None:
        """Write or replace a few files, each atomically. After an error, some may be written."""
        self._backend.put_many({self._prefix + name: data for name, data in files.items()})

    def open_write(self, name: str, part_bytes: int | None = None) -> ObjectWriter:
        """Return a writer of a new file. A large object is uploaded in parts of `part_bytes`, about 3 in memory."""
        return self._backend.open_write(self._prefix + name, part_bytes)

    def put_if_absent(
        self, name: str, data: bytes, *, timeout_s: float = COMMIT_TIMEOUT_S, put_time: PutTime | None = None
    ) -> bytes:
        """Write `data` unless `name` exists; return the stored bytes, ours or another writer's.

        `data` must be unique (by a uuid), so that the stored bytes show who was first. Returns at most
        MAX_CONDITIONAL_BYTES + 1 bytes, so that callers notice a larger file. After a lost response the file is read
        back. Raises StorageError if nothing was written, and CommitStateUnknownError if this is unknown.
        """
        if not 0 < len(data) <= MAX_CONDITIONAL_BYTES:
            raise StorageError("a conditional put must have 1 byte to 64 MiB", file=name, size=len(data))
        return self._backend.put_if_absent(self._prefix + name, data, timeout_s, put_time or PutTime())

    def sync(self, folder: str) -> None:
        """Make all visible files in `folder` durable, whoever wrote them. Raises CommitStateUnknownError."""
        self._backend.sync(self._prefix + folder)

    def probe_put_if_absent(self, folder: str) -> None:
        """Test in `folder` that only one of several writers wins a `put_if_absent`; otherwise raise StorageError."""
        self._backend.probe_put_if_absent(self._prefix + folder, COMMIT_TIMEOUT_S)

    def list_folders(self, folder: str = "") -> list[str]:
        """List the folders in `folder`, with names relative to this storage."""
        prefix, path = self._prefix_and_path(folder)
        return [prefix + entry for entry in self._backend.entries(path) if isinstance(entry, str)]

    def links(self, folder: str = "") -> list[str]:
        """List the links in `folder`, which other listings omit; object storage has none."""
        if not isinstance(self._backend, LocalFiles):
            return []
        return self._backend.links(self._prefix_and_path(folder)[1])

    def refuse_links(self, folder: str = "") -> None:
        """Raise StorageError if `folder` has a link, for callers that delete or copy files."""
        for name in sorted(self.links(folder))[:1]:
            raise StorageError(LINK_ERROR, file=self._prefix + f"{folder}/{name}".strip("/"))

    def open_file(self, name: str) -> int:
        """Open a local file to read; the caller closes the descriptor. Raises OSError."""
        return self._local().open(self._prefix + name)

    def opened_file(self, name: str) -> OpenedFile:
        """Open a local file to read in the block. Raises OSError."""
        return OpenedFile(self.open_file(name))

    def exists(self) -> bool:
        """Return whether this folder exists; always True in an object store, which has no folders."""
        return not self.is_local or os.path.isdir(self.local_path(""))

    def _prefix_and_path(self, folder: str) -> tuple[str, str]:
        prefix = f"{folder.strip('/')}/" if folder.strip("/") else ""
        return prefix, (self._prefix + prefix).rstrip("/") or "/"

    def now_ms(self, folder: str) -> int:
        """Return the store's time in ms since 1970 (on S3 in whole seconds); `folder` must be writable."""
        return self._backend.now_ms(self._prefix + folder)

    def replied_ms(self) -> int:
        """Return the store's time in the newest reply to this process; 0 if unknown."""
        return self._backend.replied_ms()

    def modified_ms(self, name: str) -> int:
        """Return the time of the file by the store's clock, in ms since 1970; MAX_LONG if unknown."""
        return self._backend.modified_ms(self._prefix + name)

    def uploads(self) -> list[UnfinishedUpload]:
        """List the running and abandoned multipart uploads in this folder. The list is empty except on S3."""
        uploads = self._backend.uploads(self.url.rstrip("/"))
        return [dataclasses.replace(upload, name=upload.name[len(self._prefix) :]) for upload in uploads]

    def abort_uploads(self, uploads: Sequence[UnfinishedUpload]) -> None:
        """Abort `uploads` and delete their parts; missing uploads are ignored."""
        self._backend.abort_uploads(
            [dataclasses.replace(upload, name=self._prefix + upload.name) for upload in uploads]
        )

    def list(self, folder: str = "") -> list[FileInfo]:
        """List the files in `folder` in any order, without links; empty if the folder does not exist."""
        prefix, path = self._prefix_and_path(folder)
        files = (entry for entry in self._backend.entries(path) if isinstance(entry, FileInfo))
        return [FileInfo(prefix + file.name, file.size, file.modified_ms) for file in files]

    def list_after(self, folder: str, name: str = "") -> Iterator[FileInfo]:
        """Same as `list`, for names after `name`, on S3 in order."""
        prefix, path = self._prefix_and_path(folder)
        for file in self._backend.files_after(path, name):
            yield FileInfo(prefix + file.name, file.size, file.modified_ms)

    def delete(self, names: Sequence[str]) -> None:
        self._backend.delete([self._prefix + name for name in names])

    def map(self, name: str, start: int = 0, end: int | None = None) -> memoryview:
        """Map bytes `start` to `end` (None: the end) of a local file, read-only. The file must never be truncated."""
        return self._local().map(self._prefix + name, start, end)

    def local_path(self, name: str) -> str:
        self._local()
        return self._prefix + name

    def _local(self) -> LocalFiles:
        if not isinstance(self._backend, LocalFiles):
            raise StorageError("this operation needs a local disk: the storage is an object store", url=self.url)
        return self._backend


_REMOTE = re.compile(r"(?P<protocol>[A-Za-z][A-Za-z0-9+.-]+)://(?P<location>.*)", re.DOTALL)
_LOCAL = re.compile(r"(?:file|local):(?://(?P<server>[^/]*))?(?P<path>.*)", re.DOTALL | re.IGNORECASE)
_REMOTE_WITHOUT_SLASHES = re.compile(r"[A-Za-z][A-Za-z0-9+.:-]+:/")
_ALIASES = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}
#: By protocol: why an address cannot hold a topic, and what to use instead; without the address, which may be secret.
_REFUSED_PROTOCOLS = {
    "hdfs": "hdfs:// cannot hold a topic: it has no put-if-absent; use s3://bucket/folder, gs://, abfs:// or a path",
    **dict.fromkeys(
        ("http", "https"),
        "a web address cannot hold a topic: use the bucket, as in s3://bucket/folder, gs:// or abfs://, and set the "
        "server as the storage option endpoint_url",
    ),
    "dbfs": "dbfs:/ cannot hold a topic: use the address of the bucket, as in s3://bucket/folder or abfss://",
    "adl": "adl:// (Azure Data Lake Storage Gen1) has ended: write abfs://container@account.dfs.core.windows.net/folder",
    **dict.fromkeys(
        ("wasb", "wasbs"),
        "wasb:// and wasbs:// are old names: write abfs://container@account.dfs.core.windows.net/folder",
    ),
}
_ACCOUNT = re.compile(
    r"(?:abfss?|az)://[^/@]+@(?P<account>[a-z0-9]+)\.(?:dfs|blob)\.core\.windows\.net(?:/.*)?", re.DOTALL
)
_CONTAINER_AT_ACCOUNT = ("abfs", "abfss", "wasb", "wasbs")


@dataclass(frozen=True, slots=True)
class StorageUrl:
    protocol: str
    url: str

    @property
    def settings(self) -> dict[str, str]:
        """The options of the client in the address: the account of `abfs://container@account...`."""
        match = _ACCOUNT.fullmatch(self.url)
        return {"account_name": match["account"]} if match else {}


def parse_url(url: str | os.PathLike[str]) -> StorageUrl:
    """Make a path absolute, or normalise a URL. Errors do not repeat the address, which may hold a secret."""
    text = os.fspath(url) if isinstance(url, os.PathLike) else url
    if not isinstance(text, str):
        raise StorageError("an address must be text or a path, as in /data/logs/clicks", got=type(text).__name__)
    if local := _LOCAL.fullmatch(text):
        if local["server"] not in (None, "", "localhost"):
            # RFC 8089: a server follows two slashes, so `file://tmp/x` would not mean /tmp/x
            corrected = f"file:///{local['server']}{local['path']}"
            raise StorageError(f"the address of a local folder has three slashes, as in {corrected}; or use its path")
        return _local(local["path"])
    if remote := _REMOTE.fullmatch(text):
        return _remote(remote["protocol"].lower(), remote["location"])
    if _REMOTE_WITHOUT_SLASHES.match(text):
        _refuse_protocol(text.partition(":")[0].lower())
        raise StorageError("not an address: use a path, or a protocol and two slashes, as in s3://bucket/folder")
    return _local(text)


def _local(path: str) -> StorageUrl:
    if not path or "\0" in path:
        raise StorageError("the address is empty, or not a path")
    return StorageUrl("file", os.path.abspath(os.path.expanduser(path)))


def _remote(protocol: str, location: str) -> StorageUrl:
    protocol = _ALIASES.get(protocol, protocol)
    _refuse_credentials(protocol, location.strip("/"))
    _refuse_protocol(protocol)
    if location.startswith("/") and protocol != "memory":
        raise StorageError(f"the address has no bucket: use two slashes, as in {protocol}://bucket/folder")
    location = location.strip("/")
    if not location:
        raise StorageError("the address has no bucket or folder", protocol=protocol)
    return StorageUrl(protocol, f"{protocol}://{location}")


def _refuse_protocol(protocol: str) -> None:
    if protocol in _REFUSED_PROTOCOLS:
        raise StorageError(f"not an address of a topic: {_REFUSED_PROTOCOLS[protocol]}")


def _refuse_credentials(protocol: str, location: str) -> None:
    """Refuse addresses with secrets: addresses are logged, stored and shown, unlike options and the environment."""
    login, separator, _ = location.partition("/")[0].rpartition("@")
    names_container = protocol in _CONTAINER_AT_ACCOUNT and ":" not in login
    if (separator and not names_container) or "?" in location:
        raise StorageError(
            "the address has credentials or a query: remove them, and set credentials as storage options (key, "
            "secret, token, ...) or in the environment",
            protocol=protocol,
        )


_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):/")
_LOCAL_SCHEMES = ("file", "local")
#: The schemes that can hold a topic, and those that can only be read.
_STORE_SCHEMES = ("s3", "s3a", "s3n", "gs", "gcs", "abfs", "abfss", "az", "memory")
_WEB_SCHEMES = ("http", "https")
READABLE = ("a local path", "file://", "s3://", "gs://", "abfs://", "https://", "hdfs://")


class InputStorage:
    """Reads input files: local paths, also through links, and URLs. Can be pickled."""

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        self._options = StorageOptions(options or {})
        self.counters = StorageCounters()
        self._stores: dict[str, ObjectStore] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return InputStorage, (self._options,)

    def is_local(self, url: str) -> bool:
        return url.startswith("/")

    def address(self, url: str) -> str:
        """Return the absolute path or URL of an input. Raises StorageError for an unsupported scheme."""
        scheme = match["scheme"].lower() if (match := _SCHEME.match(url)) else "file"
        if scheme in _LOCAL_SCHEMES:
            return parse_url(url).url
        if scheme in _STORE_SCHEMES:
            # `parse_url` refuses a question mark, which is a part of a pattern here
            return parse_url(url.replace("?", "\0")).url.replace("\0", "?")
        if scheme not in (*_WEB_SCHEMES, "hdfs"):
            raise StorageError(
                f"{scheme}:// cannot be read: use {', '.join(READABLE)}, or read it with Spark:\n"
                "import distlog.spark\n"
                f'distlog.spark.append(spark.read.text("{scheme}:{url.partition(":")[2].partition("?")[0]}"), url)'
            )
        parts = urlsplit(url)
        if "@" in parts.netloc or not parts.netloc or parts.path in ("", "/"):
            raise StorageError(f"the address must be {scheme}://server/path, without a user", file=shown(url))
        return f"{scheme}{url[len(scheme) :]}"

    def size(self, url: str) -> int:
        """Return the size of a file. Raises FileNotFoundError if it is missing, or a folder."""
        if self.is_local(url):
            with _reading_errors(url):
                status = os.stat(url)
            if not stat.S_ISREG(status.st_mode):
                raise FileNotFoundError(url)
            return status.st_size
        with self._hiding_query(url):
            return self._store(url).size(url)

    def entries(self, folder: str) -> Entries:
        """List the files and folders in a folder; empty if it does not exist, or is on a web server."""
        if not self.is_local(folder):
            return [] if folder.startswith(_WEB_SCHEMES) else self._store(folder).entries(folder)
        try:
            with os.scandir(folder) as entries:
                statuses = [(entry.name, entry.stat()) for entry in entries if entry.is_dir() or entry.is_file()]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise StorageError(f"cannot list a folder: {error.strerror}", file=folder) from None
        return [name if stat.S_ISDIR(status.st_mode) else FileInfo(name, status.st_size) for name, status in statuses]

    def read(self, url: str, start: int, end: int) -> bytes:
        if not self.is_local(url):
            with self._hiding_query(url):
                return self._store(url).read(url, start, end)
        with _open_file(url) as file:
            return os.pread(file, end - start, start)

    def chunks(self, url: str, start: int, end: int) -> Iterator[bytes]:
        """Yield bytes `start` to `end` of a file, some MiB at a time; fewer if it is shorter."""
        if self.is_local(url):
            with _open_file(url) as file:
                while start < end and (data := os.pread(file, min(CHUNK_BYTES, end - start), start)):
                    yield data
                    start += len(data)
            return
        starts = range(start, end, CHUNK_BYTES)
        reads = (partial(self.read, url, position, min(position + CHUNK_BYTES, end)) for position in starts)
        yield from in_order(reads, min(_READS_IN_FLIGHT, max(len(starts) - 1, 0)))

    @contextmanager
    def _hiding_query(self, url: str) -> Iterator[None]:
        """Leave the query of a web address, which may be a signature, out of the errors of the block."""
        try:
            yield
        except StorageError as error:
            if url != shown(url):
                raise StorageError(error.message.replace(url, shown(url)), file=shown(url)) from None
            raise

    def _store(self, url: str) -> ObjectStore:
        address = urlsplit(url)
        key = f"{address.scheme}://{address.netloc}"
        if key not in self._stores:
            settings = dict[str, Any]()
            if address.scheme in _STORE_SCHEMES:
                settings = dict(parse_url(f"{key}/-").settings)  # an address needs a folder, here "-"
            elif address.scheme == "hdfs":
                settings = {"host": address.hostname, **({"port": address.port} if address.port else {})}
            options = {} if address.scheme in _WEB_SCHEMES else self._options
            self._stores[key] = ObjectStore(address.scheme, StorageOptions({**settings, **options}), self.counters)
        return self._stores[key]


def shown(url: str) -> str:
    """Return an address for messages, without a user, and without the query of a web address."""
    if not url.startswith(_WEB_SCHEMES):
        return url
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


@contextmanager
def _open_file(path: str) -> Iterator[int]:
    with _reading_errors(path), OpenedFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC)) as file:
        yield file


@contextmanager
def _reading_errors(path: str) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(path) from None
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f"cannot read the file: {error.strerror}", file=path) from None


@dataclass(frozen=True, slots=True)
class StoreCheck:
    """The result of one check: `ok` is None if it was skipped. `about` is the error, or a measured detail."""

    name: str
    ok: bool | None
    about: str


@dataclass(frozen=True, slots=True)
class StoreReport:
    """The results of `check_store`. `speeds` has medians in ms, and rates in MB/s; empty if not measured."""

    url: str
    checks: tuple[StoreCheck, ...]
    speeds: Mapping[str, float]

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)

    def __str__(self) -> str:
        words = {True: "ok", False: "FAILED", None: "not tried"}
        lines = [f"{check.name}: {words[check.ok]}{check.about and f', {check.about}'}" for check in self.checks]
        lines += [f"{name}: {value:,.1f}" for name, value in self.speeds.items()]
        return "\n".join([*lines, f"{self.url} {'can' if self.ok else 'cannot'} hold a topic"])

    def to_dict(self) -> dict[str, Any]:
        checks = [{"check": check.name, "ok": check.ok, "about": check.about} for check in self.checks]
        return {"url": self.url, "ok": self.ok, "checks": checks, "speeds": dict(self.speeds)}


class _WrongAnswerError(Exception):
    """The storage gave a wrong answer."""


def check_store(
    storage: Storage, clock: Callable[[], int], monotonic: Callable[[], float], *, is_measured: bool = True
) -> StoreReport:
    """Check the storage in a new folder; `clock` returns our time in ms, `monotonic` measures in seconds."""
    existed = storage.exists()
    folder = storage.child(f".distlog-check-{uuid.uuid4().hex}")
    results: list[StoreCheck] = []
    checks: dict[str, Callable[[], str | None]] = {
        "writes and reads": partial(_check_replaced, folder),
        "ranges": partial(_check_ranges, folder),
        "listings": partial(_check_listings, folder),
        "deletes": partial(_check_deletes, folder),
        "clock": partial(_check_clock, folder, clock),
        "a race for one name": partial(_check_races, folder),
    }
    must_skip = False  # True after an error, but not after a wrong answer
    is_clean = False  # True if the store refused the first put, so that it has no files to delete
    try:
        for name, check in checks.items():
            if must_skip:
                results.append(StoreCheck(name, None, ""))
                continue
            try:
                results.append(StoreCheck(name, True, check() or ""))
            except _WrongAnswerError as error:
                results.append(StoreCheck(name, False, str(error)))
            except (DistlogError, OSError) as error:
                must_skip = True
                is_refused = isinstance(error, StorageRefusedError) and not storage.counters.bytes_written
                is_clean = is_refused and not storage.is_local
                results.append(StoreCheck(name, False, str(error)))
        speeds = _speeds(folder, monotonic) if is_measured and all(check.ok for check in results) else {}
    finally:
        if not is_clean:
            _clear(storage, folder, existed=existed)
    return StoreReport(storage.url, tuple(results), speeds)


def _require(is_right: bool, wrong: str) -> None:
    if not is_right:
        raise _WrongAnswerError(wrong)


def _check_replaced(folder: Storage) -> None:
    for data in (b"old", b"newer", b""):
        folder.put("f/a", data)
        _require(folder.read("f/a") == data, "a read does not return the bytes just written")


def _check_ranges(folder: Storage) -> None:
    data = bytes(range(256)) * 4096
    folder.put_many({"f/data": data, "f/empty": b""})
    size = len(data)
    for start, end in ((0, None), (1000, 2000), (size - 5, size + 5), (size, None), (2 * size, 3 * size)):
        _require(folder.read("f/data", start, end) == data[start:end], f"wrong bytes from {start} to {end}")
    _require(folder.read("f/empty") == folder.read("f/empty", 0, 10) == b"", "an empty object cannot be read")
    parts = folder.read_ranges([("f/data", 500_000, 500_100), ("f/data", 5, 10)])
    _require([bytes(part) for part in parts] == [data[500_000:500_100], data[5:10]], "wrong bytes of several ranges")


def _check_listings(folder: Storage) -> None:
    names = {f"l/{number:03d}": bytes(number) for number in range(1, 6)}
    folder.put_many({**names, "l/below/z": b"1"})
    sizes = {file.name: file.size for file in folder.list("l")}
    _require(
        sizes == {name: len(data) for name, data in names.items()}, "a listing does not have the files just written"
    )
    _require(folder.list_folders("l") == ["l/below"], "folders are not listed as folders")
    _require(folder.list("nothing") == [], "a missing folder is not listed as empty")


def _check_deletes(folder: Storage) -> None:
    folder.put_many({"d/a": b"1", "d/b": b"2"})
    folder.delete(["d/a", "d/missing"])
    _require([file.name for file in folder.list("d")] == ["d/b"], "a deleted object is listed")
    with suppress(FileNotFoundError):
        folder.read("d/a")
        raise _WrongAnswerError("a deleted object can be read")


def _check_clock(folder: Storage, clock: Callable[[], int]) -> str:
    folder.put("c/a", b"1")
    before_ms = clock()
    skew_ms = folder.now_ms("c") - before_ms
    _require(abs(skew_ms) <= MAX_CLOCK_SKEW_MS, f"it is {skew_ms:+,} ms from this machine's: set both by NTP")
    return f"{skew_ms:+,} ms from this machine's"


def _check_races(folder: Storage) -> str:
    for name in (f"r/{number}" for number in range(_RACES)):
        put, delete = partial(folder.put_if_absent, name), partial(folder.delete, [name])
        check_one_wins(put, delete, folder.url, racers=_RACERS)
    return f"{_RACES} races of {_RACERS} writers had one winner each"


def _speeds(folder: Storage, monotonic: Callable[[], float]) -> dict[str, float]:
    def median_ms(call: Callable[[int], object]) -> float:
        return statistics.median(_seconds(partial(call, number), monotonic) for number in range(_SAMPLES)) * 1000

    data = os.urandom(1 << 20) * (_LARGE_BYTES >> 20)

    def write() -> None:
        with folder.open_write("s/large") as writer:
            writer.write(data)

    step = 4 << 20
    parts = [("s/large", start, min(start + step, _LARGE_BYTES)) for start in range(0, _LARGE_BYTES, step)]
    return {
        "put_ms": median_ms(lambda number: folder.put(f"s/{number}", _SMALL)),
        "commit_ms": median_ms(lambda number: folder.put_if_absent(f"p/{number}", _SMALL)),
        "range_ms": median_ms(lambda number: folder.read(f"s/{number}", 100, 200)),
        "list_ms": median_ms(lambda number: folder.list("s")),
        "write_mb_per_s": _LARGE_BYTES / 1e6 / _seconds(write, monotonic),
        "read_mb_per_s": _LARGE_BYTES / 1e6 / _seconds(lambda: folder.read_ranges(parts), monotonic),
    }


def _seconds(call: Callable[[], object], monotonic: Callable[[], float]) -> float:
    start = monotonic()
    call()
    return max(monotonic() - start, 1e-9)


def _clear(storage: Storage, folder: Storage, *, existed: bool) -> None:
    with suppress(StorageError, OSError):
        for part in [*folder.list_folders(), *folder.list_folders("l")]:
            folder.delete([file.name for file in folder.list(part)])
    if storage.is_local:
        path = folder.local_path("").rstrip("/")
        for part in ("l/below", "f", "l", "d", "c", "r", "s", "p", ""):
            with suppress(OSError):
                os.rmdir(f"{path}/{part}")
        if not existed:
            with suppress(OSError):
                os.rmdir(storage.local_path(""))
