"""Several ranges of files read at once, on every storage, with few requests, and none past the end of a file."""

from __future__ import annotations

import numpy as np
import pytest
from every_storage import storage as storage
from hypothesis import given, settings
from hypothesis import strategies as st

from distlog.core.errors import StorageError
from distlog.core.storage import backend
from distlog.core.storage.storage import Storage


def test_ranges_come_back_in_the_order_asked(storage: Storage) -> None:
    data = bytes(range(256)) * 4
    storage.put_many({"a": data, "b": data[::-1]})
    ranges = [("a", 900, 1000), ("b", 0, 10), ("a", 0, 4), ("a", 2, 8), ("a", 5, 5), ("b", 1000, 1024), ("a", 0, 4)]
    expected = [{"a": data, "b": data[::-1]}[name][start:end] for name, start, end in ranges]
    assert [bytes(found) for found in storage.read_ranges(ranges)] == expected
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
def test_a_range_past_the_end_is_an_error_and_allocates_nothing(
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
def test_merged_requests_cover_every_range(pieces: list[tuple[str, int, int]]) -> None:
    ranges = [(name, start, start + size) for name, start, size in pieces]
    merged = backend.merge_ranges(ranges)
    replies = [memoryview(FILES[item.path])[item.start : item.end] for item in merged.requests]
    assert [bytes(found) for found in merged.cut(replies)] == [FILES[name][start:end] for name, start, end in ranges]
    assert len(merged.requests) <= len(ranges)


def test_close_ranges_are_merged_far_ones_are_not() -> None:
    gap, most = backend.MAX_GAP_BYTES, backend.MAX_MERGED_BYTES

    def requests(*ranges: tuple[str, int, int]) -> list[tuple[str, int, int]]:
        return [(item.path, item.start, item.end) for item in backend.merge_ranges(ranges).requests]

    assert requests(("a", 10 + gap, 99 + gap), ("a", 0, 10)) == [("a", 0, 99 + gap)]
    assert requests(("a", 0, 10), ("a", 11 + gap, 99 + gap)) == [("a", 0, 10), ("a", 11 + gap, 99 + gap)]
    assert requests(("a", 0, 10), ("b", 10, 20)) == [("a", 0, 10), ("b", 10, 20)]
    assert requests(("a", 0, most), ("a", most, most + 1)) == [("a", 0, most), ("a", most, most + 1)]
    assert requests(("a", 0, 2 * most), ("a", 5, 2 * most)) == [("a", 0, 2 * most)]
