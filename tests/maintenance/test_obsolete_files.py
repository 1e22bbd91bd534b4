"""Vacuum deletes checkpoints that no load starts at, and temporary files of torn puts."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from addresses import Address
from store_clock import TimedStorage
from topics import Clock, topic_on, values

from distlog.core import paths
from distlog.core.commits import checkpoint
from distlog.core.errors import StorageError
from distlog.core.maintain.vacuum import LONGEST_PUT_MS
from distlog.core.storage.storage import Storage
from distlog.core.topic import Topic

TORN = f".{'0a' * 16}.tmp"
DELAY = 2 * LONGEST_PUT_MS


def topic_of_versions(storage: Storage, count: int, clock: Clock | None = None) -> Topic:
    """Return a topic with a checkpoint of every version, one a second; only the last one is recent."""
    clock = clock or Clock()
    timed = TimedStorage(storage, clock)
    topic = topic_on(timed, 1, {"file.delete.delay.ms": 1000}, clock, checkpoint_commits=1)
    for number in range(1, count):
        clock.now_ms += 1000
        topic.append(values([number]))
    return topic


def checkpoints(topic: Topic) -> list[int]:
    names = (file.name for file in topic.storage.list("_commits"))
    return sorted(version for name in names if (version := paths.parse_checkpoint_file(name)) is not None)


def damage_checkpoint(topic: Topic, version: int) -> None:
    (name,) = (
        file.name for file in topic.storage.list("_commits") if paths.parse_checkpoint_file(file.name) == version
    )
    topic.storage.put(name, b"x" * 100)


def gets_to_open(topic: Topic, version: int) -> int:
    old_gets = topic.storage.counters.gets
    assert topic.log.load(version=version).version == version
    return topic.storage.counters.gets - old_gets


def test_checkpoints_of_kept_versions_stay(storage_url: Address) -> None:
    topic = topic_of_versions(Storage(f"{storage_url.url}/log", storage_url.options), 9)
    assert checkpoints(topic) == [*range(1, 9)]
    would = topic.vacuum(dry_run=True)
    assert (would.gc_floor, {paths.parse_checkpoint_file(file.name) for file in would.files}) == (7, {*range(1, 6)})
    topic.vacuum()
    assert checkpoints(topic) == [6, 7, 8, 9]
    assert all(topic.log.load(version=version).version == version for version in range(10))


def test_a_second_checkpoint_always_stays(tmp_path: Path) -> None:
    clock = Clock()
    topic = topic_of_versions(Storage(tmp_path / "log"), 30, clock)
    clock.now_ms += 10_000
    for _ in range(3):
        topic.vacuum()
        clock.now_ms += 10_000
    previous, newest = checkpoints(topic)[-2:]
    assert checkpoints(topic)[:-2] == [previous - 1]
    damage_checkpoint(topic, newest)
    assert gets_to_open(topic, newest) < 10
    assert topic.log.load().version == topic.version


def test_verify_ignores_a_checkpoint_that_disappears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = topic_of_versions(Storage(tmp_path / "log"), 4)
    read = checkpoint.read

    def read_late(storage: Storage, name: str) -> object:
        storage.delete([name])
        return read(storage, name)

    monkeypatch.setattr(checkpoint, "read", read_late)
    assert topic.verify().ok


def leave(folder: Path, name: str, age_ms: int, now_ms: int) -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"half a file")
    os.utime(path, ns=((now_ms - age_ms) * 1_000_000,) * 2)
    return path


def topic_with_delay(folder: Path, delay_ms: int) -> tuple[Topic, Clock]:
    clock = Clock()
    topic = topic_on(TimedStorage(Storage(folder), clock), 1, {"file.delete.delay.ms": delay_ms}, clock)
    topic.append(values([1]))
    clock.now_ms += 10 * DELAY
    return topic, clock


@pytest.mark.parametrize("folder", ["_commits", "log-0"])
def test_files_of_torn_puts_are_deleted_after_the_delay(tmp_path: Path, folder: str) -> None:
    topic, clock = topic_with_delay(tmp_path / "log", DELAY)
    torn = leave(tmp_path / "log" / folder, TORN, DELAY, clock.now_ms)
    assert topic.vacuum().files == ()
    clock.now_ms += 1
    assert [file.name for file in topic.vacuum(dry_run=True).files] == [f"{folder}/{TORN}"]
    assert torn.exists()
    assert topic.vacuum().bytes == len(b"half a file")
    assert not torn.exists()
    assert topic.verify().ok


def test_a_recent_put_is_kept_with_any_delay(tmp_path: Path) -> None:
    topic, clock = topic_with_delay(tmp_path / "log", 0)
    torn = leave(tmp_path / "log" / "_commits", TORN, LONGEST_PUT_MS, clock.now_ms)
    topic.vacuum()
    assert torn.exists()
    clock.now_ms += 1
    topic.vacuum()
    assert not torn.exists()


def test_other_files_are_not_torn_puts(tmp_path: Path) -> None:
    topic, clock = topic_with_delay(tmp_path / "log", 0)
    names = (f"_commits/{'0a' * 16}.tmp", "log-0/.notes.tmp", f"log-0/{TORN}.txt", f"other-0/{TORN}")
    remaining = [leave(tmp_path / "log", name, 10 * DELAY, clock.now_ms) for name in names]
    topic.vacuum()
    assert all(path.exists() for path in remaining)


def test_a_put_whose_temporary_file_was_deleted_fails_and_puts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = Storage(tmp_path)

    def deleted_before(call: Callable[[str, str], None]) -> Callable[[str, str], None]:
        def name_it(temporary: str, name: str) -> None:
            os.unlink(temporary)
            call(temporary, name)

        return name_it

    monkeypatch.setattr(os, "link", deleted_before(os.link))
    monkeypatch.setattr(os, "replace", deleted_before(os.replace))
    with pytest.raises(StorageError):
        storage.put_if_absent("commit", b"mine")
    with pytest.raises(StorageError):
        storage.put("index", b"mine")
    assert storage.list() == []
