"""Compaction and merging with concurrent direct appends: like Kafka's cleaner, they end before the active segment."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dying_calls import before_call
from partition_logs import Process, append, append_rows, new_topic, sealed
from raw_batches import batch, record
from topics import NOW

from distlog.core.format.record_batch import read_headers
from distlog.core.log.partition_log import PartitionLog

COMPACTED = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": 0.0}


def put(log: PartitionLog, key: bytes, value: bytes) -> None:
    data = np.frombuffer(batch([record(0, 0, key, value)], base_timestamp=NOW, max_timestamp=NOW), np.uint8).copy()
    append_rows(log, data, read_headers(data.data))


def records(process: Process) -> list[tuple[int, bytes, bytes]]:
    table = process.topic().scan(columns=["offset", "key", "value"]).to_table()
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def active_files(process: Process) -> dict[str, tuple[int, bytes]]:
    """Return the modification time and the content of the active segment's files."""
    active = process.head().partitions[0].active
    assert active
    folder = Path(process.handle.storage.url) / "events-0"
    files_found = {name: folder / name for name in os.listdir(folder) if name.startswith(active.stem)}
    return {name: (path.stat().st_mtime_ns, path.read_bytes()) for name, path in files_found.items()}


@pytest.fixture
def process(tmp_path: Path) -> Process:
    process = Process(new_topic(tmp_path / "events", **COMPACTED))
    put(process[0], b"k", b"0")
    put(process[0], b"l", b"1")
    process[0].roll()
    put(process[0], b"k", b"2")
    process[0].roll()
    put(process[0], b"k", b"3")
    put(process[0], b"l", b"4")
    return process


def test_the_active_segment_supersedes_nothing_and_stays_unchanged(process: Process) -> None:
    old_active_files = active_files(process)
    report: Any = process.topic().compact()
    (partition,) = report.partitions
    assert (partition.end_offset, partition.records_before, partition.records_after) == (3, 3, 2)
    assert records(process) == [(1, b"l", b"1"), (2, b"k", b"2"), (3, b"k", b"3"), (4, b"l", b"4")]
    assert active_files(process) == old_active_files
    state = process.head().partitions[0]
    assert (state.first_dirty_offset, state.log_end_offset) == (3, 3)
    assert process.topic().compact().partitions == ()  # type: ignore[union-attr]


def test_a_sealed_segment_is_compacted(process: Process) -> None:
    process.topic().compact()
    process[0].roll()
    process.topic().compact()
    assert records(process) == [(3, b"k", b"3"), (4, b"l", b"4")]
    put(process[0], b"m", b"5")
    assert records(process)[-1] == (5, b"m", b"5")
    assert process.anomalies() == ()


def test_a_single_active_segment_is_not_compacted(tmp_path: Path) -> None:
    process = Process(new_topic(tmp_path / "events", **COMPACTED))
    put(process[0], b"k", b"0")
    put(process[0], b"k", b"1")
    assert process.topic().compact().partitions == ()  # type: ignore[union-attr]
    assert len(records(process)) == 2


def test_appends_continue_during_compaction(process: Process) -> None:
    topic = process.topic()
    put(process[0], b"k", b"5")
    topic.compact()
    put(process[0], b"l", b"6")
    assert [offset for offset, _, _ in records(process)] == [1, 2, 3, 4, 5, 6]
    assert len(process.head().partitions[0].segments) == 1


def test_merging_takes_the_sealed_segments_and_leaves_the_active_one(tmp_path: Path) -> None:
    process = Process(new_topic(tmp_path / "events"))
    for value in (b"a", b"b"):
        append(process[0], value)
        process[0].roll()
    append(process[0], b"c")
    old_active_files = active_files(process)
    process.topic().compact()
    assert sealed(process.head()) == [(0, 2)]
    assert active_files(process) == old_active_files
    assert append(process[0], b"d") == (3, 4)
    assert process.values() == {0: [b"a", b"b", b"c", b"d"]}


def test_a_seal_during_a_merge_is_not_a_conflict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process, other = Process(new_topic(tmp_path / "events")), Process(tmp_path / "events")
    for value in (b"a", b"b"):
        append(process[0], value)
        process[0].roll()
    append(process[0], b"c")
    topic = process.topic()

    def append_more() -> None:
        other.topic().append([{"value": b"d"}])
        append(other[0], b"e")

    before_call(monkeypatch, "link", lambda _, to: "/_commits/" in to, append_more)
    topic.compact()
    assert sealed(process.head()) == [(0, 2), (2, 3), (3, 4)]
    assert process.values() == {0: [b"a", b"b", b"c", b"d", b"e"]}
