"""Options of a storage: their sources, and secrets that are never shown."""

from __future__ import annotations

import os
import pickle
import traceback
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from distlog.core.errors import InvalidConfigError, StorageError
from distlog.core.storage import object_client
from distlog.core.storage.object_client import ClientErrors, StorageOptions
from distlog.core.storage.storage import Storage

SECRETS = {"key": "AKIAVERYSECRETKEY", "secret": "very/secret+value", "token": "a-secret-token"}


def test_secrets_do_not_show_in_a_storage() -> None:
    storage = Storage("s3://bucket/logs", {**SECRETS, "client_kwargs": {"aws_session_token": "nested-secret"}})
    shown = repr(storage) + str(storage) + repr(vars(storage)) + repr(StorageOptions(SECRETS))
    for secret in (*SECRETS.values(), "nested-secret"):
        assert secret not in shown
    assert repr(storage) == "Storage('s3://bucket/logs')"


def test_secrets_travel_with_a_pickle(monkeypatch: pytest.MonkeyPatch) -> None:
    copy = pickle.loads(pickle.dumps(Storage("s3://bucket/logs", SECRETS)))
    options: list[dict[str, Any]] = []

    def filesystem(protocol: str, **settings: Any) -> MemoryFileSystem:
        options.append(settings)
        return MemoryFileSystem()

    monkeypatch.setattr(fsspec, "filesystem", filesystem)
    process = os.getpid() + 1
    monkeypatch.setattr(os, "getpid", lambda: process)
    with pytest.raises(FileNotFoundError):
        copy.read("a")
    assert [{name: settings[name] for name in SECRETS} for settings in options] == [SECRETS]


@pytest.mark.s3
def test_secrets_do_not_show_in_an_error(s3_server: Any) -> None:
    options = {"endpoint_url": f"{s3_server.endpoint}", **SECRETS, "no_such_option": "very/secret+value"}
    with pytest.raises(InvalidConfigError, match="no_such_option") as raised:
        Storage("s3://bucket/logs", options).read("a")
    shown = "".join(traceback.format_exception(raised.value, limit=-1))
    assert not [secret for secret in SECRETS.values() if secret in shown]


def test_secrets_that_a_client_repeats_are_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    def filesystem(protocol: str, **settings: Any) -> None:
        raise ValueError(f"what is {settings['secret']}?")

    storage = Storage("s3://bucket/logs", SECRETS)
    message = ClientErrors(StorageOptions(SECRETS), "s3").describe(ValueError(f"what is {SECRETS['secret']}?"))
    assert message == "ValueError: what is ***?"
    monkeypatch.setattr(fsspec, "filesystem", filesystem)
    with pytest.raises(StorageError, match=r"what is \*\*\*") as raised:
        storage.read("a")
    assert SECRETS["secret"] not in "".join(traceback.format_exception(raised.value))


def test_responses_of_a_server_are_masked() -> None:
    options = StorageOptions({**SECRETS, "client_kwargs": {"password": "deep"}})
    assert options.masked("your a-secret-token and very/secret+value, deep") == "your *** and ***, ***"


def test_strings_of_a_command_line_are_parsed() -> None:
    options = StorageOptions(
        {"anon": "false", "use_ssl": "True", "client_kwargs": '{"region_name": "eu"}', "key": "k"}
    )
    assert options.settings() == {"anon": False, "use_ssl": True, "client_kwargs": {"region_name": "eu"}, "key": "k"}


def test_the_account_in_an_address_is_used_unless_an_option_overrides_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names: list[object] = []

    def filesystem(protocol: str, **settings: Any) -> MemoryFileSystem:
        names.append(settings.get("account_name"))
        return MemoryFileSystem()

    monkeypatch.setattr(fsspec, "filesystem", filesystem)
    monkeypatch.setattr(object_client, "_check_options", lambda *_: None)
    for options in ({"account_key": "x"}, {"account_name": "another"}):
        storage = pickle.loads(pickle.dumps(Storage("abfss://c@logs.dfs.core.windows.net/x", options)))
        assert storage.options == options
        with pytest.raises(FileNotFoundError):
            storage.child("y").read("a")
    assert names == ["logs", "another"]


@pytest.mark.parametrize("value", ["{topsecret", "topsecret", '"topsecret"', "[1]", "true", 5])
def test_an_invalid_json_option_fails_without_being_shown(value: object) -> None:
    with pytest.raises(InvalidConfigError, match="client_kwargs must be a JSON object") as raised:
        Storage("s3://bucket/logs", {"client_kwargs": value}).read("a")
    assert "topsecret" not in "".join(traceback.format_exception(raised.value, limit=-1))


@pytest.mark.s3
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


def test_missing_credentials_fail_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    storage = Storage("s3://bucket/logs", {"endpoint_url": "http://127.0.0.1:9"})
    for call in (lambda: storage.read("a"), lambda: storage.put_if_absent("a", b"1")):
        with pytest.raises(StorageError, match="no credentials were found: set the storage options key and secret"):
            call()


@pytest.mark.parametrize("options", ["anon=true", [("anon", True)]])
def test_options_other_than_a_dict_are_refused_without_being_shown(options: Any, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="storage options must be a dict, as in") as raised:
        Storage(str(tmp_path), options)
    assert "anon" not in str(raised.value)
