"""Lookups in a growing index equal lookups in the sealed index, and read from the end."""

from __future__ import annotations

import random

import numpy as np
import pytest
from index_files import offset_entries, time_entries

from distlog.core.format.indexes import (
    GrowingOffsetIndex,
    GrowingTimeIndex,
    OffsetPosition,
    TimestampOffset,
)

BASE = 1000
COUNT = 5000


class File:
    """Bytes that are read in parts; zeros follow them, as in a preallocated file."""

    def __init__(self, data: bytes) -> None:
        self.data, self.read_bytes = data + bytes(4096), 0

    def read(self, start: int, end: int) -> bytes:
        data = self.data[start:end]
        self.read_bytes += len(data)
        return data


@pytest.fixture(params=[0, 1, 2, 1023, 1024, 1025, COUNT])
def counted(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def test_offsets_and_positions_are_found_as_in_the_list_of_entries(counted: int) -> None:
    offsets, positions = np.arange(1, COUNT + 1) * 10, np.arange(1, COUNT + 1) * 700
    index = GrowingOffsetIndex(File(offset_entries(offsets, positions)).read, 8 * counted, BASE)
    entries = [
        OffsetPosition(BASE + int(offset), int(position)) for offset, position in zip(offsets, positions, strict=True)
    ]
    entries, chance = entries[:counted], random.Random(1)
    for _ in range(300):
        offset, position = BASE + chance.randrange(11 * COUNT), chance.randrange(770 * COUNT)
        below = [entry for entry in entries if entry.offset <= offset]
        assert index.lookup(offset) == (below[-1] if below else (BASE, 0))
        above = [entry for entry in entries if entry.offset >= offset]
        assert index.ceiling(offset) == (above[0] if above else None)
        floors = [entry for entry in entries if entry.position <= position]
        assert index.position_floor(position) == (floors[-1] if floors else (BASE, 0))


def test_times_are_found_as_in_the_list_of_entries(counted: int) -> None:
    times, offsets = np.arange(1, COUNT + 1) * 5, np.arange(COUNT) // 2
    index = GrowingTimeIndex(File(time_entries(times, offsets)).read, 12 * counted, BASE)
    entries = [TimestampOffset(int(time), BASE + int(offset)) for time, offset in zip(times, offsets, strict=True)]
    chance = random.Random(1)
    for _ in range(300):
        time = chance.randrange(6 * COUNT)
        below = [entry for entry in entries[:counted] if entry.timestamp <= time]
        floor = index.lookup(time)
        assert floor == below[-1] if below else floor.timestamp == -1


def test_entries_near_the_end_are_found_by_one_short_read() -> None:
    file = File(offset_entries(np.arange(1, COUNT + 1), np.arange(1, COUNT + 1)))
    assert GrowingOffsetIndex(file.read, 8 * COUNT, 0).lookup(COUNT - 5).position == COUNT - 5
    assert file.read_bytes == 8192


def test_a_truncated_file_returns_a_present_entry() -> None:
    file = File(b"")
    file.data = offset_entries(np.arange(1, 101), np.arange(1, 101))
    index = GrowingOffsetIndex(file.read, 8 * COUNT, 0)
    assert index.lookup(COUNT) == (100, 100)
    assert index.ceiling(COUNT) is None
