"""Lookups in a growing index use reads, so that a truncation never fails them."""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path

import numpy as np
import pytest
from active_segments import FailingCalls
from index_files import offset_entries

from distlog.core.format.indexes import OFFSET_ENTRY
from distlog.core.log.partition_files import ActiveIndex

COUNT = 10_000


@pytest.fixture
def index(tmp_path: Path) -> ActiveIndex:
    active_index = ActiveIndex(str(tmp_path / "index"), OFFSET_ENTRY, 100_003)
    active_index.create()
    numbers = np.arange(1, COUNT + 1)
    active_index.file.write(offset_entries(3 * numbers, 5 * numbers), 0)
    return active_index


@pytest.mark.parametrize("count", [0, 1, 2, 1023, 1024, 1025, 3000, COUNT])
def test_the_floor_is_found_wherever_it_is(index: ActiveIndex, count: int) -> None:
    keys = list(range(3, 3 * count + 1, 3))
    for target in {-1, 0, 2, 3, 4, 3 * count - 1, 3 * count, 3 * count + 1, *range(5, 3 * count, 997)}:
        slot = bisect_right(keys, target)
        assert index.floor(target, 8 * count) == ((3 * slot, 5 * slot) if slot else (-1, 0))


def test_cut_entries_are_replaced_by_present_ones(index: ActiveIndex) -> None:
    index.trim(800)
    assert index.floor(3 * COUNT, 8 * COUNT) == (300, 500)
    index.trim(0)
    assert index.floor(3 * COUNT, 8 * COUNT) == (-1, 0)


def test_a_file_is_preallocated_in_whole_entries_and_trimmed(index: ActiveIndex) -> None:
    assert index.file.checked_size() == 100_000
    index.trim(16)
    assert index.file.checked_size() == 16
    index.clear(8)
    assert index.file.read(0, 100).tobytes() == offset_entries(np.array([3]), np.array([5])).ljust(100, b"\0")


def test_an_index_without_a_file_is_empty_and_stays_so(tmp_path: Path) -> None:
    calls = FailingCalls()
    index = ActiveIndex(str(tmp_path / "txnindex"), OFFSET_ENTRY, 0, calls)
    index.clear(0)
    index.trim(0)
    index.file.sync()
    assert (index.floor(5, 0), calls.calls_made, list(tmp_path.iterdir())) == ((-1, 0), [], [])


@pytest.mark.parametrize(("key", "position"), [(-5, 0), (0, -5), (-(2**31), -1)])
def test_an_impossible_entry_is_ignored(index: ActiveIndex, key: int, position: int) -> None:
    index.file.write(np.array([key, position], ">i4").tobytes(), 0)
    assert index.floor(2, 8) == (-1, 0)
