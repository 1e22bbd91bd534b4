"""Retention and delete-records with concurrent direct appends."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from partition_logs import Process, append, new_topic, sealed
from topics import NOW, Clock

from distlog.core.commits.snapshot import Snapshot
from distlog.core.errors import InvalidConfigError, OffsetOutOfRangeError, TopicNotFoundError
from distlog.core.maintain.retention import LOG_END, PartitionRetention, retention

#: Bytes of a batch with one record, a null key and a value of one byte.
SIZE = 69
HOUR_MS = 3_600_000


def topic_of(folder: Path, partitions: int = 1, **settings: object) -> Path:
    return new_topic(folder / "events", partitions=partitions, **settings)


def removed(process: Process, now_ms: int = NOW, *, dry_run: bool = False) -> list[PartitionRetention]:
    """Return the deletions of retention at `now_ms`."""
    return retention(dataclasses.replace(process.handle, clock=Clock(now_ms)), process.head(), dry_run=dry_run)[0]


def active(snapshot: Snapshot, partition: int = 0) -> int | None:
    segment = snapshot.partitions[partition].active
    return segment.base_offset if segment else None


def test_an_expired_active_segment_is_sealed_and_removed(tmp_path: Path) -> None:
    process = Process(topic_of(tmp_path, retention_ms=HOUR_MS))
    append(process[0], b"a", b"b")
    (plan,) = removed(process, NOW + HOUR_MS + 1)
    assert (plan.records, plan.too_old, plan.log_start_offset) == (2, 1, 2)
    assert [commit.operation for commit in process.handle.log.history(2)] == ["retention", "seal"]
    assert (sealed(process.head()), active(process.head())) == ([], None)
    assert append(process[0], b"c") == (2, 3)
    assert process.topic().start_offsets() == {0: 2}
    assert process.values() == {0: [b"c"]}


def test_expired_sealed_segments_are_removed_and_a_fresh_active_one_stays(tmp_path: Path) -> None:
    process = Process(topic_of(tmp_path, retention_ms=HOUR_MS))
    append(process[0], b"a", time=NOW - HOUR_MS)
    process[0].roll()
    append(process[0], b"b")
    (plan,) = removed(process, NOW + 1)
    assert ([segment.base_offset for segment in plan.segments], plan.log_start_offset) == ([0], 1)
    assert [commit.operation for commit in process.handle.log.history(2)] == ["retention", "roll"]
    assert (sealed(process.head()), active(process.head())) == ([], 1)
    assert process.values() == {0: [b"b"]}


def test_the_active_segment_counts_for_retention_bytes(tmp_path: Path) -> None:
    process = Process(topic_of(tmp_path, retention_bytes=SIZE))
    append(process[0], b"a")
    process[0].roll()
    append(process[0], b"b")
    (plan,) = removed(process)
    # at least retention.bytes stay
    assert (plan.above_size, plan.log_bytes, plan.log_start_offset) == (1, SIZE, 1)
    assert active(process.head()) == 1
    assert removed(process) == []


def test_an_empty_active_segment_stays(tmp_path: Path) -> None:
    process = Process(topic_of(tmp_path, retention_ms=HOUR_MS))
    append(process[0], b"a")
    process[0].roll()
    (plan,) = removed(process, NOW + 2 * HOUR_MS)
    assert (plan.records, active(process.head())) == (1, 1)
    assert removed(process, NOW + 9 * HOUR_MS) == []
    assert active(process.head()) == 1


def test_all_partitions_whose_active_segments_expired_are_sealed_in_one_commit_and_others_are_not(
    tmp_path: Path,
) -> None:
    process = Process(topic_of(tmp_path, 3, retention_ms=HOUR_MS))
    for partition, time in enumerate((NOW - HOUR_MS, NOW, NOW - HOUR_MS)):
        append(process[partition], b"a", time=time)
    assert [plan.partition for plan in removed(process, NOW + 1)] == [0, 2]
    assert [commit.operation for commit in process.handle.log.history(2)] == ["retention", "seal"]
    assert [active(process.head(), partition) for partition in range(3)] == [None, 0, None]


def test_a_dry_run_names_the_active_segment_and_changes_nothing(tmp_path: Path) -> None:
    process = Process(topic_of(tmp_path, retention_ms=HOUR_MS))
    append(process[0], b"a")
    head = process.head()
    (plan,) = removed(process, NOW + 2 * HOUR_MS, dry_run=True)
    assert ([segment.is_active for segment in plan.segments], plan.log_start_offset) == ([True], 1)
    assert process.head() == head


def test_records_of_an_active_segment_are_deleted_and_it_is_sealed_in_the_same_commit(tmp_path: Path) -> None:
    process, other = Process(topic_of(tmp_path)), Process(tmp_path / "events")
    append(process[0], b"a", b"b", b"c")
    report = process.topic().delete_records({0: 2})
    assert report.log_start_offsets == {0: 2}
    commit = process.handle.log.history(1)[0]
    assert [type(action).__name__ for action in commit.actions] == ["Seal", "Add", "SetLogStartOffset"]
    assert append(other[0], b"d") == (3, 4)
    assert process.values() == {0: [b"c", b"d"]}


def test_the_log_end_includes_the_active_segment(tmp_path: Path) -> None:
    process = Process(topic_of(tmp_path, 2))
    append(process[0], b"a")
    process[0].roll()
    append(process[0], b"b", b"c")
    assert process.topic().delete_records({0: LOG_END, 1: LOG_END}).log_start_offsets == {0: 3, 1: 0}
    assert process.values() == {0: [], 1: []}
    assert append(process[0], b"d") == (3, 4)


def test_an_offset_below_the_active_segment_leaves_it_alone(tmp_path: Path) -> None:
    process = Process(topic_of(tmp_path))
    append(process[0], b"a")
    process[0].roll()
    append(process[0], b"b")
    for offset in (0, 1):
        process.topic().delete_records({0: offset})
    assert active(process.head()) == 1
    assert process.values() == {0: [b"b"]}


def test_only_partitions_whose_active_segments_lose_records_are_sealed(tmp_path: Path) -> None:
    process = Process(topic_of(tmp_path, 3))
    for partition in range(3):
        append(process[partition], b"a", b"b")
    process.topic().delete_records({0: 0, 1: 1})
    assert [active(process.head(), partition) for partition in range(3)] == [0, None, 0]


def test_a_refused_request_seals_nothing_and_reports_the_log_end(tmp_path: Path) -> None:
    process = Process(topic_of(tmp_path))
    append(process[0], b"a", b"b")
    with pytest.raises(OffsetOutOfRangeError, match="log_end_offset=2"):
        process.topic().delete_records({0: 3})
    with pytest.raises(TopicNotFoundError):
        process.topic().delete_records({0: 1, 5: 0})
    process.topic().alter_config({"cleanup.policy": "compact"})
    append(process[0], b"c")
    with pytest.raises(InvalidConfigError):
        process.topic().delete_records({0: LOG_END})
    assert active(process.head()) == 2
