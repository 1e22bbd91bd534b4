"""LazyIndex: nothing happens before the first use, and then it happens once."""

from __future__ import annotations

import pickle
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from index_files import offset_entries

from distlog.core.indexes.lazy_index import LazyIndex
from distlog.core.indexes.offset_index import OffsetIndex


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A small index file."""
    file = tmp_path / "00000000000000000000.index"
    file.write_bytes(offset_entries(np.array([10, 20]), np.array([100, 200])))
    return str(file)


def test_nothing_is_opened_before_the_first_use(path: str) -> None:
    opened = []

    def open_index() -> OffsetIndex:
        opened.append(path)
        return OffsetIndex(path, 0)

    lazy = LazyIndex(open_index)
    assert opened == []
    assert lazy.get().lookup(15) == (10, 100)
    assert lazy.get() is lazy.get()
    assert opened == [path]


def test_many_threads_open_it_once(path: str) -> None:
    opened, found = [], []
    start = threading.Barrier(8)

    def open_index() -> OffsetIndex:
        opened.append(path)
        return OffsetIndex(path, 0)

    lazy = LazyIndex(open_index)

    def use() -> None:
        start.wait()
        found.append(lazy.get())

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert opened == [path]
    assert len(set(map(id, found))) == 1


def test_a_failure_comes_out_and_the_next_use_tries_again(tmp_path: Path, path: str) -> None:
    missing = tmp_path / "later.index"
    lazy = LazyIndex(partial(OffsetIndex, str(missing), 0))
    with pytest.raises(FileNotFoundError):
        lazy.get()
    missing.write_bytes(Path(path).read_bytes())
    assert lazy.get().entries == 2


def test_close_closes_what_was_opened_and_ends_its_use(path: str) -> None:
    lazy = LazyIndex(partial(OffsetIndex, path, 0))
    index = lazy.get()
    lazy.close()
    lazy.close()
    with pytest.raises(ValueError, match="the index is closed"):
        index.lookup(15)
    with pytest.raises(ValueError, match="the index is closed"):
        lazy.get()


def test_closing_an_unused_index_opens_nothing() -> None:
    # there is no such file: to open it is an error
    lazy: LazyIndex[OffsetIndex] = LazyIndex(partial(OffsetIndex, "/nowhere", 0))
    lazy.close()


def test_it_pickles_as_what_opens_it(path: str) -> None:
    lazy = LazyIndex(partial(OffsetIndex, path, 0))
    index = lazy.get()
    copy = pickle.loads(pickle.dumps(lazy))
    assert copy.get() is not index
    assert copy.get().lookup(25) == (20, 200)
