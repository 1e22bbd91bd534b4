"""Addresses and options: what is accepted, and that no secret is ever shown."""

from __future__ import annotations

import gc
import os
import pickle
import socket
import ssl
import subprocess
import sys
import traceback
import weakref
from pathlib import Path
from typing import Any

import fsspec
import pytest
from botocore.exceptions import EndpointConnectionError
from fault_proxy import CUT, FaultProxy
from fsspec.implementations.memory import MemoryFileSystem

from distlog.core.errors import StorageError
from distlog.core.storage import retry as storage_retry
from distlog.core.storage.objects import client as storage_client
from distlog.core.storage.objects.client import ClientErrors, StorageOptions
from distlog.core.storage.storage import Storage
from distlog.core.storage.url import parse_url

SECRETS = {"key": "AKIAVERYSECRETKEY", "secret": "very/secret+value", "token": "a-secret-token"}


# --- addresses


@pytest.mark.parametrize(
    ("given", "protocol", "url"),
    [
        ("/data/logs", "file", "/data/logs"),
        ("/data//logs/./x/../y/", "file", "/data/logs/y"),
        ("file:///data/logs/", "file", "/data/logs"),
        ("file:/data/logs", "file", "/data/logs"),
        ("FILE:///data", "file", "/data"),
        ("file://localhost/data", "file", "/data"),
        (Path("/data/logs"), "file", "/data/logs"),
        ("s3://bucket/logs/clicks/", "s3", "s3://bucket/logs/clicks"),
        ("s3a://bucket/logs", "s3", "s3://bucket/logs"),
        ("S3://bucket/Logs", "s3", "s3://bucket/Logs"),
        ("s3://bucket", "s3", "s3://bucket"),
        ("memory:///x/y", "memory", "memory://x/y"),
        ("gcs://bucket/x", "gs", "gs://bucket/x"),
        (
            "abfs://container@account.dfs.core.windows.net/x",
            "abfs",
            "abfs://container@account.dfs.core.windows.net/x",
        ),
        ("s3://bucket/a@b/c:d", "s3", "s3://bucket/a@b/c:d"),
    ],
)
def test_an_address_is_normalised(given: Any, protocol: str, url: str) -> None:
    parsed = parse_url(given)
    assert (parsed.protocol, parsed.url) == (protocol, url)
    assert parse_url(parsed.url) == parsed


@pytest.mark.parametrize("given", ["file://tmp/x", "file://tmp", "local://data/logs"])
def test_a_file_url_that_names_a_server_is_refused_with_the_one_that_was_meant(given: str) -> None:
    path = given.partition("://")[2]
    with pytest.raises(StorageError, match=f"three slashes, as in file:///{path}"):
        parse_url(given)


def test_a_relative_path_is_made_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/someone")
    assert parse_url("logs").url == str(tmp_path / "logs")
    assert parse_url("~/logs").url == "/home/someone/logs"


@pytest.mark.parametrize(
    "wrong", ["", "s3://", "memory:///", "s3:/bucket/x", "simplecache::s3://bucket/x", "file://", "a\0b"]
)
def test_what_is_no_address_is_refused(wrong: str) -> None:
    with pytest.raises(StorageError, match="address"):
        parse_url(wrong)


@pytest.mark.parametrize(
    "address",
    [
        "s3://KEYID:topsecret@bucket/logs",
        "s3a://topsecret@bucket/logs",
        "memory://a:topsecret@x",
        "https://user:topsecret@host/logs",
        "abfs://container:topsecret@account/logs",
        "s3://bucket/logs?X-Amz-Signature=topsecret",
        "https://account.blob.core.windows.net/c?sig=topsecret",
    ],
)
def test_an_address_with_credentials_is_refused_without_showing_them(address: str) -> None:
    with pytest.raises(StorageError, match="credentials") as raised:
        Storage(address)
    shown = "".join(traceback.format_exception(raised.value, limit=-1)) + repr(raised.value)
    assert "topsecret" not in shown


# --- options


def test_secrets_do_not_show_in_a_storage() -> None:
    storage = Storage("s3://bucket/logs", {**SECRETS, "client_kwargs": {"aws_session_token": "nested-secret"}})
    shown = repr(storage) + str(storage) + repr(vars(storage)) + repr(StorageOptions(SECRETS))
    for secret in (*SECRETS.values(), "nested-secret"):
        assert secret not in shown
    assert repr(storage) == "Storage('s3://bucket/logs')"


