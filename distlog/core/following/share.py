"""The partitions that a follower reads, and how far it has come: all by itself, or its part of a group's."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from math import inf

from distlog.core.errors import DistlogError, InvalidConfigError, OffsetOutOfRangeError, TopicNotFoundError
from distlog.core.following.followed_log import FollowedLog
from distlog.core.following.start import Start, start_offset
from distlog.core.groups.membership import Membership
from distlog.core.reading.slices.slices import OutOfRange
from distlog.core.reading.time_lookup import EARLIEST
from distlog.core.whole_number import whole_number

_log = logging.getLogger(__name__)


class Share(ABC):
    """What one follower reads of `log`. `position` is the next offset to hand out, by partition."""

    def __init__(self, log: FollowedLog, start: Start | None, out_of_range: OutOfRange) -> None:
        self.log, self._start, self._out_of_range = log, start, out_of_range
        self.position: dict[int, int] = {}

    @property
    def wanted(self) -> Mapping[int, int]:
        """The positions of the partitions to read now."""
        return self.position

    @property
    def is_lapsed(self) -> bool:
        """Whether others may read the same partitions by now."""
        return False

    def due_s(self) -> float:
        """The seconds until `renew` should be called."""
        return inf

    @abstractmethod
    def renew(self) -> bool:
        """Take what there is to read now; returns whether partitions came or went."""

    @abstractmethod
    def commit(self, positions: Mapping[int, int] | None) -> None:
        """Keep positions in the topic: all, or those given."""

    def move(self, partition: int, offset: int) -> None:
        """Read on at `offset`, since the position is out of the log."""
        self.position[partition] = offset

    def finish(self) -> None:  # noqa: B027 - without a group there is nothing to do
        """Commit what was handed out, and is done."""

    def leave(self) -> None:  # noqa: B027
        """Let others have the partitions."""

    def begin(self, partition: int, added: bool) -> int:
        """Where to begin in a partition; in one that was `added` since, at its start, so that nothing is missed."""
        start = EARLIEST if added else self._start
        return start_offset(self.log.handle.reader, self.log.snapshot, partition, start, self._out_of_range)


class WholeShare(Share):
    """The partitions that were asked for, or all, those that are added later too."""

    def __init__(
        self, log: FollowedLog, partitions: Collection[int] | None, start: Start | None, out_of_range: OutOfRange
    ) -> None:
        super().__init__(log, start, out_of_range)
        chosen = range(log.partitions) if partitions is None else partitions
        self.position = {number: self.begin(number, False) for number in chosen}
        self._grows = partitions is None

    def renew(self) -> bool:
        """See Share."""
        if not self._grows or len(self.position) == self.log.partitions:
            return False
        new = range(len(self.position), self.log.partitions)
        self.position |= {number: self.begin(number, True) for number in new}
        return True

    def commit(self, positions: Mapping[int, int] | None) -> None:
        """See Share."""
        raise InvalidConfigError("this follower keeps no positions: follow with a group to commit them")


class GroupShare(Share):
    """The partitions that a group gives to this member."""

    def __init__(self, log: FollowedLog, member: Membership, start: Start | None, out_of_range: OutOfRange) -> None:
        super().__init__(log, start, out_of_range)
        self._member, self._joins = member, 0
        self._committed: dict[int, int] = {}

    @property
    def wanted(self) -> Mapping[int, int]:
        """See Share: without those that others wait for, and those of which this member knows too little yet."""
        hidden = self._member.leaving
        return {n: at for n, at in self.position.items() if n not in hidden and n < self.log.partitions}

    @property
    def is_lapsed(self) -> bool:
        """See Share."""
        return self._member.is_lapsed

    def due_s(self) -> float:
        """See Share."""
        return self._member.due_s(self._pending())

    def renew(self) -> bool:
        """See Share: signs on, beats, and takes and gives up partitions, when it is time for it."""
        if self.due_s() > 0:
            return False
        before = self.wanted.keys()
        self._member.sync(self.log.partitions, self.begin, self._pending())
        rejoined = self._take()
        return rejoined or self.wanted.keys() != before

    def commit(self, positions: Mapping[int, int] | None) -> None:
        """See Share. Raises FencedMemberError, and OffsetOutOfRangeError for what was not handed out."""
        given = None if positions is None else {n: whole_number("offset", at) for n, at in positions.items()}
        for number, offset in (given or {}).items():
            self._check(number, offset)
        self._member.commit(self.position if given is None else given)
        self._take()

    def move(self, partition: int, offset: int) -> None:
        """See Share. If the log lost its end, the group's position goes back with it."""
        super().move(partition, offset)
        if offset < self._committed[partition]:
            self._member.commit({partition: offset}, back=True)
            self._take()

    def finish(self) -> None:
        """See Share."""
        if self._pending():
            self.commit(None)

    def leave(self) -> None:
        """See Share."""
        self.position, self._committed = {}, {}
        try:
            self._member.leave()
        except DistlogError as error:
            # an error that ended the iteration matters more
            _log.warning("could not leave the group: others wait for the lease to end (%s)", error)

    def _pending(self) -> Collection[int]:
        return {number for number, offset in self.position.items() if offset > self._committed[number]}

    def _take(self) -> bool:
        """Learn what is owned now; whether this is a new membership, which begins at the group's positions."""
        rejoined, self._joins = self._joins != self._member.joins, self._member.joins
        kept = {} if rejoined else self.position
        self._committed = self._member.owned
        self.position = {number: kept.get(number, offset) for number, offset in self._committed.items()}
        return rejoined

    def _check(self, partition: int, offset: int) -> None:
        if partition not in self.position:
            raise TopicNotFoundError("this member does not have the partition", partition=partition)
        low, high = self._committed[partition], self.position[partition]
        if not low <= offset <= high:
            raise OffsetOutOfRangeError(
                "a position can be committed from the last one on, up to what was handed out",
                partition=partition,
                offset=offset,
                committed=low,
                handed_out=high,
            )
