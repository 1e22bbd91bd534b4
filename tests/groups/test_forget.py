"""Positions that people have forgotten: only those that a group has, and that no member is about to commit."""

from __future__ import annotations

from pathlib import Path

import pytest
from followers import drained, follow
from topics import TINY, topic_on, values

from distlog.core.commits.format import fields, json_text
from distlog.core.errors import CorruptMetadataError
from distlog.core.groups import admin
from distlog.core.groups.group_log import GroupLog
from distlog.core.groups.group_state import GroupState
from distlog.core.storage.storage import Storage
from distlog.core.topics.topic import Topic


@pytest.fixture
def topic(tmp_path: Path) -> Topic:
    """Six records in each of two partitions; the group has read three."""
    topic = topic_on(Storage(str(tmp_path / "topic")), 2, TINY)
    for partition in range(2):
        topic.append(values(range(6)), partition=partition)
    topic.reset_group("g", 3)
    return topic


def log_of(topic: Topic) -> GroupLog:
    return GroupLog(topic.storage, topic.snapshot.topic_id, "g")


def positions(topic: Topic) -> list[int | None]:
    return [row["position"] for row in topic.groups().to_pylist()]


def test_a_partition_that_there_is_not_does_not_spoil_the_group(topic: Topic) -> None:
    admin.forget(log_of(topic), [-1, 2, 2**31 - 1])
    assert positions(topic) == [3, 3]


def test_what_a_member_has_by_now_is_not_forgotten_with_all_that_it_commits(topic: Topic) -> None:
    with follow(topic, group="g", partitions=[0], timeout=0) as follower:
        drained(follower)
        admin.forget(log_of(topic), [0, 1])
        follower.commit({0: 6})
    assert positions(topic) == [6, None]


def test_a_reset_gives_a_position_where_it_was_forgotten(topic: Topic) -> None:
    admin.forget(log_of(topic), [1])
    assert topic.reset_group("g", {0: 5}) == {0: 5, 1: 0}
    assert positions(topic) == [5, 0]


def test_a_group_that_forgot_what_it_does_not_know_is_refused(topic: Topic) -> None:
    body = {"format": 1, **fields.write(log_of(topic).load()), "forgotten": [2]}
    with pytest.raises(CorruptMetadataError, match="forgotten"):
        GroupState.decode(json_text.write(body, fields.write), "f")
