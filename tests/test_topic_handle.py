"""The handle of a topic, here and in another process."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path
from random import Random

from commits import put_commit
from topics import NOW, Clock, topic_on, values

from distlog.core.segments.segment_reader import TopicHandle
from distlog.core.storage.storage import Storage


def handle_of(folder: Path) -> TopicHandle:
    topic = topic_on(Storage(folder / "log"), 1, clock=Clock())
    topic.append(values(range(3)))
    return topic.handle


def test_a_pickled_handle_keeps_the_topic_and_the_time(tmp_path: Path) -> None:
    handle = handle_of(tmp_path)
    copy = pickle.loads(pickle.dumps(handle))
    assert (copy.storage.url, copy.name, copy.clock()) == (handle.storage.url, "log", NOW)
    assert copy.reader is not handle.reader
    (segment,) = copy.log.load().partitions[0].segments
    assert copy.storage.read(copy.reader.name(segment)) == handle.storage.read(handle.reader.name(segment))
    assert copy.log.load() == handle.log.load()


def test_a_pickled_handle_commits_by_its_own_clock(tmp_path: Path) -> None:
    handle = handle_of(tmp_path)
    later = dataclasses.replace(handle, clock=Clock(NOW + 1000))
    copy = pickle.loads(pickle.dumps(later))
    commit, _ = put_commit(copy.log, copy.log.load(), "config", lambda _: [])
    assert commit.timestamp_ms == NOW + 1000


def test_a_pickled_topic_keeps_its_clock_and_its_version(tmp_path: Path) -> None:
    topic = topic_on(Storage(tmp_path / "log"), 1, clock=Clock(NOW + 1000))
    copy = pickle.loads(pickle.dumps(topic))
    topic.append(values(range(3)))
    assert (copy.version, copy.clock()) == (0, NOW + 1000)
    assert copy.refresh().version == 1


def test_a_random_source_is_not_pickled(tmp_path: Path) -> None:
    handle = dataclasses.replace(handle_of(tmp_path), random=Random(7))
    drawn = {pickle.loads(pickle.dumps(handle)).random.randbytes(16) for _ in range(3)}
    assert len(drawn) == 3


def test_a_clock_far_ahead_of_the_storage_is_ignored(tmp_path: Path) -> None:
    handle = handle_of(tmp_path)
    fast_handle = dataclasses.replace(handle, clock=lambda: 1 << 60)
    assert fast_handle.trusted_ms() < 1 << 50
    assert handle.trusted_ms() == NOW
