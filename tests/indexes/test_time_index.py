"""TimeIndex: the cases of Kafka's tests, files of a broker, and damaged bytes."""

from __future__ import annotations

import gzip
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from golden import DATA
from hypothesis import given, settings
from hypothesis import strategies as st
from index_files import time_entries

from distlog.core.errors import CorruptIndexError
from distlog.core.format.indexes import TimeIndex

BASE = 45
SLOTS = 30
MAX_INT = 2**31 - 1
MAX_LONG = 2**63 - 1


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("index") / "scratch.timeindex"


def index_of(file: Path, pairs: Sequence[tuple[int, int]]) -> TimeIndex:
    timestamps, offsets = np.array(pairs, np.int64).reshape(-1, 2).T
    file.write_bytes(time_entries(timestamps, offsets - BASE))
    return TimeIndex(str(file), BASE)


def check_entries(index: TimeIndex, pairs: Sequence[tuple[int, int]]) -> None:
    assert index.entries == len(pairs)
    for previous, pair in pairwise([(-1, index.base_offset), *pairs]):
        assert index.lookup(pair[0]) == pair
        assert index.lookup(pair[0] - 1) == previous


#: (10, 55), (20, 65), ... as in Kafka's test.
TENS = [(10 * step, BASE + 10 * step) for step in range(1, SLOTS)]


def test_five_entries_and_none_are_sane(scratch: Path) -> None:
    index_of(scratch, []).sanity_check()
    index_of(scratch, TENS[:5]).sanity_check()


@pytest.mark.parametrize(
    ("values", "position"),
    [
        ([(10, -1)], 0),
        ([(10, 1), (20, 2), (9, 3)], 24),
        ([(10, 1), (20, 2), (20, 3)], 24),
        ([(10, 1), (20, 2), (30, 1)], 24),
        ([(-1, 1)], 0),
        ([(10, 1), (0, 0)], 12),
    ],
)
def test_a_sanity_check_names_the_first_bad_entry(
    scratch: Path, values: list[tuple[int, int]], position: int
) -> None:
    scratch.write_bytes(np.array(values, TimeIndex.ENTRY).tobytes())
    with pytest.raises(CorruptIndexError, match="out of order or range") as caught:
        TimeIndex(str(scratch), BASE).sanity_check()
    assert caught.value.details == {"file": str(scratch), "position": position}


def test_a_length_with_a_partial_entry_is_corrupt(scratch: Path) -> None:
    scratch.write_bytes(bytes(13))
    with pytest.raises(CorruptIndexError, match="multiple of 12"):
        TimeIndex(str(scratch), BASE).sanity_check()


def test_an_entry_is_a_long_and_an_integer_big_endian(scratch: Path) -> None:
    scratch.write_bytes(bytes.fromhex("0000018bcfe5680000000005"))
    check_entries(TimeIndex(str(scratch), BASE), [(1_700_000_000_000, BASE + 5)])
    assert time_entries(np.array([1_700_000_000_000]), np.array([5])) == scratch.read_bytes()
    assert TimeIndex.ENTRY.itemsize == 12


PAIRS = st.lists(st.tuples(st.integers(1, 10**12), st.integers(0, 500)), max_size=80).map(
    lambda steps: np.cumsum(np.array(steps, np.int64).reshape(-1, 2), axis=0)
)


@settings(deadline=None)
@given(PAIRS, st.lists(st.integers(-10, 10**13), max_size=20))
def test_searches_agree_with_a_sorted_array(scratch: Path, pairs: np.ndarray, targets: list[int]) -> None:
    table = [(int(timestamp), BASE + int(offset)) for timestamp, offset in pairs]
    index = index_of(scratch, table)
    index.sanity_check(table[-1][1] + 1 if table else None)
    floors = [max([pair for pair in table if pair[0] <= target], default=(-1, BASE)) for target in targets]
    assert [index.lookup(target) for target in targets] == floors
    check_entries(index, table)


def test_the_largest_numbers_fit(scratch: Path) -> None:
    pairs = [(0, BASE + 3), (9, BASE + 3), (MAX_LONG, BASE + MAX_INT)]
    check_entries(index_of(scratch, pairs), pairs)


def dumped(path: Path) -> list[tuple[int, int]]:
    text = gzip.decompress(path.read_bytes()).decode()
    return [(int(a), int(b)) for a, b in re.findall(r"timestamp: (\d+) offset: (\d+)", text)]


DUMPS = sorted((DATA / "kafka-4.1").glob("dump.*.timeindex.txt.gz"))
BROKER_FILES = sorted(DATA.glob("kafka-*/*/*/*.timeindex"))


@pytest.mark.parametrize("dump", DUMPS, ids=lambda dump: dump.name)
def test_entries_are_what_kafkas_dump_tool_prints(dump: Path) -> None:
    _, partition, stem, *_ = dump.name.split(".")
    index = TimeIndex(str(DATA / "kafka-4.1" / "first" / partition / f"{stem}.timeindex"), int(stem))
    check_entries(index, dumped(dump))
    assert index.entries > 5


@pytest.mark.parametrize("file", BROKER_FILES, ids=lambda file: f"{file.parts[-3]}-{file.parts[-2]}-{file.stem}")
def test_a_brokers_file_is_sane_unless_a_crash_left_it_untrimmed(file: Path) -> None:
    index = TimeIndex(str(file), int(file.stem))
    if file.stat().st_size < 65532:
        index.sanity_check()
    else:
        assert "crashed" in file.parts
        with pytest.raises(CorruptIndexError, match="zeros after a crash"):
            index.sanity_check()


def test_an_offset_at_or_above_the_end_of_the_segment_is_corrupt(scratch: Path) -> None:
    scratch.write_bytes(time_entries(np.array([1, 2]), np.array([10, 20])))
    index = TimeIndex(str(scratch), BASE)
    index.sanity_check(BASE + 21)
    with pytest.raises(CorruptIndexError, match="out of order or range"):
        index.sanity_check(BASE + 20)


@pytest.mark.parametrize("values", [[(1, -5)], [(-2, 5)]])
def test_a_negative_number_is_corrupt_when_a_lookup_meets_it(scratch: Path, values: list[tuple[int, int]]) -> None:
    scratch.write_bytes(np.array(values, TimeIndex.ENTRY).tobytes())
    index = TimeIndex(str(scratch), BASE)
    with pytest.raises(CorruptIndexError, match="negative") as caught:
        index.lookup(1)
    assert caught.value.details == {"file": str(scratch), "position": 0}


def check_answers(index: TimeIndex, targets: list[int]) -> None:
    """Check that each lookup returns an entry that is not later than its target, or raises CorruptIndexError."""
    for target in targets:
        try:
            floor = index.lookup(target)
        except CorruptIndexError:
            continue
        assert floor == (-1, BASE) or (0 <= floor.timestamp <= target and floor.offset >= BASE)


def test_every_flipped_bit_gives_a_floor_or_a_corrupt_index_error(scratch: Path) -> None:
    good = time_entries(np.arange(1, 13) * 1000 + 1_700_000_000_000, np.arange(1, 13) * 40)
    for bit in range(len(good) * 8):
        data = bytearray(good)
        data[bit // 8] ^= 1 << bit % 8
        scratch.write_bytes(data)
        check_answers(TimeIndex(str(scratch), BASE), [0, 1_700_000_004_500, 1_700_000_012_000, MAX_LONG])
