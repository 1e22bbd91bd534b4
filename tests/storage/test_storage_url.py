"""Addresses of storages: accepted ones, refused ones, and credentials that are not shown."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import pytest

from distlog.core.errors import StorageError
from distlog.core.storage.storage import Storage, parse_url


@pytest.mark.parametrize(
    ("address", "protocol", "url"),
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
def test_an_address_is_normalised(address: Any, protocol: str, url: str) -> None:
    parsed = parse_url(address)
    assert (parsed.protocol, parsed.url) == (protocol, url)
    assert parse_url(parsed.url) == parsed


@pytest.mark.parametrize(
    ("address", "settings"),
    [
        ("abfss://container@logs.dfs.core.windows.net/x", {"account_name": "logs"}),
        ("abfs://container@logs.blob.core.windows.net", {"account_name": "logs"}),
        ("abfs://container/x@logs.dfs.core.windows.net/", {}),
        ("abfs://container@logs.dfs.example.com/x", {}),
        ("az://container/x", {}),
        ("s3://bucket/x", {}),
    ],
)
def test_an_address_of_azure_may_name_the_account(address: str, settings: dict[str, str]) -> None:
    assert parse_url(address).settings == settings


@pytest.mark.parametrize("address", ["file://tmp/x", "file://tmp", "local://data/logs"])
def test_a_file_url_with_a_server_is_refused_with_the_right_one(address: str) -> None:
    path = address.partition("://")[2]
    with pytest.raises(StorageError, match=f"three slashes, as in file:///{path}"):
        parse_url(address)


def test_a_relative_path_is_made_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/someone")
    assert parse_url("logs").url == str(tmp_path / "logs")
    assert parse_url("~/logs").url == "/home/someone/logs"


@pytest.mark.parametrize(
    "wrong",
    ["", "s3://", "memory:///", "s3:/bucket/x", "simplecache::s3://bucket/x", "file://", "a\0b", b"/data", None],
)
def test_an_invalid_address_is_refused(wrong: Any) -> None:
    with pytest.raises(StorageError, match="address"):
        parse_url(wrong)


@pytest.mark.parametrize("protocol", ["s3", "gs", "abfs"])
def test_a_folder_is_not_a_bucket(protocol: str) -> None:
    with pytest.raises(StorageError, match=f"has no bucket: use two slashes, as in {protocol}://bucket/folder"):
        parse_url(f"{protocol}:///logs/clicks")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("hdfs://namenode/logs", "it has no put-if-absent"),
        ("https://bucket.s3.amazonaws.com/logs", "storage option endpoint_url"),
        ("http://127.0.0.1:9000/bucket", "storage option endpoint_url"),
        ("dbfs:/mnt/logs", "use the address of the bucket"),
        ("dbfs://mnt/logs", "use the address of the bucket"),
        ("adl://store.azuredatalakestore.net/x", "has ended: write abfs://"),
        ("wasbs://c@account.blob.core.windows.net/x", "abfs://container@account"),
    ],
)
def test_an_unusable_protocol_is_refused_with_the_supported_ones(wrong: str, words: str) -> None:
    with pytest.raises(StorageError, match=words):
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
