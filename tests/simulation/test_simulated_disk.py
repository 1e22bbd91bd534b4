"""The local disk of the simulation: the device after a power loss, syncs that fail, and locks."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

import distlog
from distlog.core.commits.actions import Active
from distlog.core.storage import locks_and_pages
from distlog.core.storage.locks_and_pages import FileLock
from simulation.device import PAGE
from simulation.local_disk import LocalDisk
from simulation.world import World

SEEDS = range(40)


@contextmanager
def machine(seed: int) -> Iterator[tuple[World, LocalDisk]]:
    world = World(seed)
    disk = LocalDisk(world)
    with disk, world:
        yield world, disk
        assert world.errors == []


def run(world: World, work: Callable[[], object]) -> None:
    world.process("worker").start(work)
    world.run()


def written(path: str, data: bytes, *, sync: bool = False) -> int:
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    assert os.pwrite(file, data, 0) == len(data)
    if sync:
        os.fsync(file)
    return file


def sync_folder(path: str) -> None:
    file = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(file)
    os.close(file)


def content(disk: LocalDisk, name: str) -> bytes | None:
    """Return the content of a file; None without it."""
    path = f"{disk.root}/{name}"
    if not os.path.exists(path):
        return None
    with open(path, "rb") as file:
        return file.read()


def after_loss(seed: int, work: Callable[[str], object], *names: str) -> list[bytes | None]:
    """Return the contents of files after the work and a power loss."""
    with machine(seed) as (world, disk):
        run(world, lambda: work(disk.root))
        disk.power_loss()
        return [content(disk, name) for name in names]


def test_what_was_synced_is_there_after_a_power_loss() -> None:
    def work(root: str) -> None:
        written(f"{root}/a", b"x" * 5000, sync=True)
        sync_folder(root)

    assert {after_loss(seed, work, "a")[0] for seed in SEEDS} == {b"x" * 5000}


def test_a_name_without_a_synced_folder_may_be_missing() -> None:
    contents = {after_loss(seed, lambda root: written(f"{root}/a", b"x", sync=True), "a")[0] for seed in SEEDS}
    assert contents == {None, b"x"}


def test_bytes_without_a_sync_may_be_there_by_pages() -> None:
    def work(root: str) -> None:
        file = written(f"{root}/a", b"o" * 3 * PAGE, sync=True)
        sync_folder(root)
        os.pwrite(file, b"n" * 3 * PAGE, 0)

    contents = {(after_loss(seed, work, "a")[0] or b"")[::PAGE] for seed in SEEDS}
    assert {b"ooo", b"nnn"} < contents


def test_changes_of_a_folder_survive_in_their_order() -> None:
    def work(root: str) -> None:
        for name in "abc":
            written(f"{root}/{name}", b"x", sync=True)

    names = {tuple(data is not None for data in after_loss(seed, work, "a", "b", "c")) for seed in SEEDS}
    assert names <= {(False,) * 3, (True, False, False), (True, True, False), (True,) * 3}
    assert len(names) > 2


def test_a_rename_happens_as_a_whole() -> None:
    def work(root: str) -> None:
        written(f"{root}/a", b"x", sync=True)
        sync_folder(root)
        os.replace(f"{root}/a", f"{root}/b")

    assert {tuple(after_loss(seed, work, "a", "b")) for seed in SEEDS} == {(b"x", None), (None, b"x")}


def test_cut_bytes_do_not_come_back_after_the_cut() -> None:
    def work(root: str) -> None:
        file = written(f"{root}/a", b"a" * 5000, sync=True)
        sync_folder(root)
        os.ftruncate(file, 0)
        os.pwrite(file, b"b" * 9000, 0)

    for seed in SEEDS:
        data = after_loss(seed, work, "a")[0]
        assert data is not None
        assert data == b"a" * 5000 or b"a" not in data


def test_a_sync_after_one_that_failed_does_not_save_what_was_lost() -> None:
    def work(root: str, disk: LocalDisk) -> None:
        file = written(f"{root}/a", b"", sync=True)
        sync_folder(root)
        os.pwrite(file, b"x" * 100, 0)
        disk.is_failing = True
        with pytest.raises(OSError, match="Input/output error"):
            os.fsync(file)
        disk.is_failing = False
        os.fsync(file)

    for seed in SEEDS:
        with machine(seed) as (world, disk):
            disk.faults.writeback = 0.0
            run(world, lambda disk=disk: work(disk.root, disk))
            disk.power_loss()
            assert content(disk, "a") == bytes(100)


def test_each_open_file_gets_the_error_of_a_write_once() -> None:
    def work(disk: LocalDisk) -> None:
        first, second = written(f"{disk.root}/a", b"x"), os.open(f"{disk.root}/a", os.O_RDWR)
        disk.is_failing = True
        with pytest.raises(OSError, match="Input/output error"):
            os.fsync(first)
        disk.is_failing = False
        with pytest.raises(OSError, match="Input/output error"):
            os.fsync(second)
        os.fsync(first)
        os.fsync(second)
        os.fsync(os.open(f"{disk.root}/a", os.O_RDWR))

    with machine(1) as (world, disk):
        run(world, lambda: work(disk))


def test_a_full_disk_takes_what_fits() -> None:
    def work(disk: LocalDisk) -> None:
        file = written(f"{disk.root}/a", b"x")
        disk.free = 2
        assert os.pwrite(file, b"y" * 3 * PAGE, PAGE) == 2 * PAGE
        with pytest.raises(OSError, match="No space left"):
            os.pwrite(file, b"y", 3 * PAGE)
        assert os.pwrite(file, b"z" * PAGE, 0) == PAGE, "an allocated page needs no other"

    with machine(1) as (world, disk):
        run(world, lambda: work(disk))


def test_a_lock_is_free_when_its_process_died() -> None:
    outcomes = list[str]()

    def work(name: str, disk: LocalDisk) -> None:
        file = os.open(f"{disk.root}/lock", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            outcomes.append(f"not {name}")
        else:
            outcomes.append(name)
        disk.world.pause(100.0)

    with machine(1) as (world, disk):
        first = world.process("first")
        first.start(lambda: work("first", disk))
        world.call_at(1.0, lambda: world.process("second").start(lambda: work("second", disk)))
        world.call_at(5.0, first.die)
        world.call_at(6.0, lambda: world.process("third").start(lambda: work("third", disk)))
        world.run(20.0)
    assert outcomes == ["first", "not second", "third"]


def test_processes_share_the_page_of_a_lock() -> None:
    values = list[bytes | None]()

    def write(disk: LocalDisk) -> None:
        with FileLock(f"{disk.root}/lock").held() as page:
            page.write(b"a value")

    with machine(1) as (world, disk):
        run(world, lambda: write(disk))
        run(world, lambda: values.append(FileLock(f"{disk.root}/lock").page.read()))
    assert values == [b"a value"]


def test_a_process_that_dies_in_a_write_of_a_page_leaves_the_old_value() -> None:
    values = set[bytes | None]()

    def write(disk: LocalDisk) -> None:
        with FileLock(f"{disk.root}/lock").held() as page:
            page.write(b"first")
            disk.faults.death = 1.0
            page.write(b"second")

    def read(disk: LocalDisk) -> None:
        values.add(FileLock(f"{disk.root}/lock").page.read())

    for seed in SEEDS:
        with machine(seed) as (world, disk):
            run(world, lambda disk=disk: write(disk))
            disk.faults.death = 0.0
            run(world, lambda disk=disk: read(disk))
    assert b"first" in values
    assert values <= {b"first", b"second"}


def test_after_a_power_loss_all_processes_are_dead_and_the_boot_is_another() -> None:
    boots, survivors = list[bytes](), list[str]()

    def work(name: str) -> None:
        boots.append(locks_and_pages.boot_id())
        world.pause(10.0)
        survivors.append(name)

    with machine(1) as (world, disk):
        for name in ("a", "b"):
            world.process(name).start(lambda name=name: work(name))
        world.call_at(5.0, disk.power_loss)
        world.call_at(6.0, lambda: world.process("c").start(lambda: work("c")))
        world.run()
    assert survivors == ["c"]
    assert boots[0] == boots[1] != boots[2]


def test_outside_of_a_world_files_are_those_of_the_machine() -> None:
    real = os.open, os.close, os.fsync, os.stat, fcntl.flock, FileLock.__del__.__defaults__
    with machine(1) as (world, disk):
        run(world, lambda: written(f"{disk.root}/a", b"x"))
        root = disk.root
    assert real == (os.open, os.close, os.fsync, os.stat, fcntl.flock, FileLock.__del__.__defaults__)
    assert not os.path.exists(root)


def test_a_writer_appends_to_active_segments() -> None:
    def write(root: str) -> None:
        with distlog.create(f"{root}/clicks", partitions=1).writer() as writer:
            writer.append(b"v", partition=0)

    active = list[Active | None]()
    with machine(0) as (world, disk):
        run(world, lambda: write(disk.root))
        run(world, lambda: active.append(distlog.open(f"{disk.root}/clicks").snapshot.partitions[0].active))
    assert active[0] is not None
