"""Members of a group share the partitions, and take over when leases end."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import pytest
from full_disk import fail_writes
from group_members import LEASE_S, ids, joined, live, state, until_settled
from group_members import time as time
from group_members import topic as topic
from memory_files import refuse_writes
from topic_consumers import Time, drained, rows, span
from topics import topic_on, values

import distlog
from distlog.core.errors import (
    FencedMemberError,
)
from distlog.core.read import consumer as consumer_module
from distlog.core.read.consumer import Consumer
from distlog.core.read.consumer_group import GroupLog
from distlog.core.storage.storage import Storage
from distlog.core.topic import Topic


def test_a_second_member_starts_after_the_commit_of_the_first(topic: Topic, time: Time) -> None:
    member = joined(topic, time)
    records = drained(member)
    assert len(records) == 12
    other = joined(topic, time)
    until_settled(time, member, other)
    # the first member keeps its returned records for a lease, so that none is processed twice
    assert (sorted(member.position), other.position) == ([0, 1], {})
    topic.append(values(range(2)), partition=0)
    topic.append(values(range(2)), partition=1)
    assert drained(member) == span(0, 6, 8)
    assert drained(other) == []
    member.commit()
    until_settled(time, member, other)
    assert (member.position, other.position) == ({0: 8}, {1: 6})
    assert drained(other) == span(1, 6, 8)


def test_an_uncommitted_partition_is_released_after_a_lease(topic: Topic, time: Time) -> None:
    member = joined(topic, time)
    drained(member)
    other = joined(topic, time)
    for _ in range(25):
        until_settled(time, member, other)
    assert other.position == {1: 0}
    assert drained(other) == span(1, 0, 6)
    member.commit()
    assert state(topic).positions == {0: 6, 1: 0}


def test_a_leaving_member_is_replaced_at_the_next_poll(topic: Topic, time: Time) -> None:
    member, other = joined(topic, time), joined(topic, time)
    until_settled(time, member, other)
    assert len(member.position) == len(other.position) == 1
    member.close()
    until_settled(time, other)
    assert len(other.position) == 2


def test_a_member_that_cannot_leave_warns_and_raises_the_first_error(
    topic: Topic, time: Time, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail_within() -> None:
        with joined(topic, time):
            fail_writes(monkeypatch)
            refuse_writes(monkeypatch)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_within()
    assert "other members wait for the lease to end (cannot put: " in caplog.text


@pytest.mark.parametrize("after", range(5))
def test_a_dead_member_is_replaced_after_its_lease(after: int, topic: Topic, time: Time) -> None:
    member = joined(topic, time)
    time.now_s += after * LEASE_S / 10
    other = joined(topic, time)
    live(time, 100, member, other)
    began = time.now_s
    while len(other.position) < 2:
        assert time.now_s - began < (1.4 if topic.storage.is_local else 1.6) * LEASE_S
        live(time, 1, other)
    assert len(ids(topic)) == 1
    assert len(heartbeats(topic)) <= 1


def test_clocks_of_members_need_not_agree(topic: Topic) -> None:
    early, late = Time(), Time()
    late.now_s = 1e9
    first_member, other = joined(topic, early), joined(topic, late)
    for _ in range(200):
        for clock, member in ((early, first_member), (late, other)):
            live(clock, 2, member, step_s=2)
    assert len(first_member.position) == len(other.position) == 1


def test_a_paused_member_cannot_commit_and_returns_no_old_records(topic: Topic, time: Time) -> None:
    paused, other = joined(topic, time), joined(topic, time)
    until_settled(time, paused, other)
    (mine,) = paused.position
    batch = next(paused)
    live(time, 1.5 * LEASE_S, other, step_s=LEASE_S / 20)
    assert sorted(other.position) == [0, 1]
    assert len(drained(other)) == 12
    other.commit()
    with pytest.raises(FencedMemberError, match="declared this member dead"):
        paused.commit()
    assert state(topic).positions == {0: 6, 1: 6}
    assert rows(batch)[0] == (mine, 0)
    assert drained(paused) == []
    until_settled(time, paused, other)
    assert len(paused.position) == 1


def test_a_paused_single_member_continues(topic: Topic, time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_module, "WINDOW_BYTES", 60)
    consumer = joined(topic, time)
    next(consumer)
    old_ids = ids(topic)
    time.now_s += 100 * LEASE_S
    consumer.commit()
    assert next(consumer) is not None
    assert ids(topic) == old_ids


def test_a_fetch_longer_than_the_lease_returns_nothing(
    topic: Topic, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused, read, other_members = joined(topic, time), consumer_module.ConsumedLog.read, list[Consumer]()

    def slow(log: consumer_module.ConsumedLog, positions: Mapping[int, int]) -> consumer_module.Window | None:
        monkeypatch.setattr(consumer_module.ConsumedLog, "read", read)
        time.now_s += 2 * LEASE_S
        other_members.append(joined(topic, time))
        live(time, 1.5 * LEASE_S, *other_members, step_s=LEASE_S / 20)
        return read(log, positions)

    monkeypatch.setattr(consumer_module.ConsumedLog, "read", slow)
    assert drained(paused) == []
    assert sorted(other_members[0].position) == [0, 1]


@pytest.mark.long
@pytest.mark.parametrize("count", [1, 10, 50])
def test_an_idle_member_makes_four_requests_a_minute_in_a_group_of_any_size(
    count: int, tmp_path: Path, time: Time
) -> None:
    topic = topic_on(Storage(f"memory://{tmp_path.name}/idle"), 60)
    members = [joined(topic, time) for _ in range(count)]
    for _ in range(3):
        until_settled(time, *members)
    member_ids, counters = ids(topic), topic.storage.counters
    old_counters = dataclasses.replace(counters)
    minutes = 10
    live(time, 60 * minutes, *members)
    requests = [
        getattr(counters, name) - getattr(old_counters, name) for name in ("puts", "lists", "gets", "deletes")
    ]
    assert requests == [2 * minutes * count, 2 * minutes * count, 0, 0]
    assert ids(topic) == member_ids
    assert sum(len(member.position) for member in members) == 60


def heartbeats(topic: Topic) -> list[str]:
    """Return the ids of the members with a heartbeat."""
    _, heartbeat_names = GroupLog(topic.storage, topic.snapshot.topic_id, "g").watch(None)
    return sorted(heartbeat_names)


def beat(topic: Topic, time: Time, *members: Consumer) -> list[str]:
    """Return the ids of all members after heartbeats of `members`."""
    live(time, LEASE_S / 2, *members, step_s=LEASE_S / 2)
    return ids(topic)


def test_a_leaving_member_deletes_its_heartbeats(topic: Topic, time: Time) -> None:
    member, other = joined(topic, time), joined(topic, time)
    heartbeat = beat(topic, time, member, other)
    assert heartbeats(topic) == sorted(heartbeat)
    member.close()
    assert heartbeats(topic) == ids(topic) != []
    other.close()
    assert heartbeats(topic) == []


def test_a_heartbeat_after_the_removal_of_its_member_is_deleted(topic: Topic, time: Time) -> None:
    dead, other = joined(topic, time), joined(topic, time)
    (late,) = set(beat(topic, time, dead)) & set(heartbeats(topic))
    live(time, 100, other)
    assert len(state(topic).members) == 1
    log = GroupLog(topic.storage, topic.snapshot.topic_id, "g")
    log.beat(late, 7)
    until_settled(time, other)
    until_settled(time, other)
    assert late not in heartbeats(topic)


def test_a_reset_and_a_deletion_leave_no_heartbeats(topic: Topic, time: Time) -> None:
    for change in (lambda: topic.reset_group("g", distlog.EARLIEST), lambda: topic.delete_group("g")):
        beat(topic, time, joined(topic, time))
        assert len(heartbeats(topic)) == 1
        change()
        assert heartbeats(topic) == []


def test_a_commit_is_a_heartbeat(tmp_path: Path, time: Time) -> None:
    topic = topic_on(Storage(f"memory://{tmp_path.name}/busy"), 1)
    consumer = joined(topic, time)
    counters = topic.storage.counters
    old_puts = counters.puts
    for _ in range(20):
        time.now_s += LEASE_S / 4
        consumer.commit()
        assert next(consumer, None) is None
    assert counters.puts - old_puts == 20
