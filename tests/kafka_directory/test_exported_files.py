"""An export of many small segments syncs their files together, not folder by folder and file by file."""

from __future__ import annotations

import itertools
import os
import stat
from pathlib import Path

import pytest
from full_disk import fail_writes

import distlog
from distlog import StorageFullError, Topic
from distlog.core.kafka import export


def topic_of_segments(tmp_path: Path, count: int) -> Topic:
    topic = distlog.create(str(tmp_path / "clicks"), config={"retention.ms": -1})
    for number in range(count):
        topic.append([{"value": b"%0900d" % number, "timestamp": number}])
    assert len(topic.segments()) == count
    return topic


def contents(folder: Path) -> dict[str, bytes]:
    files = {path.name: path.read_bytes() for path in folder.glob("*/0*")}
    assert files
    return files


def test_small_segments_are_synced_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = topic_of_segments(tmp_path, 30)
    sync, folders = os.fsync, list[int]()

    def watched(file: int) -> None:
        if stat.S_ISDIR(os.fstat(file).st_mode):
            folders.append(file)
        sync(file)

    monkeypatch.setattr(os, "fsync", watched)
    topic.export(tmp_path / "kafka")
    assert len(folders) < 20


def test_segments_alone_and_together_are_exported_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = topic_of_segments(tmp_path, 8)
    topic.export(tmp_path / "together")
    monkeypatch.setattr(export, "_SMALL_BYTES", 0)
    topic.export(tmp_path / "large")
    monkeypatch.setattr(export, "_BUFFER_FILES", 1)
    topic.export(tmp_path / "alone")
    expected = contents(tmp_path / "together")
    assert contents(tmp_path / "large") == expected
    assert contents(tmp_path / "alone") == expected
    times = {path.stat().st_mtime for path in (tmp_path / "together").glob("*/*.log")}
    assert times == {path.stat().st_mtime for path in (tmp_path / "large").glob("*/*.log")}


@pytest.mark.parametrize("fails_at", [4, 20, 24])
def test_an_export_continues_after_a_full_disk(
    fails_at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topic_of_segments(tmp_path, 8)
    monkeypatch.setattr(export, "_BUFFER_FILES", 6)
    topic.export(tmp_path / "whole")
    numbers = itertools.count(1)
    with monkeypatch.context() as patch:
        fail_writes(patch, lambda: next(numbers) == fails_at)
        with pytest.raises(StorageFullError):
            topic.export(tmp_path / "kafka")
    topic.export(tmp_path / "kafka")
    assert contents(tmp_path / "kafka") == contents(tmp_path / "whole")
