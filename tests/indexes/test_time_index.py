"""TimeIndex: what Kafka's own tests pin, files that a broker wrote, and bytes that nobody should have written."""

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
from distlog.core.indexes.time_index import TimeIndex, TimestampOffset, encode_time_entries

BASE = 45
SLOTS = 30
MAX_INT = 2**31 - 1
MAX_LONG = 2**63 - 1


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Where the index goes."""
    return str(tmp_path / "00000000000000000045.timeindex")


@pytest.fixture
def index(path: str) -> Iterator[TimeIndex]:
    """A new index with room for 30 entries."""
    with TimeIndex(path, BASE, max_index_size=SLOTS * 12, writable=True) as index:
        yield index


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One file that the property tests write over and over."""
    return tmp_path_factory.mktemp("index") / "scratch.timeindex"


def fill(index: TimeIndex, entries: int) -> None:
    """Entries (10, 55), (20, 65), ... as in Kafka's test."""
    for step in range(1, entries + 1):
        index.maybe_append(10 * step, BASE + 10 * step)


def entries(index: TimeIndex) -> list[tuple[int, int]]:
    """All entries."""
    return [tuple(index.entry(slot)) for slot in range(index.entries)]


# What Kafka's TimeIndexTest pins.


def test_a_lookup_gives_the_last_entry_that_is_not_later(index: TimeIndex) -> None:
    assert index.lookup(100) == TimestampOffset(-1, BASE)
    fill(index, 29)
    assert index.lookup(9) == (-1, BASE)
    assert index.lookup(25) == (20, 65)
    assert index.lookup(30) == (30, 75)


def test_entries_are_read_back_in_order(index: TimeIndex) -> None:
    fill(index, 29)
    assert entries(index) == [(10 * step, BASE + 10 * step) for step in range(1, 30)]


@pytest.mark.parametrize("slot", [0, 1, -1])
def test_an_entry_that_is_not_there_is_an_error(index: TimeIndex, slot: int) -> None:
    with pytest.raises(ValueError, match="entr"):
        index.entry(slot)


def test_truncating_at_the_first_entry_leaves_none(index: TimeIndex) -> None:
    fill(index, 29)
    index.truncate()
    assert index.entries == 0
    fill(index, 29)
    index.truncate_to(10 + BASE)
    assert index.entries == 0


def test_one_slot_is_kept_for_the_last_entry(index: TimeIndex) -> None:
    fill(index, SLOTS - 1)
    with pytest.raises(ValueError, match="full with 29 entries"):
        index.maybe_append(10_000, 1000)
    with pytest.raises(ValueError, match="below the last entry"):
        index.maybe_append(10_000, 20, skip_full_check=True)
    assert index.maybe_append(10_000, 1000, skip_full_check=True)
    assert index.last_entry == (10_000, 1000)
    with pytest.raises(ValueError, match="full with 30 entries"):
        index.maybe_append(10_001, 1001, skip_full_check=True)


def test_five_entries_and_none_are_sane(index: TimeIndex) -> None:
    index.sanity_check()
    fill(index, 5)
    index.sanity_check()


