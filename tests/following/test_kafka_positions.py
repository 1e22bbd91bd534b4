"""A group of followers goes on where Kafka's clients of the same group were, and knows what it has seen of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from followers import Time, drained, follow, span
from kafka_commits import KafkaCommits
from topics import TINY, topic_on, values

import distlog
from distlog.core import paths
from distlog.core.commits.format.actions import MAX_PARTITIONS
from distlog.core.consumer_offsets.kafka_positions import KafkaPositions
from distlog.core.consumer_offsets.positions_format import OFFSETS_TOPIC, offsets_partition
from distlog.core.errors import CorruptMetadataError, InvalidConfigError
from distlog.core.following.start import Start
from distlog.core.storage.storage import Storage
from distlog.core.topics.topic import Topic


@pytest.fixture
def topic(tmp_path: Path) -> Topic:
    """Ten records in each of two partitions."""
    return filled(Storage(str(tmp_path / "root" / "topic")))


def filled(storage: Storage) -> Topic:
    topic = topic_on(storage, 2, TINY)
    for partition in range(2):
        topic.append(values(range(10)), partition=partition)
    return topic


def positions(topic: Topic, group: str = "g") -> list[int | None]:
    found = topic.groups().to_pylist()
    return [row["position"] for row in found if row["group"] == group]


def follow_to(topic: Topic, ends: dict[int, int]) -> list[tuple[int, int]]:
    """What a member is handed out, which commits these positions and leaves."""
    with follow(topic, group="g", timeout=0) as follower:
        found = drained(follower)
        follower.commit(ends)
    return found


def test_each_side_goes_on_where_the_other_was(topic: Topic) -> None:
    kafka = KafkaCommits(topic)
    kafka({0: 4})
    assert positions(topic) == [4, None]
    assert follow_to(topic, {0: 6, 1: 2}) == span(0, 4, 10) + span(1, 0, 10)
    # what Kafka's clients have committed is older than that
    assert positions(topic) == [6, 2]
    assert follow_to(topic, {0: 7}) == span(0, 6, 10) + span(1, 2, 10)
    kafka({0: 9, 1: 1})
    assert positions(topic) == [9, 1]
    assert follow_to(topic, {}) == span(0, 9, 10) + span(1, 1, 10)
    # to the same position as before, which is a commit all the same
    follow_to(topic, {0: 10, 1: 10})
    kafka({0: 9})
    assert positions(topic) == [9, 10]
    assert follow_to(topic, {}) == span(0, 9, 10)


@pytest.mark.parametrize("start", [None, 5, distlog.LATEST])
def test_a_group_begins_where_kafkas_clients_were_and_at_its_start_elsewhere(topic: Topic, start: Start) -> None:
    KafkaCommits(topic)({1: 7})
    begun = {None: 0, 5: 5, distlog.LATEST: 10}[start]  # type: ignore[index]
    assert drained(follow(topic, group="g", start=start, timeout=0)) == span(0, begun, 10) + span(1, 7, 10)


def test_a_member_takes_over_no_partition_that_another_member_has(topic: Topic) -> None:
    time = Time()
    first = follow(topic, time, group="g", partitions=[0])
    next(first)
    KafkaCommits(topic)({0: 3, 1: 4})
    assert drained(follow(topic, time, group="g", timeout=0)) == span(1, 4, 10)
    first.commit({0: 8})
    first.close()
    # the other side's is the one that nobody has seen yet
    assert positions(topic)[0] == 3


def test_who_takes_over_from_a_dead_member_begins_where_kafkas_clients_were_since(topic: Topic) -> None:
    time = Time()
    dead = follow(topic, time, group="g", lease=10.0, timeout=0)
    drained(dead)
    dead.commit({0: 5, 1: 6})
    KafkaCommits(topic)({0: 8})
    with follow(topic, time, group="g", lease=10.0, timeout=15.0) as follower:
        assert drained(follower) == span(0, 8, 10) + span(1, 6, 10)
        follower.commit({0: 9})
    # and what it commits is newer
    assert positions(topic) == [9, 6]


def test_a_position_that_kafkas_clients_deleted_brings_none_of_the_followers_back_to_it(topic: Topic) -> None:
    kafka = KafkaCommits(topic)
    kafka({0: 4})
    follow_to(topic, {0: 6})
    kafka({0: None})
    assert positions(topic) == [6, 0]
    kafka({0: 4})
    assert positions(topic) == [4, 0]


def test_a_group_of_kafkas_clients_is_reset_and_deleted_as_any(topic: Topic) -> None:
    kafka = KafkaCommits(topic)
    kafka({0: 4, 1: 5})
    assert topic.reset_group("g", {0: 2}) == {0: 2, 1: 5}
    assert positions(topic) == [2, 5]
    topic.delete_group("g")
    assert positions(topic) == []
    with pytest.raises(InvalidConfigError, match="no such group"):
        topic.delete_group("g")
    assert follow_to(topic, {}) == span(0, 0, 10) + span(1, 0, 10)
    kafka({1: 9})
    assert positions(topic) == [0, 9]


def test_a_group_that_only_kafkas_clients_know_is_deleted_too(topic: Topic) -> None:
    KafkaCommits(topic)({0: 4})
    topic.delete_group("g")
    assert positions(topic) == []
    assert follow_to(topic, {}) == span(0, 0, 10) + span(1, 0, 10)


def test_positions_in_a_topic_that_was_dropped_are_none_in_the_one_created_in_its_place(topic: Topic) -> None:
    kafka = KafkaCommits(topic)
    kafka({0: 4})
    # no group of followers can have this name, so there is nothing to tell them
    KafkaCommits(topic, "x" * 300)({0: 4})
    topic.drop()
    again = distlog.create(topic.url, partitions=2)
    again.append([{"value": b"%d" % n, "partition": n % 2} for n in range(20)])
    assert positions(again) == []
    assert follow_to(again, {}) == span(0, 0, 10) + span(1, 0, 10)
    kafka({0: 4})
    assert follow_to(again, {}) == span(0, 4, 10) + span(1, 0, 10)


def test_other_groups_and_topics_and_what_is_no_position_change_nothing(topic: Topic) -> None:
    KafkaCommits(topic, "other")({0: 4})
    KafkaCommits(topic_on(Storage(f"{topic.url}2"), 2))({0: 4})
    kafka = KafkaCommits(topic)
    kafka({0: -1, 7: 3, MAX_PARTITIONS: 3})
    assert KafkaPositions(topic.handle).of_group("g").keys() == {7}
    offsets = distlog.open(str(Path(topic.url).parent / OFFSETS_TOPIC))
    for key in (b"", b"\0\0", b"\0\x09what", b"\0\1\0\1g\0\5topic\0\0\0\1"):
        offsets.append([{"key": key, "value": b"?"}], partition=offsets_partition("g", 3))
    assert drained(follow(topic, group="g", timeout=0)) == span(0, 0, 10) + span(1, 0, 10)
    assert positions(topic, "other") == [4, None]


def test_a_damaged_neighbour_is_named_and_nobody_begins_without_it(topic: Topic) -> None:
    KafkaCommits(topic)({0: 4})
    beside = Path(topic.url).parent / OFFSETS_TOPIC
    for commit in (beside / paths.COMMITS_DIR).iterdir():
        commit.write_bytes(b"{}")
    for call in (lambda: follow(topic, group="g"), topic.groups):
        with pytest.raises(CorruptMetadataError, match=f"url={beside}"):
            call()


@pytest.mark.parametrize("url", ["/", "/topic", "memory://topic", "s3://bucket/topic", "s3://bucket"])
def test_only_what_has_a_folder_above_it_has_a_neighbour(url: str) -> None:
    pytest.importorskip("s3fs")
    beside = Storage(url).sibling("x")
    expected = {"/topic": "/x", "s3://bucket/topic": "s3://bucket/x"}.get(url)
    assert (beside and beside.url) == expected
