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
    name: NameOf
    partitions: tuple[int, ...] | None
    lease_s: float
    pace: Pace
    clock: Callable[[], float]
    new_id: Callable[[], str]
    #: Whether this member replaces another one, as a new process does.
    replaces: Callable[[Member], bool] = lambda member: False
    #: Grows when it joins again: earlier deliveries do not belong to it any more.
    joins: int = field(default=0, init=False)
    _id: str = field(default="", init=False)
    _state: GroupState | None = field(default=None, init=False)
    _lease_end: float = field(default=-math.inf, init=False)
    _beat_at: float = field(default=-math.inf, init=False)
    _refresh_at: float = field(default=-math.inf, init=False)
    _list_at: float = field(default=-math.inf, init=False)
    _heartbeats: int = field(default=0, init=False)
    #: The last heartbeat of each other member, and the time of its last change.
    _proofs: dict[str, tuple[_Proof, float]] = field(default_factory=dict, init=False)
    #: The members whose leases have lapsed, with their heartbeats in the group's log.
    _lapsed: dict[str, int] = field(default_factory=dict, init=False)
    #: The ids with heartbeats in the last list that are not members' ids.
    _strangers: frozenset[str] = field(default=frozenset(), init=False)
    #: The partitions that other members should own, and the time of that assignment.
    _leaving: dict[int, float] = field(default_factory=dict, init=False)

    @property
    def is_lapsed(self) -> bool:
        return not self._id or self.clock() >= self._lease_end

    @property
    def owned(self) -> dict[int, int]:
        """The group's offset in each partition that it owns, as of the last refresh."""
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
        """The partitions that it owns, but must not deliver: other members wait for them."""
        return self._leaving

    def due_s(self, pending: Collection[int]) -> float:
        if any(number not in pending for number in self._leaving):
            return 0.0
        return max(0.0, min(self._refresh_at, self._beat_at, self._lease_end) - self.clock())

    def sync(self, count: Callable[[], int], starts_of: StartsOf, pending: Collection[int]) -> None:
        """Send a heartbeat and read the newest state when they are due; put a version if an owner changes.

        `count` returns the number of the topic's partitions, after the refresh, since both may be requests. A
        partition that another member should own is given up; if it is `pending`, with records that were delivered and
        not committed, after a lease's time.
        """
        if not self.is_lapsed and self.clock() >= self._beat_at:
            self._beat()
        state = self._state
        is_due = state is None or self.is_lapsed or self.clock() >= self._refresh_at
        state = self._refresh(state) if state is None or is_due else state
        partitions = count()
        fresh, started, is_lapsed = self.new_id(), self.clock(), self.is_lapsed
        race = GroupRace(self.log, state)
        for current in race:
            member = self._id if current.member(self._id) else fresh
            planned = self._planned(self._with_all_partitions(current, partitions, starts_of), member, pending)
            # a version that is only a heartbeat is for a member whose heartbeats are not valid any more
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
        if is_due:
            assigned = assignment(after.members, after.owners, after.partitions)
            is_waiting = any(owner == self._id != after.owners.get(number) for number, owner in assigned.items())
            pace = FREQUENT.refresh if is_waiting else self.pace.refresh
            self._refresh_at = min(self._list_at, self.clock() + self.lease_s * pace)

    def prolong(self) -> None:
        """Send a heartbeat if a third of the lease has passed: the next batch may take two thirds."""
        if not self.is_lapsed and self.clock() >= self._lease_end - self.lease_s * 2 / 3:
            self._beat()

    def commit(self, positions: Mapping[int, int], *, back: bool = False) -> None:
        """Commit the offsets of partitions that it owns, which only increase unless `back` is true.

        Raises FencedMemberError, and commits nothing, if it isn't a member any more, or lacks a partition.
        """
        if self._state is None or not self._id:
            raise FencedMemberError("nothing was committed: this member left the group", group=self.log.group)
        first, started = self._state, self.clock()
        race = GroupRace(self.log, first)
        for state in race:
            # an empty commit is a heartbeat too, and must not restore a former member
            if state.member(self._id) is None or not set(positions) <= set(state.owned_by(self._id)):
                raise self._fenced()
            moved = {n: offset if back else max(offset, state.positions[n]) for n, offset in positions.items()}
            renewed = _renewed(_without(state, self._dead(state)), self._id)
            race.put(dataclasses.replace(renewed, positions={**renewed.positions, **moved}))
        after = race.after
        self._renew(after, started)
        if (_ids(after), after.owners) != (_ids(first), first.owners):
            self._refresh_at = -math.inf

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
        """The end of a lease whose heartbeat `started` then, and the time of the next heartbeat."""
        return started + self.lease_s, started + self.lease_s * self.pace.heartbeat

    def _refresh(self, state: GroupState | None) -> GroupState:
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
        """Record the heartbeats of a list that `started` then; the next list is due when a lease may lapse."""
        now, earlier, self._proofs, self._lapsed = self.clock(), self._proofs, {}, {}
        for member in state.members:
            if member.id == self._id:
                continue
            proof, last = (member.beat, heartbeats.get(member.id)), earlier.get(member.id)
            since = last[1] if last is not None and last[0] == proof else now
            self._proofs[member.id] = proof, since
            end = since + member.lease_ms / 1000 * (1 + _GRACE)
            if started >= end:
                self._lapsed[member.id] = member.beat
            else:
                self._list_at = min(self._list_at, end)
        # a heartbeat in flight when its member was declared dead, or of a member that joined after the list
        strangers = heartbeats.keys() - _ids(state)
        self.log.forget(strangers & self._strangers)
        self._strangers = frozenset(strangers)

    def _with_all_partitions(self, state: GroupState, partitions: int, starts_of: StartsOf) -> GroupState:
        """The group without dead members, and with an offset for each partition."""
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
            name=self.name([peer for peer in state.members if peer.id != member]),
            beat=old.beat if old else -1,
            lease_ms=math.ceil(self.lease_s * 1000),
            partitions=self.partitions,
        )
        if new == old:
            return state
        members = tuple(new if peer.id == member else peer for peer in state.members)
        return dataclasses.replace(state, members=members if old else (*members, new))

    def _learn(self, state: GroupState) -> None:
        self._state = state
        if self._id and state.member(self._id) is None:
            self._lease_end = -math.inf

    def _dead(self, state: GroupState) -> set[str]:
        """The members whose leases have lapsed without a new version; before it joins, also members it replaces."""
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
            "nothing was committed: the group's other members declared this member dead, or the group was reset; "
            "continue from the group's committed offsets, and process each batch within the lease",
            group=self.log.group,
        )


