"""A full disk: vacuum frees space with no more than a commit, or fails with advice."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from full_disk import fail_writes, fill
from vacuuming import World

import distlog
from distlog.core.errors import CommitStateUnknownError, StorageError, StorageFullError
from distlog.core.storage.local_files import LocalFiles


def world_with_garbage(folder: Path) -> World:
    """Return a topic with a segment of 100 kB that was removed longer ago than the delay."""
    world = World(str(folder / "log"))
    world.append("removed" * 14_000)
    world.expire()
    world.append("kept")
    world.wait()
    return world


def test_vacuum_frees_a_disk_that_has_no_space_for_its_commit(disk: Path) -> None:
    world = world_with_garbage(disk)
    old_files = world.files()
    fill(disk)
    with pytest.raises(StorageError):
        world.append("no space")
    report = world.vacuum()
    assert report.gc_floor == world.log.load().gc_floor > 1
    assert report.bytes > 90_000
    assert old_files - world.files() == {file.name for file in report.files} & old_files
    world.check_supported_versions()
    world.append("space again")
    assert sorted(world.values()) == [b"kept", b"space again"]


VACUUM = """
import tempfile
tempfile._candidate_tempdir_list = lambda: [{disk!r}]

import distlog
from distlog.core.format.kernels.batch_scan import first_mismatch

print(len(distlog.open({topic!r}).vacuum().files))
"""


@pytest.mark.long
def test_a_new_process_on_a_full_disk_can_free_space(disk: Path) -> None:
    topic = distlog.create(str(disk / "topic"), config={"file.delete.delay.ms": 0, "retention.ms": -1})
    topic.append([{"value": b"v"}])
    topic.append([{"value": b"v"}])
    topic.delete_records({0: 1})
    topic.retention()
    time.sleep(0.01)
    topic.append([{"value": b"v"}])
    fill(disk)
    program = VACUUM.format(disk=str(disk), topic=topic.url)
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) > 0


def test_vacuum_of_a_full_disk_without_garbage_fails_with_advice(disk: Path) -> None:
    world = World(str(disk / "log"))
    world.append("kept")
    world.wait()
    old_files = world.files()
    fill(disk)
    with pytest.raises(StorageFullError, match=r"no space for vacuum's commit.*0 files.*delete other files"):
        world.vacuum()
    assert world.files() == old_files
    assert world.values() == [b"kept"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_files_that_need_no_new_horizon_are_deleted_before_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """The same without a private file system: no write succeeds before a deletion."""
    world = world_with_garbage(tmp_path)
    full_until_something_is_deleted(monkeypatch, code)
    report = world.vacuum()
    assert report.bytes > 90_000
    assert world.log.load().gc_floor == report.gc_floor
    world.check_supported_versions()


def test_files_before_the_present_horizon_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(str(tmp_path / "log"))
    appender, _ = world.slow_writer()
    world.append("kept")
    world.wait()
    world.vacuum()
    world.append("kept")
    world.wait()
    appender.append([{"value": "late", "timestamp": world.clock()}])
    appender.close()
    full_until_something_is_deleted(monkeypatch, errno.ENOSPC)
    assert len(world.vacuum().files) > 0
    world.check_supported_versions()


def full_until_something_is_deleted(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    deleted, unlink = list[str](), os.unlink

    def noted_unlink(path: str, **options: Any) -> None:
        unlink(path, **options)
        if not path.endswith(".tmp"):
            deleted.append(path)

    monkeypatch.setattr(os, "unlink", noted_unlink)
    fail_writes(monkeypatch, lambda: not deleted, code)


def test_files_that_need_a_new_horizon_stay_without_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of a slow writer: its commit is refused only after the vacuum horizon was raised."""
    world = World(str(tmp_path / "log"))
    appender, read_version = world.slow_writer()
    appender.append([{"value": "slow", "timestamp": world.clock()}])
    appender.close()
    world.append("fast")
    world.wait()
    old_files = world.files()
    with monkeypatch.context() as patch:
        fail_writes(patch)
        with pytest.raises(StorageFullError, match="delete other files"):
            world.vacuum()
    assert world.files() == old_files
    world.finish(appender, read_version)
    assert sorted(world.values()) == [b"fast", b"slow"]


def test_an_unknown_outcome_deletes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_with_garbage(tmp_path)
    old_files = world.files()

    def lose_response(*_: Any, **__: Any) -> bytes:
        raise CommitStateUnknownError("the reply was lost")

    monkeypatch.setattr(LocalFiles, "put_if_absent", lose_response)
    with pytest.raises(CommitStateUnknownError):
        world.vacuum()
    assert world.files() == old_files


def no_space(*_: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
