"""Google's and Azure's storage, by simulated servers: the same promises as on S3, and errors at once."""

from __future__ import annotations

import base64
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from log_dirs import copy_of, golden_of, read
from store_servers import Store, free_port, running

import distlog
from distlog.core.errors import StorageDeniedError, StorageError
from distlog.core.storage import calls
from distlog.core.storage.storage import FileInfo, Storage

pytestmark = pytest.mark.stores


@pytest.fixture(scope="module", params=["gs", "az"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with running(request.param, tmp_path_factory.mktemp("store")) as server:
        yield server


@pytest.fixture
def storage(store: Store, monkeypatch: pytest.MonkeyPatch) -> Storage:
    """An empty folder; a retry would fail the test."""
    monkeypatch.setattr(calls, "RETRY_TIMEOUT_S", 2.0)
    return Storage(store.url(uuid.uuid4().hex), store.options())


def test_ranges_at_and_past_the_end_and_empty_objects_are_read(storage: Storage) -> None:
    storage.put_many({"a": b"0123456789", "empty": b""})
    ranges = [(0, None), (3, 5), (5, 99), (10, 20), (50, 60), (50, None)]
    assert [storage.read("a", *span) for span in ranges] == [b"0123456789", b"34", b"56789", b"", b"", b""]
    assert [storage.read("empty", *span) for span in [(0, None), (0, 10), (5, 10)]] == [b"", b"", b""]
    assert (storage.size("a"), storage.size("empty")) == (10, 0)
    with pytest.raises(StorageError, match="shorter"):
        storage.read_ranges([("a", 8, 12)])


def test_a_missing_object_fails_at_once(storage: Storage) -> None:
    with pytest.raises(FileNotFoundError):
        storage.read("missing", 0, 10)
    assert storage.list("missing") == []
    storage.delete(["missing"])


def test_one_writer_wins_and_the_others_get_its_bytes(storage: Storage) -> None:
    assert storage.put_if_absent("_commits/0", b"first") == b"first"
    assert storage.put_if_absent("_commits/0", b"second") == b"first"
    assert storage.list("_commits") == [FileInfo("_commits/0", 5)]
    assert storage.now_ms("_commits") > 1_600_000_000_000


def test_a_topic_works_there(storage: Storage) -> None:
    options = dict(storage.options)
    topic = distlog.create(f"{storage.url}/clicks", partitions=2, storage_options=options)
    topic.append([{"key": f"k{number}", "value": f"v{number}"} for number in range(100)])
    reopened = distlog.open(topic.url, storage_options=options)
    assert reopened.scan().count() == 100
    assert reopened.verify().ok
    assert [listed.name for listed in distlog.topics(storage.url, storage_options=options)] == ["clicks"]


def test_a_brokers_directory_is_adopted_with_empty_indexes(storage: Storage, tmp_path: Path) -> None:
    log_dir = copy_of("first", tmp_path)
    max((log_dir / "txn-0").glob("*.index")).write_bytes(b"")
    storage.put_many({f"txn-0/{path.name}": path.read_bytes() for path in (log_dir / "txn-0").iterdir()})
    storage.put_many({path.name: path.read_bytes() for path in log_dir.iterdir() if path.is_file()})
    assert 0 in [file.size for file in storage.list("txn-0") if file.name.endswith("index")]
    report = distlog.adopt(storage.url, str(tmp_path / "topics"), topics=["txn"], storage_options=storage.options)
    assert (report.ok, report.notes) == (True, distlog.adopt(log_dir, str(tmp_path / "b"), topics=["txn"]).notes)
    assert read(report.topics["txn"]) == golden_of("first")["txn-0"].records()


def test_a_large_object_is_written_in_parts(storage: Storage) -> None:
    data = os.urandom(1 << 20) * 17
    with storage.open_write("big") as writer:
        writer.write(data)
    assert storage.read("big") == data


@pytest.mark.parametrize("call", ["put", "put_if_absent", "probe"])
def test_a_missing_bucket_fails_at_once(store: Store, call: str) -> None:
    storage = Storage(store.url("x", bucket="no-such-bucket"), store.options())
    calls: dict[str, Any] = {
        "put": lambda: storage.put("a", b"1"),
        "put_if_absent": lambda: storage.put_if_absent("a", b"1"),
        "probe": lambda: storage.probe_put_if_absent("_commits"),
    }
    with pytest.raises(StorageError, match="the bucket or container does not exist"):
        calls[call]()


def test_a_wrong_key_fails_at_once_and_is_not_shown(store: Store) -> None:
    if store.protocol == "gs":
        pytest.skip("fake-gcs-server lets everybody in")
    wrong = base64.b64encode(b"x" * 64).decode()
    storage = Storage(store.url("x"), store.options(key=wrong))
    for call in (lambda: storage.read("a"), storage.list, lambda: storage.put_if_absent("a", b"1")):
        with pytest.raises(
            StorageDeniedError, match=r"HTTP 403.*the credentials do not allow it: check their permissions"
        ) as raised:
            call()
        assert wrong not in str(raised.value)


def test_a_server_that_is_down_is_named_by_its_address(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a limit of the client's own retries this would take half a minute."""
    monkeypatch.setattr(calls, "FIRST_TIMEOUT_S", 0.0)
    port = free_port()
    storage = Storage(store.url("x"), store.options(port=port))
    start_s = time.monotonic()
    with pytest.raises(StorageError, match=rf"127\.0\.0\.1:{port} cannot be reached, it refuses connections"):
        storage.read("a")
    # gcsfs would request the kind of the bucket by gRPC, for a minute
    assert time.monotonic() - start_s < 15


def test_a_misspelt_option_is_refused_with_the_right_one(store: Store) -> None:
    slip, meant = (
        ("endpoint", "endpoint_url") if store.protocol == "gs" else ("conection_string", "connection_string")
    )
    with pytest.raises(StorageError, match=f"no storage option '{slip}': did you mean {meant}\\?"):
        Storage(store.url("x"), {**store.options(), slip: "x"}).read("a")
