"""Clients of storages: unreachable servers, missing protocols, stores other than S3."""

from __future__ import annotations

import gc
import os
import socket
import ssl
import subprocess
import sys
import weakref
from typing import Any

import fsspec
import pytest
from botocore.exceptions import EndpointConnectionError
from fault_proxy import CUT, FaultProxy
from fsspec.implementations.memory import MemoryFileSystem

from distlog.core.errors import InvalidConfigError, StorageError
from distlog.core.storage import calls
from distlog.core.storage import object_client as storage_client
from distlog.core.storage.object_client import ClientErrors, StorageOptions
from distlog.core.storage.object_store import ObjectStore
from distlog.core.storage.storage import Storage

SECRETS = {"key": "AKIAVERYSECRETKEY", "secret": "very/secret+value"}


@pytest.mark.parametrize("operation", ["read", "size", "list", "put"])
def test_a_server_that_never_answered_is_not_retried(monkeypatch: pytest.MonkeyPatch, operation: str) -> None:
    """Without the shorter timeout this test would never end."""
    monkeypatch.setattr(calls, "RETRY_TIMEOUT_S", 1e9)
    monkeypatch.setattr(calls, "FIRST_TIMEOUT_S", 0.0)
    storage = Storage("s3://bucket/logs", {**SECRETS, "endpoint_url": "http://127.0.0.1:9"})
    requests: dict[str, Any] = {
        "read": lambda: storage.read("a"),
        "size": lambda: storage.size("a"),
        "list": storage.list,
        "put": lambda: storage.put("a", b"1"),
    }
    with pytest.raises(
        StorageError, match=r"127\.0\.0\.1:9 cannot be reached, it refuses connections: check .*endpoint"
    ):
        requests[operation]()


@pytest.mark.s3
def test_a_server_that_has_answered_is_retried(
    s3_url: tuple[str, dict[str, Any]], s3_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "FIRST_TIMEOUT_S", 0.0)
    url, options = s3_url
    with FaultProxy(s3_server.endpoint) as proxy:
        storage = Storage(url, {**options, "endpoint_url": proxy.url})
        proxy.inject("GET", CUT, times=4)
        with pytest.raises(StorageError):
            storage.read("a")
        proxy.reset()
        with pytest.raises(FileNotFoundError):
            storage.read("a")
        proxy.inject("GET", CUT, times=4)
        with pytest.raises(FileNotFoundError):
            storage.read("a")


class LookupFailedError(Exception):
    os_error = socket.gaierror(-2, "Name or service not known")


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        (ConnectionRefusedError(111, "no"), "it refuses connections"),
        (LookupFailedError(), "its name does not resolve"),
        (ssl.SSLCertVerificationError("bad"), "TLS fails"),
        (TimeoutError(), "no answer"),
    ],
)
def test_an_unreachable_server_is_reported_without_secrets(cause: Exception, words: str) -> None:
    error = EndpointConnectionError(endpoint_url="https://me:very@minio.example:9000/bucket/a?X-Sig=1", error=cause)
    message = ClientErrors(StorageOptions({"endpoint_url": "https://me:very@minio.example:9000"}), "s3").describe(
        error
    )
    assert message.startswith(f"minio.example:9000 cannot be reached, {words}: check ")
    assert "very" not in message
    assert "X-Sig" not in message


@pytest.mark.parametrize(
    ("protocol", "words"),
    [
        ("s3", "AWS_ENDPOINT_URL"),
        ("gs", "STORAGE_EMULATOR_HOST"),
        ("abfs", "AZURE_STORAGE_CONNECTION_STRING"),
        ("az", "the account's name"),
        ("oss", "the address"),
    ],
)
def test_an_unreachable_server_is_reported_with_the_clients_settings(protocol: str, words: str) -> None:
    error = EndpointConnectionError(endpoint_url="https://store.example", error=ConnectionRefusedError(111, "no"))
    message = ClientErrors(StorageOptions(), protocol).describe(error)
    assert words in message.partition(": check ")[2]
    assert ("AWS" in message) == (protocol == "s3")


@pytest.mark.long
def test_clients_of_rotated_credentials_are_dropped_and_a_parents_never(monkeypatch: pytest.MonkeyPatch) -> None:
    clients: list[weakref.ref[MemoryFileSystem]] = []

    def filesystem(protocol: str, **settings: Any) -> MemoryFileSystem:
        client = MemoryFileSystem(skip_instance_cache=True)
        clients.append(weakref.ref(client))
        return client

    def cached_clients() -> list[int]:
        gc.collect()
        return [number for number, client in enumerate(clients) if client() is not None]

    process = os.getpid()
    monkeypatch.setattr(fsspec, "filesystem", filesystem)
    monkeypatch.setattr(os, "getpid", lambda: process + 2)
    Storage("memory://x/parent", {"token": "a parent's"}).list()
    monkeypatch.setattr(os, "getpid", lambda: process + 3)
    count = storage_client.MAX_CLIENTS + 5
    for number in range(count):
        Storage(f"memory://x/{number}", {"token": str(number)}).list()
    assert cached_clients() == [0, *range(1 + count - storage_client.MAX_CLIENTS, 1 + count)]


