"""The commit log: topics that are created and loaded, and the requests of each."""

from __future__ import annotations

import pytest
from addresses import Address
from commits import put_commit
from histories import CONFIG, RunsFirst, append, commit_log, requests

from distlog.core import paths
from distlog.core.commits import snapshot_loader
from distlog.core.commits.actions import Drop
from distlog.core.commits.commit_log import CommitLog
from distlog.core.errors import (
    InvalidConfigError,
    InvalidTopicError,
    TopicExistsError,
    TopicNotFoundError,
)
from distlog.core.storage.storage import Storage
from distlog.core.times import now_ms


def test_a_created_topic_can_be_loaded(storage: Storage, log: CommitLog) -> None:
    created = log.create(3, CONFIG)
    assert (created.version, created.name, len(created.partitions), created.config) == (0, "clicks", 3, CONFIG)
    assert commit_log(storage).load() == created


def test_a_missing_topic_is_not_found(storage: Storage, log: CommitLog) -> None:
    for call in (log.load, log.history, lambda: log.load(version=0), lambda: log.load(timestamp_ms=0)):
        with pytest.raises(TopicNotFoundError, match="clicks"):
            call()


def test_a_topic_is_created_once(storage: Storage, log: CommitLog) -> None:
    created = log.create(1, CONFIG)
    with pytest.raises(TopicExistsError):
        commit_log(storage).create(2, CONFIG)
    assert log.load() == created


def test_concurrent_create_succeeds_once(storage: Storage) -> None:
    second = commit_log(storage)
    first = commit_log(RunsFirst(storage, "put_if_absent", lambda: second.create(2, CONFIG)))
    with pytest.raises(TopicExistsError):
        first.create(1, CONFIG)
    assert len(first.load().partitions) == 2


def test_a_topic_is_named_as_its_folder(memory_url: Address) -> None:
    with pytest.raises(InvalidTopicError):
        commit_log(Storage(f"{memory_url.url}/not a topic")).create(1, CONFIG)


@pytest.mark.parametrize("partitions", [0, -1, 10**9])
def test_a_number_of_partitions_out_of_range_creates_nothing(log: CommitLog, partitions: int) -> None:
    with pytest.raises(InvalidConfigError, match="partitions"):
        log.create(partitions, CONFIG)
    with pytest.raises(TopicNotFoundError):
        log.load()


def test_a_refresh_without_new_commits_is_one_request(storage: Storage, log: CommitLog) -> None:
    snapshot = append(log, log.create(1, CONFIG), 5)
    assert requests(storage, lambda: log.refresh(snapshot)) == (1, 0, 0)


def test_a_commit_on_a_fresh_snapshot_is_one_put(storage: Storage, log: CommitLog) -> None:
    snapshot = log.create(1, CONFIG)
    assert requests(storage, lambda: append(log, snapshot)) == (0, 1, 0)


def test_a_lost_race_costs_one_put_and_the_winner_is_read_once(storage: Storage, log: CommitLog) -> None:
    snapshot = log.create(1, CONFIG)
    append(commit_log(storage), snapshot)
    # put_if_absent returns the winner's bytes; the other request finds no next version
    assert requests(storage, lambda: append(log, snapshot)) == (2, 2, 0)


def test_opening_reads_the_hint_the_checkpoint_its_commit_s_time_and_one_group_of_commits(storage: Storage) -> None:
    log = commit_log(storage, checkpoint_commits=10, clock=now_ms)
    append(log, log.create(1, CONFIG), 11)
    assert requests(storage, log.load) == (2 + 1 + 4, 0, 0)


@pytest.mark.parametrize(("commits", "reads"), [(0, 2), (1, 2), (2, 4)])
def test_a_loaded_topic_is_reloaded_with_its_new_commits_only(storage: Storage, commits: int, reads: int) -> None:
    log = commit_log(storage, checkpoint_commits=10)
    snapshot = append(log, log.create(1, CONFIG), 25)
    head = append(log, snapshot, commits) if commits else snapshot
    assert requests(storage, lambda: log.load(cached=snapshot)) == (reads, 0, 0)
    assert log.load(cached=snapshot) == head == commit_log(storage).load()


