"""Reads the files that an append is given, wherever fsspec reaches: a topic's storage is stricter (`Storage`)."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from distlog.core.errors import StorageError
from distlog.core.storage.backend import Entries, FileInfo, StorageCounters
from distlog.core.storage.object_client import StorageOptions
from distlog.core.storage.object_store import ObjectStore
from distlog.core.storage.parallel import in_order
from distlog.core.storage.storage import parse_url

#: Bytes of one read, and how many reads of an object are in flight after the current one.
CHUNK_BYTES = 2 << 20
_READS_IN_FLIGHT = 4
_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):/")
_LOCAL_SCHEMES = ("file", "local")
#: The schemes of `Storage`, and those that can be read but cannot hold a topic.
_STORES = ("s3", "s3a", "s3n", "gs", "gcs", "abfs", "abfss", "az", "memory")
_WEB = ("http", "https")
READABLE = ("a local path", "file://", "s3://", "gs://", "abfs://", "https://", "hdfs://")


class InputStorage:
    """Files to read: local paths, following links, and URLs. Pickles."""

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
        if scheme in _STORES:
            # a question mark is a part of a pattern here
            return parse_url(url.replace("?", "\0")).url.replace("\0", "?")
        if scheme not in (*_WEB, "hdfs"):
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
            with _local_errors(url):
                status = os.stat(url)
            if not stat.S_ISREG(status.st_mode):
                raise FileNotFoundError(url)
            return status.st_size
        with self._masked(url):
            return self._store(url).size(url)

    def entries(self, folder: str) -> Entries:
        """List the files and folders in a folder; empty if it does not exist, and on a web server."""
        if not self.is_local(folder):
            return [] if folder.startswith(_WEB) else self._store(folder).entries(folder)
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
            with self._masked(url):
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
    def _masked(self, url: str) -> Iterator[None]:
        """Keep the query of a web address, which may be a signature, out of errors."""
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
            settings: dict[str, Any] = dict(parse_url(f"{key}/-").settings) if address.scheme in _STORES else {}
            if address.scheme == "hdfs":
                settings = {"host": address.hostname, **({"port": address.port} if address.port else {})}
            options = StorageOptions({**settings, **({} if address.scheme in _WEB else self._options)})
            self._stores[key] = ObjectStore(address.scheme, options, self.counters)
        return self._stores[key]


def shown(url: str) -> str:
    """Return an address for messages, without a user, and without the query of a web address."""
    if not url.startswith(_WEB):
        return url
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


@contextmanager
def _open_file(path: str) -> Iterator[int]:
    with _local_errors(path):
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with _local_errors(path):
            yield file
    finally:
        os.close(file)


@contextmanager
def _local_errors(path: str) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(path) from None
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f"cannot read a file: {error.strerror}", file=path) from None
