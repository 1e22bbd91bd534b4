"""The segment table: a list of segments in columns. It is Kafka's ordered map of segments."""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from histories import segment
from hypothesis import given
from hypothesis import strategies as st

from distlog.core.commits.partition_table import PartitionState, PartitionTable
from distlog.core.commits.segment_table import NO_OFFSET, SegmentInfo, SegmentTable


def run_of(counts: Sequence[int], start: int = 0) -> list[SegmentInfo]:
    ends = np.cumsum([start, *counts]).tolist()
    return [segment(0, base, count) for base, count in zip(ends, counts, strict=False)]


def with_tail(segments: Sequence[SegmentInfo], tail: int) -> SegmentTable:
    """Return a table with its last `tail` segments appended one by one."""
    split = len(segments) - min(tail, len(segments))
    table = SegmentTable.of(segments[:split])
    for added in segments[split:]:
        table = table.appended([added])
    return table


COUNTS = st.lists(st.integers(1, 5), max_size=12)
TAILS = st.integers(0, 12)


@given(COUNTS, TAILS)
def test_a_table_is_the_sequence_of_its_segments(counts: list[int], tail: int) -> None:
    segments = run_of(counts)
    table = with_tail(segments, tail)
    assert list(table) == segments
    assert len(table) == len(segments)
    assert [table[index] for index in range(len(table))] == segments
    assert [table[index] for index in range(-len(table), 0)] == segments
    assert table[1:-1] == segments[1:-1]
    assert table[::-2] == segments[::-2]
    assert table[3:1] == []
    assert table == SegmentTable.of(segments)
    assert table.base_offsets.tolist() == [info.base_offset for info in segments]
    assert table.next_offsets.tolist() == [info.next_offset for info in segments]
    assert table.log_bytes.tolist() == [info.log_bytes for info in segments]
    assert table.record_counts.tolist() == [info.record_count for info in segments]
    assert table.max_timestamps.dtype == np.int64
    for name in ("created_ms", "has_transactions"):
        assert table.array(name).tolist() == [getattr(info, name) for info in segments]


@given(COUNTS, TAILS, st.integers(0, 12), st.integers(0, 12))
def test_a_part_of_a_table_is_the_table_of_these_segments(
    counts: list[int], tail: int, start: int, count: int
) -> None:
    segments = run_of(counts)
    start = min(start, len(segments))
    end = min(start + count, len(segments))
    part = with_tail(segments, tail).part(start, end)
    assert (len(part), list(part)) == (end - start, segments[start:end])
    assert part.next_offsets.tolist() == [info.next_offset for info in segments[start:end]]


@given(COUNTS, TAILS, st.integers(-1, 70))
def test_find_gives_the_first_segment_that_ends_above_an_offset(counts: list[int], tail: int, offset: int) -> None:
    segments = run_of(counts)
    expected = next((index for index, info in enumerate(segments) if info.next_offset > offset), len(segments))
    assert with_tail(segments, tail).find(offset) == expected


@given(st.lists(st.integers(1, 5), min_size=1, max_size=12), TAILS, TAILS, st.data())
def test_tables_with_one_different_number_are_not_equal(
    counts: list[int], tail: int, other_tail: int, data: st.DataObject
) -> None:
    segments = run_of(counts)
    changed = data.draw(st.integers(0, len(segments) - 1))
    changed_segments = [
        replace(info, crc32c=info.crc32c ^ 1) if index == changed else info for index, info in enumerate(segments)
    ]
    assert with_tail(segments, tail) == with_tail(segments, other_tail)
    assert with_tail(segments, tail) != with_tail(changed_segments, other_tail)
    assert with_tail(segments, tail) != with_tail(segments[1:], other_tail)


@pytest.mark.parametrize("count", [1, 100])
def test_an_active_and_a_sealed_segment_are_not_equal(count: int) -> None:
    *sealed, last = run_of([1] * count)
    table = with_tail(sealed, 0)
    assert table.with_active(replace(last, is_active=True)) == table.with_active(replace(last, is_active=True))
    assert table.with_active(replace(last, is_active=True)) != table.with_active(last)


