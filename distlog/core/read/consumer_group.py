"""Consumer groups of distlog: a log of states with committed offsets and owners, memberships, and administration.

If a member sends no heartbeat during its lease, a time that it declares, other members get its partitions.
"""

from __future__ import annotations

import dataclasses
import heapq
import logging
import math
import re
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random, SystemRandom
from typing import Any, TypeVar

import pyarrow as pa

from distlog.core import paths
from distlog.core.arrays import table_of_rows
from distlog.core.commits import fields
from distlog.core.commits.fields import LONG, NAME, PARTITION, UUID, Integer, Text, by_partition, optional, stored
from distlog.core.commits.snapshot import Snapshot
from distlog.core.display import Listing
from distlog.core.errors import (
    CommitConflictError,
    CorruptMetadataError,
    FencedMemberError,
    GroupNotFoundError,
    InvalidConfigError,
    StorageError,
    UnsupportedVersionError,
)
from distlog.core.storage.calls import in_parallel
from distlog.core.storage.storage import FileInfo, Storage
from distlog.core.times import elapsed_s

FORMAT = 1  # the version of the format of states
#: The longest lease, in ms: other members wait for the end of a dead member's lease.
LONGEST_LEASE_MS = 86_400_000
RETAINED_VERSIONS = 32
#: How long a put is retried, in seconds: longer than the default lease.
TIMEOUT_S = 60.0
#: A pause after a lost race is random, up to a limit in seconds: first _PAUSE_S. In a group of more than _FEW_MEMBERS
#: it doubles with each race, to _PAUSE_S * members or _LONGEST_PAUSE_S, since a member sends no heartbeat in a pause.
_PAUSE_S, _LONGEST_PAUSE_S, _FEW_MEMBERS = 0.05, 1.0, 8
#: The largest file of a state that is read, in bytes: the offsets of 100,000 partitions take 3 MB.
_MAX_BYTES = 64 << 20
_SIZES = 64  # a member's file of heartbeats gets this many sizes in turn, so that each heartbeat changes its size

#: A member's file of heartbeats in a listing: its size, and the ms when it was written. A change is a heartbeat.
Heartbeat = tuple[int, int]

_log = logging.getLogger(__name__)

T = TypeVar("T")

_TABLE = pa.schema(
    [
        ("group", pa.string()),
        ("partition", pa.int32()),
        ("position", pa.int64()),
        ("log_end_offset", pa.int64()),
        ("lag", pa.int64()),
        ("member", pa.string()),
        ("name", pa.string()),
    ]
)


