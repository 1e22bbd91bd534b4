"""A group's own little log: a file per version, put if absent, each with the whole state."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import heapq
import logging
import re
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random, SystemRandom
from typing import Any

from distlog.core import paths
from distlog.core.commits import fields
from distlog.core.commits.fields import LONG, NAME, PARTITION, UUID, Integer, Text, by_partition, optional, stored
from distlog.core.errors import (
    CommitConflictError,
    CommitStateUnknownError,
    CorruptMetadataError,
    DistlogError,
    InvalidConfigError,
    StorageError,
    UnsupportedVersionError,
)
from distlog.core.storage.storage import FileInfo, Storage
from distlog.core.times import elapsed_s

# ---
# The whole state of a group at one version, and its JSON.


FORMAT = 1
#: The longest lease, in ms: the wait for a dead member's lease must end.
LONGEST_LEASE_MS = 86_400_000
_MEMBER_ID = Text("[0-9a-f]{32}")


def _partitions(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise ValueError("must be a list of partitions")
    return tuple(map(PARTITION, value))


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A follower in a group; `name` is for people. It takes `partitions` only, or all if None.

    It is taken for dead when it has shown no sign of life for `lease_ms`: neither its file of heartbeats has changed,
    nor `beat`, which grows with each version that it puts.
    """

    id: str = stored(_MEMBER_ID)
    name: str = stored(NAME)
    beat: int = stored(LONG)
    lease_ms: int = stored(Integer(1, LONGEST_LEASE_MS))
    partitions: tuple[int, ...] | None = stored(optional(_partitions), default=None)
    unknown: str = fields.unknown_fields()

    def takes(self, partition: int) -> bool:
        """True if it takes this partition at all."""
        return self.partitions is None or partition in self.partitions


def _members(value: Any) -> tuple[Member, ...]:
    if not isinstance(value, list):
        raise ValueError("must be a list of members")
    members = tuple(fields.read(Member, each) for each in value)
    if len({member.id for member in members}) < len(members):
        raise ValueError("a member is listed twice")
    return members


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupState:
    """A group at `version`; `id` is of the put that made it. Version -1 is before the first.

    The group knows `partitions` partitions, and has a position in each: the next offset to hand out. `owners` are the
    ids of the members that may hand out a partition's records, at most one each.
    """

    version: int = stored(LONG, default=-1)
    id: str = stored(UUID, default="")
    topic_id: str = stored(UUID)
    group: str = stored(NAME)
    partitions: int = stored(PARTITION, default=0)
    members: tuple[Member, ...] = stored(_members, default=())
    owners: Mapping[int, str] = stored(by_partition(_MEMBER_ID))
    positions: Mapping[int, int] = stored(by_partition(LONG))
    unknown: str = fields.unknown_fields()

    @classmethod
    def empty(cls, topic_id: str, group: str) -> GroupState:
        """The state before version 0."""
        return cls(topic_id=topic_id, group=group, owners={}, positions={})

    @property
    def exists(self) -> bool:
        """True if a member has joined, or positions were set, since the group was made or deleted."""
        return self.partitions > 0

    def member(self, member_id: str) -> Member | None:
        """The member with this id."""
        return next((member for member in self.members if member.id == member_id), None)

    def owned_by(self, member_id: str) -> list[int]:
        """The partitions that this member owns."""
        return sorted(partition for partition, owner in self.owners.items() if owner == member_id)

    def after(self, version: int) -> GroupState:
        """The same as the version after `version`, with an id of its own."""
        return dataclasses.replace(self, version=version + 1, id=str(uuid.uuid4()))

    def encode(self) -> bytes:
        """The bytes of the file of this version."""
        return fields.write_text({"format": FORMAT, **fields.write(self)}, fields.write)

    @classmethod
    def decode(cls, data: bytes, file: str) -> GroupState:
        """The state that the bytes of `file` hold; raises UnsupportedVersionError, CorruptMetadataError."""
        try:
            body = fields.parse(data)
            if not isinstance(body, dict):
                raise ValueError("it must be an object")
            if fields.LONG(body.pop("format", None)) > FORMAT:
                raise UnsupportedVersionError("a newer distlog wrote this group: upgrade", file=file)
            fields.check_sum(data)
            del body["crc32c"]
            state = fields.read(cls, body)
            if state.version < 0 or not state.id:
                raise ValueError("the state has no version or no id")
            # the count is not believed before that many positions are there
            if len(state.positions) != state.partitions or set(state.positions) != set(range(state.partitions)):
                raise ValueError("there must be one position for each partition of the group")
            if not set(state.owners.values()) <= {member.id for member in state.members}:
                raise ValueError("an owner of a partition is no member")
            if any(partition >= state.partitions for partition in state.owners):
                raise ValueError("a member owns a partition beyond the group's count")
        except (ValueError, RecursionError) as error:
            text = f"not a group's state: {error}; delete the file to go back to the version before"
            raise CorruptMetadataError(text, file=file) from error
        return state


