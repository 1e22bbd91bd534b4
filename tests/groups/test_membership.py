"""Changes of a member to its group's log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from topic_consumers import Time, consume, drained, span
from topics import TINY, topic_on, values

from distlog.core.errors import FencedMemberError
from distlog.core.read.consumer import ConsumedLog, Window
from distlog.core.read.consumer_group import (
    RETAINED_VERSIONS,
    GroupLog,
    GroupState,
    Member,
    assignment,
    reset_positions,
)
from distlog.core.storage.storage import Storage
from distlog.core.topic import Topic


@pytest.fixture
def topic(tmp_path: Path) -> Topic:
    topic = topic_on(Storage(str(tmp_path / "topic")), 2, TINY)
    for partition in range(2):
        topic.append(values(range(6)), partition=partition)
    return topic


def state_of(topic: Topic) -> GroupState:
    return GroupLog(topic.storage, topic.snapshot.topic_id, "g").load()


@pytest.mark.parametrize("positions", [None, {}])
def test_a_former_member_cannot_commit(positions: dict[int, int] | None, topic: Topic) -> None:
    with consume(topic, group="g") as consumer:
        drained(consumer)
    state = state_of(topic)
    with pytest.raises(FencedMemberError, match="left"):
        consumer.commit(positions)
    assert state_of(topic) == state


def test_a_removed_member_cannot_return_by_an_empty_commit(topic: Topic) -> None:
    time = Time()
    consumer = consume(topic, time, group="g")
    next(consumer)
    reset_positions(GroupLog(topic.storage, topic.snapshot.topic_id, "g"), {}, {}, is_empty=False)
    with pytest.raises(FencedMemberError):
        consumer.commit({})
    assert not state_of(topic).members
    assert sorted(drained(consumer)) == span(0, 0, 6) + span(1, 0, 6)


def test_others_never_wait_less_than_a_lease(topic: Topic) -> None:
    consume(topic, group="g", lease=0.0019)
    assert [member.lease_ms for member in state_of(topic).members] == [2]


def test_a_lease_too_short_for_a_fetch_does_not_keep_the_timeout_from_ending_it(
    topic: Topic, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    time, read = Time(), ConsumedLog.read

    def slow(self: ConsumedLog, positions: Mapping[int, int]) -> Window | None:
        time.now_s += 2.0
        assert time.now_s < 100, "it never ends"
        return read(self, positions)

    monkeypatch.setattr(ConsumedLog, "read", slow)
    assert drained(consume(topic, time, group="g", lease=1.0, timeout=10.0)) == []
    assert "longer lease" in caplog.text


def test_a_refresh_in_a_busy_group_finds_the_newest_state(topic: Topic) -> None:
    """Another member commits so often that the next versions are deleted before this one reads them."""
    time = Time()
    idle = consume(topic, time, group="g", timeout=0, partitions=[0])
    drained(idle)
    idle.commit()
    busy = consume(topic, time, group="g", timeout=0, partitions=[1])
    for _ in range(2):
        time.now_s += 3.1
        assert drained(idle) == []
        next(busy, None)
        for _ in range(3 * RETAINED_VERSIONS):
            busy.commit({})
    busy.close()
    other = consume(topic, time, group="g", timeout=0, partitions=[0])
    reset_positions(GroupLog(topic.storage, topic.snapshot.topic_id, "g"), {0: 2}, {}, is_empty=False)
    time.now_s += 3.1
    assert drained(idle) == span(0, 2, 6)
    assert drained(other) == []


def member(name: str, *partitions: int) -> Member:
    return Member(id=name, name=name, beat=0, lease_ms=1, partitions=partitions or None)


def members(names: str) -> list[Member]:
    return [member(name) for name in names]


def test_all_partitions_go_to_one_member_alone() -> None:
    assert assignment(members("a"), {}, 3) == dict.fromkeys(range(3), "a")
    assert assignment([], {}, 3) == {}


def test_a_new_member_gets_its_share_and_the_rest_stays() -> None:
    assert assignment(members("ab"), dict.fromkeys(range(4), "b"), 4) == {0: "b", 1: "b", 2: "a", 3: "a"}
    assert assignment(members("ab"), dict.fromkeys(range(5), "b"), 5) == {0: "b", 1: "b", 2: "b", 3: "a", 4: "a"}


def test_each_member_has_a_partition_before_any_has_two() -> None:
    owners = assignment(members("abc"), {0: "a", 1: "a", 2: "b", 3: "b"}, 4)
    assert Counter(owners.values()) == {"a": 2, "b": 1, "c": 1}


def test_a_member_of_some_partitions_gets_only_these() -> None:
    assert assignment([member("a", 1), member("b")], {}, 3) == {0: "b", 1: "a", 2: "b"}
    assert assignment([member("a", 1)], {}, 3) == {1: "a"}


@given(
    st.sets(st.sampled_from("abcdef"), min_size=1),
    st.dictionaries(st.integers(0, 11), st.sampled_from("abcdef")),
    st.integers(1, 12),
)
def test_shares_differ_by_at_most_one_and_moves_converge(
    names: set[str], owned: dict[int, str], partitions: int
) -> None:
    takers = members("".join(sorted(names, reverse=True)))
    owners = {number: owner for number, owner in owned.items() if owner in names and number < partitions}
    expected = assignment(takers, owners, partitions)
    counts = Counter(expected.values())
    assert set(expected) == set(range(partitions))
    assert max(counts.values()) - min(counts[name] for name in names) <= 1
    for number, owner in list(owners.items()):
        if expected[number] != owner:
            del owners[number]
            assert assignment(takers, owners, partitions) == expected
    for number, owner in expected.items():
        owners[number] = owner
        assert assignment(takers, owners, partitions) == expected


def test_the_work_grows_with_partitions_and_members_and_not_with_both_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls, accepts = [0], Member.accepts

    def counted(self: Member, partition: int) -> bool:
        calls[0] += 1
        return accepts(self, partition)

    monkeypatch.setattr(Member, "accepts", counted)
    names = [f"{number:03d}" for number in range(300)]
    owners = {number: names[number % 150] for number in range(600)}
    shares = Counter(assignment([member(name) for name in names], owners, 600).values())
    assert set(shares.values()) == {2}
    assert calls[0] <= 900
