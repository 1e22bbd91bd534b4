"""OffsetIndex: the cases of Kafka's tests, files of a broker, and damaged bytes."""

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
from index_files import offset_entries

from distlog.core.errors import CorruptIndexError
from distlog.core.format.indexes import OFFSET_ENTRY, OffsetIndex

BASE = 45
MAX_INT = 2**31 - 1


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("index") / "scratch.index"


def index_of(file: Path, pairs: Sequence[tuple[int, int]]) -> OffsetIndex:
    file.write_bytes(offset_entries([offset - BASE for offset, _ in pairs], [position for _, position in pairs]))
    return OffsetIndex(str(file), BASE)


def check_entries(index: OffsetIndex, pairs: Sequence[tuple[int, int]]) -> None:
    assert index.entries == len(pairs)
    for previous, pair in pairwise([(index.base_offset, 0), *pairs]):
        assert index.lookup(pair[0]) == index.ceiling(pair[0]) == index.position_floor(pair[1]) == pair
        assert pair[0] == index.base_offset or index.lookup(pair[0] - 1) == previous


def test_entries_have_absolute_offsets_and_the_first_may_be_the_base_offset(scratch: Path) -> None:
    pairs = [(BASE, 0), (BASE + 1, 10), (BASE + 2, 20)]
    index = index_of(scratch, pairs)
    check_entries(index, pairs)
    index.sanity_check()


def test_an_entry_is_two_big_endian_integers(scratch: Path) -> None:
    scratch.write_bytes(bytes.fromhex("00000005000004d2"))
    check_entries(OffsetIndex(str(scratch), BASE), [(BASE + 5, 1234)])
    assert OFFSET_ENTRY.itemsize == 8


def test_the_largest_numbers_fit(scratch: Path) -> None:
    index = index_of(scratch, [(BASE + MAX_INT, MAX_INT)])
    index.sanity_check()
    assert index.lookup(2**62) == (BASE + MAX_INT, MAX_INT)
    assert index.lookup(BASE + MAX_INT - 1) == (BASE, 0)


PAIRS = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 500)), max_size=80).map(
    lambda steps: np.cumsum(np.array(steps, np.int64).reshape(-1, 2), axis=0)
)


@settings(deadline=None)
@given(PAIRS, st.lists(st.integers(-10, 4100), max_size=20), st.integers(0, 41000))
def test_searches_agree_with_a_sorted_array(
    scratch: Path, pairs: np.ndarray, targets: list[int], position: int
) -> None:
    scratch.write_bytes(offset_entries(pairs[:, 0], pairs[:, 1]))
    index = OffsetIndex(str(scratch), BASE)
    index.sanity_check(int(pairs[-1, 1]) + 1 if len(pairs) else None)
    table = [(BASE + int(offset), int(position)) for offset, position in pairs]
    floors = [max([pair for pair in table if pair[0] <= target], default=(BASE, 0)) for target in targets]
    assert [index.lookup(target) for target in targets] == floors
    assert [index.ceiling(target) for target in targets] == [
        min([pair for pair in table if pair[0] >= target], default=None) for target in targets
    ]
    assert index.position_floor(position) == max([pair for pair in table if pair[1] <= position], default=(BASE, 0))
    check_entries(index, table)


def dumped(path: Path) -> list[tuple[int, int]]:
    text = gzip.decompress(path.read_bytes()).decode()
    return [(int(a), int(b)) for a, b in re.findall(r"offset: (\d+) position: (\d+)", text)]


DUMPS = sorted((DATA / "kafka-4.1").glob("dump.*.index.txt.gz"))
BROKER_FILES = sorted(DATA.glob("kafka-*/*/*/*.index"))


@pytest.mark.parametrize("dump", DUMPS, ids=lambda dump: dump.name)
def test_entries_are_what_kafkas_dump_tool_prints(dump: Path) -> None:
    _, partition, stem, *_ = dump.name.split(".")
    index = OffsetIndex(str(DATA / "kafka-4.1" / "first" / partition / f"{stem}.index"), int(stem))
    check_entries(index, dumped(dump))
    assert index.entries > 5


