"""How a writer of unknown size uses memory: parts in order, and never more of them than it may hold."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from distlog.core.storage import object_store as object_writer
from distlog.core.storage.backend import StorageCounters
from distlog.core.storage.object_store import PARTS_IN_FLIGHT, BufferedWriter


class SlowStore:
    """An S3 whose parts take a while, and which notes how many parts were given to it by then."""

    protocol = "s3"

    def __init__(self) -> None:
        self.counters = StorageCounters()
        self.fs = self
        self.writer: Any = None
        self.parts: dict[int, bytes] = {}
        self.ahead: list[int] = []
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
            self.ahead.append(self.writer.written // object_writer.PART_BYTES - number)
        if method == "complete_multipart_upload":
            numbers = [part["PartNumber"] for part in arguments["MultipartUpload"]["Parts"]]
            self.object = b"".join(self.parts[number] for number in numbers)
        return {"UploadId": "1", "ETag": "1"}


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> SlowStore:
    monkeypatch.setattr(object_writer, "PART_BYTES", 10)
    monkeypatch.setattr(object_writer, "SINGLE_PUT_BYTES", 20)
    made = SlowStore()
    made.writer = BufferedWriter(made, "a")  # type: ignore[arg-type]
    return made


def test_a_fast_writer_waits_for_slow_parts(store: SlowStore) -> None:
    data = bytes(range(105))
    with store.writer:
        for start in range(0, 105, 10):
            store.writer.write(data[start : start + 10])
    assert store.object == data
    assert [len(store.parts[number]) for number in range(1, 12)] == [10] * 10 + [5]
    assert max(store.ahead) <= PARTS_IN_FLIGHT


def test_a_small_object_is_one_put(store: SlowStore) -> None:
    with store.writer:
        store.writer.write(bytes(19))
    assert (store.object, store.parts) == (bytes(19), {})


def test_an_object_of_whole_parts_has_no_empty_part(store: SlowStore) -> None:
    with store.writer:
        store.writer.write(bytes(20))
    assert (store.object, len(store.parts)) == (bytes(20), 2)


def test_an_object_is_uploaded_in_parts_of_the_size_that_its_writer_asks_for(store: SlowStore) -> None:
    store.writer = BufferedWriter(store, "a", 30)  # type: ignore[arg-type]
    with store.writer:
        store.writer.write(bytes(range(75)))
    assert (store.object, [len(store.parts[number]) for number in (1, 2, 3)]) == (bytes(range(75)), [30, 30, 15])
