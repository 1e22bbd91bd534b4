"""Appends to a local disk that fails at every step in turn, or is full: each is whole, or is not there."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from test_topic_faults import V1
from topics import TINY, contents, files, named_files, topic_on, values

from distlog.core.errors import (
    CommitStateUnknownError,
    StorageError,
)
from distlog.core.storage.storage import ObjectWriter, Storage
from distlog.core.topics.topic import Topic


class Breaks(Exception):  # noqa: N818 - what happens, not what is raised to users
    """The process stops here."""


class BreakingStorage(Storage):
    """A storage that breaks at step `break_at`: each file, each write to an open one and each commit is two steps."""

    def __init__(self, url: str, break_at: int) -> None:
        super().__init__(url)
        self.break_at, self.steps = break_at, 0

    def step(self) -> None:
        self.steps += 1
        if self.steps == self.break_at:
            raise Breaks

    def put_many(self, files: Mapping[str, Any]) -> None:
        for name, data in files.items():
            self.step()
            super().put_many({name: data})
            self.step()

    def open_write(self, name: str, part_bytes: int | None = None) -> ObjectWriter:
        self.step()
        writer = super().open_write(name)
        write, close = writer.write_behind, writer.close
        writer.write_behind = lambda data: (self.step(), write(data))[1]  # type: ignore[method-assign]
        writer.close = lambda: (self.step(), close(), self.step())[1]  # type: ignore[method-assign]
        return writer

    def put(self, name: str, data: Any) -> None:
        self.step()
        super().put(name, data)
        self.step()

    def put_if_absent(self, name: str, data: bytes, **options: Any) -> bytes:
        self.step()
        standing = super().put_if_absent(name, data, **options)
        self.step()
        return standing


@pytest.mark.parametrize(("size", "least"), [(10, 4), pytest.param(300_000, 8, marks=pytest.mark.long)])
def test_17_an_append_that_breaks_at_any_step_is_whole_or_absent(size: int, least: int, tmp_path: Path) -> None:
    """The small one is a bundle, the large one files of each partition."""
    rows = [{"value": b"%d" % number + b"x" * size, "partition": number % 2} for number in range(60)]
    expected = {partition: [row["value"] for row in rows if row["partition"] == partition] for partition in range(2)}
    outcomes = []
    for break_at in range(1, 1000):
        storage = BreakingStorage(str(tmp_path / str(break_at) / "topic"), 0)
        topic = topic_on(storage, 2)
        storage.break_at, storage.steps = break_at, 0
        try:
            topic.append(rows, app_id="app", batch_id=1)
            broke = False
        except Breaks:
            broke = True
        other = topic_on(Storage(storage.url))
        whole = contents(other) == expected
        assert whole or contents(other) == {0: [], 1: []}
        outcomes.append((broke, whole))
        assert other.append(rows, app_id="app", batch_id=1).replayed == whole
        assert contents(other) == expected
        assert named_files(other) <= files(storage)
        if not broke:
            break
    assert (False, True) not in outcomes[:-1]
    assert outcomes[-2:] == [(True, True), (False, True)]
    assert outcomes[0] == (True, False)
    assert len(outcomes) > least


@pytest.fixture
def local(tmp_path: Path) -> Topic:
    return topic_on(Storage(str(tmp_path / "topic")), 1, TINY)


def full(call: Callable[..., Any], works: int) -> Callable[..., Any]:
    """`call`, which works so many times and then finds the disk full."""
    left = [works]

    def limited(*arguments: Any, **options: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return call(*arguments, **options)

    return limited


@pytest.mark.parametrize("records", [3, 100])
@pytest.mark.parametrize("call", ["write", "fsync", "link", "replace"])
def test_18_a_full_disk_is_told_and_leaves_the_topic_as_it_was(
    call: str, records: int, local: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic_on(local.storage).append(values([1]))
    for works in range(1000):
        with monkeypatch.context() as patched:
            patched.setattr(os, call, full(getattr(os, call), works))
            try:
                local.append(values(range(2, 2 + records)))
            except StorageError as error:
                assert "No space left on device" in str(error)  # noqa: PT017 - in a loop over all of them
            except CommitStateUnknownError:
                # the commit is there, and only its folder could not be made durable
                assert call == "fsync"
                break
            else:
                break
        assert contents(local.refresh()) == V1
    assert contents(local.refresh()) == {0: [b"v%d" % number for number in range(1, 2 + records)]}
    assert works >= 1


def test_19_a_large_append_to_a_full_disk_leaves_no_half_file(local: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = topic_on(Storage(f"{local.url}-large"), 1)
    with monkeypatch.context() as patched:
        patched.setattr(os, "writev", full(os.writev, 1))
        with pytest.raises(StorageError, match="No space left on device"):
            topic.append([{"value": b"x" * 100_000}] * 100)
    assert files(topic.storage) == set()
    assert topic.append(values([1])).version == 1
