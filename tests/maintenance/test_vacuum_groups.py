"""Vacuum keeps the groups of a topic, and deletes the groups of dropped topics."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from topic_consumers import consume, drained
from vacuuming import DELAY, World

from distlog.core import paths
from distlog.core.config import TopicConfig
from distlog.core.maintain.vacuum import LONGEST_PUT_MS
from distlog.core.storage.storage import Storage
from distlog.core.topic import Topic


@pytest.fixture(params=["local", "memory"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return World(f"{tmp_path}/log" if request.param == "local" else Storage(f"memory://{tmp_path.name}/log"))


def commit_group(topic: Topic, group: str) -> str:
    """Consume with a group, commit, and return the folder of the group."""
    with consume(topic, group=group, timeout=0) as consumer:
        drained(consumer)
    return paths.group_folder(topic.snapshot.topic_id, group)


def test_groups_stay(world: World) -> None:
    world.append()
    folder = commit_group(world.topic(), "a group")
    old_names = {file.name for file in world.storage.list(folder)}
    for _ in range(3):
        world.wait(10 * DELAY)
        world.append()
        world.vacuum()
    assert {file.name for file in world.storage.list(folder)} == old_names
    assert world.topic().groups()["group"].to_pylist() == ["a group"] * 2


def test_the_groups_of_a_dropped_topic_are_deleted(world: World) -> None:
    world.append()
    old = commit_group(world.topic(), "one")
    world.topic().drop()
    world.wait(10 * DELAY)
    world.log.create(1, TopicConfig.parse({"file.delete.delay.ms": DELAY}))
    world.append()
    new = commit_group(world.topic(), "one")
    assert old != new
    world.wait(10 * DELAY)
    world.append()
    assert {file.name for file in world.storage.list(old)} <= {file.name for file in world.vacuum(dry_run=True).files}
    assert world.storage.list(old) != []
    world.vacuum()
    assert world.storage.list(old) == []
    assert world.storage.list(new) != []


def test_the_groups_of_a_missing_topic_are_deleted(world: World) -> None:
    world.append()
    folder = commit_group(world.topic(), "one")
    world.topic().drop()
    world.wait(10 * DELAY)
    world.vacuum()
    assert world.storage.list(folder) == []


def test_a_copy_for_a_new_id_is_kept_until_its_commit_can_be_read(world: World) -> None:
    world.append()
    world.wait(10 * DELAY)
    world.append()
    copy = paths.group_folder(str(uuid.uuid4()), "one")
    world.storage.put_if_absent(f"{copy}/{0:020d}.json", b"{}")
    world.vacuum()
    assert world.storage.list(copy) != []
    # a rename that takes longer copies the groups again after its commit
    world.wait(10 * DELAY)
    world.append()
    world.vacuum()
    assert world.storage.list(copy) == []


def test_a_torn_put_of_a_dead_member_is_deleted(tmp_path: Path) -> None:
    world = World(f"{tmp_path}/log")
    world.append()
    folder = commit_group(world.topic(), "one")
    torn, strange = f"{folder}/.{'a' * 32}.tmp", f"{paths.GROUPS_DIR}/mine/notes/file"
    for name in (torn, strange):
        world.storage.put_if_absent(name, b"x")
    world.wait(LONGEST_PUT_MS + DELAY)
    world.append()
    deleted = {file.name for file in world.vacuum().files}
    assert torn in deleted
    assert strange not in deleted
    assert folder not in {name.rpartition("/")[0] for name in deleted - {torn}}