@pytest.mark.long
def test_a_missing_s3fs_fails_with_advice() -> None:
    program = """
import sys
sys.modules["s3fs"] = None
from distlog.core.errors import StorageError
from distlog.core.storage.storage import Storage
try:
    Storage("s3://bucket/logs").read("a")
except StorageError as error:
    print(error)
"""
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "no client for s3:// is installed: pip install 'pydistlog[s3]'" in process.stdout


def test_an_unknown_protocol_fails() -> None:
    with pytest.raises(StorageError, match=r"unknown storage nosuch://: use a path, s3://bucket/folder"):
        Storage("nosuch://x/y").read("a")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("endpoint", "endpoint_url"),
        ("endpiont_url", "endpoint_url"),
        ("aws_secret_access_key", "secret"),
        ("region", "client_kwargs="),
        ("regoin_name", "client_kwargs="),
        ("kye", "key"),
        ("ENDPOINT_URL", "endpoint_url"),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest_one(name: str, meant: str) -> None:
    with pytest.raises(InvalidConfigError, match=f"has no storage option '{name}': did you mean {meant}") as raised:
        Storage("s3://bucket/logs", {name: "very/secret+value"}).read("a")
    assert "very/secret+value" not in str(raised.value)


def test_an_invalid_option_is_refused_before_the_first_request() -> None:
    with pytest.raises(InvalidConfigError, match=r"s3:// has no storage option 'nosuch': it has anon, endpoint_url"):
        Storage("s3://bucket/logs", {"nosuch": "very/secret+value"}).read("a")


def test_an_option_of_a_base_class_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    class Base(ElsewhereFileSystem):
        def __init__(self, batch_size: int = 1, **_: Any) -> None:
            super().__init__()

    class Client(Base):
        def __init__(self, block_size: int = 1, **more: Any) -> None:
            super().__init__(**more)

    monkeypatch.setattr(fsspec, "get_filesystem_class", lambda _: Client)
    Storage("gs://bucket/logs", {"batch_size": 2}).put("a", b"1")
    with pytest.raises(InvalidConfigError, match="did you mean block_size"):
        Storage("gs://bucket/logs", {"blok_size": 2}).put("a", b"1")


@pytest.mark.long
def test_missing_options_are_named_without_a_stack_trace() -> None:
    program = """
from distlog.core.errors import InvalidConfigError
from distlog.core.storage.storage import Storage
try:
    Storage("ftp://host/logs").read("a")
except InvalidConfigError as error:
    print(error)
"""
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (process.stdout, process.stderr) == ("cannot open ftp://: set the storage option host\n", "")


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/x", "github://a/b"])
def test_a_storage_that_cannot_hold_a_log_is_not_written(url: str) -> None:
    storage = Storage(url)
    for call in (
        lambda: storage.put("a", b"1"),
        lambda: storage.put_if_absent("a", b"1"),
        lambda: storage.probe_put_if_absent("a"),
        lambda: storage.open_write("a"),
        lambda: storage.delete(["a"]),
    ):
        with pytest.raises(StorageError, match="writes to local paths"):
            call()


class ElsewhereFileSystem(MemoryFileSystem):
    """A store other than S3 with its own client."""

    protocol = "gs"
    store: dict[str, Any] = {}  # noqa: RUF012 - fsspec's memory is shared through the class
    pseudo_dirs: list[str] = [""]  # noqa: RUF012

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.replace("gs://", "memory://"))


def test_a_store_other_than_s3_is_written_through_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fsspec, "get_filesystem_class", lambda _: ElsewhereFileSystem)
    storage = Storage("gs://bucket/logs")
    data = bytes(range(256)) * (80 * 1024)
    with storage.open_write("f/big") as writer:
        writer.write(data)
    assert storage.put_if_absent("f/c", b"1") == storage.put_if_absent("f/c", b"2") == b"1"
    assert sorted((file.name, file.size) for file in storage.list("f")) == [("f/big", len(data)), ("f/c", 1)]
    assert storage.read("f/big") == data
    storage.delete(["f/big", "f/missing"])
    assert [file.name for file in storage.list("f")] == ["f/c"]


class LosingStore(ObjectStore):
    """A bucket of GCS where a vacuum deletes the first `lost` objects before they can be read."""

    def __init__(self, losses: int) -> None:
        self.protocol, self.losses, self.names = "gs", losses, list[str]()

    def put(self, path: str, data: bytes) -> None:
        self.names.append(path)

    def describe(self, path: str) -> dict[str, Any]:
        if self.losses:
            self.losses -= 1
            raise FileNotFoundError(path)
        return {"updated": "2023-11-14T22:13:20.000Z"}

    def delete_one(self, path: str) -> None:
        self.names.remove(path)


def test_an_object_that_a_concurrent_vacuum_deleted_is_put_again() -> None:
    store = LosingStore(1)
    assert store.now_ms("bucket/topic/_commits") == 1_700_000_000_000
    assert store.names == []


def test_a_store_that_loses_each_object_is_named() -> None:
    store = LosingStore(10)
    with pytest.raises(StorageError, match="lost a new object"):
        store.now_ms("bucket/topic/_commits")
    assert store.names == []
