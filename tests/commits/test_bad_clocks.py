"""A process whose clock is far ahead, and the effect of its commits on other processes."""

from __future__ import annotations

import dataclasses
import errno
import logging
import os
from pathlib import Path

import pytest
from addresses import Address
from topics import NOW, Clock, contents, topic_on, values
from two_clocks import MONTH_MS, TwoClocks

from distlog.core.commits.commit_log import MAX_CLOCK_AHEAD_MS
from distlog.core.config import DAY_MS
from distlog.core.errors import StorageError
from distlog.core.storage.storage import FileInfo, Storage
from distlog.core.times import now_ms
from distlog.core.topic import Topic


@pytest.fixture
def world(tmp_path: Path) -> TwoClocks:
    return TwoClocks(Storage(tmp_path / "log"))


def test_a_commit_has_the_storages_time_if_the_clock_is_far_ahead(
    storage_url: Address, caplog: pytest.LogCaptureFixture
) -> None:
    storage = Storage(f"{storage_url.url}/log", storage_url.options)
    before_ms = now_ms()
    with caplog.at_level(logging.WARNING):
        topic = topic_on(storage, 1, clock=lambda: now_ms() + MONTH_MS)
        topic.append(values([1]))
    assert "ahead of the storage's" in caplog.text
    times = [commit.timestamp_ms for commit in topic.log.history()]
    assert all(before_ms - DAY_MS < time < before_ms + DAY_MS for time in times)
    (segment,) = topic.snapshot.partitions[0].segments
    assert segment.created_ms <= times[0]


def test_a_repeated_batch_is_known_after_a_month_ahead_was_tried(storage_url: Address) -> None:
    world = TwoClocks(Storage(f"{storage_url.url}/log", storage_url.options))
    for number in range(3):
        world.good.append(values([number]), app_id="app", batch_id=number)
    world.by(world.bad).append(values([3]))
    again = world.by(world.store)
    for number in range(3):
        assert again.append(values([number]), app_id="app", batch_id=number).replayed
    assert contents(again) == {0: [b"v0", b"v1", b"v2", b"v3"]}


@pytest.mark.s3
def test_consecutive_commits_do_not_request_the_storages_time(s3_url: Address) -> None:
    """An append requests the next commit, and puts a log, an index and a commit, until the clock leaps."""
    clock = Clock()
    topic = topic_on(Storage(f"{s3_url.url}/log", s3_url.options), 1, clock=clock)
    topic.append(values([0]))
    for number in range(1, 4):
        clock.now_ms += MAX_CLOCK_AHEAD_MS
        assert cost_of_append(topic, number) == (1, 3, 0)
    clock.now_ms += MAX_CLOCK_AHEAD_MS + 10
    assert cost_of_append(topic, 4) == (1, 3, 1)


def cost_of_append(topic: Topic, number: int) -> tuple[int, int, int]:
    """Return the numbers of get, put and list requests."""
    counters = topic.storage.counters
    old_counters = dataclasses.replace(counters)
    topic.append(values([number]))
    return counters.gets - old_counters.gets, counters.puts - old_counters.puts, counters.lists - old_counters.lists


def test_a_clock_that_is_slightly_ahead_or_late_is_trusted(world: TwoClocks) -> None:
    world.bad.now_ms = NOW + MAX_CLOCK_AHEAD_MS
    assert world.by(world.bad).append(values([1])).version == 1
    assert world.good.refresh().snapshot.timestamp_ms == NOW + MAX_CLOCK_AHEAD_MS
    world.bad.now_ms = NOW - MONTH_MS
    world.by(world.bad).append(values([1]))
    assert world.good.refresh().snapshot.timestamp_ms == NOW + MAX_CLOCK_AHEAD_MS + 1


def test_retention_by_a_process_a_month_ahead_deletes_nothing_early(tmp_path: Path) -> None:
    world = TwoClocks(Storage(tmp_path / "log"), retention_ms=DAY_MS)
    world.good.append(values([1, 2]))
    world.store.now_ms += DAY_MS // 2
    world.bad.now_ms = world.store.now_ms + MONTH_MS
    assert world.by(world.bad).retention(dry_run=True).to_dict()["segments"] == 0
    assert world.by(world.bad).retention().to_dict()["segments"] == 0
    world.store.now_ms += DAY_MS
    assert world.by(world.bad).retention().to_dict()["segments"] == 1


def test_records_of_a_bad_clock_age_from_their_commit(tmp_path: Path) -> None:
    world = TwoClocks(Storage(tmp_path / "log"), retention_ms=DAY_MS)
    world.by(world.bad).append([{"value": "v"}])
    good = world.by(world.store)
    assert good.snapshot.partitions[0].segments[0].max_timestamp == world.bad.now_ms
    world.store.now_ms += DAY_MS - 1
    assert good.retention().to_dict()["segments"] == 0
    world.store.now_ms += 3
    assert good.retention().to_dict()["segments"] == 1


def test_compaction_by_a_process_a_month_ahead_drops_no_tombstone_before_its_time(tmp_path: Path) -> None:
    settings = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": 0, "delete_retention_ms": DAY_MS}
    world = TwoClocks(Storage(tmp_path / "log"), **settings)
    for value, clock in ((None, world.store), ("a", world.bad), ("b", world.bad)):
        world.by(clock).append([{"key": str(value), "value": value, "timestamp": NOW}])
        assert world.by(clock).compact().to_dict()["partitions"] != []
        assert None in values_of(world.by(world.store))
    world.store.now_ms += DAY_MS + 1
    world.by(world.store).append([{"key": "c", "value": "c", "timestamp": NOW}])
    world.by(world.bad).compact()
    assert values_of(world.by(world.store)) == [b"a", b"b", b"c"]


def values_of(topic: Topic) -> list[bytes | None]:
    return topic.scan(columns=["value"]).to_table()["value"].to_pylist()


def test_a_storage_has_a_time_and_the_modification_times_of_files(storage_url: Address) -> None:
    storage = Storage(f"{storage_url.url}/log", storage_url.options)
    storage.put("_commits/a", b"x")
    (file,) = storage.list("_commits")
    assert abs(file.modified_ms - now_ms()) < DAY_MS
    assert abs(storage.now_ms("_commits") - now_ms()) < DAY_MS
    assert storage.list("_commits") == [FileInfo("_commits/a", 1)], "and leaves nothing there"


@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_a_dry_run_needs_no_right_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    topic = topic_on(Storage(tmp_path / "log"), 1)

    def refuse(path: str) -> None:
        raise OSError(code, os.strerror(code), path)

    monkeypatch.setattr(os, "utime", refuse)
    assert topic.vacuum(dry_run=True).files == ()
    assert topic.retention(dry_run=True).to_dict()["segments"] == 0


def test_a_missing_folder_has_no_time(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot get the storage's time"):
        Storage(tmp_path).now_ms("_commits")
