"""How a group of followers takes over what Kafka's clients of the same group have committed since it last looked.

Nobody compares clocks. The group notes the position of Kafka's clients that it has seen in each partition. While they
have that position, the followers' own counts, since it came later. Once they have another one, theirs does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from distlog.core.groups.committed import Committed
from distlog.core.groups.group_state import GroupState


def unseen(state: GroupState, before: GroupState, found: Mapping[int, Committed]) -> dict[int, Committed]:
    """What the group has not seen of the positions `found`, which were read after its state was `before`.

    Where a member has looked since, its look counts: ours may be the older one.
    """
    return {
        number: each
        for number, each in found.items()
        if state.kafka.get(number) != each and state.kafka.get(number) == before.kafka.get(number)
    }


def taken_over(state: GroupState, new: Mapping[int, Committed]) -> GroupState:
    """The group at the positions `new`, where no member has the partition."""
    taken = {number: each for number, each in new.items() if number < state.partitions and number not in state.owners}
    positions = {number: each.offset for number, each in taken.items()}
    return dataclasses.replace(with_positions(state, positions), kafka=dict(sorted({**state.kafka, **taken}.items())))


def with_positions(state: GroupState, positions: Mapping[int, int]) -> GroupState:
    """The group with these positions; they count, also where they were forgotten."""
    return dataclasses.replace(
        state,
        positions=dict(sorted({**state.positions, **positions}.items())),
        forgotten=tuple(number for number in state.forgotten if number not in positions),
    )
