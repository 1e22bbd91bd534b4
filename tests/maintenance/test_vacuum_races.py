"""Vacuum with commits of every kind between any two of its steps: nobody misses a file that it promised to keep."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable
from typing import Any

import memory_files
import pytest
from searches import stride
from store_clock import TimedStorage
from vacuuming import DELAY, World

from distlog.core.config import TopicConfig
from distlog.core.errors import CommitConflictError
from distlog.core.maintenance.vacuum import vacuum
from distlog.core.storage.storage import Storage

pytestmark = pytest.mark.long

STEPS = ("read", "put", "put_if_absent", "list", "list_folders", "now_ms", "uploads", "delete", "abort_uploads")


class SteppedStorage(TimedStorage):
    """Calls `meanwhile` once, before the step (a call to the storage) of the number `at`."""

    def __init__(self, storage: Storage, world: World, at: int, meanwhile: Callable[[], object]) -> None:
        super().__init__(storage, world.clock)
        self.steps, self._at, self._meanwhile = 0, at, meanwhile

    def __getattribute__(self, name: str) -> Any:
        real = super().__getattribute__(name)
        return self._stepping(real) if name in STEPS else real

    def _stepping(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **options: Any) -> Any:
            self.steps += 1
            if self.steps == self._at:
                self._meanwhile()
            return real(*args, **options)

        return step


def append_twice(world: World) -> None:
    world.append("new")
    world.append("newer")


def pin_the_floor(world: World) -> None:
    world.pin()
    world.append()


def drop_and_create(world: World) -> None:
    world.topic().drop()
    world.log.create(2, TopicConfig.parse({"file.delete.delay.ms": DELAY, "retention.ms": 0}))
    world.append("of the second life")


def rebuild(world: World) -> None:
    world.topic().alter_config({"index.interval.bytes": "0"})
    world.topic().rebuild_indexes(force=True)


def vacuum_later(world: World) -> None:
    world.append()
    world.clock.now += DELAY
    world.vacuum()


MEANWHILE: dict[str, Callable[[World], object]] = {
    "append": append_twice,
    "compact": lambda world: world.topic().compact(),
    "retention": World.expire,
    "rebuild": rebuild,
    "drop": lambda world: world.topic().drop(),
    "create": drop_and_create,
    "config": lambda world: world.topic().alter_config({"retention.ms": "7"}),
    "vacuum": vacuum_later,
    "pin": pin_the_floor,
}


def world_with_a_past(url: str) -> World:
    """Files that may go, and since the floor: a compaction of what is at it, an append, and a slow writer's file."""
    world = World(url)
    world.append("long gone")
    world.expire()
    appender, _ = world.slow_writer()
    appender.append([{"value": "never committed"}])
    appender.close()
    for number in range(3):
        world.append(f"small {number}")
    world.wait()
    assert world.topic().compact().to_dict()["segments_before"] > 1
    world.append("lately")
    return world


def vacuum_stepwise(world: World, at: int, meanwhile: Callable[[], object]) -> int:
    """How many steps vacuum took; it may stop only because the topic was dropped."""
    storage = SteppedStorage(Storage(world.storage.url), world, at, meanwhile)
    log = world.log_on(storage)
    with contextlib.suppress(CommitConflictError):
        vacuum(storage, log)
    return storage.steps


@pytest.mark.parametrize("kind", MEANWHILE)
def test_a_commit_at_any_step_of_vacuum_costs_no_reader_a_file(kind: str) -> None:
    """Neither an open reader at any version since the floor, nor the new head; the suite takes every other step."""
    past = world_with_a_past(f"memory://{uuid.uuid4().hex}/log")
    version = past.log.load().version
    readers = [past.log.load(version=number) for number in range(version - 2, version + 1)]
    kept = memory_files.held()
    for at in range(1 + list(MEANWHILE).index(kind) % stride(2), 1000, stride(2)):
        memory_files.hold(kept)
        world = World(f"memory://{uuid.uuid4().hex}/log", past=past)
        done = []

        def meanwhile(world: World = world, done: list[str] = done) -> None:
            done.append(kind)
            MEANWHILE[kind](world)

        steps = vacuum_stepwise(world, at, meanwhile)
        world.check_supported_versions()
        floor = world.log.load(include_dropped=True).gc_floor
        for reader in readers:
            if reader.version >= floor:
                world.read(reader)
        if not done:
            break
        assert world.log.load(include_dropped=True).version > version
    assert steps > 15, "vacuum has that many steps"


def test_what_vacuum_may_delete_is_deleted(memory_url: Any) -> None:
    world = world_with_a_past(f"{memory_url.url}/log")
    before = world.files()
    steps = vacuum_stepwise(world, 0, lambda: None)
    assert steps > 15
    assert len(before - world.files()) >= 2
