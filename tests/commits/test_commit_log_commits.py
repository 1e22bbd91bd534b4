"""Commits: their content, invalid ones, and concurrent writers."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from commits import put_commit
from histories import (
    CONFIG,
    Clock,
    append,
    appending,
    commit_log,
    raise_,
    requests,
    segment,
)

from distlog.core import paths
from distlog.core.commits.actions import (
    Action,
    Add,
    Remove,
    SetConfig,
    SetLogStartOffset,
    SetTransaction,
    SetVacuumHorizon,
)
from distlog.core.commits.commit_log import CommitLog
from distlog.core.commits.snapshot import Snapshot
from distlog.core.config import TopicConfig
from distlog.core.errors import CommitConflictError, CommitStateUnknownError, TransactionTooOldError
from distlog.core.storage.storage import MAX_CONDITIONAL_BYTES, Storage


def test_a_commit_records_its_operation_writer_and_time(storage: Storage) -> None:
    log = commit_log(storage, Clock(5_000), writer="distlog 1.0 somewhere")
    commit, snapshot = put_commit(log, log.create(1, CONFIG), "append", appending())
    assert commit is not None
    assert (commit.version, commit.operation, commit.writer) == (1, "append", "distlog 1.0 somewhere")
    assert (snapshot.version, snapshot.commit_id, snapshot.timestamp_ms) == (1, commit.id, 5_001)
    assert log.load() == snapshot


def test_a_commit_records_its_write(storage: Storage, log: CommitLog) -> None:
    created = log.create(1, CONFIG)
    _, head = put_commit(log, created, "append", appending(), write_id="a write")
    put_commit(log, head, "append", appending())
    named, unnamed = log.commits(1, 3)
    assert (named.write_id, named.writer) == ("a write", unnamed.writer)
    assert unnamed.write_id is None
    assert b"write_id" not in storage.read(paths.commit_file(2))


def test_an_empty_plan_commits_nothing(storage: Storage, log: CommitLog) -> None:
    created = log.create(1, CONFIG)
    assert requests(storage, lambda: put_commit(log, created, "append", lambda snapshot: None)) == (0, 0, 0)
    assert put_commit(log, created, "append", lambda snapshot: None) == (None, created)


def test_the_loser_of_a_race_plans_again(storage: Storage, log: CommitLog) -> None:
    created = log.create(2, CONFIG)
    append(commit_log(storage), created, 3, count=7)
    plans = []

    def plan(snapshot: Snapshot) -> list[Action] | None:
        plans.append(snapshot.version)
        return appending(0, 5)(snapshot)

    commit, snapshot = put_commit(log, created, "append", plan)
    assert plans == [0, 3]
    assert commit is not None
    assert commit.version == 4
    assert [(info.base_offset, info.next_offset) for info in snapshot.partitions[0].segments] == [
        (0, 7), (7, 14), (14, 21), (21, 26),
    ]  # fmt: skip
    assert log.load() == snapshot


def test_an_outdated_plan_fails_after_a_lost_race(storage: Storage, log: CommitLog) -> None:
    snapshot = append(log, log.create(1, CONFIG), 2)
    oldest = snapshot.partitions[0].segments[0]

    def compact(current: Snapshot) -> list[Action]:
        if not current.partitions[0].segments.common_stems([oldest.stem]):
            raise CommitConflictError("an input was removed")
        return [Remove(0, oldest.stem), Add(segment(0, 0, 10))]

    put_commit(
        commit_log(storage), snapshot, "retention", lambda current: [Remove(0, oldest.stem), SetLogStartOffset(0, 10)]
    )
    with pytest.raises(CommitConflictError, match="an input was removed"):
        put_commit(log, snapshot, "compact", compact)
    assert log.load().version == 3


def test_a_plan_that_breaks_an_invariant_is_never_written(storage: Storage, log: CommitLog) -> None:
    snapshot = log.create(1, CONFIG)
    wrong: list[Action]
    for wrong in (
        [Add(segment(0, 5))],
        [Remove(0, segment().stem)],
        [SetConfig({"x": 1})],
        [SetTransaction("", 1, {})],
    ):
        with pytest.raises(CommitConflictError, match="nothing was committed"):
            put_commit(log, snapshot, "append", lambda current, wrong=wrong: wrong)
    assert log.load() == snapshot


def test_a_repeated_batch_is_committed_once(storage: Storage, log: CommitLog) -> None:
    created = log.create(1, CONFIG)
    first, snapshot = put_commit(log, created, "append", appending(batch=("app", 7)))
    assert first is not None
    for stale in (created, snapshot):
        again, head = put_commit(commit_log(storage), stale, "append", appending(batch=("app", 7)))
        assert again is None
        transaction = head.transactions.get("app", 7)
        assert transaction is not None
        assert (transaction.version, transaction.offsets) == (first.version, {0: (0, 10)})
    assert log.load() == snapshot


def test_concurrent_changes_of_settings_are_both_kept(storage: Storage, log: CommitLog) -> None:
    def setting(**settings: str) -> Callable[[Snapshot], list[Action]]:
        changes = {name.replace("_", "."): value for name, value in settings.items()}
        return lambda snapshot: [SetConfig(snapshot.config.changed(changes).overrides())]

    created = log.create(1, TopicConfig())
    put_commit(log, created, "config", setting(retention_ms="1"))
    put_commit(commit_log(storage), created, "config", setting(segment_ms="2"))
    assert log.load().config.overrides() == {"retention.ms": "1", "segment.ms": "2"}


def test_files_older_than_the_vacuum_horizon_must_be_rewritten(storage: Storage, log: CommitLog) -> None:
    created = log.create(1, CONFIG)
    _, floor = put_commit(log, append(log, created, 2), "gc", lambda snapshot: [SetVacuumHorizon(2)])
    for stale in (created, floor):
        with pytest.raises(TransactionTooOldError, match=r"write them again.*read_version=0 gc_floor=2"):
            put_commit(log, stale, "append", appending())
        with pytest.raises(TransactionTooOldError):
            put_commit(log, stale, "append", lambda snapshot: [], read_version=1)
    assert log.load() == floor
    put_commit(log, floor, "append", lambda snapshot: [Add(segment(0, 20, read_version=2))], read_version=2)


def test_a_segment_may_be_replaced_under_its_name_before_the_vacuum_horizon(log: CommitLog) -> None:
    _, floor = put_commit(log, append(log, log.create(1, CONFIG), 2), "gc", lambda snapshot: [SetVacuumHorizon(2)])
    info = floor.partitions[0].segments[0]
    commit, _ = put_commit(log, floor, "rebuild", lambda snapshot: [Remove(0, info.stem), Add(info)])
    assert commit is not None


def test_an_unknown_outcome_is_passed_on(storage: Storage, log: CommitLog, monkeypatch: pytest.MonkeyPatch) -> None:
    created = log.create(1, CONFIG)
    monkeypatch.setattr(storage, "put_if_absent", lambda *_, **__: raise_(CommitStateUnknownError("who knows")))
    with pytest.raises(CommitStateUnknownError):
        append(log, created)


def test_the_deadline_ends_a_race_that_is_never_won(storage: Storage) -> None:
    now = itertools.count(0.0, 5.0)
    pauses: list[float] = []
    log = commit_log(storage, monotonic=lambda: next(now), sleep=pauses.append)
    rival = commit_log(storage)
    created = rival.create(1, CONFIG)

    def plan(snapshot: Snapshot) -> list[Action] | None:
        append(rival, snapshot)
        return appending()(snapshot)

    with pytest.raises(CommitConflictError, match="deadline"):
        put_commit(log, created, "append", plan, timeout_s=100)
    assert log.load().version == len(pauses) + 1
    assert 2 <= len(pauses) <= 10
    assert all(0 <= pause <= 0.05 for pause in pauses)
    assert len(set(pauses)) > 1


def test_maintenance_yields_to_appends(storage: Storage) -> None:
    pauses: list[float] = []
    log = commit_log(storage, sleep=pauses.append)
    created = log.create(1, CONFIG)
    for rival in range(20):
        append(commit_log(storage), created)
        put_commit(log, created, "compact", lambda snapshot: [])
        assert len(pauses) == rival + 1
    assert max(pauses) > 0.3


def test_commit_times_rise_when_the_clock_steps_back(storage: Storage) -> None:
    clock = Clock(10_000)
    log = commit_log(storage, clock)
    snapshot = log.create(1, CONFIG)
    times = [snapshot.timestamp_ms]
    for now_ms in (10_500, 10_500, 3_000, 10_501, 20_000):
        clock.now_ms = now_ms
        snapshot = append(log, snapshot)
        times.append(snapshot.timestamp_ms)
    assert times == [10_000, 10_500, 10_501, 10_502, 10_503, 20_000]


@pytest.mark.long
def test_a_commit_that_is_too_large_is_refused_and_puts_nothing(storage: Storage, log: CommitLog) -> None:
    snapshot = log.create(1, CONFIG)
    batches = [SetTransaction("x" * 1000, number, {}) for number in range(66_000)]
    old_puts = storage.counters.puts
    with pytest.raises(CommitConflictError, match="several") as caught:
        put_commit(log, snapshot, "append", lambda _: batches)
    assert caught.value.details["size"] > MAX_CONDITIONAL_BYTES
    assert (storage.counters.puts, log.load()) == (old_puts, snapshot)
