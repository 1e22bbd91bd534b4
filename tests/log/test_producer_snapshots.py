"""Producers outlive their records, as in Kafka: their state survives retention, merges and restores."""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path

import pytest
from active_segments import Clock
from bundled import rows
from partition_logs import Process, append, new_topic, send
from raw_batches import batch, record
from topics import NOW, topic_on

import distlog
from distlog.core import paths
from distlog.core.config import DAY_MS
from distlog.core.errors import OutOfOrderSequenceError, ProducerFencedError
from distlog.core.maintain.merge import merge
from distlog.core.segments.producer_states import read_producer_snapshot
from distlog.core.storage.storage import Storage


def remaining_producers(process: Process) -> list[str]:
    """Return the offsets of stored producer states outside segments."""
    return sorted(path.stem for path in process.folder(0).glob("0*.snapshot"))


def delete_all(process: Process) -> None:
    topic = process.topic()
    topic.delete_records({0: -1})
    topic.retention()
    topic.vacuum()


def test_a_batch_of_a_deleted_segment_is_not_appended_again(folder: Path) -> None:
    process = Process(folder)
    send(process[0], 0, 3, epoch=2)
    delete_all(process)
    assert not list(process.folder(0).glob("*.log"))
    for writer in (process, Process(folder)):
        assert send(writer[0], 0, 3, epoch=2) == (0, 3)
        with pytest.raises(OutOfOrderSequenceError):
            send(writer[0], 4, epoch=2)
        with pytest.raises(ProducerFencedError):
            send(writer[0], 3, epoch=1)
    assert send(Process(folder)[0], 3, epoch=2) == (3, 4)


def test_producers_of_deleted_segments_survive_plain_segments(folder: Path) -> None:
    process = Process(folder)
    send(process[0], 0)
    process[0].roll()
    append(process[0], b"plain")
    process[0].roll()
    append(process[0], b"plain")
    topic = process.topic()
    topic.delete_records({0: 1})
    topic.retention()
    topic.vacuum()
    # after the deletion of the first segment, and of the second
    assert send(Process(folder)[0], 0) == (0, 1)
    delete_all(process)
    assert send(Process(folder)[0], 0) == (0, 1)


def test_a_merge_of_the_first_segments_keeps_earlier_producers(folder: Path) -> None:
    process = Process(folder)
    send(process[0], 0)
    for number in range(3):
        process[0].roll()
        append(process[0], b"plain %d" % number)
    process[0].roll()
    topic = process.topic()
    topic.delete_records({0: 1})
    topic.retention()
    merge(process.handle, topic.snapshot)
    topic.vacuum()
    assert len(process.head().partitions[0].segments) == 1
    assert send(Process(folder)[0], 0) == (0, 1)


def test_a_recreated_topic_has_no_old_producers(folder: Path) -> None:
    process = Process(folder)
    send(process[0], 0)
    delete_all(process)
    shutil.copytree(process.folder(0), folder.parent / "kept")
    distlog.open(str(folder)).drop()
    distlog.create(str(folder), config={"file.delete.delay.ms": 0})
    shutil.copytree(folder.parent / "kept", process.folder(0), dirs_exist_ok=True)
    again = Process(folder)
    append(again[0], b"plain")
    delete_all(again)
    assert send(Process(folder)[0], 7) == (1, 2)


def test_vacuum_deletes_unneeded_producer_states(folder: Path) -> None:
    process = Process(folder)
    for number in range(3):
        send(process[0], number)
        delete_all(process)
    assert remaining_producers(process) == ["00000000000000000003"]
    topic = process.topic()
    topic.drop()
    topic.vacuum()
    assert list(process.folder(0).iterdir()) == []


def test_retention_without_producers_makes_no_request(tmp_path: Path) -> None:
    topic = topic_on(Storage(str(tmp_path / "events")), 1000, {"retention.bytes": 0})
    for first in range(2):
        topic.append(rows(1000, 1, first))
        counters, old_counters = topic.storage.counters, dataclasses.replace(topic.storage.counters)
        assert len(topic.retention().partitions) == 1000
        # only the commit; the deleted segments are from an earlier topic
        assert (counters.puts - old_counters.puts, counters.gets, counters.lists) == (
            1,
            old_counters.gets,
            old_counters.lists,
        )
        assert counters.deletes - old_counters.deletes == 1000


def test_producers_survive_retention_and_an_emptied_first_segment(tmp_path: Path) -> None:
    """Retention deletes a batch, and compaction empties the next segment; then the batch is sent again."""
    folder = new_topic(
        tmp_path / "events",
        file_delete_delay_ms=0,
        cleanup_policy="compact,delete",
        min_cleanable_dirty_ratio=0.0,
        segment_bytes=200,
    )
    process = Process(folder)
    send(process[0], 0)
    process[0].roll()
    for number in range(3):
        process[0].append_batches(plain(b"%d" % number * 60))
        process[0].roll()
    topic = process.topic()
    topic.delete_records({0: 1})
    topic.retention()
    assert process.head().partitions[0].segments[0].base_offset == 1
    topic.compact()
    assert process.head().partitions[0].segments[0].base_offset > 1
    topic.vacuum()
    assert send(Process(folder)[0], 0) == (0, 1)
    delete_all(process)
    assert send(Process(folder)[0], 0) == (0, 1)


def plain(value: bytes) -> bytes:
    return batch([record(0, 0, b"key", value)], base_timestamp=NOW, max_timestamp=NOW)


