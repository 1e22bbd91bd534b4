"""What adoption stored beside the segments goes when it is needed no more: by vacuum, after a drop or retention."""

from __future__ import annotations

from pathlib import Path

import pytest
from log_dirs import partition_of

import distlog

KEPT = {"leader-epoch-checkpoint", ".snapshot"}


def left(folder: Path) -> set[str]:
    """The suffixes, or whole names, of the files in a partition's folder."""
    return {path.suffix or path.name for path in folder.iterdir()}


@pytest.fixture
def topic(tmp_path: Path) -> distlog.Topic:
    folder = partition_of("first", tmp_path, "idempotent-0")
    return distlog.adopt(folder, str(tmp_path / "idempotent"), config={"file.delete.delay.ms": 0}).topic


def test_a_dropped_topic_that_was_adopted_leaves_no_file(topic: distlog.Topic, tmp_path: Path) -> None:
    folder = tmp_path / "idempotent" / "idempotent-0"
    topic.vacuum()
    assert left(folder) >= KEPT
    topic.drop()
    topic.vacuum()
    assert left(folder) == set()


def test_without_a_brokers_segment_its_leader_epochs_go_and_its_producers_stay(
    topic: distlog.Topic, tmp_path: Path
) -> None:
    folder = tmp_path / "idempotent" / "idempotent-0"
    end = topic.end_offsets()[0]
    topic.delete_records({0: -1})
    topic.retention()
    topic.vacuum()
    assert [path.name for path in folder.iterdir() if path.suffix] == [f"{end:020d}.snapshot"]
    assert "leader-epoch-checkpoint" not in left(folder)
