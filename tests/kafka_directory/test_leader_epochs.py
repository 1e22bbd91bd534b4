"""Leader epochs of a broker, by Kafka's UnifiedLogTest: shouldTruncateLeaderEpochsWhenDeletingSegments and others."""

from __future__ import annotations

from pathlib import Path

import pytest
from log_dirs import copy_of

import distlog
from distlog.core.kafka.partition_folder import (
    LOG_START_OFFSETS,
    PartitionName,
    joined_epochs,
    read_epochs,
    read_offsets,
    write_epochs,
    write_offsets,
)

Epochs = list[tuple[int, int]]
NAME = "leader-epoch-checkpoint"
PARTITION = PartitionName("multi", 0)
WRITTEN = [(0, 0), (1, 7), (2, 10)]


def adopted(folder: Path, epochs: Epochs, log_start: int = 0) -> distlog.Topic:
    log_dir = copy_of("first", folder)
    (log_dir / "multi-0" / NAME).write_bytes(write_epochs(epochs))
    starts = read_offsets((log_dir / LOG_START_OFFSETS).read_bytes())
    (log_dir / LOG_START_OFFSETS).write_bytes(write_offsets({**starts, PARTITION: log_start}))
    return distlog.adopt(log_dir, topics=["multi"]).topic


def epochs_in(folder: Path | str) -> Epochs:
    return list(read_epochs((Path(folder) / "multi-0" / NAME).read_bytes()))


@pytest.mark.parametrize(
    ("log_start", "epochs"),
    [
        (0, [(0, 0), (1, 7), (2, 10)]),
        (5, [(0, 5), (1, 7), (2, 10)]),
        (7, [(1, 7), (2, 10)]),
        (9, [(1, 9), (2, 10)]),
        (10, [(2, 10)]),
        (15, [(2, 15)]),
    ],
)
def test_the_epochs_of_a_log_begin_where_it_begins(log_start: int, epochs: Epochs, tmp_path: Path) -> None:
    topic = adopted(tmp_path, WRITTEN, log_start)
    assert topic.start_offsets()[0] == log_start
    assert epochs_in(topic.url) == epochs


@pytest.mark.parametrize(("begins", "stays"), [(-1, True), (0, False), (1, False)])
def test_an_epoch_without_a_record_is_left_out(begins: int, stays: bool, tmp_path: Path) -> None:
    end = adopted(tmp_path / "before", WRITTEN).end_offsets()[0]
    topic = adopted(tmp_path / "after", [*WRITTEN, (3, end + begins)])
    assert epochs_in(topic.url) == [*WRITTEN, *[(3, end + begins)] * stays]


def test_an_export_has_the_epochs_from_the_log_start(tmp_path: Path) -> None:
    topic = adopted(tmp_path, WRITTEN)
    topic.export(tmp_path / "whole")
    assert epochs_in(tmp_path / "whole") == WRITTEN
    topic.delete_records({0: 9})
    topic.refresh().export(tmp_path / "cut")
    assert epochs_in(tmp_path / "cut") == [(1, 9), (2, 10)]


def test_only_a_larger_epoch_of_a_segment_starts() -> None:
    segments = [[(0, 0), (1, 4)], [(1, 6), (0, 7), (3, 8)], [], [(3, 9), (2, 12)]]
    assert joined_epochs(segments, 0) == [(0, 0), (1, 4), (3, 8)]
    assert joined_epochs(segments, 8) == [(3, 8)]
    assert joined_epochs([[], []], 5) == []
