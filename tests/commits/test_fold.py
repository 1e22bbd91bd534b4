"""The effect of commits on a snapshot, and their invariants."""

from __future__ import annotations

from typing import Any

import pytest
from histories import History, segment
from hypothesis import given
from hypothesis import strategies as st

from distlog.core.commits.actions import (
    Action,
    Active,
    Add,
    Cleaned,
    Remove,
    Restore,
    Seal,
    SetLogStartOffset,
    SetPartitions,
    SetTransaction,
    SetVacuumHorizon,
)
from distlog.core.commits.snapshot import PartitionState, apply, fold
from distlog.core.errors import CorruptMetadataError


@pytest.fixture
def history() -> History:
    """Return a topic with partition 0 of three segments, 0 to 30, and an empty partition 1."""
    history = History()
    history.create()
    history.commit(*(Add(segment(0, base, 10)) for base in (0, 10, 20)))
    return history


def refused(history: History, *actions: Action, match: str, **changes: Any) -> None:
    """Check that the next commit breaks an invariant, that the error names its file, and that nothing changed."""
    old_snapshot, now_ms = history.snapshot(), history.now_ms
    commit = history.commit(*actions, **changes)
    with pytest.raises(CorruptMetadataError, match=match) as caught:
        apply(old_snapshot, commit)
    assert caught.value.details["file"] == f"_commits/{commit.version:020d}.json"
    history.commits.pop()
    history.now_ms = now_ms
    assert history.snapshot() == old_snapshot


def live(history: History, partition: int = 0) -> list[tuple[int, int]]:
    return [(info.base_offset, info.next_offset) for info in history.snapshot().partitions[partition].segments]


def stems(history: History, partition: int = 0) -> list[str]:
    return [info.stem for info in history.snapshot().partitions[partition].segments]


def test_a_created_topic_is_empty() -> None:
    history = History(start_ms=777)
    created = history.create(3, **{"retention.ms": "5"})
    snapshot = history.snapshot()
    assert (snapshot.version, snapshot.commit_id, snapshot.name) == (0, created.id, "clicks")
    assert (snapshot.topic_id, snapshot.timestamp_ms) == (history.topic_id, 777)
    assert snapshot.partitions == (PartitionState(),) * 3
    assert snapshot.config.retention_ms == 5
    assert not snapshot.dropped


def test_appends_move_the_log_end_of_their_partitions(history: History) -> None:
    first = segment(0, 30, 5)
    history.commit(Add(first), Add(segment(1, 0, 7)), Add(segment(0, 35, 1)))
    assert live(history) == [(0, 10), (10, 20), (20, 30), (30, 35), (35, 36)]
    assert [state.log_end_offset for state in history.snapshot().partitions] == [36, 7]
    assert history.snapshot().partitions[0].segments[3] == first


def test_offsets_may_have_gaps_inside_a_segment(history: History) -> None:
    history.commit(Add(segment(0, 30, 1000, record_count=3)))
    assert history.snapshot().partitions[0].log_end_offset == 1030


@pytest.mark.parametrize("base_offset", [31, 29, 0])
def test_an_append_begins_at_the_log_end(history: History, base_offset: int) -> None:
    refused(history, Add(segment(0, base_offset)), match=r"log end|not fit into a hole")


def test_a_segment_that_contradicts_itself_is_refused(history: History) -> None:
    refused(history, Add(segment(0, 30, 5, record_count=6)), match="more records")
    refused(history, Add(segment(0, 30, 5, next_offset=30)), match="ends at or below")


def test_removed_segments_come_back_and_the_log_start_goes_down(history: History) -> None:
    first, second, third = history.snapshot().partitions[0].segments
    history.commit(Remove(0, first.stem), Remove(0, second.stem), SetLogStartOffset(0, 20))
    history.commit(Restore(0, 10, 1), Add(second))
    assert (live(history), history.snapshot().partitions[0].log_start_offset) == ([(10, 20), (20, 30)], 10)
    history.commit(Remove(0, second.stem), Remove(0, third.stem), SetLogStartOffset(0, 30))
    history.commit(Restore(0, 0, 1), Add(first), Add(second), Add(third))
    assert (live(history), history.snapshot().partitions[0].log_start_offset) == ([(0, 10), (10, 20), (20, 30)], 0)


