"""Maintenance during an open transaction: readers of committed records get the same records."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from partition_logs import Process, append, new_topic
from transacting import Sender, committed, values_seen

import distlog
from distlog.core.errors import DistlogError
from distlog.core.topic import Topic

Work = Callable[[Topic], object]


def vacuumed(work: Work) -> Work:
    return lambda topic: (work(topic), topic.vacuum())


def restored(topic: Topic) -> None:
    version = topic.version
    topic.delete_records({0: -1})
    topic.retention()
    topic.restore(version)


WORKS = {
    "compact": vacuumed(lambda topic: topic.compact()),
    "rebuild": vacuumed(lambda topic: topic.rebuild_indexes(force=True)),
    "restore": restored,
    "alter": vacuumed(lambda topic: topic.alter_config({"flush.messages": 7})),
}


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("work", WORKS.values(), ids=WORKS.keys())
def test_maintenance_of_an_open_transaction_keeps_its_end(folder: Path, work: Work, commits: bool) -> None:
    process = Process(folder)
    for value in (b"1", b"2"):
        append(process[0], value)
        process[0].roll()
    sender = Sender(Process(folder)).begin().send(0, b"a")
    for value in (b"3", b"4"):
        process[0].roll()
        append(process[0], value)
    sender.send(0, b"b")
    process[0].roll()
    work(process.topic())
    assert committed(folder)[0] == [b"1", b"2"]
    sender.send(0, b"c")
    work(Process(folder).topic())
    (sender.commit if commits else sender.abort)()
    append(Process(folder)[0], b"5")
    work(Process(folder).topic())
    remaining = [b"a", b"3", b"4", b"b", b"c", b"5"] if commits else [b"3", b"4", b"5"]
    assert committed(folder)[0] == [b"1", b"2", *remaining]
    assert Process(folder).anomalies() == ()
    for path in folder.glob("events-0/*.snapshot"):
        path.unlink()
    assert committed(folder)[0] == [b"1", b"2", *remaining]


@pytest.mark.parametrize("commits", [True, False])
def test_compaction_drops_nothing_for_an_open_transaction(tmp_path: Path, commits: bool) -> None:
    folder = new_topic(
        tmp_path / "events", file_delete_delay_ms=0, cleanup_policy="compact", min_cleanable_dirty_ratio=0.0
    )
    first = Sender(Process(folder), "first")
    process = Process(folder)
    first.send(0, b"old", key=b"k")
    first.send(0, b"older", key=b"k")
    process[0].roll()
    sender = Sender(Process(folder)).begin()
    sender.send(0, b"new", key=b"k")
    process[0].roll()
    first.send(0, b"x", key=b"other")
    process[0].roll()
    for _ in range(2):
        topic = process.topic()
        topic.compact()
        topic.vacuum()
        assert committed(folder)[0][-1:] == [b"older"]
    (sender.commit if commits else sender.abort)()
    process[0].roll()
    for _ in range(2):
        topic = process.topic()
        topic.compact()
        topic.vacuum()
    assert committed(folder)[0] == ([b"new", b"x"] if commits else [b"older", b"x"])
    assert Process(folder).anomalies() == ()


def test_a_log_start_inside_a_transaction_shows_the_later_records(
    folder: Path,
) -> None:
    process = Process(folder)
    sender = Sender(Process(folder)).begin().send(0, b"a").send(0, b"b")
    append(process[0], b"1")
    process.topic().delete_records({0: 1})
    assert committed(folder)[0] == []
    sender.send(0, b"c")
    process.topic().delete_records({0: 3})
    assert committed(folder)[0] == []
    process[0].roll()
    process.topic().retention()
    process.topic().vacuum()
    sender.commit()
    assert committed(folder)[0] == [b"c"]
    assert Process(folder).anomalies() == ()


def test_restored_records_of_an_open_transaction_are_aborted(folder: Path) -> None:
    process = Process(folder)
    sender = Sender(Process(folder)).begin().send(0, b"a")
    process[0].roll()
    append(process[0], b"1")
    topic = process.topic()
    version = topic.version
    topic.delete_records({0: 1})
    topic.retention()
    assert committed(folder)[0] == [b"1"]
    sender.abort()
    assert committed(folder)[0] == [b"1"]
    Process(folder).topic().restore(version)
    assert committed(folder)[0] == [b"1"]
    assert Process(folder).anomalies() == ()


def test_a_recreated_topic_has_no_old_transactions(folder: Path) -> None:
    sender = Sender(Process(folder)).begin().send(0, b"a")
    distlog.open(str(folder)).drop()
    distlog.create(str(folder), config={"file.delete.delay.ms": 0})
    for step in (lambda: sender.send(0, b"b"), sender.commit):
        with pytest.raises(DistlogError):
            step()
    again = Sender(Process(folder)).begin().send(0, b"c")
    assert committed(folder)[0] == []
    again.commit()
    assert committed(folder)[0] == [b"c"]
    distlog.open(str(folder)).vacuum()
    assert committed(folder)[0] == [b"c"]
    assert Process(folder).anomalies() == ()


@pytest.mark.parametrize("commits", [True, False])
def test_a_later_export_ends_an_open_transaction(folder: Path, tmp_path: Path, commits: bool) -> None:
    process = Process(folder)
    append(process[0], b"1")
    sender = Sender(Process(folder)).begin().send(0, b"a")
    process[0].roll()
    target = tmp_path / "kafka"
    target.mkdir()
    process.topic().refresh().export(target)
    sender.send(0, b"b")
    (sender.commit if commits else sender.abort)()
    append(Process(folder)[0], b"2")
    process.topic().refresh().export(target)
    (copy,) = distlog.adopt(target, str(tmp_path / "copies")).topics.values()
    assert values_seen(copy)[0] == ([b"1", b"a", b"b", b"2"] if commits else [b"1", b"2"])
    assert copy.verify().anomalies == ()