# ---
# The partitions that each member should have: as evenly as can be, and with few moves.


def assignment(members: Sequence[Member], owners: Mapping[int, str], partitions: int) -> dict[int, str]:
    """The member that should have each of the `partitions`, if any member takes it.

    All members that see the same state come to the same answer, and it stays the same while they act on it. An owner
    keeps its partitions up to its fair share. The rest goes to the members with the fewest.
    """
    takers = sorted(members, key=lambda member: member.id)
    share, extra = divmod(partitions, len(takers)) if takers else (0, 0)
    has: dict[str, list[int]] = {member.id: [] for member in takers}
    able = {member.id: member for member in takers}
    for number in range(partitions):
        owner = owners.get(number)
        if owner in able and able[owner].takes(number):
            has[owner].append(number)
    assigned: dict[int, str] = {}
    counts = dict[str, int]()
    for member, numbers in has.items():
        room = share + (len(numbers) > share and extra > 0)
        extra -= room > share
        assigned |= dict.fromkeys(numbers[:room], member)
        counts[member] = len(numbers[:room])
    left = [number for number in range(partitions) if number not in assigned]
    if all(member.partitions is None for member in takers):
        fewest = [(count, member) for member, count in counts.items()]
        heapq.heapify(fewest)
        for number in left if fewest else ():
            count, best = fewest[0]
            assigned[number] = best
            heapq.heapreplace(fewest, (count + 1, best))
        return assigned
    for number in left:
        choice = [member.id for member in takers if member.takes(number)]
        if choice:
            best = min(choice, key=lambda each: (counts[each], owners.get(number) != each, each))
            assigned[number] = best
            counts[best] += 1
    return assigned


# ---
# A version of a group is the whole state, so a member that was late would put its change on the next one, and many
# would for long: about eight versions a second get in. So where there are many, a member that was late says what it
# wants by the name of a file, which each listing of the folder shows, and waits. Whoever puts the next version takes
# all of these along.
#
# A change is of a member at a beat, and each version with a change of the member has the next beat. So a change is
# made once, and never after another change of its member; and the beat tells its member that it was made.


#: Some stores keep an object as a file, whose name has 255 bytes.
_LONGEST_NAME = 220
_NAME = re.compile(r"([0-9a-f]{32})\.([0-9a-z]{1,13})\.([0-9a-z_-]*)\.([0-9a-z]{0,6})\.([0-9A-Za-z_=-]*)\.wait")
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class WaitingChange:
    """A member, at a `beat`, that has come to `positions`, takes what it should have, or joins: then `beat` is -1.

    One that joins has a `name` and a lease.
    """

    member: str
    beat: int
    positions: Mapping[int, int]
    lease_ms: int = 0
    name: str = ""

    def file_name(self) -> str | None:
        """The name of its file; None if it would be too long."""
        places = "_".join(f"{_text(number)}-{_text(offset)}" for number, offset in sorted(self.positions.items()))
        name = base64.urlsafe_b64encode(self.name.encode()).decode()
        lease = _text(self.lease_ms) if self.beat < 0 else ""
        told = f"{self.member}.{_text(self.beat + 1)}.{places}.{lease}.{name}.wait"
        return told if len(told) <= _LONGEST_NAME else None

    @classmethod
    def parse(cls, name: str) -> WaitingChange | None:
        """The change of a file with this name (the last part of its path); None for another file."""
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        try:
            places = (each.split("-") for each in match[3].split("_") if each)
            positions = {PARTITION(int(number, 36)): LONG(int(offset, 36)) for number, offset in places}
            lease_ms = int(match[4] or "0", 36)
            told = NAME(base64.urlsafe_b64decode(match[5]).decode()) if match[4] else ""
        except (ValueError, binascii.Error):
            return None
        beat = int(match[2], 36) - 1
        joins = beat < 0
        is_sound = joins == bool(match[4]) and joins <= lease_ms <= LONGEST_LEASE_MS and not (joins and positions)
        return cls(match[1], beat, positions, lease_ms, told) if is_sound else None

    def is_reached(self, state: GroupState) -> bool:
        """True if the positions of `state` are at or behind its own."""
        return all(state.positions.get(number, -1) >= offset for number, offset in self.positions.items())

    def is_made(self, state: GroupState) -> bool:
        """True if `state` has it: the member at a later beat, and its positions, which only the member moves back.

        The beat alone may be of another change of its member, which an earlier commit had left before it failed.
        """
        member = state.member(self.member)
        return member is not None and member.beat > self.beat and self.is_reached(state)