# A member lives as long as it sends heartbeats: in its own file, and by versions that it puts. Other members read the
# files only by a listing of the group's folder, so an idle member costs the same in any group.
#
# A member's own lease ends before other members can acquire its partitions. It starts before the put of a heartbeat.
# Other members wait a little longer than a lease after they read the heartbeat, and then list again. So a heartbeat
# is valid only if its put returned within the previous lease: then that list has it. A member that was later, or was
# paused, renews its lease by a version of the group's log, as it joins. If another member puts a version that
# declares it dead, the log refuses one of the two versions.

#: How much longer than a lease other members wait, since the speeds of two clocks differ.
_GRACE = 1 / 10

#: A member's `beat` in the group's log, and its file of heartbeats in a listing.
_Proof = tuple[int, Heartbeat | None]


@dataclass(frozen=True, slots=True)
class Pace:
    """The intervals of a member's heartbeats, refreshes of the state, and lists of heartbeats, in parts of the lease.

    A refresh between two lists is two GETs. While it waits for partitions of other members, the pace is FREQUENT.
    """

    heartbeat: float
    refresh: float
    list: float


#: For a local disk, where a refresh costs microseconds, and for servers, whose clients wait for partitions.
FREQUENT = Pace(1 / 3, 1 / 20, 1 / 4)
#: For an object store: four requests a lease.
RARE = Pace(1 / 2, 1 / 2, 1 / 2)

#: Returns the first offsets of the group in partitions; the second argument is whether they were added later.
StartsOf = Callable[[Collection[int], bool], Mapping[int, int]]
#: Returns a member's name for people, given the group's other members.
NameOf = Callable[[Sequence[Member]], str]


def _ids(state: GroupState) -> set[str]:
    return {member.id for member in state.members}


def _renewed(state: GroupState, member: str) -> GroupState:
    members = (dataclasses.replace(peer, beat=peer.beat + (peer.id == member)) for peer in state.members)
    return dataclasses.replace(state, members=tuple(members))


def _without(state: GroupState, dead: set[str]) -> GroupState:
    if not dead:
        return state
    members = tuple(member for member in state.members if member.id not in dead)
    owners = {number: owner for number, owner in state.owners.items() if owner not in dead}
    return dataclasses.replace(state, members=members, owners=owners)
