"""The effect of commits on log starts, settings, batches, pins, and dropped topics."""

from __future__ import annotations

import uuid

import pytest
from histories import History, segment
from test_fold import history as history
from test_fold import live, refused, stems

from distlog.core.commits.actions import (
    Active,
    Add,
    Cleaned,
    Create,
    Drop,
    Remove,
    Seal,
    SetConfig,
    SetLogStartOffset,
    SetPartitions,
    SetTransaction,
    SetVacuumHorizon,
)
from distlog.core.commits.deduplication import KEPT_MS, TransactionInfo
from distlog.core.commits.snapshot import PartitionState, fold
from distlog.core.errors import CorruptMetadataError


def test_the_log_start_only_rises(history: History) -> None:
    history.commit(SetLogStartOffset(0, 12))
    history.commit(SetLogStartOffset(0, 3))
    assert history.snapshot().partitions[0].log_start_offset == 12


def test_the_log_start_stays_within_a_log_that_holds_segments(history: History) -> None:
    history.commit(SetLogStartOffset(0, 30))
    refused(history, SetLogStartOffset(0, 31), match="past the log end")


def test_an_empty_partition_may_begin_anywhere(history: History) -> None:
    history.commit(SetLogStartOffset(1, 1_000), Add(segment(1, 1_000, 10, stem=f"{1000:020d}")))
    state = history.snapshot().partitions[1]
    assert (state.log_start_offset, state.log_end_offset) == (1_000, 1_010)


def test_partitions_are_added_and_never_removed(history: History) -> None:
    history.commit(SetPartitions(4))
    assert len(history.snapshot().partitions) == 4
    refused(history, SetPartitions(3), match="can only grow")


def test_settings_are_replaced_as_a_whole(history: History) -> None:
    history.commit(SetConfig({"retention.ms": "5", "segment.bytes": "1000"}))
    history.commit(SetConfig({"segment.bytes": "2000"}))
    assert history.snapshot().config.overrides() == {"segment.bytes": "2000"}


def test_compaction_progress_is_kept_and_stays_within_the_log(history: History) -> None:
    history.commit(Cleaned(0, 20))
    assert history.snapshot().partitions[0].first_dirty_offset == 20
    refused(history, Cleaned(0, 31), match="past the log end")


def test_a_batch_is_remembered_and_cannot_be_committed_again(history: History) -> None:
    commit = history.commit(Add(segment(0, 30)), SetTransaction("app", 7, {0: (30, 40)}))
    expected = TransactionInfo(commit.version, commit.timestamp_ms, {0: (30, 40)})
    assert history.snapshot().transactions.get("app", 7) == expected
    assert history.snapshot().transactions.get("app", 8) is None
    refused(history, SetTransaction("app", 7, {0: (40, 50)}), match="is in commit 2 already")


def test_a_batch_is_forgotten_by_commit_time(history: History) -> None:
    history.commit(SetTransaction("app", 7, {}))
    then = history.commits[-1].timestamp_ms
    refused(history, SetTransaction("app", 7, {}), match="already", timestamp_ms=then + KEPT_MS)
    for day in range(1, 32):
        history.commit(SetTransaction("app", f"day {day}", {}), timestamp_ms=then + day * KEPT_MS)
    assert history.snapshot().transactions.get("app", 7) is None
    history.commit(SetTransaction("app", 7, {}))
    assert fold(None, history.commits).transactions.get("app", 7)


def test_an_applications_newest_batch_is_remembered_forever(history: History) -> None:
    history.commit(SetTransaction("app", 7, {}))
    history.commit(timestamp_ms=history.now_ms + 100 * KEPT_MS)
    assert history.snapshot().transactions.get("app", 7)


