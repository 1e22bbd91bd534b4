"""What a member may put into its group's log, and when."""

from __future__ import annotations

from pathlib import Path

import pytest
from followers import Time, drained, follow, span
from topics import TINY, topic_on, values

from distlog.core.errors import FencedMemberError
from distlog.core.groups import admin
from distlog.core.groups.group_log import GroupLog
from distlog.core.groups.group_state import GroupState
from distlog.core.storage.storage import Storage
from distlog.core.topics.topic import Topic


@pytest.fixture
def topic(tmp_path: Path) -> Topic:
    topic = topic_on(Storage(str(tmp_path / "topic")), 2, TINY)
    for partition in range(2):
        topic.append(values(range(6)), partition=partition)
    return topic


def state_of(topic: Topic) -> GroupState:
    return GroupLog(topic.storage, topic.snapshot.topic_id, "g").load()


def test_who_left_its_group_can_commit_nothing_and_puts_nothing(topic: Topic) -> None:
    with follow(topic, group="g") as follower:
        drained(follower)
    left = state_of(topic)
    for positions in (None, {}):
        with pytest.raises(FencedMemberError, match="left"):
            follower.commit(positions)
    assert state_of(topic) == left


def test_who_is_no_member_any_more_cannot_come_back_by_a_commit_of_nothing(topic: Topic) -> None:
    time = Time()
    follower = follow(topic, time, group="g")
    next(follower)
    admin.reset(GroupLog(topic.storage, topic.snapshot.topic_id, "g"), {}, 2, {})
    with pytest.raises(FencedMemberError):
        follower.commit({})
    assert not state_of(topic).members
    assert sorted(drained(follower)) == span(0, 0, 6) + span(1, 0, 6)


def test_others_never_wait_less_than_a_lease(topic: Topic) -> None:
    follow(topic, group="g", lease=0.0019)
    assert [member.lease_ms for member in state_of(topic).members] == [2]
