"""Files on every storage: put, put if absent, written in parts, read, listed and deleted."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from addresses import Address
from every_storage import MIB
from every_storage import storage as storage
from hypothesis import given, settings
from hypothesis import strategies as st

from distlog.core.errors import StorageError
from distlog.core.storage import backend, object_store
from distlog.core.storage.storage import FileInfo, Storage


def test_put_and_read_round_trip(storage: Storage) -> None:
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


def test_delete_ignores_missing_files(storage: Storage) -> None:
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
        page = 10
        monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", str(page))
        monkeypatch.setattr(object_store, "_KEYS_PER_DELETE", page)
    names = [f"f/{number}" for number in range(2 * page + 3)]
    storage.put_many(dict.fromkeys(names, b"1"))
    assert sorted(file.name for file in storage.list("f")) == sorted(names)
    storage.delete(names)
    assert storage.list("f") == []


def test_the_first_put_if_absent_wins_and_later_ones_get_its_bytes(storage: Storage) -> None:
    for data in (b"first", b"second", b"first"):
        assert storage.put_if_absent("_commits/0.json", data) == b"first"
    assert storage.read("_commits/0.json") == b"first"
    assert storage.list("_commits") == [FileInfo("_commits/0.json", 5)]


@pytest.mark.parametrize("size", [0, 64 * MIB + 1])
def test_put_if_absent_refuses_empty_and_too_large_data(storage: Storage, size: int) -> None:
    with pytest.raises(StorageError, match="1 byte to 64 MiB"):
        storage.put_if_absent("a", bytes(size))


def test_the_probe_passes_and_leaves_nothing(storage: Storage) -> None:
    storage.probe_put_if_absent("_commits")
    assert storage.list("_commits") == []


@pytest.mark.parametrize("size", [0, 1, 16 * MIB - 1, 16 * MIB, 16 * MIB + 1, 24 * MIB, 41 * MIB + 7])
def test_a_writer_writes_files_of_any_size(storage: Storage, size: int) -> None:
    data = np.random.default_rng(size).bytes(size)
    with storage.open_write("topic-0/a.log") as writer:
        for start in range(0, size, 3 * MIB + 1):
            writer.write(data[start : start + 3 * MIB + 1])
    assert writer.written_bytes == size == storage.size("topic-0/a.log")
    assert storage.read("topic-0/a.log") == data


def test_a_writer_accepts_a_chunk_larger_than_everything(storage: Storage) -> None:
    data = np.random.default_rng(1).bytes(35 * MIB)
    with storage.open_write("a") as writer:
        writer.write(data)
    assert storage.read("a") == data


def test_put_takes_a_file_that_needs_several_requests(storage: Storage) -> None:
    data = np.random.default_rng(1).bytes(20 * MIB)
    storage.put("a", memoryview(data))
    assert storage.read("a") == data


def test_a_writers_buffer_may_be_reused(storage: Storage) -> None:
    with storage.open_write("a") as writer:
        for letter in (b"a", b"b"):
            buffer = bytearray(letter * 10)
            writer.write(buffer)
            buffer[:] = b"#" * 10
    assert storage.read("a") == b"a" * 10 + b"b" * 10


@pytest.mark.parametrize("size", [10, 33 * MIB])
def test_an_aborted_writer_leaves_nothing(storage: Storage, size: int) -> None:
    writer = storage.open_write("topic-0/a.log")
    writer.write(bytes(size))
    writer.abort()
    writer.abort()
    assert storage.list("topic-0") == []


def test_an_error_inside_a_writers_block_aborts_it(storage: Storage) -> None:
    def fail_halfway() -> None:
        with storage.open_write("a") as writer:
            writer.write(b"1")
            raise KeyError

    with pytest.raises(KeyError):
        fail_halfway()
    with pytest.raises(FileNotFoundError):
        storage.read("a")


def test_abort_after_close_keeps_the_file(storage: Storage) -> None:
    writer = storage.open_write("a")
    writer.write(b"1")
    writer.close()
    writer.abort()
    writer.close()
    assert storage.read("a") == b"1"


def test_a_closed_writer_refuses_writes(storage: Storage) -> None:
    for finish in ("close", "abort"):
        writer = storage.open_write(finish)
        getattr(writer, finish)()
        with pytest.raises(StorageError, match="closed"):
            writer.write(b"1")


def test_ranges_keep_their_order(storage: Storage) -> None:
    data = bytes(range(256)) * 4
    storage.put_many({"a": data, "b": data[::-1]})
    ranges = [("a", 900, 1000), ("b", 0, 10), ("a", 0, 4), ("a", 2, 8), ("a", 5, 5), ("b", 1000, 1024), ("a", 0, 4)]
    expected = [{"a": data, "b": data[::-1]}[name][start:end] for name, start, end in ranges]
    assert [bytes(part) for part in storage.read_ranges(ranges)] == expected
    assert storage.read_ranges([]) == []


def test_joined_ranges_are_one_buffer(storage: Storage) -> None:
    storage.put_many({"a": b"0123456789", "b": b"abcdef"})
    ranges = [("a", 5, 8), ("b", 0, 6), ("a", 3, 3), ("a", 0, 2)]
    assert bytes(storage.read_joined(ranges)) == b"567abcdef01"
    assert storage.read_joined(ranges).readonly
    assert bytes(storage.read_joined([("b", 1, 3)])) == b"bc"
    assert bytes(storage.read_joined([])) == b""
    with pytest.raises(FileNotFoundError):
        storage.read_joined([("a", 0, 1), ("missing", 0, 1)])


@pytest.mark.parametrize(
    "ranges",
    [
        [("a", 0, 6)],
        [("a", 7, 9)],
        [("a", 0, 2), ("a", 4, 6)],
        [("a", 4, 6), ("a", 0, 5)],
        [("a", 0, 2**62), ("a", 0, 2**62)],
    ],
)
def test_a_range_past_the_end_fails_and_allocates_nothing(
    storage: Storage, ranges: list[tuple[str, int, int]]
) -> None:
    storage.put("a", b"12345")
    for read in (storage.read_ranges, storage.read_joined):
        with pytest.raises(StorageError, match="shorter"):
            read(ranges)


sizes = st.integers(0, 3 * backend.MAX_GAP_BYTES)
FILES = {"a": np.arange(2**17, dtype=np.int32).tobytes(), "b": np.ones(2**17, np.int32).tobytes()}


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ab"), sizes, sizes)))
def test_merged_requests_cover_every_range(spans: list[tuple[str, int, int]]) -> None:
    ranges = [(name, start, start + size) for name, start, size in spans]
    merged, covered_by = backend.merge_ranges(ranges)
    for (name, start, end), number in zip(ranges, covered_by, strict=True):
        path, first, last = merged[number]
        assert (path, first <= start, end <= last) == (name, True, True)
    assert len(merged) <= len(ranges)


def test_close_ranges_are_merged_far_ones_are_not() -> None:
    gap, most = backend.MAX_GAP_BYTES, backend.MAX_MERGED_BYTES

    def requests(*ranges: tuple[str, int, int]) -> list[tuple[str, int, int]]:
        return backend.merge_ranges(ranges)[0]

    assert requests(("a", 10 + gap, 99 + gap), ("a", 0, 10)) == [("a", 0, 99 + gap)]
    assert requests(("a", 0, 10), ("a", 11 + gap, 99 + gap)) == [("a", 0, 10), ("a", 11 + gap, 99 + gap)]
    assert requests(("a", 0, 10), ("b", 10, 20)) == [("a", 0, 10), ("b", 10, 20)]
    assert requests(("a", 0, most), ("a", most, most + 1)) == [("a", 0, most), ("a", most, most + 1)]
    assert requests(("a", 0, 2 * most), ("a", 5, 2 * most)) == [("a", 0, 2 * most)]
