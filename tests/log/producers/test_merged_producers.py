"""Producers are known from segments that a merge has put into a bundle, as from files of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
from partition_logs import Process, new_topic
from test_partition_producers import send

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


def test_retention_keeps_them(merged: Path) -> None:
    topic = Process(merged).topic()
    topic.delete_records({0: -1, 1: -1})
    topic.retention()
    topic.vacuum()
    assert not list((merged / "_bundles").iterdir())
    for partition in (0, 1):
        assert send(Process(merged)[partition], 5) == (5, 6)
        assert send(Process(merged)[partition], 6) == (6, 7)