@pytest.mark.parametrize("file", BROKER_FILES, ids=lambda file: f"{file.parts[-3]}-{file.parts[-2]}-{file.stem}")
def test_a_brokers_file_is_sane_unless_a_crash_left_it_untrimmed(file: Path) -> None:
    index = OffsetIndex(str(file), int(file.stem))
    log_bytes = file.with_suffix(".log").stat().st_size
    if file.stat().st_size < 65536:
        index.sanity_check(log_bytes)
    else:
        assert "crashed" in file.parts
        with pytest.raises(CorruptIndexError, match="zeros after a crash"):
            index.sanity_check(log_bytes)


def test_the_golden_files_hold_dumps_and_untrimmed_files() -> None:
    assert len(DUMPS) == 4
    assert [file.stat().st_size for file in BROKER_FILES if "crashed" in file.parts].count(65536) >= 1
    assert len(BROKER_FILES) > 40


def test_a_length_with_a_partial_entry_is_corrupt(scratch: Path) -> None:
    scratch.write_bytes(offset_entries([1], [10]) + b"\0\0\0")
    index = OffsetIndex(str(scratch), BASE)
    with pytest.raises(CorruptIndexError, match="multiple of 8") as caught:
        index.sanity_check()
    assert caught.value.details == {"file": str(scratch), "position": 8}
    check_entries(index_of(scratch, [(BASE + 1, 10)]), [(BASE + 1, 10)])


@pytest.mark.parametrize(
    ("values", "log_bytes", "position"),
    [
        ([(1, 10), (1, 20)], None, 8),
        ([(2, 10), (1, 20)], None, 8),
        ([(1, 10), (2, 10)], None, 8),
        ([(1, 10), (2, 9)], None, 8),
        ([(1, 10), (2, 20)], 20, 8),
        ([(1, 10), (2, 20)], 0, 0),
        ([(-1, 10), (2, 20)], None, 0),
        ([(1, -1), (2, 20)], None, 0),
        ([(1, 10), (0, 0)], None, 8),
    ],
)
def test_a_sanity_check_names_the_first_bad_entry(
    scratch: Path, values: list[tuple[int, int]], log_bytes: int | None, position: int
) -> None:
    scratch.write_bytes(np.array(values, ">i4").tobytes())
    with pytest.raises(CorruptIndexError, match="out of order or range") as caught:
        OffsetIndex(str(scratch), BASE).sanity_check(log_bytes)
    assert caught.value.details == {"file": str(scratch), "position": position}


def test_positions_up_to_the_last_byte_of_the_log_are_sane(scratch: Path) -> None:
    scratch.write_bytes(offset_entries(np.array([1, 2]), np.array([10, 20])))
    OffsetIndex(str(scratch), BASE).sanity_check(21)


@pytest.mark.parametrize("values", [[(1, -5)], [(-2, 5)]])
def test_a_negative_number_is_corrupt_when_a_lookup_meets_it(scratch: Path, values: list[tuple[int, int]]) -> None:
    scratch.write_bytes(np.array(values, ">i4").tobytes())
    index = OffsetIndex(str(scratch), BASE)
    for look in (lambda: index.lookup(BASE + 1), lambda: index.ceiling(BASE - 5)):
        with pytest.raises(CorruptIndexError, match="negative") as caught:
            look()
        assert caught.value.details == {"file": str(scratch), "position": 0}


def check_answers(index: OffsetIndex, targets: list[int]) -> None:
    """Check that each lookup returns an entry on the right side of its target, or raises CorruptIndexError."""
    for target in targets:
        try:
            floor = index.lookup(target)
            assert floor == (BASE, 0) or (BASE <= floor.offset <= target and floor.position >= 0)
        except CorruptIndexError:
            pass
        try:
            ceiling = index.ceiling(target)
            assert ceiling is None or ceiling.offset >= target
        except CorruptIndexError:
            pass
        try:
            floor = index.position_floor(target)
            assert floor == (BASE, 0) or (floor.offset >= BASE and 0 <= floor.position <= target)
        except CorruptIndexError:
            pass


def test_every_flipped_bit_gives_a_floor_or_a_corrupt_index_error(scratch: Path) -> None:
    good = offset_entries(np.arange(1, 13) * 40, np.arange(1, 13) * 4096)
    for bit in range(len(good) * 8):
        data = bytearray(good)
        data[bit // 8] ^= 1 << bit % 8
        scratch.write_bytes(data)
        check_answers(OffsetIndex(str(scratch), BASE), [BASE, BASE + 41, BASE + 240, BASE + 5000, 4096])