def test_removed_outputs_make_room_for_their_inputs(history: History) -> None:
    olds = history.snapshot().partitions[0].segments
    merged = segment(0, 0, 20)
    history.commit(*(Remove(0, old.stem) for old in olds[:2]), Add(merged))
    history.commit(Restore(0, 0, 1), Remove(0, merged.stem), *(Add(old) for old in olds[:2]))
    assert live(history) == [(0, 10), (10, 20), (20, 30)]
    again = olds[0]
    refused(history, Restore(0, 0, 1), Add(again), match="twice|not fit into a hole")


def test_only_files_that_vacuum_keeps_can_be_restored(history: History) -> None:
    first = history.snapshot().partitions[0].segments[0]
    history.commit(Remove(0, first.stem), SetLogStartOffset(0, 10))
    refused(history, Restore(0, 0, 3), Add(first), match="may have deleted files of version 3")
    history.commit(SetVacuumHorizon(2))
    refused(history, Restore(0, 0, 1), Add(first), match="may have deleted files of version 1")
    refused(history, Add(first), match="vacuum horizon")


def test_files_older_than_the_vacuum_horizon_return_if_a_newer_version_has_them(history: History) -> None:
    first = history.snapshot().partitions[0].segments[0]
    history.commit(SetVacuumHorizon(2))
    history.commit(Remove(0, first.stem), SetLogStartOffset(0, 10))
    history.commit(Restore(0, 0, 2), Add(first))
    assert live(history) == [(0, 10), (10, 20), (20, 30)]


def test_a_segment_is_added_once(history: History) -> None:
    twin = history.snapshot().partitions[0].segments[0]
    refused(history, Add(twin.moved_to(30)), match="twice")
    new = segment(0, 30)
    refused(history, Add(new), Add(new.moved_to(40)), match="twice")


def test_a_partition_that_does_not_exist_is_refused(history: History) -> None:
    for action in (
        Add(segment(2)),
        Remove(2, segment().stem),
        SetLogStartOffset(2, 0),
        Cleaned(2, 0),
        Seal(2, segment().stem),
        SetTransaction("app", 1, {2: (0, 1)}),
    ):
        refused(history, action, match="partition")


def test_retention_removes_from_the_front(history: History) -> None:
    history.commit(Remove(0, stems(history)[0]), SetLogStartOffset(0, 10))
    assert live(history) == [(10, 20), (20, 30)]
    assert history.snapshot().partitions[0].log_start_offset == 10


def test_all_segments_may_go_and_the_log_end_stays(history: History) -> None:
    history.commit(*(Remove(0, stem) for stem in stems(history)), SetLogStartOffset(0, 30))
    state = history.snapshot().partitions[0]
    assert (len(state.segments), state.log_start_offset, state.log_end_offset) == (0, 30, 30)
    history.commit(Add(segment(0, 30)))
    assert live(history) == [(30, 40)]


def test_a_removed_segment_was_live(history: History) -> None:
    stem = stems(history)[1]
    refused(history, Remove(0, segment().stem), match="not live")
    refused(history, Remove(1, stem), match="not live")
    refused(history, Remove(0, stem), Remove(0, stem), match="twice")
    new = segment(0, 30)
    refused(history, Add(new), Remove(0, new.stem), match="not live")
    history.commit(Remove(0, stem))
    refused(history, Remove(0, stem), match="not live")


def test_a_compaction_fills_the_hole_that_it_makes(history: History) -> None:
    _, second, third = stems(history)
    history.commit(Remove(0, second), Remove(0, third), Add(segment(0, 10, 20, record_count=4, compacted=True)))
    assert live(history) == [(0, 10), (10, 30)]
    assert history.snapshot().partitions[0].log_end_offset == 30