@given(COUNTS, TAILS, st.data())
def test_replacing_works_as_in_a_list(counts: list[int], tail: int, data: st.DataObject) -> None:
    segments = run_of(counts)
    removed = data.draw(st.sets(st.sampled_from(segments))) if segments else set()
    added = [
        segment(0, info.base_offset, info.next_offset - info.base_offset) for info in removed if info.base_offset % 2
    ]
    table = with_tail(segments, tail).replaced({info.stem for info in removed}, added)
    remaining = [info for info in segments if info not in removed]
    assert list(table) == sorted([*remaining, *added], key=lambda info: info.base_offset)


@pytest.mark.parametrize(("base_offset", "count"), [(10, 10), (10, 1), (19, 1), (30, 10), (33, 3)])
def test_a_segment_may_fill_part_of_a_hole(base_offset: int, count: int) -> None:
    segments = run_of([10, 10, 10, 10, 10])
    table = SegmentTable.of(segments).replaced({segments[1].stem, segments[3].stem}, [segment(0, base_offset, count)])
    assert base_offset in table.base_offsets


@pytest.mark.parametrize(("base_offset", "count"), [(0, 5), (9, 2), (19, 2), (10, 11), (20, 5), (29, 2), (45, 10)])
def test_a_segment_that_fits_in_no_hole_is_refused(base_offset: int, count: int) -> None:
    segments = run_of([10, 10, 10, 10, 10])
    with pytest.raises(ValueError, match="does not fit into a hole"):
        SegmentTable.of(segments).replaced({segments[1].stem, segments[3].stem}, [segment(0, base_offset, count)])


def test_a_pickled_slice_of_a_large_table_is_small() -> None:
    table = SegmentTable.of(run_of([1] * 5_000))
    last = table.replaced({info.stem for info in table[:4_990]}, [])
    data = pickle.dumps(last)
    assert len(data) < 10_000
    assert list(pickle.loads(data)) == table[4_990:]


def test_a_plain_segment_leaves_an_earlier_transaction_open() -> None:
    open_segment = segment(0, 0, has_transactions=True, first_unstable_offset=4)
    plain = segment(0, 10, has_transactions=False, first_unstable_offset=NO_OFFSET)
    ended = segment(0, 20, has_transactions=True, first_unstable_offset=NO_OFFSET)
    first = [
        PartitionState(segments=SegmentTable.of(rows)).first_unstable_offset
        for rows in ([], [plain], [open_segment], [open_segment, plain], [open_segment, plain, ended])
    ]
    assert first == [NO_OFFSET, NO_OFFSET, 4, 4, NO_OFFSET]


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@given(COUNTS, TAILS, st.data())
def test_a_part_of_a_part_has_its_own_segments(counts: list[int], tail: int, data: st.DataObject) -> None:
    segments = run_of(counts)
    table = with_tail(segments, tail)
    for _ in range(3):
        start = data.draw(st.integers(0, len(segments)))
        end = data.draw(st.integers(start, len(segments)))
        table, segments = table.part(start, end), segments[start:end]
        assert list(table) == table[:] == segments
        assert table.columns().num_rows == len(table)
        assert table.base_offsets.tolist() == [info.base_offset for info in segments]
        assert table.array("compacted").tolist() == [info.compacted for info in segments]
        assert table.common_stems([info.stem for info in run_of(counts)]) == set()
        assert table.common_stems({info.stem for info in segments}) == {info.stem for info in segments}
        assert pickle.loads(pickle.dumps(table)) == table == SegmentTable.of(segments)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs the memory counts of Linux")
def test_repeated_lookups_of_states_use_little_memory() -> None:
    count = 20_000
    rows = SegmentTable.of([segment(number, 0, 1) for number in range(count)]).columns()
    ends = np.ones(count, np.int64)
    table, initial_bytes = PartitionTable.of_columns(0 * ends, ends, 0 * ends, rows, {}), resident()
    states = [table[number] for number in range(count)]
    assert resident() - initial_bytes < 1_500 * count
    assert [states[number].segments[0].partition for number in (0, 7, count - 1)] == [0, 7, count - 1]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), min_size=1, max_size=6), TAILS, st.booleans())
def test_joined_tables_have_the_segments_of_all(spans: list[tuple[int, int]], tail: int, apart: bool) -> None:
    segments = run_of([1] * 12)
    tables = [with_tail(segments, tail if apart else 0).part(start, start + count) for start, count in spans]
    joined_table = SegmentTable.of(segments)
    tables = tables if apart else [joined_table.part(start, start + count) for start, count in spans]
    expected = [info for start, count in spans for info in segments[start : start + count]]
    assert list(SegmentTable.joined(tables)) == expected
