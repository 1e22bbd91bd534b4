"""The assignors of the coordinator: each partition has one reader, and members keep what they had."""

from __future__ import annotations

import random
import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distlog.gateway.groups.consumer_group import ASSIGNORS, Subscriber, assign_ranges, assign_uniformly
from distlog.gateway.groups.offsets_format import TopicIdPartition

TOPICS = [uuid.UUID(int=number) for number in range(1, 4)]


def numbers(assigned: frozenset[TopicIdPartition], topic: uuid.UUID = TOPICS[0]) -> list[int]:
    return sorted(number for topic_id, number in assigned if topic_id == topic)


def test_ranges_are_alike_in_topics_with_as_many_partitions() -> None:
    members = {name: Subscriber(name, frozenset(TOPICS[:2])) for name in "cab"}
    actual = assign_ranges(members, {TOPICS[0]: 7, TOPICS[1]: 7})
    for topic in TOPICS[:2]:
        assert [numbers(actual[name], topic) for name in "abc"] == [[0, 1], [2, 3], [4, 5, 6]]


def test_a_static_member_keeps_its_partition_among_the_ranges() -> None:
    members = {"x1": Subscriber("a", frozenset(TOPICS)), "b": Subscriber("b", frozenset(TOPICS))}
    actual = assign_ranges(members, {TOPICS[0]: 2})
    again = assign_ranges({"y2": members["x1"], "b": members["b"]}, {TOPICS[0]: 2})
    assert actual["x1"] == again["y2"]


def test_few_partitions_move_when_a_member_comes() -> None:
    topics = {TOPICS[0]: 10, TOPICS[1]: 11}
    members = {name: Subscriber(name, frozenset(TOPICS)) for name in "ab"}
    first = assign_uniformly(members, topics)
    retained = {name: Subscriber(name, frozenset(TOPICS), first[name]) for name in "ab"}
    after = assign_uniformly({**retained, "c": Subscriber("c", frozenset(TOPICS))}, topics)
    assert sorted(map(len, after.values())) == [7, 7, 7]
    assert all(after[name] < first[name] for name in "ab")


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10_000), is_alike=st.booleans())
def test_each_partition_has_one_reader_and_nothing_moves_without_need(seed: int, is_alike: bool) -> None:
    chance = random.Random(seed)
    topics = {topic: chance.randint(0, 9) for topic in TOPICS}
    members = {
        f"m{number}": Subscriber(
            f"m{number}", frozenset(topic for topic in TOPICS if is_alike or chance.random() < 0.6)
        )
        for number in range(chance.randint(1, 5))
    }
    requested = {topic for member in members.values() for topic in member.topics}
    expected = sorted((topic, number) for topic in requested for number in range(topics[topic]))
    for assign in ASSIGNORS.values():
        actual = assign(members, topics)
        assert sorted(partition for partitions in actual.values() for partition in partitions) == expected
        assert all(topic in members[name].topics for name, partitions in actual.items() for topic, _ in partitions)
    actual = assign_uniformly(members, topics)
    previous = {name: Subscriber(name, member.topics, actual[name]) for name, member in members.items()}
    for giver, partitions in actual.items():
        for taker, other in actual.items():
            shared = any(topic in members[taker].topics for topic, _ in partitions)
            assert not shared or len(partitions) < len(other) + 2, (giver, taker)
    if is_alike:
        assert assign_uniformly(previous, topics) == actual


@pytest.mark.parametrize("name", ASSIGNORS)
def test_members_without_topics_get_nothing(name: str) -> None:
    assert ASSIGNORS[name]({"a": Subscriber("a", frozenset())}, {}) == {"a": frozenset()}
    assert ASSIGNORS[name]({}, {TOPICS[0]: 3}) == {}
