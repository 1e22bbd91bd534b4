"""Topics that a Spark process has loaded: a recreated folder is another topic, and nothing is logged."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

import distlog
from distlog.core.storage.storage import Storage
from distlog.spark.batch_source import KnownTopics


@pytest.mark.parametrize("appends", [0, 1, 2, 5])
def test_a_recreated_folder_is_the_new_topic_and_nothing_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, appends: int
) -> None:
    storage, known_topics = Storage(str(tmp_path / "clicks")), KnownTopics()
    for count in (2, appends):
        topic = distlog.create(storage.url)
        for _ in range(count):
            topic.append([{"value": b"v"}])
        for _ in range(2):
            _, snapshot = known_topics.load(storage)
            assert (snapshot.version, snapshot.topic_id) == (count, topic.snapshot.topic_id)
        shutil.rmtree(storage.url)
        for _ in range(2):
            with pytest.raises(distlog.TopicNotFoundError):
                known_topics.load(storage)
    assert caplog.messages == []


def test_damage_after_a_loaded_version_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    storage, known_topics = Storage(str(tmp_path / "clicks")), KnownTopics()
    topic = distlog.create(storage.url)
    known_topics.load(storage)
    topic.append([{"value": b"v"}])
    commit = tmp_path / "clicks" / "_commits" / f"{1:020d}.json"
    commit.write_bytes(commit.read_bytes()[:-20])
    with caplog.at_level(logging.WARNING), pytest.raises(distlog.CorruptMetadataError):
        known_topics.load(storage)
    assert "the cached state of the topic is ignored" in caplog.text
