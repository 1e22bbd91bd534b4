"""The file of a sealed index, offset or time: mapped on open, and only read."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from index_files import offset_entries, time_entries

from distlog.core.format.indexes import OffsetIndex, TimeIndex

BASE = 45
Kind = type[OffsetIndex] | type[TimeIndex]


@pytest.fixture(params=[OffsetIndex, TimeIndex])
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "00000000000000000045.index"


def entries(kind: Kind, *steps: int) -> bytes:
    numbers = np.array(steps, np.int64)
    if kind is OffsetIndex:
        return offset_entries(numbers, 10 * numbers)
    return time_entries(10 * numbers, numbers)


def lookup(index: OffsetIndex | TimeIndex, step: int) -> int:
    target = BASE + step if isinstance(index, OffsetIndex) else 10 * step
    return index.lookup(target).offset - BASE


def test_a_missing_file_cannot_be_read(kind: Kind, path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        kind(str(path), BASE)
    assert not path.exists()


def test_an_empty_file_is_an_empty_index(kind: Kind, path: Path) -> None:
    path.touch()
    index = kind(str(path), BASE)
    assert index.entries == 0
    index.sanity_check()
    assert index.lookup(2**40).offset == BASE


def test_every_slot_counts_also_those_that_a_crash_left_empty(kind: Kind, path: Path) -> None:
    path.write_bytes(entries(kind, 1, 2, 3) + bytes(27 * kind.ENTRY.itemsize))
    index = kind(str(path), BASE)
    assert index.entries == 30


def test_a_trailing_part_of_an_entry_does_not_count(kind: Kind, path: Path) -> None:
    path.write_bytes(entries(kind, 1, 2) + b"\1\2\3")
    index = kind(str(path), BASE)
    assert index.entries == 2
    assert [lookup(index, step) for step in range(4)] == [0, 1, 2, 2]


def test_nothing_changes_the_file(kind: Kind, path: Path) -> None:
    path.write_bytes(entries(kind, 1, 2) + b"\0")
    content = path.read_bytes()
    index = kind(str(path), BASE)
    lookup(index, 1)
    assert path.read_bytes() == content


def test_no_descriptor_stays_open_while_it_is_mapped(kind: Kind, path: Path) -> None:
    path.write_bytes(entries(kind, 1, 2))
    count = len(os.listdir("/proc/self/fd"))
    index = kind(str(path), BASE)
    assert len(os.listdir("/proc/self/fd")) == count
    path.unlink()
    assert lookup(index, 2) == 2
