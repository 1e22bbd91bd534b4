"""Producers outlive their records, as in Kafka: retention deletes whole segments, and what they told is kept."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest
from bundled import rows
from partition_logs import Process, append, new_topic, send
from raw_batches import batch, record
from topics import NOW, topic_on

import distlog
from distlog.core.errors import OutOfOrderSequenceError, ProducerFencedError
from distlog.core.maintenance.merge import merge
from distlog.core.storage.storage import Storage


def kept(process: Process) -> list[str]:
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
    for each in (process, Process(folder)):
        assert send(each[0], 0, 3, epoch=2) == (0, 3)
        with pytest.raises(OutOfOrderSequenceError):
            send(each[0], 4, epoch=2)
        with pytest.raises(ProducerFencedError):
            send(each[0], 3, epoch=1)
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
    assert kept(process) == ["00000000000000000003"]
    topic = process.topic()
    topic.drop()
    topic.vacuum()
    assert list(process.folder(0).iterdir()) == []


def test_retention_asks_storage_for_nothing_where_no_batch_has_a_producer(tmp_path: Path) -> None:
    topic = topic_on(Storage(str(tmp_path / "events")), 1000, {"retention.bytes": 0})
    for first in range(2):
        topic.append(rows(1000, 1, first))
        counters, before = topic.storage.counters, dataclasses.replace(topic.storage.counters)
        assert len(topic.retention().partitions) == 1000
        # the commit alone; what is deleted is from a topic that was here before
        assert (counters.puts - before.puts, counters.gets, counters.lists) == (1, before.gets, before.lists)
        assert counters.deletes - before.deletes == 1000


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
