"""A member of a group reads on at the group's position where another member has read on meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from distlog.core.following.followed_log import GroupAssignment


@dataclass
class Member:
    """A membership of which each `sync` brings what is next in `states`: the group's positions of its partitions."""

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
    return GroupAssignment(log, member, None, "fail")


def test_a_partition_that_was_given_up_and_came_back_at_once_goes_on_where_another_member_left_it() -> None:
    # within one call that was slow: it gave partition 1 up, and took it again when the other member had left
    assignment = assigned({0: 0, 1: 199}, {0: 0, 1: 235})
    assignment.renew()
    assert assignment.position == {0: 0, 1: 199}
    assert assignment.renew()
    assert assignment.position == {0: 0, 1: 235}


def test_what_was_handed_out_and_is_not_committed_is_not_read_again() -> None:
    assignment = assigned({0: 5}, {0: 5})
    assignment.renew()
    assignment.position[0] = 9
    assert not assignment.renew()
    assert assignment.position == {0: 9}
