"""A member of a group: its lease, the partitions that it owns, and the positions that it commits."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from distlog.core.errors import FencedMemberError
from distlog.core.read.group_log import GroupLog, GroupRace, GroupState, Heartbeat, Member, assignment


@dataclass(slots=True)
class Membership:
    """This process in a group; from `sync` on it is a member until `leave`. Times are in seconds; for one thread."""

    log: GroupLog
    name: DisplayName
    partitions: tuple[int, ...] | None
    lease_s: float
    pace: Pace
    clock: Callable[[], float]
    new_id: Callable[[], str]
    #: True for a member that this process replaces, as after a restart: it counts as dead when this one joins.
    replaces: Callable[[Member], bool] = lambda member: False
    #: Grows when it joins again: records that were delivered before are not its own any more.
    joins: int = field(default=0, init=False)
    _id: str = field(default="", init=False)
    _state: GroupState | None = field(default=None, init=False)
    _lease_end: float = field(default=-math.inf, init=False)
    _beat_at: float = field(default=-math.inf, init=False)
    _look_at: float = field(default=-math.inf, init=False)
    _list_at: float = field(default=-math.inf, init=False)
    _heartbeats: int = field(default=0, init=False)
    #: The last heartbeat of each other member, and since when it has not changed.
    _signs: dict[str, tuple[_Sign, float]] = field(default_factory=dict, init=False)
    #: The members whose leases have lapsed, with their heartbeats in the group's log.
    _lapsed: dict[str, int] = field(default_factory=dict, init=False)
    #: The ids with heartbeats in the last list that are no members' ids.
    _strangers: frozenset[str] = field(default=frozenset(), init=False)
    #: The partitions that other members should have, and since when that is known.
    _leaving: dict[int, float] = field(default_factory=dict, init=False)

    @property
    def is_lapsed(self) -> bool:
        return not self._id or self.clock() >= self._lease_end

    @property
    def owned(self) -> dict[int, int]:
        """The group's position in each partition that it owns, as of the last look."""
        state = self._state
        return {number: state.positions[number] for number in state.owned_by(self._id)} if state and self._id else {}

    @property
    def state(self) -> GroupState | None:
        return self._state

    @property
    def id(self) -> str:
        return self._id

    @property
    def leaving(self) -> Collection[int]:
        """The partitions that it owns, and must not deliver any more: other members wait for them."""
        return self._leaving

    def due_s(self, pending: Collection[int]) -> float:
        if any(number not in pending for number in self._leaving):
            return 0.0
        return max(0.0, min(self._look_at, self._beat_at, self._lease_end) - self.clock())

    def sync(self, count: Callable[[], int], starts_of: StartsOf, pending: Collection[int]) -> None:
        """Send a heartbeat and read the newest state when each is due; put a version if a partition changes hands.

        The topic has `count` partitions, which is asked for after the look: both may take requests. A partition that
        another member should have is given up, unless it is `pending`: records of it were delivered and not
        committed; then it has a lease's time.
        """
        if not self.is_lapsed and self.clock() >= self._beat_at:
            self._beat()
        state = self._state
        looks = state is None or self.is_lapsed or self.clock() >= self._look_at
        state = self._look(state) if state is None or looks else state
        partitions = count()
        fresh, started, is_lapsed = self.new_id(), self.clock(), self.is_lapsed
        race = GroupRace(self.log, state)
        for current in race:
            member = self._id if current.member(self._id) else fresh
            planned = self._planned(self._begun(current, partitions, starts_of), member, pending)
            # without a change, a version is put only to renew a lapsed lease, which a heartbeat cannot renew
            if planned == current and not is_lapsed:
                break
            race.put(_renewed(planned, member))
        after = race.after
        if not race.is_committed:
            self._learn(after)
        else:
            if after.member(self._id) is None:
                self._id, self.joins, self._heartbeats = fresh, self.joins + 1, 0
            self._renew(after, started)
            self.log.forget((_ids(state) & self._lapsed.keys()) - _ids(after))
        if looks:
            assigned = assignment(after.members, after.owners, after.partitions)
            is_waiting = any(owner == self._id != after.owners.get(number) for number, owner in assigned.items())
            pace = FREQUENT.look if is_waiting else self.pace.look
            self._look_at = min(self._list_at, self.clock() + self.lease_s * pace)

    def prolong(self) -> None:
        """Send a heartbeat if a third of the lease has passed: the next batch may take two thirds of it."""
        if not self.is_lapsed and self.clock() >= self._lease_end - self.lease_s * 2 / 3:
            self._beat()

    def commit(self, positions: Mapping[int, int], *, back: bool = False) -> None:
        """Commit the positions of partitions that it owns; they only go forward, unless `back` is true.

        Raises FencedMemberError, and nothing was committed, when it is not a member any more, or does not own them
        all.
        """
        if self._state is None or not self._id:
            raise FencedMemberError("nothing was committed: this member left the group", group=self.log.group)
        first, started = self._state, self.clock()
        race = GroupRace(self.log, first)
        for state in race:
            # an empty commit is a heartbeat too: it must not bring back a former member
            if state.member(self._id) is None or not set(positions) <= set(state.owned_by(self._id)):
                raise self._fenced()
            moved = {n: offset if back else max(offset, state.positions[n]) for n, offset in positions.items()}
            renewed = _renewed(_without(state, self._dead(state)), self._id)
            race.put(dataclasses.replace(renewed, positions={**renewed.positions, **moved}))
        after = race.after
        self._renew(after, started)
        if (_ids(after), after.owners) != (_ids(first), first.owners):
            self._look_at = -math.inf

    def leave(self) -> None:
        """Give up all partitions at once, so that no member waits for the lease."""
        member, self._id, self._lease_end = self._id, "", -math.inf
        self._leaving.clear()
        if member and self._state:
            race = GroupRace(self.log, self._state)
            for state in race:
                if state.member(member) is None:
                    break
                race.put(_without(state, {member}))
            if self._heartbeats:
                self.log.forget({member})

    def _beat(self) -> None:
        started = self.clock()
        self._heartbeats += 1
        self.log.beat(self._id, self._heartbeats)
        if self.clock() < self._lease_end:
            self._lease_end, self._beat_at = self._terms(started)

    def _terms(self, started: float) -> tuple[float, float]:
        """The end of a lease whose heartbeat began at `started`, and when the next heartbeat is due."""
        return started + self.lease_s, started + self.lease_s * self.pace.heartbeat

    def _look(self, state: GroupState | None) -> GroupState:
        """The newest state; from time to time also the heartbeats."""
        started = self.clock()
        if state is not None and started < self._list_at:
            state = self.log.newer(state)
        else:
            state, heartbeats = self.log.watch(state)
            self._list_at = started + self.lease_s * self.pace.list
            self._watch(state, heartbeats, started)
        self._learn(state)
        return state

    def _watch(self, state: GroupState, heartbeats: Mapping[str, Heartbeat], started: float) -> None:
        """Note the heartbeats of a list that began at `started`; the next list is due when a lease may lapse."""
        now, earlier, self._signs, self._lapsed = self.clock(), self._signs, {}, {}
        for member in state.members:
            if member.id == self._id:
                continue
            sign, last = (member.beat, heartbeats.get(member.id)), earlier.get(member.id)
            since = last[1] if last is not None and last[0] == sign else now
            self._signs[member.id] = sign, since
            end = since + member.lease_ms / 1000 * (1 + _GRACE)
            if started >= end:
                self._lapsed[member.id] = member.beat
            else:
                self._list_at = min(self._list_at, end)
        # a heartbeat in flight when its member was taken for dead, or of a member that a list was too early to have
        strangers = heartbeats.keys() - _ids(state)
        self.log.forget(strangers & self._strangers)
        self._strangers = frozenset(strangers)

    def _begun(self, state: GroupState, partitions: int, starts_of: StartsOf) -> GroupState:
        """The group without dead members, and with a position in each partition."""
        state = _without(state, self._dead(state))
        if state.partitions >= partitions:
            return state
        added = starts_of(range(state.partitions, partitions), state.exists)
        return dataclasses.replace(state, partitions=partitions, positions={**state.positions, **added})

    def _planned(self, state: GroupState, member: str, pending: Collection[int]) -> GroupState:
        state = self._with_member(state, member)
        assigned = assignment(state.members, state.owners, state.partitions)
        now, leaving = self.clock(), sorted(n for n in state.owned_by(member) if assigned.get(n) != member)
        self._leaving = {number: self._leaving.get(number, now) for number in leaving}
        owners = {n: owner for n, owner in state.owners.items() if owner != member or not self._is_free(n, pending)}
        new = {n: member for n, owner in assigned.items() if owner == member and n not in state.owners}
        owners |= new
        return state if owners == state.owners else dataclasses.replace(state, owners=owners)

    def _is_free(self, number: int, pending: Collection[int]) -> bool:
        since = self._leaving.get(number)
        return since is not None and (number not in pending or self.clock() >= since + self.lease_s)

    def _with_member(self, state: GroupState, member: str) -> GroupState:
        old = state.member(member)
        new = Member(
            id=member,
            name=self.name([each for each in state.members if each.id != member]),
            beat=old.beat if old else -1,
            lease_ms=math.ceil(self.lease_s * 1000),
            partitions=self.partitions,
        )
        if new == old:
            return state
        others = tuple(new if each.id == member else each for each in state.members)
        return dataclasses.replace(state, members=others if old else (*others, new))

    def _learn(self, state: GroupState) -> None:
        self._state = state
        if self._id and state.member(self._id) is None:
            self._lease_end = -math.inf

    def _dead(self, state: GroupState) -> set[str]:
        """The members whose leases have lapsed without a new version; before it joins, also those it replaces."""
        return {
            member.id
            for member in state.members
            if self._lapsed.get(member.id) == member.beat or (not self._id and self.replaces(member))
        }

    def _renew(self, state: GroupState, started: float) -> None:
        self._learn(state)
        self._leaving = {number: since for number, since in self._leaving.items() if number in self.owned}
        self._lease_end, self._beat_at = self._terms(started)

    def _fenced(self) -> FencedMemberError:
        self._lease_end = -math.inf
        return FencedMemberError(
            "nothing was committed: the group's other members took this member for dead, or the group was reset; "
            "read on, from the group's positions, and process each batch within the lease",
            group=self.log.group,
        )