def _with_changes(state: GroupState, changes: Iterable[WaitingChange]) -> GroupState:
    """`state` with these changes; without those that were made, and those of members that it does not have.

    A member whose partitions are others' by now is left out: it learns that by itself.
    """
    members, positions = {member.id: member for member in state.members}, dict(state.positions)
    made = set[str]()
    for change in changes:
        known = members.get(change.member)
        if known is None and change.beat < 0:
            known = Member(id=change.member, name=change.name, beat=-1, lease_ms=change.lease_ms)
        owns = all(state.owners.get(number) == change.member for number in change.positions)
        if known is None or known.beat != change.beat or not owns:
            continue
        members[change.member] = dataclasses.replace(known, beat=known.beat + 1)
        positions |= {number: max(offset, positions[number]) for number, offset in change.positions.items()}
        made.add(change.member)
    if not made:
        return state
    changed = dataclasses.replace(state, members=tuple(members.values()), positions=positions)
    return dataclasses.replace(changed, owners=_taken(changed, made))


def _taken(state: GroupState, members: set[str]) -> dict[int, str]:
    """The owners of partitions, when these members have taken what is theirs, and no other member's by now."""
    assigned = assignment(state.members, state.owners, state.partitions)
    free = {n: owner for n, owner in assigned.items() if owner in members and n not in state.owners}
    return {**state.owners, **free}


def _changes(files: Sequence[FileInfo]) -> tuple[dict[str, WaitingChange], list[str]]:
    """The changes among the files of a folder, by the names of their files, and the files that no member waits for.

    Each has waited longer than its member does, by the times that the store notes. Without that, one that joined,
    whose file could not be deleted, would join again with each version.
    """
    parsed = ((file, WaitingChange.parse(paths.last_part(file.name))) for file in files)
    changes = {file: change for file, change in parsed if change is not None}
    newest_ms = max((file.modified_ms for file in files), default=0)
    oldest_ms = newest_ms - 2 * 1000 * TIMEOUT_S
    waiting = {file.name: change for file, change in changes.items() if file.modified_ms >= oldest_ms}
    return waiting, [file.name for file in changes if file.name not in waiting]


def _planned(plan: GroupPlan, state: GroupState, own: Collection[WaitingChange]) -> GroupState | None:
    """The result of `plan`; its refusal tells no more than is known of changes that waited."""
    try:
        return plan(state)
    except CommitConflictError as error:
        if any(change.positions and change.is_reached(state) for change in own):
            text = "this member was taken for dead, maybe after it committed: read on, from the group's positions"
            raise CommitStateUnknownError(text, group=state.group) from error
        raise


def _too_late(group: str, own: Collection[WaitingChange]) -> DistlogError:
    if not own:
        return CommitConflictError("nothing was committed: other members were first; try again", group=group)
    text = "other members were first, and one may have taken this change along: try again, which is harmless"
    return CommitStateUnknownError(text, group=group)


def _text(number: int) -> str:
    digits = ""
    while True:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
        if not number:
            return digits