# Each version of the log is a file with the whole state, which is put if absent. So a commit of offsets makes no
# version of the topic, which every reader would have to read. docs/formats.md says which versions are valid.
class GroupLog:
    """The versions of one group of the topic with `topic_id` in `storage`; times are in seconds."""

    def __init__(
        self,
        storage: Storage,
        topic_id: str,
        group: str,
        *,
        random: Random | None = None,
        sleep: Callable[[float], object] = time.sleep,
        clock: Callable[[], float] = elapsed_s,
    ) -> None:
        self._storage, self._topic_id, self.group = storage, topic_id, group
        self._folder = paths.group_folder(topic_id, group)
        self._random, self._sleep, self.clock = random or SystemRandom(), sleep, clock

    def load(self) -> GroupState:
        """Read the newest state: one LIST and one GET."""
        return self._listed(None)[0]

    def watch(self, state: GroupState | None) -> tuple[GroupState, dict[str, Heartbeat]]:
        """Return the newest state, and heartbeats by member id: one LIST, and one GET if `state` isn't the newest."""
        newest, files = self._listed(state)
        by_member = ((paths.parse_heartbeat_file(file.name), file) for file in files)
        return newest, {member: (file.size, file.modified_ms) for member, file in by_member if member is not None}

    def _listed(self, state: GroupState | None) -> tuple[GroupState, list[FileInfo]]:
        while True:  # again if the newest listed version was deleted before it was read
            files = self._storage.list(self._folder)
            newest = max(_versions(files), default=-1)
            if state is None or state.version < newest:
                state = self._read(newest) if newest >= 0 else GroupState.empty(self._topic_id, self.group)
            if state is not None:
                return state, files

    def newest_after(self, state: GroupState) -> GroupState:
        """Return the newest state, by reading the versions after `state`: a GET for each, and one more."""
        following = self._read(state.version + 1)
        # in a busy group `state` and the next versions may be deleted already
        if following is None and state.version >= 0 and self._read(state.version) is None:
            return self.load()
        while following is not None:
            state, following = following, self._read(following.version + 1)
        return state

    def put(self, state: GroupState) -> bool:
        """Put the next version, or return False if another member was first: one PUT, one LIST."""
        data = state.encode()
        existing = self._storage.put_if_absent(self._file(state.version), data, timeout_s=TIMEOUT_S)
        return existing == data and self._clean_up_and_check(state.version)

    def pause(self, longest_s: float) -> None:
        self._sleep(self._random.uniform(0, longest_s))

    def beat(self, member: str, count: int) -> None:
        """Put heartbeat number `count` of a member, which replaces the last one: one PUT."""
        self._storage.put(f"{self._folder}/{paths.heartbeat_file(member)}", b"." * (1 + count % _SIZES))

    def forget(self, members: Collection[str]) -> None:
        """Delete the heartbeats of former members; other members repeat a failed delete."""
        self._delete([f"{self._folder}/{paths.heartbeat_file(member)}" for member in sorted(members)])

    def _clean_up_and_check(self, version: int) -> bool:
        """Delete old versions. Returns False if the put of `version` may have created a deleted version again."""
        versions = _versions(self._storage.list(self._folder))
        newest = max(versions, default=version)
        old_versions = [old for old in versions if old <= newest - RETAINED_VERSIONS]
        if len(old_versions) >= RETAINED_VERSIONS:
            self._delete([self._file(old) for old in old_versions])
        # docs/formats.md: a put is invalid if a version is 31 above it, and deleted only if one is 32 above it
        return newest < version + RETAINED_VERSIONS - 1

    def _delete(self, files: Sequence[str]) -> None:
        if not files:
            return
        try:
            self._storage.delete(files)
        except StorageError as error:
            _log.warning("cannot delete old files of the group %s: %s", self.group, error)

    def _read(self, version: int) -> GroupState | None:
        file = self._file(version)
        try:
            data = self._storage.read(file, 0, _MAX_BYTES)
        except FileNotFoundError:
            return None
        state = GroupState.decode(data, file)
        if state.group != self.group and state.group.casefold() == self.group.casefold():
            text = "this storage ignores case, and a group's name differs in case alone: choose another name"
            raise InvalidConfigError(text, group=self.group, existing=state.group)
        if (state.version, state.topic_id, state.group) != (version, self._topic_id, self.group):
            text = "the file belongs to another group or version: delete it to return to the previous version"
            raise CorruptMetadataError(text, file=file)
        return state

    def _file(self, version: int) -> str:
        return f"{self._folder}/{version:020d}.json"


_MEMBER_ID = Text("[0-9a-f]{32}")