def test_secrets_travel_with_a_pickle(monkeypatch: pytest.MonkeyPatch) -> None:
    copy = pickle.loads(pickle.dumps(Storage("s3://bucket/logs", SECRETS)))
    given: list[dict[str, Any]] = []

    def filesystem(protocol: str, **settings: Any) -> MemoryFileSystem:
        given.append(settings)
        return MemoryFileSystem()

    monkeypatch.setattr(fsspec, "filesystem", filesystem)
    # so that no client of these secrets is there yet
    process = os.getpid() + 1
    monkeypatch.setattr(os, "getpid", lambda: process)
    with pytest.raises(FileNotFoundError):
        copy.read("a")
    assert [{name: settings[name] for name in SECRETS} for settings in given] == [SECRETS]


def test_secrets_do_not_show_in_an_error(s3_server: Any) -> None:
    options = {"endpoint_url": f"{s3_server.endpoint}", **SECRETS, "no_such_option": "very/secret+value"}
    with pytest.raises(StorageError, match="no_such_option") as raised:
        Storage("s3://bucket/logs", options).read("a")
    shown = "".join(traceback.format_exception(raised.value, limit=-1))
    assert not [secret for secret in SECRETS.values() if secret in shown]


def test_secrets_that_a_client_repeats_are_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    def filesystem(protocol: str, **settings: Any) -> None:
        raise ValueError(f"what is {settings['secret']}?")

    storage = Storage("s3://bucket/logs", SECRETS)
    told = ClientErrors(StorageOptions(SECRETS)).describe(ValueError(f"what is {SECRETS['secret']}?"))
    assert told == "ValueError: what is ***?"
    monkeypatch.setattr(fsspec, "filesystem", filesystem)
    with pytest.raises(StorageError, match=r"what is \*\*\*") as raised:
        storage.read("a")
    assert SECRETS["secret"] not in "".join(traceback.format_exception(raised.value))


def test_what_a_server_says_is_masked() -> None:
    options = StorageOptions({**SECRETS, "client_kwargs": {"password": "deep"}})
    assert options.masked("your a-secret-token and very/secret+value, deep") == "your *** and ***, ***"


def test_strings_of_a_command_line_are_understood() -> None:
    options = StorageOptions(
        {"anon": "false", "use_ssl": "True", "client_kwargs": '{"region_name": "eu"}', "key": "k"}
    )
    assert options.settings() == {"anon": False, "use_ssl": True, "client_kwargs": {"region_name": "eu"}, "key": "k"}


def test_an_option_that_is_not_json_is_an_error_that_shows_nothing() -> None:
    with pytest.raises(StorageError, match="cannot open s3") as raised:
        Storage("s3://bucket/logs", {"client_kwargs": "{topsecret"}).read("a")
    assert "topsecret" not in "".join(traceback.format_exception(raised.value, limit=-1))


