"""The segments that are merged equal the definition in one pass; and how often a record is copied."""

from __future__ import annotations

import math
import pickle
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import histories
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distlog.core.arrays import MAX_INT
from distlog.core.commits import segment_table
from distlog.core.commits.deduplication import NO_TRANSACTIONS
from distlog.core.commits.partition_table import PartitionTable
from distlog.core.commits.segment_table import SegmentInfo, SegmentTable
from distlog.core.commits.snapshot import PartitionState, Snapshot
from distlog.core.config import TopicConfig
from distlog.core.maintain.merge import LARGE_GROWTH, plan_merge
from distlog.core.segments.segment_writer import LARGEST_PART

SEGMENT_BYTES = 1000
SEGMENT_MS = 50


def segment(number: int, base: int, size: int, time: int = -1, offsets: int = 1, **changes: Any) -> SegmentInfo:
    """Return a segment of `offsets` offsets and `size` bytes, with its number as its stem."""
    times = {"first_timestamp": time, "max_timestamp": time, "offset_of_max_timestamp": base if time >= 0 else -1}
    stem = f"{number:020d}"
    fields = {"stem": stem, "log_bytes": size, "record_count": 1, "created_ms": 100, **times, **changes}
    return histories.segment(0, base, offsets, **fields)


def snapshot_of(segments: Sequence[SegmentInfo], log_start_offset: int = 0) -> Snapshot:
    config = TopicConfig.parse({"internal.segment.bytes": SEGMENT_BYTES, "segment.ms": SEGMENT_MS})
    end = segments[-1].next_offset if segments else log_start_offset
    state = PartitionState(log_start_offset, end, SegmentTable.of(segments))
    return Snapshot(
        version=1,
        commit_id="",
        topic_id="",
        name="t",
        timestamp_ms=0,
        config=config,
        partitions=PartitionTable.of([state]),
        transactions=NO_TRANSACTIONS,
    )


def planned(snapshot: Snapshot) -> list[list[int]]:
    return [[int(segment.stem) for segment in group.segments] for group in plan_merge(snapshot)]


def defined(segments: Sequence[SegmentInfo], log_start_offset: int) -> list[list[int]]:
    """Return the groups by the definition: each group is checked as a whole whenever it grows."""
    groups: list[list[SegmentInfo]] = [[]]
    for info in (info for info in segments if info.next_offset > log_start_offset):
        if info.log_bytes >= SEGMENT_BYTES:
            groups.append([])
        elif groups[-1] and not fit([*groups[-1], info]):
            groups.append([info])
        else:
            groups[-1].append(info)
    return [[int(info.stem) for info in part] for group in groups for part in worth(group)]


def worth(group: list[SegmentInfo]) -> list[list[SegmentInfo]]:
    """Return the group, or, if one segment has more than half of its bytes, the useful groups around that segment."""
    sizes = [info.log_bytes for info in group]
    if len(sizes) < 2 or not any(sizes):
        return []
    if 2 * max(sizes) <= sum(sizes):
        return [group]
    middle = sizes.index(max(sizes))
    return worth(group[:middle]) + worth(group[middle + 1 :])


def fit(group: Sequence[SegmentInfo]) -> bool:
    newest = [info.max_timestamp if info.max_timestamp >= 0 else info.created_ms for info in group]
    begin = group[0].first_timestamp if group[0].first_timestamp >= 0 else newest[0]
    return (
        sum(info.log_bytes for info in group) <= SEGMENT_BYTES
        and group[-1].next_offset - group[0].base_offset <= MAX_INT
        and max(newest) - begin <= SEGMENT_MS
    )


@st.composite
def any_segments(draw: st.DrawFn) -> list[SegmentInfo]:
    infos: list[SegmentInfo] = []
    base = 0
    for number in range(draw(st.integers(0, 40))):
        size = draw(st.sampled_from([0, 1, 1, 10, 100, 400, SEGMENT_BYTES - 1, SEGMENT_BYTES, SEGMENT_BYTES + 1]))
        time = draw(st.sampled_from([-1, 0, 1, 49, 50, 51, 100, 200]))
        offsets = draw(st.sampled_from([1, 1, 1, 5, MAX_INT - 1, MAX_INT]))
        infos.append(segment(number, base, size, time, offsets))
        base += offsets + draw(st.sampled_from([0, 0, 3]))
    return infos


@given(any_segments(), st.integers(0, 40))
def test_the_groups_follow_the_definition(segments: list[SegmentInfo], start: int) -> None:
    assert planned(snapshot_of(segments, start)) == defined(segments, start)


