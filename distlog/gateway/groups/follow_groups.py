"""Groups of followers (`topic.follow(group=...)`): Kafka's clients of the same group go on where those were.

Followers need no gateway, so their positions are beside each topic, not in `__consumer_offsets`. They are one group
all the same: whoever begins goes on from the position that was committed last, on either side. A group of followers
notes which position of Kafka's clients it has seen, so that both sides know which one that is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from distlog.core.errors import InvalidConfigError, InvalidTopicError, TopicNotFoundError
from distlog.core.groups import admin
from distlog.core.groups.group_log import GroupLog
from distlog.core.groups.group_state import GroupState
from distlog.core.storage.parallel import in_parallel
from distlog.gateway.server.request import Request
from distlog.gateway.topics.hosted_topic import HostedTopic
from distlog.gateway.topics.metadata_cache import MetadataCache

_log = logging.getLogger("distlog.gateway")
#: So that a slow storage of one topic does not hold up all who ask.
_THREADS = 16


class FollowGroups:
    """The groups of followers of all topics below a root; each call asks the storage."""

    def __init__(self, metadata: MetadataCache) -> None:
        self._metadata = metadata
        self._pool = ThreadPoolExecutor(_THREADS, "follow-groups")

    def later(self, request: Request, work: Callable[[], None]) -> None:
        """Do `work` for `request` in a thread that members do not wait for; if it fails, the connection ends."""

        def done() -> None:
            try:
                work()
            except Exception:
                # nobody else sees it, and the client would wait for a response that never comes
                _log.exception("a request failed (api_key=%d)", request.head.api_key)
                request.hang_up("the request failed")

        self._pool.submit(done)

    def states(self, group: str, topics: Iterable[str] | None) -> dict[str, GroupState]:
        """The group in these topics, or in all that there are, by topic: where followers, or people, made it.

        Raises DistlogError.
        """
        names = list(self._metadata.all_topics()) if topics is None else sorted(set(topics))
        found = in_parallel(partial(self._in_topic, group), names)
        return {name: state for name, state in zip(names, found, strict=True) if state is not None}

    def names(self) -> list[str]:
        """The groups that there are. Raises DistlogError."""
        found = in_parallel(_names_in, list(self._metadata.all_topics().values()))
        return sorted({name for each in found for name in each})

    def delete(self, group: str) -> bool:
        """Delete the group in all topics; whether there was one. Raises DistlogError."""
        found = [name for name, state in self.states(group, None).items() if state.exists]
        for name in found:
            admin.delete(self._log(group, name), dict)
        return bool(found)

    def forget(self, group: str, partitions: Mapping[str, Iterable[int]]) -> None:
        """Forget the group's positions in partitions, by topic. Raises DistlogError."""
        for name, numbers in partitions.items():
            if self._in_topic(group, name):
                admin.forget(self._log(group, name), numbers)

    def _log(self, group: str, topic: str) -> GroupLog:
        hosted = self._metadata.fresh_topic(topic)
        return GroupLog(hosted.topic.storage, hosted.snapshot.topic_id, group)

    def _in_topic(self, group: str, topic: str) -> GroupState | None:
        try:
            state = self._log(group, topic).load()
        except (TopicNotFoundError, InvalidTopicError, InvalidConfigError):
            # or the name is none that a group of followers can have
            return None
        return state if state.version >= 0 else None

    def stop(self) -> None:
        """Begin nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _names_in(hosted: HostedTopic) -> list[str]:
    return [state.group for state in admin.group_states(hosted.topic.storage, hosted.snapshot.topic_id)]
