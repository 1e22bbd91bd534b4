"""Multipart uploads of killed writers on S3, which cost until they are aborted; and probes on any storage."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import pytest
from addresses import Address, S3Server
from store_clock import WRITTEN, TimedStorage
from topics import Clock, topic_on, values

from distlog.core import paths
from distlog.core.errors import StorageError
from distlog.core.maintain.vacuum import LONGEST_PUT_MS
from distlog.core.storage import object_client as storage_client
from distlog.core.storage import object_store as object_writer
from distlog.core.storage.backend import StorageCounters, UnfinishedUpload
from distlog.core.storage.local_files import LocalFiles
from distlog.core.storage.object_store import (
    PARTS_IN_FLIGHT,
    SINGLE_PUT_BYTES,
    BufferedWriter,
    ObjectStore,
)
from distlog.core.storage.storage import Storage
from distlog.core.topic import Topic

DELAY = 1000
HEX = "0a" * 16


class S3Topic:
    """A topic with a version that is older than the delay, and unfinished uploads."""

    def __init__(self, address: Address) -> None:
        self.clock = Clock()
        self.storage = TimedStorage(Storage(f"{address.url}/log", address.options), self.clock)
        self.topic = topic_on(self.storage, 1, {"file.delete.delay.ms": DELAY}, self.clock)
        self.topic.append(values([1]))
        self.topic.append(values([2]))
        self.clock.now_ms += 10 * DELAY

    def leave_upload(self, name: str) -> str:
        """Start an upload of `name` as a killed writer leaves it, and return the name."""
        sent = self.storage.counters.bytes_written
        self.storage.open_write(name).write(bytes(SINGLE_PUT_BYTES))
        while self.storage.counters.bytes_written < sent + SINGLE_PUT_BYTES:
            time.sleep(0.001)
        assert name in self.remaining()
        return name

    def remaining(self) -> list[str]:
        return sorted(upload.name for upload in self.storage.uploads())

    def parts_left(self, server: S3Server) -> int:
        """Return the server's bytes of unfinished uploads."""
        import boto3

        client = boto3.client(
            "s3",
            endpoint_url=server.endpoint,
            aws_access_key_id=server.key,
            aws_secret_access_key=server.secret,
            region_name="us-east-1",
        )
        folder = self.storage.url.removeprefix(f"s3://{server.bucket}/")
        uploads = client.list_multipart_uploads(Bucket=server.bucket, Prefix=folder).get("Uploads", [])
        ids = ({"Bucket": server.bucket, "Key": upload["Key"], "UploadId": upload["UploadId"]} for upload in uploads)
        return sum(part["Size"] for upload_id in ids for part in client.list_parts(**upload_id)["Parts"])


@pytest.fixture
def world(s3_url: Address) -> S3Topic:
    return S3Topic(s3_url)


def stem(read_version: int) -> str:
    return paths.new_stem(read_version, HEX)


@pytest.mark.s3
def test_the_upload_of_a_killed_writer_is_aborted_when_its_commit_expires(
    world: S3Topic, s3_server: S3Server
) -> None:
    dead = world.leave_upload(f"log-0/{stem(1)}.log")
    alive = world.leave_upload(f"log-0/{stem(2)}.log")
    assert world.parts_left(s3_server) == 2 * SINGLE_PUT_BYTES
    would = world.topic.vacuum(dry_run=True)
    assert [upload.name for upload in would.uploads] == [dead]
    assert world.remaining() == [dead, alive]
    report = world.topic.vacuum()
    assert (world.remaining(), world.parts_left(s3_server)) == ([alive], SINGLE_PUT_BYTES)
    assert report.gc_floor == 2
    assert str(report).endswith("; aborted 1 unfinished upload")
    assert report.to_dict()["uploads"] == 1
    assert report.to_table().to_pylist() == [{"name": dead, "bytes": None}]
    assert world.topic.vacuum().uploads == ()


