"""Producers outlive their records, as in Kafka: they are known after retention, merges and restores."""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path

import pytest
from bundled import rows
from partition_logs import Process, append, new_topic, send
from raw_batches import batch, record
from topics import NOW, topic_on

import distlog
from distlog.core import paths
from distlog.core.errors import OutOfOrderSequenceError, ProducerFencedError
from distlog.core.maintain.merge import merge
from distlog.core.storage.storage import Storage


def remaining_producers(process: Process) -> list[str]:
    """The offsets at which producers were stored, but for those of segments."""
    return sorted(path.stem for path in process.folder(0).glob("0*.snapshot"))


def delete_all(process: Process) -> None:
    """Delete all records, and the files of their segments."""
    topic = process.topic()
    topic.delete_records({0: -1})
    topic.retention()
    topic.vacuum()


def test_what_is_sent_again_after_its_segment_was_deleted_is_not_appended_again(folder: Path) -> None:
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


def test_producers_of_deleted_segments_are_known_behind_segments_without_producers(folder: Path) -> None:
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
    # the first one, and again when that one is gone too
    assert send(Process(folder)[0], 0) == (0, 1)
    delete_all(process)
    assert send(Process(folder)[0], 0) == (0, 1)


def test_a_merge_of_the_first_segments_keeps_what_came_before_them(folder: Path) -> None:
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


def test_a_topic_made_again_does_not_take_over_what_retention_kept(folder: Path) -> None:
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


def test_vacuum_deletes_what_retention_kept_when_the_log_begins_later_or_the_topic_is_dropped(folder: Path) -> None:
    process = Process(folder)
    for number in range(3):
        send(process[0], number)
        delete_all(process)
    assert remaining_producers(process) == ["00000000000000000003"]
    topic = process.topic()
    topic.drop()
    topic.vacuum()
    assert list(process.folder(0).iterdir()) == []


def test_retention_asks_storage_for_nothing_where_no_batch_has_a_producer(tmp_path: Path) -> None:
    topic = topic_on(Storage(str(tmp_path / "events")), 1000, {"retention.bytes": 0})
    for first in range(2):
        topic.append(rows(1000, 1, first))
        counters, old_counters = topic.storage.counters, dataclasses.replace(topic.storage.counters)
        assert len(topic.retention().partitions) == 1000
        # the commit alone; what is deleted is from a topic that was here before
        assert (counters.puts - old_counters.puts, counters.gets, counters.lists) == (
            1,
            old_counters.gets,
            old_counters.lists,
        )
        assert counters.deletes - old_counters.deletes == 1000


def test_producers_are_known_when_compaction_empties_the_first_segment_behind_a_retention_cut(tmp_path: Path) -> None:
    """1. What a producer sent is deleted. 2. All that the next segment has is superseded. 3. It sends it again."""
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
    """A batch of no producer, with one record of the only key."""
    return batch([record(0, 0, b"key", value)], base_timestamp=NOW, max_timestamp=NOW)


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
    assert [[segment.is_bundled for segment in state.segments] for state in states] == [[True], [True]]
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


def test_producers_are_known_when_a_restore_moves_the_beginning_back_to_an_earlier_cut(tmp_path: Path) -> None:
    """1. Retention cuts the log twice. 2. Vacuum keeps what it cut off. 3. A restore brings back the second part."""
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
    """A topic whose first segment has what a producer sent; each other one has a record of nobody's."""
    process = Process(new_topic(folder, file_delete_delay_ms=3_600_000))
    send(process[0], 0)
    for _ in range(rolls):
        process[0].roll()
        append(process[0], b"plain")
    return process.topic()


def cut(topic: distlog.Topic, *offsets: int) -> int:
    """Delete the records before each of the offsets in turn; returns the version."""
    for offset in offsets:
        topic.delete_records({0: offset})
        topic.retention()
    return topic.version


def age(folder: Path, version: int) -> None:
    """Have all commits up to a version be of long ago."""
    for number in range(version + 1):
        os.utime(folder / paths.commit_file(number), (0, 0))


def cut_often(folder: Path, *, restored: bool) -> tuple[distlog.Topic, int]:
    """A topic whose log begins at 3, and the version that has it begin at 1; producers were cut off before that.

    That version is below the vacuum horizon. If it was `restored`, the log began later at the horizon.
    """
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
def test_producers_are_known_when_a_version_between_the_gc_floor_and_the_head_is_restored(
    tmp_path: Path, restored: bool
) -> None:
    topic, expected = cut_often(tmp_path / "events", restored=restored)
    topic.restore(expected)
    again = Process(tmp_path / "events")
    assert again.head().partitions[0].segments[0].base_offset == 1
    assert send(again[0], 0) == (0, 1)


@pytest.mark.parametrize("restored", [False, True])
def test_an_export_of_a_version_between_the_gc_floor_and_the_head_has_its_producers(
    tmp_path: Path, restored: bool
) -> None:
    _, expected = cut_often(tmp_path / "events", restored=restored)
    old = distlog.open(str(tmp_path / "events"), version=expected)
    old.export(tmp_path / "kafka")
    adopted = distlog.adopt(tmp_path / "kafka", str(tmp_path / "again")).topics["events"]
    assert send(Process(tmp_path / "again" / "events")[0], 0) == (0, 1), adopted
