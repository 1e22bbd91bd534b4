"""Whole files on every storage: what is put is read, listed and deleted, on a local folder, in memory and on S3."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from conftest import Address
from every_storage import storage as storage

from distlog.core.storage import object_store
from distlog.core.storage.storage import FileInfo, Storage

# --- reading and writing


def test_what_was_put_is_read(storage: Storage) -> None:
    storage.put("topic-0/a.log", b"hello")
    assert storage.read("topic-0/a.log") == b"hello"
    assert storage.size("topic-0/a.log") == 5


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, None, b"0123456789"),
        (3, None, b"3456789"),
        (2, 5, b"234"),
        (0, 1, b"0"),
        (9, 10, b"9"),
        (8, 99, b"89"),
        (10, 20, b""),
        (99, None, b""),
        (4, 4, b""),
        (5, 4, b""),
    ],
)
def test_a_range_is_half_open_and_ends_with_the_file(
    storage: Storage, start: int, end: int | None, expected: bytes
) -> None:
    storage.put("a", b"0123456789")
    assert storage.read("a", start, end) == expected


def test_an_empty_file_is_read_as_nothing(storage: Storage) -> None:
    storage.put("a", b"")
    assert storage.read("a") == b""
    assert storage.size("a") == 0


def test_a_hostile_length_allocates_nothing(storage: Storage) -> None:
    storage.put("a", b"short")
    assert storage.read("a", 0, 2**62) == b"short"


def test_a_missing_file_is_not_found(storage: Storage) -> None:
    storage.put("there", b"1")
    for name in ("missing", "no/such/folder"):
        with pytest.raises(FileNotFoundError):
            storage.read(name)
        with pytest.raises(FileNotFoundError):
            storage.read(name, 1, 2)
        with pytest.raises(FileNotFoundError):
            storage.size(name)
        with pytest.raises(FileNotFoundError):
            storage.read_ranges([("there", 0, 1), (name, 0, 1)])


def test_put_replaces_the_whole_file(storage: Storage) -> None:
    storage.put("a", b"a long first text")
    storage.put("a", b"second")
    assert storage.read("a") == b"second"


@pytest.mark.parametrize(
    "data",
    [
        b"abcd",
        bytearray(b"abcd"),
        memoryview(b"xabcdx")[1:5],
        pa.py_buffer(b"abcd"),
        np.frombuffer(b"abcd", np.int32),
        np.frombuffer(b"abcd", np.uint8).reshape(2, 2),
    ],
)
def test_any_buffer_can_be_put(storage: Storage, data: Any) -> None:
    storage.put("a", data)
    storage.put_many({"b": data})
    with storage.open_write("c") as writer:
        writer.write(data)
    assert storage.read("a") == storage.read("b") == storage.read("c") == b"abcd"


def test_an_empty_array_can_be_put(storage: Storage) -> None:
    storage.put("a", np.empty((0, 3), np.int64))
    assert storage.read("a") == b""


def test_put_many_writes_every_file(storage: Storage) -> None:
    files = {f"topic-{number % 3}/{number}": bytes([number]) * number for number in range(20)}
    storage.put_many(files)
    assert {name: storage.read(name) for name in files} == files


def test_put_many_of_nothing_does_nothing(storage: Storage) -> None:
    storage.put_many({})
    assert storage.list() == []


# --- listing and deleting


def test_a_listing_has_the_files_right_inside_a_folder(storage: Storage) -> None:
    storage.put_many({"f/1": b"1", "f/2": b"22", "f/deep/3": b"333", "f2/4": b"4", "5": b"5"})
    assert sorted(storage.list("f"), key=lambda file: file.name) == [FileInfo("f/1", 1), FileInfo("f/2", 2)]
    assert storage.list("f/deep/") == [FileInfo("f/deep/3", 3)]
    assert storage.list() == [FileInfo("5", 1)]


def test_folders_are_listed_apart(storage: Storage) -> None:
    storage.put_many({"f/1": b"1", "f/deep/3": b"333", "f2/4": b"4", "5": b"5"})
    assert sorted(storage.list_folders()) == ["f", "f2"]
    assert storage.list_folders("f") == ["f/deep"]


def test_a_missing_folder_lists_as_empty(storage: Storage) -> None:
    assert storage.list("no/such") == storage.list() == []
    assert storage.list_folders("no/such") == storage.list_folders() == []


def test_delete_removes_what_is_there_and_forgives_what_is_not(storage: Storage) -> None:
    storage.put_many({"f/1": b"1", "f/2": b"2", "f/3": b"3"})
    storage.delete(["f/1", "f/missing", "f/3", "none/at/all"])
    assert storage.list("f") == [FileInfo("f/2", 1)]
    storage.delete([])


@pytest.mark.s3
def test_more_files_than_a_page_holds_are_listed_and_deleted(
    s3_url: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, page = Storage(*s3_url), 1000
    if "DISTLOG_TEST_S3_ENDPOINT" not in os.environ:
        # moto's server reads this at each request
        page = 10
        monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", str(page))
        monkeypatch.setattr(object_store, "_KEYS_PER_DELETE", page)
    names = [f"f/{number}" for number in range(2 * page + 3)]
    storage.put_many(dict.fromkeys(names, b"1"))
    assert sorted(file.name for file in storage.list("f")) == sorted(names)
    storage.delete(names)
    assert storage.list("f") == []
