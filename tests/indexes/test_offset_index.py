"""OffsetIndex: what Kafka's own tests pin, files that a broker wrote, and bytes that nobody should have written."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from golden import DATA
from hypothesis import given, settings
from hypothesis import strategies as st

from distlog.core.errors import CorruptIndexError
from distlog.core.indexes.offset_index import OffsetIndex, OffsetPosition, encode_offset_entries

BASE = 45
SLOTS = 30
MAX_INT = 2**31 - 1


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Where the index goes."""
    return str(tmp_path / "00000000000000000045.index")


@pytest.fixture
def index(path: str) -> Iterator[OffsetIndex]:
    """A new index with room for 30 entries."""
    with OffsetIndex(path, BASE, max_index_size=SLOTS * 8, writable=True) as index:
        yield index


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One file that the property tests write over and over."""
    return tmp_path_factory.mktemp("index") / "scratch.index"


def entries(index: OffsetIndex) -> list[tuple[int, int]]:
    """All entries."""
    return [tuple(index.entry(slot)) for slot in range(index.entries)]


# What Kafka's OffsetIndexTest pins.


def test_lookups_in_an_empty_index_give_the_base_offset_at_the_start(index: OffsetIndex) -> None:
    assert index.lookup(92) == OffsetPosition(BASE, 0)
    assert index.last_offset == BASE


def test_every_appended_offset_is_found_and_others_give_the_floor(index: OffsetIndex) -> None:
    pairs = [(BASE + 3 * step + 2, 100 * step) for step in range(1, SLOTS + 1)]
    for pair in pairs:
        index.append(*pair)
    for offset in range(BASE - 2, pairs[-1][0] + 5):
        below = [pair for pair in pairs if pair[0] <= offset]
        assert index.lookup(offset) == (below[-1] if below else (BASE, 0))


def test_the_extremes_of_a_full_index_are_found(index: OffsetIndex) -> None:
    for step in range(SLOTS):
        index.append(BASE + step + 1, step)
    assert index.is_full
    assert index.lookup(BASE) == (BASE, 0)
    assert index.lookup(BASE + SLOTS) == (BASE + SLOTS, SLOTS - 1)


def test_entries_have_absolute_offsets_and_the_first_may_be_the_base_offset(index: OffsetIndex) -> None:
    pairs = [(BASE, 0), (BASE + 1, 10), (BASE + 2, 20)]
    for pair in pairs:
        index.append(*pair)
    assert entries(index) == pairs


@pytest.mark.parametrize("slot", [0, 1, -1])
def test_an_entry_that_is_not_there_is_an_error(index: OffsetIndex, slot: int) -> None:
    with pytest.raises(ValueError, match="entr"):
        index.entry(slot)


def test_a_full_index_takes_no_more(index: OffsetIndex) -> None:
    for step in range(SLOTS):
        index.append(BASE + step, step)
    with pytest.raises(ValueError, match="full with 30 entries"):
        index.append(BASE + SLOTS, SLOTS)
    assert index.entries == SLOTS


@pytest.mark.parametrize("offset", [50, 51])
def test_an_offset_must_be_above_the_last_one(index: OffsetIndex, offset: int) -> None:
    index.append(51, 0)
    with pytest.raises(ValueError, match="not above the last one, 51"):
        index.append(offset, 1)
    assert entries(index) == [(51, 0)]


def test_a_reopened_index_is_trimmed_and_full(index: OffsetIndex, path: str) -> None:
    index.append(51, 0)
    index.append(52, 1)
    index.close()
    with OffsetIndex(path, BASE, writable=True) as again:
        assert (again.entries, again.last_offset) == (2, 52)
        assert [again.lookup(offset) for offset in (50, 51, 52, 60)] == [(BASE, 0), (51, 0), (52, 1), (52, 1)]
        with pytest.raises(ValueError, match="full with 2 entries"):
            again.append(53, 2)


def test_truncating_drops_an_entry_and_all_above_it(index: OffsetIndex) -> None:
    def refill(*offsets: int) -> None:
        for offset in offsets:
            index.append(BASE + offset, offset)

    refill(*range(1, 10))
    index.truncate_to(BASE + 12)
    assert (index.entries, index.last_offset) == (9, BASE + 9)
    refill(10)
    index.truncate_to(BASE + 10)
    assert (index.entries, index.last_offset) == (9, BASE + 9)
    refill(10)
    index.truncate_to(BASE + 9)
    assert index.last_offset == BASE + 8
    refill(9)
    index.truncate_to(BASE + 5)
    assert (index.entries, index.last_offset) == (4, BASE + 4)
    refill(5)
    index.truncate_to(BASE)
    assert (index.entries, index.last_offset) == (0, BASE)
    refill(1)
    index.truncate()
    assert index.entries == 0
    refill(0)


def test_a_single_entry_at_the_base_offset_is_sane(index: OffsetIndex) -> None:
    index.sanity_check()
    index.append(BASE, 0)
    index.sanity_check()


# Limits and layout.


def test_an_entry_is_two_big_endian_integers(index: OffsetIndex, path: str) -> None:
    index.append(BASE + 5, 1234)
    assert Path(path).read_bytes()[:8] == bytes.fromhex("00000005000004d2")


@pytest.mark.parametrize(
    ("offset", "position"), [(BASE + MAX_INT + 1, 0), (BASE - 1, 0), (BASE, MAX_INT + 1), (BASE, -1)]
)
def test_a_number_that_does_not_fit_is_refused_before_anything_is_written(
    index: OffsetIndex, path: str, offset: int, position: int
) -> None:
    with pytest.raises(OverflowError, match="between 0 and 2147483647"):
        index.append(offset, position)
    assert index.entries == 0
    assert Path(path).read_bytes() == bytes(SLOTS * 8)


def test_the_largest_numbers_fit(index: OffsetIndex) -> None:
    index.append(BASE + MAX_INT, MAX_INT)
    assert index.lookup(2**62) == (BASE + MAX_INT, MAX_INT)
    assert index.lookup(BASE + MAX_INT - 1) == (BASE, 0)


def test_ceiling_and_position_floor_bracket_a_target(index: OffsetIndex) -> None:
    assert index.ceiling(0) is None
    assert index.position_floor(99) == (BASE, 0)
    for step in range(1, 6):
        index.append(BASE + 10 * step, 100 * step)
    assert [index.ceiling(BASE + offset) for offset in (0, 10, 11, 50)] == [
        (55, 100),
        (55, 100),
        (65, 200),
        (95, 500),
    ]
    assert index.ceiling(BASE + 51) is None
    assert [index.position_floor(position) for position in (0, 99, 100, 499, 10**10)] == [
        (BASE, 0),
        (BASE, 0),
        (55, 100),
        (85, 400),
        (95, 500),
    ]


# A model, and many targets at once.

PAIRS = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 500)), max_size=80).map(
    lambda steps: np.cumsum(np.array(steps, np.int64).reshape(-1, 2), axis=0)
)


@settings(deadline=None)
@given(PAIRS, st.lists(st.integers(-10, 4100), max_size=20), st.integers(0, 41000))
def test_searches_agree_with_a_sorted_array(
    scratch: Path, pairs: np.ndarray, targets: list[int], position: int
) -> None:
    scratch.write_bytes(encode_offset_entries(pairs[:, 0], pairs[:, 1]))
    index = OffsetIndex(str(scratch), BASE)
    index.sanity_check(int(pairs[-1, 1]) + 1 if len(pairs) else None)
    table = [(BASE + int(offset), int(place)) for offset, place in pairs]
    floors = [max([pair for pair in table if pair[0] <= target], default=(BASE, 0)) for target in targets]
    assert [index.lookup(target) for target in targets] == floors
    assert index.lookup_many(np.array(targets, np.int64)).tolist() == [place for _, place in floors]
    assert [index.ceiling(target) for target in targets] == [
        min([pair for pair in table if pair[0] >= target], default=None) for target in targets
    ]
    assert index.position_floor(position) == max([pair for pair in table if pair[1] <= position], default=(BASE, 0))
    assert list(zip(*index.to_arrays(), strict=True)) == table


def test_lookup_many_takes_any_integers(scratch: Path) -> None:
    scratch.write_bytes(encode_offset_entries(np.arange(1, 100) * 10, np.arange(1, 100) * 7))
    index = OffsetIndex(str(scratch), BASE)
    offsets = np.arange(40, 200, dtype=np.int32)
    expected = [index.lookup(int(offset)).position for offset in offsets]
    assert index.lookup_many(offsets).tolist() == expected  # type: ignore[arg-type]
    assert index.lookup_many(offsets.astype(np.int64)[::2]).tolist() == expected[::2]


def test_encoded_entries_are_what_append_writes(index: OffsetIndex, path: str) -> None:
    offsets, positions = np.array([3, 9, MAX_INT]), np.array([0, 61, MAX_INT])
    for offset, position in zip(offsets.tolist(), positions.tolist(), strict=True):
        index.append(BASE + offset, position)
    index.trim()
    assert encode_offset_entries(offsets, positions) == Path(path).read_bytes()
    assert encode_offset_entries(np.empty(0, np.int64), np.empty(0, np.int64)) == b""


@pytest.mark.parametrize("bad", [[-1, 5], [5, MAX_INT + 1]])
def test_encoding_refuses_numbers_that_do_not_fit(bad: list[int]) -> None:
    fine = np.array([1, 2])
    for pair in ((np.array(bad), fine), (fine, np.array(bad))):
        with pytest.raises(OverflowError, match="between 0 and 2147483647"):
            encode_offset_entries(*pair)


@pytest.mark.parametrize("bad", [[5, 5], [5, 4]])
def test_encoding_refuses_numbers_that_do_not_increase(bad: list[int]) -> None:
    fine = np.array([1, 2])
    for pair in ((np.array(bad), fine), (fine, np.array(bad))):
        with pytest.raises(ValueError, match="must increase"):
            encode_offset_entries(*pair)


# Files that a broker wrote.


def dumped(path: Path) -> list[tuple[int, int]]:
    """The pairs that Kafka's dump tool printed."""
    text = gzip.decompress(path.read_bytes()).decode()
    return [(int(a), int(b)) for a, b in re.findall(r"offset: (\d+) position: (\d+)", text)]


