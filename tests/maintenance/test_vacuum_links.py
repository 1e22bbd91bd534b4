"""Vacuum deletes in the topic's own folder only: no link leads it elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from log_dirs import contents

import distlog
from distlog import StorageError
from distlog.core.maintenance.vacuum import vacuum
from distlog.core.storage.storage import Storage

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
        with pytest.raises(StorageError, match="this is a link") as error:
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
    with pytest.raises(StorageError, match="this is a link"):
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
            with pytest.raises(StorageError, match="this is a link"):
                call(folder)
        with pytest.raises(StorageError, match="this is a link"):
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
