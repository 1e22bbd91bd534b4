"""Members of a group share the partitions, and take over from each other when leases end."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from followers import Time, drained, rows, span
from group_members import LEASE_S, joined, settled, state
from group_members import time as time
from group_members import topic as topic
from topics import topic_on, values

from distlog.core.errors import (
    FencedMemberError,
    StorageError,
)
from distlog.core.following import followed_log
from distlog.core.following.follower import Follower
from distlog.core.storage.storage import Storage
from distlog.core.topics.topic import Topic


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
        for clock, member in ((early, one), (late, other)):
            clock.now_s += 2
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
