"""A process ends at each of its system calls, another one continues, and the power fails: acknowledged data stays."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from power_loss import Disk, Killed
from store_clock import TimedStorage
from topics import NOW, Clock, contents, files, named_files, topic_on, values

from distlog.core.commits.segment_table import SegmentInfo
from distlog.core.errors import (
    CommitStateUnknownError,
    TopicExistsError,
    TopicNotFoundError,
    TransactionTooOldError,
)
from distlog.core.storage import local_files
from distlog.core.storage.storage import Storage
from distlog.core.topic import Topic
from distlog.core.write.append import commit_append

MOST_STEPS = 200
CONFIG = {"file.delete.delay.ms": 1000}


def open_topic(root: Path, partitions: int | None = None, clock: Clock | None = None) -> Topic:
    clock = clock or Clock()
    return topic_on(TimedStorage(Storage(root / "logs" / "clicks"), clock), partitions, CONFIG, clock)


def crashes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepare: Callable[[Path], object], work: Callable[[Path], object]
) -> Iterator[tuple[Path, Disk]]:
    """Yield a root and its disk after `prepare`, with `work` ended at each of its system calls."""
    for step in range(MOST_STEPS):
        root = tmp_path / f"at {step}"
        root.mkdir()
        with monkeypatch.context() as patch:
            patch.setattr(local_files, "DURABLE_FOLDERS", {})
            prepare(root)
            disk = Disk(patch, root)
            disk.new_process(step)
            try:
                work(root)
                finished = True
            except Killed:
                finished = False
            disk.new_process()
            yield root, disk
        if finished:
            return
    pytest.fail("the work has no end")


def append(root: Path, number: int = 0) -> None:
    open_topic(root).append(values([number]), partition=0, app_id="app", batch_id=number)


def test_story_1_a_replayed_batch_survives_a_power_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replays = []
    for root, disk in crashes(tmp_path, monkeypatch, lambda root: open_topic(root, 1), append):
        result = open_topic(root).append(values([0]), partition=0, app_id="app", batch_id=0)
        replays.append(result.replayed)
        folder = disk.after_power_loss(root / "left")
        assert contents(open_topic(folder)) == {0: [b"v0"]}
        assert open_topic(folder).append(values([0]), app_id="app", batch_id=0).replayed
    assert replays == sorted(replays)
    assert replays[0] is False
    assert replays[-2] is True, "the process ended after the link, before it came to an end"


def test_story_2_an_append_after_an_unsynced_one_survives_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for root, disk in crashes(tmp_path, monkeypatch, lambda root: open_topic(root, 1), append):
        append(root, 1)
        values = contents(open_topic(disk.after_power_loss(root / "left")))
        assert values in ({0: [b"v0", b"v1"]}, {0: [b"v1"]})
        assert values == contents(open_topic(root))


def test_story_3_a_concurrently_created_topic_survives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def create(root: Path) -> None:
        with suppress(TopicExistsError):
            open_topic(root, 2)

    topics = []
    for root, disk in crashes(tmp_path, monkeypatch, lambda root: None, create):
        try:
            open_topic(root, 2)
            topics.append("created")
        except TopicExistsError:
            topics.append("exists")
        assert open_topic(disk.after_power_loss(root / "left")).partitions == 2
    assert set(topics) == {"created", "exists"}


def test_story_4_an_observed_drop_survives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for root, disk in crashes(
        tmp_path, monkeypatch, lambda root: open_topic(root, 1), lambda root: open_topic(root).drop()
    ):
        with suppress(TopicNotFoundError):
            open_topic(root).drop()
        with pytest.raises(TopicNotFoundError):
            open_topic(root)
        with pytest.raises(TopicNotFoundError):
            open_topic(disk.after_power_loss(root / "left"))


def test_story_5_vacuumed_files_cannot_be_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The vacuum horizon is durable before files are deleted, also if another vacuum put it and died."""
    slow: list[SegmentInfo] = []

    def prepare(root: Path) -> None:
        topic = open_topic(root, 1)
        appender = topic.appender()
        appender.append(values([0]))
        slow[:] = appender.close()
        for number in (1, 2):
            topic.append(values([number]))

    def late_vacuum(root: Path) -> None:
        open_topic(root, clock=Clock(NOW + 3000)).vacuum()

    for root, disk in crashes(tmp_path, monkeypatch, prepare, late_vacuum):
        late_vacuum(root)
        assert len(files(Storage(root / "logs" / "clicks"))) == len(named_files(open_topic(root)))
        remaining = open_topic(disk.after_power_loss(root / "left"))
        with pytest.raises(TransactionTooOldError):
            commit_append(remaining.handle, remaining.snapshot, slow, read_version=0)
        assert contents(remaining) == {0: [b"v1", b"v2"]}


@pytest.mark.long
def test_story_6_of_many_appends_that_end_anywhere_the_acknowledged_ones_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def three(root: Path) -> None:
        topic = open_topic(root)
        for number in range(3):
            topic.append(values([number]), partition=number, app_id="app", batch_id=number)
            acknowledged.append(number)

    acknowledged: list[int] = []
    for root, disk in crashes(tmp_path, monkeypatch, lambda root: open_topic(root, 3), three):
        partitions = contents(open_topic(disk.after_power_loss(root / "left")))
        acknowledged_values = set(acknowledged)
        acknowledged.clear()
        assert {number for number in range(3) if partitions[number]} >= acknowledged_values


def test_a_folder_that_cannot_be_synced_makes_no_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = open_topic(tmp_path, 1)
    append(tmp_path)

    fsync = os.fsync

    def broken(descriptor: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith("/_commits"):
            raise OSError(5, "disk trouble")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(CommitStateUnknownError, match="disk trouble"):
        append(tmp_path)
    assert topic.refresh().version == 1


def test_a_folder_of_another_process_is_synced_once_with_its_parents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.setattr(local_files, "DURABLE_FOLDERS", {})
    synced: list[str] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if os.path.isdir(path):
            synced.append(path)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    storage = Storage(tmp_path / "a")
    storage.put("b/1", b"1")
    above = itertools.takewhile(lambda folder: not folder.is_mount(), (tmp_path / "a").parents)
    folders = [tmp_path / "a" / "b", tmp_path / "a", *above]
    assert synced[: len(folders)] == list(map(str, folders))
    del synced[:]
    storage.put("b/2", b"1")
    assert synced == [str(tmp_path / "a/b")]