@pytest.mark.s3
def test_the_upload_of_a_pending_append_is_aborted_when_it_expires(world: S3Topic, s3_server: S3Server) -> None:
    dead = world.leave_upload(paths.pending_file(stem(1)))
    alive = world.leave_upload(paths.pending_file(stem(2)))
    assert [upload.name for upload in world.topic.vacuum().uploads] == [dead]
    assert (world.remaining(), world.parts_left(s3_server)) == ([alive], SINGLE_PUT_BYTES)


@pytest.mark.s3
def test_foreign_uploads_are_not_aborted(world: S3Topic) -> None:
    names = ["log-0/notes.bin", f"other-0/{stem(0)}.log", f"log-0/{'0' * 20}.log", "_commits/what.bin"]
    remaining = sorted(world.leave_upload(name) for name in names)
    world.topic.vacuum()
    assert world.remaining() == remaining


@pytest.mark.s3
def test_a_concurrently_finished_upload_is_tolerated(world: S3Topic) -> None:
    world.leave_upload(f"log-0/{stem(1)}.log")
    uploads = world.storage.uploads()
    world.storage.abort_uploads(uploads)
    world.storage.abort_uploads(uploads)
    assert world.remaining() == []


@pytest.mark.s3
def test_vacuum_continues_if_uploads_cannot_be_listed(
    world: S3Topic, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(storage: Storage) -> list[UnfinishedUpload]:
        raise StorageError("cannot list the uploads below: AccessDenied (HTTP 403)")

    world.storage.put(f"log-0/{stem(1)}.log", b"a dead writer's")
    monkeypatch.setattr(Storage, "uploads", refuse)
    with caplog.at_level(logging.WARNING):
        assert [file.name for file in world.topic.vacuum().files] == [f"log-0/{stem(1)}.log"]
    assert "s3:ListBucketMultipartUploads" in caplog.text


class PagingStore(ObjectStore):
    def __init__(self, keys: list[str]) -> None:
        self.keys, self.protocol, self.counters = keys, "s3", StorageCounters()

    @property
    def fs(self) -> Any:
        return self

    def split_path(self, path: str) -> tuple[str, str, None]:
        bucket, _, key = path.removeprefix("s3://").partition("/")
        return bucket, key, None

    def retried_in_bucket(self, action: str, path: str, call: Any) -> Any:
        return call()

    def call_s3(self, method: str, **options: str) -> dict[str, Any]:
        assert (method, options["Bucket"], options["Prefix"]) == ("list_multipart_uploads", "bucket", "logs/clicks/")
        start = self.keys.index(options["KeyMarker"]) + 1 if "KeyMarker" in options else 0
        keys = self.keys[start : start + 2]
        uploads = [{"Key": key, "UploadId": f"id of {key}", "Initiated": "2026-01-01T00:00:01Z"} for key in keys]
        if start + 2 >= len(self.keys):
            return {"Uploads": uploads, "IsTruncated": False}
        last = {"NextKeyMarker": keys[-1], "NextUploadIdMarker": f"id of {keys[-1]}"}
        return {"Uploads": uploads, "IsTruncated": True, **last}


def test_a_long_list_of_uploads_is_read_to_its_end() -> None:
    keys = [f"logs/clicks/clicks-0/{number}" for number in range(5)]
    paging = PagingStore(keys)
    uploads = paging.uploads("s3://bucket/logs/clicks")
    assert [upload.name for upload in uploads] == [f"s3://bucket/{key}" for key in keys]
    assert {upload.started_ms for upload in uploads} == {1_767_225_601_000}
    assert paging.counters.lists == 3


def test_other_storages_have_no_uploads(tmp_path: Any, memory_url: Address) -> None:
    for storage in (Storage(tmp_path), Storage(memory_url.url)):
        storage.open_write("log-0/a.log").write(bytes(SINGLE_PUT_BYTES))
        assert storage.uploads() == []
        storage.abort_uploads([])


def test_the_probe_of_a_dead_create_is_deleted_later(storage_url: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    """A create dies in its probe, another one creates the topic, and vacuum runs at once and later."""
    clock = Clock()
    storage = TimedStorage(Storage(f"{storage_url.url}/log", storage_url.options), clock)
    with monkeypatch.context() as patch:
        patch.setattr(storage_client, "_CLIENTS", {})
        for backend in (LocalFiles, ObjectStore):
            patch.setattr(backend, "delete", die)
        with pytest.raises(KeyboardInterrupt):
            storage.probe_put_if_absent("_commits")
    (probe,) = (file.name for file in storage.list("_commits"))
    WRITTEN[storage.url, probe] = clock()
    topic: Topic = topic_on(storage, 1, {"file.delete.delay.ms": DELAY}, clock)
    clock.now_ms += LONGEST_PUT_MS
    assert topic.vacuum().files == ()
    clock.now_ms += 1
    assert [file.name for file in topic.vacuum().files] == [probe]
    assert probe not in {file.name for file in storage.list("_commits")}


def die(*_: Any) -> None:
    raise KeyboardInterrupt


class SlowStore:
    """An S3 with slow parts that records how many parts were uploaded by then."""

    protocol = "s3"

    def __init__(self) -> None:
        self.counters = StorageCounters()
        self.fs = self
        self.writer: Any = None
        self.parts: dict[int, bytes] = {}
        self.ahead_counts: list[int] = []
        self.object: bytes | None = None

    def split_path(self, path: str) -> tuple[str, str, None]:
        return "bucket", path, None

    def retried(self, action: str, path: str, call: Callable[[], Any]) -> Any:
        return call()

    def put(self, path: str, data: bytes) -> None:
        self.object = data

    def call_s3(self, method: str, **arguments: Any) -> dict[str, str]:
        if method == "upload_part":
            time.sleep(0.02)
            number = arguments["PartNumber"]
            self.parts[number] = bytes(arguments["Body"])
            self.ahead_counts.append(self.writer.written_bytes // object_writer.PART_BYTES - number)
        if method == "complete_multipart_upload":
            numbers = [part["PartNumber"] for part in arguments["MultipartUpload"]["Parts"]]
            self.object = b"".join(self.parts[number] for number in numbers)
        return {"UploadId": "1", "ETag": "1"}


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> SlowStore:
    monkeypatch.setattr(object_writer, "PART_BYTES", 10)
    monkeypatch.setattr(object_writer, "SINGLE_PUT_BYTES", 20)
    slow_store = SlowStore()
    slow_store.writer = BufferedWriter(slow_store, "a")  # type: ignore[arg-type]
    return slow_store


def test_a_fast_writer_waits_for_slow_parts(store: SlowStore) -> None:
    data = bytes(range(105))
    with store.writer:
        for start in range(0, 105, 10):
            store.writer.write(data[start : start + 10])
    assert store.object == data
    assert [len(store.parts[number]) for number in range(1, 12)] == [10] * 10 + [5]
    assert max(store.ahead_counts) <= PARTS_IN_FLIGHT


def test_a_small_object_is_one_put(store: SlowStore) -> None:
    with store.writer:
        store.writer.write(bytes(19))
    assert (store.object, store.parts) == (bytes(19), {})


def test_an_object_of_whole_parts_has_no_empty_part(store: SlowStore) -> None:
    with store.writer:
        store.writer.write(bytes(20))
    assert (store.object, len(store.parts)) == (bytes(20), 2)


def test_an_object_is_uploaded_in_parts_of_the_requested_size(store: SlowStore) -> None:
    store.writer = BufferedWriter(store, "a", 30)  # type: ignore[arg-type]
    with store.writer:
        store.writer.write(bytes(range(75)))
    assert (store.object, [len(store.parts[number]) for number in (1, 2, 3)]) == (bytes(range(75)), [30, 30, 15])
