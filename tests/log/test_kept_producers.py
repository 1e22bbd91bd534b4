"""Producers outlive their records, as in Kafka: retention deletes whole segments, and what they told is kept."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from partition_logs import Process, append, new_topic
from test_partition_producers import send

import distlog
from distlog.core.errors import OutOfOrderSequenceError, ProducerFencedError
from distlog.core.maintenance.merge import merge


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return new_topic(tmp_path / "events", file_delete_delay_ms=0)


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