DUMPS = sorted((DATA / "kafka-4.1").glob("dump.*.index.txt.gz"))
BROKER_FILES = sorted(DATA.glob("kafka-*/*/*/*.index"))


@pytest.mark.parametrize("dump", DUMPS, ids=lambda dump: dump.name)
def test_entries_are_what_kafkas_dump_tool_prints(dump: Path) -> None:
    _, partition, stem, *_ = dump.name.split(".")
    index = OffsetIndex(str(DATA / "kafka-4.1" / "first" / partition / f"{stem}.index"), int(stem))
    assert entries(index) == dumped(dump)
    assert len(entries(index)) > 5


@pytest.mark.parametrize("file", BROKER_FILES, ids=lambda file: f"{file.parts[-3]}-{file.parts[-2]}-{file.stem}")
def test_a_brokers_file_is_sane_unless_a_crash_left_it_untrimmed(file: Path) -> None:
    index = OffsetIndex(str(file), int(file.stem))
    log_bytes = file.with_suffix(".log").stat().st_size
    if file.stat().st_size < 65536:
        index.sanity_check(log_bytes)
    else:
        assert "crashed" in file.parts
        with pytest.raises(CorruptIndexError, match="not trimmed"):
            index.sanity_check(log_bytes)


def test_the_golden_files_hold_dumps_and_untrimmed_files() -> None:
    assert len(DUMPS) == 4
    assert [file.stat().st_size for file in BROKER_FILES if "crashed" in file.parts].count(65536) >= 1
    assert len(BROKER_FILES) > 40