@pytest.mark.parametrize(("recent_ms", "version", "reads"), [(150, 27, 2), (250, 26, 1), (2000, 26, 1), (0, 29, 8)])
def test_a_recent_first_new_commit_is_taken_as_the_head(
    storage: Storage, recent_ms: int, version: int, reads: int
) -> None:
    times = iter([*[0] * 26, 1000, 1100, 1150, 1180])
    log = commit_log(storage, clock=lambda: next(times, 1200))
    snapshot = append(log, log.create(1, CONFIG), 25)
    head = append(log, snapshot, 4)
    loaded = log.load(cached=snapshot, recent_ms=recent_ms)
    assert (loaded.version, head.version) == (version, 29)
    assert requests(storage, lambda: log.load(cached=snapshot, recent_ms=recent_ms)) == (reads, 0, 0)


def test_a_recent_drop_is_not_taken_as_the_head(storage: Storage, log: CommitLog) -> None:
    snapshot = log.create(1, CONFIG)
    put_commit(log, snapshot, "drop", lambda _: [Drop()])
    new_topic = log.create(2, CONFIG)
    assert log.load(cached=snapshot, recent_ms=10_000) == new_topic


def test_a_commit_from_the_future_is_not_recent(storage: Storage) -> None:
    now_ms = 1000
    log = commit_log(storage, clock=lambda: now_ms)
    snapshot = log.create(1, CONFIG)
    head = append(log, snapshot, 2)
    now_ms = 900
    assert log.load(cached=snapshot, recent_ms=10_000) == head


def test_a_dropped_topic_is_deleted_and_a_recreated_one_is_another(storage: Storage, log: CommitLog) -> None:
    snapshot = append(log, log.create(1, CONFIG), 3)
    put_commit(log, snapshot, "drop", lambda _: [Drop()])
    with pytest.raises(TopicNotFoundError):
        log.load(cached=snapshot)
    new_topic = log.create(2, CONFIG)
    assert log.load(cached=snapshot) == new_topic


@pytest.mark.parametrize("commits", [1, 9])
def test_a_topic_with_a_deleted_folder_is_loaded_from_the_beginning(
    storage: Storage, log: CommitLog, commits: int
) -> None:
    snapshot = append(log, log.create(1, CONFIG), 5)
    storage.delete([file.name for file in storage.list(paths.COMMITS_DIR)])
    with pytest.raises(TopicNotFoundError):
        log.load(cached=snapshot)
    new_topic = append(log, log.create(1, CONFIG), commits)
    assert log.load(cached=snapshot) == new_topic == commit_log(storage).load()


@pytest.mark.parametrize("commits", [0, 1, 6])
def test_a_topic_of_few_commits_takes_a_listing_and_a_request_for_each(
    storage: Storage, log: CommitLog, commits: int
) -> None:
    head = append(log, log.create(1, CONFIG), commits)
    reader = commit_log(storage, defaults={"max.message.bytes": 7_000})
    assert requests(storage, lambda: reader.load(by_listing=True)) == (1 + commits, 0, 1)
    assert reader.load(by_listing=True) == reader.load()
    assert log.load(by_listing=True) == head


def test_a_topic_of_few_commits_may_have_checkpoints_or_none_or_be_dropped(storage: Storage, log: CommitLog) -> None:
    def finds_none() -> None:
        with pytest.raises(TopicNotFoundError):
            log.load(by_listing=True)

    assert requests(storage, finds_none) == (0, 0, 1)
    writer = commit_log(storage, checkpoint_commits=4)
    head = append(writer, writer.create(1, CONFIG), 6)
    assert requests(storage, lambda: log.load(by_listing=True)) == (4, 0, 1)
    assert log.load(by_listing=True) == head
    put_commit(log, head, "drop", lambda _: [Drop()])
    finds_none()


def test_a_topic_of_many_commits_is_opened_by_its_hint(
    storage: Storage, log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_loader, "ONE_PAGE", 20)
    writer = commit_log(storage, checkpoint_commits=10)
    head = append(writer, writer.create(1, CONFIG), 31)
    assert log.load(by_listing=True) == head
    by_hint = requests(storage, log.load)
    assert requests(storage, lambda: log.load(by_listing=True)) == (by_hint[0], 0, by_hint[2] + 1)
