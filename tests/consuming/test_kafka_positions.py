"""A consumer group starts at the committed offsets of a Kafka group, on request only."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from kafka_commits import KafkaCommits
from topic_consumers import consume, drained, span
from topics import TINY, topic_on, values

import distlog
from distlog.core import paths
from distlog.core.errors import (
    CommitConflictError,
    CorruptMetadataError,
    GroupNotFoundError,
    InvalidConfigError,
    OffsetOutOfRangeError,
)
from distlog.core.read.kafka_offsets import OFFSETS_TOPIC, kafka_positions, offsets_partition
from distlog.core.storage.storage import Storage
from distlog.core.topic import Topic


@pytest.fixture
def topic() -> Topic:
    topic = topic_on(Storage(f"memory://{uuid.uuid4().hex}/topic"), 2, TINY)
    for partition in range(2):
        topic.append(values(range(10)), partition=partition)
    return topic


def positions(topic: Topic) -> list[int | None]:
    return [row["position"] for row in topic.groups().to_pylist()]


def test_a_group_copies_existing_committed_offsets_and_keeps_its_own(topic: Topic) -> None:
    kafka = KafkaCommits(topic, "jobs")
    kafka({0: 4, 1: -1, 7: 3})
    assert topic.reset_group("g", kafka="jobs") == {0: 4, 1: 0}
    assert drained(consume(topic, group="g", timeout=0)) == span(0, 4, 10) + span(1, 0, 10)
    topic.reset_group("g", 9)
    kafka({0: 5})
    kafka({0: None, 1: 6})
    assert topic.reset_group("g", kafka="jobs") == {0: 9, 1: 6}


def test_groups_with_the_same_name_are_independent(topic: Topic) -> None:
    KafkaCommits(topic)({0: 4})
    assert positions(topic) == []
    with consume(topic, group="g", timeout=0) as consumer:
        assert drained(consumer) == span(0, 0, 10) + span(1, 0, 10)
        KafkaCommits(topic)({1: 3})
    assert positions(topic) == [10, 10]


def test_committed_offsets_in_a_dropped_topic_are_not_copied(topic: Topic) -> None:
    KafkaCommits(topic, "jobs")({0: 4, 1: 9})
    topic.drop()
    recreated = distlog.create(topic.url, partitions=2)
    assert recreated.verify().ok
    assert recreated.verify().warnings == ()
    with pytest.raises(GroupNotFoundError):
        recreated.reset_group("g", kafka="jobs")


def test_nothing_is_copied_while_the_group_has_members(topic: Topic) -> None:
    KafkaCommits(topic)({0: 4})
    with consume(topic, group="g", timeout=0) as consumer:
        with pytest.raises(CommitConflictError, match="has members"):
            topic.reset_group("g", kafka="g")
        assert drained(consumer) == span(0, 0, 10) + span(1, 0, 10)
        consumer.commit()
    assert topic.reset_group("g", kafka="g") == {0: 4, 1: 10}


def test_a_group_without_committed_offsets_and_two_sources_are_refused(topic: Topic) -> None:
    for _ in range(2):
        with pytest.raises(GroupNotFoundError, match="has no committed offset in the topic"):
            topic.reset_group("g", kafka="jobs")
        KafkaCommits(topic)({0: 4})
    KafkaCommits(topic_on(Storage(f"{topic.url}2"), 2), "jobs")({0: 4})
    with pytest.raises(GroupNotFoundError, match="no committed offset"):
        topic.reset_group("g", kafka="jobs")
    for to, kafka in ((3, "g"), (None, None)):
        with pytest.raises(InvalidConfigError, match="either"):
            topic.reset_group("g", to, kafka=kafka)
    assert positions(topic) == []


def test_copied_offsets_are_raised_to_the_log_start_and_refused_past_the_end(topic: Topic) -> None:
    kafka = KafkaCommits(topic)
    topic.delete_records({0: 6})
    kafka({0: 4})
    assert topic.reset_group("g", kafka="g") == {0: 6, 1: 0}
    # as in a topic that was dropped and recreated
    kafka({1: 11})
    with pytest.raises(OffsetOutOfRangeError, match="partition=1"):
        topic.reset_group("g", kafka="g")
    assert positions(topic) == [6, 0]


def test_a_damaged_offsets_topic_is_named_and_nothing_is_copied(tmp_path: Path) -> None:
    topic = topic_on(Storage(str(tmp_path / "root" / "topic")), 2, TINY)
    KafkaCommits(topic)({0: 0})
    offsets_folder = tmp_path / "root" / OFFSETS_TOPIC
    distlog.open(str(offsets_folder)).append(
        [{"key": b"\0\1\0\1g\0\5topic", "value": b"?"}], partition=offsets_partition("g", 3)
    )
    with pytest.raises(distlog.CorruptRecordError, match=f"url={offsets_folder}"):
        topic.reset_group("g", kafka="g")
    for commit in (offsets_folder / paths.COMMITS_DIR).iterdir():
        commit.write_bytes(b"{}")
    with pytest.raises(CorruptMetadataError, match=f"url={offsets_folder}"):
        topic.reset_group("g", kafka="g")
    assert positions(topic) == []


@pytest.mark.parametrize("url", ["/", "/topic", "memory://topic", "s3://bucket/topic", "s3://bucket"])
def test_only_topics_in_a_folder_have_an_offsets_topic(url: str) -> None:
    pytest.importorskip("s3fs")
    sibling = Storage(url).sibling("x")
    expected = {"/topic": "/x", "s3://bucket/topic": "s3://bucket/x"}.get(url)
    assert (sibling and sibling.url) == expected


def test_a_topic_without_a_parent_folder_has_no_kafka_groups() -> None:
    topic = topic_on(Storage(f"memory://{uuid.uuid4().hex}"), 1)
    assert kafka_positions(topic.handle, "g") == {}
