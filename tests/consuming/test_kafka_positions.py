"""A group of consumers takes over where a group of Kafka's clients was, when a person says so and not else."""

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
from distlog.core.read.consumer_offsets import OFFSETS_TOPIC, kafka_positions, offsets_partition
from distlog.core.storage.storage import Storage
from distlog.core.topic import Topic


@pytest.fixture
def topic() -> Topic:
    """Ten records in each of two partitions."""
    topic = topic_on(Storage(f"memory://{uuid.uuid4().hex}/topic"), 2, TINY)
    for partition in range(2):
        topic.append(values(range(10)), partition=partition)
    return topic


def positions(topic: Topic) -> list[int | None]:
    return [row["position"] for row in topic.groups().to_pylist()]


def test_a_group_takes_over_the_positions_that_there_are_and_keeps_the_others(topic: Topic) -> None:
    kafka = KafkaCommits(topic, "jobs")
    kafka({0: 4, 1: -1, 7: 3})
    assert topic.reset_group("g", kafka="jobs") == {0: 4, 1: 0}
    assert drained(consume(topic, group="g", timeout=0)) == span(0, 4, 10) + span(1, 0, 10)
    topic.reset_group("g", 9)
    kafka({0: 5})
    kafka({0: None, 1: 6})
    assert topic.reset_group("g", kafka="jobs") == {0: 9, 1: 6}


def test_groups_of_one_name_have_nothing_to_do_with_each_other_by_themselves(topic: Topic) -> None:
    KafkaCommits(topic)({0: 4})
    assert positions(topic) == []
    with consume(topic, group="g", timeout=0) as consumer:
        assert drained(consumer) == span(0, 0, 10) + span(1, 0, 10)
        KafkaCommits(topic)({1: 3})
    assert positions(topic) == [10, 10]


def test_positions_in_a_dropped_topic_of_the_same_name_are_neither_taken_over_nor_past_the_end(topic: Topic) -> None:
    KafkaCommits(topic, "jobs")({0: 4, 1: 9})
    topic.drop()
    recreated = distlog.create(topic.url, partitions=2)
    assert recreated.verify().ok
    assert recreated.verify().warnings == ()
    with pytest.raises(GroupNotFoundError):
        recreated.reset_group("g", kafka="jobs")


def test_nothing_is_taken_over_while_the_group_has_members(topic: Topic) -> None:
    KafkaCommits(topic)({0: 4})
    with consume(topic, group="g", timeout=0) as consumer:
        with pytest.raises(CommitConflictError, match="has members"):
            topic.reset_group("g", kafka="g")
        assert drained(consumer) == span(0, 0, 10) + span(1, 0, 10)
        consumer.commit()
    assert topic.reset_group("g", kafka="g") == {0: 4, 1: 10}


def test_a_group_without_committed_offsets_and_two_sources_are_refused(topic: Topic) -> None:
    for _ in range(2):
        with pytest.raises(GroupNotFoundError, match="has no position in the topic"):
            topic.reset_group("g", kafka="jobs")
        KafkaCommits(topic)({0: 4})
    KafkaCommits(topic_on(Storage(f"{topic.url}2"), 2), "jobs")({0: 4})
    with pytest.raises(GroupNotFoundError, match="no position"):
        topic.reset_group("g", kafka="jobs")
    for to, kafka in ((3, "g"), (None, None)):
        with pytest.raises(InvalidConfigError, match="either"):
            topic.reset_group("g", to, kafka=kafka)
    assert positions(topic) == []


def test_a_position_that_retention_has_passed_is_the_log_start_and_one_above_the_log_is_refused(topic: Topic) -> None:
    kafka = KafkaCommits(topic)
    topic.delete_records({0: 6})
    kafka({0: 4})
    assert topic.reset_group("g", kafka="g") == {0: 6, 1: 0}
    # as of a topic that was dropped, and created again
    kafka({1: 11})
    with pytest.raises(OffsetOutOfRangeError, match="partition=1"):
        topic.reset_group("g", kafka="g")
    assert positions(topic) == [6, 0]


def test_damage_beside_the_topic_is_named_and_nothing_is_taken_over(tmp_path: Path) -> None:
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
def test_only_what_has_a_folder_above_it_has_a_neighbour(url: str) -> None:
    pytest.importorskip("s3fs")
    sibling = Storage(url).sibling("x")
    expected = {"/topic": "/x", "s3://bucket/topic": "s3://bucket/x"}.get(url)
    assert (sibling and sibling.url) == expected


def test_a_topic_that_has_no_folder_above_it_has_no_clients_of_kafka() -> None:
    topic = topic_on(Storage(f"memory://{uuid.uuid4().hex}"), 1)
    assert kafka_positions(topic.handle, "g") == {}