# A member lives as long as it shows signs of life: heartbeats in a file of its own, and versions that it puts. Other
# members see heartbeats only in a listing of the group's folder, so an idle member costs the same in any group.
#
# The lease that a member counts itself ends before other members can take its partitions. It begins before the put of
# a sign of life. The others wait a little longer than a lease, from when they have seen that sign, and then list once
# more. So a heartbeat counts only if its put returned within the lease before: then that list shows it. A member that
# was later, or was paused, renews its lease by a version of the group's log, as it joins: of this version and another
# member's, which takes it for dead, the log refuses one.

#: How much longer than a lease other members wait, since two clocks do not run at exactly the same speed.
_GRACE = 1 / 10

#: A member's beat in the group's log, and its file of heartbeats in a listing.
_Sign = tuple[int, Heartbeat | None]


@dataclass(frozen=True, slots=True)
class Pace:
    """The intervals of a member's heartbeats, looks at the state, and lists of heartbeats, in parts of the lease.

    The looks between two lists are two GETs each. While it waits for other members' partitions, it looks at least at
    the pace FREQUENT.
    """

    heartbeat: float
    look: float
    list: float


#: For a local disk, where a look costs microseconds, and for servers, whose clients wait for partitions that change
#: hands.
FREQUENT = Pace(1 / 3, 1 / 20, 1 / 4)
#: For an object store: four requests a lease.
RARE = Pace(1 / 2, 1 / 2, 1 / 2)

#: Returns the offsets at which the group begins in partitions; the second argument: whether they were added later.
StartsOf = Callable[[Collection[int], bool], Mapping[int, int]]
#: Returns a member's name for people, given the group's other members.
DisplayName = Callable[[Sequence[Member]], str]


def _ids(state: GroupState) -> set[str]:
    return {member.id for member in state.members}


def _renewed(state: GroupState, member: str) -> GroupState:
    members = (dataclasses.replace(each, beat=each.beat + (each.id == member)) for each in state.members)
    return dataclasses.replace(state, members=tuple(members))


def _without(state: GroupState, dead: set[str]) -> GroupState:
    if not dead:
        return state
    members = tuple(member for member in state.members if member.id not in dead)
    owners = {number: owner for number, owner in state.owners.items() if owner not in dead}
    return dataclasses.replace(state, members=members, owners=owners)