@pytest.fixture
def merged(tmp_path: Path) -> Path:
    folder = new_topic(tmp_path / "events", 2, file_delete_delay_ms=0)
    process = Process(folder)
    for number in range(6):
        for partition in (0, 1):
            send(process[partition], number)
            process[partition].roll()
    process.topic().compact()
    process.topic().vacuum()
    states = process.head().partitions
    assert [[segment.is_bundled for segment in state.segments] for state in states] == [[True], [True]]
    return folder


def test_a_new_process_recognizes_merged_batches(merged: Path) -> None:
    process = Process(merged)
    for partition in (0, 1):
        assert send(process[partition], 5) == (5, 6)
        assert send(process[partition], 2) == (2, 3)
        with pytest.raises(OutOfOrderSequenceError, match=r"sequence=7 expected=6"):
            send(process[partition], 7)
        assert send(process[partition], 6) == (6, 7)


def test_readers_need_no_snapshot_and_no_page(merged: Path) -> None:
    process = Process(merged)
    send(process[1], 6)
    for path in (*process.folder(1).glob("*.snapshot"), process.folder(1) / ".lock"):
        path.unlink()
    assert distlog.open(str(merged)).scan().count() == 13
    assert send(Process(merged)[1], 6) == (6, 7)


def test_retention_keeps_producers_of_merged_segments(merged: Path) -> None:
    topic = Process(merged).topic()
    topic.delete_records({0: -1, 1: -1})
    topic.retention()
    topic.vacuum()
    assert not list((merged / "_bundles").iterdir())
    for partition in (0, 1):
        assert send(Process(merged)[partition], 5) == (5, 6)
        assert send(Process(merged)[partition], 6) == (6, 7)


def test_producers_survive_a_restore_to_an_earlier_log_start(tmp_path: Path) -> None:
    """Retention truncates the log twice, and a restore brings back the second part."""
    folder = tmp_path / "events"
    topic = sent_once(folder, rolls=3)
    expected = cut(topic, 1)
    age(folder, expected)
    cut(topic, 2)
    assert topic.vacuum().gc_floor == expected
    topic.restore(expected)
    again = Process(folder)
    assert again.head().partitions[0].segments[0].base_offset == 1
    assert send(again[0], 0) == (0, 1)


def sent_once(folder: Path, *, rolls: int) -> distlog.Topic:
    """Return a topic with a batch of a producer in its first segment, and a plain record in each later one."""
    process = Process(new_topic(folder, file_delete_delay_ms=3_600_000))
    send(process[0], 0)
    for _ in range(rolls):
        process[0].roll()
        append(process[0], b"plain")
    return process.topic()


def cut(topic: distlog.Topic, *offsets: int) -> int:
    for offset in offsets:
        topic.delete_records({0: offset})
        topic.retention()
    return topic.version


def age(folder: Path, version: int) -> None:
    for number in range(version + 1):
        os.utime(folder / paths.commit_file(number), (0, 0))


def cut_often(folder: Path, *, restored: bool) -> tuple[distlog.Topic, int]:
    """Return a topic with a log start of 3, and a version before the vacuum horizon with a log start of 1."""
    topic = sent_once(folder, rolls=4)
    if restored:
        first = cut(topic, 1)
        age(folder, cut(topic, 2))
        topic.restore(first)
    else:
        age(folder, topic.version)
        cut(topic, 1)
    version = topic.version
    cut(topic, 2, 3)
    assert topic.vacuum().gc_floor < version
    return topic, version


@pytest.mark.parametrize("restored", [False, True])
def test_producers_survive_a_restore_of_a_version_after_the_vacuum_horizon(tmp_path: Path, restored: bool) -> None:
    topic, expected = cut_often(tmp_path / "events", restored=restored)
    topic.restore(expected)
    again = Process(tmp_path / "events")
    assert again.head().partitions[0].segments[0].base_offset == 1
    assert send(again[0], 0) == (0, 1)


@pytest.mark.parametrize("restored", [False, True])
def test_an_export_of_an_older_version_has_its_producers(tmp_path: Path, restored: bool) -> None:
    _, expected = cut_often(tmp_path / "events", restored=restored)
    old = distlog.open(str(tmp_path / "events"), version=expected)
    old.export(tmp_path / "kafka")
    adopted = distlog.adopt(tmp_path / "kafka", str(tmp_path / "again")).topics["events"]
    assert send(Process(tmp_path / "again" / "events")[0], 0) == (0, 1), adopted


def test_an_export_of_all_segments_again_has_no_expired_producers(tmp_path: Path) -> None:
    clock, topic = Clock(), new_topic(tmp_path / "events")
    process = Process(topic, clock=clock)
    send(process[0], 0, producer=1)
    process[0].roll()
    clock.now_ms += 2 * DAY_MS
    process = Process(topic, clock=clock)
    # the snapshot at the start of this segment is empty
    send(process[0], 0, producer=2)
    folder = tmp_path / "kafka" / "events-0"
    producers = []
    for _ in range(2):
        process.topic().export(tmp_path / "kafka")
        entries = read_producer_snapshot((folder / f"{2:020d}.snapshot").read_bytes())
        producers.append(entries["producer_id"].tolist())
        # without snapshots of the last export, the next one writes all segments again
        for file in folder.glob("*.snapshot"):
            file.unlink()
    assert producers == [[2], [2]]
