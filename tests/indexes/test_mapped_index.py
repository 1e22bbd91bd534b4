"""The life of an index file, the same for the offset and the time index: made, filled, cut, trimmed, opened again."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest

from distlog.core.indexes.mapped_index import MappedIndex
from distlog.core.indexes.offset_index import OffsetIndex
from distlog.core.indexes.time_index import TimeIndex

BASE = 45
SLOTS = 30


@pytest.fixture(params=[OffsetIndex, TimeIndex])
def kind(request: pytest.FixtureRequest) -> type[MappedIndex]:
    """The class under test."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Where the index goes."""
    return str(tmp_path / "00000000000000000045.index")


def create(kind: type[MappedIndex], path: str, slots: int = SLOTS) -> MappedIndex:
    """A new, empty, writable index."""
    return kind(path, BASE, max_index_size=slots * kind.ENTRY.itemsize, writable=True)


def add(index: MappedIndex, *steps: int) -> None:
    """An entry for each step: offset BASE + step, position or timestamp 10 * step."""
    for step in steps:
        if isinstance(index, OffsetIndex):
            index.append(BASE + step, 10 * step)
        else:
            assert isinstance(index, TimeIndex)
            index.maybe_append(10 * step, BASE + step, skip_full_check=True)


def steps(index: MappedIndex) -> list[int]:
    """The steps that `add` was given."""
    assert isinstance(index, OffsetIndex | TimeIndex)
    return [index.entry(slot).offset - BASE for slot in range(index.entries)]


