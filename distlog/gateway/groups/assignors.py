"""The assignors of the coordinator, by Kafka's names: they share the partitions of topics among members (KIP-848)."""

from __future__ import annotations

import heapq
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from distlog.gateway.groups.offsets_format import TopicIdPartition


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A member: the name by which it is ordered, the topics that it wants, and the partitions that it had."""

    name: str
    topics: frozenset[uuid.UUID]
    previous: frozenset[TopicIdPartition] = frozenset()


#: The partitions of each member, by the members' ids, from the members and the numbers of partitions.
Assignor = Callable[[Mapping[str, Subscriber], Mapping[uuid.UUID, int]], dict[str, frozenset[TopicIdPartition]]]


def assign_ranges(
    members: Mapping[str, Subscriber], topics: Mapping[uuid.UUID, int]
) -> dict[str, frozenset[TopicIdPartition]]:
    """Give each subscriber a range of each topic, so that topics of equal size are divided alike."""
    partitions_of: dict[str, set[TopicIdPartition]] = {member: set() for member in members}
    ordered = sorted(members, key=lambda member: (members[member].name, member))
    for topic, count in topics.items():
        readers = [member for member in ordered if topic in members[member].topics]
        for index, reader in enumerate(readers):
            start, end = (count * edge // len(readers) for edge in (index, index + 1))
            partitions_of[reader].update((topic, number) for number in range(start, end))
    return {member: frozenset(partitions) for member, partitions in partitions_of.items()}


def assign_uniformly(
    members: Mapping[str, Subscriber], topics: Mapping[uuid.UUID, int]
) -> dict[str, frozenset[TopicIdPartition]]:
    """Give members numbers of partitions as equal as their topics allow, and let them keep what they had."""
    sharing = _Sharing(members, topics)
    sharing.keep()
    sharing.give_rest()
    sharing.balance()
    return {member: frozenset(partitions) for member, partitions in sharing.partitions.items()}


class _Sharing:
    def __init__(self, members: Mapping[str, Subscriber], topics: Mapping[uuid.UUID, int]) -> None:
        self._members, self._topics = members, topics
        self.partitions: dict[str, set[TopicIdPartition]] = {member: set() for member in sorted(members)}
        self._readers = {
            topic: [member for member in self.partitions if topic in members[member].topics] for topic in topics
        }
        self._unassigned = {(topic, number) for topic, count in topics.items() for number in range(count)}

    def keep(self) -> None:
        """Let each member keep what it had, up to an equal part."""
        total = sum(count for topic, count in self._topics.items() if self._readers[topic])
        least, more = divmod(total, len(self.partitions) or 1)
        had = {
            name: {
                partition
                for partition in member.previous
                if partition in self._unassigned and partition[0] in member.topics
            }
            for name, member in self._members.items()
        }
        for name in sorted(self.partitions, key=lambda name: -len(had[name])):
            size = least + (more > 0)
            retained = sorted(had[name] & self._unassigned)[:size]
            more -= len(retained) > least
            self.partitions[name].update(retained)
            self._unassigned.difference_update(retained)

    def give_rest(self) -> None:
        """Give each partition that is left to the reader of its topic with the fewest."""
        for topic, partitions in groupby(sorted(self._unassigned), itemgetter(0)):
            heap = [(len(self.partitions[member]), member) for member in self._readers[topic]]
            heapq.heapify(heap)
            for partition in partitions if heap else ():
                count, member = heap[0]
                self.partitions[member].add(partition)
                heapq.heapreplace(heap, (count + 1, member))

    def balance(self) -> None:
        """Move partitions from members with two more than another reader of the topic, until there is none."""
        moves = sum(self._topics.values())
        while moves and self._has_moved():
            moves -= 1

    def _has_moved(self) -> bool:
        order = sorted(self.partitions, key=lambda member: -len(self.partitions[member]))
        for giver in order:
            for topic in {topic for topic, _ in self.partitions[giver]}:
                taker = min(self._readers[topic], key=lambda member: len(self.partitions[member]))
                if len(self.partitions[giver]) >= len(self.partitions[taker]) + 2:
                    partition = max(partition for partition in self.partitions[giver] if partition[0] == topic)
                    self.partitions[giver].remove(partition)
                    self.partitions[taker].add(partition)
                    return True
        return False


#: The assignors by name; the first one is for members that name none.
ASSIGNORS: Mapping[str, Assignor] = {"uniform": assign_uniformly, "range": assign_ranges}
