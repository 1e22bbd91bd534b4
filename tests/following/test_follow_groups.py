"""Members of a group share the partitions, take over from each other, and keep the group's positions."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from followers import Time, drained, follow, rows, span
from topics import TINY, topic_on, values

import distlog
from distlog.core.commits.format.actions import SetPartitions
from distlog.core.errors import (
    FencedMemberError,
    InvalidConfigError,
    OffsetOutOfRangeError,
    ReadOnlyTopicError,
    StorageError,
    TopicNotFoundError,
)
from distlog.core.following import followed_log
from distlog.core.following.follower import Follower
from distlog.core.groups.group_log import GroupLog
from distlog.core.groups.group_state import GroupState
from distlog.core.storage.storage import Storage
from distlog.core.topics.topic import Topic

LEASE_S = 60.0


@pytest.fixture(params=["local", "memory"])
def topic(request: pytest.FixtureRequest, tmp_path: Path) -> Topic:
    url = str(tmp_path / "topic") if request.param == "local" else f"memory://{tmp_path.name}/topic"
    topic = topic_on(Storage(url), 2, TINY)
    for partition in range(2):
        topic.append(values(range(6)), partition=partition)
    return topic


@pytest.fixture
def time() -> Time:
    return Time()


def joined(topic: Topic, time: Time, **options: Any) -> Follower:
    """A new member, of a process of its own."""
    return follow(topic_on(topic.storage), time, group="g", **{"timeout": 0, "lease": LEASE_S, **options})


def state(topic: Topic) -> GroupState:
    return GroupLog(topic.storage, topic.snapshot.topic_id, "g").load()


def settled(time: Time, *members: Follower) -> None:
    """Let members look at each other until nothing changes hands any more."""
    for _ in range(4):
        for member in members:
            time.now_s += LEASE_S / 20
            member._share.renew()


def test_a_group_goes_on_where_it_was(topic: Topic, time: Time) -> None:
    with joined(topic, time) as follower:
        assert sorted(drained(follower)) == span(0, 0, 6) + span(1, 0, 6)
    topic.append(values(range(1)), partition=1)
    with joined(topic, time) as follower:
        assert drained(follower) == [(1, 6)]
    assert state(topic).members == ()


def test_what_was_not_committed_is_handed_out_again(
    topic: Topic, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed_log, "WINDOW_BYTES", 60)

    def fail() -> None:
        with joined(topic, time) as follower:
            next(follower)
            follower.commit()
            committed.update(follower.position)
            next(follower)
            raise ZeroDivisionError

    committed: dict[int, int] = {}
    with pytest.raises(ZeroDivisionError):
        fail()
    assert dict(state(topic).positions) == committed
    assert sum(committed.values()) < 12
    with joined(topic, time) as follower:
        found = drained(follower)
    assert sorted(found) == [row for row in span(0, 0, 6) + span(1, 0, 6) if row[1] >= committed[row[0]]]


def test_a_block_that_commits_by_itself_keeps_what_it_committed(topic: Topic, time: Time) -> None:
    with joined(topic, time) as follower:
        next(follower)
        follower.commit({0: 1})
        drained(follower)
    assert state(topic).positions[0] == 1


def test_only_what_was_handed_out_can_be_committed_and_only_forward(topic: Topic, time: Time) -> None:
    follower = joined(topic, time, partitions=[0])
    drained(follower)
    follower.commit({0: 4})
    for offset in (3, 7):
        with pytest.raises(OffsetOutOfRangeError, match="committed=4 handed_out=6"):
            follower.commit({0: offset})
    with pytest.raises(TopicNotFoundError):
        follower.commit({1: 1})
    follower.commit()
    assert state(topic).positions == {0: 6, 1: 0}


def test_two_members_share_and_the_second_begins_when_the_first_has_committed(topic: Topic, time: Time) -> None:
    one = joined(topic, time)
    found = drained(one)
    assert len(found) == 12
    other = joined(topic, time)
    settled(time, one, other)
    # what the first has in hand is its own for a lease, so that nothing is processed twice
    assert (sorted(one.position), other.position) == ([0, 1], {})
    topic.append(values(range(2)), partition=0)
    topic.append(values(range(2)), partition=1)
    assert drained(one) == span(0, 6, 8)
    assert drained(other) == []
    one.commit()
    settled(time, one, other)
    assert (one.position, other.position) == ({0: 8}, {1: 6})
    assert drained(other) == span(1, 6, 8)


def test_a_partition_that_is_not_committed_is_given_up_after_a_lease(topic: Topic, time: Time) -> None:
    one = joined(topic, time)
    drained(one)
    other = joined(topic, time)
    for _ in range(25):
        settled(time, one, other)
    assert other.position == {1: 0}
    assert drained(other) == span(1, 0, 6)
    one.commit()
    assert state(topic).positions == {0: 6, 1: 0}


def test_a_member_that_leaves_is_replaced_at_the_next_look(topic: Topic, time: Time) -> None:
    one, other = joined(topic, time), joined(topic, time)
    settled(time, one, other)
    assert len(one.position) == len(other.position) == 1
    one.close()
    settled(time, other)
    assert len(other.position) == 2


def test_a_member_that_cannot_leave_says_so_and_what_went_wrong_before_is_raised(
    topic: Topic, time: Time, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*arguments: Any, **options: Any) -> bytes:
        raise StorageError("the store is away")

    def fail_within() -> None:
        with joined(topic, time):
            monkeypatch.setattr(Storage, "put_if_absent", fail)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_within()
    assert "others wait for the lease to end (the store is away)" in caplog.text


def test_a_member_that_dies_is_replaced_after_its_lease_and_not_before(topic: Topic, time: Time) -> None:
    one, other = joined(topic, time), joined(topic, time)
    settled(time, one, other)
    began = time.now_s
    while len(other.position) < 2:
        assert time.now_s - began < 1.5 * LEASE_S
        time.now_s += 1
        other._share.renew()
    assert one._share.is_lapsed


def test_clocks_of_members_need_not_agree(topic: Topic) -> None:
    early, late = Time(), Time()
    late.now_s = 1e9
    one, other = joined(topic, early), joined(topic, late)
    for _ in range(200):
        for time, member in ((early, one), (late, other)):
            time.now_s += 2
            member._share.renew()
    assert len(one.position) == len(other.position) == 1


def test_a_member_that_was_paused_cannot_commit_and_hands_out_nothing_old(topic: Topic, time: Time) -> None:
    paused, other = joined(topic, time), joined(topic, time)
    settled(time, paused, other)
    (mine,) = paused.position
    batch = next(paused)
    for _ in range(30):
        time.now_s += LEASE_S / 20
        other._share.renew()
    assert sorted(other.position) == [0, 1]
    assert len(drained(other)) == 12
    other.commit()
    with pytest.raises(FencedMemberError, match="took this member for dead"):
        paused.commit()
    assert state(topic).positions == {0: 6, 1: 6}
    assert rows(batch)[0] == (mine, 0)
    assert drained(paused) == []
    # it is a member again
    settled(time, paused, other)
    assert len(paused.position) == 1


def test_a_member_that_was_paused_alone_goes_on(topic: Topic, time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followed_log, "WINDOW_BYTES", 60)
    follower = joined(topic, time)
    next(follower)
    time.now_s += 100 * LEASE_S
    follower.commit()
    assert next(follower) is not None
    assert follower._share._member.joins == 1  # type: ignore[attr-defined]


def test_a_fetch_that_takes_longer_than_the_lease_hands_out_nothing(topic: Topic, time: Time) -> None:
    paused = joined(topic, time)
    slow = paused._log.read

    def read(positions: Any) -> Any:
        time.now_s += 2 * LEASE_S
        other = joined(topic, time)
        for _ in range(30):
            time.now_s += LEASE_S / 20
            other._share.renew()
        others.append(other)
        paused._log.read = slow  # type: ignore[method-assign]
        return slow(positions)

    others: list[Follower] = []
    paused._log.read = read  # type: ignore[method-assign]
    assert drained(paused) == []
    assert sorted(others[0].position) == [0, 1]


def test_idle_members_cost_few_requests(tmp_path: Path, time: Time) -> None:
    topic = topic_on(Storage(f"memory://{tmp_path.name}/idle"), 2)
    follower = joined(topic, time, timeout=10 * LEASE_S)
    counters = follower._log.handle.storage.counters
    before = dataclasses.replace(counters)
    began = len(time.pauses)
    drained(follower)
    # a beat each third of the lease: one put and one list; a look at the group each twentieth
    assert 29 <= counters.puts - before.puts <= 31
    assert counters.lists - before.lists == counters.puts - before.puts
    looks = counters.gets - before.gets - (len(time.pauses) - began)
    assert 380 <= looks <= 430


def test_a_commit_shows_life_too(tmp_path: Path, time: Time) -> None:
    topic = topic_on(Storage(f"memory://{tmp_path.name}/busy"), 1)
    follower = joined(topic, time)
    counters = follower._log.handle.storage.counters
    before = counters.puts
    for _ in range(20):
        time.now_s += LEASE_S / 4
        follower.commit()
        assert next(follower, None) is None
    assert counters.puts - before == 20


def test_a_start_counts_when_the_group_is_made_and_for_each_partition(topic: Topic, time: Time) -> None:
    joined(topic, time, start=distlog.LATEST).close()
    topic.append(values(range(2)), partition=1)
    # nothing was handed out yet, and what came since is not skipped
    with joined(topic, time, start=distlog.LATEST) as follower:
        assert drained(follower) == span(1, 6, 8)


def test_a_partition_that_is_added_is_begun_at_its_start_whoever_sees_it_first(topic: Topic, time: Time) -> None:
    one = joined(topic, time, start=distlog.LATEST, partitions=[0, 1])
    topic.log.commit(topic.snapshot, "config", lambda _: [SetPartitions(3)])
    topic.refresh()
    topic.append(values(range(3)), partition=2)
    drained(one)
    other = joined(topic, time, start=distlog.LATEST)
    settled(time, one, other)
    assert [row for row in drained(other) if row[0] == 2] == span(2, 0, 3)


def test_a_reset_sets_the_positions_and_members_begin_there(topic: Topic, time: Time) -> None:
    follower = joined(topic, time)
    drained(follower)
    follower.commit()
    assert topic.reset_group("g", {0: 2}) == {0: 2, 1: 6}
    with pytest.raises(FencedMemberError):
        follower.commit()
    time.now_s += LEASE_S
    assert drained(follower) == span(0, 2, 6)
    assert topic.reset_group("g", distlog.EARLIEST) == {0: 0, 1: 0}
    assert topic.reset_group("other", distlog.LATEST) == {0: 6, 1: 6}
    with pytest.raises(OffsetOutOfRangeError):
        topic.reset_group("g", 100)
    with pytest.raises(TopicNotFoundError):
        topic.reset_group("g", {7: 0})


def test_groups_are_a_table_and_can_be_deleted(topic: Topic, time: Time) -> None:
    with joined(topic, time) as follower:
        drained(follower)
    follower = follow(topic_on(topic.storage), time, group="é/2", partitions=[1])
    topic.append(values(range(2)), partition=1)
    table = topic.refresh().groups().to_pylist()
    shown = [(row["group"], row["partition"], row["position"], row["log_end_offset"], row["lag"]) for row in table]
    assert shown == [("g", 0, 6, 6, 0), ("g", 1, 6, 8, 2), ("é/2", 0, 0, 6, 6), ("é/2", 1, 0, 8, 8)]
    assert [row["member"] is None for row in table] == [True, True, True, False]
    topic.delete_group("g")
    assert set(topic.groups()["group"].to_pylist()) == {"é/2"}
    with pytest.raises(InvalidConfigError, match="no such group"):
        topic.delete_group("g")
    with joined(topic, time) as follower:
        assert len(drained(follower)) == 14


def test_groups_of_a_pinned_topic_are_not_changed(topic: Topic) -> None:
    pinned = distlog.open(topic.url, version=1)
    with pytest.raises(ReadOnlyTopicError):
        pinned.reset_group("g", 0)
    with pytest.raises(ReadOnlyTopicError):
        pinned.delete_group("g")


@pytest.mark.parametrize("policy", ["fail", "earliest", "latest"])
def test_a_position_that_is_newer_than_what_the_member_knew_of_the_log_is_no_loss(
    policy: Any, topic: Topic, time: Time
) -> None:
    # 1. two members; the other one has not looked at the topic since it came
    one, other = joined(topic, time), joined(topic, time, out_of_range=policy)
    settled(time, one, other)
    (number,) = one.position
    # 2. the first hands out and commits what was appended since, and leaves
    topic.append(values(range(3)), partition=number)
    drained(one)
    one.commit()
    one.close()
    # 3. the other takes over at a position behind the end that it knows
    settled(time, other)
    assert other.position[number] == 9
    assert drained(other) == span(1 - number, 0, 6)
    assert state(topic).positions[number] == 9


def test_a_log_that_lost_its_end_takes_the_position_back_with_it(topic: Topic, time: Time) -> None:
    with joined(topic, time) as follower:
        drained(follower)
    follower = joined(topic, time, out_of_range="earliest", partitions=[0])
    # as after a power loss that took records which were acknowledged without a sync
    follower._share.position[0] = 9
    follower._share._member.commit({0: 9})  # type: ignore[attr-defined]
    follower._share._take()  # type: ignore[attr-defined]
    assert drained(follower) == span(0, 0, 6)
    assert state(topic).positions[0] == 0
    follower.commit()
    assert state(topic).positions[0] == 6


def test_a_new_topic_at_the_address_knows_no_groups_of_the_old_one(topic: Topic, time: Time) -> None:
    with joined(topic, time) as follower:
        drained(follower)
    topic.refresh().drop()
    new = topic_on(topic.storage, 1)
    new.append(values(range(2)))
    assert new.groups().num_rows == 0
    with joined(new, time) as follower:
        assert drained(follower) == span(0, 0, 2)
