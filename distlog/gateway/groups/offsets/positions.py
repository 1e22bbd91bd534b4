"""How far one group has come in each partition, and which of that has expired."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from distlog.core.consumer_offsets.positions_format import OffsetKey, Position
from distlog.core.consumer_offsets.waiting_changes import WaitingChanges
from distlog.gateway.groups.members.classic_group import ClassicGroup, GroupPhase
from distlog.gateway.groups.offsets.subscription import subscribed_topics

#: A topic and its partition.
TopicPartition = tuple[str, int]


class Positions:
    """The positions of `group`, those that are durable."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._by_partition: dict[TopicPartition, Position] = {}
        self._waiting = WaitingChanges[TopicPartition, Position]()
        #: How many changes of each position are on their way into the log; and those of transactions.
        self._storing, self._joining = Counter[TopicPartition](), Counter[TopicPartition]()
        #: How transactions ended while positions of any were on their way: producer ids, and whether committed.
        self._ended = list[tuple[int, bool]]()

    def __len__(self) -> int:
        return len(self._by_partition)

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(sorted(self._by_partition))

    def get(self, topic: str, partition: int) -> Position | None:
        """The position in a partition, if there is one."""
        return self._by_partition.get((topic, partition))

    def apply(self, changes: Mapping[TopicPartition, Position | None]) -> None:
        """Take what was stored; None deletes. What a transaction brought before is superseded, however that ends."""
        for place, position in changes.items():
            self._waiting.supersede(place)
            if position is None:
                self._by_partition.pop(place, None)
            else:
                self._by_partition[place] = position

    def begin_storing(self, places: Iterable[TopicPartition]) -> None:
        """Changes are on their way into the log."""
        self._storing += Counter(iter(places))

    def end_storing(self, places: Iterable[TopicPartition]) -> None:
        """Changes are in the log, or failed."""
        self._storing -= Counter(iter(places))

    def is_storing(self, places: Iterable[TopicPartition]) -> bool:
        """Whether changes of any of these positions are on their way into the log."""
        return any(self._storing[place] for place in places)

    def begin_joining(self, places: Iterable[TopicPartition]) -> int:
        """Positions of a transaction are on their way into the log; returns what `joined` is to be given."""
        self._joining += Counter(iter(places))
        return len(self._ended)

    def joined(self, producer_id: int, positions: Mapping[TopicPartition, Position], begun: int) -> None:
        """Positions of the producer's transaction are in the log; it may have ended already, behind them."""
        outcome = next((committed for each, committed in self._ended[begun:] if each == producer_id), None)
        if outcome is None:
            self.wait_for(producer_id, positions)
        elif outcome:
            self._by_partition.update(positions)

    def end_joining(self, places: Iterable[TopicPartition]) -> None:
        """Positions of a transaction are in the log, or failed."""
        self._joining -= Counter(iter(places))
        if not self._joining:
            self._ended.clear()

    def is_joining(self, places: Iterable[TopicPartition] | None = None) -> bool:
        """Whether any position, or any of these, is on its way into the log as part of a transaction."""
        return any(self._joining[place] for place in (self._joining if places is None else places))

    @property
    def has_pending(self) -> bool:
        """Whether any position depends on how a transaction ends, or will."""
        return bool(self._joining) or bool(self._waiting)

    @property
    def pending(self) -> frozenset[TopicPartition]:
        """The partitions in which the position depends on how a transaction ends."""
        return self._waiting.keys

    def wait_for(self, producer_id: int, positions: Mapping[TopicPartition, Position]) -> None:
        """Take positions that count when the transaction of this producer is committed."""
        for place, position in positions.items():
            self._waiting.add(producer_id, place, position)

    def end_transaction(self, producer_id: int, *, is_committed: bool) -> None:
        """Take, or forget, the positions of a transaction that ended."""
        self._by_partition.update(self._waiting.end(producer_id, is_committed=is_committed))
        if self._joining:
            self._ended.append((producer_id, is_committed))

    def keys(self, changes: Mapping[TopicPartition, Position | None]) -> list[tuple[OffsetKey, Position | None]]:
        """The changes as they are stored."""
        return [(OffsetKey(self._group, *place), position) for place, position in changes.items()]

    def expired(self, group: ClassicGroup, now_ms: int, retention_ms: int) -> list[TopicPartition]:
        """Those that nobody has needed for `retention_ms`: by the time since the group is empty, or since the commit.

        A group with members keeps its positions in the topics that they read (KIP-211). If that is not known, all.
        """
        if group.phase is GroupPhase.EMPTY:
            since_ms, read = group.since_ms, frozenset[str]()
        else:
            known = read_topics(group)
            if known is None or group.phase is not GroupPhase.STABLE:
                return []
            since_ms, read = 0, known
        return [
            (topic, partition)
            for (topic, partition), position in self._by_partition.items()
            if topic not in read and max(position.commit_ms, since_ms) + retention_ms <= now_ms
        ]


def read_topics(group: ClassicGroup) -> frozenset[str] | None:
    """The topics that the group's members subscribe to; None if that cannot be known."""
    if group.phase is GroupPhase.EMPTY:
        return frozenset()
    if group.members.protocol_type != "consumer":
        return None
    topics = [subscribed_topics(member.subscription(group.protocol)) for member in group.members]
    known = [found for found in topics if found is not None]
    return frozenset[str]().union(*known) if len(known) == len(topics) else None
