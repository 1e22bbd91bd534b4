"""A topic's folder is deleted under a live writer: a later commit fails, since it would have no beginning."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from addresses import Address
from commits import put_commit

import distlog
from distlog.core.commits.commit_log import EXISTENCE_CHECK_S, CommitLog
from distlog.core.config import TopicConfig
from distlog.core.errors import CommitConflictError, TopicNotFoundError
from distlog.core.storage.storage import Storage


def clock_of(now_s: list[float]) -> Callable[[], float]:
    return lambda: now_s[0]


def logged(storage: Storage, now_s: list[float]) -> CommitLog:
    return CommitLog(storage, clock=lambda: 1000, random=Random(1), writer="test", monotonic=clock_of(now_s))


def nothing(_: Any) -> list[Any]:
    return []


def test_a_commit_into_a_folder_that_was_deleted_is_refused_on_a_disk(tmp_path: Path) -> None:
    log = logged(Storage(tmp_path / "t"), [0.0])
    _, snapshot = put_commit(log, log.create(1, TopicConfig()), "config", nothing)
    shutil.rmtree(tmp_path / "t")
    with pytest.raises(TopicNotFoundError, match="deleted"):
        put_commit(log, snapshot, "config", nothing)
    assert not list(tmp_path.rglob("*.json"))
    with pytest.raises(TopicNotFoundError, match="deleted"):
        log.refresh(snapshot)
    assert log.create(1, TopicConfig()).version == 0


@pytest.mark.parametrize("commits", [1, 2, 3])
def test_a_commit_into_a_recreated_folder_is_refused_and_the_new_topic_stays_readable(
    tmp_path: Path, commits: int
) -> None:
    folder = tmp_path / "t"
    old = distlog.create(str(folder))
    old.append([{"value": b"old"}])
    shutil.rmtree(folder)
    new = distlog.create(str(folder))
    for _ in range(1, commits):
        new.append([{"value": b"new"}])
    with pytest.raises((CommitConflictError, TopicNotFoundError), match=r"deleted|dropped"):
        old.append([{"value": b"old"}])
    assert distlog.open(str(folder)).end_offsets() == {0: commits - 1}
    assert new.append([{"value": b"new"}]).version == commits


def append_and_delete(folder: Path) -> None:
    with distlog.create(str(folder)).writer() as writer:
        writer.append(b"a")
        writer.flush()
        shutil.rmtree(folder)
        writer.append(b"b")
        writer.flush()


def test_a_direct_append_into_a_deleted_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TopicNotFoundError, match="deleted"):
        append_and_delete(tmp_path / "t")
    assert not list(tmp_path.rglob("*.json"))


def test_on_an_object_store_a_commit_checks_earlier_commits_periodically(memory_url: Address) -> None:
    now_s, storage = [0.0], Storage(f"{memory_url.url}/t")
    log = logged(storage, now_s)
    snapshot = log.create(1, TopicConfig())
    counters = storage.counters
    for _ in range(3):
        puts, gets = counters.puts, counters.gets
        _, snapshot = put_commit(log, snapshot, "config", nothing)
        assert (counters.puts - puts, counters.gets - gets) == (1, 0)
    storage.delete([file.name for file in storage.list("_commits")])
    _, snapshot = put_commit(log, snapshot, "config", nothing)
    now_s[0] += EXISTENCE_CHECK_S
    with pytest.raises(TopicNotFoundError, match="deleted"):
        put_commit(log, snapshot, "config", nothing)
    with pytest.raises(TopicNotFoundError, match="deleted"):
        log.refresh(snapshot)


def test_a_refresh_on_an_object_store_detects_a_recreated_topic(memory_url: Address) -> None:
    now_s, storage = [0.0], Storage(f"{memory_url.url}/t")
    log = logged(storage, now_s)
    _, old = put_commit(log, log.create(1, TopicConfig()), "config", nothing)
    storage.delete([file.name for file in storage.list("_commits")])
    other = logged(storage, now_s)
    _, new = put_commit(other, other.create(1, TopicConfig()), "config", nothing)
    now_s[0] += EXISTENCE_CHECK_S
    for _ in range(2):
        with pytest.raises(CommitConflictError, match="dropped"):
            put_commit(log, old, "config", nothing)
    with pytest.raises(TopicNotFoundError, match="dropped"):
        log.refresh(old)
    assert other.load().version == new.version