# ---
# So commits of positions make no version of the topic, which every reader would have to read. Only the newest
# versions are kept. A put of the name of a deleted version would succeed, though no member would ever read it. So
# each put of a version is followed by a LIST of the folder: a version is deleted only when there is one that is KEPT
# higher, and the highest is never deleted. If the list has none that is about KEPT higher, then neither the version
# nor the one that it was made from was deleted before, and the put counts.
#
# The heartbeats are no versions: each member would have to read each of them. A member overwrites one small file of
# its own beside the versions. Another size each time tells a listing that it lives, whatever times the storage notes.


#: How many versions behind the newest are kept.
KEPT = 32
#: How long a put is tried again, in seconds: by then the lease has lapsed anyway.
TIMEOUT_S = 60.0
_PAUSE_S = 0.05
#: The longest wait of a member that was late: it gives no sign of life meanwhile.
_LONGEST_PAUSE_S = 1.0
#: Above so many members one that was late waits longer each time, up to _PAUSE_S for each of them.
_CROWD = 8
#: The largest file that is read: positions of a hundred thousand partitions take 3 MB.
_MAX_BYTES = 64 << 20
#: The sizes that a file of heartbeats has in turn.
_SIZES = 64

#: A member's file of heartbeats in a listing: its size, and when it was written. It is only compared.
Heartbeat = tuple[int, int]
#: Makes the next state from the newest one, or None if there is nothing to change.
GroupPlan = Callable[[GroupState], GroupState | None]

