"""The whole state of a group at one version, and its JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from distlog.core.commits.format import fields, json_text
from distlog.core.commits.format.fields import (
    LONG,
    NAME,
    PARTITION,
    UUID,
    Integer,
    Text,
    by_partition,
    numbers_of,
    optional,
    stored,
)
from distlog.core.errors import CorruptMetadataError, UnsupportedVersionError
from distlog.core.groups.committed import Committed, committed

FORMAT = 1
#: The longest lease, in ms: whoever waits for a dead member's lease must not wait for ever.
LONGEST_LEASE_MS = 86_400_000
_MEMBER_ID = Text("[0-9a-f]{32}")


def _partitions(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise ValueError("must be a list of partitions")
    return tuple(map(PARTITION, value))


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A follower in a group. `beat` grows with each of its signs of life; `name` is for people.

    It is taken for dead when its beat has not changed for `lease_ms`. It takes `partitions` only, or all if None.
    """

    id: str = stored(_MEMBER_ID)
    name: str = stored(NAME)
    beat: int = stored(LONG)
    lease_ms: int = stored(Integer(1, LONGEST_LEASE_MS))
    partitions: tuple[int, ...] | None = stored(optional(_partitions), default=None)
    unknown: str = fields.unknown_fields()

    def takes(self, partition: int) -> bool:
        """Whether it takes this partition at all."""
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

    `kafka` has the positions of Kafka's clients of this group that followers have seen. Positions that people had
    `forgotten` do not count.
    """

    version: int = stored(LONG, default=-1)
    id: str = stored(UUID, default="")
    topic_id: str = stored(UUID)
    group: str = stored(NAME)
    partitions: int = stored(PARTITION, default=0)
    members: tuple[Member, ...] = stored(_members, default=())
    owners: Mapping[int, str] = stored(by_partition(_MEMBER_ID))
    positions: Mapping[int, int] = stored(by_partition(LONG))
    kafka: Mapping[int, Committed] = stored(by_partition(committed), default_factory=dict)
    forgotten: tuple[int, ...] = stored(numbers_of(PARTITION), default=())
    unknown: str = fields.unknown_fields()

    @classmethod
    def empty(cls, topic_id: str, group: str) -> GroupState:
        """The state before version 0."""
        return cls(topic_id=topic_id, group=group, owners={}, positions={})

    @property
    def exists(self) -> bool:
        """Whether somebody has joined the group, or set its positions, since it was made or deleted."""
        return self.partitions > 0

    def position(self, partition: int, kafka: Committed | None) -> int | None:
        """The group's position in a partition in which Kafka's clients have committed `kafka` last, if anything.

        None if it has none there, or people had it forgotten.
        """
        if kafka is not None and self.kafka.get(partition) != kafka:
            return kafka.offset
        return None if partition in self.forgotten else self.positions.get(partition)

    def member(self, member_id: str) -> Member | None:
        """The member with this id."""
        return next((member for member in self.members if member.id == member_id), None)

    def owned_by(self, member_id: str) -> list[int]:
        """The partitions that this member owns."""
        return sorted(partition for partition, owner in self.owners.items() if owner == member_id)

    def encode(self) -> bytes:
        """The bytes of the file of this version."""
        return json_text.write({"format": FORMAT, **fields.write(self)}, fields.write)

    @classmethod
    def decode(cls, data: bytes, file: str) -> GroupState:
        """The state that the bytes of `file` hold; raises UnsupportedVersionError, CorruptMetadataError."""
        try:
            body = json_text.parse(data)
            if not isinstance(body, dict):
                raise ValueError("it must be an object")
            if fields.LONG(body.pop("format", None)) > FORMAT:
                raise UnsupportedVersionError("a newer distlog wrote this group: upgrade", file=file)
            json_text.check_sum(data)
            del body["crc32c"]
            state = fields.read(cls, body)
            _check(state)
        except (ValueError, RecursionError) as error:
            text = f"not a group's state: {error}; delete the file to go back to the version before"
            raise CorruptMetadataError(text, file=file) from error
        return state


def _check(state: GroupState) -> None:
    if state.version < 0 or not state.id:
        raise ValueError("it has no version or no id")
    # the count is not believed before that many positions are there
    if len(state.positions) != state.partitions or set(state.positions) != set(range(state.partitions)):
        raise ValueError("positions must be of each partition that it knows")
    if not set(state.owners.values()) <= {member.id for member in state.members}:
        raise ValueError("an owner is no member")
    if any(partition >= state.partitions for partition in state.owners):
        raise ValueError("an owner has a partition that it does not know")
    if any(partition >= state.partitions for partition in state.forgotten):
        raise ValueError("a position is forgotten in a partition that it does not know")
