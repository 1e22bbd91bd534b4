"""Vacuum: nothing that a reader or a writer may still need is ever deleted, and everything else is."""

from __future__ import annotations

from pathlib import Path

import pytest
from vacuuming import DELAY, World

from distlog.core.errors import TransactionTooOldError
from distlog.core.topics.append_commit import commit_append


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(f"{tmp_path}/log")


def test_removed_files_stay_for_the_delay_and_go_after_it(world: World) -> None:
    world.append()
    world.expire()
    before = world.files()
    assert world.vacuum().files == ()
    world.wait(DELAY - 1)
    assert world.vacuum(dry_run=True).files == ()
    world.wait()
    report = world.vacuum()
    assert {file.name for file in report.files} == before
    assert world.files() == set()
    assert report.bytes == sum(file.size for file in report.files) > 0


def test_what_a_crashed_writer_left_goes_after_the_delay(world: World) -> None:
    appender, _ = world.slow_writer()
    appender.append([{"value": "never committed"}])
    appender.close()
    world.append("kept")
    world.wait()
    world.append("kept")
    assert world.vacuum().files != ()
    assert world.values() == [b"kept", b"kept"]


def test_a_dry_run_deletes_and_commits_nothing(world: World) -> None:
    world.append()
    world.expire()
    world.wait()
    before, version = world.files(), world.log.load().version
    assert {file.name for file in world.vacuum(dry_run=True).files} == before
    assert (world.files(), world.log.load().version) == (before, version)


def test_a_slow_writer_loses_time_and_never_data(world: World) -> None:
    """1. A writer begins. 2. Vacuum runs twice, a delay apart, while it uploads. 3. It commits: refused. 4. It writes
    again: there."""
    appender, read_version = world.slow_writer()
    appender.append([{"value": "slow"}])
    world.append("fast")
    world.wait()
    world.append("fast")
    world.vacuum()
    with pytest.raises(TransactionTooOldError, match="write them again"):
        world.finish(appender, read_version)
    assert world.values() == [b"fast", b"fast"]
    world.append("slow")
    assert sorted(world.values()) == [b"fast", b"fast", b"slow"]


def test_the_files_of_a_writer_that_began_at_the_floor_stay_until_its_commit(world: World) -> None:
    """1. A writer begins at the head. 2. Its files are there. 3. Vacuum: this is the floor. 4. It commits."""
    world.append("old")
    world.wait()
    appender, read_version = world.slow_writer()
    appender.append([{"value": "new"}])
    segments = appender.close()
    before = world.files()
    assert world.vacuum().gc_floor == read_version
    assert world.files() == before
    topic = world.topic()
    commit_append(topic.handle, topic.snapshot, segments, read_version=read_version)
    assert sorted(world.values()) == [b"new", b"old"]


def test_a_reader_of_a_snapshot_within_the_delay_finds_every_file(world: World) -> None:
    world.append("read me")
    held = world.topic()
    world.expire()
    world.wait(DELAY - 1)
    world.vacuum()
    assert held.scan(columns=["value"]).to_table().column(0).to_pylist() == [b"read me"]


def test_a_dropped_topic_loses_its_files_and_keeps_its_commits(world: World) -> None:
    world.append()
    world.topic().drop()
    world.wait()
    world.vacuum()
    assert world.files() == set()
    assert len(world.storage.list("_commits")) >= 3


def test_the_files_of_a_dropped_topic_stay_for_the_delay(world: World) -> None:
    world.append("read me")
    held = world.topic()
    world.wait()
    world.topic().drop()
    world.wait(DELAY - 1)
    world.vacuum()
    assert held.scan().count() == held.scan().to_table().num_rows == 1


def test_a_foreign_file_is_left_alone(world: World, tmp_path: Path) -> None:
    world.append()
    for name in ("notes.txt", f"{'0' * 20}.log", "v7-x.log"):
        (tmp_path / "log" / "log-0").mkdir(exist_ok=True)
        (tmp_path / "log" / "log-0" / name).write_text("mine")
    world.expire()
    world.wait()
    world.vacuum()
    assert world.files() == {"log-0/notes.txt", f"log-0/{'0' * 20}.log", "log-0/v7-x.log"}
