"""Partitions are shared evenly, with few moves, and all members come to the same answer."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distlog.core.groups.group_log import Member, assignment


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


def test_nobody_is_left_without_while_others_have_two() -> None:
    found = assignment(members("abc"), {0: "a", 1: "a", 2: "b", 3: "b"}, 4)
    assert Counter(found.values()) == {"a": 2, "b": 1, "c": 1}


def test_who_takes_some_partitions_only_gets_no_others() -> None:
    assert assignment([member("a", 1), member("b")], {}, 3) == {0: "b", 1: "a", 2: "b"}
    assert assignment([member("a", 1)], {}, 3) == {1: "a"}


@given(
    st.sets(st.sampled_from("abcdef"), min_size=1),
    st.dictionaries(st.integers(0, 11), st.sampled_from("abcdef")),
    st.integers(1, 12),
)
def test_shares_differ_by_one_at_most_and_moves_lead_to_the_same_answer(
    names: set[str], owned: dict[int, str], partitions: int
) -> None:
    takers = members("".join(sorted(names, reverse=True)))
    owners = {number: owner for number, owner in owned.items() if owner in names and number < partitions}
    wanted = assignment(takers, owners, partitions)
    counts = Counter(wanted.values())
    assert set(wanted) == set(range(partitions))
    assert max(counts.values()) - min(counts[name] for name in names) <= 1
    # one partition after the other is given up, and then taken
    for number, owner in list(owners.items()):
        if wanted[number] != owner:
            del owners[number]
            assert assignment(takers, owners, partitions) == wanted
    for number, owner in wanted.items():
        owners[number] = owner
        assert assignment(takers, owners, partitions) == wanted


def test_the_work_grows_with_partitions_and_members_and_not_with_both_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, takes = [0], Member.takes

    def counted(self: Member, partition: int) -> bool:
        asked[0] += 1
        return takes(self, partition)

    monkeypatch.setattr(Member, "takes", counted)
    names = [f"{number:03d}" for number in range(300)]
    owners = {number: names[number % 150] for number in range(600)}
    shares = Counter(assignment([member(name) for name in names], owners, 600).values())
    assert set(shares.values()) == {2}
    assert asked[0] <= 900
