"""Vacuum deletes every unneeded file, and no file that a reader or a writer can still need."""

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


def test_removed_files_are_deleted_after_the_delay(world: World) -> None:
    world.append()
    world.expire()
    original = world.files()
    assert world.vacuum().files == ()
    world.wait(DELAY - 1)
    assert world.vacuum(dry_run=True).files == ()
    world.wait()
    report = world.vacuum()
    assert {file.name for file in report.files} == original
    assert world.files() == set()
    assert report.bytes == sum(file.size for file in report.files) > 0


def test_files_of_a_crashed_writer_are_deleted_after_the_delay(world: World) -> None:
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
    original, version = world.files(), world.log.load().version
    assert {file.name for file in world.vacuum(dry_run=True).files} == original
    assert (world.files(), world.log.load().version) == (original, version)


def test_a_slow_writer_loses_time_and_never_data(world: World) -> None:
    """A writer uploads during two vacuums that are a delay apart: its commit is refused, and a retry succeeds."""
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
    topic = distlog.create(str(folder), config=CONFIG)
    topic.append([{"value": b"kept"}])
    return topic


def test_vacuum_follows_no_link_and_names_it(tmp_path: Path) -> None:
    # only a moved folder is in a topic
    topic_at(tmp_path / "elsewhere" / "mine")
    mine = topic_at(tmp_path / "mine")
    (tmp_path / "elsewhere").rename(tmp_path / "mine" / "of-another")
    other = distlog.open(str(tmp_path / "mine" / "of-another" / "mine"))
    link = tmp_path / "mine" / "mine-1"
    link.symlink_to(tmp_path / "mine" / "of-another" / "mine" / "mine-0")
    mine.drop()
    original = contents(tmp_path)
    for dry_run in (True, False):
        with pytest.raises(StorageError, match="refusing to follow a link") as error:
            vacuum(mine.storage, mine.log, dry_run=dry_run)
        assert error.value.details["file"] == str(link)
    assert contents(tmp_path) == original
    link.unlink()
    assert vacuum(mine.storage, mine.log).files
    assert other.refresh().scan().count() == 1


def test_vacuum_names_a_link_among_the_files_of_a_partition(tmp_path: Path) -> None:
    topic = topic_at(tmp_path / "mine")
    (log,) = (tmp_path / "mine" / "mine-0").glob("*.log")
    log.rename(tmp_path / "elsewhere")
    log.symlink_to(tmp_path / "elsewhere")
    topic.drop()
    with pytest.raises(StorageError, match="refusing to follow a link"):
        vacuum(topic.storage, topic.log)
    assert (tmp_path / "elsewhere").exists()


def test_links_in_the_folder_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "topic" / "inner").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_bytes(b"of another")
    (tmp_path / "topic" / "inner" / "link").symlink_to(tmp_path / "outside")
    (tmp_path / "also-a-topic").symlink_to(tmp_path / "topic")
    # the folder in the address may be a link
    linked = Storage(str(tmp_path / "also-a-topic"))
    for storage, folder in ((linked, "inner/link"), (linked.child("inner"), "link")):
        assert storage.list_folders(folder.rpartition("/")[0]) == []
        for call in (storage.list, storage.list_folders, storage.refuse_links):
            with pytest.raises(StorageError, match="refusing to follow a link"):
                call(folder)
        with pytest.raises(StorageError, match="refusing to follow a link"):
            storage.delete([f"{folder}/file"])
    # a link is deleted, and its target is not
    Storage(str(tmp_path / "topic")).delete(["inner/link"])
    assert (tmp_path / "outside" / "file").read_bytes() == b"of another"


def test_a_link_to_a_topic_is_reported_and_not_loaded(tmp_path: Path) -> None:
    topic_at(tmp_path / "elsewhere" / "clicks")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "clicks").symlink_to(tmp_path / "elsewhere" / "clicks")
    (tmp_path / "root" / "latest").symlink_to(tmp_path)
    with distlog.LogManager(str(tmp_path / "root")) as manager:
        manager.run_once()
        assert manager.topics == []
        ((url, said),) = [error for of_task in manager.errors.values() for error in of_task.items()]
    assert (url, "links to topics are not followed" in said) == (str(tmp_path / "root" / "clicks"), True)
