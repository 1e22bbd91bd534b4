"""A storage as an object: children and copies, threads and forks, counters, maps."""

from __future__ import annotations

import os
import pickle
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from every_storage import storage as storage

from distlog.core.errors import StorageError
from distlog.core.storage.storage import FileInfo, Storage


def test_a_child_is_the_same_storage_further_down(storage: Storage) -> None:
    child = storage.child("topic").child("topic-0/")
    child.put("a.log", b"1")
    assert storage.read("topic/topic-0/a.log") == b"1"
    assert child.list() == [FileInfo("a.log", 1)]
    assert child.url == f"{storage.url}/topic/topic-0"
    assert child.counters is storage.counters


def test_counters_count_requests_and_bytes(storage: Storage) -> None:
    storage.put("f/a", b"12345")
    storage.read("f/a", 1, 3)
    storage.list("f")
    storage.delete(["f/a"])
    counted = storage.counters
    assert (counted.puts, counted.gets, counted.lists, counted.deletes) == (1, 1, 1, 1)
    assert (counted.bytes_written, counted.bytes_read) == (5, 2)


def test_a_storage_pickles(storage: Storage) -> None:
    storage.put("a", b"1")
    copy = pickle.loads(pickle.dumps(storage))
    assert copy.read("a") == b"1"
    assert (copy.url, repr(copy)) == (storage.url, repr(storage))
    assert copy.counters.puts == 0


def test_threads_share_a_storage(storage: Storage) -> None:
    def work(number: int) -> bool:
        storage.put(f"f/{number}", bytes([number]))
        return storage.read(f"f/{number}") == bytes([number])

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(40)))
    assert len(storage.list("f")) == 40


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_uses_its_own_connection(storage_url: tuple[str, dict[str, Any]]) -> None:
    if storage_url[0].startswith("memory:"):
        pytest.skip("memory is not shared between processes")
    storage = Storage(*storage_url)
    storage.put("parent", b"1")
    children = []
    for number in range(3):
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            try:
                storage.put(f"child-{number}", storage.read("parent"))
            finally:
                os._exit(0)
        children.append(child)
        assert storage.read("parent") == b"1"
    for child in children:
        os.waitpid(child, 0)
    assert [storage.read(f"child-{number}") for number in range(3)] == [b"1"] * 3


def test_only_a_local_file_can_be_mapped(storage: Storage) -> None:
    storage.put("a", b"12345")
    storage.put("empty", b"")
    if not storage.is_local:
        for refused in (storage.map, storage.local_path):
            with pytest.raises(StorageError, match="local disk"):
                refused("a")
        return
    assert bytes(storage.map("a")) == b"12345"
    assert storage.map("a").readonly
    assert bytes(storage.map("empty")) == b""
    with pytest.raises(FileNotFoundError):
        storage.map("missing")
    with open(storage.local_path("a"), "rb") as file:
        assert file.read() == b"12345"
