"""Producers are known from segments that a merge has put into a bundle, as from files of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
from partition_logs import Process, new_topic, send

import distlog
from distlog.core.errors import OutOfOrderSequenceError


@pytest.fixture
def merged(tmp_path: Path) -> Path:
    """A topic of two partitions, each with six batches of a producer in segments that were merged."""
    folder = new_topic(tmp_path / "events", 2, file_delete_delay_ms=0)
    process = Process(folder)
    for number in range(6):
        for partition in (0, 1):
            send(process[partition], number)
            process[partition].roll()
    process.topic().compact()
    process.topic().vacuum()
    states = process.head().partitions
    assert [[one.is_bundled for one in state.segments] for state in states] == [[True], [True]]
    return folder


def test_a_new_process_knows_their_batches(merged: Path) -> None:
    process = Process(merged)
    for partition in (0, 1):
        assert send(process[partition], 5) == (5, 6)
        assert send(process[partition], 2) == (2, 3)
        with pytest.raises(OutOfOrderSequenceError, match=r"sequence=7 expected=6"):
            send(process[partition], 7)
        assert send(process[partition], 6) == (6, 7)


def test_readers_need_no_snapshot_and_no_page_of_the_active_segment_behind_them(merged: Path) -> None:
    """A power loss may take both."""
    process = Process(merged)
    send(process[1], 6)
    for path in (*process.folder(1).glob("*.snapshot"), process.folder(1) / ".lock"):
        path.unlink()
    assert distlog.open(str(merged)).scan().count() == 13
    assert send(Process(merged)[1], 6) == (6, 7)


def test_retention_keeps_them(merged: Path) -> None:
    topic = Process(merged).topic()
    topic.delete_records({0: -1, 1: -1})
    topic.retention()
    topic.vacuum()
    assert not list((merged / "_bundles").iterdir())
    for partition in (0, 1):
        assert send(Process(merged)[partition], 5) == (5, 6)
        assert send(Process(merged)[partition], 6) == (6, 7)
