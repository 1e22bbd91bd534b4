"""A consumer group continues at its committed offsets: commits, starts, resets and deletion."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
from commits import put_commit, put_state
from group_members import LEASE_S, joined, state, until_settled
from group_members import time as time
from group_members import topic as topic
from topic_consumers import Time, consume, drained, span
from topics import topic_on, values

import distlog
from distlog.core.commits.actions import SetPartitions
from distlog.core.errors import (
    FencedMemberError,
    GroupNotFoundError,
    OffsetOutOfRangeError,
    ReadOnlyTopicError,
    TopicNotFoundError,
)
from distlog.core.read import consumer as consumer_module
from distlog.core.read.consumer import ConsumeOptions, GroupAssignment
from distlog.core.read.consumer_group import GroupLog
from distlog.core.topic import Topic


def test_a_group_continues_at_its_committed_offsets(topic: Topic, time: Time) -> None:
    with joined(topic, time) as consumer:
        assert sorted(drained(consumer)) == span(0, 0, 6) + span(1, 0, 6)
    topic.append(values(range(1)), partition=1)
    with joined(topic, time) as consumer:
        assert drained(consumer) == [(1, 6)]
    assert state(topic).members == ()


def test_uncommitted_records_are_returned_again(topic: Topic, time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_module, "WINDOW_BYTES", 60)

    def fail() -> None:
        with joined(topic, time) as consumer:
            next(consumer)
            consumer.commit()
            committed.update(consumer.position)
            next(consumer)
            raise ZeroDivisionError

    committed: dict[int, int] = {}
    with pytest.raises(ZeroDivisionError):
        fail()
    assert dict(state(topic).positions) == committed
    assert sum(committed.values()) < 12
    with joined(topic, time) as consumer:
        records = drained(consumer)
    assert sorted(records) == [row for row in span(0, 0, 6) + span(1, 0, 6) if row[1] >= committed[row[0]]]


def test_an_explicit_commit_in_a_block_is_kept(topic: Topic, time: Time) -> None:
    with joined(topic, time) as consumer:
        next(consumer)
        consumer.commit({0: 1})
        drained(consumer)
    assert state(topic).positions[0] == 1


def test_only_returned_records_can_be_committed_and_only_forward(topic: Topic, time: Time) -> None:
    consumer = joined(topic, time, partitions=[0])
    drained(consumer)
    consumer.commit({0: 4})
    for offset in (3, 7):
        with pytest.raises(OffsetOutOfRangeError, match="committed=4 delivered=6"):
            consumer.commit({0: offset})
    with pytest.raises(TopicNotFoundError):
        consumer.commit({1: 1})
    consumer.commit()
    assert state(topic).positions == {0: 6, 1: 0}


def test_a_start_applies_when_the_group_is_created_and_to_each_partition(topic: Topic, time: Time) -> None:
    joined(topic, time, start=distlog.LATEST).close()
    topic.append(values(range(2)), partition=1)
    # no record was returned yet, and records that came since are not skipped
    with joined(topic, time, start=distlog.LATEST) as consumer:
        assert drained(consumer) == span(1, 6, 8)


def test_an_added_partition_starts_at_its_first_record_for_any_member(topic: Topic, time: Time) -> None:
    member = joined(topic, time, start=distlog.LATEST, partitions=[0, 1])
    put_commit(topic.log, topic.snapshot, "config", lambda _: [SetPartitions(3)])
    topic.refresh()
    topic.append(values(range(3)), partition=2)
    drained(member)
    other = joined(topic, time, start=distlog.LATEST)
    until_settled(time, member, other)
    assert [row for row in drained(other) if row[0] == 2] == span(2, 0, 3)


@pytest.mark.parametrize("policy", ["fail", "earliest", "latest"])
def test_records_of_an_added_partition_that_are_deleted_already_count_as_out_of_range(
    topic: Topic, time: Time, policy: str
) -> None:
    joined(topic, time).close()
    topic.create_partitions(3)
    topic.append(values(range(5)), partition=2)
    topic.delete_records({2: 3})
    with joined(topic, time, out_of_range=policy) as consumer:
        if policy == "fail":
            with pytest.raises(OffsetOutOfRangeError):
                drained(consumer)
        else:
            assert [row for row in drained(consumer) if row[0] == 2] == (
                span(2, 3, 5) if policy == "earliest" else []
            )


def test_a_reset_of_other_partitions_passes_over_no_records_of_one_that_was_added(topic: Topic, time: Time) -> None:
    joined(topic, time, start=distlog.LATEST).close()
    topic.create_partitions(3)
    topic.append(values(range(5)), partition=2)
    topic.delete_records({2: 3})
    assert topic.reset_group("g", {0: 2}) == {0: 2, 1: 6, 2: 0}
    consumer = joined(topic, time)
    for _ in range(2):
        with pytest.raises(OffsetOutOfRangeError, match="partition=2 offset=0 log_start_offset=3"):
            next(consumer)
    consumer.close()
    assert topic.reset_group("g", {2: distlog.EARLIEST}) == {0: 2, 1: 6, 2: 3}
    with joined(topic, time) as consumer:
        assert drained(consumer) == span(0, 2, 6) + span(2, 3, 5)


def test_a_reset_sets_the_positions_and_members_begin_there(topic: Topic, time: Time) -> None:
    consumer = joined(topic, time)
    drained(consumer)
    consumer.commit()
    assert topic.reset_group("g", {0: 2}) == {0: 2, 1: 6}
    with pytest.raises(FencedMemberError):
        consumer.commit()
    time.now_s += LEASE_S
    assert drained(consumer) == span(0, 2, 6)
    assert topic.reset_group("g", distlog.EARLIEST) == {0: 0, 1: 0}
    assert topic.reset_group("other", distlog.LATEST) == {0: 6, 1: 6}
    with pytest.raises(OffsetOutOfRangeError):
        topic.reset_group("g", 100)
    with pytest.raises(TopicNotFoundError):
        topic.reset_group("g", {7: 0})


def test_groups_are_a_table_and_can_be_deleted(topic: Topic, time: Time) -> None:
    with joined(topic, time) as consumer:
        drained(consumer)
    consumer = consume(topic_on(topic.storage), time, group="é/2", partitions=[1])
    topic.append(values(range(2)), partition=1)
    table = topic.refresh().groups().to_pylist()
    shown = [(row["group"], row["partition"], row["position"], row["log_end_offset"], row["lag"]) for row in table]
    assert shown == [("g", 0, 6, 6, 0), ("g", 1, 6, 8, 2), ("é/2", 0, 0, 6, 6), ("é/2", 1, 0, 8, 8)]
    assert [row["member"] is None for row in table] == [True, True, True, False]
    topic.delete_group("g")
    assert set(topic.groups()["group"].to_pylist()) == {"é/2"}
    with pytest.raises(GroupNotFoundError, match="group not found"):
        topic.delete_group("g")
    with joined(topic, time) as consumer:
        assert len(drained(consumer)) == 14


def test_groups_of_a_pinned_topic_are_not_changed(topic: Topic) -> None:
    pinned = distlog.open(topic.url, version=1)
    with pytest.raises(ReadOnlyTopicError):
        pinned.reset_group("g", 0)
    with pytest.raises(ReadOnlyTopicError):
        pinned.delete_group("g")


@pytest.mark.parametrize("policy", ["fail", "earliest", "latest"])
def test_a_committed_offset_past_the_members_snapshot_is_not_data_loss(policy: Any, topic: Topic, time: Time) -> None:
    # 1. two members; the second has not refreshed the topic since it joined
    member, other = joined(topic, time), joined(topic, time, out_of_range=policy)
    until_settled(time, member, other)
    (number,) = member.position
    # 2. the first returns and commits the appended records, and leaves
    topic.append(values(range(3)), partition=number)
    drained(member)
    member.commit()
    member.close()
    # 3. the second takes over at a committed offset past the end of its snapshot
    until_settled(time, other)
    assert other.position[number] == 9
    assert drained(other) == span(1 - number, 0, 6)
    assert state(topic).positions[number] == 9


def test_a_truncated_log_moves_the_committed_offset_back(topic: Topic, time: Time) -> None:
    with joined(topic, time) as consumer:
        drained(consumer)
    # as after a power loss that took acknowledged records without a sync
    log = GroupLog(topic.storage, topic.snapshot.topic_id, "g")
    put_state(log, log.load(), lambda state: replace(state, positions={**state.positions, 0: 9}))
    consumer = joined(topic, time, out_of_range="earliest", partitions=[0])
    assert drained(consumer) == span(0, 0, 6)
    assert state(topic).positions[0] == 0
    consumer.commit()
    assert state(topic).positions[0] == 6


def test_a_recreated_topic_has_no_groups_of_the_old_one(topic: Topic, time: Time) -> None:
    with joined(topic, time) as consumer:
        drained(consumer)
    topic.refresh().drop()
    new = topic_on(topic.storage, 1)
    new.append(values(range(2)))
    assert new.groups().num_rows == 0
    with joined(new, time) as consumer:
        assert drained(consumer) == span(0, 0, 2)


@dataclass
class Member:
    """A membership whose `sync` returns the next of `states`: the committed offsets of its partitions."""

    states: list[dict[int, int]]
    owned: dict[int, int] = field(default_factory=dict)
    joins: int = 1
    leaving: tuple[int, ...] = ()

    def due_s(self, pending: Any) -> float:
        return 0.0

    def sync(self, partitions: int, starts_of: Any, pending: Any) -> None:
        self.owned = self.states.pop(0)


def assigned(*states: dict[int, int]) -> GroupAssignment:
    log: Any = SimpleNamespace(partitions=2)
    member: Any = Member([*states])
    return GroupAssignment(log, member, ConsumeOptions())


def test_a_returned_partition_continues_at_the_other_members_commit() -> None:
    # during one slow call it lost partition 1 to another member and got it back
    assignment = assigned({0: 0, 1: 199}, {0: 0, 1: 235})
    assignment.renew()
    assert assignment.position == {0: 0, 1: 199}
    assert assignment.renew()
    assert assignment.position == {0: 0, 1: 235}


def test_returned_uncommitted_records_are_not_read_again() -> None:
    assignment = assigned({0: 5}, {0: 5})
    assignment.renew()
    assignment.position[0] = 9
    assert not assignment.renew()
    assert assignment.position == {0: 9}