def test_the_environment_gives_credentials_and_endpoint(
    s3_server: Any, s3_url: tuple[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    Storage(*s3_url).put("a", b"1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.secret)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.endpoint)
    assert Storage(s3_url[0]).read("a") == b"1"
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"{s3_server.endpoint}/elsewhere")
    with pytest.raises((StorageError, FileNotFoundError)):
        Storage(s3_url[0]).read("a")


def test_no_credentials_at_all_is_an_error_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    storage = Storage("s3://bucket/logs", {"endpoint_url": "http://127.0.0.1:9"})
    for call in (lambda: storage.read("a"), lambda: storage.put_if_absent("a", b"1")):
        with pytest.raises(StorageError, match="no credentials were found: set the storage options key and secret"):
            call()


# --- servers that are not there


@pytest.mark.parametrize("operation", ["read", "size", "list", "put"])
def test_a_server_that_was_never_there_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, operation: str) -> None:
    """Without the shorter time this test would wait for ever."""
    monkeypatch.setattr(storage_retry, "RETRY_TIMEOUT_S", 1e9)
    monkeypatch.setattr(storage_retry, "FIRST_TIMEOUT_S", 0.0)
    storage = Storage("s3://bucket/logs", {**SECRETS, "endpoint_url": "http://127.0.0.1:9"})
    calls: dict[str, Any] = {
        "read": lambda: storage.read("a"),
        "size": lambda: storage.size("a"),
        "list": storage.list,
        "put": lambda: storage.put("a", b"1"),
    }
    with pytest.raises(
        StorageError, match=r"127\.0\.0\.1:9 cannot be reached, it refuses connections: check .*endpoint"
    ):
        calls[operation]()


@pytest.mark.s3
def test_a_server_that_has_answered_once_is_waited_for(
    s3_url: tuple[str, dict[str, Any]], s3_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage_retry, "FIRST_TIMEOUT_S", 0.0)
    url, options = s3_url
    with FaultProxy(s3_server.endpoint) as proxy:
        storage = Storage(url, {**options, "endpoint_url": proxy.url})
        proxy.inject("GET", CUT, times=4)  # each request is sent twice by the client
        with pytest.raises(StorageError):
            storage.read("a")
        proxy.reset()
        with pytest.raises(FileNotFoundError):
            storage.read("a")
        proxy.inject("GET", CUT, times=4)
        with pytest.raises(FileNotFoundError):
            storage.read("a")


class LookupFailedError(Exception):
    """As aiohttp says that a name does not resolve."""

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
def test_why_a_server_is_not_reached_is_told_without_secrets(cause: Exception, words: str) -> None:
    error = EndpointConnectionError(endpoint_url="https://me:very@minio.example:9000/bucket/a?X-Sig=1", error=cause)
    told = ClientErrors(StorageOptions({"endpoint_url": "https://me:very@minio.example:9000"})).describe(error)
    assert told.startswith(f"minio.example:9000 cannot be reached, {words}: check ")
    assert "very" not in told
    assert "X-Sig" not in told


# --- clients


def test_clients_of_rotated_credentials_are_dropped_and_a_parents_never(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[MemoryFileSystem]] = []

    def filesystem(protocol: str, **settings: Any) -> MemoryFileSystem:
        client = MemoryFileSystem(skip_instance_cache=True)
        made.append(weakref.ref(client))
        return client

    def kept() -> list[int]:
        gc.collect()
        return [number for number, client in enumerate(made) if client() is not None]

    process = os.getpid()
    monkeypatch.setattr(fsspec, "filesystem", filesystem)
    monkeypatch.setattr(os, "getpid", lambda: process + 2)
    Storage("memory://x/parent", {"token": "a parent's"}).list()
    monkeypatch.setattr(os, "getpid", lambda: process + 3)
    count = storage_client.MAX_CLIENTS + 5
    for number in range(count):
        Storage(f"memory://x/{number}", {"token": str(number)}).list()
    assert kept() == [0, *range(1 + count - storage_client.MAX_CLIENTS, 1 + count)]


def test_a_missing_s3fs_says_what_to_install() -> None:
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
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "no client for s3:// is installed: pip install 'distlog[s3]'" in done.stdout


def test_an_unknown_protocol_is_an_error() -> None:
    with pytest.raises(StorageError, match=r"no storage is called nosuch://: give a path, s3://bucket/folder"):
        Storage("nosuch://x/y").read("a")


def test_options_that_a_client_needs_are_named_and_no_stack_is_printed() -> None:
    program = """
from distlog.core.errors import StorageError
from distlog.core.storage.storage import Storage
try:
    Storage("ftp://host/logs").read("a")
except StorageError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("cannot open ftp://: set the storage option host\n", "")


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/x", "ftp://127.0.0.1/x", "github://a/b"])
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
    """Stands for a store that is not S3 and has a client of its own."""

    protocol = "gs"
    store: dict[str, Any] = {}  # noqa: RUF012 - fsspec's memory is shared through the class
    pseudo_dirs: list[str] = [""]  # noqa: RUF012

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.replace("gs://", "memory://"))


def test_a_store_other_than_s3_is_written_through_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fsspec, "filesystem", lambda protocol, **settings: ElsewhereFileSystem(**settings))
    storage = Storage("gs://bucket/logs")
    data = bytes(range(256)) * (80 * 1024)
    with storage.open_write("f/big") as writer:
        writer.write(data)
    assert storage.put_if_absent("f/c", b"1") == storage.put_if_absent("f/c", b"2") == b"1"
    assert sorted((file.name, file.size) for file in storage.list("f")) == [("f/big", len(data)), ("f/c", 1)]
    assert storage.read("f/big") == data
    storage.delete(["f/big", "f/missing"])
    assert [file.name for file in storage.list("f")] == ["f/c"]