@pytest.mark.parametrize(
    ("values", "position"),
    [
        ([(10, -1)], 0),  # the last offset is below the base offset
        ([(10, 1), (20, 2), (9, 3)], 24),  # the last timestamp is below the first
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


def test_a_length_that_is_no_multiple_of_the_entry_size_is_corrupt(scratch: Path) -> None:
    scratch.write_bytes(bytes(13))
    with pytest.raises(CorruptIndexError, match="multiple of 12"):
        TimeIndex(str(scratch), BASE).sanity_check()


def test_the_index_is_full_when_only_the_kept_slot_is_left(index: TimeIndex) -> None:
    assert not index.is_full
    fill(index, 28)
    assert not index.is_full
    index.maybe_append(1000, 1000)
    assert index.is_full
    assert index.entries == index.max_entries - 1


def test_the_last_entry_of_an_empty_index_is_no_time_at_the_base_offset(index: TimeIndex) -> None:
    assert index.last_entry == (-1, BASE)
    index.maybe_append(5, BASE + 1)
    assert index.last_entry == (5, BASE + 1)


def test_resize_says_whether_it_changed_the_file(index: TimeIndex) -> None:
    assert not index.resize(SLOTS * 12)
    assert index.resize(SLOTS * 12 // 2)
    assert index.resize(SLOTS * 12 * 2)


def test_an_entry_has_twelve_bytes(index: TimeIndex) -> None:
    assert TimeIndex.ENTRY.itemsize == 12
    assert index.max_entries == SLOTS


def test_an_entry_is_a_long_and_an_integer_big_endian(index: TimeIndex, path: str) -> None:
    index.maybe_append(1_700_000_000_000, BASE + 5)
    assert Path(path).read_bytes()[:12] == bytes.fromhex("0000018bcfe5680000000005")
    assert index.entry(0) == (1_700_000_000_000, BASE + 5)


# Appending.


def test_an_equal_timestamp_is_not_added(index: TimeIndex) -> None:
    assert index.maybe_append(10, BASE + 1)
    assert not index.maybe_append(10, BASE + 2)
    assert entries(index) == [(10, BASE + 1)]


def test_records_without_a_timestamp_leave_the_index_empty(index: TimeIndex, path: str) -> None:
    assert not index.maybe_append(-1, BASE + 3)
    index.close()
    assert Path(path).read_bytes() == b""


@pytest.mark.parametrize("pair", [(9, BASE + 2), (11, BASE), (9, BASE)])
def test_neither_time_nor_offset_may_step_back(index: TimeIndex, pair: tuple[int, int]) -> None:
    index.maybe_append(10, BASE + 1)
    with pytest.raises(ValueError, match="below the last entry"):
        index.maybe_append(*pair)
    assert entries(index) == [(10, BASE + 1)]


@pytest.mark.parametrize("offset", [BASE - 1, BASE + MAX_INT + 1])
def test_an_offset_that_does_not_fit_is_refused_before_anything_is_written(
    index: TimeIndex, path: str, offset: int
) -> None:
    with pytest.raises(OverflowError, match="between 0 and 2147483647"):
        index.maybe_append(10, offset)
    assert index.entries == 0
    assert Path(path).read_bytes() == bytes(SLOTS * 12)


def test_truncating_drops_every_entry_at_or_above_the_offset(index: TimeIndex) -> None:
    for timestamp, offset in [(10, 50), (20, 60), (30, 60), (40, 70)]:
        index.maybe_append(timestamp, offset)
    index.truncate_to(71)
    assert index.entries == 4
    index.truncate_to(60)
    assert entries(index) == [(10, 50)]


# A model, and many targets at once.

PAIRS = st.lists(st.tuples(st.integers(1, 10**12), st.integers(0, 500)), max_size=80).map(
    lambda steps: np.cumsum(np.array(steps, np.int64).reshape(-1, 2), axis=0)
)


@settings(deadline=None)
@given(PAIRS, st.lists(st.integers(-10, 10**13), max_size=20), st.integers(BASE, 41000))
def test_searches_agree_with_a_sorted_array(
    scratch: Path, pairs: np.ndarray, targets: list[int], offset: int
) -> None:
    scratch.write_bytes(encode_time_entries(pairs[:, 0], pairs[:, 1]))
    table = [(int(timestamp), BASE + int(place)) for timestamp, place in pairs]
    with TimeIndex(str(scratch), BASE, writable=True) as index:
        index.sanity_check(table[-1][1] + 1 if table else None)
        floors = [max([pair for pair in table if pair[0] <= target], default=(-1, BASE)) for target in targets]
        assert [index.lookup(target) for target in targets] == floors
        assert index.lookup_many(np.array(targets, np.int64)).tolist() == [place for _, place in floors]
        assert list(zip(*index.to_arrays(), strict=True)) == table
        index.truncate_to(offset)
        assert entries(index) == [pair for pair in table if pair[1] < offset]


def test_encoded_entries_are_what_maybe_append_writes(index: TimeIndex, path: str) -> None:
    timestamps, offsets = np.array([0, 9, MAX_LONG]), np.array([3, 3, MAX_INT])
    for timestamp, offset in zip(timestamps.tolist(), offsets.tolist(), strict=True):
        index.maybe_append(timestamp, BASE + offset)
    index.trim()
    assert encode_time_entries(timestamps, offsets) == Path(path).read_bytes()
    assert encode_time_entries(np.empty(0, np.int64), np.empty(0, np.int64)) == b""


def test_encoding_refuses_numbers_that_do_not_fit_or_step_back() -> None:
    fine = np.array([1, 2])
    for timestamps, offsets in [([-1, 5], fine), (fine, [-1, 5]), (fine, [5, MAX_INT + 1])]:
        with pytest.raises(OverflowError, match="between 0 and"):
            encode_time_entries(np.array(timestamps), np.array(offsets))
    for timestamps, offsets in [([5, 5], fine), ([5, 4], fine), (fine, [5, 4])]:
        with pytest.raises(ValueError, match="must"):
            encode_time_entries(np.array(timestamps), np.array(offsets))


# Files that a broker wrote.


def dumped(path: Path) -> list[tuple[int, int]]:
    """The pairs that Kafka's dump tool printed."""
    text = gzip.decompress(path.read_bytes()).decode()
    return [(int(a), int(b)) for a, b in re.findall(r"timestamp: (\d+) offset: (\d+)", text)]


DUMPS = sorted((DATA / "kafka-4.1").glob("dump.*.timeindex.txt.gz"))
BROKER_FILES = sorted(DATA.glob("kafka-*/*/*/*.timeindex"))


@pytest.mark.parametrize("dump", DUMPS, ids=lambda dump: dump.name)
def test_entries_are_what_kafkas_dump_tool_prints(dump: Path) -> None:
    _, partition, stem, *_ = dump.name.split(".")
    index = TimeIndex(str(DATA / "kafka-4.1" / "first" / partition / f"{stem}.timeindex"), int(stem))
    assert entries(index) == dumped(dump)
    assert len(entries(index)) > 5


@pytest.mark.parametrize("file", BROKER_FILES, ids=lambda file: f"{file.parts[-3]}-{file.parts[-2]}-{file.stem}")
def test_a_brokers_file_is_sane_unless_a_crash_left_it_untrimmed(file: Path) -> None:
    index = TimeIndex(str(file), int(file.stem))
    if file.stat().st_size < 65532:
        index.sanity_check()
    else:
        assert "crashed" in file.parts
        with pytest.raises(CorruptIndexError, match="not trimmed"):
            index.sanity_check()


def test_the_golden_files_hold_dumps_and_untrimmed_files() -> None:
    assert len(DUMPS) == 4
    assert [file.stat().st_size for file in BROKER_FILES if "crashed" in file.parts].count(65532) >= 1
    assert len(BROKER_FILES) > 40


# Bytes that nobody should have written.


def test_an_offset_at_or_above_the_end_of_the_segment_is_corrupt(scratch: Path) -> None:
    scratch.write_bytes(encode_time_entries(np.array([1, 2]), np.array([10, 20])))
    index = TimeIndex(str(scratch), BASE)
    index.sanity_check(BASE + 21)
    with pytest.raises(CorruptIndexError, match="out of order or range"):
        index.sanity_check(BASE + 20)


@pytest.mark.parametrize("values", [[(1, -5)], [(-2, 5)]])
def test_a_negative_number_is_corrupt_when_a_lookup_meets_it(scratch: Path, values: list[tuple[int, int]]) -> None:
    scratch.write_bytes(np.array(values, TimeIndex.ENTRY).tobytes())
    index = TimeIndex(str(scratch), BASE)
    for look in (lambda: index.lookup(1), lambda: index.entry(0), lambda: index.last_entry):
        with pytest.raises(CorruptIndexError, match="negative") as caught:
            look()
        assert caught.value.details == {"file": str(scratch), "position": 0}


def check_answers(index: TimeIndex, targets: list[int]) -> None:
    """Every lookup gives an entry of the file that is not later than its target, or CorruptIndexError."""
    for target in targets:
        try:
            floor = index.lookup(target)
        except CorruptIndexError:
            continue
        assert floor == (-1, BASE) or (0 <= floor.timestamp <= target and floor.offset >= BASE)
        assert index.lookup_many(np.array([target])).tolist() == [floor.offset]


@settings(deadline=None)
@given(st.binary(max_size=300), st.lists(st.integers(-(2**63) + 1, MAX_LONG), min_size=1, max_size=5))
def test_random_bytes_give_a_floor_or_a_corrupt_index_error(scratch: Path, raw: bytes, targets: list[int]) -> None:
    scratch.write_bytes(raw)
    check_answers(TimeIndex(str(scratch), BASE), targets)


def test_every_flipped_bit_gives_a_floor_or_a_corrupt_index_error(scratch: Path) -> None:
    good = encode_time_entries(np.arange(1, 13) * 1000 + 1_700_000_000_000, np.arange(1, 13) * 40)
    for bit in range(len(good) * 8):
        data = bytearray(good)
        data[bit // 8] ^= 1 << bit % 8
        scratch.write_bytes(data)
        check_answers(TimeIndex(str(scratch), BASE), [0, 1_700_000_004_500, 1_700_000_012_000, MAX_LONG])
