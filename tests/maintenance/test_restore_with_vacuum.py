"""Concurrent restore and vacuum on a full disk: no restored segment loses a file."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from store_clock import TimedStorage
from vacuuming import World

from distlog.core.commits.actions import Action, SetVacuumHorizon
from distlog.core.commits.commit_log import CommitRace
from distlog.core.errors import StorageFullError


class FullDisk:
    """Fails commits of the vacuum horizon until a file was deleted, and is killed after `most` deletions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.has_room = self.was_full = False
        self.most = 1000
        put, delete = CommitRace.put, TimedStorage.delete

        def full(race: CommitRace, actions: Sequence[Action]) -> bool:
            is_floor = any(isinstance(action, SetVacuumHorizon) for action in actions)
            if is_floor and not self.has_room:
                if not self.was_full:
                    self.was_full = True
                    self.on_full()
                raise StorageFullError("cannot write: no space left on device")
            return put(race, actions)

        def freed(storage: TimedStorage, names: Sequence[str]) -> None:
            if names and not self.has_room:
                self.on_delete()
            delete(storage, names[: self.most])
            self.most -= len(names)
            if self.most < 0:
                raise KeyboardInterrupt
            self.has_room = self.has_room or bool(names)

        monkeypatch.setattr(CommitRace, "put", full)
        monkeypatch.setattr(TimedStorage, "delete", freed)

    def on_full(self) -> None:
        pass

    def on_delete(self) -> None:
        pass


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Return a topic with two bundle parts and a file that retention removed longer ago than the delay."""
    world = World(f"{tmp_path}/log")
    world.topic().append([{"value": "part", "partition": number, "timestamp": world.clock()} for number in (0, 1)])
    world.append("file")
    world.expire()
    world.append("kept")
    world.wait()
    return world


def restore(world: World) -> None:
    world.topic().restore(2)


def test_a_restore_before_the_deletions_on_a_full_disk_keeps_its_files(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. Vacuum reads the head. 2. Its floor does not fit. 3. Restore. 4. Vacuum deletes what needs no floor."""
    disk = FullDisk(monkeypatch)
    disk.on_full = lambda: restore(world)  # type: ignore[method-assign]
    with pytest.raises(StorageFullError):
        world.vacuum()
    assert sorted(world.values()) == [b"file", b"kept", b"part", b"part"]
    assert world.topic().verify().ok


def test_a_restore_during_deletions_on_a_full_disk_waits_for_the_horizon(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. Vacuum chose what needs no floor. 2. A restore begins. 3. Vacuum deletes, and commits its floor."""
    disk, restored = FullDisk(monkeypatch), threading.Thread(target=restore, args=(world,))

    def on_delete() -> None:
        restored.start()
        restored.join(0.5)

    disk.on_delete = on_delete  # type: ignore[method-assign]
    world.vacuum()
    restored.join()
    assert world.values() == [b"kept"]
    assert world.topic().verify().ok


@pytest.mark.parametrize("deleted", range(6))
def test_a_vacuum_killed_on_a_full_disk_leaves_no_partial_segment(
    world: World, monkeypatch: pytest.MonkeyPatch, deleted: int
) -> None:
    """1. Vacuum deletes some files. 2. It is killed before its floor. 3. Restore brings back what is whole."""

    disk = FullDisk(monkeypatch)
    disk.most = deleted
    with pytest.raises(KeyboardInterrupt):
        world.vacuum()
    disk.has_room, disk.most = True, 1000
    restore(world)
    assert world.topic().verify().ok
