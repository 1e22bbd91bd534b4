"""Helpers for tests of writers on a local disk: syncs that are counted and may fail, and full buffers."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

import pytest
from gated_writer import NEVER_MS
from topics import Clock, topic_on

from distlog.core.storage.storage import Storage
from distlog.core.topic import Topic
from distlog.core.write.writer import Delivery


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def topic(tmp_path: Path, clock: Clock) -> Topic:
    """An empty topic of two partitions on a local disk."""
    return topic_on(Storage(str(tmp_path / "topic")), 2, clock=clock)


class Syncs:
    """Counts the syncs of log files, and lets them fail for one partition."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, self.failed, self.failing = 0, 0, -1
        self._fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self._sync)

    def _sync(self, file: int) -> None:
        path = os.readlink(f"/proc/self/fd/{file}")
        if path.endswith(".log"):
            self.count += 1
            if os.path.dirname(path).endswith(f"-{self.failing}"):
                self.failed += 1
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._fsync(file)


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> Syncs:
    return Syncs(monkeypatch)


def append_both(topic: Topic, deliveries: list[Delivery], numbers: range) -> None:
    """Write each number to both partitions, in one buffer."""
    with topic.writer(linger_ms=NEVER_MS, on_delivery=deliveries.append) as writer:
        for number in numbers:
            for partition in (0, 1):
                writer.append(b"%d" % number, partition=partition)


def open_files(folder: Path) -> int:
    """The number of open files of this process in the folder; other files may come and go."""
    links = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            links.append(os.readlink(f"/proc/self/fd/{number}"))
    return sum(link.startswith(f"{folder}/") for link in links)
