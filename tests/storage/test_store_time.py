"""The store's own time, where it is that of an object that was just written."""

from __future__ import annotations

from typing import Any

import pytest

from distlog.core.errors import StorageError
from distlog.core.storage.object_store import ObjectStore


class Requests:
    """The requests of GCS to a bucket where others delete the first `lost` objects before one can look at them."""

    protocol = "gs"

    def __init__(self, lost: int) -> None:
        self.lost = lost
        self.there = list[str]()

    def put(self, path: str, data: bytes) -> None:
        self.there.append(path)

    def describe(self, path: str) -> dict[str, Any]:
        if self.lost:
            self.lost -= 1
            raise FileNotFoundError(path)
        return {"updated": "2023-11-14T22:13:20.000Z"}

    def delete(self, path: str) -> None:
        self.there.remove(path)


def store_of(requests: Any) -> ObjectStore:
    store = object.__new__(ObjectStore)
    store._requests = requests
    return store


def test_an_object_that_a_vacuum_deleted_meanwhile_is_put_again() -> None:
    requests: Any = Requests(1)
    assert store_of(requests).now_ms("bucket/topic/_commits") == 1_700_000_000_000
    assert requests.there == []


def test_a_store_that_loses_each_object_is_named() -> None:
    requests: Any = Requests(10)
    with pytest.raises(StorageError, match="lost an object that was just written"):
        store_of(requests).now_ms("bucket/topic/_commits")
    assert requests.there == []
