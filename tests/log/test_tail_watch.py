"""The check of a local topic for changes reads no log, and never misses a change."""

from __future__ import annotations

import builtins
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from gated_writer import NEVER_MS
from topics import topic_on, values

from distlog.core.errors import StorageError
from distlog.core.log.live_snapshot import TailWatch
from distlog.core.storage.locks_and_pages import PAGE_BYTES, WatchedPage
from distlog.core.storage.storage import Storage
from distlog.core.topic import Topic


@pytest.fixture
def topic(tmp_path: Path) -> Topic:
    return topic_on(Storage(str(tmp_path / "topic")), 3)


@pytest.fixture
def container(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """Return a folder of an image, and the same folder in a container."""
    image, upper, work, inside = (tmp_path / name for name in ("image", "upper", "work", "inside"))
    for folder in (image, upper, work, inside):
        folder.mkdir()
    options, mount = f"lowerdir={image},upperdir={upper},workdir={work}", shutil.which("mount")
    command = [mount, "-t", "overlay", "-o", options, "overlay", str(inside)]
    if not mount or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("only who may mount a file system can have a container's")
    yield image, inside
    subprocess.run(["umount", "-l", str(inside)], check=True)


def write(topic: Topic, partition: int) -> None:
    with topic_on(topic.storage).writer(linger_ms=NEVER_MS) as writer:
        writer.append(b"", partition=partition)


def test_a_direct_append_is_reported_once(topic: Topic) -> None:
    write(topic, 0)
    write(topic, 2)
    watch = TailWatch(topic.handle)
    snapshot = topic.refresh().live_snapshot
    assert watch.changed(snapshot)
    assert not watch.changed(snapshot)
    for partition in (2, 0, 0):
        write(topic, partition)
        assert watch.changed(snapshot)
        assert not watch.changed(snapshot)


def test_a_commit_is_reported_until_the_snapshot_has_it(topic: Topic) -> None:
    watch, snapshot = TailWatch(topic.handle), topic.live_snapshot
    assert not watch.changed(snapshot)
    topic_on(topic.storage).append(values(range(1)))
    assert watch.changed(snapshot)
    assert watch.changed(snapshot)
    assert not watch.changed(topic.refresh().live_snapshot)


def test_a_check_with_mapped_pages_opens_no_file(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    write(topic, 0)
    watch, snapshot = TailWatch(topic.handle), topic.refresh().live_snapshot
    watch.changed(snapshot)

    def fail(*arguments: object, **options: object) -> None:
        raise AssertionError("a file was opened")

    for module in (os, builtins):
        monkeypatch.setattr(module, "open", fail)
    assert not watch.changed(snapshot)


def test_a_partial_write_is_reported_again(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    path.write_bytes(bytes(PAGE_BYTES))
    page = WatchedPage(str(path))
    page.changed()
    with path.open("r+b") as file:
        for position in (1030, 1100, 2050, 2500):
            file.seek(position)
            file.write(b"x")
            file.flush()
            assert page.changed()
            assert not page.changed()
        file.seek(8)
        file.write(b"x")
        file.flush()
        assert not page.changed()


def test_the_first_append_in_a_container_is_reported(container: tuple[Path, Path]) -> None:
    image, inside = container
    write(topic_on(Storage(str(image / "topic")), 1), 0)
    topic = topic_on(Storage(str(inside / "topic")))
    watch, snapshot = TailWatch(topic.handle), topic.live_snapshot
    watch.changed(snapshot)
    write(topic, 0)
    assert watch.changed(snapshot)


def test_a_missing_page_is_always_reported(topic: Topic) -> None:
    write(topic, 0)
    snapshot = topic.refresh().live_snapshot
    lock = Path(topic.storage.local_path("topic-0/.lock"))
    lock.unlink()
    watch = TailWatch(topic.handle)
    assert watch.changed(snapshot)
    assert watch.changed(snapshot)
    lock.write_bytes(b"short")
    with pytest.raises(StorageError, match="wrong size"):
        watch.changed(snapshot)