def _partitions(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise ValueError("must be a list of partitions")
    return tuple(map(PARTITION, value))


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A consumer in a group; dead if its file of heartbeats and its `beat` have not changed for `lease_ms`."""

    id: str = stored(_MEMBER_ID)
    #: The name that listings show.
    name: str = stored(NAME)
    #: The number of versions that the member has put: each counts as a heartbeat, too.
    beat: int = stored(LONG)
    lease_ms: int = stored(Integer(1, LONGEST_LEASE_MS))
    #: The partitions that the member may own; None for all.
    partitions: tuple[int, ...] | None = stored(optional(_partitions), default=None)

    def accepts(self, partition: int) -> bool:
        return self.partitions is None or partition in self.partitions


def _members(value: Any) -> tuple[Member, ...]:
    if not isinstance(value, list):
        raise ValueError("must be a list of members")
    members = tuple(fields.read(Member, member) for member in value)
    if len({member.id for member in members}) < len(members):
        raise ValueError("a member is listed twice")
    return members


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupState:
    """A group at `version`, -1 before the first put; `id` is the id of the put."""

    version: int = stored(LONG, default=-1)
    id: str = stored(UUID, default="")
    topic_id: str = stored(UUID)
    group: str = stored(NAME)
    partitions: int = stored(PARTITION, default=0)
    members: tuple[Member, ...] = stored(_members)
    #: By partition, the id of the member that may deliver its records.
    owners: Mapping[int, str] = stored(by_partition(_MEMBER_ID))
    #: By partition, the committed offset: the next offset to deliver.
    positions: Mapping[int, int] = stored(by_partition(LONG))

    @classmethod
    def empty(cls, topic_id: str, group: str) -> GroupState:
        return cls(topic_id=topic_id, group=group, members=(), owners={}, positions={})

    @property
    def exists(self) -> bool:
        """Whether a member has joined, or offsets were set, since the group was deleted."""
        return self.partitions > 0

    def member(self, member_id: str) -> Member | None:
        return next((member for member in self.members if member.id == member_id), None)

    def owned_by(self, member_id: str) -> list[int]:
        return sorted(partition for partition, owner in self.owners.items() if owner == member_id)

    def after(self, version: int) -> GroupState:
        return dataclasses.replace(self, version=version + 1, id=str(uuid.uuid4()))

    def encode(self) -> bytes:
        return fields.with_checksum({"format": FORMAT, **fields.write(self)})

    @classmethod
    def decode(cls, data: bytes, file: str) -> GroupState:
        try:
            body = fields.parse(data)
            if not isinstance(body, dict):
                raise ValueError("the state must be an object")
            if fields.LONG(body.pop("format", None)) > FORMAT:
                raise UnsupportedVersionError("a newer distlog wrote this group: upgrade", file=file)
            fields.check_checksum(data)
            del body["crc32c"]
            state = fields.read(cls, body)
            if state.version < 0 or not state.id:
                raise ValueError("the state has no version or no id")
            # checked before any loop over the number of partitions, which may be wrong
            if len(state.positions) != state.partitions or set(state.positions) != set(range(state.partitions)):
                raise ValueError("each partition of the group needs one position")
            if not set(state.owners.values()) <= {member.id for member in state.members}:
                raise ValueError("an owner of a partition isn't a member")
            if any(partition >= state.partitions for partition in state.owners):
                raise ValueError("a member owns a partition past the group's count")
        except (ValueError, RecursionError) as error:
            text = f"not a group's state: {error}; delete the file to return to the previous version"
            raise CorruptMetadataError(text, file=file) from error
        return state


def assignment(members: Sequence[Member], owners: Mapping[int, str], partitions: int) -> dict[int, str]:
    """Return the member that should own each partition, so that shares are even, and few partitions move."""
    # An owner keeps its partitions up to its fair share, and the members with the fewest partitions get free ones.
    # Each member computes this alone, and must get the same result, also while some moves are not done yet.
    if not members:
        return {}
    by_id = {member.id: member for member in sorted(members, key=lambda member: member.id)}
    share, extra = divmod(partitions, len(by_id))
    owned: dict[str, list[int]] = {member: [] for member in by_id}
    for number in range(partitions):
        owner = owners.get(number)
        if owner in by_id and by_id[owner].accepts(number):
            owned[owner].append(number)
    assigned: dict[int, str] = {}
    counts = dict[str, int]()
    for member, numbers in owned.items():
        has_extra = len(numbers) > share and extra > 0  # `extra` members have one partition more than `share`
        extra -= has_extra
        retained = numbers[: share + has_extra]
        assigned |= dict.fromkeys(retained, member)
        counts[member] = len(retained)
    free = [number for number in range(partitions) if number not in assigned]
    if all(member.partitions is None for member in members):  # a heap is faster than the search below
        fewest = [(count, member) for member, count in counts.items()]
        heapq.heapify(fewest)
        for number in free:
            count, best = fewest[0]
            assigned[number] = best
            heapq.heapreplace(fewest, (count + 1, best))
        return assigned
    for number in free:
        candidates = [member for member in by_id if by_id[member].accepts(number)]
        if candidates:
            best = min(candidates, key=lambda member: (counts[member], owners.get(number) != member, member))
            assigned[number] = best
            counts[best] += 1
    return assigned


class GroupRace:
    """The race for a group's next version. Iterate over the newest states, and `put` the next one or leave."""

    def __init__(self, log: GroupLog, state: GroupState) -> None:
        self._log = log
        self._end_s, self._longest_pause_s = log.clock() + TIMEOUT_S, _PAUSE_S
        #: The new state, or the newest one as long as nothing is committed.
        self.state = state
        self.is_committed = False

    def __iter__(self) -> Iterator[GroupState]:
        while not self.is_committed:
            yield self.state

    def put(self, state: GroupState) -> None:
        """Put `state` after the last one; if another member was first, `is_committed` stays False."""
        log, state = self._log, state.after(self.state.version)
        if log.put(state):
            self.state, self.is_committed = state, True
            return
        if log.clock() >= self._end_s:
            text = "the group was not changed: other members were first; try again"
            raise CommitConflictError(text, group=log.group)
        log.pause(self._longest_pause_s)
        members = len(state.members)
        if members > _FEW_MEMBERS:
            self._longest_pause_s = min(2 * self._longest_pause_s, _PAUSE_S * members, _LONGEST_PAUSE_S)
        self.state = log.load()


def _versions(files: Iterable[FileInfo]) -> list[int]:
    return [version for file in files if (version := paths.parse_commit_file(file.name)) is not None]


def group_states(storage: Storage, topic_id: str) -> list[GroupState]:
    folders = storage.list_folders(f"{paths.GROUPS_DIR}/{topic_id}")
    names = sorted(filter(None, (paths.parse_group_folder(paths.last_part(folder)) for folder in folders)))
    states = _map_names(storage, lambda name: GroupLog(storage, topic_id, name).load(), names)
    return [state for state in states if state.exists]


def group_table(storage: Storage, snapshot: Snapshot) -> Listing:
    """Return a row per group and partition; a dead member stays until another member finds that its lease lapsed."""
    rows = [row for state in group_states(storage, snapshot.topic_id) for row in _rows(state, snapshot)]
    return Listing(table_of_rows(rows, _TABLE), "groups and partitions")


def _rows(state: GroupState, snapshot: Snapshot) -> Iterator[dict[str, object]]:
    for number, partition in enumerate(snapshot.partitions):
        position, owner = state.positions.get(number), state.member(state.owners.get(number, ""))
        yield {
            "group": state.group,
            "partition": number,
            "position": position,
            "log_end_offset": partition.log_end_offset,
            "lag": None if position is None else max(0, partition.log_end_offset - position),
            "member": owner.id if owner else None,
            "name": owner.name if owner else None,
        }


def reset_positions(
    log: GroupLog, positions: Mapping[int, int], default_offsets: Mapping[int, int], *, is_empty: bool
) -> GroupState:
    """Set the committed offsets to `positions`, and remove all members; with `is_empty`, raise if there are any.

    `default_offsets` has an offset for each partition of the topic, which applies if the group has none for it.
    """
    first = log.load()
    race = GroupRace(log, first)
    for state in race:
        if is_empty and state.members:
            raise CommitConflictError(
                "the group's offsets were not set, since it has members: close its consumers first; if these no "
                "longer run, call reset_group with the new offsets as `to`, which removes all members",
                group=log.group,
                members=",".join(member.name for member in state.members),
            )
        count = max(len(default_offsets), state.partitions)
        # an existing group has read no record of partitions that were added to the topic later
        added = {number: 0 if state.exists else default_offsets[number] for number in range(state.partitions, count)}
        moved = dict(sorted({**state.positions, **added, **positions}.items()))
        race.put(dataclasses.replace(state, partitions=count, members=(), owners={}, positions=moved))
    log.forget({member.id for member in first.members})
    return race.state


def delete_group(log: GroupLog) -> None:
    """Delete a group's offsets and members, by a state without them. Raises GroupNotFoundError."""
    first = log.load()
    race = GroupRace(log, first)
    for state in race:
        if not state.exists:
            raise GroupNotFoundError("consumer group not found: check its name", group=log.group)
        race.put(dataclasses.replace(state, partitions=0, members=(), owners={}, positions={}))
    log.forget({member.id for member in first.members})


def carry_over_groups(storage: Storage, topic_id: str, new_id: str) -> None:
    """Copy the offsets of a topic's groups to groups of the topic that replaced it."""
    for state in group_states(storage, topic_id):
        log = GroupLog(storage, new_id, state.group)
        # a group that was deleted in the new topic has versions, and stays deleted
        if log.load().version < 0:
            reset_positions(log, state.positions, state.positions, is_empty=False)


def group_folders(storage: Storage) -> list[str]:
    """List the folders of all groups, also of topics that were dropped at this address."""
    folders = storage.list_folders(paths.GROUPS_DIR)
    topics = (name for name in folders if re.fullmatch(UUID.pattern, paths.last_part(name)))
    return [folder for topic in topics for folder in storage.list_folders(topic)]


def group_files(
    storage: Storage, folders: Iterable[str], topic_id: str | None, before_ms: int
) -> tuple[list[FileInfo], list[FileInfo]]:
    """List the files of the topic's groups (only disks have temporary ones), and of groups of dropped topics.

    A group with a file since `before_ms` may be a copy for a new id of the topic, with a commit yet to be read.
    """
    live = f"{paths.GROUPS_DIR}/{topic_id}/"
    live_files, dropped_files = list[FileInfo](), list[FileInfo]()
    listed_folders = [folder for folder in folders if storage.is_local or not folder.startswith(live)]
    for folder, listed in zip(listed_folders, _map_names(storage, storage.list, listed_folders), strict=True):
        if folder.startswith(live):
            live_files += listed
        elif all(file.modified_ms < before_ms for file in listed):
            dropped_files += listed
    return live_files, dropped_files


def _map_names(storage: Storage, work: Callable[[str], T], names: Sequence[str]) -> list[T]:
    return list(map(work, names)) if storage.is_local else in_parallel(work, names)


_EXTRA_WAIT = 1 / 10  # the part of a lease that other members wait after its end, since two clocks differ in speed


@dataclass(frozen=True, slots=True)
class Pace:
    """The times between a member's heartbeats, reads of the state, and lists of heartbeats, as parts of a lease."""

    heartbeat: float
    refresh: float
    list: float


#: For a local disk, where a refresh costs microseconds, and for servers, whose clients wait for partitions.
FREQUENT = Pace(1 / 3, 1 / 20, 1 / 4)
#: For an object store: four requests a lease.
RARE = Pace(1 / 2, 1 / 2, 1 / 2)

#: Returns the group's first offsets in the given partitions. The second argument is whether the group exists already,
#: which means that the partitions were added to its topic later.
StartsOf = Callable[[Collection[int], bool], Mapping[int, int]]


# A member lives as long as it sends heartbeats: in its own file, which other members only list, and by the versions
# of the state that it puts. Its lease starts before the put of a heartbeat. Other members acquire its partitions if a
# list that they begin a little after the lease shows no new heartbeat. That list has any heartbeat whose put returned
# within the lease, so only these renew the lease. After a lapse, only a version of the state does, as at a join.
@dataclass(slots=True)
class Membership:
    """This process in a group: a member from `sync` until `leave`. Times are in seconds; used by one thread.

    `pending` in its methods are the partitions with delivered records whose offsets are not committed yet.
    """

    log: GroupLog
    #: Returns the member's name for people, given the group's other members.
    name: Callable[[Sequence[Member]], str]
    #: The partitions that the member may own; None for all.
    partitions: tuple[int, ...] | None
    lease_s: float
    pace: Pace
    clock: Callable[[], float]
    new_id: Callable[[], str]
    #: Whether this member replaces another one, as a new process does.
    replaces: Callable[[Member], bool] = lambda member: False
    #: The number of joins: after a join, earlier deliveries cannot be committed.
    joins: int = field(default=0, init=False)
    #: The id of this member; empty before it joins, and after it leaves.
    id: str = field(default="", init=False)
    #: The newest state that this member has read.
    state: GroupState | None = field(default=None, init=False)
    #: The partitions that this member owns but must not deliver, because others wait for them, and since when.
    leaving: dict[int, float] = field(default_factory=dict, init=False)
    _lease_end: float = field(default=-math.inf, init=False)
    _heartbeat_due: float = field(default=-math.inf, init=False)
    _refresh_due: float = field(default=-math.inf, init=False)
    _list_due: float = field(default=-math.inf, init=False)
    _heartbeats: int = field(default=0, init=False)
    #: By other member: its last `beat` and Heartbeat, and when the two last changed.
    _last_heartbeats: dict[str, tuple[tuple[int, Heartbeat | None], float]] = field(default_factory=dict, init=False)
    #: By member whose lease has lapsed: its `beat`.
    _lapsed: dict[str, int] = field(default_factory=dict, init=False)
    #: The ids in the last list of heartbeats that no member has.
    _unknown_ids: frozenset[str] = field(default=frozenset(), init=False)

    @property
    def is_lapsed(self) -> bool:
        return not self.id or self.clock() >= self._lease_end

    @property
    def owned(self) -> dict[int, int]:
        """The group's committed offset in each partition that this member owns, as of the last refresh."""
        state = self.state
        return {number: state.positions[number] for number in state.owned_by(self.id)} if state and self.id else {}

    def due_s(self, pending: Collection[int]) -> float:
        """Return the seconds until `sync` has something to do."""
        if any(number not in pending for number in self.leaving):
            return 0.0
        return max(0.0, min(self._refresh_due, self._heartbeat_due, self._lease_end) - self.clock())

    def sync(self, count_partitions: Callable[[], int], starts_of: StartsOf, pending: Collection[int]) -> None:
        """Send a heartbeat and read the state when they are due; put a version if an owner changes."""
        if not self.is_lapsed and self.clock() >= self._heartbeat_due:
            self._send_heartbeat()
        state = self.state
        is_due = state is None or self.is_lapsed or self.clock() >= self._refresh_due
        if state is None or is_due:
            state = self._refresh(state)
        partitions = count_partitions()
        new_member_id = self.new_id()
        started, had_lapsed = self.clock(), self.is_lapsed
        race = GroupRace(self.log, state)
        for current in race:
            member = self.id if current.member(self.id) else new_member_id
            next_state = self._next_state(self._up_to_date(current, partitions, starts_of), member, pending)
            # after the lease has lapsed, only a version of the state renews it
            if next_state == current and not had_lapsed:
                break
            race.put(_with_heartbeat(next_state, member))
        after = race.state
        if not race.is_committed:
            self._set_state(after)
        else:
            if after.member(self.id) is None:
                self.id, self.joins, self._heartbeats = new_member_id, self.joins + 1, 0
            self._renew(after, started)
            self.log.forget((_ids(state) & self._lapsed.keys()) - _ids(after))  # the members that it removed
        if is_due:
            assigned = assignment(after.members, after.owners, after.partitions)
            is_waiting = any(owner == self.id and after.owners.get(n) != self.id for n, owner in assigned.items())
            pace = FREQUENT.refresh if is_waiting else self.pace.refresh  # part of a lease until the next refresh
            self._refresh_due = min(self._list_due, self.clock() + self.lease_s * pace)

    def prolong(self) -> None:
        """Send a heartbeat if a third of the lease has passed, so that the next batch may take two thirds."""
        if not self.is_lapsed and self.clock() >= self._lease_end - self.lease_s * 2 / 3:
            self._send_heartbeat()

    def commit(self, positions: Mapping[int, int], *, back: bool = False) -> None:
        """Commit offsets of owned partitions, which only increase unless `back`. Raises FencedMemberError."""
        if self.state is None or not self.id:
            text = "no offset was committed: this member left the group; consume again to rejoin"
            raise FencedMemberError(text, group=self.log.group)
        first, started = self.state, self.clock()
        race = GroupRace(self.log, first)
        for state in race:
            # check an empty commit, too: it is a heartbeat, and must not restore a former member
            if state.member(self.id) is None or not set(positions) <= set(state.owned_by(self.id)):
                self._lease_end = -math.inf
                raise FencedMemberError(
                    "no offset was committed: the group's other members declared this member dead, or the group was "
                    "reset; continue from the group's committed offsets, and process each batch within the lease",
                    group=self.log.group,
                )
            moved = {n: offset if back else max(offset, state.positions[n]) for n, offset in positions.items()}
            renewed = _with_heartbeat(_without(state, self._dead_ids(state)), self.id)
            race.put(dataclasses.replace(renewed, positions={**renewed.positions, **moved}))
        after = race.state
        self._renew(after, started)
        if (_ids(after), after.owners) != (_ids(first), first.owners):
            self._refresh_due = -math.inf

    def leave(self) -> None:
        """Give up all partitions at once, so that no member waits for the lease."""
        member, self.id, self._lease_end = self.id, "", -math.inf
        self.leaving.clear()
        if member and self.state:
            race = GroupRace(self.log, self.state)
            for state in race:
                if state.member(member) is None:
                    break
                race.put(_without(state, {member}))
            if self._heartbeats:
                self.log.forget({member})

    def _send_heartbeat(self) -> None:
        started = self.clock()
        self._heartbeats += 1
        self.log.beat(self.id, self._heartbeats)
        if self.clock() < self._lease_end:
            self._lease_end, self._heartbeat_due = self._lease_times(started)

    def _lease_times(self, started: float) -> tuple[float, float]:
        """Return when the lease of a heartbeat from `started` ends, and when the next heartbeat is due."""
        return started + self.lease_s, started + self.lease_s * self.pace.heartbeat

    def _refresh(self, state: GroupState | None) -> GroupState:
        """Read the newest state, and the heartbeats too when their next list is due."""
        started = self.clock()
        if state is not None and started < self._list_due:
            state = self.log.newest_after(state)
        else:
            state, heartbeats = self.log.watch(state)
            self._list_due = started + self.lease_s * self.pace.list
            self._watch(state, heartbeats, started)
        self._set_state(state)
        return state

    def _watch(self, state: GroupState, heartbeats: Mapping[str, Heartbeat], started: float) -> None:
        """Record the heartbeats of a list that began at `started`; the next list is due when a lease may lapse."""
        now, earlier = self.clock(), self._last_heartbeats
        self._last_heartbeats, self._lapsed = {}, {}
        for member in state.members:
            if member.id == self.id:
                continue
            heartbeat = member.beat, heartbeats.get(member.id)
            earlier_heartbeat, since = earlier.get(member.id, (None, now))
            if earlier_heartbeat != heartbeat:
                since = now
            self._last_heartbeats[member.id] = heartbeat, since
            end = since + member.lease_ms / 1000 * (1 + _EXTRA_WAIT)
            if started >= end:
                self._lapsed[member.id] = member.beat
            else:
                self._list_due = min(self._list_due, end)
        # An id that one list has, but not the state, may be of a member that has just joined. If two lists have it,
        # the member was declared dead while its heartbeat was in flight.
        unknown_ids = heartbeats.keys() - _ids(state)
        self.log.forget(unknown_ids & self._unknown_ids)
        self._unknown_ids = frozenset(unknown_ids)

    def _up_to_date(self, state: GroupState, partitions: int, starts_of: StartsOf) -> GroupState:
        """Return the group without dead members, and with an offset for each partition of the topic."""
        state = _without(state, self._dead_ids(state))
        if state.partitions >= partitions:
            return state
        added = starts_of(range(state.partitions, partitions), state.exists)
        return dataclasses.replace(state, partitions=partitions, positions={**state.positions, **added})

    def _next_state(self, state: GroupState, member: str, pending: Collection[int]) -> GroupState:
        state = self._with_member(state, member)
        assigned = assignment(state.members, state.owners, state.partitions)
        now = self.clock()
        leaving = sorted(n for n in state.owned_by(member) if assigned.get(n) != member)
        self.leaving = {number: self.leaving.get(number, now) for number in leaving}
        # give up the partitions that can leave, and own the assigned partitions that have no owner
        owners = {n: owner for n, owner in state.owners.items() if owner != member or not self._can_leave(n, pending)}
        owners |= {n: member for n, owner in assigned.items() if owner == member and n not in state.owners}
        return state if owners == state.owners else dataclasses.replace(state, owners=owners)

    def _can_leave(self, number: int, pending: Collection[int]) -> bool:
        """Return whether a leaving partition has no delivered record to commit, or has waited for a lease."""
        since = self.leaving.get(number)
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

    def _set_state(self, state: GroupState) -> None:
        self.state = state
        if self.id and state.member(self.id) is None:
            self._lease_end = -math.inf

    def _dead_ids(self, state: GroupState) -> set[str]:
        """Return the members whose leases have lapsed; before a join, also the members that this member replaces."""
        return {
            member.id
            for member in state.members
            if self._lapsed.get(member.id) == member.beat or (not self.id and self.replaces(member))
        }

    def _renew(self, state: GroupState, started: float) -> None:
        self._set_state(state)
        self.leaving = {number: since for number, since in self.leaving.items() if number in self.owned}
        self._lease_end, self._heartbeat_due = self._lease_times(started)


def _ids(state: GroupState) -> set[str]:
    return {member.id for member in state.members}


def _with_heartbeat(state: GroupState, member: str) -> GroupState:
    members = (dataclasses.replace(peer, beat=peer.beat + (peer.id == member)) for peer in state.members)
    return dataclasses.replace(state, members=tuple(members))


def _without(state: GroupState, dead: set[str]) -> GroupState:
    if not dead:
        return state
    members = tuple(member for member in state.members if member.id not in dead)
    owners = {number: owner for number, owner in state.owners.items() if owner not in dead}
    return dataclasses.replace(state, members=members, owners=owners)
