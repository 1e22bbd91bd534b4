"""A member of a group: its lease, the partitions that it owns, and the positions that it commits.

There is no coordinator. Each member signs on, shows that it lives, takes partitions that nobody owns, and gives up
those that others should have, all by versions of the group's log; one version does all of this at once.

No clock is compared with another machine's. A member is dead when somebody has watched its beat stand still for the
whole lease. It stops handing out records when its own lease, counted from before its last beat was put, is over. So a
member that was paused can only have in hand what it handed out before; and it cannot commit, since it is no member.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from distlog.core.errors import FencedMemberError
from distlog.core.groups.assignment import assignment
from distlog.core.groups.committed import Committed, KafkaCommits
from distlog.core.groups.group_log import GroupLog
from distlog.core.groups.group_state import GroupState, Member
from distlog.core.groups.take_over import taken_over, unseen, with_positions

#: Of the lease: when a member beats again, how often it looks what others do, and how much longer others wait, since
#: two clocks do not run at exactly the same speed.
_BEAT, _LOOK, _GRACE = 1 / 3, 1 / 20, 1 / 10

#: Gives the offset at which the group begins in a partition; the second argument: whether it was added later.
StartOf = Callable[[int, bool], int]
#: Gives a member's name for people, beside the group's other members.
NameBeside = Callable[[Sequence[Member]], str]


@dataclass(slots=True)
class Membership:
    """This process in a group; from `sync` on it is a member until `leave`. Times are in seconds, by `clock`.

    Not for several threads.
    """

    log: GroupLog
    name: NameBeside
    partitions: tuple[int, ...] | None
    lease_s: float
    clock: Callable[[], float]
    new_id: Callable[[], str]
    #: Asked when it joins, or takes a partition.
    kafka: KafkaCommits = dict
    #: Grows when it joins anew: what it handed out before is not its own any more.
    joins: int = field(default=0, init=False)
    _id: str = field(default="", init=False)
    _state: GroupState | None = field(default=None, init=False)
    _lease_end: float = field(default=-math.inf, init=False)
    _beat_at: float = field(default=-math.inf, init=False)
    _look_at: float = field(default=-math.inf, init=False)
    #: The last beat of each other member, and since when it has not changed.
    _beats: dict[str, tuple[int, float]] = field(default_factory=dict, init=False)
    #: The partitions that others should have, and since when that is known.
    _leaving: dict[int, float] = field(default_factory=dict, init=False)

    @property
    def is_lapsed(self) -> bool:
        """Whether others may have taken its partitions."""
        return not self._id or self.clock() >= self._lease_end

    @property
    def owned(self) -> dict[int, int]:
        """The group's position in each partition that it owns, as far as it knows."""
        state = self._state
        return {number: state.positions[number] for number in state.owned_by(self._id)} if state and self._id else {}

    @property
    def state(self) -> GroupState | None:
        """The group as it was at the last look."""
        return self._state

    @property
    def id(self) -> str:
        """Its id in the group; empty while it is no member."""
        return self._id

    @property
    def leaving(self) -> Collection[int]:
        """The partitions that it owns, and must not hand out any more: others wait for them."""
        return self._leaving

    def due_s(self, pending: Collection[int]) -> float:
        """The seconds until `sync` should be called; 0 if at once."""
        if any(number not in pending for number in self._leaving):
            return 0.0
        return max(0.0, min(self._look_at, self._beat_at, self._lease_end) - self.clock())

    def sync(self, partitions: int, start_of: StartOf, pending: Collection[int]) -> None:
        """Look what others did, and put a version if it is time for a beat, or something changes hands.

        The topic has `partitions`. A partition that others should have is given up, unless it is `pending`: records
        of it were handed out and not committed; then it has a lease's time.
        """
        state = self.log.newer(self._state) if self._state else self.log.load()
        self._learn(state)
        self._look_at = self.clock() + self.lease_s * _LOOK
        fresh, started = self.new_id(), self.clock()
        found: Mapping[int, Committed] | None = None

        def planned(current: GroupState, new: Mapping[int, Committed]) -> GroupState:
            return self._planned(self._begun(current, partitions, start_of, new), fresh, pending)

        def plan(current: GroupState) -> GroupState:
            nonlocal found
            if found is None and current.member(self._id):
                made = planned(current, {})
                if {*made.owned_by(self._id)} <= {*current.owned_by(self._id)}:
                    return made
            if found is None:
                # who begins in a partition, also in one that another member had, begins where Kafka's clients were
                found = self.kafka()
            return planned(current, unseen(current, state, found))

        made = plan(state)
        is_quiet = (made.owners, made.partitions) == (state.owners, state.partitions)
        if is_quiet and started < self._beat_at and state.member(self._id):
            # only the beat would be new, and perhaps that members without partitions are dead
            return
        after = self.log.commit(state, plan)
        if after.member(self._id) is None:
            self._id, self.joins = fresh, self.joins + 1
            self._leaving.clear()
        self._renewed(after, started)

    def commit(self, positions: Mapping[int, int], *, back: bool = False) -> None:
        """Commit the positions of partitions that it owns; they only go forward, unless `back` allows the other way.

        Raises FencedMemberError when it left, is no member any more, or does not own them all: nothing was committed.
        """
        if self._state is None or not self._id:
            raise FencedMemberError("nothing was committed: this member left the group", group=self.log.group)
        started = self.clock()

        def plan(state: GroupState) -> GroupState:
            # to commit nothing is a sign of life too: it must not bring back who is no member
            if state.member(self._id) is None or not set(positions) <= set(state.owned_by(self._id)):
                raise self._fenced()
            moved = {n: offset if back else max(offset, state.positions[n]) for n, offset in positions.items()}
            state = self._beaten(_without(state, self._lapsed(state)), self._id)
            return with_positions(state, moved)

        self._renewed(self.log.commit(self._state, plan), started)

    def leave(self) -> None:
        """Give up all partitions at once, so that nobody waits for the lease; does nothing if it is no member."""
        member, self._id, self._lease_end = self._id, "", -math.inf
        self._leaving.clear()
        if member and self._state:
            self.log.commit(self._state, lambda state: _without(state, {member}) if state.member(member) else None)

    def _begun(
        self, state: GroupState, partitions: int, start_of: StartOf, new: Mapping[int, Committed]
    ) -> GroupState:
        """The group without dead members, and with a position in each partition."""
        state = _without(state, self._lapsed(state))
        free = {n for n in state.forgotten if n not in state.owners and n < partitions}
        missing = free | {*range(state.partitions, partitions)}
        is_added = {n: state.exists and n >= state.partitions for n in missing - new.keys()}
        state = dataclasses.replace(state, partitions=max(partitions, state.partitions))
        return taken_over(with_positions(state, {n: start_of(n, added) for n, added in is_added.items()}), new)

    def _planned(self, state: GroupState, fresh: str, pending: Collection[int]) -> GroupState:
        member = self._id if state.member(self._id) else fresh
        state = self._beaten(state, member)
        wanted = assignment(state.members, state.owners, state.partitions)
        self._note_leaving({n for n in state.owned_by(member) if wanted.get(n) != member})
        owners = {n: owner for n, owner in state.owners.items() if owner != member or not self._is_free(n, pending)}
        taken = {n: member for n, owner in wanted.items() if owner == member and n not in state.owners}
        return dataclasses.replace(state, owners={**owners, **taken})

    def _note_leaving(self, numbers: set[int]) -> None:
        now = self.clock()
        self._leaving = {number: self._leaving.get(number, now) for number in sorted(numbers)}

    def _is_free(self, number: int, pending: Collection[int]) -> bool:
        since = self._leaving.get(number)
        return since is not None and (number not in pending or self.clock() >= since + self.lease_s)

    def _beaten(self, state: GroupState, member: str) -> GroupState:
        old = state.member(member)
        beat = old.beat + 1 if old else 0
        others = tuple(each for each in state.members if each.id != member)
        new = Member(
            id=member,
            name=self.name(others),
            beat=beat,
            lease_ms=math.ceil(self.lease_s * 1000),
            partitions=self.partitions,
        )
        return dataclasses.replace(state, members=(*others, new))

    def _learn(self, state: GroupState) -> None:
        now = self.clock()
        known = self._beats
        self._beats = {
            member.id: known[member.id] if known.get(member.id, (-1,))[0] == member.beat else (member.beat, now)
            for member in state.members
            if member.id != self._id
        }
        self._state = state
        if self._id and state.member(self._id) is None:
            self._lease_end = -math.inf

    def _lapsed(self, state: GroupState) -> set[str]:
        """The members that have not beaten for their lease, while this one watched."""
        now = self.clock()
        return {
            member.id
            for member in state.members
            if (seen := self._beats.get(member.id)) is not None
            and seen[0] == member.beat
            and now - seen[1] > member.lease_ms / 1000 * (1 + _GRACE)
        }

    def _renewed(self, state: GroupState, started: float) -> None:
        self._learn(state)
        self._leaving = {number: since for number, since in self._leaving.items() if number in self.owned}
        self._lease_end, self._beat_at = started + self.lease_s, started + self.lease_s * _BEAT

    def _fenced(self) -> FencedMemberError:
        self._lease_end = -math.inf
        return FencedMemberError(
            "nothing was committed: the group's other members took this member for dead, or the group was reset; "
            "read on, from the group's positions, and process each batch within the lease",
            group=self.log.group,
        )


def _without(state: GroupState, gone: set[str]) -> GroupState:
    members = tuple(member for member in state.members if member.id not in gone)
    owners = {number: owner for number, owner in state.owners.items() if owner not in gone}
    return dataclasses.replace(state, members=members, owners=owners)
