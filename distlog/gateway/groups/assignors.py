"""The assignors of the coordinator, by Kafka's names: they share the partitions of topics among members (KIP-848)."""

from __future__ import annotations

import heapq
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

#: A partition: the id of its topic, and its number.
Place = tuple[uuid.UUID, int]


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A member: the name by which it is ordered, the topics that it wants, and the partitions that it had."""

    name: str
    topics: frozenset[uuid.UUID]
    before: frozenset[Place] = frozenset()


#: The partitions of each member, by the members' ids, from the members and the numbers of partitions.
Assignor = Callable[[Mapping[str, Subscriber], Mapping[uuid.UUID, int]], dict[str, frozenset[Place]]]


def assign_ranges(members: Mapping[str, Subscriber], topics: Mapping[uuid.UUID, int]) -> dict[str, frozenset[Place]]:
    """Give each subscriber of a topic a range of it, so that topics with as many partitions are shared alike."""
    places_of: dict[str, set[Place]] = {each: set() for each in members}
    ordered = sorted(members, key=lambda each: (members[each].name, each))
    for topic, count in topics.items():
        readers = [each for each in ordered if topic in members[each].topics]
        for at, reader in enumerate(readers):
            start, end = (count * edge // len(readers) for edge in (at, at + 1))
            places_of[reader].update((topic, number) for number in range(start, end))
    return {each: frozenset(places) for each, places in places_of.items()}


def assign_uniformly(
    members: Mapping[str, Subscriber], topics: Mapping[uuid.UUID, int]
) -> dict[str, frozenset[Place]]:
    """Give members numbers of partitions as equal as their topics allow, and let them keep what they had."""
    sharing = _Sharing(members, topics)
    sharing.keep()
    sharing.give_rest()
    sharing.balance()
    return {each: frozenset(places) for each, places in sharing.places.items()}


class _Sharing:
    """Partitions on their way to members."""

    def __init__(self, members: Mapping[str, Subscriber], topics: Mapping[uuid.UUID, int]) -> None:
        self._members, self._topics = members, topics
        self.places: dict[str, set[Place]] = {each: set() for each in sorted(members)}
        self._readers = {topic: [each for each in self.places if topic in members[each].topics] for topic in topics}
        self._left = {(topic, number) for topic, count in topics.items() for number in range(count)}

    def keep(self) -> None:
        """Let each member keep what it had, up to an equal part, the larger ones for members that had most."""
        total = sum(count for topic, count in self._topics.items() if self._readers[topic])
        least, more = divmod(total, len(self.places) or 1)
        had = {
            each: {place for place in member.before if place in self._left and place[0] in member.topics}
            for each, member in self._members.items()
        }
        for each in sorted(self.places, key=lambda name: -len(had[name])):
            size = least + (more > 0)
            kept = sorted(had[each] & self._left)[:size]
            more -= len(kept) > least
            self.places[each].update(kept)
            self._left.difference_update(kept)

    def give_rest(self) -> None:
        """Give each partition that is left to the reader of its topic with the fewest."""
        for topic, places in groupby(sorted(self._left), itemgetter(0)):
            heap = [(len(self.places[each]), each) for each in self._readers[topic]]
            heapq.heapify(heap)
            for place in places if heap else ():
                count, each = heap[0]
                self.places[each].add(place)
                heapq.heapreplace(heap, (count + 1, each))

    def balance(self) -> None:
        """Move partitions from readers with two more than another reader of the topic, until there is none."""
        moves = sum(self._topics.values())
        while moves and self._has_moved():
            moves -= 1

    def _has_moved(self) -> bool:
        order = sorted(self.places, key=lambda each: -len(self.places[each]))
        for giver in order:
            for topic in {topic for topic, _ in self.places[giver]}:
                taker = min(self._readers[topic], key=lambda each: len(self.places[each]))
                if len(self.places[giver]) >= len(self.places[taker]) + 2:
                    place = max(place for place in self.places[giver] if place[0] == topic)
                    self.places[giver].remove(place)
                    self.places[taker].add(place)
                    return True
        return False


#: The assignors by name; the first one is for members that name none.
ASSIGNORS: Mapping[str, Assignor] = {"uniform": assign_uniformly, "range": assign_ranges}