def test_a_compaction_and_appends_may_share_a_commit(history: History) -> None:
    history.commit(Add(segment(0, 30, 5)), Remove(0, stems(history)[2]), Add(segment(0, 20, 10)))
    assert live(history) == [(0, 10), (10, 20), (20, 30), (30, 35)]


def test_an_output_fits_in_one_hole(history: History) -> None:
    first, second, third = stems(history)
    refused(history, Remove(0, second), Add(segment(0, 10, 11)), match="not fit into a hole")
    refused(history, Remove(0, second), Add(segment(0, 9, 11)), match="not fit into a hole")
    refused(history, Remove(0, first), Remove(0, third), Add(segment(0, 0, 30)), match="not fit into a hole")
    refused(history, Remove(0, third), Add(segment(0, 20, 11)), match="not fit into a hole")


def test_a_rebuilt_segment_keeps_its_position(history: History) -> None:
    info = history.snapshot().partitions[0].segments[1]
    rebuilt = segment(0, 10, 10, stem=info.stem, offset_index_bytes=16)
    history.commit(Remove(0, info.stem), Add(rebuilt))
    assert history.snapshot().partitions[0].segments[1] == rebuilt


def test_an_active_segment_holds_the_log_end_until_it_is_sealed(history: History) -> None:
    active = Active(0, segment().stem, 30)
    history.commit(active)
    assert history.snapshot().partitions[0].active == active
    refused(history, Add(segment(0, 30)), match="sealed first")
    refused(history, Active(0, segment().stem, 30), match="sealed first")
    refused(history, Seal(0, segment().stem), match="not active")
    history.commit(Seal(0, active.stem), Add(segment(0, 30, 5, stem=active.stem)))
    assert history.snapshot().partitions[0].active is None
    assert live(history)[-1] == (30, 35)
    refused(history, Seal(0, active.stem), match="not active")


def test_an_empty_active_segment_is_sealed_to_nothing(history: History) -> None:
    active = Active(0, segment().stem, 30)
    history.commit(active)
    history.commit(Seal(0, active.stem))
    assert live(history)[-1] == (20, 30)


def test_an_active_segment_begins_at_the_log_end_under_a_new_name(history: History) -> None:
    refused(history, Active(0, segment().stem, 31), match="not at the log end")
    refused(history, Active(0, stems(history)[0], 30), match="sealed already")


@pytest.mark.long
@given(st.lists(st.sampled_from(["append", "retain", "compact", "batch", "grow", "clean"]), max_size=12), st.data())
def test_folding_at_once_equals_applying_each_commit(steps: list[str], data: st.DataObject) -> None:
    history = History()
    history.create(1)
    for number, step in enumerate(steps):
        state = history.snapshot().partitions[0]
        segments, end = state.segments[:], state.log_end_offset
        if step == "append":
            history.commit(Add(segment(0, end, 3)))
        elif step == "batch":
            history.commit(Add(segment(0, end, 1)), SetTransaction("app", number, {0: (end, end + 1)}))
        elif step == "grow":
            history.commit(SetPartitions(len(history.snapshot().partitions) + 1))
        elif step == "clean":
            history.commit(Cleaned(0, end))
        elif segments and step == "retain":
            history.commit(Remove(0, segments[0].stem), SetLogStartOffset(0, segments[0].next_offset))
        elif segments:
            low, high = sorted(data.draw(st.integers(0, len(segments) - 1)) for _ in range(2))
            start, stop = segments[low].base_offset, segments[high].next_offset
            merged = segment(0, start, stop - start, record_count=1)
            history.commit(*(Remove(0, info.stem) for info in segments[low : high + 1]), Add(merged))
    stepwise = None
    for commit in history.commits:
        stepwise = apply(stepwise, commit)
    assert fold(None, history.commits) == stepwise
    split = data.draw(st.integers(1, len(history.commits)))
    assert fold(fold(None, history.commits[:split]), history.commits[split:]) == stepwise
