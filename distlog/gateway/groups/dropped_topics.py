"""Forgets positions in topics that others dropped: in a new topic of the same name they would skip records."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from distlog.core.errors import DistlogError, TopicNotFoundError
from distlog.gateway.groups.committed_offsets import CommittedOffsets

_log = logging.getLogger("distlog.gateway")


class DroppedTopics:
    """Looks at the topics that groups have positions in; `find_id` gives a topic's id, or raises TopicNotFoundError.

    Only a topic that was there at an earlier look is taken for dropped: one may come back later than its groups.
    """

    def __init__(self, offsets: CommittedOffsets, find_id: Callable[[str], str]) -> None:
        self._offsets, self._find_id = offsets, find_id
        self._seen: dict[str, str] = {}
        #: Topics of which not all positions could be forgotten.
        self._left = set[str]()

    def look(self) -> None:
        """Look once; what fails is looked at again the next time."""
        topics = self._offsets.topics()
        self._left.intersection_update(topics)
        before, self._seen = self._seen, {name: id for name, id in self._seen.items() if name in topics}
        for name in sorted(topics):
            try:
                found = self._find_id(name)
            except TopicNotFoundError:
                found = ""
            except DistlogError as error:
                _log.debug("cannot look whether %s was dropped: %s", name, error)
                continue
            if name in self._left or (name in before and before[name] != found):
                self._left.discard(name)
                self._offsets.forget_topic(name, partial(self._left.add, name))
            if found:
                self._seen[name] = found
            else:
                self._seen.pop(name, None)
