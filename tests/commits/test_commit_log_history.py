"""Versions and times of the past, and topics that are dropped and created again."""

from __future__ import annotations

import pytest
from commits import put_commit
from histories import (
    CONFIG,
    Clock,
    append,
    commit_log,
    drop,
    forged,
    segment,
)

from distlog.core import paths
from distlog.core.commits.actions import Add, SetLogHorizon, SetVacuumHorizon
from distlog.core.commits.commit_log import CommitLog
from distlog.core.commits.snapshot import Snapshot
from distlog.core.config import TopicConfig
from distlog.core.errors import CommitConflictError, CorruptMetadataError, OffsetOutOfRangeError, TopicNotFoundError
from distlog.core.storage.storage import Storage


def test_every_version_can_be_loaded(storage: Storage, old: Snapshot) -> None:
    log = commit_log(storage)
    for version in range(26):
        assert log.load(version=version).version == version
        assert len(log.load(version=version).partitions[0].segments) == version
    assert log.load(version=25) == old


@pytest.mark.parametrize("version", [-1, 26, 10**12])
def test_a_version_that_does_not_exist_is_out_of_range(storage: Storage, old: Snapshot, version: int) -> None:
    with pytest.raises(OffsetOutOfRangeError, match=rf"version={version}"):
        commit_log(storage).load(version=version)


def test_a_time_selects_the_newest_commit_up_to_it(storage: Storage) -> None:
    clock = Clock(1_000)
    log = commit_log(storage, clock, checkpoint_commits=3)
    snapshot = log.create(1, CONFIG)
    for clock.now_ms in range(2_000, 9_000, 1_000):
        snapshot = append(log, snapshot)
    for timestamp_ms, version in [(1_000, 0), (1_999, 0), (2_000, 1), (7_999, 6), (8_000, 7), (10**15, 7)]:
        assert log.load(timestamp_ms=timestamp_ms).version == version
    with pytest.raises(OffsetOutOfRangeError, match="timestamp_ms=999"):
        log.load(timestamp_ms=999)


def test_history_is_newest_first(storage: Storage, old: Snapshot) -> None:
    log = commit_log(storage)
    assert [commit.version for commit in log.history()] == list(range(25, -1, -1))
    assert [commit.version for commit in log.history(limit=3)] == [25, 24, 23]
    assert [commit.version for commit in log.history(limit=100)] == list(range(25, -1, -1))
    assert log.history(limit=1)[0].id == old.commit_id


def test_history_starts_at_a_horizon_that_rises_concurrently(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = commit_log(storage, checkpoint_commits=1)
    old_snapshot = append(log, append(log, append(log, log.create(1, CONFIG))))
    put_commit(log, old_snapshot, "gc", lambda _: [SetVacuumHorizon(2), SetLogHorizon(2)])
    storage.delete([paths.commit_file(version) for version in (0, 1)])
    heads = iter([old_snapshot])
    load = log.load
    monkeypatch.setattr(log, "load", lambda **named: next(heads, None) or load(**named))
    assert [commit.version for commit in log.history()] == [4, 3, 2]


def test_history_reports_a_replaced_commit(storage: Storage, old: Snapshot) -> None:
    old_snapshot = commit_log(storage).load(version=2)
    forged(storage, old_snapshot)
    log = commit_log(storage)
    assert log.load() == old
    assert len(log.history(limit=20)) == 20
    with pytest.raises(CorruptMetadataError, match="version=4"):
        log.history()


def test_a_dropped_topic_is_not_found(storage: Storage, log: CommitLog) -> None:
    created = log.create(1, CONFIG)
    dropped = drop(log, append(log, created))
    with pytest.raises(TopicNotFoundError):
        log.load()
    with pytest.raises(TopicNotFoundError):
        log.refresh(created)
    assert log.load(include_dropped=True) == dropped
    assert log.load(version=1).version == 1
    assert [commit.operation for commit in log.history()] == ["drop", "append", "create"]


def test_a_recreated_topic_continues_the_versions(storage: Storage, log: CommitLog) -> None:
    first = log.create(2, CONFIG)
    drop(log, append(log, first))
    second = log.create(1, TopicConfig())
    assert second.version == 3
    assert second.topic_id != first.topic_id
    assert (len(second.partitions), second.partitions[0].log_end_offset) == (1, 0)
    assert log.load() == second
    assert log.load(version=1).topic_id == first.topic_id


def test_a_topic_records_when_it_replaced_a_dropped_one_unless_imported(storage: Storage) -> None:
    log = commit_log(storage, Clock(1_000), checkpoint_commits=1)
    first = log.create(1, CONFIG)
    drop(log, append(log, first))
    second = log.create(1, CONFIG)
    assert (first.replaced_ms, second.replaced_ms) == (0, second.timestamp_ms)
    third = append(log, append(log, second))
    assert commit_log(storage).load().replaced_ms == second.timestamp_ms < third.timestamp_ms
    drop(log, third)
    assert log.create(1, CONFIG, imported=[Add(segment())]).replaced_ms == 0


def test_an_old_writer_cannot_write_into_the_new_topic(storage: Storage, log: CommitLog) -> None:
    old_writer = commit_log(storage)
    old_snapshot = append(old_writer, log.create(1, CONFIG))
    drop(log, log.load())
    with pytest.raises(CommitConflictError, match="dropped"):
        append(old_writer, old_snapshot)
    created = log.create(1, CONFIG)
    with pytest.raises(CommitConflictError, match="dropped"):
        append(old_writer, old_snapshot)
    with pytest.raises(TopicNotFoundError, match="dropped"):
        old_writer.refresh(old_snapshot)
    assert log.load() == created
