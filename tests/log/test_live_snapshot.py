"""A topic object's view of active segments: a refresh is one GET and one page for each."""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gated_writer import NEVER_MS
from topics import NOW, contents, topic_on

from distlog.core import paths
from distlog.core.storage.storage import Storage
from distlog.core.topic import Topic


@pytest.fixture
def topic(tmp_path: Path) -> Topic:
    return topic_on(Storage(str(tmp_path / "topic")), 4)


def write(topic: Topic, *partitions: int) -> None:
    with topic_on(topic.storage).writer(linger_ms=NEVER_MS) as writer:
        for partition in partitions:
            writer.append(b"", partition=partition)


def test_a_refresh_is_one_get_and_one_page_for_each_active_segment(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(topic, 0, 2)
    topic.refresh().end_offsets()
    opens = list[str]()
    for module in (builtins, os):
        monkeypatch.setattr(module, "open", watched(module.open, opens))
    topic.refresh()
    for _ in range(3):
        assert topic.end_offsets() == {0: 1, 1: 0, 2: 1, 3: 0}
        assert len(topic.segments()) == 2
    monkeypatch.undo()
    # the newest commit, too, since a folder that was deleted has no next commit either
    commits = [topic.storage.local_path(paths.commit_file(version)) for version in (topic.version + 1, topic.version)]
    pages = [f"{topic.storage.local_path(f'topic-{number}')}/{paths.LOCK_FILE}" for number in (0, 2)]
    assert opens == [*commits, *pages]


def watched(real: Callable[..., Any], opens: list[str]) -> Callable[..., Any]:
    """Wrap `real`, which opens a file, to record its paths, including missing ones."""

    def call(path: Any, *arguments: Any, **options: Any) -> Any:
        opens.append(str(path))
        return real(path, *arguments, **options)

    return call


def test_a_topic_sees_the_ends_of_its_last_refresh(topic: Topic) -> None:
    write(topic, 0)
    topic.refresh()
    write(topic, 0, 1)
    assert topic.end_offsets() == {0: 1, 1: 0, 2: 0, 3: 0}
    assert topic.refresh().end_offsets() == {0: 2, 1: 1, 2: 0, 3: 0}
    assert {number: len(values) for number, values in contents(topic).items()} == topic.end_offsets()


def test_a_topic_sees_the_records_of_its_own_writer_without_a_refresh(topic: Topic) -> None:
    with topic.writer(linger_ms=NEVER_MS) as writer:
        for count in range(1, 4):
            writer.append(b"", partition=0)
            writer.flush()
            assert topic.end_offsets()[0] == count
            assert [record.offset for record in topic.records(0)] == list(range(count))


def test_a_planned_scan_keeps_its_end(topic: Topic) -> None:
    write(topic, 0)
    scan = topic.refresh().scan()
    write(topic, 0)
    topic.refresh()
    assert (scan.count(), topic.scan().count()) == (1, 2)


def test_the_base_of_a_commit_has_no_tails(topic: Topic) -> None:
    write(topic, 0)
    topic.refresh()
    assert topic.live_snapshot.partitions[0].log_end_offset == 1
    assert topic.snapshot.partitions[0].log_end_offset == 0
    assert len(topic.snapshot.partitions[0].segments) == 0


def test_a_time_is_found_in_a_grown_tail(topic: Topic) -> None:
    write(topic, *[0] * 10)
    topic.refresh()
    write(topic, *[0] * 10)
    assert topic.offsets_for_times({0: NOW}) == {0: (0, NOW)}
    assert topic.offsets_for_times({0: NOW + 1}) == {0: None}
