"""Positions of groups of followers (`topic.follow(group=...)`), for Kafka's clients that go on where those were.

They are kept beside each topic and need no gateway, so they cannot be records of `__consumer_offsets`: a commit would
have to be in both places, all or none. A group of Kafka's clients that has no position of its own in a partition is
told the followers' position there. From its first commit on, its own counts. Followers see nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from distlog.core.errors import InvalidConfigError, TopicNotFoundError
from distlog.core.groups.admin import group_states
from distlog.core.groups.group_log import GroupLog
from distlog.core.storage.parallel import in_parallel
from distlog.gateway.groups.offsets.positions import TopicPartition
from distlog.gateway.topics.hosted_topic import HostedTopic
from distlog.gateway.topics.metadata_cache import MetadataCache

#: So that a slow storage of one topic does not hold up all who ask.
_THREADS = 4


class FollowGroups:
    """The groups of followers of all topics below a root; each call asks the storage."""

    def __init__(self, metadata: MetadataCache) -> None:
        self._metadata = metadata
        self._pool = ThreadPoolExecutor(_THREADS, "follow-groups")

    def later(self, work: Callable[[], None]) -> None:
        """Do `work`, which calls this object, in a thread that members do not wait for."""
        self._pool.submit(work)

    def positions(self, group: str, topics: Iterable[str] | None) -> dict[TopicPartition, int]:
        """The group's positions in these topics, or in all that there are. Raises DistlogError."""
        names = list(self._metadata.all_topics()) if topics is None else sorted(set(topics))
        found = in_parallel(partial(self._in_topic, group), names)
        return {(name, number): at for name, each in zip(names, found, strict=True) for number, at in each.items()}

    def names(self) -> list[str]:
        """The groups that there are. Raises DistlogError."""
        found = in_parallel(_names_in, list(self._metadata.all_topics().values()))
        return sorted({name for each in found for name in each})

    def _in_topic(self, group: str, topic: str) -> dict[int, int]:
        try:
            hosted = self._metadata.fresh_topic(topic)
            return dict(GroupLog(hosted.topic.storage, hosted.snapshot.topic_id, group).load().positions)
        except (TopicNotFoundError, InvalidConfigError):
            # the name is none that a group of followers can have
            return {}

    def stop(self) -> None:
        """Begin nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _names_in(hosted: HostedTopic) -> list[str]:
    return [state.group for state in group_states(hosted.topic.storage, hosted.snapshot.topic_id)]