def test_a_new_file_is_preallocated_with_whole_zero_entries(kind: type[MappedIndex], path: str) -> None:
    with kind(path, BASE, max_index_size=100, writable=True) as index:
        size = kind.ENTRY.itemsize
        assert (index.entries, index.max_entries) == (0, 100 // size)
        assert Path(path).read_bytes() == bytes(100 // size * size)


@pytest.mark.parametrize("size", [None, 0, 7])
def test_a_new_file_needs_room_for_one_entry(kind: type[MappedIndex], path: str, size: int | None) -> None:
    with pytest.raises(ValueError, match="max_index_size of at least"):
        kind(path, BASE, max_index_size=size, writable=True)
    assert not os.path.exists(path)


def test_a_file_that_is_not_there_cannot_be_read(kind: type[MappedIndex], path: str) -> None:
    with pytest.raises(FileNotFoundError):
        kind(path, BASE, max_index_size=800)


def test_an_empty_file_is_an_empty_index(kind: type[MappedIndex], path: str) -> None:
    Path(path).touch()
    for writable in (False, True):
        with kind(path, BASE, writable=writable) as index:
            assert (index.entries, index.max_entries, index.is_full) == (0, 0, True)
            index.sanity_check()  # type: ignore[attr-defined]
            assert isinstance(index, OffsetIndex | TimeIndex)
            assert index.lookup(2**40).offset == BASE
            assert index.lookup_many(np.arange(3)).tolist() == [0 if kind is OffsetIndex else BASE] * 3


def test_an_empty_file_has_room_after_resize(kind: type[MappedIndex], path: str) -> None:
    Path(path).touch()
    with kind(path, BASE, writable=True) as index:
        assert index.resize(SLOTS * kind.ENTRY.itemsize)
        add(index, 1, 2)
    with kind(path, BASE) as index:
        assert steps(index) == [1, 2]


def test_entries_are_in_the_file_at_once(kind: type[MappedIndex], path: str) -> None:
    with create(kind, path) as index:
        add(index, 1, 2, 3)
        with kind(path, BASE) as reader:
            assert reader.entries == SLOTS
            assert steps(reader)[:4] == [1, 2, 3, 0]


def test_close_trims_and_reopening_counts_every_slot(kind: type[MappedIndex], path: str) -> None:
    with create(kind, path) as index:
        add(index, 1, 2, 3)
    assert os.path.getsize(path) == 3 * kind.ENTRY.itemsize
    with kind(path, BASE, max_index_size=800, writable=True) as index:
        assert (index.entries, index.max_entries, index.is_full) == (3, 3, True)
        assert steps(index) == [1, 2, 3]


def test_a_trimmed_index_can_grow_again(kind: type[MappedIndex], path: str) -> None:
    with create(kind, path) as index:
        add(index, 1, 2)
        assert index.trim()
        assert not index.trim()
        assert index.resize(SLOTS * kind.ENTRY.itemsize)
        add(index, 3)
        assert steps(index) == [1, 2, 3]


def test_resize_rounds_down_and_says_whether_it_changed_the_file(kind: type[MappedIndex], path: str) -> None:
    size = kind.ENTRY.itemsize
    with create(kind, path) as index:
        assert not index.resize(SLOTS * size)
        assert not index.resize(SLOTS * size + size - 1)
        assert index.resize(10 * size)
        assert os.path.getsize(path) == 10 * size
        assert index.resize(40 * size)
        assert index.max_entries == 40


def test_resize_refuses_to_lose_entries(kind: type[MappedIndex], path: str) -> None:
    with create(kind, path) as index:
        add(index, 1, 2, 3)
        with pytest.raises(ValueError, match="3 entries do not fit"):
            index.resize(2 * kind.ENTRY.itemsize)
        assert steps(index) == [1, 2, 3]


def test_truncated_entries_are_zeros_in_the_file(kind: type[MappedIndex], path: str) -> None:
    with create(kind, path) as index:
        add(index, 1, 2, 3)
        index.truncate_to(BASE + 2)
        assert steps(index) == [1]
        size = kind.ENTRY.itemsize
        assert Path(path).read_bytes()[size:] == bytes((SLOTS - 1) * size)


def test_truncate_makes_the_index_empty_and_ready(kind: type[MappedIndex], path: str) -> None:
    with create(kind, path) as index:
        add(index, 1, 2, 3)
        index.truncate()
        assert index.entries == 0
        add(index, 1)
        assert steps(index) == [1]


def test_a_trailing_part_of_an_entry_does_not_count(kind: type[MappedIndex], path: str) -> None:
    with create(kind, path) as index:
        add(index, 1, 2)
    with open(path, "ab") as file:
        file.write(b"\x01\x02\x03")
    with kind(path, BASE, writable=True) as index:
        assert steps(index) == [1, 2]
    assert os.path.getsize(path) == 2 * kind.ENTRY.itemsize


def test_flush_keeps_what_is_there(kind: type[MappedIndex], path: str) -> None:
    with create(kind, path) as index:
        add(index, 1)
        index.flush()
        assert steps(index) == [1]


@pytest.mark.parametrize("action", ["trim", "flush", "truncate", "resize"])
def test_an_index_opened_for_reading_refuses_to_change(kind: type[MappedIndex], path: str, action: str) -> None:
    with create(kind, path) as index:
        add(index, 1)
    Path(path).write_bytes(Path(path).read_bytes() + b"\0")
    before = Path(path).read_bytes()
    with kind(path, BASE) as index, pytest.raises(ValueError, match="not open for writing"):
        getattr(index, action)(*([800] if action == "resize" else []))
    assert Path(path).read_bytes() == before


def test_use_after_close_is_a_clear_error(kind: type[MappedIndex], path: str) -> None:
    index = create(kind, path)
    index.close()
    index.close()
    assert isinstance(index, OffsetIndex | TimeIndex)
    for use in (
        lambda: index.lookup(5),
        lambda: index.lookup_many(np.arange(3)),
        lambda: add(index, 1),
        lambda: index.entry(0),
        lambda: index.resize(80),
        lambda: index.sanity_check(),
        lambda: index.is_full,
    ):
        with pytest.raises(ValueError, match="the index is closed"):
            use()
    assert "closed" in repr(index)


def test_repr_names_the_file_and_the_number_of_entries(kind: type[MappedIndex], path: str) -> None:
    with create(kind, path) as index:
        add(index, 1, 2)
        assert repr(index) == f"{kind.__name__}({path!r}, base_offset=45, 2 entries)"


def test_lookups_go_on_while_another_thread_appends_grows_and_trims(kind: type[MappedIndex], path: str) -> None:
    wrong: list[int] = []
    done = threading.Event()
    with create(kind, path, slots=4) as index:
        assert isinstance(index, OffsetIndex | TimeIndex)
        add(index, 1)

        def look() -> None:
            while not done.is_set():
                known = index.entries
                found = index.lookup(2**31).offset - BASE
                if found < known:
                    wrong.append(found)

        readers = [threading.Thread(target=look) for _ in range(2)]
        for reader in readers:
            reader.start()
        for step in range(2, 3000):
            if index.entries == index.max_entries:
                index.resize((index.entries + 50) * kind.ENTRY.itemsize)
            add(index, step)
            if step % 7 == 0:
                index.trim()
        done.set()
        for reader in readers:
            reader.join()
    assert not wrong
