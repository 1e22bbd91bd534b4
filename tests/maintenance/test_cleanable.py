"""What compaction chooses, and how it groups: Kafka's LogCleanerManagerTest, and grouping from LogCleanerTest."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import pytest
from histories import History, segment

from distlog.core.commits.actions import Action, Add, Cleaned, Remove, SetLogStartOffset
from distlog.core.commits.segment_info import SegmentInfo
from distlog.core.commits.snapshot import PartitionState, Snapshot
from distlog.core.config import MAX_INT, TopicConfig
from distlog.core.maintenance.cleaning_plan import cleanable, group_segments, plan_compaction

NOW = 10_000


def snapshot(segments: Sequence[SegmentInfo], *actions: Action, **settings: object) -> Snapshot:
    """Two partitions with `segments`, and what `actions` did to them later."""
    history = History()
    chosen = {"cleanup.policy": "compact", **{name.replace("_", "."): str(value) for name, value in settings.items()}}
    history.create(2, **chosen)
    history.commit(*map(Add, segments))
    if actions:
        history.commit(*actions)
    return history.snapshot()


def row(count: int, partition: int = 0, **changes: Any) -> list[SegmentInfo]:
    """Adjacent segments of ten records and 1,000 bytes each."""
    return [segment(partition, 10 * number, **changes) for number in range(count)]


def of(state: Snapshot, last_stable_offset: int | None = None) -> tuple[int, int]:
    """The cleanable offsets of partition 0."""
    partition = state.partitions[0]
    stable = partition.log_end_offset if last_stable_offset is None else last_stable_offset
    found = cleanable(0, partition, state.config, NOW, stable)
    return found.first_dirty_offset, found.first_uncleanable_offset


def test_everything_sealed_is_cleanable() -> None:
    assert of(snapshot(row(3))) == (0, 30)
    assert of(snapshot(row(3), Cleaned(0, 20))) == (20, 30)


def test_a_checkpoint_below_the_log_start_counts_as_the_log_start() -> None:
    assert of(snapshot(row(3), Cleaned(0, 5), SetLogStartOffset(0, 15))) == (15, 30)


def test_a_checkpoint_above_the_log_end_counts_as_the_log_start() -> None:
    state = PartitionState(3, 10, snapshot(row(1)).partitions[0].segments, first_dirty_offset=200)
    assert cleanable(0, state, TopicConfig(), NOW, 10).first_dirty_offset == 3


def test_a_log_start_above_every_segment_leaves_nothing_to_clean() -> None:
    state = snapshot(row(2), SetLogStartOffset(0, 20))
    assert of(state) == (20, 20)
    assert plan_compaction(state, NOW) == []


def test_the_first_segment_younger_than_the_lag_and_all_behind_it_wait() -> None:
    ages = [segment(0, 10 * n, max_timestamp=time) for n, time in enumerate([1000, NOW - 500, NOW - 499, 1000])]
    assert of(snapshot(ages, min_compaction_lag_ms=500)) == (0, 20)
    assert of(snapshot(ages, min_compaction_lag_ms=499)) == (0, 40)
    assert of(snapshot(ages)) == (0, 40)
    assert of(snapshot(ages, Cleaned(0, 30), min_compaction_lag_ms=500)) == (30, 40)


def test_segments_without_timestamps_are_as_old_as_their_files() -> None:
    state = snapshot(row(2, max_timestamp=-1, offset_of_max_timestamp=-1), min_compaction_lag_ms=5_001)
    assert of(state) == (0, 0)
    state = snapshot(row(2, max_timestamp=-1, offset_of_max_timestamp=-1), min_compaction_lag_ms=5_000)
    assert of(state) == (0, 20)


def test_undecided_transactions_are_not_cleanable_nor_the_segment_in_which_they_begin() -> None:
    state = snapshot(row(3))
    assert of(state, last_stable_offset=20) == (0, 20)
    assert of(state, last_stable_offset=19) == (0, 10)
    assert of(state, last_stable_offset=0) == (0, 0)
    assert of(snapshot(row(3), Cleaned(0, 20)), last_stable_offset=15) == (20, 20)


def test_a_gap_between_segments_is_no_segment() -> None:
    segments = row(3)
    state = snapshot(segments, Remove(0, segments[1].stem))
    assert of(state, last_stable_offset=15) == (0, 15)


def test_bytes_are_counted_by_segments_and_a_cut_one_twice() -> None:
    state = snapshot(row(6), Cleaned(0, 20), min_compaction_lag_ms=1)
    found = cleanable(0, state.partitions[0], state.config, NOW, 40)
    assert (found.clean_bytes, found.dirty_bytes, found.dirty_ratio) == (2000, 2000, 0.5)
    cut = snapshot(row(6), Cleaned(0, 25))
    found = cleanable(0, cut.partitions[0], cut.config, NOW, 60)
    assert (found.clean_bytes, found.dirty_bytes) == (3000, 4000)


def test_a_ratio_equal_to_the_least_is_not_enough() -> None:
    half = row(4)
    assert plan_compaction(snapshot(half, Cleaned(0, 20), min_cleanable_dirty_ratio=0.5), NOW) == []
    assert plan_compaction(snapshot(half, Cleaned(0, 19), min_cleanable_dirty_ratio=0.5), NOW) != []
    assert plan_compaction(snapshot(half, Cleaned(0, 40), min_cleanable_dirty_ratio=0), NOW) == []


def test_the_dirtiest_partition_is_first() -> None:
    state = snapshot([*row(4), *row(4, partition=1)], Cleaned(0, 30), Cleaned(1, 10), min_cleanable_dirty_ratio=0.1)
    assert [found.partition for found in plan_compaction(state, NOW)] == [1, 0]


def test_only_topics_that_are_compacted_are_chosen() -> None:
    assert plan_compaction(snapshot(row(2), cleanup_policy="delete"), NOW) == []
    for policy in ("compact", "compact,delete", "delete,compact"):
        assert len(plan_compaction(snapshot(row(2), cleanup_policy=policy), NOW)) == 1


def test_an_old_dirty_record_is_due_whatever_the_ratio() -> None:
    settings = {"min_cleanable_dirty_ratio": 1, "max_compaction_lag_ms": NOW - 1_001}
    assert [found.overdue for found in plan_compaction(snapshot(row(2), **settings), NOW)] == [True]
    settings["max_compaction_lag_ms"] = NOW - 1_000
    assert plan_compaction(snapshot(row(2), **settings), NOW) == []
    unknown = row(2, first_timestamp=-1)
    assert plan_compaction(snapshot(unknown, min_cleanable_dirty_ratio=1, max_compaction_lag_ms=1), NOW) == []
    clean = snapshot(row(2), Cleaned(0, 20), min_cleanable_dirty_ratio=1, max_compaction_lag_ms=1)
    assert plan_compaction(clean, NOW) == []


def test_open_transactions_are_given_by_partition() -> None:
    state = snapshot([*row(2), *row(2, partition=1)], min_cleanable_dirty_ratio=0)
    found = plan_compaction(state, NOW, {1: 10})
    assert [(one.partition, one.first_uncleanable_offset) for one in found] == [(0, 20), (1, 10)]
    assert pickle.loads(pickle.dumps(found)) == found


def groups(segments: Sequence[SegmentInfo], **settings: Any) -> list[list[int]]:
    """The base offsets of the groups."""
    config = TopicConfig(**settings)
    return [[one.base_offset for one in group] for group in group_segments(segments, config)]


def test_everything_small_is_one_group_and_order_is_kept() -> None:
    assert groups(row(4)) == [[0, 10, 20, 30]]
    assert groups([]) == []


@pytest.mark.parametrize(
    "settings", [{"segment_bytes": 999}, {"segment_index_bytes": 11}, {"segment_bytes": 1999}, {"segment_bytes": 14}]
)
def test_what_fits_with_nothing_is_a_group_by_itself(settings: dict[str, int]) -> None:
    assert groups(row(3), **settings) == [[0], [10], [20]]


def test_groups_are_filled_up_to_the_limit() -> None:
    assert groups(row(5), segment_bytes=2000) == [[0, 10], [20, 30], [40]]
    assert groups(row(5, time_index_bytes=0), segment_index_bytes=24) == [[0, 10, 20], [30, 40]]
    assert groups(row(5, offset_index_bytes=0), segment_index_bytes=24) == [[0, 10], [20, 30], [40]]


def test_a_group_spans_at_most_the_offsets_that_an_index_can_hold() -> None:
    far = segment(0, MAX_INT, count=1)
    assert groups([segment(0, 0), far]) == [[0, MAX_INT]]
    assert groups([segment(0, 0), segment(0, MAX_INT, count=2)]) == [[0], [MAX_INT]]
    assert groups([segment(0, 1), far, segment(0, MAX_INT + 1, count=1)]) == [[1, MAX_INT, MAX_INT + 1]]


def test_a_segment_without_bytes_has_no_offsets_that_an_index_holds() -> None:
    empty = segment(0, 10, count=2 * MAX_INT, record_count=0, log_bytes=0)
    assert groups([segment(0, 0), empty]) == [[0, 10]]
    assert groups([segment(0, 0), empty, segment(0, empty.next_offset)]) == [[0, 10], [empty.next_offset]]