def test_empty_segments_are_not_a_group() -> None:
    assert planned(snapshot_of([segment(number, number, 0) for number in range(8)])) == []
    assert planned(snapshot_of([segment(number, number, 10 * (number % 2)) for number in range(8)])) != []


def test_groups_that_may_grow_beyond_a_part_need_eight_times_the_bytes_of_their_largest_segment() -> None:
    """A reader gains little from segments that are larger than one request."""
    config = TopicConfig()

    def counts(sizes: list[int]) -> list[int]:
        segments = [segment(number, number, size) for number, size in enumerate(sizes)]
        return [len(group.segments) for group in plan_merge(replace(snapshot_of(segments), config=config))]

    assert counts([LARGEST_PART] * (LARGE_GROWTH - 1)) == []
    assert counts([LARGEST_PART] * LARGE_GROWTH) == [LARGE_GROWTH]
    assert counts([LARGEST_PART // 2] * 2) == [2]
    full = [config.segment_size // 4] * 3
    assert counts(full) == []
    assert counts([*full, config.segment_size // 2]) == [3], "nothing can join these any more"


def test_the_partitions_of_a_plan_do_not_touch_each_other() -> None:
    """Plan partitions in columns and partitions with their own state together, with the result of single plans."""
    source = random.Random(1)
    states, alone = [], []
    for number in range(12):
        sizes = [source.choice([1, 10, 100, 400, SEGMENT_BYTES]) for _ in range(source.randrange(9))]
        infos = [replace(segment(index, index, size), partition=number) for index, size in enumerate(sizes)]
        states.append(PartitionState(source.randrange(3), len(infos), SegmentTable.of(infos)))
        alone += [
            (number, group) for group in planned(replace(snapshot_of([]), partitions=PartitionTable.of(states[-1:])))
        ]
    own_table = PartitionTable.of(states)
    zeros, ends = np.zeros(12, np.int64), np.array([state.log_end_offset for state in states])
    starts = np.array([state.log_start_offset for state in states])
    subset = {3: states[3], 7: states[7]}
    mixed = PartitionTable.of_columns(starts, ends, zeros, own_table.segments(), subset)
    for table in (own_table, mixed):
        groups = plan_merge(replace(snapshot_of([]), partitions=table))
        assert [(group.partition, [int(stem) for stem in group.stems]) for group in groups] == alone


@pytest.mark.parametrize("recent", [0, 30, 100])
def test_a_plan_makes_no_object_of_a_segment_and_no_columns_of_recent_ones(
    monkeypatch: pytest.MonkeyPatch, recent: int
) -> None:
    segments = [segment(number, number, 1) for number in range(100)]
    table = SegmentTable.of(segments[: 100 - recent]).appended(segments[100 - recent :])
    large = snapshot_of(segments)
    snapshot = replace(large, partitions=PartitionTable.of([replace(large.partitions[0], segments=table)]))
    monkeypatch.setattr(segment_table, "to_segments", lambda rows: pytest.fail("_to_segments"))
    monkeypatch.setattr(segment_table, "to_rows", lambda rows: pytest.fail("_to_columns"))
    (group,) = plan_merge(snapshot)
    assert (len(group.segments), group.log_bytes, group.records) == (100, 100, 100)
    monkeypatch.undo()
    assert list(pickle.loads(pickle.dumps(group)).segments) == segments
    assert group.stems == [info.stem for info in segments]


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
def test_a_record_is_copied_as_often_as_the_logarithm_of_its_segments_growth(seed: int) -> None:
    """After each new segment the planner may merge repeatedly."""
    source = random.Random(seed)
    live: list[tuple[SegmentInfo, list[int]]] = []
    copies: dict[int, int] = {}
    sizes: dict[int, int] = {}
    for number in range(600):
        size = source.choice([1, 1, 2, 5, 30])
        live.append((segment(number, number, size), [number]))
        copies[number], sizes[number] = 0, size
        for group in planned(snapshot_of([info for info, _ in live])):
            parts = [(info, members) for info, members in live if int(info.stem) in group]
            members = [number for _, members in parts for number in members]
            for member in members:
                copies[member] += 1
            first, last = parts[0][0], parts[-1][0]
            total = sum(info.log_bytes for info, _ in parts)
            merged = segment(int(first.stem), first.base_offset, total, -1, last.next_offset - first.base_offset)
            index = live.index(parts[0])
            live[index : index + len(parts)] = [(merged, members)]
    for info, members in live:
        for member in members:
            assert copies[member] <= math.log2(info.log_bytes / sizes[member]) + 1
    assert len(live) < 60
