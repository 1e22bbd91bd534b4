"""What a group takes over of the positions that Kafka's clients of the same group committed."""

from __future__ import annotations

import dataclasses

import pytest

from distlog.core.commits.format import fields, json_text
from distlog.core.errors import CorruptMetadataError
from distlog.core.groups.committed import Committed
from distlog.core.groups.group_state import GroupState, Member
from distlog.core.groups.take_over import taken_over, unseen

ID = "0b0e8b3c-0000-4000-8000-000000000000"
OLD, NEW = Committed(5, 1), Committed(3, 2)
STATE = dataclasses.replace(
    GroupState.empty(ID, "g"), version=0, id=ID, partitions=2, positions={0: 7, 1: 8}, kafka={0: OLD}
)


def test_what_was_seen_is_nothing_new() -> None:
    assert unseen(STATE, STATE, {0: OLD, 1: NEW}) == {1: NEW}
    # at the same offset, but committed later, and the other way round
    assert unseen(STATE, STATE, {0: Committed(5, 2)}) == {0: Committed(5, 2)}
    assert unseen(STATE, STATE, {0: Committed(6, 1)}) == {0: Committed(6, 1)}


def test_the_look_of_a_member_that_was_later_counts_and_an_older_one_does_not_take_it_back() -> None:
    later = dataclasses.replace(STATE, kafka={0: NEW})
    assert unseen(later, STATE, {0: OLD}) == {}
    assert unseen(later, STATE, {0: Committed(4, 3)}) == {}


def test_what_a_member_has_and_partitions_that_the_group_does_not_know_stay() -> None:
    member = Member(id="0" * 32, name="m", beat=0, lease_ms=1)
    owned = dataclasses.replace(STATE, members=(member,), owners={1: member.id}, forgotten=(0,))
    found = taken_over(owned, {0: NEW, 1: NEW, 2: NEW})
    assert (dict(found.positions), dict(found.kafka), found.forgotten) == ({0: 3, 1: 8}, {0: NEW}, ())


def test_it_is_stored_and_a_position_that_is_none_is_refused() -> None:
    state = dataclasses.replace(STATE, forgotten=(1,))
    assert GroupState.decode(state.encode(), "f") == state
    body = fields.write(state)
    assert (body["kafka"], body["forgotten"]) == ({0: (5, 1)}, (1,))
    for wrong in ({"0": [5]}, {"0": [5, -1]}, {"0": ["5", 1]}, {"0": None}, {"x": [5, 1]}, [5, 1]):
        with pytest.raises(CorruptMetadataError, match="kafka"):
            GroupState.decode(json_text.write({"format": 1, **body, "kafka": wrong}, fields.write), "f")


def test_a_group_that_an_older_library_wrote_has_seen_nothing() -> None:
    body = {name: each for name, each in fields.write(STATE).items() if name not in ("kafka", "forgotten")}
    older = GroupState.decode(json_text.write({"format": 1, **body}, fields.write), "f")
    assert (older.kafka, older.forgotten, older.positions) == ({}, (), STATE.positions)
