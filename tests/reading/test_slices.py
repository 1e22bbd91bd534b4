"""Planning a read: which slices of which segments, without touching a file."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

import distlog
from distlog.core.commits.segment_table import SegmentInfo, SegmentTable
from distlog.core.commits.snapshot import PartitionState, Snapshot
from distlog.core.errors import OffsetOutOfRangeError
from distlog.core.segments.chunks import SegmentSlice, first_offsets, plan, split_by_bytes


def segment(base: int, end: int, log_bytes: int = 1000) -> SegmentInfo:
    return SegmentInfo(
        partition=0,
        stem=f"{base:020d}",
        base_offset=base,
        next_offset=end,
        stored_base_offset=0,
        record_count=end - base,
        log_bytes=log_bytes,
        offset_index_bytes=0,
        time_index_bytes=0,
        txn_index_bytes=0,
        first_timestamp=0,
        max_timestamp=0,
        offset_of_max_timestamp=base,
        compression="none",
        created_ms=0,
        crc32c=0,
    )


class State(Snapshot):
    """The fields that planning uses."""

    def __init__(self, segments: Sequence[SegmentInfo], log_start: int, log_end: int) -> None:
        table = SegmentTable.of(segments)
        object.__setattr__(self, "partitions", (PartitionState(log_start, log_end, table),))


SEGMENTS = [segment(10, 20), segment(20, 25), segment(40, 50)]


def planned(start: int, end: int) -> list[tuple[int, int, int]]:
    slices = plan(State(SEGMENTS, 12, 50), {0: start}, {0: end})
    return [(part.segment.base_offset, part.start_offset, part.end_offset) for part in slices]


def test_only_segments_that_overlap_the_range_are_planned() -> None:
    assert planned(12, 50) == [(10, 12, 50), (20, 12, 50), (40, 12, 50)]
    assert planned(20, 25) == [(20, 20, 25)]
    assert planned(19, 21) == [(10, 19, 21), (20, 19, 21)]


def test_a_range_in_a_gap_or_empty_needs_nothing() -> None:
    assert planned(30, 35) == []
    assert planned(15, 15) == []
    assert planned(50, 60) == []


def test_an_end_above_the_log_end_is_lowered() -> None:
    assert planned(40, 10**9) == [(40, 40, 50)]


@pytest.mark.parametrize("offset", [11, 51])
def test_a_start_outside_the_log_is_refused_with_both_bounds(offset: int) -> None:
    with pytest.raises(OffsetOutOfRangeError, match=rf"offset={offset} log_start_offset=12 log_end_offset=50"):
        planned(offset, 50)


def test_a_start_outside_the_log_can_move_to_either_bound_instead() -> None:
    state = State(SEGMENTS, 12, 50)
    assert plan(state, {0: 3}, {0: 50}, "earliest")[0].start_offset == 12
    assert plan(state, {0: 3}, {0: 50}, "latest") == []


sizes = st.lists(st.integers(1, 5000), min_size=1, max_size=30)


@given(sizes, st.integers(1, 4000))
def test_splits_cover_every_byte_of_every_segment_once_and_in_order(log_bytes: list[int], target: int) -> None:
    slices = [
        SegmentSlice(segment(10 * index, 10 * index + 10, size), 0, 10**6, 0, size)
        for index, size in enumerate(log_bytes)
    ]
    all_parts = [part for group in split_by_bytes(slices, target) for part in group]
    for record in slices:
        edges = [(part.start_position, part.end_position) for part in all_parts if part.segment == record.segment]
        assert edges[0][0] == 0
        assert edges[-1][1] == record.segment.log_bytes
        assert [end for _, end in edges[:-1]] == [start for start, _ in edges[1:]]
    assert [part.segment.base_offset for part in all_parts] == sorted(part.segment.base_offset for part in all_parts)


@given(sizes, st.integers(1, 4000))
def test_every_group_ends_near_where_equal_ones_would(log_bytes: list[int], target: int) -> None:
    slices = [SegmentSlice(segment(0, 10, size), 0, 10, 0, size) for size in log_bytes]
    groups = [sum(part.estimated_bytes for part in group) for group in split_by_bytes(slices, target)]
    ends = list(accumulate(groups))
    assert all(abs(end - target * number) <= target // 8 for number, end in enumerate(ends[:-1], start=1))
    assert ends[-1] <= target * len(groups) + target // 8


def test_a_segment_that_nearly_fits_is_not_cut() -> None:
    slices = [SegmentSlice(segment(0, 10, size), 0, 10, 0, size) for size in (95, 110, 101)]
    assert split_by_bytes(slices, 100) == [[record] for record in slices]


def test_a_slice_detects_a_whole_segment() -> None:
    segment_slice = SegmentSlice(segment(10, 20), 0, 100, 0, 1000)
    assert segment_slice.covers_segment
    assert not segment_slice._replace(start_offset=11).covers_segment
    assert not segment_slice._replace(end_offset=19).covers_segment
    assert not segment_slice._replace(start_position=1).covers_segment
    assert segment_slice._replace(start_offset=15).estimated_bytes == 500


def test_the_first_records_of_dense_segments_are_planned_by_offset() -> None:
    topic = distlog.create(f"memory://{uuid.uuid4().hex}/first", 3)
    for partition in range(3):
        topic.append([{"value": b"%d" % number, "timestamp": number} for number in range(10)], partition=partition)

    def first(limit: int, **options: int) -> tuple[list[tuple[int, int]], bool]:
        slices, exact = first_offsets(topic.scan(**options).slices, limit)
        return [part.span for part in slices], exact

    assert first(14) == ([(0, 10), (0, 4)], True)
    assert first(3, start=8) == ([(8, 10), (8, 9)], True)
    assert first(0) == ([], True)
    assert first(99) == ([(0, 10)] * 3, True)
    assert first(1, start_time=5) == ([(0, 10)] * 3, False)
    assert first(1, start_time=0) == ([(0, 1)], True)