_log = logging.getLogger(__name__)


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
        self._random, self._sleep, self._clock = random or SystemRandom(), sleep, clock
        #: False if the last commit ended while its member may get a later beat by what it had put.
        self._is_sure = True

    def load(self) -> GroupState:
        """The newest state: one LIST and one GET. Raises CorruptMetadataError, UnsupportedVersionError."""
        return self._listed(None)[0]

    def watch(self, state: GroupState | None) -> tuple[GroupState, dict[str, Heartbeat]]:
        """The newest state, and the last heartbeats by member id: one LIST, and one GET if `state` is older."""
        newest, files = self._listed(state)
        by_member = ((paths.parse_heartbeat_file(file.name), file) for file in files)
        return newest, {member: (file.size, file.modified_ms) for member, file in by_member if member is not None}

    def _listed(self, state: GroupState | None) -> tuple[GroupState, list[FileInfo]]:
        while True:
            files = self._storage.list(self._folder)
            newest = max(_versions(files), default=-1)
            if state is None or state.version < newest:
                state = self._read(newest) if newest >= 0 else GroupState.empty(self._topic_id, self.group)
            if state is not None:
                return state, files

    def newer(self, state: GroupState) -> GroupState:
        """The newest state, from `state` on: one GET of each version that follows, and one more of the next one.

        If there is nothing new, a second GET tells whether the next version was deleted, as in a busy group.
        """
        following = self._read(state.version + 1)
        if following is None and state.version >= 0 and self._read(state.version) is None:
            return self.load()
        while following is not None:
            state, following = following, self._read(following.version + 1)
        return state

    def commit(
        self, state: GroupState, plan: GroupPlan, waiting: Callable[[GroupState], WaitingChange | None] | None = None
    ) -> GroupState:
        """Put the result of `plan` for `state`, if that is the newest one; returns the new state: one PUT, one LIST.

        `plan` is called again with a newer state after another member was first. In a crowd a member that was late
        says by a file what it wants, as `waiting` says of a state; then the state may be another member's version,
        which took that along. Raises the errors of `plan`; CommitConflictError when other members were first until
        the deadline; CommitStateUnknownError when the put may have happened, or a member may have taken along what
        waited: a second try is harmless.
        """
        end, longest_s = self._clock() + TIMEOUT_S, _PAUSE_S
        files, own, left = list[FileInfo](), dict[str, WaitingChange](), set[str]()
        is_sure, self._is_sure = self._is_sure, False
        try:
            while True:
                planned = _planned(plan, state, own.values())
                if planned is None:
                    self._is_sure = is_sure and not own
                    return state
                changes, given_up = _changes(files)
                planned = _with_changes(planned, (each for name, each in changes.items() if name not in own))
                if self._is_first(planned := planned.after(state.version), changes, given_up):
                    self._is_sure = True
                    return planned
                if self._clock() >= end:
                    raise _too_late(self.group, own.values())
                is_crowd = len(planned.members) > _CROWD
                # where an earlier change may have been made, a list is first: else its beat, which is older than this
                # call, would renew the lease
                change = waiting(state) if is_crowd and waiting and (files or is_sure) else None
                if change and self._waits(change, own, left):
                    longest_s = _LONGEST_PAUSE_S
                self._sleep(self._random.uniform(0, longest_s))
                if is_crowd:
                    longest_s = min(2 * longest_s, _PAUSE_S * len(planned.members), _LONGEST_PAUSE_S)
                state, files = self._listed(None)
                # a version that took them along deletes them too
                left &= {file.name for file in files}
                if any(change.is_made(state) for change in own.values()):
                    self._is_sure = len(own) == 1
                    return state
        finally:
            self._delete(sorted(left))

    def _is_first(self, planned: GroupState, changes: Mapping[str, WaitingChange], given_up: Iterable[str]) -> bool:
        """Put a version; True if it counts. Deletes the files of changes that are made, or can never be."""
        data = planned.encode()
        existing = self._storage.put_if_absent(self._file(planned.version), data, timeout_s=TIMEOUT_S)
        if existing != data or not self._counts(planned.version):
            return False
        known = {member.id: member for member in planned.members}
        done = [
            name
            for name, each in changes.items()
            if (each.beat >= 0 if (member := known.get(each.member)) is None else member.beat > each.beat)
        ]
        self._delete([*done, *given_up])
        return True

    def _waits(self, change: WaitingChange, own: dict[str, WaitingChange], left: set[str]) -> bool:
        """Have a change wait, if that is not done; false if its name is too long, or the store refuses it."""
        name = change.file_name()
        if name is not None and (file := f"{self._folder}/{name}") not in own:
            own[file] = change
            left.add(file)
            try:
                self._storage.put(file, b".")
            except StorageError as error:
                _log.warning("a change of the group %s does not wait, but is tried again: %s", self.group, error)
                return False
        return name is not None

    def beat(self, member: str, count: int) -> None:
        """Put heartbeat number `count` of a member, in place of the one before: one PUT."""
        self._storage.put(f"{self._folder}/{paths.heartbeat_file(member)}", b"." * (1 + count % _SIZES))

    def forget(self, members: Collection[str]) -> None:
        """Delete the heartbeats of former members; a failed delete is left to other members."""
        self._delete([f"{self._folder}/{paths.heartbeat_file(member)}" for member in sorted(members)])

    def _counts(self, version: int) -> bool:
        """True if a put of `version` that succeeded counts; deletes versions that are too old to be wanted."""
        versions = _versions(self._storage.list(self._folder))
        newest = max(versions, default=version)
        old = [each for each in versions if each <= newest - KEPT]
        if len(old) >= KEPT:
            self._delete([self._file(each) for each in old])
        return newest < version + KEPT - 1

    def _delete(self, files: Sequence[str]) -> None:
        if not files:
            return
        try:
            self._storage.delete(files)
        except StorageError as error:
            _log.warning("old files of the group %s stay for now: %s", self.group, error)

    def _read(self, version: int) -> GroupState | None:
        file = self._file(version)
        try:
            data = self._storage.read(file, 0, _MAX_BYTES)
        except FileNotFoundError:
            return None
        state = GroupState.decode(data, file)
        if state.group != self.group and state.group.casefold() == self.group.casefold():
            text = "this storage takes it for another group, whose name differs in case alone: choose another name"
            raise InvalidConfigError(text, group=self.group, existing=state.group)
        if (state.version, state.topic_id, state.group) != (version, self._topic_id, self.group):
            raise CorruptMetadataError(
                "the file is of another group or version: delete it to go back to the one before", file=file
            )
        return state

    def _file(self, version: int) -> str:
        return f"{self._folder}/{version:020d}.json"


def _versions(files: Iterable[FileInfo]) -> list[int]:
    return [version for file in files if (version := paths.parse_commit_file(file.name)) is not None]
