"""Vacuum: nothing that a reader or a writer may still need is ever deleted, and everything else is."""

from __future__ import annotations

from pathlib import Path

import pytest
from log_dirs import contents
from vacuuming import DELAY, World

import distlog
from distlog import StorageError
from distlog.core.errors import TransactionTooOldError
from distlog.core.maintain.vacuum import vacuum
from distlog.core.storage.storage import Storage


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


def test_a_dropped_topic_loses_its_files_and_keeps_its_commits(world: World) -> None:
    world.append()
    world.topic().drop()
    world.wait()
    world.vacuum()
    assert world.files() == set()
    assert len(world.storage.list("_commits")) >= 3


def test_a_foreign_file_is_left_alone(world: World, tmp_path: Path) -> None:
    world.append()
    for name in ("notes.txt", f"{'0' * 20}.log", "v7-x.log"):
        (tmp_path / "log" / "log-0").mkdir(exist_ok=True)
        (tmp_path / "log" / "log-0" / name).write_text("mine")
    world.expire()
    world.wait()
    world.vacuum()
    assert world.files() == {"log-0/notes.txt", f"log-0/{'0' * 20}.log", "log-0/v7-x.log"}


CONFIG = {"file.delete.delay.ms": "0"}


def topic_at(folder: Path) -> distlog.Topic:
    """A topic of one segment per commit."""
    topic = distlog.create(str(folder), config=CONFIG)
    topic.append([{"value": b"kept"}])
    return topic


def test_vacuum_deletes_nothing_behind_a_link_and_says_which_link_it_is(tmp_path: Path) -> None:
    # only a folder that was moved lies in a topic
    topic_at(tmp_path / "elsewhere" / "mine")
    mine = topic_at(tmp_path / "mine")
    (tmp_path / "elsewhere").rename(tmp_path / "mine" / "of-another")
    other = distlog.open(str(tmp_path / "mine" / "of-another" / "mine"))
    link = tmp_path / "mine" / "mine-1"
    link.symlink_to(tmp_path / "mine" / "of-another" / "mine" / "mine-0")
    mine.drop()
    before = contents(tmp_path)
    for dry_run in (True, False):
        with pytest.raises(StorageError, match="refusing to follow a link") as error:
            vacuum(mine.storage, mine.log, dry_run=dry_run)
        assert error.value.details["file"] == str(link)
    assert contents(tmp_path) == before
    link.unlink()
    assert vacuum(mine.storage, mine.log).files
    assert other.refresh().scan().count() == 1


def test_vacuum_says_that_a_file_of_a_partition_is_a_link(tmp_path: Path) -> None:
    topic = topic_at(tmp_path / "mine")
    (log,) = (tmp_path / "mine" / "mine-0").glob("*.log")
    log.rename(tmp_path / "elsewhere")
    log.symlink_to(tmp_path / "elsewhere")
    topic.drop()
    with pytest.raises(StorageError, match="refusing to follow a link"):
        vacuum(topic.storage, topic.log)
    assert (tmp_path / "elsewhere").exists()


def test_no_file_is_deleted_or_listed_behind_a_link_below_the_folder(tmp_path: Path) -> None:
    (tmp_path / "topic" / "inner").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_bytes(b"of another")
    (tmp_path / "topic" / "inner" / "link").symlink_to(tmp_path / "outside")
    (tmp_path / "also-a-topic").symlink_to(tmp_path / "topic")
    # the folder that was given may be a link
    given = Storage(str(tmp_path / "also-a-topic"))
    for storage, folder in ((given, "inner/link"), (given.child("inner"), "link")):
        assert storage.list_folders(folder.rpartition("/")[0]) == []
        for call in (storage.list, storage.list_folders, storage.refuse_links):
            with pytest.raises(StorageError, match="refusing to follow a link"):
                call(folder)
        with pytest.raises(StorageError, match="refusing to follow a link"):
            storage.delete([f"{folder}/file"])
    # a link itself is deleted, and not what it names
    Storage(str(tmp_path / "topic")).delete(["inner/link"])
    assert (tmp_path / "outside" / "file").read_bytes() == b"of another"


def test_a_link_to_a_topic_is_not_loaded_from_a_root_and_that_is_said(tmp_path: Path) -> None:
    topic_at(tmp_path / "elsewhere" / "clicks")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "clicks").symlink_to(tmp_path / "elsewhere" / "clicks")
    (tmp_path / "root" / "latest").symlink_to(tmp_path)
    with distlog.LogManager(str(tmp_path / "root")) as manager:
        manager.run_once()
        assert manager.topics == []
        ((url, said),) = [each for of_task in manager.errors.values() for each in of_task.items()]
    assert (url, "a link to a topic" in said) == (str(tmp_path / "root" / "clicks"), True)
