"""Each version that vacuum keeps has its producers, too: a restore brings it back, an export hands them to Kafka."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from partition_logs import Process, append, new_topic, send

import distlog
from distlog.core import paths


def test_producers_are_known_when_a_restore_moves_the_beginning_back_to_an_earlier_cut(tmp_path: Path) -> None:
    """1. Retention cuts the log twice. 2. Vacuum keeps what it cut off. 3. A restore brings back the second part."""
    folder = tmp_path / "events"
    topic = sent_once(folder, rolls=3)
    wanted = cut(topic, 1)
    age(folder, wanted)
    cut(topic, 2)
    assert topic.vacuum().gc_floor == wanted
    topic.restore(wanted)
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

    That version is behind the gc floor. If it was `restored`, the log began later at the floor.
    """
    topic = sent_once(folder, rolls=4)
    if restored:
        first = cut(topic, 1)
        age(folder, cut(topic, 2))
        topic.restore(first)
    else:
        age(folder, topic.version)
        cut(topic, 1)
    wanted = topic.version
    cut(topic, 2, 3)
    assert topic.vacuum().gc_floor < wanted
    return topic, wanted


@pytest.mark.parametrize("restored", [False, True])
def test_producers_are_known_when_a_version_between_the_gc_floor_and_the_head_is_restored(
    tmp_path: Path, restored: bool
) -> None:
    topic, wanted = cut_often(tmp_path / "events", restored=restored)
    topic.restore(wanted)
    again = Process(tmp_path / "events")
    assert again.head().partitions[0].segments[0].base_offset == 1
    assert send(again[0], 0) == (0, 1)


@pytest.mark.parametrize("restored", [False, True])
def test_an_export_of_a_version_between_the_gc_floor_and_the_head_has_its_producers(
    tmp_path: Path, restored: bool
) -> None:
    _, wanted = cut_often(tmp_path / "events", restored=restored)
    old = distlog.open(str(tmp_path / "events"), version=wanted)
    old.export(tmp_path / "kafka")
    adopted = distlog.adopt(tmp_path / "kafka", str(tmp_path / "again")).topics["events"]
    assert send(Process(tmp_path / "again" / "events")[0], 0) == (0, 1), adopted