# Bytes that nobody should have written.


def test_a_length_that_is_no_multiple_of_the_entry_size_is_corrupt(index: OffsetIndex, path: str) -> None:
    index.append(BASE + 1, 10)
    index.close()
    Path(path).write_bytes(Path(path).read_bytes() + b"\0\0\0")
    with OffsetIndex(path, BASE) as again, pytest.raises(CorruptIndexError, match="multiple of 8") as caught:
        again.sanity_check()
    assert caught.value.details["file"] == path


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
    scratch.write_bytes(encode_offset_entries(np.array([1, 2]), np.array([10, 20])))
    OffsetIndex(str(scratch), BASE).sanity_check(21)


@pytest.mark.parametrize("values", [[(1, -5)], [(-2, 5)]])
def test_a_negative_number_is_corrupt_when_a_lookup_meets_it(scratch: Path, values: list[tuple[int, int]]) -> None:
    scratch.write_bytes(np.array(values, ">i4").tobytes())
    index = OffsetIndex(str(scratch), BASE)
    for look in (lambda: index.lookup(BASE + 1), lambda: index.entry(0)):
        with pytest.raises(CorruptIndexError, match="negative") as caught:
            look()
        assert caught.value.details == {"file": str(scratch), "position": 0}
    if values[0][1] < 0:
        with pytest.raises(CorruptIndexError, match="negative position"):
            index.lookup_many(np.array([BASE, BASE + 1]))


def check_answers(index: OffsetIndex, targets: list[int]) -> None:
    """Every lookup gives an entry of the file on the right side of its target, or CorruptIndexError."""
    for target in targets:
        try:
            floor = index.lookup(target)
            assert floor == (BASE, 0) or (BASE <= floor.offset <= target and floor.position >= 0)
            assert index.lookup_many(np.array([target])).tolist() == [floor.position]
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


@settings(deadline=None)
@given(st.binary(max_size=300), st.lists(st.integers(-(2**40), 2**40), min_size=1, max_size=5))
def test_random_bytes_give_a_floor_or_a_corrupt_index_error(scratch: Path, raw: bytes, targets: list[int]) -> None:
    scratch.write_bytes(raw)
    check_answers(OffsetIndex(str(scratch), BASE), targets)


def test_every_flipped_bit_gives_a_floor_or_a_corrupt_index_error(scratch: Path) -> None:
    good = encode_offset_entries(np.arange(1, 13) * 40, np.arange(1, 13) * 4096)
    for bit in range(len(good) * 8):
        data = bytearray(good)
        data[bit // 8] ^= 1 << bit % 8
        scratch.write_bytes(data)
        check_answers(OffsetIndex(str(scratch), BASE), [BASE, BASE + 41, BASE + 240, BASE + 5000, 4096])