def test_files_older_than_the_vacuum_horizon_are_refused(history: History) -> None:
    history.commit(SetVacuumHorizon(2))
    assert history.snapshot().gc_floor == 2
    refused(history, Add(segment(0, 30, read_version=1)), match="vacuum horizon")
    refused(history, Remove(0, stems(history)[2]), Add(segment(0, 20, read_version=1)), match="vacuum horizon")
    refused(history, Active(0, segment(read_version=1).stem, 30), match="vacuum horizon")
    history.commit(Add(segment(0, 30, read_version=2)), Add(segment(0, 40, stem=f"{40:020d}")))
    assert len(live(history)) == 5


def test_the_vacuum_horizon_spares_earlier_files(history: History) -> None:
    active = Active(1, segment(read_version=0).stem, 0)
    history.commit(active)
    history.commit(SetVacuumHorizon(3))
    info = history.snapshot().partitions[0].segments[1]
    history.commit(Remove(0, info.stem), Add(info))
    history.commit(Seal(1, active.stem), Add(segment(1, 0, 5, stem=active.stem)))
    assert live(history, 1) == [(0, 5)]


def test_the_vacuum_horizon_only_rises_and_is_in_the_past(history: History) -> None:
    history.commit(SetVacuumHorizon(2))
    history.commit(SetVacuumHorizon(1))
    assert history.snapshot().gc_floor == 2
    refused(history, SetVacuumHorizon(5), match="future")


def test_a_dropped_topic_is_empty_and_accepts_only_a_vacuum_horizon(history: History) -> None:
    history.commit(SetTransaction("app", 1, {}))
    history.commit(Drop())
    snapshot = history.snapshot()
    assert snapshot.dropped
    assert (snapshot.partitions, len(snapshot.transactions)) == ((), 0)
    refused(history, Add(segment(0, 30)), match="dropped")
    refused(history, SetPartitions(5), match="dropped")
    refused(history, Drop(), match="dropped")
    history.commit(SetVacuumHorizon(3))
    assert history.snapshot().gc_floor == 3


def test_nothing_follows_a_drop_in_its_commit(history: History) -> None:
    refused(history, Drop(), SetPartitions(5), match="dropped")


def test_a_topic_is_created_again_under_a_new_id(history: History) -> None:
    history.commit(SetVacuumHorizon(1))
    history.commit(Drop())
    old = history.topic_id
    refused(history, Create("clicks"), SetPartitions(1), match="exists")
    history.topic_id = str(uuid.uuid4())
    history.create(1)
    snapshot = history.snapshot()
    assert (snapshot.topic_id, snapshot.dropped, snapshot.version) == (history.topic_id, False, 4)
    assert snapshot.partitions == (PartitionState(),)
    assert snapshot.gc_floor == 1
    refused(history, Add(segment(0, 0, read_version=4)), match="another topic", topic_id=old)


def test_a_live_topic_is_not_created_again(history: History) -> None:
    refused(history, Create("clicks"), match="exists", topic_id=str(uuid.uuid4()))
    refused(history, SetPartitions(3), Create("clicks"), match="first action")


def test_the_first_commit_creates_the_topic() -> None:
    with pytest.raises(CorruptMetadataError, match="another topic"):
        fold(None, [History().commit(SetPartitions(1))])
    with pytest.raises(CorruptMetadataError, match="no commit"):
        fold(None, [])


def test_commits_follow_each_other_in_number_chain_and_time(history: History) -> None:
    head = history.commits[-1]
    refused(history, version=3, match="does not follow")
    refused(history, version=1, match="does not follow")
    refused(history, prev=str(uuid.uuid4()), match="does not follow")
    refused(history, prev=None, match="does not follow")
    refused(history, timestamp_ms=head.timestamp_ms, match="time")
    refused(history, timestamp_ms=head.timestamp_ms - 1, match="time")
    refused(history, topic_id=str(uuid.uuid4()), match="another topic")
    with pytest.raises(CorruptMetadataError, match="does not follow"):
        fold(None, history.commits[1:])


def test_commit_bytes_add_up(history: History) -> None:
    assert history.snapshot().commit_bytes == sum(len(commit.encode()) for commit in history.commits)
