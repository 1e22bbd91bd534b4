"""Verify reports faults of commits and checkpoints, and differences between versions."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from commits import put_commit
from verified_topics import (
    anomalies_of,
    changed,
    flip,
    segment_of,
    topic_at,
    verified,
)

import distlog
from distlog import Topic
from distlog.core import paths
from distlog.core.commits import checkpoint
from distlog.core.commits.actions import Remove
from distlog.core.commits.partition_table import PartitionTable
from distlog.core.commits.segment_table import SegmentTable
from distlog.core.commits.snapshot import PartitionState
from distlog.core.maintain.verify import rebuild_indexes, verify, verify_table


def test_a_missing_and_a_damaged_commit(topic: Topic) -> None:
    name = paths.commit_file(1)
    data = topic.storage.read(name)
    topic.storage.put(name, data.replace(b'"append"', b'"appent"'))
    (anomaly,) = verified(topic).anomalies
    assert (anomaly.word, anomaly.file) == ("corrupt_commit", name)
    topic.storage.delete([name])
    (anomaly,) = verified(topic).anomalies
    assert (anomaly.word, anomaly.file) == ("missing_commit", name)


def test_a_commit_of_another_topic(topic: Topic, tmp_path: Path) -> None:
    other = topic_at(str(tmp_path / "other" / "log"))
    topic.storage.put(paths.commit_file(1), other.storage.read(paths.commit_file(1)))
    assert [anomaly.word for anomaly in verified(topic).anomalies] == ["corrupt_commit"]


def test_checkpoints_are_compared_with_the_commits(topic: Topic) -> None:
    checkpoint.write(topic.storage, topic.log.load(version=1))
    right = checkpoint.write(topic.storage, topic.snapshot)
    assert anomalies_of(topic) == []
    data = topic.storage.read(right)
    topic.storage.put(right, data[:-1])
    (anomaly,) = verified(topic).anomalies
    assert (anomaly.word, anomaly.file) == ("checkpoint_mismatch", right)
    topic.storage.delete([right])
    wrong = checkpoint.write(topic.storage, dataclasses.replace(topic.snapshot, gc_floor=1))
    (anomaly,) = verified(topic).anomalies
    assert (anomaly.word, anomaly.file) == ("checkpoint_mismatch", wrong)


def test_a_wrong_checkpoint_is_ignored(topic: Topic) -> None:
    checkpoint.write(topic.storage, dataclasses.replace(topic.snapshot, gc_floor=1))
    reopened = distlog.open(topic.url)
    assert reopened.snapshot.gc_floor == 1
    assert [anomaly.word for anomaly in verified(reopened).anomalies] == ["checkpoint_mismatch", "metadata_mismatch"]


def test_an_older_version_is_verified(topic: Topic) -> None:
    older = distlog.open(topic.url, version=1)
    assert verified(older).ok
    assert len(verified(older).segments) == 1


@pytest.mark.parametrize(
    ("bases", "ends", "start", "end", "dirty", "expected"),
    [
        ([0, 10], [10, 20], 0, 20, 0, []),
        ([0, 10], [10, 20], 7, 20, 0, []),
        ([], [], 5, 5, 0, []),
        ([0, 12], [10, 20], 0, 20, 0, [("offset_gap", 10)]),
        ([0, 12], [10, 20], 0, 20, 12, []),
        ([0, 12], [10, 20], 0, 20, 11, [("offset_gap", 10)]),
        ([0, 8], [10, 20], 0, 20, 20, [("offset_overlap", 8)]),
        ([5], [20], 0, 20, 0, [("offset_gap", 0)]),
        ([0], [10], 0, 20, 0, [("offset_gap", 10)]),
        ([0], [30], 0, 20, 0, [("offset_overlap", 20)]),
        ([], [], 5, 8, 0, [("offset_gap", 5)]),
    ],
)
def test_segments_follow_each_other(
    topic: Topic, bases: list[int], ends: list[int], start: int, end: int, dirty: int, expected: list[Any]
) -> None:
    like = segment_of(topic)
    table = SegmentTable.of(
        [dataclasses.replace(like, base_offset=low, next_offset=high) for low, high in zip(bases, ends, strict=True)]
    )
    state = PartitionState(log_start_offset=start, log_end_offset=end, segments=table, first_dirty_offset=dirty)
    snapshot = dataclasses.replace(topic.snapshot, partitions=PartitionTable.of([state]))
    assert [(anomaly.word, anomaly.offset) for anomaly in verify_table(snapshot)] == expected


def test_concurrently_vacuumed_or_rebuilt_segments_are_not_wrong(topic: Topic) -> None:
    """Verify takes its snapshot; a segment is removed, and the other one's indexes are rebuilt; then verify reads."""
    stale = topic.snapshot
    first = segment_of(topic)
    put_commit(topic.log, stale, "retention", lambda snapshot: [Remove(0, first.stem)])
    topic.storage.delete([topic.reader.name(first, suffix) for suffix in (".log", ".index", ".timeindex")])
    topic.refresh()
    topic.alter_config({"index.interval.bytes": 0})
    rebuild_indexes(topic.handle, topic.snapshot, force=True)
    report = verify(topic.handle, stale)
    assert report.segments[0].segment.base_offset == 40
    assert len(report.segments) == 1
    assert report.ok


def test_a_damaged_removed_segment_is_reported(topic: Topic) -> None:
    stale = topic.snapshot
    changed(topic, ".log", flip(70))
    put_commit(topic.log, stale, "retention", lambda snapshot: [Remove(0, segment_of(topic).stem)])
    assert not verify(topic.handle, stale).ok
